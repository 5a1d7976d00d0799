"""The messages between the executor, the sandbox and the sessions in it."""

import struct

REQUEST = struct.Struct("=dIIIQQIII?")
"""Wall limit in seconds, memory and disk limits in MB, processes; then, of a session: its key (0
for a program by itself), the seed of its random numbers, the state to go on from (0: the one that
it begins with), the number of the state to be made (0: end the session), how many programs came
before, and whether the state to go on from is needed again."""
REPORT = struct.Struct("=id6sI")
"""Exit code, seconds, the limit that ended the program, padded with zeros; the state that the
session is in."""
STEP = struct.Struct("=III?")
"""From a server to a session: the state to go on from, that to be made, programs before, needed."""
ANSWER = struct.Struct("=iI")
"""From a session to its server: exit code, the state that it is in."""
GONE = 0xFFFFFFFF
"""Instead of a state: there is none any more."""

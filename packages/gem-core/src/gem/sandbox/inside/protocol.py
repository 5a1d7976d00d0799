"""The messages between the executor and the sandbox."""

import struct

REQUEST = struct.Struct("=dIII")
"""Wall limit in seconds, memory and disk limits in MB, processes."""
REPORT = struct.Struct("=id6s")
"""Exit code, seconds, the limit that ended the program, padded with zeros."""

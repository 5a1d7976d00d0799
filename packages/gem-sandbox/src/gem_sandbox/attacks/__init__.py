"""Attack programs for `gem_sandbox.audit`: each tries to break out of a sandbox.

A program prints a line `GOT <what>` for each success, and none if the sandbox holds. The audit
replaces these placeholders in it:

- `{secret}`, `{home}`: path of a decoy file of the user, and the user's home folder;
- `{word}`, `{drow}`: the secret (in that file, in an environment variable and in earlier
  programs; it also names the abstract socket on which the host listens), and the same backwards;
- `{port}`: TCP port on which the host listens;
- `{victim}`: pid of a process of the user;
- `{golds}`: excerpts of the bundled files with answers;
- `{mark}`: name of a process that must not outlive the program or its session.
"""

from __future__ import annotations

from dataclasses import replace

from gem_sandbox.attacks.base import TRY, Attack
from gem_sandbox.attacks.files import FILES
from gem_sandbox.attacks.golds import GOLDS
from gem_sandbox.attacks.limits import LIMITS
from gem_sandbox.attacks.neighbours import NEIGHBOURS
from gem_sandbox.attacks.network import NETWORK
from gem_sandbox.attacks.odd import ODD
from gem_sandbox.attacks.processes import PROCESSES
from gem_sandbox.attacks.sessions import SESSIONS

__all__ = ["ATTACKS", "Attack"]


def _whole(attack: Attack) -> Attack:
    """Return an attack whose programs can use `attempt`."""
    return replace(
        attack,
        program=TRY + attack.program,
        after=attack.after and TRY + attack.after,
        further=attack.further and TRY + attack.further,
    )


ATTACKS: list[Attack] = [
    *(_whole(Attack(name, "files", program)) for name, program in FILES.items()),
    *map(_whole, GOLDS),
    *(_whole(Attack(name, "network", program)) for name, program in NETWORK.items()),
    *(_whole(Attack(name, "processes", program)) for name, program in PROCESSES.items()),
    *map(_whole, NEIGHBOURS),
    *map(_whole, SESSIONS),
    *map(_whole, LIMITS),
    *ODD,
]
"""All attacks. A successful one takes at most some hundred MB or some dozen processes."""

"""Programs that try to get out of a sandbox, each of which says what it got.

A program prints `GOT` and what, and nothing like it when it got nothing. In it, `{secret}` is the
path of a file of the user and `{home}` their folder, `{word}` what stands in it, in a variable of
the environment and in earlier programs, `{drow}` the same backwards, `{port}` and `{abstract}`
where the host listens, `{victim}` a process of the user, `{golds}` pieces of bundled files with
answers. A process called `{mark}` must not be left when a program, or its session, has ended.
"""

from __future__ import annotations

from dataclasses import replace

from gem.sandbox.attacks.base import TRY, Attack
from gem.sandbox.attacks.files import FILES
from gem.sandbox.attacks.golds import GOLDS
from gem.sandbox.attacks.limits import LIMITS
from gem.sandbox.attacks.neighbours import NEIGHBOURS
from gem.sandbox.attacks.network import NETWORK
from gem.sandbox.attacks.odd import ODD
from gem.sandbox.attacks.processes import PROCESSES
from gem.sandbox.attacks.sessions import SESSIONS

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
    *(_whole(Attack(name, "files", program)) for name, program in FILES),
    *map(_whole, GOLDS),
    *(_whole(Attack(name, "network", program)) for name, program in NETWORK),
    *(_whole(Attack(name, "processes", program)) for name, program in PROCESSES),
    *map(_whole, NEIGHBOURS),
    *map(_whole, SESSIONS),
    *map(_whole, LIMITS),
    *ODD,
]
"""Bounded: where one succeeds, it takes some hundred MB or some dozen processes at most."""

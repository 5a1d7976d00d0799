"""The security audit: every attack against an executor, on this machine."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gem.errors import ConfigurationError, UnreachableError
from gem.sandbox.attacks import ATTACKS, Attack
from gem.sandbox.base import Executor, Limits, Result

# What a busy machine may take to notice and to clean up.
_LATE_S = 3.0


@dataclass(frozen=True)
class Finding:
    """What came of one attack."""

    attack: Attack
    got: str
    """What the attack got; empty when the sandbox held."""


@dataclass(frozen=True)
class Host:
    """What an attack may find of the user who runs it: all of it made for the occasion."""

    secret: str
    home: str
    word: str
    port: int
    abstract: str
    victim: int

    def fill(self, program: str) -> str:
        """Return a program with this host's particulars in it."""
        for name, value in {**vars(self), "drow": self.word[::-1]}.items():
            program = program.replace(f"{{{name}}}", str(value))
        return program


@contextlib.contextmanager
def host() -> Iterator[Host]:
    """Give a file, a variable, listeners and a process to attack."""
    word = f"gem{secrets.token_hex(8)}"
    home = Path.home() if os.access(Path.home(), os.W_OK) else None
    os.environ["GEM_AUDIT_WORD"] = word
    with (
        tempfile.NamedTemporaryFile("w", prefix="gem-audit-", dir=home) as secret,
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as listener,
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as victim,
    ):
        try:
            secret.write(word)
            secret.flush()
            listener.bind(f"\0{word}")
            listener.listen()
            yield Host(
                secret.name, str(Path.home()), word, server.getsockname()[1], word, victim.pid
            )
        finally:
            victim.kill()
            del os.environ["GEM_AUDIT_WORD"]


def audit(executor: Executor, attacks: list[Attack] | None = None) -> Iterator[Finding]:
    """Run attacks against an executor.

    Raises:
        ConfigurationError: The executor claims no isolation: the attacks would be real.
        UnreachableError: It does not run programs at all.
    """
    if not executor.isolates:
        raise ConfigurationError(
            f"{type(executor).__name__} isolates nothing; attacks would harm this machine"
        )
    with host() as particulars:
        executor.run("print(1)", limits=Limits(wall_s=60))
        for attack in ATTACKS if attacks is None else attacks:
            yield Finding(attack, _try(executor, attack, particulars))


def _try(executor: Executor, attack: Attack, host: Host) -> str:
    began = time.monotonic()
    try:
        result = executor.run(host.fill(attack.program), limits=attack.limits)
        took = time.monotonic() - began
        later = (
            executor.run(host.fill(attack.after), limits=attack.limits) if attack.after else None
        )
        alive = executor.run("print(6 * 7)")
    except UnreachableError as error:
        return f"the sandbox ended: {error}"
    problems = _got(result) + (_got(later) if later else [])
    # A program that cannot even begin within the tier is held by it as well.
    if attack.limit_hit and result.limit_hit != attack.limit_hit and result.exit_code == 0:
        problems.append(f"no {attack.limit_hit} limit")
    if took > attack.limits.wall_s + _LATE_S:
        problems.append(f"{took - attack.limits.wall_s:.1f} s more than its time")
    if max(len(result.stdout), len(result.stderr)) > attack.limits.output_bytes:
        problems.append("more output than its limit")
    if alive.stdout != "42\n":
        problems.append(f"the next program gave {alive.stdout!r}")
    # Not waited for yet, a killed process still has its entry, in state Z.
    state = Path(f"/proc/{host.victim}/stat").read_text().rpartition(")")[2].split()[0]
    if state == "Z":
        problems.append("killed a process of the user")
    return "; ".join(problems)


def _got(result: Result) -> list[str]:
    return [line[4:] for line in result.stdout.splitlines() if line.startswith("GOT ")][:3]

"""The security audit: runs the attacks of `attacks` against a runner, on this machine.

Called by `gem_sandbox.doctor` and the tests.
"""

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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from gem.errors import ConfigurationError, UnreachableError
from gem_sandbox.attacks import ATTACKS, Attack
from gem_sandbox.attacks.golds import excerpts
from gem_sandbox.base import Limits, Result, Runner

# CPU time beyond the limit: a machine of many cores may be this late in killing a program of many
# processes.
_LATE_S = 10.0
# Runs of `before` and `after`: more than a runner has spare processes, so that some of the runs
# get a process made after the attack.
_TIMES = 6
# Its output differs every time, so a lost session cannot be rebuilt by running its programs again.
_UNREPEATABLE = "import time\nprint(time.time())"
# Neighbours of an attack: a session, unrepeatable so that its loss shows, and a short program.
_NEIGHBOUR = "import time\nmine = ['{word}']\nprint(time.time())"
_BRIEF_NEIGHBOUR = "import time\ntime.sleep(0.3)\nprint('lived')"


@dataclass(frozen=True)
class Finding:
    """The result of one attack."""

    attack: Attack
    got: str
    """What the attack reached; empty if the sandbox held."""
    tried: bool = True
    """False for an attack on sessions if the runner has none."""


@dataclass(frozen=True)
class Host:
    """Targets of the attacks: decoy secrets, listeners and a process, made for the audit."""

    secret: str
    home: str
    word: str
    port: int
    victim: int

    def fill(self, program: str) -> str:
        """Return a program with its placeholders replaced by this host's values."""
        others = {"drow": self.word[::-1], "mark": self.mark, "golds": excerpts()}
        for name, value in {**vars(self), **others}.items():
            program = program.replace(f"{{{name}}}", str(value))
        return program

    @property
    def mark(self) -> str:
        """Name of the processes that an attack leaves behind; at most 15 bytes, as in comm."""
        return self.word[:15]


@contextlib.contextmanager
def host() -> Iterator[Host]:
    """Create the targets: a file, an environment variable, two listeners, a process."""
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
            yield Host(secret.name, str(Path.home()), word, server.getsockname()[1], victim.pid)
        finally:
            victim.kill()
            del os.environ["GEM_AUDIT_WORD"]


def audit(runner: Runner, attacks: list[Attack] | None = None) -> Iterator[Finding]:
    """Run attacks against a runner.

    Raises:
        ConfigurationError: The runner claims no isolation: the attacks would do real harm.
        UnreachableError: The runner cannot run programs.
    """
    if not runner.isolates:
        raise ConfigurationError(
            f"{type(runner).__name__} isolates nothing; attacks would harm this machine"
        )
    with host() as particulars:
        runner.run("print(1)", limits=Limits(cpu_s=60))
        for attack in ATTACKS if attacks is None else attacks:
            if attack.session and not _has_sessions(runner):
                yield Finding(attack, "", tried=False)
            else:
                yield Finding(attack, _try(runner, attack, particulars))


def _has_sessions(runner: Runner) -> bool:
    try:
        runner.session().close()
    except ConfigurationError:
        return False
    return True


def _try(runner: Runner, attack: Attack, host: Host) -> str:
    try:
        with _neighbours(runner, attack, host) as problems:
            for _ in range(_TIMES if attack.before else 0):
                runner.run(host.fill(attack.before))
            results = list(_attack(runner, attack, host))
            after = host.fill(attack.after)
            results += [runner.run(after, limits=attack.limits) for _ in range(_TIMES) if after]
            alive = runner.run("print(6 * 7)")
    except UnreachableError as error:
        return f"the sandbox ended: {error}"
    result = results[0]
    problems += [line for each in results for line in _got(each)]
    # A program that fails to start in this runner counts as held.
    if attack.limit_hit and result.limit_hit != attack.limit_hit and result.exit_code == 0:
        problems.append(f"no {attack.limit_hit} limit")
    over_s = max(each.cpu_s or 0.0 for each in results) - attack.limits.cpu_s
    if over_s > _LATE_S:
        problems.append(f"{over_s:.1f} s of CPU time more than its limit")
    if max(len(result.stdout), len(result.stderr)) > attack.limits.output_bytes:
        problems.append("more output than its limit")
    if alive.stdout != "42\n":
        problems.append(f"the next program gave {alive.stdout!r}")
    # This process has not waited for the victim: if killed, it is a zombie (state Z).
    if _state(host.victim) == "Z":
        problems.append("killed a process of the user")
    if _lives_on(host.mark):
        problems.append("a process of it lives on")
    return "; ".join(problems)


def _attack(runner: Runner, attack: Attack, host: Host) -> Iterator[Result]:
    program, further = host.fill(attack.program), host.fill(attack.further)
    if not attack.session:
        yield runner.run(program, limits=attack.limits)
        return
    with runner.session(attack.limits) as session:
        session.run(_UNREPEATABLE)
        yield session.run(program)
        if attack.further:
            state = session.snapshot()
            yield session.run(further)
            session.restore(state)
            for _ in range(_TIMES):
                yield session.run(further)


@contextlib.contextmanager
def _neighbours(runner: Runner, attack: Attack, host: Host) -> Iterator[list[str]]:
    """Keep a session and a program running beside an attack; yield the list of harm to them."""
    problems: list[str] = []
    if attack.isolation != "processes" or not _has_sessions(runner):
        yield problems
        return
    with runner.session() as session, ThreadPoolExecutor(1) as thread:
        session.run(host.fill(_NEIGHBOUR))
        running = thread.submit(runner.run, _BRIEF_NEIGHBOUR)
        yield problems
        try:
            if running.result().stdout != "lived\n":
                problems.append("ended a program beside it")
            if session.run("print(mine)").stdout != f"{[host.word]}\n":
                problems.append("changed a session beside it")
        except UnreachableError as error:
            problems.append(f"ended what ran beside it: {error}")


def _lives_on(mark: str) -> bool:
    """Return whether processes of this name are still there after `_LATE_S`."""
    until = time.monotonic() + _LATE_S
    while any(_name(path) == mark for path in Path("/proc").glob("[0-9]*")):
        if time.monotonic() > until:
            return True
        time.sleep(0.01)
    return False


def _name(process: Path) -> str:
    try:
        return (process / "comm").read_text().strip()
    except OSError:
        return ""


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _got(result: Result) -> list[str]:
    return [line[4:] for line in result.stdout.splitlines() if line.startswith("GOT ")][:3]

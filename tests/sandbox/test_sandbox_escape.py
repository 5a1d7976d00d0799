"""Every attack against every runner that claims isolation."""

from __future__ import annotations

import functools
import os
import platform
import re
import shutil
import site
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

import gem
import gem_tau
from gem.__main__ import main
from gem.errors import ConfigurationError, MissingExtraError
from gem_sandbox import RUNNERS, Limits, Result, Runner, SubprocessRunner, resolve
from gem_sandbox.attacks import ATTACKS, Attack
from gem_sandbox.attacks.base import TRY
from gem_sandbox.attacks.golds import GOLDS, excerpts
from gem_sandbox.audit import audit, host

TIERS = [name for name in RUNNERS if name != "subprocess"]
# What does no harm where it succeeds.
HARMLESS = [
    attack
    for attack in ATTACKS
    if attack.isolation in ("files", "network")
    and attack.name.split()[0] in ("read", "connect", "listen")
    and "golds" not in attack.name
]


PAGE = Path(__file__).parents[2] / "docs" / "sandbox-audit.md"


class Liar(SubprocessRunner):
    """Claims what it does not do."""

    isolates: ClassVar[frozenset[str]] = frozenset({"files", "network"})

    def run(self, code: str, stdin: str = "", limits: Limits = Limits()) -> Result:  # noqa: B008
        return super().run(code, stdin, replace(limits, processes=Limits.processes))


class Leaky(Liar):
    """Has what it was told before in the memory of the next program."""

    held = ""

    def run(self, code: str, stdin: str = "", limits: Limits = Limits()) -> Result:  # noqa: B008
        self.held, held = code, self.held
        lines = [f"_held = {held!r}", "_copies = [_held * 200 + str(i) for i in range(100)]", code]
        return super().run("\n".join(lines), stdin, limits)


@functools.cache
def runner(name: str) -> Runner | str:
    """The runner, or why there is none here."""
    try:
        return resolve(name)
    except (ConfigurationError, MissingExtraError) as error:
        return str(error)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
@pytest.mark.parametrize("tier", TIERS)
def test_an_attack_gets_nothing(tier: str, attack: object) -> None:
    there = runner(tier)
    if isinstance(there, str):
        pytest.skip(there)
    [finding] = audit(there, [attack])  # type: ignore[list-item]
    if not finding.tried:
        pytest.skip(f"{tier} has no sessions")
    assert finding.got == ""


def closed(path: Path) -> Path | None:
    """Return the outermost folder around a path that others than its owner cannot open."""
    around = (each for each in [*reversed(path.parents), path] if not each.is_symlink())
    return next((each for each in around if not each.stat().st_mode & stat.S_IXOTH), None)


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("bwrap") is None,
    reason="whoever is not root has tested this above; or bubblewrap is not installed",
)
@pytest.mark.timeout(1500)
def test_no_attack_gets_anything_from_a_sandbox_that_an_ordinary_user_started() -> None:
    code = (
        "import os\nos.setgroups([]); os.setresgid(*[4242] * 3); os.setresuid(*[4242] * 3)\n"
        "from gem_sandbox import BwrapRunner\nfrom gem_sandbox.audit import audit\n"
        "for found in audit(BwrapRunner(servers=1)): print(found.attack.name, '|', found.got)"
    )
    # The interpreter may be in folders of root's that nobody else can open: they are opened as far
    # as it needs.
    needed = [sys.prefix, sys.base_prefix, *site.getsitepackages(), *gem.__path__]
    named = {path for folder in needed for path in (Path(folder), Path(folder).resolve())}
    folders = {path: top for path in named if (top := closed(path)) is not None}
    command: list[str | Path] = ["bwrap", "--dev-bind", "/", "/"]
    for top in sorted(set(folders.values())):
        command += ["--perms", "0755", "--tmpfs", top]
    parents = {p for path, top in folders.items() for p in path.parents if p.is_relative_to(top)}
    for parent in sorted(parents):
        command += ["--perms", "0755", "--dir", parent]
    for path in sorted(folders):
        command += ["--ro-bind", path.resolve(), path]
    run = subprocess.run(
        [*command, sys.executable, "-c", code], capture_output=True, text=True, timeout=900
    )
    found = dict(line.split(" | ") for line in run.stdout.splitlines() if " | " in line)
    assert set(found) == {attack.name for attack in ATTACKS}, run.stderr
    assert {name: got for name, got in found.items() if got} == {}


def test_an_runner_that_claims_too_much_is_found_out() -> None:
    found = {finding.attack.name: finding.got for finding in audit(Liar(), HARMLESS)}
    assert len(found) >= 4
    assert "gem-audit" in found["read the user's and the system's files"]
    assert found["connect to the host and to the world"]
    assert found["listen"]


@pytest.mark.parametrize("attack", GOLDS, ids=lambda attack: attack.name)
def test_an_runner_that_shows_golds_is_found_out(attack: Attack) -> None:
    [found] = audit(Liar(), [replace(attack, program=TRY + attack.program, session=False)])
    assert found.got


def test_every_bundled_file_with_answers_is_looked_for() -> None:
    apart = "LICENSE"
    bundled = {
        f"{package.__name__}/{path.relative_to(data)}": path
        for package in (gem, gem_tau)
        for data in [Path(package.__file__).with_name("data")]
        for path in data.rglob("*")
        if path.is_file() and path.suffix not in (".png", ".md") and not path.name.startswith(apart)
    }
    assert set(excerpts()) == set(bundled)
    known = ("samples/gsm8k.jsonl", "samples/code.jsonl", "words.txt", "clues.tsv")
    assert {*(f"gem/{name}" for name in known), "gem_tau/retail_tasks.json.gz"} <= set(bundled)
    for name, piece in excerpts().items():
        assert bytes.fromhex(piece)[::-1] in bundled[name].read_bytes()
        assert len(piece) > 40


def test_memory_that_is_not_wiped_is_found_out() -> None:
    [attack] = [each for each in ATTACKS if each.name.startswith("find what earlier programs")]
    runner = Leaky()
    with host() as particulars:
        runner.run(particulars.fill(attack.before))
        found = runner.run(particulars.fill(attack.program), limits=Limits(cpu_s=60)).stdout
    assert "GOT memory at" in found
    with host() as particulars:
        found = SubprocessRunner().run(particulars.fill(attack.program)).stdout
    assert "GOT" not in found
    assert int(found.split()[-2]) >= 1


def test_the_page_about_the_sandbox_lists_every_attack() -> None:
    rows = re.findall(
        r"^\| (.+?) \| (files|network|processes|limits) \| (.*) \|$", PAGE.read_text(), re.M
    )
    assert [row[:2] for row in rows] == [(each.name, each.isolation) for each in ATTACKS], (
        "python -m gem doctor --audit bwrap prints the table"
    )
    assert {row[2] for row in rows} == {"held"}


def test_an_runner_without_isolation_is_not_attacked() -> None:
    with pytest.raises(ConfigurationError, match="isolates nothing"):
        next(audit(SubprocessRunner()))


def test_all_but_subprocess_claim_to_isolate_everything() -> None:
    for name in TIERS:
        there = runner(name)
        if not isinstance(there, str):
            assert there.isolates == {"files", "network", "processes"}


def test_the_doctor_fails_for_what_it_cannot_attack(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--audit", "nothing"]) == 2
    assert "unknown runner 'nothing'; known: 'bwrap'" in capsys.readouterr().err
    monkeypatch.setenv("PATH", "")
    assert main(["doctor", "--audit", "bwrap"]) == 1
    assert "apt-get install bubblewrap" in capsys.readouterr().out
    assert main(["doctor", "--audit", "subprocess"]) == 2
    assert "isolates nothing" in capsys.readouterr().err


def test_the_doctor_says_what_there_is_and_what_is_unsafe(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status = main(["doctor"])
    said = capsys.readouterr().out
    lines = {line.split()[0]: line for line in said.splitlines()}
    assert set(RUNNERS) <= set(lines)
    assert f"programs run in CPython {platform.python_version()} at {sys.executable}, " in said
    assert "nothing (unsafe)" in lines["subprocess"]
    assert (status == 0) == ("not available" not in lines["bwrap"])

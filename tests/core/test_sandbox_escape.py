"""Every attack against every executor that claims isolation."""

from __future__ import annotations

import functools
from typing import ClassVar

import pytest

from gem.__main__ import main
from gem.errors import ConfigurationError, MissingExtraError
from gem.sandbox import EXECUTORS, Executor, SubprocessExecutor, resolve
from gem.sandbox.attacks import ATTACKS
from gem.sandbox.audit import audit

TIERS = [name for name in EXECUTORS if name != "subprocess"]
# What does no harm where it succeeds.
HARMLESS = [
    attack
    for attack in ATTACKS
    if attack.isolation in ("files", "network")
    and attack.name.split()[0] in ("read", "connect", "listen")
]


class Liar(SubprocessExecutor):
    """Claims what it does not do."""

    isolates: ClassVar[frozenset[str]] = frozenset({"files", "network"})


@functools.cache
def executor(name: str) -> Executor | str:
    """The executor, or why there is none here."""
    try:
        return resolve(name)
    except (ConfigurationError, MissingExtraError) as error:
        return str(error)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
@pytest.mark.parametrize("tier", TIERS)
def test_an_attack_gets_nothing(tier: str, attack: object) -> None:
    there = executor(tier)
    if isinstance(there, str):
        pytest.skip(there)
    [finding] = audit(there, [attack])  # type: ignore[list-item]
    assert finding.got == ""


def test_an_executor_that_claims_too_much_is_found_out() -> None:
    found = {finding.attack.name: finding.got for finding in audit(Liar(), HARMLESS)}
    assert len(found) >= 4
    assert "gem-audit" in found["read the user's and the system's files"]
    assert found["connect to the host and to the world"]
    assert found["listen"]


def test_an_executor_without_isolation_is_not_attacked() -> None:
    with pytest.raises(ConfigurationError, match="isolates nothing"):
        next(audit(SubprocessExecutor()))


def test_all_but_subprocess_claim_to_isolate_everything() -> None:
    for name in TIERS:
        there = executor(name)
        if not isinstance(there, str):
            assert there.isolates == {"files", "network", "processes"}


def test_the_doctor_fails_for_what_it_cannot_attack(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--audit", "nothing"]) == 2
    assert "there is no nothing" in capsys.readouterr().err
    monkeypatch.setenv("PATH", "")
    assert main(["doctor", "--audit", "bwrap"]) == 1
    assert "apt-get install bubblewrap" in capsys.readouterr().out
    assert main(["doctor", "--audit", "subprocess"]) == 2
    assert "isolates nothing" in capsys.readouterr().err


def test_the_doctor_says_what_there_is_and_what_is_unsafe(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status = main(["doctor"])
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert set(EXECUTORS) <= set(lines)
    assert "nothing (unsafe)" in lines["subprocess"]
    assert (status == 0) == ("not available" not in lines["bwrap"])

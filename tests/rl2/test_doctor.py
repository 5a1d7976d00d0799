"""What is said when an installation does not work, and which RL2 is found."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata, util
from pathlib import Path
from types import SimpleNamespace

import pytest

from gem.errors import GemError, MissingExtraError, UnsupportedVersionError
from gem_rl2 import doctor, hook
from gem_rl2.__main__ import main
from gem_rl2.release import MARKER, check_rl2
from gem_train.doctor import ProblemError, examine
from gem_train.seams import Seam


def installed(monkeypatch: pytest.MonkeyPatch, **versions: str | None) -> None:
    """Pretend that a distribution has another version, or is not there."""
    original = metadata.version

    def version(name: str) -> str:
        found = versions.get(name.replace("-", "_"), original(name))
        if found is None:
            raise metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr("gem_train.doctor.version", version)


def found_in(monkeypatch: pytest.MonkeyPatch, folder: Path | None) -> None:
    """Let the package `RL2` lie in a folder, or nowhere."""
    spec = None if folder is None else SimpleNamespace(submodule_search_locations=[str(folder)])
    monkeypatch.setattr(util, "find_spec", lambda name: spec)


def test_an_rl2_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found_in(monkeypatch, None)
    with pytest.raises(MissingExtraError, match=r"RL2 is not installed.*gem-rl2\[rl2\]"):
        check_rl2()


def test_the_release_is_told_from_a_checkout_with_the_same_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(monkeypatch, rl_square="0.0.2")
    found_in(monkeypatch, tmp_path / "RL2")
    with pytest.raises(UnsupportedVersionError, match=r"is not rl-square 0.0.2: .* release only"):
        check_rl2()
    marker = tmp_path / "RL2" / MARKER
    marker.parent.mkdir(parents=True)
    marker.touch()
    assert check_rl2().path == str(tmp_path)
    installed(monkeypatch, rl_square="0.0.1")
    with pytest.raises(UnsupportedVersionError, match=r"rl-square 0\.0\.1 is installed"):
        check_rl2()


@pytest.mark.parametrize(
    ("check", "versions", "said"),
    [
        ("check_engine", {"sglang": None}, "sglang is not installed"),
        ("check_engine", {"sglang": "0.5.12"}, r"sglang 0\.5\.12 is installed.*<0\.5\.10"),
        ("check_engine", {"sglang_router": "0.3.2"}, r"sglang-router 0\.3\.2.*<=0\.2\.1"),
        ("check_libraries", {"transformers": "5.1.0"}, r"transformers 5\.1\.0.*<5"),
        ("check_libraries", {"hydra_core": None}, "hydra-core is not installed"),
    ],
)
def test_what_does_not_fit_is_named(
    check: str, versions: dict[str, str | None], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(monkeypatch, **versions)
    with pytest.raises(GemError, match=said):
        getattr(doctor, check)()


def test_missing_flash_attention_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    with pytest.raises(ProblemError, match="flash-attn, .* cannot be imported.*pip install flash-"):
        doctor.check_libraries()


def test_a_hook_that_hydra_cannot_find_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "HOOK", "hydra_plugins.not_there")
    with pytest.raises(ProblemError, match="No module named 'hydra_plugins.not_there'; reinst"):
        doctor.check_hooks()


def test_a_changed_rl2_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook, "SEAMS", [Seam("compute_advantages", "nothing")])
    said = r"gem-rl2 .* needs compute_advantages\(nothing\), but RL2: .* has \(config, "
    with pytest.raises(UnsupportedVersionError, match=said):
        doctor.check_hooks()


def test_this_installation_is_fine() -> None:
    assert [(passed, line) for passed, line in examine(doctor.CHECKS) if not passed] == []


def test_the_doctor_says_where_it_stops() -> None:
    """Without the stand-ins of gem-cpu there is no flash attention here."""
    path = {key: value for key, value in os.environ.items() if key == "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-m", "gem_rl2.doctor"], capture_output=True, text=True, timeout=300,
        env=path, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "PROBLEM  flash-attn, which RL2 wants, cannot be imported" in done.stdout


def test_the_env_files_path_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env-path"]) == 0
    path = Path(capsys.readouterr().out.strip())
    assert "generate" in path.read_text()

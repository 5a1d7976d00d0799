"""The builder of environments: cached, repaired after an interruption, quick when up to date."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "packages/gem-cpu/src/gem_cpu/venvs.py"


@pytest.fixture
def venvs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The builder with an environment that needs no network, and a list of what it runs."""
    spec = importlib.util.spec_from_file_location("venvs", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "venvs", module)  # dataclasses look it up
    spec.loader.exec_module(module)
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "dev.txt").write_text("# nothing\ntorch==1\n")
    monkeypatch.setattr(module, "REQUIREMENTS", tmp_path / "requirements")
    here = (sys.version_info[0], sys.version_info[1])
    monkeypatch.setattr(module, "SPECS", {"dev": module.Spec(("one",), (here,))})
    monkeypatch.setattr(module, "_check_torch", lambda *_: None)
    monkeypatch.setattr(module.time, "sleep", lambda _: None)
    (tmp_path / "clone" / "packages" / "one").mkdir(parents=True)
    (tmp_path / "clone" / "packages" / "one" / "pyproject.toml").write_text("[project]\n")
    module.commands, module.really_run = [], module._run

    def run(command: list[str], log: Path) -> None:
        module.commands.append(command)
        if "install" not in command:
            # Unpacking pip takes most of the time, and nothing is installed here.
            module.really_run([*command[:3], "--without-pip", *command[3:]], log)

    monkeypatch.setattr(module, "_run", run)
    return module


def build(venvs: Any, tmp_path: Path) -> Path:
    venvs.commands.clear()
    folder: Path = venvs.build(
        "dev", repository=tmp_path / "clone", cache=tmp_path / "cache", venvs=tmp_path / "venvs"
    )
    return folder


def cached(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "cache" / "venvs").iterdir() if path.is_dir()]


def test_the_thin_environment_sees_the_cached_packages(venvs: Any, tmp_path: Path) -> None:
    thin = build(venvs, tmp_path)
    [base] = cached(tmp_path)
    (venvs._site_packages(base) / "third.py").write_text("x = 1\n")
    command = [str(thin / "bin" / "python"), "-c", "import third; print(third.__file__)"]
    assert str(base) in subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_commands_of_the_cache_run_with_the_thin_python(venvs: Any, tmp_path: Path) -> None:
    thin = build(venvs, tmp_path)
    [base] = cached(tmp_path)
    (base / "bin" / "tool").write_text(f"#!{base}/bin/python\nprint('hi')\n")
    venvs._copy_command(base / "bin" / "tool", thin / "bin" / "tool", base, thin)
    assert (thin / "bin" / "tool").read_text().startswith(f"#!{thin}/bin/python\n")


def test_every_package_is_installed_once_and_none_brings_others(venvs: Any, tmp_path: Path) -> None:
    (tmp_path / "requirements" / "dev.txt").write_text("# x\na==1\nb==2\ntorch==1\nc==3\n")
    build(venvs, tmp_path)
    installs = [c for c in venvs.commands if "install" in c and "-e" not in c]
    assert all("--no-deps" in command for command in installs)
    parts = [Path(c[c.index("-r") + 1]).read_text().split() for c in installs]
    assert sorted(parts) == [["a==1", "c==3"], ["b==2"], ["torch==1"]]


def test_a_build_says_what_it_needs_and_how_far_it_is(
    venvs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "requirements" / "dev.txt").write_text("# Needs 9 GB.\na==1\nb==2\n")
    monkeypatch.setattr(venvs, "INTERVAL_S", 0.01)
    record = venvs._run

    def run(command: list[str], log: Path) -> None:
        record(command, log)
        if "-r" in command:
            with log.open("a") as file:
                file.write("Collecting a==1\n")
            threading.Event().wait(0.5)

    monkeypatch.setattr(venvs, "_run", run)
    build(venvs, tmp_path)
    said = capsys.readouterr().out
    assert said.startswith("dev: 2 packages, 9 GB; they go into ")
    assert re.search(r"dev: [12] of 2 packages downloaded, 0 installed, 0:0\d\n", said)


def test_waiting_for_another_build_is_said(
    venvs: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "dev.lock"
    held = path.open("w")
    fcntl.flock(held, fcntl.LOCK_EX)
    threading.Timer(0.2, held.close).start()
    with venvs._locked(path):
        assert "dev: waiting for another process" in capsys.readouterr().out


def test_two_builds_of_one_environment_do_not_clear_each_others(
    venvs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, really_make, begun = [], venvs._thin, threading.Event()

    def thin(base: Path, folder: Path, packages: list[Path]) -> None:
        made.append("begun")
        begun.set()
        threading.Event().wait(0.5)  # the other build has time to begin
        really_make(base, folder, packages)
        made.append("done")

    monkeypatch.setattr(venvs, "_thin", thin)
    other = threading.Thread(target=build, args=(venvs, tmp_path))
    other.start()
    assert begun.wait(60)
    build(venvs, tmp_path)
    other.join()
    assert made == ["begun", "done"]


def test_of_a_wheel_for_another_python_one_package_is_taken(
    venvs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = venvs._run

    def run(command: list[str], log: Path) -> None:
        if "download" not in command:
            record(command, log)
        else:
            venvs.commands.append(command)
            folder = Path(command[command.index("-d") + 1])
            with zipfile.ZipFile(folder / "pad-1-cp310.whl", "w") as wheel:
                tool = zipfile.ZipInfo("pad/tool")
                tool.external_attr = 0o755 << 16
                wheel.writestr(tool, "#!/bin/sh\n")
                wheel.writestr("pad/__init__.py", "")
                wheel.writestr("compiled/lib.so", "")

    monkeypatch.setattr(venvs, "_run", run)
    spec = venvs.SPECS["dev"]
    foreign = (venvs.Foreign("pad==1", "pad", "3.10"),)
    venvs.SPECS["dev"] = venvs.Spec(spec.packages, spec.python, foreign=foreign)
    build(venvs, tmp_path)
    [download] = [c for c in venvs.commands if "download" in c]
    assert "pad==1" in download and "3.10" in download and "--no-deps" in download
    [base] = cached(tmp_path)
    site = venvs._site_packages(base)
    assert os.access(site / "pad" / "tool", os.X_OK)
    assert (site / "pad" / "__init__.py").exists()
    assert not (site / "compiled").exists()


def test_nothing_is_done_when_all_is_up_to_date(venvs: Any, tmp_path: Path) -> None:
    build(venvs, tmp_path)
    build(venvs, tmp_path)
    assert venvs.commands == []


def test_a_changed_package_renews_only_the_thin_environment(venvs: Any, tmp_path: Path) -> None:
    build(venvs, tmp_path)
    (tmp_path / "clone" / "packages" / "one" / "pyproject.toml").write_text("[project]\n# new\n")
    build(venvs, tmp_path)
    assert any("-e" in c for c in venvs.commands)
    assert not any("-r" in c for c in venvs.commands)


def test_changed_requirements_make_another_cache_entry(venvs: Any, tmp_path: Path) -> None:
    build(venvs, tmp_path)
    (tmp_path / "requirements" / "dev.txt").write_text("# something else\ntorch==1\n")
    build(venvs, tmp_path)
    assert len(cached(tmp_path)) == 2


def test_an_interrupted_installation_starts_over(venvs: Any, tmp_path: Path) -> None:
    build(venvs, tmp_path)
    [base] = cached(tmp_path)
    (base / venvs.MARKER).unlink()
    (base / "leftover").write_text("half a package")
    build(venvs, tmp_path)
    assert any("-r" in c for c in venvs.commands)
    assert not (base / "leftover").exists()


def test_the_network_gets_three_chances(
    venvs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []

    def run(command: list[str], log: Path) -> None:
        if "install" in command:
            tries.append(command)
            raise venvs.BuildError("no route to host")

    monkeypatch.setattr(venvs, "_run", run)
    with pytest.raises(venvs.BuildError, match="no route to host"):
        build(venvs, tmp_path)
    assert len(tries) == 3


def test_a_failing_command_shows_its_last_words_and_its_log(venvs: Any, tmp_path: Path) -> None:
    with pytest.raises(venvs.BuildError, match="(?s)last words.*whole log"):
        venvs.really_run(["sh", "-c", "echo last words; exit 3"], tmp_path / "log")


def test_another_python_is_refused_with_the_one_that_is_needed(venvs: Any, tmp_path: Path) -> None:
    venvs.SPECS["dev"] = venvs.Spec((), ((3, 99),))
    with pytest.raises(venvs.BuildError, match=r"needs Python 3.99.*run this file with python3.99"):
        build(venvs, tmp_path)

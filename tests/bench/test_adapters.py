"""Finding a trainer's adapter, asking it for a command, and showing what it answered."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gem.errors import ConfigurationError, GemError, MissingExtraError, UnsupportedVersionError
from gem_bench.__main__ import main
from gem_bench.adapters import WITH_ADAPTERS, compile_launch, in_a_clone, installed_adapters
from gem_bench.models import resolve_model
from gem_bench.parity import command_text, parity_text
from gem_train.experiment.hardware import CPU
from gem_train.experiment.runspec import RunSpec
from gem_train.launch import Launch
from gem_train.table import Parity

MAKEFILE = Path(__file__).parents[2] / "Makefile"


def named(spec: RunSpec, name: str) -> RunSpec:
    return RunSpec.from_mapping({**spec.to_mapping(), "name": name})


def script(path: Path, text: str) -> Path:
    """An interpreter that only says `text`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\ncat > /dev/null\n{text}\n")
    path.chmod(0o755)
    return path


def test_an_installed_adapter_is_asked_in_this_process(
    fake_installed: Path, small_spec: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    compiled = compile_launch("fake", small_spec, run_dir=tmp_path / "out")
    assert compiled.launch.argv[2:] == ["small", str(tmp_path / "out"), "6", "0"]
    assert compiled.python == Path(sys.executable)


def test_an_adapter_in_an_environment_of_its_own_is_asked_there(
    small_spec: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = Launch(["other"], {"A": "1"}, ["GEM_GONE"], parity=[Parity("seed", "matched")])
    python = script(
        tmp_path / ".venvs" / "other" / "bin" / "python",
        f"echo noise from an import\necho '{answer.to_json()}'",
    )
    (tmp_path / ".venvs" / "other" / "pyvenv.cfg").write_text("")
    monkeypatch.setenv("GEM_GONE", "1")
    compiled = compile_launch("other", small_spec, run_dir=tmp_path / "out")
    assert compiled.launch == answer
    environment = compiled.environment()
    assert environment["PATH"].startswith(f"{python.parent}:")
    assert environment["VIRTUAL_ENV"] == str(python.parent.parent)
    assert environment["A"] == "1"
    assert "GEM_GONE" not in environment


def test_the_other_environment_gets_the_whole_spec(
    fake_site: Path, small_spec: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real bridge: another interpreter process runs `python -m gem_train.launch`."""
    monkeypatch.setenv("PYTHONPATH", str(fake_site))
    python = script(tmp_path / "bin" / "python", "")
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    compiled = compile_launch("fake", small_spec, run_dir=tmp_path, python=python)
    assert compiled.launch.argv[2] == "small"
    with pytest.raises(ConfigurationError, match="fake cannot discount"):
        compile_launch("fake", named(small_spec, "refused"), run_dir=tmp_path, python=python)


def test_what_an_environment_says_when_it_breaks_is_shown(
    small_spec: RunSpec, tmp_path: Path
) -> None:
    python = script(tmp_path / "bin" / "python", "echo No module named gem >&2; exit 1")
    with pytest.raises(GemError, match="exit status 1(.|\n)*No module named gem"):
        compile_launch("fake", small_spec, run_dir=tmp_path, python=python)


@pytest.mark.parametrize("trainer", [*WITH_ADAPTERS, "reference"])
def test_a_trainer_that_is_not_installed_is_answered_with_a_command_that_exists(
    trainer: str, small_spec: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gem_bench.adapters.installed_adapters", list)
    found = set()
    if trainer != "reference":
        with pytest.raises(ConfigurationError) as error:
            compile_launch(trainer, small_spec, run_dir=tmp_path)
        found |= set(re.findall("make (env-[a-z0-9]+)", str(error.value)))
    found |= set(re.findall("make (env-[a-z0-9]+)", in_a_clone(trainer)))
    targets = set(re.findall(r"^(env-[a-z0-9]+):", MAKEFILE.read_text(), re.MULTILINE))
    assert len(found) == 1
    assert found <= targets


def test_every_environment_of_the_makefile_is_of_a_known_trainer() -> None:
    targets = set(re.findall(r"^env-([a-z0-9]+):", MAKEFILE.read_text(), re.MULTILINE))
    others = {"core", "dev", "harbor", "inspect", "site", "trackers", "verifiers"}
    assert targets - others == set(WITH_ADAPTERS)


@pytest.mark.parametrize(
    ("typo", "meant"), [("vrel", "verl"), ("openrhlf", "openrlhf"), ("refrence", "reference")]
)
def test_a_typo_is_answered_with_the_trainer_that_is_meant(
    typo: str, meant: str, small_spec: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And with no command: a package of that name may be somebody else's."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=f"did you mean '{meant}'") as error:
        compile_launch(typo, small_spec, run_dir=tmp_path)
    assert f"-{typo}" not in str(error.value)
    assert "pip install" not in str(error.value)


def test_an_unsupported_version_is_answered_with_both_versions_and_the_way_out(
    fake_installed: Path, small_spec: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnsupportedVersionError) as error:
        compile_launch("fake", named(small_spec, "old"), run_dir=tmp_path)
    assert "fake 0.3 is installed, gem-fake supports >=1" in str(error.value)
    assert "make env-fake" not in str(error.value)  # there is no such target


def test_the_reference_trainer_is_an_adapter_that_matches_every_setting(
    small_spec: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert "reference" in installed_adapters()
    launch = compile_launch("reference", small_spec, run_dir=tmp_path, hardware=CPU).launch
    assert launch.argv[1:3] == ["-m", "gem_bench.reference"]
    assert launch.argv[-2:] == ["--device", "cpu"]
    assert launch.env == {"OMP_NUM_THREADS": "1"}
    assert RunSpec.from_mapping(json.loads(launch.files["spec.json"])) == small_spec
    assert {each.status for each in launch.parity} == {"matched"}
    assert {"algorithm.gamma", "optimizer.lr", "seed"} <= {each.name for each in launch.parity}


@pytest.mark.parametrize(("given", "tokens"), [(None, 1024), (4096, 4096)])
def test_the_reference_makes_small_tensors_on_a_cpu_unless_it_is_told_otherwise(
    small_spec: RunSpec, tmp_path: Path, given: int | None, tokens: int
) -> None:
    hardware = replace(CPU, learner=replace(CPU.learner, pass_tokens=given))
    compiled = compile_launch("reference", small_spec, run_dir=tmp_path, hardware=hardware)
    argv = compiled.launch.argv
    assert argv[argv.index("--forward-tokens") + 1] == str(tokens)
    assert compiled.launch.passes.tokens == tokens


def test_the_reference_trainer_refuses_what_it_would_ignore(
    small_spec: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    data = small_spec.to_mapping()
    data["algorithm"]["advantage"] = "grpo"
    with pytest.raises(ConfigurationError, match=r"training\.group_size: grpo compares"):
        compile_launch("reference", RunSpec.from_mapping(data), run_dir=tmp_path)


def test_parity_shows_what_is_not_matched_first_and_what_nobody_reported() -> None:
    settings = {"algorithm.gamma": 0.9, "optimizer.lr": 0.001, "seed": 0, "name": "x"}
    parity = [
        Parity("algorithm.gamma", "matched", "algorithm.gamma"),
        Parity("seed", "unmatched", "the engine seeds itself"),
        Parity("optimizer.lr", "emulated", "constant schedule"),
    ]
    assert parity_text(settings, parity) == (
        "unmatched (1)\n"
        "  seed = 0  the engine seeds itself\n"
        "emulated (1)\n"
        "  optimizer.lr = 0.001  constant schedule\n"
        "matched (1)\n"
        "  algorithm.gamma = 0.9  algorithm.gamma\n"
        "not reported by the adapter (1): name"
    )


def test_the_printed_command_does_in_a_shell_what_the_launch_says() -> None:
    launch = Launch(
        [sys.executable, "-c", "import os, sys; print(os.environ, sys.argv)", "a b", "--x", "it's"],
        env={"GEM_TEST": "one two"},
        unset=["GEM_GONE"],
    )
    said = subprocess.run(
        command_text(launch),
        shell=True,
        capture_output=True,
        text=True,
        env={"GEM_GONE": "1", "PATH": "/usr/bin:/bin"},
        check=True,
    ).stdout
    assert "'GEM_TEST': 'one two'" in said
    assert "GEM_GONE" not in said
    assert "'a b', '--x', \"it's\"" in said


def test_compile_prints_the_command_and_its_parity(
    gem_bench: Callable[..., subprocess.Popen[str]], spec_file: Callable[..., Path]
) -> None:
    out, err = gem_bench("compile", spec_file(), "--to", "fake").communicate(timeout=60)
    assert err == ""
    assert "env \\\n  -u CUDA_VISIBLE_DEVICES \\\n  FAKE='a b'" in out
    assert "unmatched (1)\n  seed = 0  fake has no seed" in out
    assert "conf/fake.yaml" in out


def test_a_command_can_be_read_where_the_trainer_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # where there is no .venvs/verl
    recipe = str(MAKEFILE.parent / "recipes" / "published-math.toml")
    assert main(["compile", recipe, "--to", "verl", "--hardware", "8xh100"]) == 0
    out, err = capsys.readouterr()
    assert "verl.trainer.main_ppo" in out
    assert "this command cannot run here: verl is not installed" in err
    assert main(["run", recipe, "--to", "verl", "--hardware", "8xh100", "--out", "x"]) == 2
    assert "verl is not installed" in capsys.readouterr().err


def test_a_hub_name_is_left_to_the_trainer() -> None:
    assert resolve_model("Qwen/Qwen3-1.7B-Base") == "Qwen/Qwen3-1.7B-Base"


def test_a_model_folder_with_a_chat_template_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    assert resolve_model(str(tmp_path)) == str(tmp_path)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "no config.json"),
        ({"config.json": "{}"}, "has no tokenizer"),
        ({"config.json": "{}", "tokenizer_config.json": "{}"}, "has no chat template"),
    ],
)
def test_a_model_folder_that_cannot_be_trained_is_refused_with_the_reason(
    tmp_path: Path, files: dict[str, str], message: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        resolve_model(str(tmp_path))


def test_a_path_that_does_not_exist_is_not_taken_for_a_hub_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no folder"):
        resolve_model(str(tmp_path / "nowhere"))


def test_a_small_model_without_gem_cpu_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "gem_cpu.tiny_model", None)
    with pytest.raises(MissingExtraError, match="pip install gem-cpu"):
        resolve_model("tiny")

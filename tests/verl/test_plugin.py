"""The plugin says aloud what verl would hide; the doctor says it in words."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gem_train.doctor
from gem.errors import ConfigurationError, MissingExtraError, UnsupportedVersionError
from gem_train.doctor import ProblemError, examine
from gem_train.seams import check_seams
from gem_verl import TRAINER, check_verl, doctor, plugin, trainer

REGISTERED = """
import sys, verl
assert "gem_verl.plugin" in sys.modules, "verl did not load the plugin"
early = [m for m in ("gem_verl.advantage", "gem_verl.rollout") if m in sys.modules]
assert not early, f"{early} loaded before they are needed"
from verl.experimental.agent_loop.agent_loop import _agent_loop_registry
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY
from verl.trainer.ppo.v1 import get_trainer_cls
assert {"gem", "gem_turns"} <= set(_agent_loop_registry)
assert {"gem_rebn", "gem_grpo", "gem_gae"} <= set(ADV_ESTIMATOR_REGISTRY)
print(get_trainer_cls("gem_sync").__name__, get_trainer_cls("gem_colocate_async").__name__)
"""


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_importing_verl_registers_everything_where_it_is_needed() -> None:
    done = python(REGISTERED)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-2:] == ["GemTrainerSync", "GemTrainerColocateAsync"]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Pretend that verl is installed in another version, or not at all."""

    def pretend(found: str | None) -> None:
        def version(name: str) -> str:
            if found is None:
                raise importlib.metadata.PackageNotFoundError(name)
            return found

        monkeypatch.setattr(gem_train.doctor, "version", version)
        monkeypatch.setattr(plugin, "FAILED", {})

    return pretend


@pytest.mark.parametrize("found", ["0.8.0", "0.9.0", "0.10.0"])
def test_an_unsupported_verl_is_named_with_the_supported_ones(installed: Any, found: str) -> None:
    installed(found)
    with pytest.raises(UnsupportedVersionError, match=rf"verl {found} .* supports verl >=0.9.1"):
        check_verl()


@pytest.mark.parametrize("found", ["0.9.1", "0.9.7", "0.9.2.dev1"])
def test_supported_versions_pass(installed: Any, found: str) -> None:
    installed(found)
    assert check_verl() == found


def test_a_missing_verl_is_said_with_the_command_that_installs_it(installed: Any) -> None:
    installed(None)
    with pytest.raises(MissingExtraError, match="pip install"):
        check_verl()


def test_the_plugin_warns_of_an_unsupported_verl(installed: Any) -> None:
    installed("0.8.0")
    with pytest.warns(plugin.GemVerlWarning, match=r"not active .*verl 0.8.0"):
        plugin.load()
    assert set(plugin.FAILED) == set(plugin.HOOKS.values())


def test_a_hook_that_cannot_be_imported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "FAILED", {})
    with pytest.warns(plugin.GemVerlWarning, match="gem_verl.nothing.*No module named"):
        plugin.load_hook("gem_verl.nothing", plugin)
    assert set(plugin.FAILED) == {"gem_verl.nothing"}


def test_a_changed_trainer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(self: Any, batch: Any) -> None: ...

    monkeypatch.setattr(trainer.PPOTrainer, "_compute_advantage", changed)
    with pytest.raises(UnsupportedVersionError, match=r"_compute_advantage\(self, batch, metrics"):
        check_seams(TRAINER, trainer.SEAMS, owner=trainer.PPOTrainerSync)


def test_a_second_run_with_the_same_sockets_is_refused(tmp_path: Path) -> None:
    first = trainer.claim_sockets("01000000", str(tmp_path))
    trainer.claim_sockets("02000000", str(tmp_path)).close()
    with pytest.raises(ConfigurationError, match="one Ray cluster for both"):
        trainer.claim_sockets("01000000", str(tmp_path))
    first.close()
    trainer.claim_sockets("01000000", str(tmp_path)).close()


def test_the_doctor_says_what_a_gpu_lacks_without_flash_attention(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GEM_CPU", "1")
    assert "none on the CPU" in doctor.check_attention()
    monkeypatch.delenv("GEM_CPU")
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    said = doctor.check_attention()
    for part in ("use_fused_kernels=True", "no critic", "no sequence parallelism"):
        assert part in said
    assert 'pip install "verl[fsdp]>=0.9.1,<0.10"' in said
    monkeypatch.setattr(doctor, "find_spec", lambda name: name)
    assert doctor.check_attention() == "flash attention: found"


def test_the_doctor_finds_this_installation_well() -> None:
    findings = list(examine(doctor.CHECKS))
    assert [passed for passed, _ in findings] == [True] * len(doctor.CHECKS), findings
    assert "gem_sync" in findings[4][1]


def test_the_doctor_ends_with_the_first_problem(installed: Any, capsys: Any) -> None:
    installed("0.8.0")
    assert gem_train.doctor.doctor(doctor.CHECKS) == 1
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("PROBLEM") and "0.8.0" in line


def test_the_doctor_notices_that_plugins_are_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERL_USE_EXTERNAL_PLUGINS", "none")
    with pytest.raises(ProblemError, match="VERL_USE_EXTERNAL_PLUGINS=none"):
        doctor.check_policy()


def test_the_doctor_notices_a_package_that_is_only_on_the_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: [])
    assert "not installed" in list(examine(doctor.CHECKS))[-1][1]


def test_the_doctor_passes_on_why_a_hook_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "FAILED", {"gem_verl.rollout": "ImportError: no such name"})
    with pytest.raises(ProblemError, match="gem_verl.rollout: ImportError"):
        doctor.check_loaded()

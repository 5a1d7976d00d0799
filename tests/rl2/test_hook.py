"""What is put in place in RL2's program, on its real modules."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import wandb
from sglang_router.launch_router import RouterArgs

from gem.errors import ConfigurationError, UnfinishedError, UnsupportedVersionError
from gem_rl2 import hook, rollout
from gem_rl2.record import record_logs
from gem_rl2.rollout import Rollouts
from gem_train import processes
from gem_train.checkpoints import Checkpoint, Checkpoints
from gem_train.record import read_run
from gem_train.recording import RunRecording
from gem_train.testing.golden import golden_batch

KEYS = ("+gem.advantage=rebn", "+gem.prompt_tokens=100", "+gem.max_failed_fraction=0.5")


def program(**changes: Any) -> ModuleType:
    """A copy of RL2's program, to be changed without harm."""
    original = importlib.import_module("RL2.trainer.ppo")
    copy = ModuleType(original.__name__)
    copy.__dict__.update({**vars(original), **changes})
    return copy


def other(config: Any, tensors: Any) -> None:
    """A function with other parameters than RL2's."""


class Trainer:
    def __init__(self, config: Any, extra: Any) -> None: ...


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"compute_advantages": other}, r"compute_advantages\(.* has \(config, tensors\)"),
        ({"compute_advantages": None}, r"compute_advantages\(.*has none"),
        (
            {"PPOTrainer": Trainer},
            r"PPOTrainer.__init__\(self, config\), .* has .self, config, ext",
        ),
    ],
)
def test_a_changed_rl2_is_refused_with_what_was_found(
    changes: dict[str, Any], named: str, world: Any
) -> None:
    with pytest.raises(UnsupportedVersionError, match=named) as raised:
        hook.install(program(**changes))
    assert str(world.RL2) in str(raised.value)


def test_only_the_trainer_is_replaced_before_it_is_made() -> None:
    ours, theirs = program(), importlib.import_module("RL2.trainer.ppo")
    hook.install(ours)
    changed = {name for name in vars(theirs) if vars(ours)[name] is not vars(theirs)[name]}
    assert changed == {"PPOTrainer"}
    assert issubclass(ours.PPOTrainer, theirs.PPOTrainer)


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves this process's exit and signals alone."""
    monkeypatch.setattr(processes, "end_descendants_with_me", lambda: None)
    monkeypatch.setattr(processes, "end_with_servers", lambda *_: None)
    monkeypatch.setattr(wandb, "log", wandb.log)
    monkeypatch.setattr(RouterArgs, "__init__", RouterArgs.__init__)


def test_without_the_section_everything_stays_rl2s(world: Any, quiet: None) -> None:
    made: list[Any] = []

    class Plain:
        def __init__(self, config: Any) -> None:
            made.append(config)

        def train(self) -> None: ...

    ours = program(PPOTrainer=Plain)
    before = ours.compute_advantages
    hook.install(ours)
    ours.PPOTrainer(world.config())
    assert len(made) == 1
    assert ours.compute_advantages is before


def test_refused_keys_end_the_run_before_a_model_is_loaded(world: Any, quiet: None) -> None:
    ours = program()
    hook.install(ours)
    with pytest.raises(ConfigurationError, match=r"dynamic_filtering: .*set it to false"):
        ours.PPOTrainer(world.config(*KEYS, f"{world.FILTERING}=true"))
    with pytest.raises(ConfigurationError, match=r"did you mean gem\.advantage"):
        ours.PPOTrainer(world.config("+gem.advantages=rebn"))


def test_two_runs_of_a_machine_have_routers_whose_metrics_share_no_port(
    world: Any, quiet: None
) -> None:
    hook._switched_on(world.config(*KEYS))
    # 0: the system chooses; without it sglang-router takes the same one every time.
    assert RouterArgs(worker_urls=[]).prometheus_port == 0


class Parts:
    """RL2's parts without models: what its trainer makes, as the hook finds it."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.train_dataloader: list[Any] = []
        self.seeded = torch.initial_seed()
        self.critic = None
        self.actor = SimpleNamespace(optimizer=torch.optim.AdamW([torch.zeros(1)]))
        self.rollout = SimpleNamespace(env=SimpleNamespace(generate=rollout.generate))

    def train(self) -> None: ...


@pytest.fixture
def made(world: Any, quiet: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make a trainer of `Parts` from overrides; returns it and the program."""
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    state = torch.random.get_rng_state()

    def make(*overrides: str, parts: type[Any] = Parts) -> tuple[Any, Any]:
        ours = program(PPOTrainer=parts)
        hook.install(ours)
        return ours.PPOTrainer(world.config(*KEYS, *overrides)), ours

    yield make
    torch.random.set_rng_state(state)


def test_rl2_is_seeded_before_its_parts_are_made(made: Any) -> None:
    trainer, _ = made("+gem.trainer_seed=123")
    assert trainer.seeded == 123


def test_adamw_gets_what_rl2_has_no_keys_for(made: Any) -> None:
    trainer, _ = made("+gem.adam_beta2=0.5", "+gem.adam_eps=0.25")
    [group] = trainer.actor.optimizer.param_groups
    assert (group["betas"], group["eps"]) == ((0.9, 0.5), 0.25)


def test_an_evaluation_before_the_first_iteration_can_be_had(made: Any) -> None:
    def evaluated(*overrides: str) -> list[int]:
        found: list[int] = []

        class Rollout:
            env = SimpleNamespace(generate=rollout.generate)

            def __call__(self, *args: Any) -> None:
                found.append(args[-1])

        class Made(Parts):
            def __init__(self, config: Any) -> None:
                super().__init__(config)
                self.rollout = Rollout()  # type: ignore[assignment]
                self.test_dataloader = [["a row"]]

        trainer, _ = made(*overrides, parts=Made)
        trainer.train()
        return found

    assert evaluated("trainer.test_freq=2", "+gem.evaluate_from=0") == [0]
    assert evaluated("trainer.test_freq=2") == []
    assert evaluated("+gem.evaluate_from=0") == []


def test_a_run_that_ends_early_ends_with_an_error(made: Any, tmp_path: Path) -> None:
    class Made(Parts):
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.train_dataloader = [["a row"]] * 3

    trainer, _ = made(f"+gem.record_dir={tmp_path}", "trainer.n_epochs=2", parts=Made)
    with pytest.raises(UnfinishedError, match="only 0 of 6 iterations"):
        trainer.train()


def test_another_env_file_is_refused(made: Any) -> None:
    class Stranger(Parts):
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.rollout.env.generate = print

    with pytest.raises(ConfigurationError, match=r"rollout\.env_path.*python -m gem_rl2 env-path"):
        made(parts=Stranger)


@pytest.mark.usefixtures("_logged")
def test_the_seam_computes_and_records(made: Any, world: Any, tmp_path: Path) -> None:
    trainer, ours = made(f"+gem.record_dir={tmp_path}", "adv.gamma=0.5")
    played = golden_batch()
    its = trainer.rollout
    its.rollout.func.__self__._batch = list(played)
    tensors, edges = world.tensors(played)
    ours.compute_advantages(None, tensors, edges, 1)
    assert tensors["advantages"].any()
    wandb.log({"actor/loss": 0.5, "actor/grad_norm": 2.0, "critic/loss": 3.0}, step=1)
    assert read_run(tmp_path).metrics == []
    wandb.log({"timing/update_rollout": 0.1}, step=1)
    [line] = read_run(tmp_path).metrics
    assert (line["iteration"], line["split"]) == (0, "train")
    assert (line["loss"], line["grad_norm"], line["sync_s"]) == (0.5, 2.0, 0.1)
    assert line["value_loss"] == 1.5  # RL2's has no factor of a half
    assert (line["episodes"], line["failed_episodes"]) == (7.0, 1.0)
    assert len(list(read_run(tmp_path).episodes())) == 8


@pytest.mark.usefixtures("_logged")
def test_an_evaluation_is_recorded_after_the_weights_it_is_of(world: Any, tmp_path: Path) -> None:
    settings = world.settings(*KEYS, f"+gem.record_dir={tmp_path}")
    r = Rollouts(settings, world.keys(*KEYS))
    record_logs(r, world.RL2)
    r.evaluated["same"] = golden_batch()
    wandb.log({"timing/rollout": 1.0}, step=4)
    [line] = read_run(tmp_path).metrics
    assert (line["iteration"], line["split"], line["episodes"]) == (4, "eval:same", 7.0)
    assert r.evaluated == {}


@pytest.mark.usefixtures("_logged")
def test_a_checkpoint_counts_once_the_record_has_all_before_it(world: Any, tmp_path: Path) -> None:
    own = (f"+gem.record_dir={tmp_path}", f"trainer.save_dir={tmp_path / 'model'}")
    given = (*KEYS, *own, "trainer.save_freq=2", "trainer.test_freq=4")
    tmp_path.joinpath("model").mkdir()
    recording = record_logs(Rollouts(world.settings(*given), world.keys(*given)), world.RL2)
    listed = []
    for step in range(1, 6):
        for name in ("timing/rollout", "timing/update_rollout", "timing/rollout"):
            if name == "timing/update_rollout" and step < 5:  # the last is of a resumed run
                recording.keep_batch(golden_batch())
            wandb.log({name: 0.1}, step=step)
            last = Checkpoints(str(tmp_path / "model")).last
            listed.append(last.iteration if last else 0)
    assert listed == [0, 0, 0, 0, 2, 2, 2, 2, 2, 2, 2, 4, 4, 4, 4]


def test_a_run_goes_on_from_the_last_whole_checkpoint(made: Any, tmp_path: Path) -> None:
    given = ("trainer.load_ckpt_from=latest", f"trainer.save_dir={tmp_path}")
    configs: list[Any] = []

    class Made(Parts):
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.actor.model = torch.nn.Linear(1, 1)
            configs.append(config)

    made(*given, parts=Made)
    Checkpoints(str(tmp_path)).add(Checkpoint(2, "step2"))
    tmp_path.joinpath("step4").mkdir()  # half-written
    made(*given, parts=Made)
    found = [config.trainer.load_ckpt_from for config in configs]
    assert found == [None, f"{tmp_path}/step2"]


@pytest.fixture
def _logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """RL2's logging without Weights & Biases, undone afterwards."""
    monkeypatch.setattr(wandb, "log", lambda *args, **kwargs: None)


def test_rl2s_own_estimator_sees_no_tags(made: Any, world: Any, tmp_path: Path) -> None:
    seen = []

    def compute_advantages(config: Any, tensors: Any, cu_seqs: Any, step: int) -> None:
        seen.append(float(tensors["rewards"][:, 0].abs().max()))

    r = Rollouts(world.settings("+gem.prompt_tokens=100"), world.keys())
    r._batch = [t for t in golden_batch() if t.valid]
    tensors, edges = world.tensors(r._batch)
    assert float(tensors["rewards"][:, 0].abs().max()) == 6.0
    hook.seam(compute_advantages, r, RunRecording(None, {})).__wrapped__(None, tensors, edges, 1)
    assert seen == [0.0]


def test_hydra_finds_the_hook_and_other_programs_pay_nothing(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom hydra.core.plugins import Plugins\nPlugins.instance()\n"
        "print('hydra_plugins.gem_rl2_hook' in sys.modules, 'gem_rl2.hook' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True,
        env={k: v for k, v in os.environ.items() if k != "GEM_CPU"},
    )  # fmt: skip
    assert done.stdout.split() == ["True", "False"]

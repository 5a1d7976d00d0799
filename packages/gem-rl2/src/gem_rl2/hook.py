"""What is put in place in RL2's processes: a subclass of its trainer, and one function.

Hydra, which reads RL2's configuration, imports the modules of the namespace `hydra_plugins` in
every process before `main` runs; ours calls `install` if the program is RL2's PPO trainer. Without
a section `gem` in the configuration everything stays RL2's own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial, partialmethod
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from omegaconf import OmegaConf
from sglang_router.launch_router import RouterArgs
from torch.distributed.checkpoint.state_dict import _patch_optimizer_state_dict

from gem.errors import ConfigurationError
from gem_rl2 import advantage, rollout
from gem_rl2.record import record_logs
from gem_rl2.release import Installation, check_rl2
from gem_rl2.rollout import Rollouts
from gem_rl2.settings import SECTION, Keys, Settings, check
from gem_rl2.version import TRAINER
from gem_train import processes
from gem_train.checkpoints import Checkpoints
from gem_train.recording import RunRecording
from gem_train.seams import Seam, check_seams

_WORKERS = "RL2.workers.base"
SEAMS = (
    Seam("PPOTrainer.__init__", "self, config"),
    Seam("PPOTrainer.train", "self"),
    Seam("compute_advantages", "config, raw_tensor_dict, cu_seqs, step"),
    Seam("RL2.workers.rollout:Rollout.rollout", "self, data, train"),
    Seam(f"{_WORKERS}:clip_grad_norm_"),
)
"""What is replaced in RL2, with its parameters."""


def install(program: ModuleType) -> None:
    """Put GEM's trainer into RL2's program: RL2's own, extended by what the section `gem` asks for.

    Args:
        program: The module `RL2.trainer.ppo`, usually as `__main__`.

    Raises:
        UnsupportedVersionError: What would be replaced is not what it was.
    """
    rl2 = check_rl2()
    check_seams(TRAINER, SEAMS, owner=program, found=str(rl2))
    base: Any = program.PPOTrainer

    class GemPPOTrainer(base):  # type: ignore[misc]
        def __init__(self, config: Any) -> None:
            """Check the configuration before any model is loaded; then extend RL2's parts."""
            # RL2 never ends its servers, and waits for them at its exit for ever.
            processes.end_descendants_with_me()
            rollouts = _switched_on(config)
            super().__init__(config)
            processes.end_with_servers("sglang", "gem-rl2: a process of SGLang has ended")
            self._evaluates_first = rollouts is not None and _evaluates_first(rollouts)
            self._recording = None if rollouts is None else _extend(self, program, rollouts, rl2)

        def train(self) -> Any:
            """Train, with an evaluation before the first iteration if it is due."""
            with self._to_the_end():
                if self._evaluates_first:
                    for rows in self.test_dataloader:
                        self.rollout(rows, False, 0)
                return super().train()

        def _to_the_end(self) -> AbstractContextManager[None]:
            """Demand of rank 0, which records, all iterations."""
            if self._recording is None:
                return nullcontext()
            epochs, steps = self.config.trainer.n_epochs, len(self.train_dataloader)
            return self._recording.to_the_end(lambda: epochs * steps)

    GemPPOTrainer.__name__ = GemPPOTrainer.__qualname__ = base.__name__
    program.PPOTrainer = GemPPOTrainer  # type: ignore[attr-defined]


def _switched_on(config: Any) -> Rollouts | None:
    """Prepare what the section `gem` asks for; None without it."""
    if SECTION not in config:
        return None
    plain: Any = OmegaConf.to_container(config, resolve=True)
    settings, keys = Settings.from_mapping(plain[SECTION] or {}), Keys.read(plain)
    check(settings, keys, int(os.environ.get("WORLD_SIZE", "1")))
    if keys.checkpoint == "latest":
        # RL2 takes the one with the highest number, whole or not.
        last = Checkpoints(keys.save_dir).last
        found = None if last is None else f"{keys.save_dir}/{last.state}"
        keys, config.trainer.load_ckpt_from = replace(keys, checkpoint=found), found
    # By default the metrics of every router go to one port: a machine's second run would end there.
    RouterArgs.__init__ = partialmethod(RouterArgs.__init__, prometheus_port=0)
    if settings.trainer_seed is not None:
        torch.manual_seed(settings.trainer_seed)
    return Rollouts(settings, keys)


def _evaluates_first(rollouts: Rollouts) -> bool:
    keys = rollouts.keys
    asked = rollouts.settings.evaluate_from == 0 and keys.test_freq is not None
    return asked and keys.checkpoint is None


def _extend(
    trainer: Any, program: Any, rollouts: Rollouts, rl2: Installation
) -> RunRecording | None:
    """Change the parts that RL2's trainer has made, and `compute_advantages` of its program.

    Returns:
        The record, which rank 0 writes; None in the other ranks.
    """
    settings, keys = rollouts.settings, rollouts.keys
    parts = [part for name in ("actor", "critic") if (part := getattr(trainer, name, None))]
    for part in parts:
        if settings.adam:
            set_adam(part.optimizer, settings)
        if keys.save_freq or keys.checkpoint:
            # RL2 saves the optimiser's tensors by number, where ranks overwrite one another, and
            # loads none into an optimiser that has made no step.
            _patch_optimizer_state_dict(part.model, optimizers=part.optimizer)
    workers: Any = import_module(_WORKERS)
    workers.clip_grad_norm_ = partial(clip_whole, parts)
    if settings.task_order == "file":
        trainer.train_dataloader = in_order(trainer.train_dataloader)
    if torch.distributed.get_rank():
        return None
    if getattr(trainer.rollout.env, "generate", None) is not rollout.generate:
        raise ConfigurationError(
            "rollout.env_path: the section gem needs GEM's env file, $(python -m gem_rl2 "
            "env-path), or one that imports `generate` from gem_rl2.env"
        )
    trainer.rollout.rollout = partial(rollouts.rollout, trainer.rollout)
    recording = record_logs(rollouts, rl2)
    program.compute_advantages = seam(program.compute_advantages, rollouts, recording)
    return recording


def seam(original: Any, rollouts: Rollouts, recording: RunRecording) -> Any:
    """Return a function that takes the place of RL2's `compute_advantages`."""
    settings, keys = rollouts.settings, rollouts.keys

    def compute_advantages(config: Any, tensor_dict: Any, cu_seqs: Any, step: int) -> None:
        episodes = advantage.read(tensor_dict, cu_seqs.tolist(), rollouts.take())
        per_turn = None
        if settings.advantage is None:
            getattr(original, "__wrapped__", original)(config, tensor_dict, cu_seqs, step)
        else:
            per_turn = advantage.compute(settings, keys, tensor_dict, episodes)
        recording.keep_batch(
            [episode.trajectory for episode in episodes],
            per_turn,
            lambda: [advantage.trained_rows(tensor_dict, episode) for episode in episodes],
            metrics=advantage.engine_metrics(tensor_dict),
        )
        advantage.repeat(tensor_dict, settings.epochs)

    from RL2.utils.logging import time_logger

    return time_logger("compute_advantages")(compute_advantages)


def clip_whole(parts: Sequence[Any], parameters: Iterator[Any], max_norm: float) -> Any:
    """Clip gradients to their norm over all shards; RL2 takes that of this rank's."""
    first = next(parameters)
    [model] = [part.model for part in parts if next(part.model.parameters()) is first]
    return model.clip_grad_norm_(max_norm)


def in_order(loader: Any) -> Any:
    """Return a loader of the same kind that does not shuffle."""
    kept = {name: getattr(loader, name) for name in ("batch_size", "drop_last", "collate_fn")}
    return type(loader)(loader.dataset, shuffle=False, **kept)


def set_adam(optimizer: Any, settings: Settings) -> None:
    """Change what RL2 leaves at PyTorch's defaults."""
    given = settings.adam
    for group in optimizer.param_groups:
        beta1, beta2 = group["betas"]
        group["betas"] = (given.get("adam_beta1", beta1), given.get("adam_beta2", beta2))
        group["eps"] = given.get("adam_eps", group["eps"])

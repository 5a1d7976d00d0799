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
import wandb
from omegaconf import OmegaConf
from sglang_router.launch_router import RouterArgs
from torch.distributed.checkpoint.state_dict import _patch_optimizer_state_dict

from gem.errors import ConfigurationError
from gem.training import processes
from gem.training.checkpoints import Checkpoints
from gem.training.recording import RunRecording
from gem.training.seams import Seam, check_seams
from gem_rl2 import advantage, rollout
from gem_rl2.record import record_logs
from gem_rl2.release import Form, Installation, check_rl2
from gem_rl2.rollout import Rollouts
from gem_rl2.settings import SECTION, Keys, Settings, check
from gem_rl2.version import SUPPORTED_RL2, TRAINER

_TRAINER_SEAMS = (Seam("PPOTrainer.__init__", "self, config"), Seam("PPOTrainer.train", "self"))
_WORKERS: dict[Form, str] = {"release": "RL2.workers.base", "head": "RL2.workers.fsdp.base"}
SEAMS: dict[Form, tuple[Seam, ...]] = {
    "release": (
        *_TRAINER_SEAMS,
        Seam("compute_advantages", "config, raw_tensor_dict, cu_seqs, step"),
        Seam("RL2.workers.rollout:Rollout.rollout", "self, data, train"),
        Seam(f"{_WORKERS['release']}:clip_grad_norm_"),
    ),
    "head": (
        *_TRAINER_SEAMS,
        Seam("compute_advantages", "config, tensor_dict, cu_seqs, step"),
        Seam(f"{_WORKERS['head']}:clip_grad_norm_"),
        Seam("trange"),
    ),
}
"""What is replaced in RL2, with its parameters."""

KNOWN = replace(TRAINER, supported=f"{SUPPORTED_RL2} or a checkout like commit 9161ede")


def install(program: ModuleType) -> None:
    """Put GEM's trainer into RL2's program: RL2's own, extended by what the section `gem` asks for.

    Args:
        program: The module `RL2.trainer.ppo`, usually as `__main__`.

    Raises:
        UnsupportedVersionError: What would be replaced is not what it was.
    """
    rl2 = check_rl2()
    check_seams(KNOWN, SEAMS[rl2.form], owner=program, found=str(rl2))
    base: Any = program.PPOTrainer

    class GemPPOTrainer(base):  # type: ignore[misc]
        def __init__(self, config: Any) -> None:
            """Check the configuration before any model is loaded; then extend RL2's parts."""
            # RL2's release never ends its servers, and waits for them at its exit for ever.
            processes.end_descendants_with_me()
            rollouts = _switched_on(config, rl2.form)
            super().__init__(config)
            processes.end_with_servers("sglang", "gem-rl2: a process of SGLang has ended")
            self._evaluates_first = rollouts is not None and _evaluates_first(rollouts)
            recording = None if rollouts is None else _extend(self, program, rollouts, rl2)
            eval_only = rollouts is not None and rollouts.keys.eval_only
            self._recording = None if eval_only else recording

        def train(self) -> Any:
            """Train; in a checkout a coroutine."""
            if rl2.form == "head":
                return self._train_checkout()
            with self._to_the_end():
                if self._evaluates_first:
                    for rows in self.test_dataloader:
                        self.rollout(rows, False, 0)
                return super().train()

        async def _train_checkout(self) -> None:
            with self._to_the_end():
                if self._evaluates_first:
                    await self.rollout(False, 0)
                await super().train()

        def _to_the_end(self) -> AbstractContextManager[None]:
            """Demand of rank 0, which records, all iterations."""
            if self._recording is None:
                return nullcontext()
            config = self.config.trainer
            if rl2.form == "head":
                return self._recording.to_the_end(lambda: config.total_steps)
            steps = len(self.train_dataloader)
            return self._recording.to_the_end(lambda: config.n_epochs * steps)

    GemPPOTrainer.__name__ = GemPPOTrainer.__qualname__ = base.__name__
    program.PPOTrainer = GemPPOTrainer  # type: ignore[attr-defined]


def _switched_on(config: Any, form: Form) -> Rollouts | None:
    """Prepare what the section `gem` asks for; None without it."""
    if SECTION not in config:
        return None
    plain: Any = OmegaConf.to_container(config, resolve=True)
    settings, keys = Settings.from_mapping(plain[SECTION] or {}), Keys.read(plain, form)
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
    return asked and keys.checkpoint is None and not keys.eval_only


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
    workers: Any = import_module(_WORKERS[rl2.form])
    workers.clip_grad_norm_ = partial(clip_whole, parts)
    if rl2.form == "head":
        program.trange = partial(steps_left, program.trange)
    # HEAD's trainer has a read-only property of this name; there it is the rollout's, on rank 0.
    owner = trainer if rl2.form == "release" else trainer.rollout
    if settings.task_order == "file" and hasattr(owner, "train_dataloader"):
        owner.train_dataloader = in_order(owner.train_dataloader)
    if torch.distributed.get_rank():
        return None
    if getattr(trainer.rollout.env, "generate", None) is not rollout.generate:
        raise ConfigurationError(
            "rollout.env_path: the section gem needs GEM's env file, $(python -m gem_rl2 "
            "env-path), or one that imports `generate` from gem_rl2.env"
        )
    if rl2.form == "release":
        trainer.rollout.rollout = partial(rollouts.release_rollout, trainer.rollout)
    else:
        trainer.rollout.env.generate = rollouts.generate
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
            if keys.form == "head" and keys.kl_coef:
                apply_kl(keys, tensor_dict, step)
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


def apply_kl(keys: Keys, tensor_dict: Any, step: int) -> None:
    """Do what a checkout's `compute_advantages` does for a KL penalty; the release's trainer does
    it itself."""
    from RL2.utils.algorithms import compute_approx_kl

    kl = compute_approx_kl(tensor_dict["old_logps"], tensor_dict["ref_logps"], keys.kl_estimator)
    mean = kl.sum() / tensor_dict["action_mask"].sum()
    wandb.log({"actor/old_ref_approx_kl": mean.item()}, step=step)
    if keys.kl_type == "reward":
        tensor_dict["rewards"] -= keys.kl_coef * kl


def clip_whole(parts: Sequence[Any], parameters: Iterator[Any], max_norm: float) -> Any:
    """Clip gradients to their norm over all shards; RL2 takes that of this rank's."""
    first = next(parameters)
    [model] = [part.model for part in parts if next(part.model.parameters()) is first]
    return model.clip_grad_norm_(max_norm)


def steps_left(trange: Any, start: int, stop: int, *, initial: int, **kwargs: Any) -> Any:
    """Return the steps after `initial`, where a checkout counts from the first one again."""
    return trange(start + initial, stop, initial=initial, total=stop - start, **kwargs)


def in_order(loader: Any) -> Any:
    """Return a loader of the same kind that does not shuffle."""
    kept = {name: getattr(loader, name) for name in ("batch_size", "drop_last", "collate_fn")}
    return type(loader)(loader.dataset, shuffle=False, **kept)


def set_adam(optimizer: Any, settings: Settings) -> None:
    """Change what the release leaves at PyTorch's defaults."""
    given = settings.adam
    for group in optimizer.param_groups:
        beta1, beta2 = group["betas"]
        group["betas"] = (given.get("adam_beta1", beta1), given.get("adam_beta2", beta2))
        group["eps"] = given.get("adam_eps", group["eps"])

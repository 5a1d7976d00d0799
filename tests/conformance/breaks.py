"""Deliberate defects for a real verl run: `VERL_USE_EXTERNAL_MODULES=breaks GEM_BREAK=<name>`.

verl imports the module in every one of its processes. Each defect is one that adapters have had;
the conformance levels must notice it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from gem import advantage
from gem.advantage import TurnTable
from gem.estimators import Estimate, Estimator, Options
from gem.trajectory import TrainingRow, Trajectory, TurnsInRow
from gem_train.imports import after_import


def gamma() -> None:
    """Discount with 1.0 whatever was configured."""
    original = advantage.returns

    def undiscounted(table: TurnTable, gamma: float) -> Any:
        return original(table, 1.0)

    advantage.returns = undiscounted


def _on_advantages(change: Callable[[Any], Any]) -> None:
    original = Estimator.__call__

    def changed(self: Estimator, table: TurnTable, options: Options) -> Estimate:
        estimate = original(self, table, options)
        return replace(estimate, advantages=change(estimate.advantages))

    Estimator.__call__ = changed  # type: ignore[method-assign,assignment]


def wrong_sign() -> None:
    """Make bad turns likelier instead of good ones."""
    _on_advantages(lambda per_turn: -per_turn)


def off_by_one() -> None:
    """Give every turn of a batch the advantage of the turn before."""
    _on_advantages(lambda per_turn: np.roll(per_turn, 1))


def std_ddof() -> None:
    """Normalise by the unbiased standard deviation."""

    def unbiased(x: Any, table: TurnTable, all_reduce: Any) -> Any:
        valid = table.valid
        result = np.zeros_like(x)
        if valid.sum() > 1 and x[valid].std() > 1e-6:
            result[valid] = (x[valid] - x[valid].mean()) / x[valid].std(ddof=1)
        return result

    advantage.normalised = unbiased  # type: ignore[assignment]


def mask_shifted() -> None:
    """Shift the mask by one token."""
    original = Trajectory.training_rows

    def shifted(self: Trajectory) -> list[TrainingRow]:
        rows = original(self)
        for row in rows:
            row.mask = [0, *row.mask[:-1]]
        return rows

    Trajectory.training_rows = shifted  # type: ignore[method-assign]


def reward_misplaced() -> None:
    """Put rewards on the first instead of the last token of a turn."""

    def misplaced(self: TurnsInRow, per_turn: Any) -> list[float]:
        out = [0.0] * len(self.response_ids)
        for span in self.spans:
            out[min(span.start, len(out) - 1)] += float(per_turn[span.turn])
        return out

    TurnsInRow.token_rewards = misplaced  # type: ignore[method-assign]


def no_weight_sync() -> None:
    """Let the engine go on with the weights it began with."""
    from verl.checkpoint_engine import base

    manager = base.CheckpointEngineManager
    original = manager.update_weights

    def only_first(self: Any, global_steps: int | None = None) -> Any:
        return {} if global_steps else original(self, global_steps)

    manager.update_weights = only_first


def _verl_sends(change: Callable[[list[int], Any], list[int]]) -> Callable[[], None]:
    """Return a defect in the prompts that verl's server gives to vLLM."""

    def install(module: Any) -> None:
        module.qwen2_5_vl_dedup_image_tokens = change

    where = "verl.workers.rollout.vllm_rollout.vllm_async_server"
    return lambda: after_import(where, install)


def _doubled(ids: list[int], processor: Any) -> list[int]:
    """Give vLLM two placeholders for each image, as if some of them were expanded before."""
    return [i for i in ids for _ in range(1 + (i == processor.image_token_id))]


def verl_image_dropped() -> None:
    """Lose the last image of each prompt on its way to the engine."""

    def install(module: Any) -> None:
        asked = module._Sampler._asked

        def without(self: Any, request: Any) -> dict[str, Any]:
            found: dict[str, Any] = asked(self, request)
            if found.get("image_data"):
                found["image_data"] = found["image_data"][:-1]
            return found

        module._Sampler._asked = without

    after_import("gem_verl.rollout", install)


def openrlhf_no_weight_sync() -> None:
    """Let OpenRLHF's engine go on with the weights it began with."""

    def install(module: Any) -> None:
        module.ActorPPOTrainer.broadcast_to_vllm = lambda self: None

    after_import("openrlhf.trainer.ray.ppo_actor", install)


def rl2_no_weight_sync() -> None:
    """Let RL2's SGLang go on with the weights it began with."""

    def install(module: Any) -> None:
        original = module.make_request

        def without_weights(url: str, endpoint: str, payload: Any = None) -> None:
            if endpoint != "update_weights_from_tensor":
                original(url, endpoint, payload)

        module.make_request = without_weights

    after_import("RL2.workers.rollout", install)


def oat_no_weight_sync() -> None:
    """Let oat's engine go on with the weights it began with."""

    def install(module: Any) -> None:
        module.LearnerBase._broadcast_to_vllm = lambda self: None

    after_import("oat.learners.base", install)


def trl_trained_on(change: Callable[[Any], Any]) -> Callable[[], None]:
    """Train TRL on advantages `[rows, tokens]` that were changed after the record was kept."""

    def install(module: Any) -> None:
        trainer = module.GemGRPOTrainer
        original = trainer._generate_and_score_completions

        def changed(self: Any, inputs: Any) -> Any:
            output = original(self, inputs)
            return {**output, "advantages": change(output["advantages"])}

        trainer._generate_and_score_completions = changed

    return lambda: after_import("gem_trl.trainer", install)


trl_shifted = trl_trained_on(lambda advantages: advantages.roll(1, dims=1))
"""Shift advantages by one token."""

trl_normalised_again = trl_trained_on(lambda a: (a - a.mean(0)) / (a.std(0) + 1e-4))
"""Normalise advantages a second time, with TRL's formula for a group's rewards."""


def trl_one_for_all() -> None:
    """Give all turns of an episode one advantage, as TRL by itself does."""

    def install(module: Any) -> None:
        original = module.turn_advantages

        def same(*args: Any, **kwargs: Any) -> Any:
            per_turn, target = original(*args, **kwargs)
            return [[turns[0]] * len(turns) if turns else [] for turns in per_turn], target

        module.turn_advantages = same

    after_import("gem_trl.trainer", install)


def trl_importance_correction() -> None:
    """Leave TRL's default on: episodes whose probabilities differ from vLLM's lose their loss."""

    def install(module: Any) -> None:
        original = module.GemGRPOTrainer.__init__

        def corrected(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            self.vllm_importance_sampling_correction = True

        module.GemGRPOTrainer.__init__ = corrected

    after_import("gem_trl.trainer", install)


def trl_no_weight_sync() -> None:
    """Let TRL's vLLM go on with the weights it began with."""

    def install(module: Any) -> None:
        module.VLLMGeneration.sync_weights = lambda self: None

    after_import("trl.generation.vllm_generation", install)


def trl_late_schedule() -> None:
    """Let the schedule of TRL's learning rate begin one step late."""

    def late(factor: Callable[[int], float], step: int) -> float:
        return factor(max(0, step - 1))

    def install(module: Any) -> None:
        trainer = module.GemGRPOTrainer
        original = trainer.create_scheduler

        def create(self: Any, *args: Any, **kwargs: Any) -> Any:
            found = original(self, *args, **kwargs)
            found.lr_lambdas = [partial(late, factor) for factor in found.lr_lambdas]
            return found

        trainer.create_scheduler = create

    after_import("gem_trl.trainer", install)


def trl_symmetric_clip() -> None:
    """Let TRL clip as far above 1 as below it."""

    def install(module: Any) -> None:
        original = module.GemGRPOTrainer.__init__

        def symmetric(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            self.epsilon_high = self.epsilon_low

        module.GemGRPOTrainer.__init__ = symmetric

    after_import("gem_trl.trainer", install)


def trl_counts_overlong() -> None:
    """Let TRL train on the rows of episodes that a token limit cut."""

    def install(module: Any) -> None:
        def all_valid(self: Any, episodes: Any, trained: Any = None) -> list[bool]:
            return [each.valid for each in episodes]

        module.GemSettings.in_loss = all_valid

    after_import("gem_trl.settings", install)


def verl_other_estimator() -> None:
    """Let verl's penalty have another estimator than the one it is told."""

    def install(module: Any) -> None:
        original = module.kl_penalty

        def other(logprob: Any, ref_logprob: Any, kl_penalty: str) -> Any:
            return original(logprob, ref_logprob, "mse" if kl_penalty == "low_var_kl" else "kl")

        module.kl_penalty = other

    after_import("verl.workers.utils.losses", install)


def verl_other_side(name: str) -> Callable[[], None]:
    """Let a correction of verl take the sampler's probability over the trainer's."""

    def install(module: Any) -> None:
        original = getattr(module, name)

        def turned(log_ratio: Any, *args: Any, **kwargs: Any) -> Any:
            return original(-log_ratio, *args, **kwargs)

        setattr(module, name, turned)

    return lambda: after_import("verl.trainer.ppo.rollout_corr_helper", install)


BREAKS: dict[str, tuple[Callable[[], None], str]] = {
    "gamma": (gamma, "L0"),
    "std_ddof": (std_ddof, "L0"),
    "mask_shifted": (mask_shifted, "L1"),
    "reward_misplaced": (reward_misplaced, "L1"),
    "no_weight_sync": (no_weight_sync, "L3"),
}
"""Defects by name, and the level that must notice."""

OPENRLHF = {"openrlhf_no_weight_sync": (openrlhf_no_weight_sync, "L3")}
"""The same for OpenRLHF, whose processes import this module at their start."""

RL2 = {"rl2_no_weight_sync": (rl2_no_weight_sync, "L3")}
"""The same for RL2."""

OAT = {"oat_no_weight_sync": (oat_no_weight_sync, "L3")}
"""The same for oat."""

TRL = {
    "trl_shifted": (trl_shifted, "L2"),
    "trl_normalised_again": (trl_normalised_again, "L2"),
    "trl_one_for_all": (trl_one_for_all, "L0"),
}
"""The same for TRL."""

TRL_VLLM = {
    "trl_importance_correction": (trl_importance_correction, "L2"),
    "trl_no_weight_sync": (trl_no_weight_sync, "L3"),
}
"""The same for TRL with vLLM."""

KEYS = {
    "trl_late_schedule": (trl_late_schedule, "cosine"),
    "trl_symmetric_clip": (trl_symmetric_clip, "clips"),
    "verl_other_estimator": (verl_other_estimator, "k2"),
}
"""Defects in how a trainer realises a setting, and the case of test_keys.py that must notice."""

OVERLONG = {"trl_counts_overlong": (trl_counts_overlong, "L2")}
"""Defects in overlong filtering, which the audit of test_adapters.py must notice."""

CORRECTIONS = {
    "verl_weighs_the_other_side": (
        verl_other_side("compute_rollout_correction_weights"),
        "truncated",
    ),
    "verl_rejects_the_other_side": (verl_other_side("compute_rollout_rejection_mask"), "rejected"),
}
"""Defects in verl's corrections, and the case of test_correction.py that must notice."""

IMAGES = {
    "verl_image_doubled": (_verl_sends(_doubled), "more"),
    "verl_image_dropped": (verl_image_dropped, "fewer"),
}
"""Defects in how verl shows images, and whether the engine then reads more or fewer tokens than the
prompt has: the run must end with these numbers (tests/e2e/test_verl_images.py)."""

LEARNING = {"wrong_sign": wrong_sign, "off_by_one": off_by_one}
"""Defects that must show in what is learned (tests/learn), imported before `gem_bench`."""

if "GEM_BREAK" in os.environ:
    named = os.environ["GEM_BREAK"]
    known = BREAKS | OPENRLHF | OAT | RL2 | TRL | TRL_VLLM | KEYS | CORRECTIONS | OVERLONG
    known |= IMAGES
    (LEARNING[named] if named in LEARNING else known[named][0])()

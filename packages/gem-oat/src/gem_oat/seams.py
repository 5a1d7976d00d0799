"""The check that what is extended of oat is still what it was."""

from __future__ import annotations

import importlib
import inspect

from gem.errors import UnsupportedVersionError
from gem_oat import SUPPORTED_OAT, __version__, check_oat

SEAMS: dict[str, tuple[str, ...]] = {
    "oat.interface.get_program": ("args", "learner_cls", "actor_cls"),
    "oat.args.default_args_validation": ("args",),
    "oat.algorithms.ppo.PPOActor.init": ("self", "actor_id", "save_path"),
    "oat.algorithms.ppo.PPOActor.init_process_group": (
        "self",
        "master_address",
        "master_port",
        "rank_offset",
        "world_size",
        "group_name",
        "backend",
    ),
    "oat.algorithms.ppo.PPOActor.update_weight": (
        "self",
        "name",
        "dtype",
        "shape",
        "cuda_ipc_handles",
        "empty_cache",
    ),
    "oat.algorithms.ppo.PPOActor.step": ("self", "prompts", "formatted_prompts", "references"),
    "oat.algorithms.ppo_multiturn.PPOMultiTurnLearner._init": ("self", "args", "actors"),
    "oat.algorithms.ppo_multiturn.PPOMultiTurnLearner.prepare_data": (
        "self",
        "strategy",
        "tokenizer",
    ),
    "oat.algorithms.ppo_multiturn.PPOMultiTurnLearner.process_feedback_data": ("self", "data_list"),
    "oat.algorithms.ppo_multiturn.PPOMultiTurnLearner.learn": ("self", "learning_round"),
    "oat.algorithms.ppo_multiturn.PPOMultiTurnLearner.evaluate": ("self", "dataloader", "steps"),
    "oat.algorithms.ppo_multiturn.PPOMultiTurnLearner.eval_and_log": (
        "self",
        "train_info",
        "eval",
        "save",
    ),
    "oat.algorithms.ppo_multiturn.PPOMultiTurnLearner.get_batch_logps": (
        "self",
        "model",
        "input_ids",
        "att_mask",
        "temperature",
        "compute_entropy",
    ),
    "oat.algorithms.ppo_multiturn.MultiTurnFeedbackCollector.get_metrics": (
        "self",
        "actor_time",
        "feedback_data",
    ),
    "oat.utils.ipc.PlasmaShmClient.serialize_ipc": ("self", "data"),
    "oat.utils.ipc.PlasmaShmClient.deserialize_ipc": ("self", "data"),
}
"""Functions and methods that are called or overridden, with their parameters."""


def check_seams() -> int:
    """Return the number of functions that are what they were.

    Raises:
        UnsupportedVersionError: One is not; both versions are named.
    """
    for path, expected in SEAMS.items():
        where, _, name = path.rpartition(".")
        module, _, owner = where.rpartition(".")
        # A class begins with a capital letter.
        holder = (
            getattr(importlib.import_module(module), owner, None)
            if owner[0].isupper()
            else importlib.import_module(where)
        )
        function = getattr(holder, name, None)
        found = None if function is None else list(inspect.signature(function).parameters)
        if found != list(expected):
            raise UnsupportedVersionError(
                f"gem-oat {__version__} uses {path}({', '.join(expected)}), but oat-llm "
                f"{check_oat()} has {found}; supported is oat-llm {SUPPORTED_OAT}"
            )
    return len(SEAMS)

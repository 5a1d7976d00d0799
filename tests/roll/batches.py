"""Batches as ROLL has them, without ROLL: tensors and object columns of a `DataProto`."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from gem.trajectory import Trajectory
from gem_roll import rows
from gem_train.packed import PackedTrajectory

LENGTH = 64
PAD, STOP = 0, 2


def batch(trajectories: Sequence[Trajectory], order: Sequence[int] | None = None) -> Any:
    """Return the batch of some episodes.

    Args:
        trajectories: The slots' episodes.
        order: In which they are in the batch; by default that of the slots.
    """
    places = list(range(len(trajectories)) if order is None else order)
    made = [rows.columns(trajectories[k], LENGTH, PAD, STOP) for k in places]
    tensors = {name: torch.cat([each[name] for each in made]) for name in made[0]}
    # What ROLL itself adds before it asks for advantages.
    tensors["token_level_rewards"] = tensors["scores"][:, 1:].clone()
    columns = {
        rows.EPISODE: [PackedTrajectory.of(trajectories[k]).data for k in places],
        rows.SLOT: places,
    }
    return SimpleNamespace(
        batch=tensors,
        non_tensor_batch={name: np.array(values, object) for name, values in columns.items()},
    )

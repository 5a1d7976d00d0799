"""TRL's engines with other sampling, and its columns of what was played."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from gem.trajectory import TrainingRow, Trajectory
from gem_train.experiment.tasksets import EvalSampling
from gem_train.seams import replaced
from gem_trl.rewards import environment_return


@contextmanager
def sampling_at(trainer: Any, sampling: EvalSampling | None) -> Iterator[None]:
    """Sample otherwise for a while, without a repetition penalty; the temperature 0 is greedy.

    Args:
        trainer: A GRPOTrainer.
        sampling: None changes nothing.
    """
    with ExitStack() as stack:
        if sampling is not None:
            greedy = sampling.temperature == 0
            changes = {
                "temperature": sampling.temperature or 1.0,
                "top_k": 1 if greedy else max(sampling.top_k, 0),
                "top_p": sampling.top_p,
                "min_p": sampling.min_p or None,
                "repetition_penalty": 1.0,
            }
            engine = trainer.vllm_generation if trainer.use_vllm else trainer.generation_config
            for name, value in changes.items():
                stack.enter_context(replaced(engine, name, value))
            if not trainer.use_vllm:
                kwargs = {**trainer.generation_kwargs, **changes}
                stack.enter_context(replaced(trainer, "generation_kwargs", kwargs))
        yield


def training_row(trajectory: Trajectory) -> TrainingRow | None:
    """Return an episode's training row; None if it failed, or nothing follows its prompt."""
    rows = trajectory.training_rows()
    return rows[0] if rows and rows[0].response_ids else None


def columns(
    trajectories: Sequence[Trajectory],
    stop_id: int,
    trained: Sequence[bool],
    in_loss: Sequence[bool] | None = None,
) -> dict[str, list[Any] | None]:
    """Return what TRL takes from a rollout, an entry an episode.

    Args:
        trajectories: The episodes of this process, in the order of the prompts.
        stop_id: The one token, not trained on, of a row without anything to train on; TRL cannot
            do without.
        trained: Whether each counts in TRL's statistics.
        in_loss: Whether the row of each is in the loss; by default of those that count.
    """
    empty = TrainingRow([stop_id], [stop_id], [0], [0.0], [])
    shown = zip(trajectories, in_loss or trained, strict=True)
    rows = [(training_row(trajectory) if counts else None) or empty for trajectory, counts in shown]
    logprobs = [row.logprobs for row in rows]
    return {
        "prompt_ids": [row.prompt_ids for row in rows],
        "completion_ids": [row.response_ids for row in rows],
        "logprobs": None if any(known is None for known in logprobs) else logprobs,
        "env_mask": [row.mask for row in rows],
        "episode_return": [
            environment_return(t) if t.valid and counts else None
            for t, counts in zip(trajectories, trained, strict=True)
        ],
    }

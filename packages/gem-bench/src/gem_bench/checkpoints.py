"""Checkpoints of the reference trainer: what it needs to go on as if it had not been killed.

A checkpoint is a file, `checkpoints/iteration-<next iteration>.pt` in the record's folder, with the
weights that are trained, earlier ones that later batches are sampled with, the KL penalty's
reference if it changes, the optimisers' states, the estimator's state, the RunSpec and the version.
It is renamed when it is whole, and the last two are kept. Random numbers have no state: every batch
draws from a stream of its own, which the seed and the iteration give
(`gem_bench.reference.rollout`).
"""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gem.errors import RecordError
from gem_bench import __version__
from gem_bench.reference_setup import CHECKPOINTS
from gem_train.experiment.runspec import RunSpec
from gem_train.resuming import check_same

if TYPE_CHECKING:
    from gem_bench.reference import Learner

KEPT = 2


class Checkpoints:
    """The checkpoints of a run."""

    def __init__(self, record: str | Path, spec: RunSpec, every: int) -> None:
        """Look into the record's folder.

        Args:
            record: The folder.
            spec: The experiment.
            every: Iterations between checkpoints; 0 saves none.
        """
        self._folder = Path(record) / CHECKPOINTS
        self._begun = {"spec": spec.to_mapping(), "versions": {"gem-bench": __version__}}
        self._every = every

    def restore(self, learner: Learner) -> int:
        """Give a learner the state of the last checkpoint.

        Returns:
            The iteration to go on with; 0 if there is no checkpoint.

        Raises:
            ConfigurationError: It is of another experiment or version.
            RecordError: It cannot be read.
        """
        saved = self._saved()
        if not saved:
            return 0
        try:
            state = torch.load(saved[-1], map_location="cpu", weights_only=True)
            check_same(saved[-1], {key: state[key] for key in self._begun}, self._begun)
            for name, (model, optimizer) in _parts(learner).items():
                weights = state[name]["weights"]
                # What is not trained is not saved, so that torch cannot check it.
                if odd := sorted(weights.keys() ^ _trained(model).keys()):
                    raise RuntimeError(f"{name}: weights do not fit the model: {', '.join(odd)}")
                model.load_state_dict(weights, strict=False)
                optimizer.load_state_dict(state[name]["optimizer"])
            learner.estimator_state = dict(state["estimator_state"])
            learner.behaviour.versions = state["earlier_weights"]
            if learner.initial is not None and learner.spec.algorithm.kl_reset is not None:
                learner.initial.load_state_dict(state["reference"])
            return int(state["iteration"])
        except (OSError, EOFError, KeyError, RuntimeError, pickle.UnpicklingError) as error:
            raise RecordError(
                f"cannot read the checkpoint {saved[-1]}: {error}. Remove it, and the run goes on "
                "from the one before, or from its beginning"
            ) from error

    def save(self, learner: Learner, iteration: int) -> None:
        """Save a learner's state if it is time to; `iteration` is the next to train.

        Raises:
            RecordError: It cannot be written; earlier checkpoints are intact.
        """
        if not self._every or iteration % self._every:
            return
        state: dict[str, Any] = {**self._begun, "iteration": iteration}
        state["estimator_state"] = learner.estimator_state
        state["earlier_weights"] = learner.behaviour.versions
        if learner.initial is not None and learner.spec.algorithm.kl_reset is not None:
            state["reference"] = learner.initial.state_dict()
        for name, (model, optimizer) in _parts(learner).items():
            state[name] = {"weights": _trained(model), "optimizer": optimizer.state_dict()}
        path = self._folder / f"iteration-{iteration:06d}.pt"
        partial = path.with_suffix(".partial")
        try:
            self._folder.mkdir(exist_ok=True)
            with partial.open("wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
            for old in self._saved()[:-KEPT]:
                old.unlink()
        except (OSError, RuntimeError) as error:  # torch's own where a disk is full
            raise RecordError(
                f"cannot write the checkpoint {path}: {error}; those before are intact"
            ) from error

    def _saved(self) -> list[Path]:
        return sorted(self._folder.glob("iteration-*.pt"))


def _trained(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {n: w.detach() for n, w in model.named_parameters() if w.requires_grad}


def _parts(learner: Learner) -> dict[str, tuple[torch.nn.Module, torch.optim.Optimizer]]:
    """Return what is trained, and by which optimiser."""
    parts: dict[str, tuple[torch.nn.Module, torch.optim.Optimizer]] = {
        "policy": (learner.policy, learner.optimizer)
    }
    if learner.critic is not None:
        parts["critic"] = (learner.critic, learner.critic_optimizer)
    return parts

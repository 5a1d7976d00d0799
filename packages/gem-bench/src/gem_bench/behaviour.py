"""The policy that samples training episodes: the trained one, or an earlier state of it."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn


class Behaviour:
    """Samples batch `i` with the weights after `max(0, i - staleness)` iterations."""

    def __init__(self, policy: nn.Module, staleness: int) -> None:
        """Keep a copy of the policy if it is to be an older one.

        Args:
            policy: The one that is trained.
            staleness: Iterations between the two.
        """
        self.policy, self.staleness = policy, staleness
        self.copy = deepcopy(policy).requires_grad_(False) if staleness else policy
        self.versions: dict[int, dict[str, Tensor]] = {}
        """Weights that are trained, by the number of iterations that made them: those that later
        batches are sampled with, as far as they are known."""

    @torch.no_grad()
    def at(self, iteration: int) -> tuple[Any, int]:
        """Return the policy of a batch, and its version; to be called before each iteration.

        Args:
            iteration: Number of the batch, whose update has not been made.
        """
        if not self.staleness:
            return self.policy, iteration
        trained = ((n, w) for n, w in self.policy.named_parameters() if w.requires_grad)
        self.versions[iteration] = {name: weight.detach().clone() for name, weight in trained}
        version = max(0, iteration - self.staleness)
        self.versions = {v: weights for v, weights in self.versions.items() if v >= version}
        self.copy.load_state_dict(self.versions[version], strict=False)
        return self.copy, version

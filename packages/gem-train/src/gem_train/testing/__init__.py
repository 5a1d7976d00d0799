"""For authors of adapters: golden trajectories; `conformance` has the tests of level L0."""

from __future__ import annotations

from gem_train.testing.golden import golden_batch, golden_turn_rows

__all__ = ["golden_batch", "golden_turn_rows"]

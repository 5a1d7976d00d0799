"""What is extended or called of fake-trainer."""

from __future__ import annotations

from gem_train.seams import Seam, called

_TRAINER = "fake_trainer:Trainer"

SEAMS = (
    Seam(f"{_TRAINER}.__init__", "self, config"),
    Seam(f"{_TRAINER}.train", "self"),
    Seam(f"{_TRAINER}.rollout", "self, texts, evaluation"),
    Seam(f"{_TRAINER}.compute_advantages", "self, batch"),
    Seam(f"{_TRAINER}.log", "self, step, values"),
    called(
        "fake_trainer:Engine.generate",
        "self, prompt_ids, *, max_tokens, stop_token_ids, temperature, top_k, seed",
    ),
)
"""Functions and methods, with the parameters that they have or are given."""

"""TRL's engines with the sampling of an evaluation, and TRL's columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gem_train.experiment.tasksets import EvalSampling
from gem_train.testing.golden import golden_batch
from gem_trl.rollout import columns, sampling_at


def test_evaluations_are_sampled_as_they_say(make_trainer: Callable[..., Any]) -> None:
    own = {"temperature": 0.7, "top_k": 5, "min_p": 0.3, "repetition_penalty": 1.2}
    trainer = make_trainer(args=own)
    config, kwargs = trainer.generation_config, dict(trainer.generation_kwargs)
    before = config.to_dict()
    with sampling_at(trainer, None):
        assert config.to_dict() == before
    with sampling_at(trainer, EvalSampling(temperature=0.5)):
        assert (config.temperature, config.top_k, config.top_p) == (0.5, 0, 1.0)
        assert (config.min_p, config.repetition_penalty) == (None, 1.0)
        assert trainer.generation_kwargs["temperature"] == 0.5
    with sampling_at(trainer, EvalSampling(temperature=0.8, top_k=7, top_p=0.9)):
        assert (config.temperature, config.top_k, config.top_p) == (0.8, 7, 0.9)
    with sampling_at(trainer, EvalSampling(temperature=0.8, min_p=0.1)):
        assert config.min_p == 0.1
    with sampling_at(trainer, EvalSampling(temperature=0.0)):
        assert (config.temperature, config.top_k) == (1.0, 1)
    assert config.to_dict() == before
    assert (config.temperature, config.top_k) == (0.7, 5)
    assert trainer.generation_kwargs == kwargs


def test_a_failed_episode_is_one_token_that_is_not_trained_on() -> None:
    batch = golden_batch()
    found = columns(batch, 2, [True] * len(batch))
    masks, returns = found["env_mask"], found["episode_return"]
    assert masks is not None and returns is not None
    assert [sum(mask) for mask in masks] == [t.sampled_tokens if t.valid else 0 for t in batch]
    assert not batch[7].valid
    assert [(found[name] or [])[7] for name in ("prompt_ids", "completion_ids")] == [[2], [2]]
    assert (masks[7], returns[7]) == ([0], None)


def test_an_episode_that_is_left_out_is_the_same() -> None:
    batch = golden_batch()
    trained = [index % 2 == 0 for index in range(len(batch))]
    found = columns(batch, 2, trained)
    masks, returns = found["env_mask"], found["episode_return"]
    assert masks is not None and returns is not None
    for trajectory, counts, mask, value in zip(batch, trained, masks, returns, strict=True):
        if not counts:
            assert (mask, value) == ([0], None)
        elif trajectory.valid:
            assert (sum(mask), value) == (trajectory.sampled_tokens, trajectory.total_reward)

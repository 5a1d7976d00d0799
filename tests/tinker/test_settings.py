"""Keys of a direct run."""

from __future__ import annotations

import pytest

from gem.errors import ConfigurationError
from gem_tinker.settings import Config, read

NEEDED = ["model=m", "train=gem:game:GuessTheNumber-v0-easy?seed=7"]


def test_arguments_are_json_where_they_are_json() -> None:
    config = read([*NEEDED, "lr=1e-3", "turns=4", "gem.seed=0", "base_url=null"])
    assert (config.lr, config.turns, config.seed, config.base_url) == (1e-3, 4, 0, None)


def test_text_stays_text() -> None:
    assert read(["model=42", NEEDED[1], "system_prompt=7"]).model == "42"
    assert read([*NEEDED, "system_prompt=7"]).system_prompt == "7"


def test_tasks_follow_the_first_seed_for_the_whole_run() -> None:
    config = read([*NEEDED, "tasks=3", "iterations=5"])
    assert [task.seed for task in config.train_tasks()] == list(range(7, 22))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["model=m"], "missing key 'train'"),
        (["train=gem:x"], "missing key 'model'"),
        ([*NEEDED, "modle=m"], "did you mean model"),
        ([*NEEDED, "turns"], "key=value"),
        ([*NEEDED, "turns=2", "gem.turns=3"], "twice"),
        ([*NEEDED, "advantage=gae"], "no value head"),
        ([*NEEDED, "advantage=ppo"], "advantage: unknown estimator"),
        ([*NEEDED, "advantage=grpo", "group_size=1"], "group_size"),
        ([*NEEDED, "temperature=0.7"], "temperature: .* at temperature 1; 0 is greedy, got 0.7"),
        ([*NEEDED, "loss_fn=stable_reinforce"], "loss_fn must be one of"),
        ([*NEEDED, "server=vllm"], "server must be one of"),
        ([*NEEDED, "lora_rank=0"], "lora_rank must be at least 1"),
        ([*NEEDED, "lr=-1"], "lr must be above 0"),
        ([*NEEDED, "restarts=-1"], "restarts must be at least 0"),
        ([*NEEDED, "minibatches=999"], "minibatches"),
        ([*NEEDED, "gamma=2"], "gamma must be at most 1"),
        ([*NEEDED, "top_p=3"], "top_p must be at most 1"),
        ([*NEEDED, "top_k=0"], "top_k must be at least 1 or -1"),
        ([*NEEDED, "beta1=5"], "beta1 must be below 1"),
        ([*NEEDED, "beta2=-1"], "beta2 must be at least 0"),
        ([*NEEDED, "weight_decay=-1"], "weight_decay must be at least 0"),
        ([*NEEDED, "logprob_tolerance=-1"], "logprob_tolerance must be at least 0"),
        ([*NEEDED, "loss_fn=importance_sampling", "clip=0.3"], "clip: .* clips nothing"),
        ([*NEEDED, "loss_fn=importance_sampling", "clip_high=0.3"], "clip_high: .* clips nothing"),
        ([*NEEDED, "init=tinker://a/weights/b", "lora_seed=3"], "lora_seed: init is not drawn"),
        ([*NEEDED, "eval=gem:a#temperature=1&min_p=0.1"], "eval: .* has no min_p"),
        ([*NEEDED, "eval=gem:a gem:a"], "two evaluations are called"),
        ([*NEEDED, "max_failed_fraction=2"], "max_failed_fraction"),
        (["model=m", "train=game:GuessTheNumber-v0"], "task URI"),
    ],
)
def test_wrong_settings_are_refused_by_name(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read(arguments)


def test_defaults_are_those_of_a_plain_run() -> None:
    config = Config.from_mapping({"model": "m", "train": NEEDED[1][6:]})
    assert config == read(NEEDED)

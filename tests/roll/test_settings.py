"""The table `gem` of an environment, and the refusal of keys of ROLL that do not go with it."""

from __future__ import annotations

import operator
from types import SimpleNamespace
from typing import Any

import pytest

from gem.errors import ConfigurationError
from gem_roll.settings import MANAGER, GemSettings, check_config

FILTER = "roll.pipeline.agentic.agentic_pipeline.GroupFilter"


def config(**changed: Any) -> Any:
    """ROLL's `AgenticConfig` as far as it is looked at; keys with `__` for a dot are changed."""

    def manager(tag: str, groups: int) -> SimpleNamespace:
        return SimpleNamespace(
            tags=[tag], num_env_groups=groups, group_size=2, num_groups_partition=[groups],
            group_size_redundancy=0, group_filter_cls=FILTER,
            llm_proxy=SimpleNamespace(proxy_type="policy"),
        )  # fmt: skip

    def environment(**gem: Any) -> dict[str, Any]:
        return {"env_type": "e", "env_manager_cls": MANAGER, "gem": {"prompt_tokens": 40, **gem}}

    made = SimpleNamespace(
        adv_estimator="reinforce", advantage_clip=None, whiten_advantages=False,
        whiten_rewards=False, is_pure_opd=False, use_opd=False, reward_clip=None,
        reward_normalization=SimpleNamespace(norm_mean_type=None, norm_std_type=None),
        add_token_level_kl=False, async_generation_ratio=0, rollout_batch_size=8,
        sequence_length=100, train_env_manager=manager("train", 4), val_env_manager=manager("v", 1),
        actor_infer=SimpleNamespace(
            generating_args=SimpleNamespace(max_new_tokens=8, stop_strings=None, num_beams=1)
        ),
        custom_envs={"train": environment(), "v": environment(temperature=0.0)},
    )  # fmt: skip
    for key, value in changed.items():
        *tables, name = key.split("__")
        owner = operator.attrgetter(".".join(tables))(made) if tables else made
        setattr(owner, name, value)
    return made


def test_settings_are_read_by_tag() -> None:
    found = check_config(config())
    assert list(found) == ["train", "v"]
    assert found["train"].advantage == "rebn"
    assert (found["train"].temperature, found["v"].temperature) == (None, 0.0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"advantage": "ppo"}, r"custom_envs\.t\.gem\.advantage: unknown estimator 'ppo'"),
        ({"advantag": "rebn"}, r"did you mean custom_envs\.t\.gem\.advantage"),
        ({"turn_tokens": "8"}, r"turn_tokens must be of type int"),
        ({"temperature": -1}, "temperature must be at least 0"),
        ({"seed": 3}, "requests to an engine carry no seed, got 3"),
        ({"context": "concat"}, "one row an episode.* got 'concat'"),
        ({"thinking": "drop"}, "one row an episode.* got 'drop'"),
    ],
)
def test_wrong_values_are_refused_by_name(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        GemSettings.of("t", {"gem": given})


@pytest.mark.parametrize("key", ["max_steps", "max_tokens_per_step", "agent_template"])
def test_keys_of_rolls_own_managers_are_refused(key: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"custom_envs\.t\.{key}: .*in its place: "):
        GemSettings.of("t", {key: 7, "gem": {}})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("advantage_clip", 5.0),
        ("whiten_advantages", True),
        ("whiten_rewards", True),
        ("reward_clip", 1.0),
        ("reward_normalization__norm_mean_type", "batch"),
        ("reward_normalization__norm_std_type", "group"),
        ("is_pure_opd", True),
        ("use_opd", True),
        ("add_token_level_kl", True),
        ("async_generation_ratio", 1),
        ("train_env_manager__group_size_redundancy", 1),
        ("train_env_manager__group_filter_cls", "mine.Filter"),
        ("train_env_manager__llm_proxy__proxy_type", "openai"),
        ("actor_infer__generating_args__stop_strings", ["</answer>"]),
        ("rollout_batch_size", 12),
        ("sequence_length", 40),
    ],
)
def test_what_gems_advantages_would_replace_or_ignore_is_refused(key: str, value: Any) -> None:
    with pytest.raises(ConfigurationError) as error:
        check_config(config(**{key: value}))
    said = str(error.value)
    assert said.startswith(f"{key.replace('__', '.')}: ")
    assert said.endswith(f"got {value!r}")


def test_the_critic_must_suit_the_estimator() -> None:
    given = config(adv_estimator="gae")
    with pytest.raises(ConfigurationError, match="rebn needs adv_estimator=reinforce"):
        check_config(given)
    given.custom_envs["train"]["gem"]["advantage"] = "gae"
    assert check_config(given)["train"].advantage == "gae"


def test_a_group_of_one_cannot_be_compared() -> None:
    given = config(train_env_manager__group_size=1)
    given.custom_envs["train"]["gem"]["advantage"] = "grpo"
    with pytest.raises(ConfigurationError, match=r"train_env_manager\.group_size must be at least"):
        check_config(given)


def test_rows_without_turns_are_refused() -> None:
    given = config()
    given.custom_envs["train"]["env_manager_cls"] = "roll.TrajEnvManager"
    with pytest.raises(ConfigurationError, match=r"env_manager_cls of custom_envs\.train: only"):
        check_config(given)


def test_another_manager_may_play_an_evaluation() -> None:
    given = config()
    given.custom_envs["v"]["env_manager_cls"] = "roll.TrajEnvManager"
    assert list(check_config(given)) == ["train"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("advantage", "reinforce"), ("whiten", True), ("info_metrics", "score")],
)
def test_training_environments_share_what_is_of_the_run(name: str, value: Any) -> None:
    given = config(train_env_manager__tags=["train", "v"])
    given.custom_envs["v"]["gem"][name] = value
    with pytest.raises(
        ConfigurationError, match=rf"^gem\.{name}: training environments of a run have"
    ):
        check_config(given)


def test_the_budget_is_what_sequence_length_leaves() -> None:
    found = GemSettings(prompt_tokens=40, turns=3).budget(config())
    assert (found.prompt_tokens, found.response_tokens) == (40, 60)
    assert (found.turn_tokens, found.turns) == (8, 3)
    found = GemSettings(prompt_tokens=40, response_tokens=20, turn_tokens=5).budget(config())
    assert (found.response_tokens, found.turn_tokens) == (20, 5)

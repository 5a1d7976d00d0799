"""The keys `+gem.*`, and the refusal of keys of RL2 that do not go with them."""

from __future__ import annotations

from typing import Any

import pytest

from gem.errors import ConfigurationError
from gem_rl2.settings import Settings, budget, check


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"advantage": "ppo"}, "unknown estimator 'ppo'"),
        ({"task_order": "random"}, "shuffled, file"),
        ({"prompt_tokens": 1}, "gem.prompt_tokens must be at least 2"),
        ({"response_tokens": 0}, "gem.response_tokens"),
        ({"turn_tokens": "8"}, "gem.turn_tokens must be of type int"),
        ({"request_timeout_s": 0}, "gem.request_timeout_s must be above 0"),
        ({"evaluate_from": 2}, "gem.evaluate_from must be at most 1"),
        ({"advantag": "rebn"}, "did you mean gem.advantage"),
    ],
)
def test_wrong_values_are_refused_by_name(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Settings.from_mapping(given)


def test_the_budget_is_what_the_rows_leave(world: Any) -> None:
    keys = world.keys("actor.max_length_per_device=400")
    found = budget(Settings(prompt_tokens=100, turns=3), keys)
    assert (found.prompt_tokens, found.response_tokens) == (100, 300)
    assert (found.turn_tokens, found.turns) == (300, 3)
    keys = world.keys(f"{world.PARAMS}.max_new_tokens=20")
    assert budget(Settings(prompt_tokens=100, turn_tokens=50), keys).turn_tokens == 20
    assert budget(Settings(prompt_tokens=100, response_tokens=50), keys).response_tokens == 50


def test_evaluations_may_have_turns_of_another_length(world: Any) -> None:
    settings = Settings(prompt_tokens=100)
    limit = f"{world.PARAMS}.max_new_tokens=20"
    for given, most in (([], 20), (["rollout.test_sampling_params.max_new_tokens=60"], 60)):
        keys = world.keys(limit, *given)
        assert budget(settings, keys).turn_tokens == 20
        assert budget(settings, keys, evaluation=True).turn_tokens == most


def test_a_critic_that_takes_less_shortens_the_rows(world: Any) -> None:
    keys = world.keys("adv.estimator=gae", "critic.max_length_per_device=300")
    assert keys.longest == 300


@pytest.mark.parametrize("settings", [{"prompt_tokens": 500}, {"response_tokens": 401}])
def test_rows_longer_than_rl2_takes_are_refused(world: Any, settings: dict[str, int]) -> None:
    check(Settings(prompt_tokens=100, response_tokens=400), world.keys())
    check(Settings(prompt_tokens=499), world.keys())
    with pytest.raises(ConfigurationError, match="actor.max_length_per_device allows 500"):
        check(Settings(**{"prompt_tokens": 100, **settings}), world.keys())
    keys = world.keys("actor.max_inference_length_per_device=400")
    with pytest.raises(ConfigurationError, match="max_inference_length_per_device allows 400"):
        check(Settings(**{"prompt_tokens": 100, **settings}), keys)


def test_a_missing_length_is_named(world: Any) -> None:
    with pytest.raises(ConfigurationError, match="actor.max_length_per_device is not set"):
        world.keys("actor.max_length_per_device=null")


def refusals(world: Any) -> list[tuple[list[str], dict[str, Any], str]]:
    kl = "actor.kl.coef=0.5"
    return [
        ([f"{world.FILTERING}=true"], {}, "dynamic_filtering: .* set it to false .*got True"),
        (["adv.estimator=gae", "critic.max_length_per_device=500"], {}, "adv.estimator=reinforce"),
        ([], {"advantage": "gae"}, "adv.estimator=gae, which creates the critic"),
        ([f"{world.TRAIN}.responses_per_prompt=1"], {"advantage": "grpo"}, "responses_per_prompt"),
        ([kl, "actor.kl.type=null"], {}, "actor.kl.type: with actor.kl.coef=0.5 .* got None"),
        (["adv.norm_var=true"], {}, "adv.norm_var: .*gem.advantage=rebn; set it to f"),
        (
            ["actor.update_per_rollout=3"],
            {"epochs": 2},
            "update_per_rollout: .*gem.epochs=2, got 3",
        ),
        (["adv.global_norm=true"], {}, "adv.global_norm"),
        ([], {"seed": 3}, r"gem.seed: .*\+rollout.server_args.random_seed.* got 3"),
        *(
            ([f"+rollout.{part}.{name}={value}"], {}, rf"^rollout.{part}.{name}: .*leave it out")
            for part in ("train_sampling_params", "test_sampling_params")
            for name, value in (
                ("stop_token_ids", "[5]"),
                ("skip_special_tokens", "false"),
                ("spaces_between_special_tokens", "true"),
            )
        ),
    ]


def test_keys_that_do_not_go_with_gem_are_refused_by_name(world: Any) -> None:
    base = {"prompt_tokens": 100, "advantage": "rebn"}
    check(Settings(**base), world.keys())
    for overrides, settings, said in refusals(world):
        with pytest.raises(ConfigurationError, match=said):
            check(Settings(**{**base, **settings}), world.keys(*overrides))


def test_filtering_without_groups_does_nothing_and_is_allowed(world: Any) -> None:
    alone = (f"{world.FILTERING}=true", f"{world.TRAIN}.responses_per_prompt=1")
    check(Settings(prompt_tokens=100, advantage="rebn"), world.keys(*alone))


def test_rl2s_own_estimators_keep_their_keys(world: Any) -> None:
    own = ("adv.norm_var=true", "adv.global_norm=true", "adv.responses_per_prompt=8")
    check(Settings(prompt_tokens=100), world.keys(*own))


def test_ranks_that_would_train_apart_are_refused(world: Any) -> None:
    settings = Settings(prompt_tokens=100)
    for ranks, copies, parallel in ((1, 1, 1), (2, 1, 1), (4, 2, 1), (2, 1, 2)):
        keys = world.keys(f"actor.ddp_size={copies}", f"actor.tp_size={parallel}")
        check(settings, keys, ranks)
    for ranks, copies, parallel in ((2, 2, 1), (8, 4, 2)):
        keys = world.keys(f"actor.ddp_size={copies}", f"actor.tp_size={parallel}")
        with pytest.raises(ConfigurationError, match=f"actor.ddp_size: on {ranks} ranks .*got"):
            check(settings, keys, ranks)


def test_models_that_do_not_exist_may_be_on_any_ranks(world: Any) -> None:
    check(Settings(prompt_tokens=100), world.keys("critic.ddp_size=2", "ref_actor.ddp_size=2"), 2)


def test_a_reference_whose_weights_reach_all_ranks_may_be_whole_on_each(world: Any) -> None:
    for own, ranks in (("offload_model=true", 2), ("offload_model=false", 4)):
        keys = world.keys("actor.kl.coef=0.5", "ref_actor.ddp_size=2", f"ref_actor.{own}")
        check(Settings(prompt_tokens=100), keys, ranks)

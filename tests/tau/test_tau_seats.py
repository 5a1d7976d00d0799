"""TAU-bench retail with the user as a second agent."""

from __future__ import annotations

from typing import Any

import pytest

import gem
from gem.errors import ConfigurationError
from gem.seat import Seat
from gem_check import check_env
from gem_check.playing import oracle_policy, play
from gem_tau.data import Call, tasks
from gem_tau.oracle import proposal, tool_call
from gem_tau.seats import RetailSeats


def scripted(game: RetailSeats, observations: Any) -> dict[str, str]:
    return {agent: game.best_response(agent, "scripted") for agent in observations}


@pytest.mark.parametrize("params", [{}, {"generated": True}, {"seat": "agent"}, {"seat": "user"}])
def test_it_passes_every_check(params: dict[str, Any]) -> None:
    report = check_env("tau:RetailSeats-v2", episodes=12, cpu_s=0.3, **params)
    assert report.passed and not report.warnings, str(report)
    passed = {result.name for result in report.results if result.status == "passed"}
    assert {"agents", "secrets", "oracle", "random", "degenerate"} <= passed


@pytest.mark.parametrize("seat", ["agent", "user"])
def test_the_scripts_win_every_task_from_either_seat(seat: str) -> None:
    env = gem.make("tau:RetailSeats-v2", seat=seat)
    seen = set()
    for number in range(114):
        episode = play(env, oracle_policy, 40, 0 if number == 0 else None)
        assert episode.success, number
        game: Any = env.unwrapped
        seen.add(game.game.retail.task.id)
    assert len(seen) == 114


def test_against_the_scripted_user_it_is_the_environment_with_that_user() -> None:
    alone = gem.make("tau:Retail-v2")
    seat = gem.make("tau:RetailSeats-v2", seat="agent")
    for seed in range(10):
        one = play(alone, oracle_policy, 40, seed)
        other = play(seat, oracle_policy, 40, seed)
        assert one.actions == other.actions
        assert one.observations == other.observations


def test_the_user_hears_messages_and_never_calls() -> None:
    game = RetailSeats()
    observations, _ = game.reset(seed=0)
    heard = []
    while observations:
        actions = scripted(game, observations)
        heard += [seen for agent, seen in observations.items() if agent == "user"]
        observations, rewards, *_ = game.step(actions)
    assert rewards == {"agent": 1.0, "user": 1.0}
    assert not any("tool_call" in str(each) or "payment_history" in str(each) for each in heard)


def test_a_user_who_never_consents_gets_nothing_done() -> None:
    def refuses(game: Any, agent: str, observation: Any, rng: Any) -> str:
        said: str = game.oracle_action(agent)
        return "No." if said.startswith("Yes") else said

    env = Seat(RetailSeats(max_turns=15), "agent", refuses)
    episode = play(env, oracle_policy, 40, 0)
    info = episode.steps[-1][4]
    assert (info["writes"], episode.success, episode.steps[-1][3]) == (0, False, True)


def test_a_write_without_consent_is_a_violation_and_counts_all_the_same() -> None:
    game = RetailSeats()
    seed = next(n for n in range(99) if game.reset(n) and len(game.retail.gold.writes) == 1)
    game.reset(seed=seed)
    [write] = game.retail.gold.writes
    game.step({"user": "Hello"})
    game.step({"agent": proposal(write)})
    game.step({"user": "No."})
    step = game.step({"agent": tool_call(write)})
    assert step.infos["agent"]["policy_violations"] == 1
    game.step({"agent": "Done."})
    step = game.step({"user": "###STOP###"})
    assert step.terminated and step.rewards == {"agent": 1.0, "user": 1.0}


def test_a_user_that_leaves_at_once_ends_the_match() -> None:
    game = RetailSeats()
    game.reset(seed=0)
    step = game.step({"user": "###OUT-OF-SCOPE###"})
    assert step.terminated and step.rewards == {"agent": 0.0, "user": 0.0}


def test_who_was_not_asked_cannot_act() -> None:
    game = RetailSeats()
    game.reset(seed=0)
    with pytest.raises(ConfigurationError, match="asked others"):
        game.step({"agent": "Hello"})
    game.step({"user": "Hello"})
    step = game.step({"agent": tool_call(Call("list_all_product_types", {}))})
    assert list(step.observations) == ["agent"]
    with pytest.raises(ConfigurationError, match="asked others"):
        game.step({"agent": "Hello", "user": "Hello"})


def test_the_user_is_told_its_scenario() -> None:
    game = RetailSeats()
    observations, _ = game.reset(seed=0)
    told = str(observations["user"])
    task = game.retail.task
    assert task in tasks(None)
    assert task.reason in told and task.known in told and "Hi! How can I help you today?" in told

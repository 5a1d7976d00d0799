"""Environments of several agents: the interface, seats, seeds, executors, the checks."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest

import gem
from gem.envs.games.base import boxed
from gem.envs.multi.boards import TicTacToe
from gem.envs.multi.matrix import RockPaperScissors
from gem.envs.multi.poker import KuhnPoker
from gem.errors import (
    ConfigurationError,
    ContractError,
    ResetNeededError,
    UnknownParameterError,
)
from gem.executors.named import shared_executor
from gem.executors.recipe import Recipe
from gem.multi import MultiAgentEnv, MultiStep, check_multi_reset, check_multi_step, make_multi
from gem.replay import difference
from gem.seat import Seat
from gem.tasks import Task, TaskSet
from gem_check import check_env
from gem_check.other_process import OtherProcess
from gem_check.playing import oracle_policy, play, random_policy, recorded

IDS = gem.list_envs("multi:")


def failures(report: Any) -> dict[str, str]:
    return {each.name: each.detail for each in report.failures}


def told(env: gem.Env, seed: int, policy: Any = random_policy) -> list[Any]:
    episode = play(env, policy, 200, seed)
    return [episode.first, *episode.actions, *episode.steps]


@pytest.fixture(scope="module")
def other() -> Any:
    with OtherProcess() as process:
        yield process


@pytest.mark.parametrize("env_id", IDS)
def test_every_game_passes_every_check(env_id: str, other: OtherProcess) -> None:
    report = check_env(env_id, cpu_s=0.1, other=other)
    assert failures(report) == {}
    passed = {result.name for result in report.results if result.status == "passed"}
    assert {"agents", "secrets", "oracle", "random", "degenerate", "processes"} <= passed


@pytest.mark.parametrize("params", [{"seat": "o", "opponent": "oracle"}, {"on_illegal": "retry:2"}])
def test_parameters_of_the_seat_do_not_change_that(
    params: dict[str, Any], other: OtherProcess
) -> None:
    assert failures(check_env("multi:TicTacToe-v0", other=other, **params)) == {}


def test_a_seat_is_an_env_by_id_uri_and_spec() -> None:
    env = gem.make("multi:TicTacToe-v0", seat="o", opponent="oracle")
    assert isinstance(env, Seat)
    observation, info = env.reset(seed=0)
    assert "as o against x" in str(observation)
    assert info == {"seat": "o"}
    again = gem.make(env.spec)
    assert again.reset(seed=0)[0] == observation
    assert gem.spec(json.loads(json.dumps(env.spec.to_dict()))) == env.spec
    [task] = TaskSet.parse("gem:multi:TicTacToe-v0?seat=o&opponent=oracle")
    assert task.make().reset(seed=0)[0] == observation


def test_wrong_parameters_are_named() -> None:
    with pytest.raises(UnknownParameterError, match="no parameter 'seats'.*on_illegal.*seat"):
        gem.make("multi:TicTacToe-v0", seats="x")
    with pytest.raises(ConfigurationError, match="seat must be one of 'x', 'o', 'alternate'"):
        gem.make("multi:TicTacToe-v0", seat="y")
    with pytest.raises(ConfigurationError, match="opponent must be one of 'random', 'oracle'"):
        gem.make("multi:TicTacToe-v0", opponent="minimax")
    with pytest.raises(ConfigurationError, match="on_illegal must be .*got 'retry:0'"):
        gem.make("multi:TicTacToe-v0", on_illegal="retry:0")
    with pytest.raises(ConfigurationError, match="game:Wordle-v0 is no game of several agents"):
        make_multi("game:Wordle-v0")
    with pytest.raises(UnknownParameterError, match="no option 'idx'"):
        gem.make("multi:Nim-v0").reset(seed=0, idx=3)
    with pytest.raises(ConfigurationError, match=r"opponents must be given for \['o'\]"):
        Seat(TicTacToe(), "x", {"y": "random"})


def test_seats_alternate_with_the_seed_and_the_episode() -> None:
    env = gem.make("multi:TicTacToe-v0")
    seats = [env.reset(seed=seed)[1]["seat"] for seed in range(4)]
    assert seats == ["x", "o", "x", "o"]
    env.reset(seed=6)
    assert [env.reset()[1]["seat"] for _ in range(3)] == ["o", "x", "o"]


@pytest.mark.parametrize("env_id", IDS)
@pytest.mark.parametrize("opponent", ["random", "oracle"])
def test_the_seed_and_the_actions_give_the_same_match(env_id: str, opponent: str) -> None:
    env = gem.make(env_id, opponent=opponent)
    for seed in range(4):
        expected = told(env, seed)
        assert told(gem.make(env_id, opponent=opponent), seed) == expected
    draws = {json.dumps(told(env, seed), default=str) for seed in range(12)}
    assert len(draws) > 2


def test_random_actions_of_the_seat_do_not_change_the_opponents() -> None:
    one, two = (gem.make("multi:Nim-v0", seat="first", piles=[5, 5, 5]) for _ in range(2))
    one.reset(seed=1)
    two.reset(seed=1)
    for _ in range(7):
        two.sample_random_action()
    assert one.step("\\boxed{1 1}") == two.step("\\boxed{1 1}")


def test_a_seat_has_the_match_of_the_game_itself() -> None:
    game = make_multi("multi:LeducPoker-v0")
    seat = Seat(KuhnPoker(), "first")
    for seed in range(5):
        game.reset(seed=seed)
        env = gem.make("multi:LeducPoker-v0", seat="second")
        env.reset(seed=seed)
        assert env.unwrapped.game.cards == game.cards
    seat.reset(seed=3)
    seat.reset()
    game = KuhnPoker()
    game.reset(seed=3)
    game.reset()
    assert seat.game.cards == game.cards


def test_opponents_can_be_functions_and_differ_by_agent() -> None:
    seen: list[Any] = []

    def last_cell(game: MultiAgentEnv, agent: str, observation: Any, rng: Random) -> str:
        seen.append((agent, observation))
        return boxed(max(game._legal(agent), key=int))  # type: ignore[attr-defined]

    env = Seat(TicTacToe(), "x", {"o": last_cell})
    env.reset(seed=0)
    observation, *_ = env.step(boxed(1))
    assert "o plays 9." in str(observation)
    assert seen[0][0] == "o"
    assert "x plays 1." in seen[0][1]


@pytest.mark.parametrize("executor", ["thread", "process:1"])
def test_seats_run_in_executors_as_they_do_here(executor: str) -> None:
    import asyncio

    from gem.executors.asynchronous import AsyncEnv

    params = {"seat": "second", "opponent": "oracle"}
    here = gem.make("multi:KuhnPoker-v0", **params)

    async def there() -> list[Any]:
        env = AsyncEnv(Task("multi:KuhnPoker-v0", 5, params), 60, shared_executor(executor))
        try:
            return [await env.reset(5), await env.step("\\boxed{fold}")]
        finally:
            await env.aclose()

    first, step = asyncio.run(there())
    assert tuple(first) == here.reset(seed=5)
    assert tuple(step) == here.step("\\boxed{fold}")


def test_a_recorded_episode_replays() -> None:
    task = Task("multi:LeducPoker-v0", 4, {"opponent": "oracle"})
    episode = play(task.make(), random_policy, 50, task.seed)
    assert difference(recorded(episode, task)) is None
    episode.steps[-1] = (episode.steps[-1][0], 0.123, *episode.steps[-1][2:])
    assert "reward" in str(difference(recorded(episode, task)))


def test_a_recipe_knows_ids_that_user_code_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    gem.list_envs()
    from gem import registry

    monkeypatch.setattr(registry, "_registry", dict(registry._registry))
    gem.register("mine:Toe-v0", TicTacToe, on_illegal="random", seat="o")
    parts = Recipe("mine:Toe-v0").to_dict()
    assert parts["registered"][0] == "gem.envs.multi.boards:TicTacToe"
    env = Recipe.from_dict(parts).make()
    assert isinstance(env, Seat)
    assert env.game.on_illegal == "random"
    game = make_multi("mine:Toe-v0")
    assert isinstance(game, TicTacToe)
    assert game.spec is not None
    assert gem.make(game.spec).reset(seed=0)[1] == {"seat": "o"}


@pytest.mark.parametrize("env_id", IDS)
def test_copies_of_a_seat_continue_bit_for_bit(env_id: str) -> None:
    env = gem.make(env_id, opponent="random")
    env.reset(seed=1)
    copies = [env.spawn(same_state=True), pickle.loads(pickle.dumps(env)), gem.make(env_id)]
    copies[2] = gem.make(env_id, opponent="random")
    copies[2].restore(env.snapshot())
    action = env.sample_random_action()
    expected = env.step(action), env.reset()
    assert [(copy.step(action), copy.reset()) for copy in copies] == [expected] * 3
    fresh = env.spawn(seed=4)
    with pytest.raises(ResetNeededError):
        fresh.step(action)
    assert fresh.reset(seed=1) == gem.make(env_id, opponent="random").reset(seed=1)


def test_acting_out_of_turn_is_an_error_and_changes_nothing() -> None:
    game = TicTacToe()
    with pytest.raises(ResetNeededError):
        game.step({"x": boxed(1)})
    observations, infos = game.reset(seed=0)
    assert list(observations) == ["x"]
    assert set(infos) == {"x", "o"}
    before = game.snapshot()
    for wrong, message in (
        ({}, "needs actions of x, got those of nobody"),
        ({"o": boxed(1)}, "needs actions of x, got those of o"),
        ({"x": boxed(1), "o": boxed(2)}, "asked others"),
        ({"x": boxed(1), "z": boxed(2)}, "has no agent 'z'"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            game.step(wrong)
    with pytest.raises(TypeError, match="action must be a str"):
        game.step({"x": 1})  # type: ignore[dict-item]
    assert game.snapshot() == before
    both = RockPaperScissors()
    both.reset(seed=0)
    with pytest.raises(ConfigurationError, match="needs actions of row, column"):
        both.step({"row": boxed("rock")})


def test_an_illegal_move_loses_and_the_other_gets_nothing() -> None:
    for text, flag in (("I resign", "format_error"), (boxed(5), "invalid_action")):
        game = TicTacToe()
        game.reset(seed=0)
        game.step({"x": boxed(5)})
        step = game.step({"o": text})
        assert step.observations == {}
        assert (step.terminated, step.truncated) == (True, False)
        assert step.rewards == {"x": 0.0, "o": -1.0}
        assert step.infos["o"][flag] is True
        assert step.infos["x"]["success"] is step.infos["o"]["success"] is False
        assert "o made no legal move" in step.infos["x"]["result"]


def test_illegal_moves_can_be_tried_again_and_then_lose() -> None:
    game = TicTacToe(on_illegal="retry:2")
    game.reset(seed=0)
    for left in (2, 1):
        step = game.step({"x": boxed(0)})
        assert list(step.observations) == ["x"]
        assert f"You may try {left} more time(s)" in str(step.observations["x"])
    step = game.step({"x": boxed(1)})
    assert list(step.observations) == ["o"]
    for _ in range(2):
        assert game.step({"o": boxed(1)}).observations
    assert game.step({"o": boxed(1)}).rewards == {"x": 0.0, "o": -1.0}


def test_in_simultaneous_games_only_who_erred_is_asked_again() -> None:
    game = RockPaperScissors(rounds=1, on_illegal="retry:1")
    game.reset(seed=0)
    step = game.step({"row": boxed("rock"), "column": "hm"})
    assert list(step.observations) == ["column"]
    assert "rock, " not in str(step.observations["column"]).split("Legal moves")[0]
    step = game.step({"column": boxed("scissors")})
    assert step.rewards == {"row": 1.0, "column": -1.0}
    game = RockPaperScissors()
    game.reset(seed=0)
    assert game.step({"row": "", "column": ""}).rewards == {"row": -1.0, "column": -1.0}


def test_a_random_move_can_replace_an_illegal_one() -> None:
    game = TicTacToe(on_illegal="random")
    game.reset(seed=0)
    step = game.step({"x": "hm"})
    assert list(step.observations) == ["o"]
    assert step.infos["x"]["format_error"] is True
    assert game.stones["x"].bit_count() == 1
    again = TicTacToe(on_illegal="random")
    again.reset(seed=0)
    assert again.step({"x": "hm"}) == step


def test_flags_of_an_illegal_move_reach_the_seat_that_made_it() -> None:
    env = Seat(TicTacToe(on_illegal="random"), "x")
    env.reset(seed=0)
    assert env.step("hm")[4]["format_error"] is True
    assert env.step(env.sample_random_action())[4]["format_error"] is False


class Duel(MultiAgentEnv):
    """Two agents with a secret each take turns, twice; faults can be built in."""

    agents = ("a", "b")
    fault = ""

    def __init__(self) -> None:
        super().__init__()
        self.turn = 9

    def reset(self, seed: int | None = None) -> Any:
        self.begin_episode(seed)
        self.secrets = {agent: self.rng.randint(1, 3) for agent in self.agents}
        self.turn, self.words = 0, ""
        return {"a": self.seen("a")}, {"a": {}, "b": {}}

    def seen(self, agent: str) -> str:
        shown = f"Your number: {self.secrets[agent]}. Say \\boxed{{1}}."
        if self.fault == "always" or (self.fault == "at first" and not self.turn):
            shown += f" {self.secrets}"
        if self.fault == "words":
            shown += self.words
        return shown

    def step(self, actions: Mapping[str, str]) -> MultiStep:
        if self.turn > 3:
            raise ResetNeededError("over")
        agent = self.agents[self.turn % 2]
        if set(actions) != {agent} and self.fault != "lax":
            raise ConfigurationError(f"{agent} is to act")
        self.words = "".join(actions.values())
        self.turn += 1
        rewards = {"a": 0.0, "b": 0.0}
        if self.turn > 3:
            rewards = {"a": 1.0, "b": 1.0 if self.fault == "sum" else -1.0}
            return MultiStep({}, rewards, True, False, {"a": {}, "b": {}})
        if self.fault == "nobody":
            return MultiStep({}, rewards, False, False, {"a": {}, "b": {}})
        if self.fault == "rewards":
            del rewards["b"]
        agent = self.agents[self.turn % 2]
        return MultiStep({agent: self.seen(agent)}, rewards, False, False, {"a": {}, "b": {}})

    def sample_random_action(self, agent: str, rng: Random | None = None) -> str:
        return boxed((rng or self.action_rng).randint(1, 3))

    def oracle_action(self, agent: str, rng: Random | None = None) -> str:
        knows = self.fault == "oracle" and agent == "b"
        return boxed(self.secrets["a"] if knows else 1)

    def resample(self, agent: str, rng: Random) -> bool:
        other = "b" if agent == "a" else "a"
        self.secrets[other] = rng.randint(1, 3)
        return True

    def render(self, agent: str) -> str:
        return str(self.secrets if self.fault == "render" else self.secrets[agent])

    def _forget(self) -> None:
        self.turn = 9


class Zero(Duel):
    """A zero-sum duel without a fault."""

    zero_sum = True


@pytest.mark.parametrize(
    ("fault", "check", "message"),
    [
        ("always", "secrets", "sees what is hidden from it|shown more at first"),
        ("at first", "secrets", "a is shown more at first"),
        ("words", "secrets", "shown the words of"),
        ("oracle", "secrets", "oracle of b knows"),
        ("render", "secrets", "render.* shows what is hidden"),
        ("lax", "agents", "must raise ConfigurationError, it went on"),
        ("sum", "agents", "zero_sum, yet .* add up to 2"),
        ("nobody", "startup", "observations until the match is over"),
        ("rewards", "startup", "rewards must have exactly the agents"),
    ],
)
def test_the_checker_catches_each_fault(fault: str, check: str, message: str) -> None:
    import re

    faulty = type("Faulty", (Zero,), {"fault": fault, "__module__": __name__})
    globals()["Faulty"] = faulty  # pickles name it
    faulty.__qualname__ = "Faulty"
    report = check_env(faulty, only=["agents", "secrets"])
    assert re.search(message, failures(report)[check])


def test_the_checker_passes_a_duel_without_a_fault() -> None:
    report = check_env(Zero, only=["agents", "secrets", "startup"])
    assert [each.status for each in report.results] == ["passed"] * 3
    assert "64 first ones" in report.results[-1].detail


class Clueless(Zero):
    """A duel without an oracle and without `resample`."""

    def oracle_action(self, agent: str, rng: Random | None = None) -> str:
        raise NotImplementedError

    def resample(self, agent: str, rng: Random) -> bool:
        raise NotImplementedError


def test_what_a_game_lacks_is_named() -> None:
    report = check_env(Clueless, cpu_s=0.05)
    skipped = {each.name: each.detail for each in report.results if each.status == "skipped"}
    assert {"oracle", "random", "degenerate", "secrets"} <= set(skipped)
    assert skipped["random"] == "no oracle_action() to compare with"
    assert skipped["secrets"] == "needs resample()"
    agents = next(each for each in report.results if each.name == "agents")
    assert (agents.status, agents.detail[-9:]) == ("passed", "no oracle")


def test_results_that_break_the_contract_are_refused() -> None:
    game = Zero()
    for result, message in (
        (None, "must return .observations, infos."),
        (({}, {"a": {}, "b": {}}), "observations of those who are to move"),
        (({"a": "x"}, {"a": {}}), "infos must have exactly the agents"),
        (({"c": "x"}, {"a": {}, "b": {}}), "unknown agents"),
        (({"a": 3}, {"a": {}, "b": {}}), "must return text"),
    ):
        with pytest.raises(ContractError, match=message):
            check_multi_reset(game, result)
    good = MultiStep({"a": "x"}, {"a": 0, "b": 1.0}, False, False, {"a": {}, "b": {}})
    assert check_multi_step(game, good).rewards == {"a": 0.0, "b": 1.0}
    for change, message in (
        ({"rewards": {"a": float("nan"), "b": 0.0}}, "finite"),
        ({"terminated": True}, "until the match is over"),
        ({"observations": {"c": "x"}}, "unknown agents"),
        ({"infos": {"a": {"result": 3}, "b": {}}}, "must return text"),
    ):
        with pytest.raises(ContractError, match=message):
            check_multi_step(game, good._replace(**change))
    with pytest.raises(ContractError, match="MultiStep"):
        check_multi_step(game, tuple(good))


def test_a_game_may_use_its_dicts_again() -> None:
    game = Zero()
    seen, rewards, infos = {"b": "x"}, {"a": 1.0, "b": -1.0}, {"a": {"success": True}, "b": {}}
    told = check_multi_reset(game, (seen, infos))
    step = check_multi_step(game, MultiStep(seen, rewards, False, False, infos))
    for each in (seen, rewards, *infos.values()):
        each.clear()
    kept = {"b": "x"}, {"a": {"success": True}, "b": {}}
    assert told == kept
    assert step == MultiStep(kept[0], {"a": 1.0, "b": -1.0}, False, False, kept[1])


class Early(Duel):
    """Ends at the first action of a."""

    def step(self, actions: Mapping[str, str]) -> MultiStep:
        zeros = {"a": 0.0, "b": 0.0}
        return MultiStep({}, zeros, True, False, {"a": {}, "b": {}})


def test_a_seat_without_any_turn_is_said_so() -> None:
    with pytest.raises(ContractError, match="ended 100 times before b had a turn"):
        Seat(Early(), "b").reset(seed=0)


def test_a_match_that_ends_before_the_seats_turn_is_replaced_by_another() -> None:
    class Sometimes(Early):
        def step(self, actions: Mapping[str, str]) -> MultiStep:
            step = super().step(actions)
            if self.secrets["a"] == 1 or "b" in actions:
                return step
            return step._replace(observations={"b": self.seen("b")}, terminated=False)

    for seed in range(12):
        game, env = Sometimes(), Seat(Sometimes(), "b")
        game.reset(seed=seed)
        observation, _ = env.reset(seed=seed)
        assert env.game.secrets["a"] != 1
        if game.secrets["a"] != 1:
            assert env.game.secrets == game.secrets
        assert Seat(Sometimes(), "b").reset(seed=seed)[0] == observation


def test_the_commands_know_games_of_several_agents(capsys: pytest.CaptureFixture[str]) -> None:
    from gem.__main__ import main

    assert main(["info", "multi:KuhnPoker-v0"]) == 0
    out = capsys.readouterr().out
    assert "seat: str = 'alternate'\n      Name of the agent to play" in out
    assert "oracle: best known play against random" in out
    assert main(["play", "multi:TicTacToe-v0", "--policy", "oracle", "--seed", "0"]) == 0
    assert "won after" in capsys.readouterr().out


def test_the_oracle_of_a_seat_is_the_same_for_every_copy() -> None:
    for env_id in IDS:
        env = gem.make(env_id)
        assert told(env, 2, oracle_policy) == told(gem.make(env_id), 2, oracle_policy)

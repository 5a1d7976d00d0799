"""Opponents of a seat: models behind servers, and pools."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from chat_server import Answer, Stub, refused, said
from echo import BUDGET

import gem
from gem.blame import cause_of
from gem.errors import ConfigurationError, ResetNeededError, UnreachableError
from gem.replay import difference
from gem.rollout import ChatFormat, Sample, play
from gem.tasks import Task
from gem.trajectory import Trajectory
from gem_train.experiment.metrics import PART, episode_metrics
from gem_train.preflight import check

NIM = {"piles": [2, 2], "seat": "second"}


class Says:
    """A sampler that says texts in order."""

    def __init__(self, tokenizer: Any, *texts: str) -> None:
        self.tokenizer, self.texts, self.asked = tokenizer, texts, 0

    async def __call__(self, request: Any) -> Sample:
        text, closing = self.texts[self.asked], "<|im_end|>"
        self.asked += 1
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        return Sample([*ids, self.tokenizer.convert_tokens_to_ids(closing)], None, "stop")


@pytest.fixture
def server() -> Iterator[Stub]:
    stub = Stub()
    stub.serves("test", 4096)
    yield stub
    stub.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gem.fetching._PAUSE_S", 0.0)


def moves(*texts: str) -> Any:
    """Answers by the length of the conversation."""
    return lambda number, body: said(texts[len(body["messages"]) // 2])


def played(tokenizer: Any, params: dict[str, Any], *texts: str, seed: int = 1) -> Trajectory:
    task = Task("multi:Nim-v0", seed, params)
    sampler = Says(tokenizer, *texts)
    return asyncio.run(play(task, sampler, ChatFormat(tokenizer), budget=BUDGET))


def test_a_model_plays_in_a_conversation_of_its_own(
    server: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    server.answer = moves("<think>\\boxed{1 2}</think>One. \\boxed{1 1}", "\\boxed{2 1}")
    env = gem.make("multi:Nim-v0", opponent=server.url, **NIM)
    assert not env.replayable
    assert "takes 1 from pile 1." in str(env.reset(seed=0)[0])
    step = env.step("I know it all \\boxed{1 1}")
    assert step[4]["opponent_said"] == '["One. \\\\boxed{1 1}", "\\\\boxed{2 1}"]'
    assert env.step("\\boxed{2 1}")[1] == 1.0
    first, second = server.requests
    assert first["model"] == "m" and set(first) == {"model", "messages"}
    assert server.keys == ["Bearer secret"] * 2
    opening, own, later = second["messages"]
    assert [opening] == first["messages"] and "as first against second" in opening["content"]
    assert own == {"role": "assistant", "content": "One. \\boxed{1 1}"}
    assert later["role"] == "user" and "second takes 1 from pile 1." in later["content"]
    assert "I know" not in later["content"]
    env.reset(seed=0)
    assert server.requests[2]["messages"] == first["messages"]


def test_the_address_says_how_the_model_is_asked(
    server: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_KEY", "other")
    server.answer = moves("\\boxed{1 1}")
    query = "?model=a/b&temperature=0.5&max_tokens=64&top_p=1&timeout_s=9&api_key_env=THE_KEY"
    gem.make("multi:Nim-v0", opponent=server.url + query, **NIM).reset(seed=0)
    [body] = server.requests
    messages = body.pop("messages")
    assert len(messages) == 1
    assert body == {"model": "a/b", "temperature": 0.5, "max_tokens": 64, "top_p": 1.0}
    assert server.keys == ["Bearer other"]


@pytest.mark.parametrize(
    "address",
    [
        "ftp://host/v1",
        "http://",
        "http://host:port/v1",
        "http://host:70000/v1",
        "http://[::1/v1",
        "http://name:password@host/v1",
        "http://host/v1#part",
        "http://host/v1?modle=m",
        "http://host/v1?model=m&model=n",
        "http://host/v1?temperature=hot",
        "http://host/v1?max_tokens=0",
        "http://host/v1?timeout_s=-1",
    ],
)
def test_a_malformed_address_is_refused_before_anything_is_asked(address: str) -> None:
    with pytest.raises(ConfigurationError, match=r"http|temperature|max_tokens|timeout_s"):
        gem.make("multi:Nim-v0", opponent=address)


def test_what_a_model_does_not_say_is_a_move_that_cannot_be_read(server: Stub) -> None:
    server.answer = moves("\\boxed{1 1}", "<think> \\boxed{2 1}")
    env = gem.make("multi:Nim-v0", opponent=server.url, **NIM)
    env.reset(seed=0)
    _, reward, terminated, _, info = env.step("\\boxed{1 1}")
    assert (reward, terminated, info["success"]) == (0.0, True, False)


@pytest.mark.parametrize("answer", [refused(500, "gone"), Answer("{}", cut=True), Answer("{}")])
def test_a_server_that_fails_voids_the_episode(
    server: Stub, small_tokenizer: Any, answer: Answer
) -> None:
    server.answer = lambda number, body: said("\\boxed{1 1}") if number == 1 else answer
    env = gem.make("multi:Nim-v0", opponent=server.url, **NIM)
    env.reset(seed=0)
    with pytest.raises(UnreachableError, match="the model 'm' at http") as raised:
        env.step("\\boxed{1 1}")
    assert cause_of(raised.value) == "tool" and len(server.requests) == 4
    with pytest.raises(ResetNeededError):
        env.step("\\boxed{1 1}")


def test_a_server_that_closes_in_the_middle_of_a_rollout_voids_it(
    server: Stub, small_tokenizer: Any
) -> None:
    server.answer = moves("\\boxed{1 1}", "\\boxed{2 1}")

    class Closing(Says):
        async def __call__(self, request: Any) -> Any:
            if not self.asked:
                await asyncio.to_thread(server.close)
            return await super().__call__(request)

    task = Task("multi:Nim-v0", 1, {**NIM, "opponent": server.url})
    chat = ChatFormat(small_tokenizer)
    found = asyncio.run(play(task, Closing(small_tokenizer, "\\boxed{1 1}"), chat, budget=BUDGET))
    assert found.failure is not None and found.failure.cause == "tool"
    metrics = episode_metrics([found])
    assert metrics["failed_tool"] == 1 and "return_mean" not in metrics
    server.close = lambda: None  # type: ignore[method-assign]


def test_a_recorded_episode_replays_without_the_server(server: Stub, small_tokenizer: Any) -> None:
    server.answer = moves("\\boxed{1 1}", "\\boxed{2 1}")
    params = {**NIM, "opponent": server.url}
    found = played(small_tokenizer, params, "\\boxed{1 1}", "\\boxed{2 1}")
    asked = len(server.requests)
    again = Trajectory.from_dict(found.to_dict())
    assert difference(again) is None and len(server.requests) == asked == 2
    again.turns[0].info["opponent_said"] = '["\\\\boxed{1 1}", "\\\\boxed{2 2}"]'
    assert "reward" in str(difference(again)) or "observation" in str(difference(again))


def test_a_snapshot_has_the_conversation(server: Stub) -> None:
    server.answer = moves("\\boxed{1 1}", "\\boxed{2 1}")
    env = gem.make("multi:Nim-v0", opponent=server.url, **NIM)
    env.reset(seed=0)
    forked = env.spawn(same_state=True)
    assert env.step("\\boxed{1 1}") == forked.step("\\boxed{1 1}")
    assert server.requests[1] == server.requests[2]


POOL = "random:3,oracle:1"


def test_who_of_a_pool_plays_is_drawn_by_the_episode_s_seed() -> None:
    env = gem.make("multi:Nim-v0", opponent=POOL)
    drawn = [env.reset(seed=seed)[1]["opponent"] for seed in range(400)]
    assert drawn == [env.reset(seed=seed)[1]["opponent"] for seed in range(400)]
    assert 0.68 < drawn.count("random") / 400 < 0.82
    assert set(drawn) == {"random", "oracle"}
    for seed in (drawn.index("oracle"), drawn.index("random")):
        alone = gem.make("multi:Nim-v0", opponent=drawn[seed])
        observation, _ = alone.reset(seed=seed)
        assert env.reset(seed=seed)[0] == observation
        over = False
        while not over:
            action = alone.oracle_action()
            assert env.oracle_action() == action
            *expected, info = alone.step(action)
            assert env.step(action) == (*expected, {**info, "opponent": drawn[seed]})
            over = expected[2] or expected[3]


def test_a_snapshot_has_who_was_drawn() -> None:
    env = gem.make("multi:Nim-v0", opponent=POOL)
    found = {env.reset(seed=seed)[1]["opponent"]: env.snapshot() for seed in range(20)}
    for name, state in found.items():
        env.restore(state)
        assert env.unwrapped.opponent == name


def test_the_policy_plays_itself_in_its_share_of_a_pool(small_tokenizer: Any) -> None:
    played_by: dict[str, int] = {}
    for seed in range(30):
        params = {**NIM, "seat": "first", "opponent": "self:1,random:1"}
        moves = ("\\boxed{1 1}", "\\boxed{1 1}", "\\boxed{2 1}", "\\boxed{2 1}")
        trajectory = played(small_tokenizer, params, *moves, seed=seed)
        name = trajectory.task.params["opponent"]
        assert trajectory.valid
        assert (trajectory.match is not None) == (name == "self")
        assert name == "self" or difference(trajectory) is None
        played_by[name] = played_by.get(name, 0) + 1
    assert set(played_by) == {"self", "random"}


def test_metrics_of_each_opponent_are_those_of_the_episodes_against_it(
    small_tokenizer: Any,
) -> None:
    chat, rock = ChatFormat(small_tokenizer), ["\\boxed{rock}"] * 4

    def metrics(opponent: str) -> dict[str, float]:
        shown = {"rounds": 2, "seat": "row", "opponent": opponent}
        tasks = [Task("multi:RockPaperScissors-v0", seed, shown) for seed in range(16)]
        samplers = [Says(small_tokenizer, *rock) for _ in tasks]
        plays = [play(*each, chat, budget=BUDGET) for each in zip(tasks, samplers, strict=True)]
        return episode_metrics([asyncio.run(each) for each in plays])

    # A policy that always says the same draws against itself.
    found = metrics("self:0.5,random:0.5")
    assert found["opponent/self/share"] + found["opponent/random/share"] == 1
    assert found["opponent/self/return_mean"] == 0
    shares = [found[f"opponent/{who}/share"] for who in ("self", "random")]
    returns = [found[f"opponent/{who}/return_mean"] for who in ("self", "random")]
    mean = sum(share * each for share, each in zip(shares, returns, strict=True))
    assert mean == pytest.approx(found["return_mean"]) and returns[1] != 0
    match = PART.fullmatch("opponent/self/share")
    assert match is not None and match["name"] == "opponent/self"
    assert not any(name.startswith("opponent/") for name in metrics("random"))


def test_a_server_of_a_pool_is_asked_in_its_episodes_only(server: Stub) -> None:
    env = gem.make("multi:Nim-v0", **NIM, opponent=f"random:1,{server.url}:1")
    server.answer = lambda number, body: said("\\boxed{1 1}")
    names = []
    for seed in range(20):
        asked = len(server.requests)
        names.append(env.reset(seed=seed)[1]["opponent"])
        assert (len(server.requests) > asked) == (names[-1] == server.url)
    assert len(set(names)) == 2


@pytest.mark.parametrize(
    "pool",
    [
        "random:1,",
        "random:0,oracle:1",
        "random:1,http://127.0.0.1:8000",
        "random:-1,oracle:1",
        "random:inf,oracle:1",
        "random:x,oracle:1",
        "random,oracle",
        "random:1,random:2",
    ],
)
def test_a_malformed_pool_is_refused(pool: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a player and its weight"):
        gem.make("multi:Nim-v0", opponent=pool)


def test_unknown_players_of_a_pool_and_the_policy_itself_are_named() -> None:
    with pytest.raises(ConfigurationError, match="nobody"):
        gem.make("multi:Nim-v0", opponent="random:1,nobody:1")
    with pytest.raises(ConfigurationError, match="the policy plays all seats"):
        gem.make("multi:Nim-v0", opponent="random:1,self:1")


def test_before_a_run_all_players_of_a_pool_are_made() -> None:
    check([Task("multi:Nim-v0", 0, {"opponent": "self:1,random:1"})])
    with pytest.raises(ConfigurationError, match="nobody"):
        check([Task("multi:Nim-v0", 0, {"opponent": "self:1,random:1,nobody:1"})])

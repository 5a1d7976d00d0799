"""TAU-bench retail with a language model as the user, over a server that answers by rule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from chat_server import Answer, Stub, refused, said
from echo import drive

import gem
from gem.blame import cause_of
from gem.core import Env
from gem.errors import UnreachableError
from gem_tau.data import Call, tasks
from gem_tau.oracle import proposal, tool_call
from gem_tau.outcome import gold
from gem_train.experiment.metrics import episode_metrics


@pytest.fixture
def server() -> Iterator[Stub]:
    stub = Stub()
    yield stub
    stub.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gem.fetching._PAUSE_S", 0.0)


def asked(server: Stub, **params: Any) -> Env:
    return gem.make("tau:Retail-v2", user="llm", url=server.url, model="customer", **params)


def first_write(env: Env) -> Call:
    unwrapped: Any = env.unwrapped
    write: Call = unwrapped.gold.writes[0]
    return write


def test_the_model_is_told_the_task_and_the_conversation_with_roles_exchanged(
    server: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_KEY", "secret")
    server.answer = lambda number, body: said(f"<think>hidden</think> answer {number}")
    env = asked(server, api_key_env="THE_KEY", temperature=0.5)
    assert str(env.reset(seed=0, idx=0)[0]).endswith("# User\n\nanswer 1")
    env.step(tool_call(Call("calculate", {"expression": "1"})))
    assert env.step("Who are you?")[0] == "answer 2"
    system, *talk = server.requests[1]["messages"]
    task = tasks(None)[0]
    assert system["role"] == "system"
    for told in (task.reason, task.known, task.unknown, task.manner, "###STOP###"):
        assert told in system["content"]
    assert not any(write.arguments["order_id"] in str(talk) for write in gold(task, "fixed").writes)
    assert talk == [
        {"role": "user", "content": "Hi! How can I help you today?"},
        {"role": "assistant", "content": "answer 1"},
        {"role": "user", "content": "Who are you?"},
    ]
    assert server.requests[1]["model"] == "customer" and server.requests[1]["temperature"] == 0.5
    assert server.keys[1] == "Bearer secret"
    unwrapped: Any = env.unwrapped
    assert unwrapped.user.words == ["answer 1", "answer 2"]


@pytest.mark.parametrize("end", ["###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###"])
def test_the_user_ends_the_conversation(server: Stub, end: str) -> None:
    server.answer = lambda number, body: said(f"Thanks. {end}" if number > 1 else "Hello")
    env = asked(server)
    env.reset(seed=0, idx=0)
    assert not env.replayable
    env.step(tool_call(first_write(env)))
    _, reward, terminated, _, info = env.step("Done.")
    assert terminated and reward == 1.0 and info["success"]
    # Nobody was asked who they are, and nobody agreed.
    assert info["policy_violations"] == 1


@pytest.mark.parametrize(
    "answer",
    [
        refused(500, "overloaded"),
        refused(404, "no such model"),
        Answer("not JSON"),
        Answer('{"choices": []}'),
        said(None),
        said("  "),
        Answer("{}", cut=True),
    ],
)
def test_a_server_that_fails_voids_the_episode_and_costs_nothing(
    server: Stub, answer: Answer
) -> None:
    server.answer = lambda number, body: said("Hello") if number == 1 else answer
    env = asked(server)
    env.reset(seed=0, idx=0)
    before = env.snapshot()
    with pytest.raises(UnreachableError, match="customer") as raised:
        env.step("Who are you?")
    assert cause_of(raised.value) == "tool"
    assert env.snapshot() == before
    assert len(server.requests) == 1 + (1 if answer.status == 404 else 3)
    server.answer = lambda number, body: said("I am Yusuf.")
    assert env.step("Who are you?")[0] == "I am Yusuf."


def test_a_failure_that_passes_is_not_noticed(server: Stub) -> None:
    server.answer = lambda number, body: refused(503, "later") if number == 2 else said("Hello")
    env = asked(server)
    env.reset(seed=0, idx=0)
    assert env.step("Who are you?")[0] == "Hello"


def test_a_rollout_records_a_failure_of_the_tool_and_no_reward(
    server: Stub, small_tokenizer: Any
) -> None:
    server.answer = lambda number, body: refused(500, "gone")
    trajectory = drive("batch", small_tokenizer, lambda task: asked(server), retries=0)
    assert trajectory.failure is not None and trajectory.failure.cause == "tool"
    metrics = episode_metrics([trajectory])
    assert (metrics["failed_rate"], metrics["failed_tool"]) == (1, 1)


@pytest.mark.parametrize("grace", [0, 1])
def test_grace_executes_what_the_user_agreed_to_while_leaving(server: Stub, grace: int) -> None:
    server.answer = lambda number, body: said("Yes, thanks. ###STOP###" if number > 1 else "Hello")
    env = asked(server, grace=grace)
    env.reset(seed=0, idx=0)
    write = first_write(env)
    _, reward, terminated, _, _ = env.step(proposal(write))
    assert terminated is (grace == 0) and reward == 0
    if grace:
        _, reward, terminated, _, _ = env.step(tool_call(write))
        assert terminated and reward == 1.0


def test_half_a_surrogate_pair_becomes_text(server: Stub) -> None:
    server.answer = lambda number, body: Answer(
        '{"choices": [{"message": {"content": "a\\ud800b"}}]}'
    )
    env = asked(server)
    observation = str(env.reset(seed=0, idx=0)[0])
    assert observation.endswith("a?b")
    assert env.step("\ud800")[0] == "a?b"

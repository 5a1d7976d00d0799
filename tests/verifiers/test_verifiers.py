"""Environments of verifiers as GEM's: what the policy sees, what it earns, and what is void."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from chat_server import Answer, Stub, said
from served import serving

import gem
from gem.blame import cause_of
from gem.errors import (
    ConfigurationError,
    ResetNeededError,
    UnknownParameterError,
    UnreachableError,
)
from gem_serve.conversation import AgentProgramError, HistoryError, UnsupportedRequestError
from gem_serve.offers import Offer
from gem_verifiers.harness import _message


def completed(text: str) -> Answer:
    """A reply with all that verifiers wants of a server."""
    common = {"id": "1", "object": "chat.completion", "created": 1, "model": "m"}
    reply = json.loads(said(text).body)
    reply["choices"][0]["index"] = 0
    reply["usage"]["total_tokens"] = 15
    return Answer(json.dumps(common | reply))


def total(observation: Any) -> str:
    return str(sum(map(int, re.findall(r"\d+", observation))))


def test_a_taskset_is_an_environment_whose_seed_chooses_the_task() -> None:
    with gem.make("verifiers:toy_sums?taskset.rows=20&taskset.largest=6") as env:
        assert env.spec is not None and env.spec.id == "verifiers:toy_sums"
        seen = {}
        for seed in (0, 1, 2, 1, 0):
            observation, info = env.reset(seed=seed)
            assert seen.setdefault(seed, (observation, info)) == (observation, info)
        observation, info = env.reset(idx=7)
        assert observation == "Answer with the number.\n\n1 + 3 = ?"
        assert info == {"idx": 7, "name": "sum 7"}
        told = {"stop": "agent_completed", "reward.exact": 1.0, "reward.short": 0.1}
        assert env.step("4") == ("", 1.1, True, False, {**told, "metric.length": 1.0})
        with pytest.raises(ResetNeededError):
            env.step("4")
        env.reset(idx=7)
        assert env.step("It is four, I believe")[1:4] == (0.0, True, False)
        again = gem.make(gem.spec(env.spec.to_dict()))
        assert again.reset(seed=1)[0] == env.reset(seed=1)[0]
        with again.spawn(seed=1) as child:
            assert child.reset()[0] == env.reset(seed=1)[0]
        with pytest.raises(ConfigurationError, match="idx must be an integer from 0 to 19"):
            env.reset(idx=20)
        with pytest.raises(NotImplementedError):
            env.snapshot()


def test_tools_are_text_for_the_policy_and_native_for_verifiers() -> None:
    def call(position: int, name: str = "letters_letter") -> str:
        arguments = {"row": 1, "position": position}
        return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"

    with gem.make("verifiers:toy_tools") as env:
        observation, _ = env.reset(idx=1)
        assert isinstance(observation, str)
        assert observation.startswith("You may call tools.") and "letters_letter" in observation
        assert observation.endswith("Row 1 hides a word of 5 letters.")
        assert env.step(f"Two of them. {call(1)}{call(2)}")[0] == (
            "<tool_response>\nr\n</tool_response>\n\n<tool_response>\ni\n</tool_response>"
        )
        assert "string index out of range" in str(env.step(call(9))[0])
        assert "unknown tool 'x'" in str(env.step(call(1, "x"))[0])
        assert env.step("river")[1:3] == (1.0, True)


@pytest.mark.parametrize(
    ("how", "cause", "told"),
    [
        ("setup", "environment", "no disk"),
        ("reward", "grader", "ValueError: what is this|what is this"),
        ("judge", "grader", "connection|connect"),
        ("slow", "grader", "time limit"),
    ],
)
def test_what_breaks_in_verifiers_is_void_and_never_a_reward_of_0(
    how: str, cause: str, told: str
) -> None:
    judge = "http://127.0.0.1:9/judge"
    with gem.make(
        "verifiers:toy_faulty", tasks=2, **{"taskset.how": how, "taskset.judge": judge}
    ) as env:
        with pytest.raises(AgentProgramError, match=f"(?i){told}") as error:
            env.reset(seed=0)
            env.step("hello")
        assert (cause_of(error.value) or "environment") == cause


def test_a_judge_that_answers_gives_the_reward(server: Stub) -> None:
    server.answer = lambda number, body: Answer('{"score": 0.5}')
    settings = {"taskset.how": "judge", "taskset.judge": server.url}
    with gem.make("verifiers:toy_faulty", tasks=2, **settings) as env:
        env.reset(seed=0)
        assert env.step("hello")[1] == 0.5


def test_a_stop_of_the_task_ends_the_episode_and_a_limit_truncates_it(server: Stub) -> None:
    with gem.make("verifiers:toy_faulty?taskset.how=stop&tasks=1") as env:
        env.reset(seed=0)
        _, reward, terminated, truncated, info = env.step("hello")
        assert (reward, terminated, truncated) == (1.0, True, False)
        assert info["stop"] == "enough"
    with gem.make("verifiers:toy_tools?max_turns=2") as env:
        env.reset(idx=0)
        call = '<tool_call>{"name": "letters_letter", "arguments": {"row": 0, "position": 1}}'
        for _ in range(2):
            step = env.step(f"{call}</tool_call>")
        assert step[1:4] == (0.0, False, True)
        assert step[4]["stop"] == "max_turns"


def test_of_several_agents_the_policy_plays_one_and_others_have_models(server: Stub) -> None:
    server.answer = lambda number, body: completed("good" if number > 1 else "go on")
    with pytest.raises(ConfigurationError, match="the roles pupil, teacher; seat must name"):
        gem.make("verifiers:toy_pair")
    with pytest.raises(ConfigurationError, match="'teacher' has no model of its own"):
        gem.make("verifiers:toy_pair?seat=pupil")
    with pytest.raises(ConfigurationError, match="seat must be one of pupil, teacher"):
        gem.make("verifiers:toy_pair?seat=judge")
    teacher = {
        "client.type": "eval",
        "client.base_url": server.url,
        "model": "m",
        "harness.id": "gem_env",
    }
    settings = {f"teacher.{name}": value for name, value in teacher.items()}
    with gem.make("verifiers:toy_pair", seat="pupil", **settings) as env:
        assert env.reset(seed=0)[0] == "Begin."
        assert env.step("one")[0] == "go on"
        assert [body["messages"][-1]["content"] for body in server.requests] == ["one"]
        end = env.step("two")
        assert end[1:4] == (1.0, True, False)
        assert end[4]["success"] is True


@pytest.mark.parametrize(
    ("how", "error", "told"),
    [
        ("compact", HistoryError, "another message 0"),
        ("parallel", HistoryError, "asked again before it had|another message 0"),
        ("nothing", AgentProgramError, "ended before it asked"),
    ],
)
def test_what_a_harness_should_not_do_is_void_and_named(
    how: str, error: type[Exception], told: str
) -> None:
    with gem.make("verifiers:toy_harness", harness="own", **{"taskset.how": how}) as env:
        with pytest.raises(error, match=told):
            env.reset(seed=0)
            env.step("a")
        # The environment goes on.
        with pytest.raises(error, match=told):
            env.reset(seed=0)
            env.step("a")


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b"{}", b'{"choices": []}', b'{"choices": [{"message": 1}]}', b"[" * 10**5]
)
def test_an_answer_of_no_model_is_named_with_its_server(body: bytes) -> None:
    with pytest.raises(UnreachableError, match="the answer of http://there"):
        _message(body, "http://there")


@pytest.mark.parametrize(("how", "turns"), [("stream", 1), ("twice", 2)])
def test_a_harness_of_a_taskset_is_played(how: str, turns: int) -> None:
    with gem.make("verifiers:toy_harness", harness="own", **{"taskset.how": how}) as env:
        assert env.reset(seed=0)[0] == "one"
        steps = [env.step("a") for _ in range(turns)]
        assert [step[2] for step in steps] == [False] * (turns - 1) + [True]
        assert steps[-1][1] == turns


def test_images_are_refused_by_name() -> None:
    env = gem.make("verifiers:toy_faulty?taskset.how=image&tasks=1")
    with pytest.raises(UnsupportedRequestError, match="image_url"):
        env.reset(seed=0)


@pytest.mark.parametrize(
    ("id", "error", "told"),
    [
        ("verifiers:no_such_taskset", ConfigurationError, "no_such_taskset"),
        ("verifiers:toy_sums?rows=3", UnknownParameterError, "no parameter 'rows'.*taskset.split"),
        ("verifiers:toy_sums?taskset.row=3", ConfigurationError, "row"),
        ("verifiers:toy_sums?taskset.rows=no", ConfigurationError, "rows"),
        ("verifiers:toy_sums?taskset.rows=0", ConfigurationError, "has no tasks"),
        ("verifiers:toy_sums?harness=no_such", ConfigurationError, "no_such"),
        ("verifiers:toy_sums?harness=null", ConfigurationError, "harness must be a name"),
        ("verifiers:toy_sums?max_turns=0", ConfigurationError, "max_turns"),
        ("verifiers:toy_sums?taskset.id.x=1", ConfigurationError, "contradicts"),
        ("verifiers:toy_boxed", ConfigurationError, "BoxedTask needs a container"),
        ("verifiers:toy_sums?harness=codex", ConfigurationError, "needs a container"),
        ("verifiers:", ConfigurationError, "the taskset after verifiers:"),
    ],
)
def test_what_cannot_be_played_is_said_when_it_is_made(
    id: str, error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=f"(?s){told}"):
        gem.make(id)


def test_episodes_that_are_given_up_leave_nothing_running() -> None:
    with gem.make("verifiers:toy_sums?taskset.rows=20") as env:
        for seed in range(5):
            env.reset(seed=seed)
        observation, _ = env.reset(seed=9)
        assert env.step(total(observation))[1] == 1.1


def test_a_server_offers_it_to_environments_without_verifiers() -> None:
    with serving(["verifiers:toy_sums"]) as server, server.remote("verifiers:toy_sums") as env:
        observation, _ = env.reset(seed=3)
        assert observation.startswith("Answer with the number.")
        assert env.step(total(observation))[1:4] == (1.1, True, False)
        with pytest.raises(ConfigurationError, match="does not offer 'agent:true'"):
            server.remote("agent:true")
    with pytest.raises(ConfigurationError, match="cannot be offered with parameters"):
        Offer(["verifiers:toy_sums?taskset.rows=2"])
    with pytest.raises(ConfigurationError, match="no environment id matches 'sums:x'"):
        Offer(["sums:x"])


def test_many_episodes_leave_no_descriptors_and_threads() -> None:
    def used() -> tuple[int, int]:
        return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()

    with gem.make("verifiers:toy_sums?taskset.rows=20") as env:
        counts = []
        for seed in range(60):
            observation, _ = env.reset(seed=seed)
            if seed % 3:
                env.step(total(observation))  # the others are given up
            counts.append(used())
        assert max(f for f, _ in counts[30:]) <= max(f for f, _ in counts[:30])
        assert max(t for _, t in counts[30:]) <= max(t for _, t in counts[:30])

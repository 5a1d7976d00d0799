"""Any environment as a conversation with a user, who alone is told the task."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from chat_server import Answer, Stub, refused, said

import gem
from gem.blame import cause_of
from gem.core import Env
from gem.errors import ConfigurationError, UnknownEnvError, UnknownParameterError, UnreachableError
from gem_tau.user_task import UserTask

LEGS = "rg:leg_counting"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    monkeypatch.setattr("gem.fetching._PAUSE_S", 0.0)
    stub = Stub()
    yield stub
    stub.close()


def asked(server: Stub, **params: Any) -> Env:
    opponent = f"{server.url}?model=customer"
    return gem.make("user:Task-v0", **{"task": LEGS, "opponent": opponent, **params})


def saying(*words: str) -> Callable[[int, Any], Answer]:
    """The user's messages, in order; the last one for ever."""
    return lambda number, body: said(words[min(number, len(words)) - 1])


def task_of(env: Env) -> tuple[str, str]:
    """The task that only the user is told, and its answer."""
    game: Any = env.unwrapped
    return game.game.task, game.game.inner.oracle_action().split("{")[1].rstrip("}")


@pytest.mark.parametrize("task", [LEGS, "game:Mastermind-v0-easy", "game:Sokoban-v0-easy"])
def test_the_oracle_asks_the_scripted_user_for_all_and_solves_the_task(
    task: str,
) -> None:
    env = gem.make("user:Task-v0", task=task, max_turns=200)
    plain = gem.make(task)
    for seed in range(4):
        whole, _ = plain.reset(seed=seed)
        heard, _ = env.reset(seed=seed)
        assert isinstance(whole, str) and isinstance(heard, str) and whole not in heard
        told, earned, over = [heard.rpartition("# User\n\n")[2]], 0.0, False
        while not over:
            action = env.oracle_action()
            observation, reward, terminated, truncated, info = env.step(action)
            over, earned = terminated or truncated, earned + reward
            if not action.startswith("<action>"):
                told.append(str(observation))
        assert "".join("".join(told).split()) == "".join(whole.split())
        assert terminated and info["success"] and earned == 1.0
        assert info["user_turns"] == len(told) and not info["user_faults"]


def test_the_environment_decides_and_the_agent_sees_what_it_answers() -> None:
    # Without asking: the same actions have the same rewards and observations as without a user.
    plain, env = (
        gem.make("game:Mastermind-v0-easy"),
        gem.make("user:Task-v0", task="game:Mastermind-v0-easy"),
    )
    plain.reset(seed=5)
    env.reset(seed=5)
    over = False
    while not over:
        action = plain.sample_random_action()
        observation, reward, terminated, truncated, _ = plain.step(action)
        assert env.step(f"I try this. <action> {action} </action>")[:4] == (
            observation, reward, terminated, truncated,
        )  # fmt: skip
        over = terminated or truncated


def test_a_model_is_told_the_task_and_hears_messages_but_no_actions(server: Stub) -> None:
    server.answer = saying("Count legs for me.", "8 flatworms and so on")
    env = asked(server, task="game:Mastermind-v0-easy")
    first, _ = env.reset(seed=3)
    task: str = task_of(env)[0]
    assert "# User\n\nCount legs for me." in str(first) and task not in str(first)
    env.step(f"<action>{env.unwrapped.sample_random_action()}</action>")
    env.step("<action>\\boxed{1 2}</action>")
    observation, _, _, _, info = env.step("Which animals?")
    assert observation == "8 flatworms and so on"
    assert info["opponent_said"] == '["8 flatworms and so on"]' and not env.replayable
    system, *talk = [message["content"] for message in server.requests[-1]["messages"]]
    assert task in system and "###STOP###" in system and "Do not solve the task" in system
    assert talk == ["Count legs for me.", "Which animals?"]


FAULTS = [
    ("", "silent"),
    ("<action>\\boxed{24}</action>", "acts"),
    ("It is 24, is it not?", "solves"),
]


@pytest.mark.parametrize(("fault", "kind"), FAULTS)
def test_a_fault_of_the_user_is_not_passed_on_and_it_is_asked_again(
    server: Stub, fault: str, kind: str
) -> None:
    server.answer = saying(fault, fault, "Count 24x legs.")
    env = asked(server)
    first, _ = env.reset(seed=3)
    assert task_of(env)[1] == "24"
    assert str(first).endswith("# User\n\nCount 24x legs.")
    again = server.requests[1]["messages"]
    assert again[-1]["content"].startswith("(Not sent: ") and "24" not in again[-1]["content"]
    _, reward, terminated, _, info = env.step("<action>\\boxed{24}</action>")
    assert terminated and reward == 1.0
    assert (info["user_faults"], info["user_failed"], info["user_turns"]) == (2, False, 1)
    game: Any = env.unwrapped
    assert dict(game.game.faults) == {kind: 2}


@pytest.mark.parametrize("retries", [0, 2])
def test_a_user_that_stays_at_fault_ends_the_match(server: Stub, retries: int) -> None:
    server.answer = saying("Count legs.", "")
    env = asked(server, retries=retries)
    env.reset(seed=3)
    _, reward, terminated, truncated, info = env.step("Which?")
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert info["user_failed"] and info["user_faults"] == retries + 1 and not info["success"]
    assert len(server.requests) == retries + 2


def test_an_answer_that_the_agent_has_said_or_tried_is_no_fault(server: Stub) -> None:
    server.answer = saying("Count legs.", "Yes, 24.", "I said 24.")
    env = asked(server)
    env.reset(seed=3)
    observation, *_ = env.step("Is it 24?")
    assert observation == "Yes, 24." and len(server.requests) == 2
    # In a game of several turns no single action is the answer.
    server.answer = saying("Start with 10.")
    env = asked(server, task="game:GuessTheNumber-v0")
    first, _ = env.reset(seed=3)
    assert str(first).endswith("Start with 10.")


def test_what_a_model_said_is_played_again_without_it(server: Stub) -> None:
    server.answer = saying("", "Count legs.", "Of 8 flatworms.", "###STOP###")
    env = asked(server)
    told, infos = [env.reset(seed=3)[0]], []
    for message in ("Which?", "More?"):
        observation, *_, info = env.step(message)
        told.append(observation)
        infos.append(info)
    assert len(server.requests) == 4 and infos[-1]["user_ended"] and infos[-1]["user_faults"] == 1
    again: Any = asked(server).unwrapped
    again.recorded = [words for info in infos for words in json.loads(info["opponent_said"])]
    assert [again.reset(seed=3)[0], again.step("Which?")[0], again.step("More?")[0]] == told
    assert len(server.requests) == 4


def test_the_user_ends_the_conversation(server: Stub) -> None:
    server.answer = saying("Count legs.", "Thanks. ###STOP###")
    env = asked(server)
    env.reset(seed=3)
    _, reward, terminated, truncated, info = env.step("Done!")
    assert (reward, terminated, truncated) == (0.0, True, False)
    assert info["user_ended"] and not info["user_failed"] and not info["success"]


def test_a_server_that_fails_is_the_tools_fault_and_no_reward(server: Stub) -> None:
    server.answer = lambda number, body: said("Hello") if number == 1 else refused(500, "down")
    env = asked(server)
    env.reset(seed=3)
    with pytest.raises(UnreachableError, match="500") as caught:
        env.step("Which?")
    assert cause_of(caught.value) == "tool"


@pytest.mark.parametrize(
    "action",
    [
        "<action>1</action><action>2</action>",
        "<action>1",
        "1</action>",
        "<action><action>1</action>",
    ],
)
def test_what_is_not_one_action_is_neither_played_nor_told_to_the_user(action: str) -> None:
    env = gem.make("user:Task-v0", task="game:GuessTheNumber-v0", max_turns=2)
    env.reset(seed=3)
    observation, _, _, truncated, info = env.step(action)
    assert info["format_error"] and "one in a turn" in str(observation) and not truncated
    _, _, _, truncated, info = env.step(action)
    assert truncated and info["format_error"] and info["user_turns"] == 1


def test_what_the_agent_is_told_about_actions() -> None:
    def rules(**params: Any) -> str:
        return str(gem.make("user:Task-v0", **params).reset(seed=1)[0])

    assert "\\boxed{answer}" in rules()
    assert "boxed" not in rules(form="Write a number.") and "Write a number. " in rules(
        form="Write a number."
    )


def test_what_cannot_be_a_task_is_refused() -> None:
    with pytest.raises(UnknownEnvError):
        UserTask("game:Nothing-v0")
    with pytest.raises(ConfigurationError, match="shows images"):
        UserTask("image:Bars-v0").reset(seed=0)
    with pytest.raises(ConfigurationError, match="table of parameters"):
        UserTask(params="max_turns=3")  # type: ignore[arg-type]
    with pytest.raises(UnknownParameterError, match="max_turn"):
        UserTask(params={"max_turn": 3})


def test_parameters_of_the_task() -> None:
    env = gem.make("user:Task-v0", params={"max_turns": 1})
    env.reset(seed=0)
    _, _, _, truncated, info = env.step("<action>\\boxed{1}</action>")
    assert truncated and not info["success"]

"""Agent programs as environments (`agent:`): what the policy sees, and which episodes are void."""

from __future__ import annotations

import asyncio
import json
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import gem
from gem.errors import ConfigurationError, ResetNeededError, UnknownParameterError
from gem.executors.asynchronous import AsyncEnv
from gem.executors.held import EnvFailedError
from gem.tasks import Task, TaskSet
from gem_serve.agent import AgentEnv
from gem_serve.conversation import (
    AgentProgramError,
    Conversation,
    HistoryError,
    UnsupportedRequestError,
)
from gem_serve.inverted import Session, shared_url

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "shared" / "agents" / "sums.py"
EXAMPLES = ROOT / "packages" / "gem-serve" / "examples"


def made(how: str = "", **parameters: object) -> gem.Env:
    return gem.make(f"agent:{sys.executable} {PROGRAM} {how}".strip(), **parameters)


def right(seed: int) -> str:
    return str(seed % 7 + seed % 5)


def test_a_program_is_an_environment_whose_reward_comes_at_the_end() -> None:
    with made() as env:
        assert env.reset(seed=9) == ("You add.\n\n2+4=?", {})
        assert env.step("5") == ("No. Again.", 0.0, False, False, {})
        end = env.step(right(9))
        assert end == ("", 1.0, True, False, {"success": True, "turns": 2})
        with pytest.raises(ResetNeededError):
            env.step("6")
        assert env.reset(seed=9)[0] == "You add.\n\n2+4=?"
        env.step("5")
        assert env.step("5")[1:] == (0.0, True, False, {"success": False, "turns": 2})


def test_the_next_episode_without_a_seed_is_another_one_and_the_same_again() -> None:
    with made() as env:
        episodes = [env.reset(seed=3)[0], env.reset()[0], env.reset()[0]]
        assert len(set(episodes)) > 1
        assert [env.reset(seed=3)[0], env.reset()[0], env.reset()[0]] == episodes


def test_the_id_has_parameters_after_a_question_mark(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"a": n, "b": 10 * n}) + "\n" for n in range(5)))
    id = f"agent:{sys.executable} {PROGRAM}"
    env = gem.make(f"{id}?tasks={rows}&timeout_s=30&cwd={tmp_path}")
    assert env.spec is not None and env.spec.id == id
    assert env.spec.kwargs["timeout_s"] == 30
    observations = set()
    for seed in range(12):
        observation, info = env.reset(seed=seed)
        assert observation == f"You add.\n\n{info['task']}+{10 * info['task']}=?"
        observations.add(observation)
    assert len(observations) > 2
    again = gem.make(gem.spec(env.spec.to_dict()))
    assert again.reset(seed=4) == env.reset(seed=4)
    [task] = TaskSet.parse(f"gem:{id}?tasks={rows}&seed=4")
    with task.make() as third:
        assert third.reset(seed=task.seed) == env.reset(seed=4)
    with env.spawn(seed=4) as child:
        assert child.reset() == env.reset(seed=4)
    env.close()
    again.close()


@pytest.mark.parametrize(
    ("id", "error", "said"),
    [
        ("agent:", ConfigurationError, "agent:"),
        ("agent:'open", ConfigurationError, "No closing quotation"),
        ("agent:x?timeout_s=0", ConfigurationError, "timeout_s must be a number above 0"),
        ("agent:x?cwd=/no/such", ConfigurationError, "cwd must be a folder"),
        ("agent:x?tasks=/no/such", ConfigurationError, "tasks must be a file of JSON objects"),
        ("agent:x?turns=3", UnknownParameterError, "'turns'"),
        ("agent:x?cwd", ConfigurationError, "bad query field"),
        ("agent:x?cwd=/&cwd=/", ConfigurationError, "names 'cwd' twice"),
        ("agent:x?address=y", ConfigurationError, "the address stands before"),
    ],
)
def test_what_is_wrong_with_an_id_is_said_when_it_is_made(
    id: str, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        gem.make(id)


def test_a_command_that_cannot_run_is_a_misconfiguration() -> None:
    with pytest.raises(ConfigurationError, match="cannot run /no/such/program"):
        gem.make("agent:/no/such/program").reset(seed=0)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("mute", "ended before it asked the policy anything"),
        ("silent", "neither asked the policy nor ended within 1 s"),
        ("crash", "exit status 1.*the board is gone"),
        ("killed", "ended with SIGKILL"),
        ("late", "exit status 3"),
        ("no-reward", "wrote no reward"),
        ("nan", "no finite number as reward: nan"),
        ("text", "no finite number as reward: '1'"),
        ("several", "the request asks for n=2"),
        ("image", "a part of type 'image_url'"),
        ("responses", "in vain for POST responses"),
        ("parallel", "asked (again before it had|the same again)"),
    ],
)
def test_what_a_program_should_not_do_makes_its_episode_void_and_is_named(
    how: str, said: str
) -> None:
    with made(how, timeout_s=1 if how == "silent" else 60) as env:
        with pytest.raises(AgentProgramError, match=f"(?s){said}"):
            env.reset(seed=1)
            while True:
                _, _, terminated, truncated, _ = env.step(right(1))
                assert not terminated and not truncated
        with pytest.raises(ResetNeededError):
            env.step("1")


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("rewrite", "has another message 1 .user: 'the sum, please', it was '1.1=.'."),
        ("compact", "has another message 0|has only 1 of 3"),
        ("invent", "an assistant's message that the policy never wrote"),
        ("again", "asked the same again"),
    ],
)
def test_a_history_that_is_not_append_only_is_noticed(how: str, said: str) -> None:
    with made(how) as env:
        env.reset(seed=1)
        with pytest.raises(HistoryError, match=said):
            env.step("wrong")


def test_a_program_may_strip_the_policy_s_reply() -> None:
    with made("strip") as env:
        env.reset(seed=1)
        assert env.step(" wrong \n")[0] == "No. Again."


@pytest.mark.parametrize("how", ["stream", "key", "parts", "number", "stop"])
def test_a_program_may_ask_in_any_of_these_ways(how: str) -> None:
    with made(how) as env:
        assert env.reset(seed=1)[0] == "You add.\n\n1+1=?"
        action = "2\nObservation: 3" if how == "stop" else "2"
        assert env.step(action)[1:4] == (0.25 if how == "number" else 1.0, True, False)


def test_a_program_may_end_an_episode_by_a_limit() -> None:
    with made("limit") as env:
        env.reset(seed=1)
        assert env.step("2")[1:4] == (1.0, False, True)


def test_a_program_may_list_the_models() -> None:
    with made("models") as env:
        assert env.reset(seed=1)[0].startswith("policy\n")


def test_the_form_of_the_answer_is_shown() -> None:
    with made("json") as env:
        observation, _ = env.reset(seed=1)
        assert isinstance(observation, str)
        assert observation.startswith("Answer with one JSON object of this schema")
        assert '"sum"' in observation and observation.endswith("1+1=?")


def test_an_example_in_the_prompt_is_marked_as_the_assistant_s() -> None:
    with made("example") as env:
        expected = "You add.\n\n1+1=?\n\n<assistant>\n2\n</assistant>\n\n1+1=?"
        assert env.reset(seed=1)[0] == expected


def test_calls_of_tools_are_native_for_the_program_and_text_for_the_policy() -> None:
    call = '<tool_call>{"name": "add", "arguments": {"x": 1, "y": 1}}</tool_call>'
    with made("tools") as env:
        observation, _ = env.reset(seed=1)
        assert isinstance(observation, str)
        assert observation.startswith("You may call tools.") and '"add"' in observation
        assert env.step(f"I add.\n{call}{call}")[0] == (
            "<tool_response>\n2\n</tool_response>\n\n<tool_response>\n2\n</tool_response>"
        )
        # Not valid JSON: it stays text, and the program sees a wrong answer.
        assert env.step("<tool_call>{add</tool_call>")[0] == "No. Again."
        assert env.step("2")[1:3] == (1.0, True)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("ends", [True, False])
def test_what_a_program_started_ends_with_the_episode(ends: bool) -> None:
    env = made("child")
    observation, _ = env.reset(seed=1)
    assert isinstance(observation, str)
    child = int(observation.partition("\n")[0])
    assert alive(child)
    if ends:
        assert env.step("2")[2]
    else:
        env.close()
    for _ in range(100):
        if not alive(child):
            return
        time.sleep(0.1)
    raise AssertionError("it runs on")


def test_many_episodes_leave_no_descriptors_threads_and_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    env = made()
    counts = []
    for seed in range(24):
        env.reset(seed=seed)
        if seed % 3:
            env.step(right(seed))  # the others are given up
        counts.append(len(list(Path("/proc/self/fd").iterdir())))
    env.close()
    assert max(counts[12:]) <= max(counts[:12])
    assert list(tmp_path.iterdir()) == []


def test_a_running_program_has_no_snapshot() -> None:
    env = AgentEnv("true")
    with pytest.raises(NotImplementedError):
        env.snapshot()
    with pytest.raises(NotImplementedError):
        env.spawn(same_state=True)


def test_tools_that_change_are_shown_again_and_unsupported_roles_are_named() -> None:
    talk = Conversation()
    messages = [{"role": "user", "content": "hi"}]
    tool = {"type": "function", "function": {"name": "one"}}
    assert '"one"' in talk.observe({"messages": messages, "tools": [tool]})
    message, finish = talk.reply("yes")
    assert finish == "stop"
    messages += [message, {"role": "user", "content": "go"}]
    other = {"type": "function", "function": {"name": "two"}}
    assert '"two"' in talk.observe({"messages": messages, "tools": [other]})
    with pytest.raises(UnsupportedRequestError, match="role 'oracle'"):
        Conversation().observe({"messages": [{"role": "oracle"}]})
    with pytest.raises(UnsupportedRequestError, match="no messages"):
        Conversation().observe({})


@pytest.mark.parametrize("name", ["adder.py", "adder.toml", "speller.py"])
def test_the_page_shows_the_examples_as_they_are(name: str) -> None:
    text = (EXAMPLES / name).read_text()
    shown = text.partition("\n\n")[2] if name.endswith(".py") else text
    assert shown in (ROOT / "docs" / "bridges.md").read_text()


def test_the_adder_of_the_page_plays() -> None:
    with gem.make(f"agent:{sys.executable} {EXAMPLES / 'adder.py'}") as env:
        assert env.reset(seed=9)[0] == "2 + 4 = ?"
        assert env.step("5")[0] == "No. Try again."
        assert env.step("5")[1:] == (0.0, True, False, {"success": False})


def status(url: str, body: bytes | None = None, **headers: str) -> int:
    request = urllib.request.Request(url, body, headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_the_server_refuses_what_is_no_request_of_an_episode() -> None:
    session = Session()
    chat = f"{session.url}/chat/completions"
    assert status(chat, b"{") == 400
    assert status(chat, b"[]") == 400
    assert status(chat, b"[" * 100_000) == 400
    assert status(chat, b"\xff") == 400
    assert status(chat) == 404  # GET
    assert status(f"{session.url}/embeddings", b"{}") == 404
    assert session.refused == ["GET chat/completions", "POST embeddings"]
    for other in ("v1", "nobody/v1", "", "v1/../v1"):
        assert status(f"{session.url.rsplit('/', 2)[0]}/{other}/models") == 410
    wrong = {"Authorization": "Bearer nobody", "X-Session-ID": "nobody"}
    assert status(f"{shared_url()}/chat/completions", b"{}", **wrong) == 410
    session.also("me")
    assert status(f"{shared_url()}/models", **{"X-Session-ID": "me"}) == 200
    session.close()
    assert status(f"{shared_url()}/models", **{"X-Session-ID": "me"}) == 410
    assert status(chat, b"{}") == 410


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "tool_calls": [{}]},
        {"role": "assistant", "tool_calls": 3},
        {"role": "user", "content": 3},
        {"role": "user", "content": [3]},
        {"role": "user", "content": [{"type": "text"}]},
        {"role": ["user"]},
        3,
    ],
)
def test_malformed_messages_are_refused_by_name(message: object) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}, message]}
    with pytest.raises(UnsupportedRequestError, match="malformed|a message"):
        Conversation().observe(body)


@pytest.mark.parametrize(
    "further", [{"tools": 3}, {"tools": [3]}, {"stop": 3}, {"response_format": 3}]
)
def test_malformed_requests_are_refused_by_name(further: dict[str, object]) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], **further}
    with pytest.raises(UnsupportedRequestError, match="malformed"):
        Conversation().observe(body)


def test_a_program_that_crashes_gives_a_failure_and_no_reward() -> None:
    async def played() -> None:
        env = AsyncEnv(Task(f"agent:{sys.executable} {PROGRAM} crash", 1), 60)
        try:
            await env.reset(1)
            await env.step("2")
        finally:
            await env.aclose()

    with pytest.raises(EnvFailedError, match="the board is gone") as error:
        asyncio.run(played())
    assert error.value.failure(1).cause == "environment"

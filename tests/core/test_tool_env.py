"""Tools around environments: who answers, what is paid, shown, counted and copied."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from echo import wait_until

import gem
from gem.blame import cause_of
from gem.core import Env
from gem.errors import (
    ConfigurationError,
    ResetNeededError,
    UnknownParameterError,
    UnreachableError,
)
from gem.rollout import Budget, ChatFormat, Sample, play_batch
from gem.tasks import TaskSet
from gem.tools import SearchTool, Tool, ToolCall, ToolResult
from gem.wrappers import EpisodeTracking, ToolEnv, wrap
from gem_check import check_env
from gem_sandbox.tool import PythonTool

GUESS = "game:GuessTheNumber-v0-easy"
PYTHON = {"name": "python", "runner": "subprocess", "timeout_s": 20.0}


class Echo(Tool):
    """Answers `<echo>text</echo>`; fails for `fail`, is gone for `gone`; counts its calls."""

    tool_type = "echo"

    def __init__(self, tag: str = "echo") -> None:
        self.tag = tag
        self.calls = 0
        self.closed = False

    def instruction(self) -> str:
        return f"Say <{self.tag}>."

    def parse(self, text: str) -> ToolCall | None:
        _, begin, rest = text.partition(f"<{self.tag}>")
        return ToolCall(self.tag, {"text": rest.partition("<")[0]}) if begin else None

    def execute(self, call: ToolCall) -> ToolResult:
        self.calls += 1
        if call.arguments["text"] == "gone":
            raise UnreachableError("the echo is gone")
        return ToolResult(
            f"{call.arguments['text']} {self.calls}", call.arguments["text"] != "fail"
        )

    def close(self) -> None:
        self.closed = True


def make(*tools: Tool, env: Env | None = None, **parameters: Any) -> Any:
    made = ToolEnv(env or gem.make(GUESS), list(tools) or [Echo()], **parameters)
    made.reset(seed=0)
    return made


@pytest.mark.parametrize(
    "method", ["reset", "instruction", "parse", "execute", "observe", "finish"]
)
def test_whatever_a_tool_raises_is_blamed_on_the_tool(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = make()

    def broken(*arguments: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(Echo, method, broken)
    with pytest.raises(ZeroDivisionError) as raised:
        env.reset(seed=0)
        env.step("<echo>x</echo>")
        env.step("no box, so that the game is over")
    assert cause_of(raised.value) == "tool"


def test_one_line_puts_python_around_a_data_set() -> None:
    env: Any = gem.make("math:GSM8K", source="sample", tools=[PYTHON])
    observation, _ = env.reset(seed=0)
    assert "<python> </python>" in observation
    observation, reward, terminated, truncated, info = env.step("<python>print(6 * 7)</python>")
    assert observation.splitlines()[0] == "Code execution result: 42"
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info["use_tool"]
    assert env.step(env.oracle_action())[1:3] == (1.0, True)


def test_the_reset_observation_ends_with_the_instructions() -> None:
    plain = gem.make(GUESS).reset(seed=0)[0]
    observation, _ = ToolEnv(gem.make(GUESS), Echo()).reset(seed=0)
    assert observation == (
        f"{plain}\nSay <echo>.\n"
        "You have 10 tool calls, one in a reply; a reply without a call is taken as your answer."
    )
    several, _ = ToolEnv(gem.make(GUESS), [Echo("a"), Echo("b")], max_tool_uses=1).reset(seed=0)
    assert several.startswith(f"{plain}\nAvailable tools:\n- Say <a>.\n- Say <b>.\nYou have 1 tool")


@pytest.mark.parametrize("tool", [PythonTool(), SearchTool(url="http://localhost:1/retrieve")])
def test_a_tool_takes_the_call_that_its_schema_describes(tool: Tool) -> None:
    (schema,) = tool.schemas()
    (argument,) = schema["parameters"]["required"]
    assert schema["parameters"]["properties"][argument]["type"] == "string"
    call = {"name": schema["name"], "arguments": {argument: "what"}}
    found = tool.parse(f"<tool_call>{json.dumps(call)}</tool_call>")
    assert found == ToolCall(schema["name"], {argument: "what"})
    assert schema["description"].rpartition(";")[2] in tool.instruction()


def test_observations_with_images_get_the_instructions_as_a_text_part() -> None:
    env = ToolEnv(gem.make("math:Geometry3K", source="sample"), Echo())
    observation, _ = env.reset(seed=0)
    assert isinstance(observation, list)
    assert observation[-1]["text"].startswith("Say <echo>.")
    assert env.step("<echo>x")[0].endswith("\\boxed{}.")


def test_a_tool_step_takes_no_turn_and_shows_what_was_asked_last() -> None:
    env = make()
    assert env.step("<echo>hello")[0] == "hello 1\nTool calls left: 9.\nEnter your guess."
    assert env.turn == 0
    latest = env.step("\\boxed{2}")[0]
    assert env.turn == 1
    assert env.step("<echo>x")[0] == f"x 2\nTool calls left: 8.\n{latest}"


def test_the_first_tool_that_finds_a_call_owns_the_step_even_if_it_fails() -> None:
    first, second = Echo("a"), Echo("b")
    env = make(first, second)
    *_, info = env.step("<b>second <a>fail")
    assert [tool.calls for tool in env.tools] == [1, 0]
    assert (info["tool_use_counter"], info["tool_success_counter"]) == (1, 0)
    assert env.turn == 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ('<tool_call>{"name": "ecko", "arguments": {}}</tool_call>', "no tool 'ecko'; there are: "),
        ('<tool_call>{"name": "ecko"</tool_call>', "not valid JSON"),
        ("<tool_call>[1]</tool_call>", 'a JSON object with "name"'),
        ("<tool_call>", "The call has no end; write </tool_call> after it."),
        ("<tool_call>{} {}</tool_call>", "more than one object"),
        ("<tool_call><tool_name>x</tool_name>", "between <tool_call>"),
        ("<tool_call><tool_name>x</tool_name></tool_call>", "between <tool_call>"),
        ('<tool_call>{"name": "\\ud800"}</tool_call>', "no tool '?'"),
    ],
)
def test_a_call_that_nobody_can_be_meant_by_is_told_and_loses_no_episode(
    call: str, words: str
) -> None:
    env = make(tool_execute_error_reward=-0.5)
    observation, reward, terminated, truncated, info = env.step(f"{call} \\boxed{{1}}")
    assert words in observation
    observation.encode()
    assert (reward, terminated, truncated) == (-0.5, False, False)
    assert (info["tool_type"], info["tool_use_counter"], env.turn) == ("", 1, 0)


@pytest.mark.parametrize(
    ("parameters", "success", "failure"),
    [
        ({}, 0.0, 0.0),
        ({"tool_reward": 0.25, "tool_success_reward": 0.5}, 0.75, 0.25),
        ({"tool_execute_error_reward": -0.125}, 0.0, -0.125),
    ],
)
def test_calls_are_paid_as_configured(
    parameters: dict[str, float], success: float, failure: float
) -> None:
    env = make(**parameters)
    assert env.step("<echo>x")[1] == success
    assert env.step("<echo>fail")[1] == failure


@pytest.mark.parametrize(
    "parameters",
    [
        {"tool_execute_error_reward": 0.1},
        {"tool_execute_error_reward": -0.1, "tool_reward": 0.1},
        {"tool_execute_error_reward": -0.1, "tool_success_reward": 0.1},
        {"tool_reward": float("nan")},
        {"max_tool_uses": 0},
        {"unreachable": "ignore"},
    ],
)
def test_impossible_parameters_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(parameters))):
        ToolEnv(gem.make(GUESS), Echo(), **parameters)


def test_without_a_tool_there_is_nothing_to_wrap() -> None:
    with pytest.raises(ConfigurationError, match="at least one tool"):
        ToolEnv(gem.make(GUESS), [])


def test_after_the_last_call_replies_reach_the_environment() -> None:
    env = make(max_tool_uses=2)
    assert "Tool calls left: 1." in env.step("<echo>1")[0]
    assert "You have used up your tool calls." in env.step("<echo>2")[0]
    _, reward, terminated, _, info = env.step("<echo>3")
    assert (reward, terminated, info["format_error"]) == (-0.1, True, True)
    assert (info["use_tool"], info["tool_use_counter"]) == (False, 2)


def test_info_has_counters_the_whole_reply_and_those_of_the_episode_before() -> None:
    env = ToolEnv(gem.make(GUESS), Echo())
    assert env.reset(seed=0)[1] == {
        "prev_ep_tool_use_counter": 0,
        "prev_ep_tool_success_counter": 0,
    }
    action = "I think <echo>fail</echo> and go on"
    assert env.step(action)[4] == {
        "success": False,
        "format_error": False,
        "invalid_action": False,
        "use_tool": True,
        "tool_type": "echo",
        "tool_use_counter": 1,
        "tool_success_counter": 0,
        "tool_timeout_counter": 0,
        "parsed_action": action,
    }
    env.step("<echo>x")
    assert env.reset()[1] == {"prev_ep_tool_use_counter": 2, "prev_ep_tool_success_counter": 1}
    assert env.tool_use_counter == 0


def test_a_tool_that_is_gone_raises_and_costs_nothing() -> None:
    env = make(tool_reward=1.0)
    with pytest.raises(UnreachableError, match="the echo is gone"):
        env.step("<echo>gone")
    assert env.tool_use_counter == 0


def test_a_tool_that_is_gone_can_be_told_to_the_policy_instead() -> None:
    env = make(tool_reward=1.0, unreachable="tell")
    observation, reward, *_ = env.step("<echo>gone")
    assert observation.startswith("[The tool is out of order: the echo is gone]")
    assert reward == 0.0


def test_a_call_before_reset_or_after_the_end_is_refused() -> None:
    env = ToolEnv(gem.make(GUESS), Echo())
    with pytest.raises(ResetNeededError, match=r"reset\(\)"):
        env.step("<echo>x")
    env.reset(seed=0)
    env.step("no box")
    with pytest.raises(ResetNeededError, match=r"reset\(\)"):
        env.step("<echo>x")


def test_each_environment_has_its_own_tools() -> None:
    shared = Echo()
    one, two = make(shared), make(shared)
    one.step("<echo>x")
    assert [env.tools[0].calls for env in (one, two)] == [1, 0]
    assert shared.calls == 0
    envs: Any = gem.make_vec(GUESS, num_envs=2, tools=[shared], seed=0).envs
    assert envs[0].tools[0] is not envs[1].tools[0]


def test_snapshots_hold_the_state_of_tools_and_wrapper() -> None:
    env = make()
    env.step("<echo>x")
    state = env.snapshot()
    expected = [env.step(action) for action in ("<echo>y", "\\boxed{1}", "<echo>z")]
    copies = [env, ToolEnv(gem.make(GUESS), Echo()), pickle.loads(pickle.dumps(env))]
    for copy in copies:
        copy.restore(state)
        assert [copy.step(a) for a in ("<echo>y", "\\boxed{1}", "<echo>z")] == expected


def test_a_spawned_copy_continues_the_episode_or_begins_its_own() -> None:
    env = make()
    env.step("<echo>x")
    child = env.spawn(same_state=True)
    assert child.step("<echo>y") == env.step("<echo>y")
    fresh = env.spawn(seed=3)
    assert fresh.tool_use_counter == 0
    with pytest.raises(ResetNeededError):
        fresh.step("<echo>x")


def test_closing_closes_the_tools() -> None:
    env = make()
    env.close()
    env.close()
    assert env.tools[0].closed


def test_tools_that_would_swallow_every_answer_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"'fenced_code'.*\"fenced\": false"):
        gem.make("code:CodeContest", source="sample", runner="subprocess", tools=[PYTHON])
    tools = [{**PYTHON, "fenced": False}]
    gem.make("code:CodeContest", source="sample", runner="subprocess", tools=tools)


def test_an_environment_with_tools_passes_every_check() -> None:
    report = check_env(GUESS, episodes=8, cpu_s=0.05, tools=[PYTHON], wrappers="episode_tracking")
    assert {r.name: r.detail for r in report.results if r.status == "failed"} == {}


def test_wrappers_are_applied_in_order_the_last_one_outermost() -> None:
    env = gem.make(
        GUESS, tools=[PYTHON], wrappers=["episode_tracking", lambda e: ToolEnv(e, Echo())]
    )
    assert repr(env) == f"<ToolEnv<EpisodeTracking<ToolEnv<GuessTheNumber {GUESS}>>>>"
    assert repr(wrap(gem.make(GUESS), "episode_tracking,episode_tracking")).count("Tracking") == 2


@pytest.mark.parametrize(
    ("wrappers", "words"),
    [
        ("no_such", "unknown wrapper 'no_such'; known: 'tool_env'"),
        ("concat_chat", "the context 'chat' takes its place"),
        ([3], "a wrapper is a name"),
        (3, "wrappers must be a name"),
        ([{"tools": []}], "unknown wrapper None"),
    ],
)
def test_unknown_wrappers_are_named(wrappers: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        gem.make(GUESS, wrappers=wrappers)


def test_unknown_parameters_of_wrappers_are_named() -> None:
    with pytest.raises(
        UnknownParameterError, match="no parameter 'max_uses'; it has max_tool_uses"
    ):
        gem.make(GUESS, wrappers=[{"name": "tool_env", "tools": "python", "max_uses": 3}])
    with pytest.raises(UnknownParameterError, match="'topk'"):
        gem.make(GUESS, wrappers=[{"name": "tool_env", "tools": [{"name": "python", "topk": 3}]}])


def test_tracking_counts_steps_and_adds_up_rewards_tool_steps_included() -> None:
    env = EpisodeTracking(ToolEnv(gem.make(GUESS), Echo(), tool_reward=0.5))
    env.reset(seed=0)
    env.step("<echo>x")
    info = env.step("no box")[4]
    assert (info["step_counter"], info["cumulative_rewards"]) == (2, 0.4)
    assert env.spawn(seed=1).step_counter == 0
    after = env.reset(seed=1)[1]
    assert (after["prev_ep_step_counter"], after["prev_ep_cumulative_rewards"]) == (2, 0.4)
    assert (env.step_counter, env.cumulative_rewards) == (0, 0.0)


class Script:
    """A sampler that says one line after the other in every episode."""

    def __init__(self, chat: ChatFormat, *lines: str) -> None:
        self.chat = chat
        self.lines = lines
        self.prompts: list[str] = []
        self.said: dict[int, int] = {}

    def __call__(self, requests: Any) -> list[Sample]:
        samples = []
        for request in requests:
            turn = self.said.get(request.episode, 0)
            self.said[request.episode] = turn + 1
            self.prompts.append(self.chat.decode(request.prompt_ids))
            ids = self.chat.encode_text(self.lines[turn]) + sorted(self.chat.stop_ids)[:1]
            samples.append(Sample(ids, logprobs=None, stop_reason="stop"))
        return samples


BUDGET = Budget(turn_tokens=300, response_tokens=4000, prompt_tokens=3000)


def test_rollouts_get_tools_through_the_tasks(small_tokenizer: Any) -> None:
    chat = ChatFormat(small_tokenizer)
    tools = json.dumps([PYTHON])
    tasks = TaskSet.parse(f"gem:math:GSM8K?n=1&source=sample&tools={tools}")
    assert TaskSet.parse(tasks.uri) == tasks
    script = Script(chat, "<python>print(6 * 7)</python>", "\\boxed{42}")
    [trajectory] = play_batch(tasks, script, chat, budget=BUDGET)
    assert [turn.info["use_tool"] for turn in trajectory.turns] == [True, False]
    assert "Code execution result: 42" in script.prompts[1]
    assert trajectory.end == "terminated"


def test_a_tool_that_is_gone_makes_a_failure_of_the_tool_not_a_zero(
    small_tokenizer: Any,
) -> None:
    chat = ChatFormat(small_tokenizer)
    made = []

    def make_env(task: Any) -> Env:
        made.append(ToolEnv(task.make(), Echo()))
        return made[-1]

    script = Script(chat, "<echo>x", "<echo>gone", "<echo>x", "<echo>gone")
    [trajectory] = play_batch(
        TaskSet(GUESS, 1), script, chat, budget=BUDGET, make_env=make_env, retries=1
    )
    assert trajectory.end == "failed"
    assert trajectory.failure is not None
    assert (trajectory.failure.cause, trajectory.failure.attempts) == ("tool", 2)
    assert "the echo is gone" in trajectory.failure.message
    wait_until(lambda: all(env.tools[0].closed for env in made))


@pytest.mark.parametrize("context", ["chat", "concat", "concat_with_action", "window:1"])
def test_the_latest_board_stays_in_sight_in_every_context(
    context: str, small_tokenizer: Any
) -> None:
    chat = ChatFormat(small_tokenizer)
    script = Script(chat, "\\boxed{1 2}", "<echo>x", "<echo>y", "\\boxed{1 2}")
    play_batch(
        TaskSet("game:Mastermind-v0-easy", 1),
        script,
        chat,
        budget=Budget(turn_tokens=99, response_tokens=4000, prompt_tokens=4000, turns=4),
        context=context,
        make_env=lambda task: ToolEnv(task.make(), Echo()),
    )
    assert len(script.prompts) == 4
    assert all("black peg(s)" in prompt for prompt in script.prompts[1:])


def test_a_call_in_a_models_own_tokens_reaches_the_tool(qwen3_tokenizer: Any) -> None:
    chat = ChatFormat(qwen3_tokenizer)
    call = json.dumps({"name": "python", "arguments": {"code": "print(6 * 7)"}})
    ids = qwen3_tokenizer.encode(f"Let me see.\n<tool_call>\n{call}\n</tool_call><|im_end|>")
    assert qwen3_tokenizer.convert_tokens_to_ids("<tool_call>") in ids
    parsed = PythonTool(runner="subprocess").parse(chat.decode(ids))
    assert parsed == ToolCall("python", {"code": "print(6 * 7)"})

"""`ToolEnv`: passes a reply with a tool call to the tool, any other reply to the environment."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

from gem.blame import boundary
from gem.core import Env, Info, Observation, Step, Wrapper
from gem.errors import ConfigurationError, ResetNeededError, UnreachableError
from gem.foreign import named
from gem.grading.formats import AnswerFormat
from gem.parameters import choice, integer, number
from gem.tools import Tool, ToolLike, make_tools
from gem.tools.base import TOOL_CALL, ToolCall, ToolResult, clip, failed, json_call, printable

EnvT = TypeVar("EnvT", bound="ToolEnv")

_SPENT = "You have used up your tool calls. Give your final answer now."
_FORM = 'A call is {"name": ..., "arguments": {...}} between <tool_call> and </tool_call>.'
# A last line longer than this is not repeated: it is no short request such as "Enter your guess".
_LONGEST_REQUEST = 400


class ToolEnv(Wrapper):
    """Lets the policy call tools; calls take no turn of the environment.

    The first tool whose `parse` finds a call in a reply handles the step, even if the call fails;
    only a reply without any call reaches the environment. A malformed call, one without its end
    (cut by a stop string or a token limit), or one of an unknown tool, is answered as a failed
    call. After `max_tool_uses` calls every reply reaches the environment.

    The observation of a call ends with the environment's last request, so that every context shows
    the latest board.

    Every step's info has `use_tool` (bool), `tool_type` (empty without a call),
    `tool_use_counter`, `tool_success_counter` and `tool_timeout_counter`; that of a call also
    `parsed_action`, the whole reply. The info of `reset` has the counters of the episode before,
    `prev_ep_tool_use_counter` and `prev_ep_tool_success_counter`.

    Attributes:
        tools: This environment's own tools.
        tool_use_counter: Calls in this episode.
        tool_success_counter: Successful calls in this episode.
        tool_timeout_counter: Calls in this episode that were given up after a wall-clock limit.
    """

    _apart = ("env", "tools")

    def __init__(
        self,
        env: Env,
        tools: ToolLike | Sequence[ToolLike],
        *,
        tool_reward: float = 0.0,
        tool_success_reward: float = 0.0,
        tool_execute_error_reward: float = 0.0,
        max_tool_uses: int = 10,
        unreachable: str = "raise",
    ) -> None:
        """Store the environment and copies of the tools; nothing is started.

        Args:
            env: The environment.
            tools: See `gem.tools.make_tools`.
            tool_reward: Reward of every call.
            tool_success_reward: Added for a call that succeeds.
            tool_execute_error_reward: Reward of a call that fails, at most 0. If it is not 0, the
                other two must be. With 0, failed calls get `tool_reward` too.
            max_tool_uses: Most calls in an episode.
            unreachable: What happens when a tool's server or sandbox is gone: `"raise"` raises
                `UnreachableError`, so that a rollout restarts the episode and, if that fails too,
                drops it; `"tell"` shows the policy an error, without reward.

        Raises:
            ConfigurationError: A value is not allowed, or there is no tool.
        """
        super().__init__(env)
        self.tools = make_tools(tools)
        if not self.tools:
            raise ConfigurationError("tools must name at least one tool")
        self.tool_reward = number("tool_reward", tool_reward)
        self.tool_success_reward = number("tool_success_reward", tool_success_reward)
        self.tool_execute_error_reward = number(
            "tool_execute_error_reward", tool_execute_error_reward
        )
        if self.tool_execute_error_reward > 0:
            raise ConfigurationError(
                f"tool_execute_error_reward must not be above 0, got {tool_execute_error_reward!r}"
            )
        if self.tool_execute_error_reward and (tool_reward or tool_success_reward):
            raise ConfigurationError(
                "tool_execute_error_reward excludes the other two rewards, got "
                f"tool_reward={tool_reward!r}, tool_success_reward={tool_success_reward!r}"
            )
        self.max_tool_uses = integer("max_tool_uses", max_tool_uses, 1, 10**9)
        self.unreachable = choice("unreachable", unreachable, ("raise", "tell"))
        self._check_answers()
        self._forget()

    def _check_answers(self) -> None:
        """Raise if a tool would take every answer in the environment's answer format for a call."""
        form = getattr(self.env, "answer_format", None)
        if not isinstance(form, AnswerFormat):
            return
        for tool in self.tools:
            if tool.parse(form.wrap("0")) is not None:
                raise ConfigurationError(
                    f"tool {tool.tool_type!r} would take every answer of the form {form.name!r} "
                    "for a call; choose another answer_format, or for Python "
                    'tools=[{"name": "python", "fenced": false}]'
                )

    def _forget(self) -> None:
        self.tool_use_counter = 0
        self.tool_success_counter = 0
        self.tool_timeout_counter = 0
        self._running = False
        self._asked = ""

    @property
    def replayable(self) -> bool:  # type: ignore[override]
        """Whether environment and tools are."""
        return self.env.replayable and all(tool.replayable for tool in self.tools)

    def reset(self, seed: int | None = None, **options: Any) -> tuple[Observation, Info]:
        """Begin an episode; the tools' instructions follow the environment's observation.

        Raises:
            ConfigurationError, MissingExtraError: A tool cannot work here.
            UnreachableError: A server that a tool needs does not answer.
        """
        before = {
            "prev_ep_tool_use_counter": self.tool_use_counter,
            "prev_ep_tool_success_counter": self.tool_success_counter,
        }
        self._forget()
        observation, info = self.env.reset(seed=seed, **options)
        with boundary("tool"):
            for tool in self.tools:
                tool.reset()
            instructions = self._instructions()
        request = _text(observation).rstrip().rpartition("\n")[2]
        self._asked = request if len(request) <= _LONGEST_REQUEST else ""
        self._running = True
        return _with(observation, instructions), {**info, **before}

    def step(self, action: str) -> Step:
        """Execute a call, or step the environment.

        Raises:
            ResetNeededError: The episode has not begun or is over.
            UnreachableError: See `unreachable` of the constructor.
        """
        if not self._running:
            raise ResetNeededError("the episode has not begun or is over; call reset()")
        with boundary("tool"):
            found = self._call(action) if self.tool_use_counter < self.max_tool_uses else None
        if found is None:
            return self._step_env(action)
        tool, call = found
        gone = None
        try:
            with boundary("tool"):
                result = tool.execute(call) if tool else failed(call)
        except UnreachableError as error:
            if self.unreachable == "raise":
                raise
            gone = f"[The tool is out of order: {clip(named(error)[1], 200)}]"
            result = ToolResult(gone, False)
        self.tool_use_counter += 1
        self.tool_success_counter += result.ok
        self.tool_timeout_counter += result.timed_out
        reward = 0.0
        if gone is None:
            reward = self.tool_reward
            reward += self.tool_success_reward if result.ok else self.tool_execute_error_reward
        with boundary("tool"):
            text = tool.observe(call, result) if tool else result.text
        info = {
            "success": False,
            "format_error": False,
            "invalid_action": False,
            **self._info(True, tool.tool_type if tool else ""),
            "parsed_action": action,
        }
        return self._observed(text), reward, False, False, info

    def _call(self, action: str) -> tuple[Tool | None, ToolCall] | None:
        """Return the reply's call and its tool; None for the tool if the call fits none."""
        cut = None
        for tool in self.tools:
            call = tool.parse(action)
            if call is not None and not call.cut:
                return tool, call
            if call is not None and cut is None:
                cut = tool, call
        if cut is not None:
            return cut
        if TOOL_CALL.search(action) is None:
            return None
        found = json_call(action)
        if found is None:
            return None, ToolCall("", error=_FORM)
        name = found[0].name
        if not name:
            return None, ToolCall("", error=found[0].error)
        known = ", ".join(name for tool in self.tools for name in tool.names)
        error = f"There is no tool {clip(printable(name), 80)!r}; there are: {known}."
        return None, ToolCall(name, error=error)

    def _step_env(self, action: str) -> Step:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._running = not (terminated or truncated)
        if not self._running:
            with boundary("tool"):
                for tool in self.tools:
                    tool.finish()
        self._asked = _text(observation)
        return observation, reward, terminated, truncated, {**info, **self._info(False, "")}

    def _observed(self, text: str) -> str:
        left = self.max_tool_uses - self.tool_use_counter
        budget = f"Tool calls left: {left}." if left else _SPENT
        return "\n".join(filter(None, (text, budget, self._asked)))

    def _info(self, use_tool: bool, tool_type: str) -> Info:
        return {
            "use_tool": use_tool,
            "tool_type": tool_type,
            "tool_use_counter": self.tool_use_counter,
            "tool_success_counter": self.tool_success_counter,
            "tool_timeout_counter": self.tool_timeout_counter,
        }

    @property
    def descriptions(self) -> str:
        """What the first observation says of each tool; known after the first `reset`."""
        lines = [tool.instruction() for tool in self.tools]
        if len(lines) > 1:
            lines = ["Available tools:", *(f"- {line}" for line in lines)]
        return "\n".join(lines)

    def _instructions(self) -> str:
        calls = "1 tool call" if self.max_tool_uses == 1 else f"{self.max_tool_uses} tool calls"
        return (
            f"{self.descriptions}\n"
            f"You have {calls}, one in a reply; a reply without a call is taken as your answer."
        )

    def close(self) -> None:
        """Close the tools and the environment."""
        with ExitStack() as closing:  # all of them, also if one raises
            closing.callback(self.env.close)
            for tool in reversed(self.tools):
                closing.callback(tool.close)

    def snapshot(self) -> bytes:
        """Return the state of wrapper, tools and environment."""
        tools = [tool.snapshot() for tool in self.tools]
        return pickle.dumps((super().snapshot(), tools), protocol=5)

    def restore(self, state: bytes) -> None:
        """Continue from `snapshot`; connections of the tools stay open."""
        rest, tools = pickle.loads(state)
        super().restore(rest)
        for tool, saved in zip(self.tools, tools, strict=True):
            tool.restore(saved)

    def spawn(self: EnvT, same_state: bool = False, seed: int | None = None) -> EnvT:
        """Spawn the inner environment and copy the tools."""
        child = super().spawn(same_state=same_state, seed=seed)
        child.tools = [tool.spawn() for tool in self.tools]
        return child


def _text(observation: Observation) -> str:
    if isinstance(observation, str):
        return observation
    return "\n".join(part["text"] for part in observation if part.get("type") == "text")


def _with(observation: Observation, text: str) -> Observation:
    if isinstance(observation, str):
        return f"{observation}\n{text}"
    return [*observation, {"type": "text", "text": text}]

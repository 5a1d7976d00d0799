"""The Python tool: runs the first program in a reply inside a sandbox (`gem_sandbox`)."""

from __future__ import annotations

import re
import textwrap
from typing import Any, ClassVar

import gem_sandbox as sandbox
from gem.blame import boundary
from gem.errors import BusyMachineError, UnreachableError
from gem.fences import fenced_blocks
from gem.parameters import flag, integer, positive
from gem.tools.base import (
    TOOL_CALL,
    Block,
    Tool,
    ToolCall,
    ToolResult,
    clip,
    count_blocks,
    failed,
    first_block,
    first_text,
    printable,
    text_schema,
    unended,
)
from gem_sandbox import Limits, Result

_TAG = re.compile(r"<python>", re.IGNORECASE)
_END = "</python>"
# Matches the program's file in a traceback; its folder differs in every run.
_PROGRAM = re.compile(r'File "[^"\n]*[/\\](program(?:-\d+)?\.py)"')
_LIMITS = {
    "time": "The program was stopped after {limits.cpu_s:g} s.",
    "memory": "The program needed more than {limits.memory_mb} MB of memory.",
    "output": "The program printed too much; the rest was cut off.",
}


class PythonTool(Tool):
    """Runs `<python>...</python>`, a fenced Python block, or the JSON call `python` with `code`.

    One call runs one program: the block that ends first. Nothing is kept between calls, unless
    `session` is set: then each program of an episode starts in the state the previous one left, and
    snapshots include that state.
    """

    tool_type: ClassVar[str] = "python"
    live: ClassVar[frozenset[str]] = frozenset({"_open"})
    # The session of this episode; made at the first call.
    _open: sandbox.Session | None = None
    # In a restored or copied tool: the session's state, until the first call makes a session.
    _saved: bytes | None = None

    def __init__(
        self,
        *,
        runner: sandbox.Runner | str | None = None,
        timeout_s: float = 5.0,
        memory_mb: int = 1024,
        max_output: int = 8192,
        keep_error_last_line: bool = False,
        fenced: bool = True,
        retries: int = 2,
        session: bool = False,
    ) -> None:
        """Store the parameters.

        Args:
            runner: What runs the programs; see `gem_sandbox.resolve`. None, the default, is one
                that isolates; `reset` raises if none is available.
            timeout_s: Seconds of CPU time until a program is killed; see `gem_sandbox.Limits`.
            memory_mb: Memory of a program.
            max_output: Most characters of output that the policy is shown: head and tail.
            keep_error_last_line: Show only the last line of standard error: the exception without
                its traceback.
            fenced: Whether a fenced Python block is a call, too. Set it to False where the answer
                itself is a fenced block.
            retries: Further attempts when the sandbox itself fails.
            session: Whether variables, imports and files are kept between the calls of an episode;
                needs a runner with sessions.

        Raises:
            ConfigurationError: A value is not allowed.
        """
        if isinstance(runner, str):
            sandbox.runner_class(runner)
        self.runner = runner
        self.timeout_s = positive("timeout_s", timeout_s)
        self.memory_mb = integer("memory_mb", memory_mb, 16, 10**6)
        self.max_output = integer("max_output", max_output, 64, 10**7)
        self.keep_error_last_line = flag("keep_error_last_line", keep_error_last_line)
        self.fenced = flag("fenced", fenced)
        self.retries = integer("retries", retries, 0, 100)
        self.session = flag("session", session)

    @property
    def replayable(self) -> bool:  # type: ignore[override]
        """Whether it has sessions: each program without one draws random numbers of its own."""
        return self.session

    def reset(self) -> None:
        """Find the runner; end the session of the episode before.

        Raises:
            ConfigurationError: No runner was named and none that isolates is available, or the
                runner has no sessions.
        """
        self.finish()
        runner = sandbox.resolve(self.runner)
        if self.session:
            runner.session(self._limits).close()

    def finish(self) -> None:
        """End the session."""
        if self._open is not None:
            self._open.close()
        self._open = self._saved = None

    def close(self) -> None:
        """End the session."""
        self.finish()

    def instruction(self) -> str:
        """Return how to call the tool."""
        return (
            "You can run Python code. Write one complete program inside <python> </python>; what "
            f"it prints is shown to you. {self._rules}"
        )

    def schemas(self) -> list[dict[str, Any]]:
        """Return the function `python`."""
        about = f"Run a complete Python program; what it prints is shown to you. {self._rules}"
        return [text_schema(self.tool_type, about, "code", "The program.")]

    @property
    def _rules(self) -> str:
        kept = "variables and imports are" if self.session else "nothing is"
        return f"It is stopped after {self.timeout_s:g} s, and {kept} kept for the next program."

    def parse(self, text: str) -> ToolCall | None:
        """Return the program that ends first."""
        tagged = first_block(text, _TAG, _END)
        fences = self._fences(text)
        # The JSON call's code is exact, that of other forms may be indented.
        blocks = [
            each._replace(content=_dedented(each.content))
            for each in [*filter(None, [tagged]), *fences]
        ]
        found = first_text(text, blocks, self.tool_type, "code")
        if found is None:
            return None
        code = {"code": printable(found.content)}
        ignored = count_blocks(text, _TAG, _END, found.end)
        ignored += count_blocks(text, TOOL_CALL, "</tool_call>", found.end)
        ignored += sum(each.start >= found.end and not each.cut for each in fences)
        return ToolCall(self.tool_type, code, found.error, ignored, found.cut)

    def _fences(self, text: str) -> list[Block]:
        """Return the fenced blocks of Python."""
        if not self.fenced or ("```" not in text and "~~~" not in text):
            return []
        return [
            Block(each.start, each.content, each.end)
            if each.closed
            else Block(each.start, each.content, each.end, unended("```"), cut=True)
            for each in fenced_blocks(text)
            if each.python
        ]

    def execute(self, call: ToolCall) -> ToolResult:
        """Run the program; see `Tool.execute`."""
        if call.error is not None:
            return failed(call)
        for attempt in range(self.retries + 1):
            try:
                with boundary("sandbox"):
                    runner, limits = self._runner()
                    result = runner.run(call.arguments["code"], "", *limits)
                return self._result(result)
            except BusyMachineError:
                # The runner has tried again.
                raise
            except UnreachableError:
                if attempt == self.retries:
                    raise
        raise AssertionError("unreachable")

    async def aexecute(self, call: ToolCall) -> ToolResult:
        """Like `execute`, by the runner's or the session's `arun`."""
        if call.error is not None:
            return failed(call)
        for attempt in range(self.retries + 1):
            try:
                with boundary("sandbox"):
                    runner, limits = self._runner()
                    result = await runner.arun(call.arguments["code"], "", *limits)
                return self._result(result)
            except BusyMachineError:
                # The runner has tried again.
                raise
            except UnreachableError:
                if attempt == self.retries:
                    raise
        raise AssertionError("unreachable")

    def restore(self, state: bytes) -> None:
        """Continue from `snapshot`, in the open session if there is one."""
        super().restore(state)
        if self._open is not None and self._saved is not None:
            self._open.restore(self._saved)
        elif self._open is not None:
            self._open.close()
            self._open = None

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        if self._open is not None:
            state["_saved"] = self._open.snapshot()
        return state

    def _runner(self) -> tuple[Any, list[Limits]]:
        """Return the session or runner that runs programs; with the limits, for a runner."""
        if self.session:
            return self._going_on(), []
        return sandbox.resolve(self.runner), [self._limits]

    def _going_on(self) -> sandbox.Session:
        """Return this episode's session, opening it at the first call."""
        if self._open is None:
            self._open = sandbox.resolve(self.runner).session(self._limits)
            if self._saved is not None:
                self._open.restore(self._saved)
        return self._open

    @property
    def _limits(self) -> Limits:
        return Limits(cpu_s=self.timeout_s, memory_mb=self.memory_mb)

    def _result(self, result: Result) -> ToolResult:
        stderr = _PROGRAM.sub(r'File "\1"', result.stderr).strip()
        if self.keep_error_last_line:
            stderr = stderr.rpartition("\n")[2]
        shown = clip("\n".join(filter(None, (result.stdout.strip("\n"), stderr))), self.max_output)
        parts = [shown]
        if result.limit_hit is not None:
            told = _LIMITS.get(result.limit_hit, f"The program hit its {result.limit_hit} limit.")
            parts.append(told.format(limits=self._limits))
        elif result.exit_code and not stderr:
            parts.append(f"The program ended with exit code {result.exit_code}.")
        text = "\n".join(filter(None, parts)) or "The program printed nothing."
        ok = result.exit_code == 0 and result.limit_hit in (None, "output")
        return ToolResult(f"Code execution result: {printable(text)}", ok)


def _dedented(content: str) -> str:
    # Code may begin on the tag's line, after a space.
    return textwrap.dedent(content).lstrip(" \t").strip("\n")

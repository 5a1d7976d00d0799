"""`ProvidedBox`: a box of one of Harbor's own providers, such as `docker`, by a trial of Harbor.

Harbor runs in a process of its own, with its own Python, because trainers need other versions of
the packages that it needs. Its agent asks this process what to do (`theirs.harbored`). Its verifier
gives the reward.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from gem.errors import ConfigurationError, DataError, UnreachableError
from gem.json_lines import parse
from gem_box.box import Ran
from gem_box.grading import Graded, finite, reward_of

PYTHON = "GEM_HARBOR_PYTHON"
"""Variable that names a Python with Harbor, where this one has none."""
_THEIRS = Path(__file__).parent / "theirs"
_BEGIN = "import sys; sys.path.insert(0, {folder!r}); import harbored; harbored.main(*sys.argv[1:])"
_MOST = 1 << 20
# Time beyond a limit of Harbor's after which its process is not waited for.
_MORE_S = 300.0
_START_S = 7200.0
_GRADE_S = 1800.0
# The tests said nothing that Harbor can read: the policy may have broken them.
_NO_REWARD = ("RewardFileNotFoundError", "RewardFileEmptyError", "VerifierOutputParseError")
# A shell for each command that goes on where the last one was. Its output is in a file, so that a
# process in the background holds nothing.
_SHELL = r"""
s=/tmp/.gem-shell; h=sh; t=
command -v bash >/dev/null 2>&1 && h=bash
timeout -k 1 9 sh -c : 2>/dev/null && t="timeout -k 5 {seconds}"
[ -n "$t" ] || {{ echo; echo "gem no-timeout 0"; exit; }}
b=$(date +%s)
$t $h -c '
cd "$(cat "$0.folder" 2>/dev/null || pwd)" 2>/dev/null
. "$0.values" >/dev/null 2>&1
eval "$1"
gem_code=$?
pwd > "$0.folder"
if [ -n "$BASH_VERSION" ]; then
  {{ declare -p | grep -v "^declare -[a-zA-Z]*r"; declare -f; }} > "$0.values" 2>/dev/null
else
  export -p > "$0.values"
fi
exit $gem_code' "$s" {command} > "$s.output" 2>&1 < /dev/null
c=$?
n=$(wc -c < "$s.output")
if [ "$n" -gt {most} ]; then
  head -c {half} "$s.output"; tail -c {half} "$s.output"
else
  cat "$s.output"
fi
hit=0
[ $c -eq 124 ] || [ $c -eq 137 ] && [ $(($(date +%s) - b)) -ge {seconds} ] && hit=1
echo; echo "gem $c $hit $n"
"""


class _Harbor:
    """Harbor with one provider, for all boxes of this process."""

    def __init__(self, provider: str) -> None:
        self.users = 0
        self._folder = tempfile.mkdtemp(prefix="gem-harbor-")
        command = [_python(), "-c", _BEGIN.format(folder=str(_THEIRS)), provider, self._folder]
        env = {"HARBOR_TELEMETRY": "off", **os.environ}
        self._log = Path(self._folder, "log").open("w+b")  # noqa: SIM115 - closed by close()
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=env,
            start_new_session=True,
        )
        self._answers: dict[int, Queue[dict[str, Any]]] = {}
        self._over = False
        self._writing = threading.Lock()
        self._reader = threading.Thread(target=self._read, name="gem-harbor", daemon=True)
        self._reader.start()
        try:
            answer = self.answer(0, _MORE_S)
            refused = answer.get("refused")
        except (UnreachableError, TimeoutError) as error:
            refused = str(error)
        if refused:
            self.close()
            raise ConfigurationError(f"box={provider}: {refused}")

    @property
    def lives(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None and self._reader.is_alive()

    def tell(self, number: int, call: Mapping[str, Any]) -> None:
        """Send a call of a box."""
        assert self.process.stdin is not None
        try:
            with self._writing:
                self.process.stdin.write(json.dumps({"box": number, **call}).encode() + b"\n")
                self.process.stdin.flush()
        except (OSError, ValueError):
            raise UnreachableError(f"Harbor is gone: {self._said()}") from None

    def answer(self, number: int, limit_s: float) -> dict[str, Any]:
        """Return the next answer to a box."""
        queue = self._queue(number)
        if self._over:
            queue.put(_GONE)
        try:
            answer = queue.get(timeout=limit_s)
        except Empty:
            raise TimeoutError(f"Harbor does not answer within {limit_s:g} s") from None
        if answer is _GONE:
            raise UnreachableError(f"Harbor is gone: {self._said()}")
        return answer

    def forget(self, number: int) -> None:
        """Forget a box."""
        self._answers.pop(number, None)

    def close(self) -> None:
        """End it and all its boxes."""
        if self.process.poll() is None:
            assert self.process.stdin is not None
            with contextlib.suppress(OSError), self._writing:
                self.process.stdin.close()
            try:
                self.process.wait(_MORE_S)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
        self._reader.join(_MORE_S)
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _read(self) -> None:
        assert self.process.stdout is not None
        try:
            for line in self.process.stdout:
                answer = parse(line.decode(), "an answer of Harbor")
                self._queue(answer.pop("box")).put(answer)
        finally:
            self._over = True
            for queue in list(self._answers.values()):
                queue.put(_GONE)

    def _queue(self, number: int) -> Queue[dict[str, Any]]:
        # One step, as two threads may come at once.
        return self._answers.setdefault(number, Queue())

    def _said(self) -> str:
        if self._log.closed:
            return "it was closed"
        self._log.seek(0)
        return self._log.read().decode("utf-8", "replace").strip()[-500:] or "it said nothing"


_GONE: dict[str, Any] = {}
"""In place of an answer: there is no further one."""
_harbors: dict[tuple[int, str], _Harbor] = {}
"""By process and provider."""
_lock = threading.Lock()
_numbers = itertools.count(1)


class ProvidedBox:
    """A box that Harbor's providers make; see `Box` for `run`.

    A command has a shell of its own, which goes on in the folder of the last one, with its
    variables and, in bash, its functions. A limit of time is one of the provider's clock.
    """

    def __init__(self, provider: str) -> None:
        """Start Harbor, unless another box of this process has it.

        Args:
            provider: As of `harbor run --env`: a name, such as `docker`, or `MODULE:CLASS`.

        Raises:
            ConfigurationError: There is no Harbor, or the provider cannot be used here.
        """
        self._running, self._number = False, next(_numbers)
        self._key = os.getpid(), provider
        with _lock:
            known = _harbors.get(self._key)
            if known is None or not known.lives:
                known = _harbors[self._key] = _Harbor(provider)
            known.users += 1
            self._harbor: _Harbor = known
        self._closed = False

    def start(self, task: Path) -> None:
        """Begin a trial of a task; one that was not finished is dropped.

        Raises:
            UnreachableError: Harbor cannot start the box; the message has its reason.
        """
        self.drop()
        self._running = True
        answer = self._ask({"do": "begin", "task": str(task.resolve())}, _START_S)
        if "begun" not in answer:
            self._running = False
            raise UnreachableError(f"{task.name}: {answer.get('error')}: {answer.get('message')}")
        # Only now, as a policy may remove programs later.
        said, told = self._ran("true", 10)
        if told is None:
            raise UnreachableError(
                f"{task.name}: no shell, or no program `timeout`, which ends commands: {said:.300}"
            )

    def run(self, command: str, timeout: float) -> Ran:
        """Run a command.

        Args:
            command: A text for the shell.
            timeout: Seconds of the provider's clock; what takes longer is killed.

        Raises:
            UnreachableError: The box is gone.
        """
        if "\0" in command:
            return Ran(b"a command cannot have a NUL", 126)
        output, told = self._ran(command, max(1, round(timeout)))
        kept = output.encode("utf-8", "replace")
        if told is None:
            # The command, or one before, has destroyed what is needed to run one.
            return Ran(kept[-_MOST:], 127, ended_shell=True)
        code, hit, size = told
        return Ran(kept, code, "time" if hit else None, bool(hit), max(0, size - _MOST))

    def _ran(self, command: str, seconds: int) -> tuple[str, tuple[int, int, int] | None]:
        """Return the output; and, if the end is told, exit code, whether time was up, length."""
        text = shlex.quote(command)
        script = _SHELL.format(seconds=seconds, command=text, most=_MOST, half=_MOST // 2)
        call = {"do": "run", "script": script, "timeout": seconds + 60}
        said = str(self._done(call, seconds + 60)["output"]).rstrip("\n")
        output, _, end = said.rpartition("\n")
        found = re.fullmatch(r"gem (\d+) (\d) +(\d+)", end)
        if found is None:
            return said, None
        code, hit, size = map(int, found.groups())
        return output.removesuffix("\n"), (code, hit, size)

    def put(self, source: Path, target: str, *, fresh: bool = False) -> None:
        """Copy a file, or the content of a folder, into the box; what else is there stays.

        Raises:
            UnreachableError: The box is gone.
        """
        self._done({"do": "put", "source": str(source.resolve()), "target": target}, _MORE_S)

    def graded(self, limit_s: float, reward_key: str | None, task: str) -> Graded:
        """End the trial: Harbor's verifier runs the tests.

        Args:
            limit_s: Harbor's own limit of the tests.
            reward_key: See `gem_box.grading.grade`.
            task: Name of the task.

        Raises:
            ConfigurationError: The tests write numbers, and none has the name of the reward.
            UnreachableError: Harbor fails. That the tests wrote nothing that can be read is no such
                failure: then the reward is 0.
        """
        said, told = self._ran("true", 10)
        if told is None:
            # Harbor would fail at this, too, and could not say that the policy did it.
            self.drop()
            return Graded(0.0, {}, f"no command runs any more: {said:.300}")
        answer = self._ask({"do": "finish"}, limit_s + _GRADE_S)
        self._running = False
        error, message = answer.get("error"), answer.get("message")
        output = str(answer.get("output", ""))
        rewards = answer.get("rewards")
        if rewards is None and error in _NO_REWARD:
            return Graded(0.0, {}, str(message), output)
        if rewards is None or error:
            raise UnreachableError(f"{task}: Harbor has no verdict: {error}: {message}")
        try:
            given = finite(rewards)
        except DataError as wrong:
            return Graded(0.0, {}, str(wrong), output)
        return Graded(reward_of(task, given, reward_key), given, "", output)

    def drop(self) -> None:
        """End the box of a trial that was not finished."""
        if not self._running:
            return
        self._running = False
        with contextlib.suppress(UnreachableError, TimeoutError):
            answer = self._ask({"do": "drop"}, _START_S)
            while "dropped" not in answer:
                answer = self._harbor.answer(self._number, _START_S)

    @property
    def lives(self) -> bool:
        """Whether Harbor still runs."""
        return not self._closed and self._harbor.lives

    def close(self) -> None:
        """End the box, and Harbor with the last one; safe to repeat."""
        self.drop()
        with _lock:
            if self._closed:
                return
            self._closed = True
            self._harbor.forget(self._number)
            self._harbor.users -= 1
            if self._harbor.users:
                return
            if _harbors.get(self._key) is self._harbor:
                del _harbors[self._key]
        self._harbor.close()

    def _done(self, call: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        answer = self._ask(call, limit_s)
        if "failed" in answer or "ended" in answer:
            reason = answer.get("failed") or f"{answer.get('error')}: {answer.get('message')}"
            raise UnreachableError(f"the box fails: {reason}")
        return answer

    def _ask(self, call: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        self._harbor.tell(self._number, call)
        try:
            return self._harbor.answer(self._number, limit_s + _MORE_S)
        except UnreachableError:
            raise
        except BaseException as error:
            # What comes late is not the answer to a later call.
            with contextlib.suppress(UnreachableError):
                self._harbor.tell(self._number, {"do": "drop"})
            self._harbor.forget(self._number)
            self._number, self._running = next(_numbers), False
            if isinstance(error, TimeoutError):
                raise UnreachableError(str(error)) from None
            raise


def _python() -> str:
    """Return a Python that has Harbor."""
    if named := os.environ.get(PYTHON):
        return named
    if find_spec("harbor") is None:
        raise ConfigurationError(
            "a box of one of Harbor's providers needs Harbor: install it into a Python 3.12 (pip "
            f"install harbor), and name that Python in the variable {PYTHON}"
        )
    return sys.executable

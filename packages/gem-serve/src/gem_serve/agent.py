"""`AgentEnv`, any agent program as an environment: `gem.make("agent:python program.py")`."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shlex
import signal
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import IO, Any

from gem.contract import scalars
from gem.core import Info, Observation, known_options
from gem.errors import ConfigurationError, DataError, GemError
from gem.foreign import signal_name
from gem.json_lines import numbered_lines, parse
from gem.parameters import optional, positive, text
from gem_serve.asked import AskedEnv
from gem_serve.conversation import AgentProgramError
from gem_serve.inverted import Session

_TIMEOUT_S = 300.0
_GRACE_S = 2.0
_MOST_REWARD_BYTES = 1 << 20
_MOST_SAID = 2000


class AgentEnv(AskedEnv):
    """A program that talks to a chat model is the environment, and the policy is the model.

    Each episode starts the program anew, with these environment variables:

    - `OPENAI_BASE_URL` and `OPENAI_API_KEY`: the chat model;
    - `GEM_SEED`: the episode's seed, an integer;
    - `GEM_TASK`: a file with the episode's task as JSON, a row of `tasks` or `{}`;
    - `GEM_REWARD`: the file into which it writes, before it ends with exit status 0, a number as
      JSON, or an object with `reward` and, if it likes, `success` and `truncated` (booleans) and
      any other numbers, texts and booleans, which become the last step's info.

    The first request is the first observation; the policy's reply is the action. The reward comes
    with the last step. The episode is void, never one with a reward of 0, if the program ends
    otherwise, writes no finite reward, rewrites the conversation, calls the model in parallel, or
    is silent for too long. A program must therefore bear any reply of the policy.
    """

    def __init__(
        self,
        address: str,
        *,
        cwd: str | None = None,
        tasks: str | None = None,
        timeout_s: float = _TIMEOUT_S,
        seed: int | None = None,
    ) -> None:
        """Store the command; no program is started.

        Args:
            address: The command, in words as a shell separates them; no shell runs it.
            cwd: Folder in which it runs; by default that of this process.
            tasks: File of JSON objects, one a line; the seed chooses one for each episode.
            timeout_s: Longest time, in seconds, in which the program neither asks nor ends.
            seed: Base seed of the first `reset` without one.

        Raises:
            ConfigurationError: A value is not allowed, or a file is missing.
        """
        super().__init__(f"agent:{address}", positive("timeout_s", timeout_s), seed=seed)
        try:
            self._command = shlex.split(text("the command after agent:", address))
        except ValueError as error:
            raise ConfigurationError(f"the command {address!r}: {error}") from None
        if not self._command:
            raise ConfigurationError(f"an agent is agent:<command>, got {address!r}")
        self._address = address
        self._cwd = optional(text, "cwd", cwd)
        if self._cwd is not None and not Path(self._cwd).is_dir():
            raise ConfigurationError(f"cwd must be a folder, got {cwd!r}")
        self._tasks_file = optional(text, "tasks", tasks)
        self._tasks = [{}] if self._tasks_file is None else _read_tasks(Path(self._tasks_file))
        self._program: _Program | None = None

    def reset(self, seed: int | None = None, **options: Any) -> tuple[Observation, Info]:
        """Start the program and wait for its first request.

        Raises:
            ConfigurationError: The command cannot be run.
            AgentProgramError: The program broke before it asked.
        """
        known_options(self, options)
        self.close()
        super().reset(seed=seed)
        row = self.rng.randrange(len(self._tasks))
        base, episode = self.episode_key
        number = base if episode == 0 else self.rng.getrandbits(31)
        self._program = _Program(self._command, self._cwd, number, self._tasks[row])
        observation = self._first(self._program.session)
        return observation, {"task": row} if self._tasks_file else {}

    def close(self) -> None:
        """End the program, and all that it has started in its process group; safe to repeat."""
        super().close()
        program, self._program = self._program, None
        if program is not None:
            program.close()

    def _outcome(self, result: Any) -> tuple[float, bool, Info]:
        assert self._program is not None
        return self._program.outcome()

    def _parameters(self) -> dict[str, Any]:
        return {
            "address": self._address,
            "cwd": self._cwd,
            "tasks": self._tasks_file,
            "timeout_s": self._timeout_s,
        }


class _Program:
    """A program that runs, its session, and the folder with its files."""

    def __init__(
        self, command: list[str], cwd: str | None, seed: int, task: dict[str, Any]
    ) -> None:
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gem-agent-")))
            self._reward = folder / "reward.json"
            (folder / "task.json").write_text(json.dumps(task), encoding="utf-8")
            self.session = Session()
            stack.callback(self.session.close)
            self._said: IO[bytes] = stack.enter_context((folder / "said").open("w+b"))
            local = [os.environ.get("no_proxy") or os.environ.get("NO_PROXY"), "127.0.0.1"]
            without_proxy = ",".join(filter(None, local))
            variables = {
                "OPENAI_BASE_URL": self.session.url,
                "OPENAI_API_KEY": self.session.token,
                "GEM_SEED": str(seed),
                "GEM_TASK": str(folder / "task.json"),
                "GEM_REWARD": str(self._reward),
                "NO_PROXY": without_proxy,
                "no_proxy": without_proxy,
            }
            try:
                self._process = subprocess.Popen(
                    command,
                    cwd=cwd,
                    env={**os.environ, **variables},
                    stdin=subprocess.DEVNULL,
                    stdout=self._said,
                    stderr=self._said,
                    start_new_session=True,
                )
            except OSError as error:
                raise ConfigurationError(f"cannot run {shlex.join(command)}: {error}") from error
            self._open = stack.pop_all()
        self._watch = threading.Thread(target=self._wait, daemon=True)
        self._watch.start()

    def _wait(self) -> None:
        # Not reaped, so that the number of its process group stays its own until `close`.
        os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        self.session.end(None)

    def outcome(self) -> tuple[float, bool, Info]:
        """Return reward, whether a limit ended the episode, and info, of a program that has ended.

        Raises:
            AgentProgramError: It failed, or left no finite reward.
        """
        self._kill(signal.SIGKILL)
        status = self._process.wait()
        if status:
            ended = f"exit status {status}" if status > 0 else signal_name(-status)
            raise AgentProgramError(f"the program ended with {ended}{self._last_words()}")
        try:
            with self._reward.open("rb") as file:
                value = parse(file.read(_MOST_REWARD_BYTES), "the file GEM_REWARD")
            return _outcome(value)
        except OSError as error:
            raise AgentProgramError(
                f"the program wrote no reward ({error.strerror}){self._last_words()}"
            ) from None
        except DataError as error:
            raise AgentProgramError(f"{error}{self._last_words()}") from None

    def close(self) -> None:
        self.session.close()
        if self._process.returncode is None:
            self._kill(signal.SIGTERM)
            self._watch.join(_GRACE_S)
            self._kill(signal.SIGKILL)
            self._process.wait()
        self._watch.join()
        self._open.close()

    def _kill(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _last_words(self) -> str:
        """Return the end of what the program printed, and what it asked for in vain."""
        self._said.seek(max(0, self._said.seek(0, os.SEEK_END) - _MOST_SAID))
        said = self._said.read().decode(errors="replace").strip()
        refused = ", ".join(dict.fromkeys(self.session.refused))
        vain = f"; it asked in vain for {refused}, GEM answers chat/completions" if refused else ""
        return f"{vain}; it printed: {said}" if said else vain


def _read_tasks(path: Path) -> list[dict[str, Any]]:
    try:
        tasks = [row for _, row in numbered_lines(path)] if path.is_file() else []
    except GemError as error:
        raise ConfigurationError(f"tasks: {error}") from error
    if not tasks:
        raise ConfigurationError(f"tasks must be a file of JSON objects, one a line, got {path}")
    return tasks


def _outcome(value: Any) -> tuple[float, bool, Info]:
    """Return reward, `truncated` and info of what a program wrote."""
    data = value if isinstance(value, dict) else {"reward": value}
    reward: Any = data.get("reward")
    truncated = data.get("truncated", False)
    numeric = isinstance(reward, int | float) and not isinstance(reward, bool)
    if not numeric or not math.isfinite(reward):
        raise DataError(f"the file GEM_REWARD has no finite number as reward: {reward!r:.80}")
    for name in ("truncated", "success"):
        if not isinstance(data.get(name, False), bool):
            raise DataError(f"the file GEM_REWARD: {name} must be true or false")
    info = {name: each for name, each in data.items() if name not in ("reward", "truncated")}
    return float(reward), truncated, scalars(info)

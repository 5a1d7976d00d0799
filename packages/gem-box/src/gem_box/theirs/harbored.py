"""Trials of Harbor whose agent is a policy elsewhere; a program of its own, in Harbor's Python.

`main(PROVIDER, FOLDER)` reads calls from the standard input and answers each with a line of JSON.
It imports Harbor and the standard library only. The agent does what the calls say; all else of a
trial - building, networks, users, checks of health, tests - is Harbor's own. Every call has the
number of its box as `box`, and so has the answer.

    {"do": "begin", "task": PATH}           the box is ready, or why not
    {"do": "run", "script": TEXT, "timeout": SECONDS}
    {"do": "put", "source": PATH, "target": PATH}
    {"do": "finish"}                        what the tests said, or why nothing
    {"do": "drop"}                          the box is gone
"""

import asyncio
import contextvars
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from harbor.agents.base import BaseAgent
from harbor.environments.base import BaseEnvironment
from harbor.environments.factory import EnvironmentFactory
from harbor.models.agent.context import AgentContext
from harbor.models.environment_type import EnvironmentType
from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig
from harbor.trial.trial import Trial

_LONG_S = 10**6
_box: contextvars.ContextVar[int] = contextvars.ContextVar("box")
_calls: "dict[int, asyncio.Queue[dict[str, Any]]]" = {}
"""The calls that the agent of a box has still to answer, by the box's number."""
_dropping: "set[asyncio.Task[None]]" = set()
"""Tasks to which nobody else refers."""


class Policy(BaseAgent):
    """Does in the box what the calls say, until one says `finish`."""

    @staticmethod
    def name() -> str:
        """Return the agent's name."""
        return "gem"

    def version(self) -> str:
        """Return the agent's version."""
        return "1"

    async def setup(self, environment: BaseEnvironment) -> None:
        """Nothing has to be installed."""

    async def run(
        self, instruction: str, environment: BaseEnvironment, context: AgentContext
    ) -> None:
        """Answer calls."""
        _say({"begun": True})
        calls = _calls[_box.get()]
        while (call := await calls.get())["do"] != "finish":
            try:
                _say(await _done(environment, call))
            except Exception as error:
                _say({"failed": _told(error)})


async def _done(environment: BaseEnvironment, call: dict[str, Any]) -> dict[str, Any]:
    if call["do"] == "put":
        source = Path(call["source"])
        copy = environment.upload_dir if source.is_dir() else environment.upload_file
        await copy(source, call["target"])
        return {}
    ran = await environment.exec(call["script"], timeout_sec=int(call["timeout"]))
    return {"output": f"{ran.stdout or ''}{ran.stderr or ''}"}


async def _play(call: dict[str, Any], provider: str, folder: str) -> None:
    _box.set(call["box"])
    own = {"import_path": provider} if ":" in provider else {"type": EnvironmentType(provider)}
    trials = Path(tempfile.mkdtemp(dir=folder))
    try:
        config = TrialConfig(
            task=TaskConfig(path=Path(call["task"])),
            trials_dir=trials,
            # The policy's own time is not the environment's.
            agent=AgentConfig(import_path="harbored:Policy", override_timeout_sec=_LONG_S),
            environment=EnvironmentConfig(**own),
        )
        result = await (await Trial.create(config)).run()
        verdict, lost = result.verifier_result, result.exception_info
        _say(
            {
                "ended": True,
                "rewards": verdict.rewards if verdict is not None else None,
                "error": lost.exception_type if lost is not None else "",
                "message": lost.exception_message if lost is not None else "",
                "output": _output(trials),
            }
        )
    except Exception as error:
        _say({"ended": True, "rewards": None, "error": type(error).__name__, "message": str(error)})
    finally:
        shutil.rmtree(trials, ignore_errors=True)


def _output(trials: Path) -> str:
    for path in trials.rglob("test-stdout.txt"):
        return str(path.read_text(errors="replace")[-4000:])
    return ""


async def _serve(provider: str, folder: str) -> None:
    loop = asyncio.get_running_loop()
    trials: dict[int, asyncio.Task[None]] = {}
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        call = json.loads(line)
        number = call["box"]
        if call["do"] == "begin":
            _calls[number] = asyncio.Queue()
            trials[number] = asyncio.create_task(_play(call, provider, folder))
        elif call["do"] == "drop":
            task = asyncio.create_task(_drop(number, trials.pop(number, None)))
            _dropping.add(task)
            task.add_done_callback(_dropping.discard)
        elif number not in _calls:
            _say({"box": number, "failed": "no trial has begun"})
        else:
            await _calls[number].put(call)
    await asyncio.gather(*(_drop(number, trial) for number, trial in trials.items()))


async def _drop(number: int, trial: "asyncio.Task[None] | None") -> None:
    _box.set(number)
    if trial is not None:
        trial.cancel()
        await asyncio.wait([trial])
    _calls.pop(number, None)
    _say({"dropped": True})


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _say(answer: dict[str, Any]) -> None:
    _answers.write(json.dumps({"box": _box.get(0), **answer}) + "\n")
    _answers.flush()


# What is printed is none of the answers.
_answers = os.fdopen(os.dup(1), "w")


def main(provider: str, folder: str) -> None:
    """Serve until the standard input ends."""
    os.dup2(2, 1)
    try:
        if ":" in provider:
            EnvironmentFactory.run_preflight(None, provider)
        else:
            EnvironmentFactory.run_preflight(EnvironmentType(provider))
    except (Exception, SystemExit) as error:
        _say({"refused": _told(error)})
        return
    _say({"ready": True})
    asyncio.run(_serve(provider, folder))

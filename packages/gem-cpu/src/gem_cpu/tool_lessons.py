"""Lessons of the tiny tool user: one for each tool, and a scripted player that knows them all.

Lessons are held with other facts than those of the recipes: other products, dates that the recipes
do not ask for, and factbooks whose areas have been dealt out anew. A model cloned from
them knows how to ask and where the answer stands, but knows no answer.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date, timedelta
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

from gem.core import Env, Wrapper
from gem.rollout import ChatFormat, Request, Sample
from gem.seeding import stream
from gem.sources import load
from gem.tasks import Task
from gem_cpu.cloning import EOS
from gem_cpu.servers import time_server

FACTBOOKS = 12
"""Number of ways in which the areas are dealt out."""
_AREA = re.compile(r"Area: ([\d,]+) sq km")


@dataclass(frozen=True)
class Lesson:
    """How to use one tool."""

    question: re.Pattern[str]
    """Finds what to ask for, in the question."""
    call: Callable[[str], str]
    """Writes the call that asks for it."""
    told: re.Pattern[str]
    """Finds the answer, in what the tool says."""
    guess: Callable[[random.Random], str]
    """Makes up an answer."""


def _week_call(day: str) -> str:
    call = {"name": "get_week_year", "arguments": {"date": day}}
    return f"<tool_call>{json.dumps(call)}</tool_call>"


LESSONS = {
    "python": Lesson(
        re.compile(r"multiplication: (\d+ \* \d+)\."),
        "<python>print({})</python>".format,
        re.compile(r"Code execution result: (\d+)"),
        lambda rng: str(rng.randint(100, 9801)),
    ),
    "search": Lesson(
        re.compile(r"What is the area of (.+) in sq km\?"),
        "<search>area of {}</search>".format,
        _AREA,
        lambda rng: f"{rng.randint(1_000, 999_999):,}",
    ),
    "mcp": Lesson(
        re.compile(r"ISO week is ([\d-]+)\?"),
        _week_call,
        re.compile(r'"week": (\d+)'),
        lambda rng: str(rng.randint(1, 52)),
    ),
}
"""Lessons by the name of the tool."""


class ToolPlayer:
    """A sampler that asks the tool with probability `asks`, and answers what it is told.

    Without asking, and when the tool says nothing of use, it makes up an answer.
    """

    def __init__(self, chat: ChatFormat, asks: float, seeds: Sequence[int]) -> None:
        self._chat = chat
        self._asks = asks
        self._rng = [stream(seed) for seed in seeds]
        self._lessons: dict[int, Lesson] = {}

    def __call__(self, requests: list[Request]) -> list[Sample]:
        """Answer every request."""
        return [self._sample(request) for request in requests]

    def _sample(self, request: Request) -> Sample:
        rng, text = self._rng[request.episode], self._chat.decode(request.new_ids)
        if request.fresh:
            self._lessons[request.episode] = lesson_of(text)
        lesson = self._lessons[request.episode]
        reply = first_reply(lesson, text, rng, self._asks) if request.fresh else None
        ids = self._chat.encode_text(reply or last_reply(lesson, text, rng))
        return Sample([*ids, EOS], None, "stop")


def lesson_of(question: str) -> Lesson:
    """Return the lesson in which a question is asked."""
    return next(lesson for lesson in LESSONS.values() if lesson.question.search(question))


def first_reply(lesson: Lesson, question: str, rng: random.Random, asks: float) -> str:
    """Return a call with probability `asks`, else a made-up answer."""
    found = lesson.question.search(question)
    if found is None or rng.random() >= asks:
        return last_reply(lesson, "", rng)
    return lesson.call(found[1])


def last_reply(lesson: Lesson, observation: str, rng: random.Random) -> str:
    """Return what the tool said as the answer, or a made-up one."""
    found = lesson.told.search(observation)
    # After a space a word has the same tokens as in running text: to copy it is to repeat them.
    return f"\\boxed{{ {found[1] if found else lesson.guess(rng)}}}"


class Classroom:
    """Makes tasks for the lessons; a context in which the tools they need are there."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._open = ExitStack()
        self._idle: dict[int, list[Env]] = {}

    def __enter__(self) -> Classroom:
        folder = Path(self._open.enter_context(TemporaryDirectory(prefix="gem-lessons-")))
        url = self._open.enter_context(time_server())
        self._params = [
            _python(self._seed),
            _calendar(url),
            *(_search(folder / f"{i}.jsonl", stream(self._seed, i)) for i in range(FACTBOOKS)),
        ]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for envs in self._idle.values():
            for env in envs:
                env.close()
        self._idle.clear()
        self._open.close()

    def tasks(self, n: int, first: int) -> list[Task]:
        """Return `n` tasks with the seeds from `first` on.

        The lessons take turns: a product, a date, and two areas, because names of countries are
        the hardest to copy.
        """
        return [self._task(first + i, i) for i in range(n)]

    def _task(self, seed: int, i: int) -> Task:
        lesson = i % 4
        book = (i // 4 * 2 + i % 2) % FACTBOOKS
        env_id, params = self._params[lesson if lesson < 2 else 2 + book]
        return Task(env_id, seed, params)

    def make(self, task: Task) -> Env:
        """Make a task's environment, or take one that is free again, with its connections."""
        idle = self._idle.setdefault(id(task.params), [])
        return _Lent(idle.pop() if idle else task.make(), idle)


class _Lent(Wrapper):
    """An environment that is handed back instead of closed."""

    def __init__(self, env: Env, home: list[Env]) -> None:
        super().__init__(env)
        self._home = home

    def close(self) -> None:
        self._home.append(self.env)


def with_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that give an environment a tool, as the recipes do."""
    return {"wrappers": [{"name": "tool_env", "tools": [dict(tool)], "max_tool_uses": 2}]}


def _python(seed: int) -> tuple[str, dict[str, Any]]:
    items = {"config": {"min_digits": 2, "max_digits": 2}, "size": 100_000}
    # The recipe has the data set of seed 42.
    return "rg:products", {
        **items,
        "dataset_seed": 10_000_000 + seed,
        **with_tool({"name": "python"}),
    }


def _calendar(url: str) -> tuple[str, dict[str, Any]]:
    table = load("sample:calendar")
    asked = {str(table.row(i)["problem"]) for i in range(len(table))}
    days = (date(1970, 1, 1) + timedelta(days) for days in range(60 * 365))
    rows = [
        {"problem": f"In which ISO week is {day}?", "answer": str(day.isocalendar().week)}
        for day in days
    ]
    rows = [row for row in rows if row["problem"] not in asked]
    tool = {"name": "mcp", "servers": {"time": {"url": url}}, "functions": ["get_week_year"]}
    return "qa:NaturalQuestions", _questions(rows, tool)


def _search(path: Path, rng: random.Random) -> tuple[str, dict[str, Any]]:
    """Write a factbook with the areas dealt out anew; return the task that asks for them."""
    lines = (files("gem") / "data" / "factbook.jsonl").read_text(encoding="utf-8").splitlines()
    passages = [json.loads(line) for line in lines]
    table = load("sample:factbook")
    problems = [str(table.row(i)["problem"]) for i in range(len(table))]
    areas = [str(table.row(i)["answer"][0]) for i in range(len(table))]
    rng.shuffle(areas)
    dealt = dict(zip(problems, areas, strict=True))
    for passage in passages:
        area = dealt.get(f"What is the area of {passage['title']} in sq km?")
        if area is not None:
            passage["text"] = _AREA.sub(f"Area: {area} sq km", passage["text"], count=1)
    path.write_text("\n".join(map(json.dumps, passages)) + "\n", encoding="utf-8")
    rows = [{"problem": problem, "answer": area} for problem, area in dealt.items()]
    tool = {"name": "search", "index": str(path), "topk": 1, "max_output": 96}
    return "qa:NaturalQuestions", _questions(rows, tool)


def _questions(rows: list[dict[str, str]], tool: Mapping[str, Any]) -> dict[str, Any]:
    return {"source": rows, "answer_format": "boxed", **with_tool(tool)}

"""`gem-bench watch`: the records of runs in a terminal, while their trainers write them.

On a terminal `rich` draws a view that is kept up to date. Elsewhere, and without `rich`, each run
has a line for every change.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from gem_bench.following import Follower
from gem_bench.state import State
from gem_train.record import EpisodeRecord

if TYPE_CHECKING:
    from rich.console import RenderableType

INSTALL = "pip install 'gem-bench[watch]'"
_EPISODES = 8
_BARS = "▁▂▃▄▅▆▇█"


def watch(
    folders: Sequence[Path],
    output: TextIO,
    errors: TextIO,
    *,
    once: bool = False,
    as_json: bool = False,
    interval_s: float = 2.0,
    sleep: Callable[[float], object] = time.sleep,
) -> list[State]:
    """Show runs until all have ended.

    Args:
        folders: Of the runs; they may begin later.
        output: Where to write; on a terminal a view that is kept up to date.
        errors: Where damage is named, a line each.
        once: Show what is there and return.
        as_json: Write a JSON object for each change of a run: `State`'s fields but `recent`.
        interval_s: Seconds between two looks at the records.
        sleep: Waits that many seconds.

    Returns:
        The last state of each run.
    """
    runs = [Follower(folder, episodes=_EPISODES) for folder in folders]
    if not (once or as_json) and output.isatty():
        if find_spec("rich") is not None:
            return _live(runs, output, interval_s, sleep)
        print(f"for a view that is kept up to date: {INSTALL}", file=errors, flush=True)
    return _lines(runs, output, errors, once, as_json, interval_s, sleep)


def _lines(
    runs: Sequence[Follower],
    output: TextIO,
    errors: TextIO,
    once: bool,
    as_json: bool,
    interval_s: float,
    sleep: Callable[[float], object],
) -> list[State]:
    """Write a line for each run that changed, and each problem once."""
    shown: dict[Path, tuple[object, ...]] = {}
    said: set[str] = set()
    while True:
        for run in runs:
            run.poll_all()
            for problem in run.problems:
                if problem not in said:
                    said.add(problem)
                    print(_plain(problem), file=errors, flush=True)
            state = State.of(run)
            key = (state.status, len(run.metrics), state.iterations)
            if shown.get(run.folder) != key:
                shown[run.folder] = key
                print(_json(state) if as_json else state.line(), file=output, flush=True)
        states = [State.of(run) for run in runs]
        if once or all(state.ended for state in states):
            return states
        sleep(interval_s)


def _live(
    runs: Sequence[Follower],
    output: TextIO,
    interval_s: float,
    sleep: Callable[[float], object],
) -> list[State]:
    """Keep a view up to date; the last one stays on the screen."""
    from rich.console import Console
    from rich.live import Live

    console = Console(file=output)
    with Live(console=console, auto_refresh=False) as live:
        while True:
            for run in runs:
                run.poll_all()
            states = [State.of(run) for run in runs]
            live.update(view(runs, states), refresh=True)
            if all(state.ended for state in states):
                return states
            sleep(interval_s)


def view(runs: Sequence[Follower], states: Sequence[State]) -> RenderableType:
    """Return the view of the runs: numbers, last episodes, what cannot be read.

    Args:
        runs: The runs, up to date.
        states: Of each.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    numbers = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    columns = [name for name in states[0].facts() if name not in ("failed", "tokens/s")]
    for name in ("run", *columns):
        numbers.add_column(name, justify="left" if name in ("run", "status") else "right")
    numbers.add_column("last iterations")
    for state in states:
        facts = state.facts()
        styles = {"status": _style(state)}
        cells = [Text(facts[name], style=styles.get(name, "")) for name in columns]
        numbers.add_row(Text(_plain(state.run)), *cells, Text(bars(state.recent)))
    parts: list[RenderableType] = [numbers]
    for state in states:
        parts += [Text(_plain(f"{state.run}: {note}"), style="dim") for note in state.notes()]
    share = max(_EPISODES // len(runs), 2)
    last = [(run, each.record) for run in runs for each in [*run.episodes][-share:]]
    if last:
        episodes = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", title_justify="left")
        for name in ("last episodes", "iteration", "outcome", "return", "turns", "said last"):
            right = name in ("iteration", "return", "turns")
            episodes.add_column(
                name, justify="right" if right else "left", no_wrap=True, overflow="ellipsis"
            )
        for run, record in last:
            episodes.add_row(*map(Text, _episode(run, record)))
        parts += [Text(""), episodes]
    for run in runs:
        parts += [Text(_plain(problem), style="red") for problem in run.problems]
    return Group(*parts)


def _json(state: State) -> str:
    known = asdict(state)
    del known["recent"]
    return json.dumps(known)


def _style(state: State) -> str:
    return {"finished": "green", "running": "cyan", "waiting": "dim"}.get(state.status, "red")


def _episode(run: Follower, record: EpisodeRecord) -> list[str]:
    episode = record.trajectory
    if episode.failure is not None:
        outcome = f"failed: {episode.failure.cause}"
    else:
        outcome = "success" if episode.success else "no success"
    text = episode.turns[-1].text if episode.turns else ""
    if episode.failure is not None:
        text = episode.failure.message
    split = "" if record.split == "train" else f" {record.split}"
    return [
        _plain(run.folder.name),
        f"{record.iteration}{split}",
        outcome,
        f"{episode.total_reward:.2f}",
        str(len(episode.turns)),
        _plain(text)[-200:],
    ]


def bars(values: Sequence[float | None]) -> str:
    """Draw rates as a line of bars, a space where one is missing."""
    top = len(_BARS) - 1
    return "".join(" " if v is None else _BARS[min(max(round(v * top), 0), top)] for v in values)


def _plain(text: str) -> str:
    """Return a text without control characters: a model's reply must not steer the terminal."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))

"""Writes the report: one self-contained HTML file with curves, tables and episodes to read.

`gem_bench.sections` makes the plain HTML parts, `templates` has page, styles and script.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from gem.errors import GemError
from gem.pictures import data_url, image_kind
from gem_bench import sections
from gem_bench.compare import compare
from gem_bench.plot import COLORS, dashes, plot
from gem_bench.series import METRICS, TRAIN, X_AXES, Curve, Group, Run, landmarks
from gem_bench.stats import t_quantile
from gem_bench.tokens import find_tokenizer, token_bytes
from gem_train.images import read_image
from gem_train.record import EpisodeRecord

_AT_ONCE = 8
"""Episodes shown of one iteration: neighbours, so that groups stay together."""
_MOST_POINTS = 2_000
"""Most points of a curve; of a longer one each is the mean of its neighbours."""
MOST_IMAGE = 100_000
"""Bytes of the largest image that a page has."""
MOST_TOKENS = 200_000
"""Most tokens shown of one run, to keep the file small."""


def report(
    groups: Sequence[Group],
    *,
    window: int = 20,
    episodes: int = 96,
    tokenizer: Path | None = None,
) -> str:
    """Return the report as one HTML file that loads nothing from disk or network.

    Args:
        groups: As read by `load_runs`.
        window: Iterations over which results are averaged, and the initial smoothing of curves.
        episodes: Most episodes of a run in the report, from evenly spaced iterations of training
            and the last evaluations. Fewer if they are long.
        tokenizer: Folder with `tokenizer.json`; by default that of each run's model. Without
            one, turns are shown as text.
    """
    comparison = compare(groups, window=window)
    shown = [
        (g, r, record)
        for g, group in enumerate(groups)
        for r, run in enumerate(group.runs)
        for record in _sample(run, episodes)
    ]
    names = list(dict.fromkeys(str(group.settings.get("name", "")) for group in groups))
    title = ", ".join(name for name in names if name) or "runs"
    parts = {
        "title": escape(title),
        "kind": "comparison of runs",
        "training": "",
        "summary": sections.summary(groups),
        "cards": sections.cards(comparison),
        "table": sections.numbers(comparison),
        "parity": sections.parity(groups),
        "settings": sections.settings(groups),
        "picture": _picture(groups, window),
    }
    return page(groups, shown, parts, window=window, tokenizer=tokenizer)


def page(
    groups: Sequence[Group],
    shown: Sequence[tuple[int, int, EpisodeRecord]],
    parts: Mapping[str, str],
    *,
    window: int = 1,
    tokenizer: Path | None = None,
) -> str:
    """Return a page of episodes to read, and what else its template shows.

    Args:
        groups: The runs.
        shown: The episodes: index of the group, of the run in it, and the record.
        parts: HTML by name in the template `report.html`; `training` is `hidden` where there is
            nothing to say of training.
        window: See `report`.
        tokenizer: See `report`.
    """
    vocabularies = Vocabularies(tokenizer)
    episodes = [shown_episode(each, g, r, vocabularies, groups[g].runs[r]) for g, r, each in shown]
    data = {
        **curves_data(groups),
        "window": window,
        "axes": X_AXES,
        "metrics": METRICS,
        "vocabularies": vocabularies.used(),
        "episodes": episodes,
    }
    return fill_page(parts, data)


def curves_data(groups: Sequence[Group]) -> dict[str, Any]:
    """Return what the page's script needs of the runs: `groups` with curves, `landmarks`, `t`."""
    return {
        "t": {
            n: t_quantile(n - 1)
            for n in range(2, 1 + max((len(g.runs) for g in groups), default=0))
        },
        "landmarks": landmarks(groups),
        "groups": [_group(group, index) for index, group in enumerate(groups)],
    }


def fill_page(parts: Mapping[str, str], data: Mapping[str, Any]) -> str:
    """Return the page.

    Args:
        parts: HTML by name in the template `report.html`; `live` and `connect` may be left out.
        data: What its script works with, JSON values.
    """
    filled = {
        "live": "",
        "connect": "",
        **parts,
        "css": _template("report.css"),
        "js": _template("report.js"),
        "data": as_json(data).replace("<", "\\u003c"),  # "<" could end the script element
    }
    return _fill(_template("report.html"), filled)


def save(path: Path, text: str) -> str:
    """Write a file, with the folders that it needs; return its name and size.

    Raises:
        GemError: It cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # An episode's texts may have half a surrogate pair, which UTF-8 lacks.
        path.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise GemError(f"cannot write {path}: {error}") from error
    return f"{path} ({path.stat().st_size / 1024:,.0f} kB)"


class Vocabularies:
    """Collects the tokens that occur in a report, once per tokenizer."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._all: list[dict[int, bytes]] = []
        self._used: list[set[int]] = []
        self._index: dict[Path, int] = {}

    def index(self, run: Run) -> int | None:
        """Return the number of a run's vocabulary, or None if there is no tokenizer."""
        model = run.record.meta.get("model", "")
        # Evaluations tell more about a model.
        name = model.get("tokenizer", "") if isinstance(model, dict) else str(model)
        folder = self._folder or (find_tokenizer(name) if name else None)
        if folder is None:
            return None
        if folder not in self._index:
            self._index[folder] = len(self._all)
            self._all.append(token_bytes(folder))
            self._used.append(set())
        return self._index[folder]

    def note(self, index: int, ids: Sequence[int]) -> None:
        """Add tokens that occur in an episode."""
        self._used[index].update(ids)

    def used(self) -> list[dict[int, str]]:
        """Return the tokens that occur, byte by byte as the characters U+0000 to U+00FF."""
        return [
            {i: tokens.get(i, f"<{i}>".encode()).decode("latin-1") for i in sorted(used)}
            for tokens, used in zip(self._all, self._used, strict=True)
        ]

    def forget(self) -> None:
        """Forget which tokens occurred; vocabularies keep their numbers."""
        self._used = [set() for _ in self._used]


def _sample(run: Run, most: int) -> list[EpisodeRecord]:
    """Select episodes: neighbours from evenly spaced iterations, and the last evaluations."""
    wanted: dict[tuple[str, int], int] = {}
    evaluations = [split for split in run.curves if split != TRAIN]
    for split in evaluations:
        wanted[split, run.curves[split].iterations[-1]] = _AT_ONCE
    iterations = run.curves[TRAIN].iterations if TRAIN in run.curves else []
    times = min(len(iterations), max(most // _AT_ONCE - len(evaluations), 1))
    for i in range(times):
        place = round(i * (len(iterations) - 1) / max(times - 1, 1))
        wanted[TRAIN, iterations[place]] = _AT_ONCE
    chosen: dict[tuple[str, int], list[EpisodeRecord]] = defaultdict(list)
    for record in run.record.episodes():
        key = (record.split, record.iteration)
        if len(chosen[key]) < wanted.get(key, 0):
            chosen[key].append(record)
    out, tokens = [], 0
    for record in [record for key in wanted for record in chosen[key]][:most]:
        turns = record.trajectory.turns
        tokens += sum(len(turn.context_ids) + len(turn.response_ids) for turn in turns)
        if tokens > MOST_TOKENS:
            break
        out.append(record)
    return sorted(out, key=lambda r: (r.split, r.iteration))


def shown_episode(
    record: EpisodeRecord, group: int, run: int, vocabularies: Vocabularies, source: Run
) -> dict[str, Any]:
    """Return an episode as the page shows it.

    Args:
        record: The episode.
        group: Index of its group.
        run: Index of its run in the group.
        vocabularies: Where its tokens are noted.
        source: Its run.
    """
    t = record.trajectory
    # Where a server was asked with text, no tokens are known.
    has_tokens = any(turn.context_ids for turn in t.turns)
    vocabulary = vocabularies.index(source) if has_tokens else None
    calls = record.notes.get("calls", [])
    training = t.task.name or t.task.env_id
    turns = []
    for number, turn in enumerate(t.turns):
        if vocabulary is not None:
            vocabularies.note(vocabulary, turn.context_ids + turn.response_ids)
        turns.append(
            {
                "context": turn.context_ids if vocabulary is not None else [],
                "response": turn.response_ids if vocabulary is not None else [],
                "logprobs": _rounded(turn.logprobs),
                "observation": _text(turn.observation) if vocabulary is None else "",
                "images": list(_images(turn.observation, source.folder)),
                "text": turn.text if vocabulary is None else "",
                "fresh": turn.fresh and has_tokens,
                "reward": turn.reward,
                "stop": turn.stop_reason,
                "flags": [key for key, value in turn.info.items() if value is True],
                "thought": calls[number].get("reasoning", "") if number < len(calls) else "",
            }
        )
    return {
        "group": group,
        "run": run,
        "iteration": record.iteration,
        "split": record.split,
        "vocabulary": vocabulary,
        "env": training if record.split == TRAIN else record.split.removeprefix("eval:"),
        "task": f"{t.task.env_id}, seed {t.task.seed}",
        "seed": t.task.seed,
        "sample": record.notes.get("sample"),
        "member": t.group,
        "success": t.success,
        "valid": t.valid,
        "return": t.total_reward,
        "end": t.end if t.failure is None else f"failed: {t.failure.cause}",
        "message": "" if t.failure is None else t.failure.message,
        "drift": len(t.drift),
        "advantages": _rounded(record.advantages),
        "turns": turns,
        "last": "" if t.final_observation is None else _text(t.final_observation),
    }


def _images(observation: Any, folder: Path) -> Iterator[str]:
    """Give the images of an observation as `data:` addresses; leave out large and unknown files."""
    for part in [] if isinstance(observation, str) else observation:
        file = read_image(folder, part["blake2b"]) if part.get("blake2b") else b""
        if len(file) <= MOST_IMAGE and image_kind(file) is not None:
            yield data_url(file)


def _text(observation: Any) -> str:
    if isinstance(observation, str):
        return observation
    return "".join(part.get("text", f"[{part['type']}]") for part in observation)


def _group(group: Group, index: int) -> dict[str, Any]:
    return {
        "label": group.label,
        "color": COLORS[index % len(COLORS)],
        "dash": dashes(index),
        "gamma": group.settings.get("algorithm.gamma", 1.0),
        "runs": [
            {
                "name": f"seed {run.seed}" if run.seed is not None else run.folder.name,
                "splits": run_splits(run),
            }
            for run in group.runs
        ],
    }


def run_splits(run: Run) -> dict[str, Any]:
    """Return the curves of a run; those of training's environments are `env:<name>`."""
    found = {}
    for split, curve in run.curves.items():
        whole, parts = curve.thinned(_MOST_POINTS).divided()
        of_each = math.ceil(len(curve.iterations) / len(whole.iterations))
        found[split] = _curve(whole, of_each)
        found |= {f"env:{name}": _curve(part, of_each) for name, part in parts.items()}
    return found


def _curve(curve: Curve, of_each: int) -> dict[str, Any]:
    """Return a curve, each of whose points is the mean of `of_each`."""
    return {
        "of_each": of_each,
        "iteration": curve.iterations,
        "tokens": curve.tokens,
        "time": _rounded(curve.seconds),
        "columns": {name: _rounded(values) for name, values in curve.columns.items()},
    }


def _rounded(values: Sequence[float | None] | None) -> list[float | None] | None:
    """Round to five significant digits, enough for a plot; infinity, which JSON lacks, is None."""
    if values is None:
        return None
    return [None if v is None or not math.isfinite(v) else float(f"{v:.5g}") for v in values]


def _picture(groups: Sequence[Group], window: int) -> str:
    """Return a static SVG plot, for readers without JavaScript."""
    curves = [run.curves[TRAIN] for group in groups for run in group.runs if TRAIN in run.curves]
    metric = next((m for m in METRICS if any(m in curve.columns for curve in curves)), None)
    return plot(groups, metrics=[metric], window=window) if metric is not None else ""


def as_json(data: Any) -> str:
    """Return compact JSON, as browsers read it."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False)


def _template(name: str) -> str:
    return files("gem_bench").joinpath("templates", name).read_text(encoding="utf-8")


def _fill(template: str, parts: dict[str, str]) -> str:
    """Replace each `{{name}}` in one pass: inserted text is not searched."""
    pieces = template.split("{{")
    out = [pieces[0]]
    for piece in pieces[1:]:
        name, _, rest = piece.partition("}}")
        out += [parts[name], rest]
    return "".join(out)

"""What a record says: success and return with intervals, pass@k and pass^k, turns, tokens.

Episodes of one task succeed or fail together, so all intervals are over tasks
(`gem_bench.stats`). The overall result is the mean over environments, each with the same weight.
"""

from __future__ import annotations

import bisect
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gem.errors import ConfigurationError
from gem_bench.stats import Estimate, mean_of_estimates, mean_over_tasks, over_tasks
from gem_eval.runner import note_of
from gem_eval.tasks import parse_tasks, plays
from gem_train.record import EpisodeRecord, read_run

# Entries of `gem.wrappers.ToolEnv` in the info.
_CALLS, _SUCCEEDED = "tool_use_counter", "tool_success_counter"
# Most values of a number that are shown one by one.
_STEPS = 8


@dataclass(frozen=True)
class Outcome:
    """What counts of an episode."""

    seed: int
    sample: int
    success: float
    total: float
    """Undiscounted return."""
    turns: int
    end: str
    format_error: bool
    empty: int
    """Turns with an empty reply."""
    cut: int
    """Turns cut by a token limit."""
    refused: int
    """Turns that the model refused or a content filter ended."""
    prompt_tokens: int | None
    reply_tokens: int | None
    failure: str | None
    """Cause of the failure of a void episode, which has no other result."""
    labels: Mapping[str, Any]
    """Parameters of the task, `end`, `turns`, and the info of the last turn."""
    calls: tuple[int, int] | None
    """Calls of tools, and those that succeeded; None without tools."""


@dataclass(frozen=True)
class ToolUse:
    """Calls of tools in one environment."""

    calls: float
    """Mean per episode."""
    succeeded: float | None
    """Share of calls that the tool executed without an error; None without any call."""
    with_calls: Estimate | None
    """Success of the episodes with a call; None if there is none, as for the next."""
    without_calls: Estimate | None


@dataclass(frozen=True)
class Numbers:
    """The result in one environment, or overall."""

    name: str
    tasks: int
    """With a valid episode."""
    episodes: int
    """Valid ones."""
    failed: Mapping[str, int]
    """Void episodes by cause."""
    missing: int
    """Episodes that were asked for and are not in the record: the evaluation was cut off."""
    success: Estimate | None
    """None without a valid episode, as all that follows."""
    total: Estimate | None
    """Undiscounted return."""
    pass_at: Mapping[int, Estimate]
    """Probability that one of k samples succeeds, by k."""
    pass_all: Mapping[int, Estimate]
    """pass^k: probability that all of k samples succeed, by k."""
    few_samples: Mapping[int, int]
    """Tasks left out of both, as they have fewer than k valid samples, by k."""
    turns: float | None
    """Mean per episode, as the next two."""
    prompt_tokens: float | None
    """None if the server did not say it, as for the next."""
    reply_tokens: float | None
    format_errors: float | None
    """Share of episodes with a format error."""
    tools: ToolUse | None
    """None in an environment without tools, and overall."""
    ends: Mapping[str, int]
    """Valid episodes by their end."""
    empty_replies: int
    """Turns, as the next two."""
    cut_replies: int
    filtered_replies: int
    bounds: tuple[float, float] | None
    """Success if all void episodes had failed or succeeded; None if there is none."""

    def too_many_failed(self, share: float) -> bool:
        """Whether no episode is valid, or more than a share of them are void."""
        void = sum(self.failed.values())
        return not self.episodes or void > share * (self.episodes + void)

    @property
    def cut_off(self) -> str:
        """How many episodes were played, if some are missing; else empty."""
        played = self.episodes + sum(self.failed.values())
        return f"{played} of {played + self.missing} episodes played" if self.missing else ""


@dataclass(frozen=True)
class Summary:
    """The result of an evaluation."""

    folder: Path
    model: str
    parts: list[Numbers]
    overall: Numbers | None
    """None if an environment has no valid episode."""


def read_summary(folder: Path, by: str | None = None) -> Summary:
    """Compute the numbers of a record, also of one that is not complete.

    Args:
        folder: The record.
        by: Split each environment by this one of `Outcome.labels`. The overall result is then that
            of the environments that were not split.

    Raises:
        ConfigurationError: No episode has the label.
        RecordError: The folder holds no record, or a damaged one.
    """
    whole = parts = read_numbers(folder)
    if by is not None:
        parts = [numbers(*part) for part in split_by(by, read_outcomes(folder)).items()]
    model = read_run(folder).meta.get("trainer", folder.name)
    return Summary(folder, str(model), parts, overall(whole))


def split_by(label: str, outcomes: Mapping[str, Sequence[Outcome]]) -> dict[str, list[Outcome]]:
    """Split the episodes of every environment by a label; more than eight numbers into quarters.

    Void episodes, which have no result, and episodes without the label are left out.

    Raises:
        ConfigurationError: No episode has the label.
    """
    found: dict[str, list[Outcome]] = {}
    for name, each in outcomes.items():
        having = [o for o in each if o.failure is None and label in o.labels]
        values = [o.labels[label] for o in having]
        for value, text in _steps(values).items():
            same = [o for o in having if o.labels[label] == value]
            found.setdefault(f"{name}, {label} {text}", []).extend(same)
    if not found:
        known = sorted({key for each in outcomes.values() for o in each for key in o.labels})
        raise ConfigurationError(f"no episode has {label!r}; there are {', '.join(known)}")
    return found


def _steps(values: Sequence[Any]) -> dict[Any, str]:
    """Return each value in order, and the text of the step it belongs to."""
    numeric = all(isinstance(value, int | float) for value in values)
    distinct = sorted(set(values), key=None if numeric else str)
    if not numeric or len(distinct) <= _STEPS:
        return {value: str(value) for value in distinct}
    cuts = statistics.quantiles(values, n=4, method="inclusive")
    steps = [[v for v in distinct if bisect.bisect_left(cuts, v) == i] for i in range(4)]
    return {v: f"{step[0]} to {step[-1]}" for step in steps for v in step}


def read_outcomes(folder: Path) -> dict[str, list[Outcome]]:
    """Read what counts of a record's episodes, by environment, in the order of the evaluation.

    Raises:
        RecordError: The folder holds no record, or a damaged one.
    """
    run = read_run(folder)
    splits: dict[str, list[Outcome]] = {split: [] for split in run.meta.get("parts", [])}
    for record in run.episodes():
        splits.setdefault(record.split, []).append(_outcome(record))
    return {split.removeprefix("eval:"): outcomes for split, outcomes in splits.items()}


def read_numbers(folder: Path) -> list[Numbers]:
    """Compute the numbers of a record's environments, also of those of which nothing was played.

    Raises:
        RecordError: The folder holds no record, or a damaged one.
    """
    settings = read_run(folder).meta.get("settings", {})
    parts = parse_tasks(settings.get("tasks", []))
    wanted: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for each in plays(parts, settings.get("samples", 1)):
        wanted[each.part.name].add((each.task.seed, each.sample))
    outcomes = read_outcomes(folder)
    names = dict.fromkeys([*outcomes, *wanted])
    return [numbers(name, outcomes.get(name, []), wanted[name]) for name in names]


def numbers(
    name: str, outcomes: Sequence[Outcome], wanted: Collection[tuple[int, int]] = ()
) -> Numbers:
    """Compute the numbers of one environment.

    Args:
        name: Of the environment.
        outcomes: Its episodes.
        wanted: Seed and sample of each episode that was asked for.
    """
    valid = [each for each in outcomes if each.failure is None]
    failed = Counter(each.failure for each in outcomes if each.failure is not None)
    by_task: dict[int, list[Outcome]] = defaultdict(list)
    for each in valid:
        by_task[each.seed].append(each)
    tasks = list(by_task.values())
    counts = [(len(task), sum(each.success > 0 for each in task)) for task in tasks]
    ks = _ks(max((n for n, _ in counts), default=1))
    enough = {k: [(n, c) for n, c in counts if n >= k] for k in ks}
    return Numbers(
        name=name,
        tasks=len(tasks),
        episodes=len(valid),
        failed=dict(failed.most_common()),
        missing=len({*wanted} - {(each.seed, each.sample) for each in outcomes}),
        success=over_tasks([[e.success for e in task] for task in tasks]) if valid else None,
        total=mean_over_tasks([[e.total for e in task] for task in tasks]) if valid else None,
        pass_at={k: over_tasks([[pass_at(k, n, c)] for n, c in enough[k]]) for k in ks},
        pass_all={k: over_tasks([[pass_all(k, n, c)] for n, c in enough[k]]) for k in ks},
        few_samples={k: len(counts) - len(enough[k]) for k in ks if len(counts) > len(enough[k])},
        turns=_mean(each.turns for each in valid),
        prompt_tokens=_mean(each.prompt_tokens for each in valid),
        reply_tokens=_mean(each.reply_tokens for each in valid),
        format_errors=_mean(each.format_error for each in valid),
        tools=_tool_use(valid),
        ends=dict(Counter(each.end for each in valid).most_common()),
        empty_replies=sum(each.empty for each in valid),
        cut_replies=sum(each.cut for each in valid),
        filtered_replies=sum(each.refused for each in valid),
        bounds=_bounds(valid, failed.total()),
    )


def overall(parts: Sequence[Numbers]) -> Numbers | None:
    """Return the mean over environments; None if one of them has no valid episode."""
    success = [part.success for part in parts if part.success is not None]
    total = [part.total for part in parts if part.total is not None]
    if not parts or len(success) < len(parts):
        return None
    ks = [k for k in parts[0].pass_at if all(k in part.pass_at for part in parts)]
    bounds = [part.bounds or (part.success.mean,) * 2 for part in parts if part.success]
    return Numbers(
        name="overall",
        tasks=sum(part.tasks for part in parts),
        episodes=sum(part.episodes for part in parts),
        failed=_added(part.failed for part in parts),
        missing=sum(part.missing for part in parts),
        success=mean_of_estimates(success),
        total=mean_of_estimates(total),
        pass_at={k: mean_of_estimates([part.pass_at[k] for part in parts]) for k in ks},
        pass_all={k: mean_of_estimates([part.pass_all[k] for part in parts]) for k in ks},
        few_samples={
            k: sum(part.few_samples.get(k, 0) for part in parts)
            for k in ks
            if any(k in part.few_samples for part in parts)
        },
        turns=_mean(part.turns for part in parts),
        prompt_tokens=_mean(part.prompt_tokens for part in parts),
        reply_tokens=_mean(part.reply_tokens for part in parts),
        format_errors=_mean(part.format_errors for part in parts),
        tools=None,
        ends=_added(part.ends for part in parts),
        empty_replies=sum(part.empty_replies for part in parts),
        cut_replies=sum(part.cut_replies for part in parts),
        filtered_replies=sum(part.filtered_replies for part in parts),
        bounds=(statistics.fmean(low for low, _ in bounds), statistics.fmean(h for _, h in bounds))
        if any(part.bounds for part in parts)
        else None,
    )


def pass_at(k: int, n: int, c: int) -> float:
    """Estimate without bias how probably one of k samples succeeds, from c successes of n samples.

    Chen et al. 2021, arXiv 2107.03374, equation 1.
    """
    return 1 - math.comb(n - c, k) / math.comb(n, k)


def pass_all(k: int, n: int, c: int) -> float:
    """Estimate without bias how probably all of k samples succeed, from c successes of n samples.

    pass^k of Yao et al. 2024, arXiv 2406.12045, section 5.
    """
    return math.comb(c, k) / math.comb(n, k)


def _outcome(record: EpisodeRecord) -> Outcome:
    trajectory = record.trajectory
    calls = record.notes.get("calls", [])
    last = trajectory.turns[-1].info if trajectory.turns else {}
    return Outcome(
        seed=trajectory.task.seed,
        sample=record.notes.get("sample", 0),
        success=float(trajectory.success),
        total=trajectory.total_reward,
        turns=len(trajectory.turns),
        end=trajectory.end,
        format_error=trajectory.format_error,
        empty=sum(not turn.text for turn in trajectory.turns),
        cut=trajectory.length_stops,
        refused=sum(
            call.get("finish_reason") == "content_filter" or call.get("refused", False)
            for call in calls
        ),
        prompt_tokens=note_of(record, "prompt_tokens"),
        reply_tokens=note_of(record, "reply_tokens"),
        failure=None if trajectory.failure is None else trajectory.failure.cause,
        labels={
            **{key: value for key, value in trajectory.task.params.items() if _plain(value)},
            **{key: value for key, value in last.items() if _plain(value)},
            "end": trajectory.end,
            "turns": len(trajectory.turns),
        },
        calls=_calls(last),
    )


def _calls(info: Mapping[str, Any]) -> tuple[int, int] | None:
    made, succeeded = info.get(_CALLS), info.get(_SUCCEEDED)
    return (made, succeeded) if type(made) is int and type(succeeded) is int else None


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def _tool_use(valid: Sequence[Outcome]) -> ToolUse | None:
    calls = [each.calls for each in valid if each.calls is not None]
    if not calls:
        return None
    made, succeeded = (sum(column) for column in zip(*calls, strict=True))

    def success(used: bool) -> Estimate | None:
        by_task: dict[int, list[float]] = defaultdict(list)
        for each in valid:
            if each.calls is not None and bool(each.calls[0]) == used:
                by_task[each.seed].append(each.success)
        return over_tasks([*by_task.values()]) if by_task else None

    share = succeeded / made if made else None
    return ToolUse(made / len(calls), share, success(True), success(False))


def _ks(n: int) -> list[int]:
    """Return 2, 4, 8, ... up to n, and n; nothing for one sample."""
    return sorted({2**i for i in range(1, n.bit_length()) if 2**i <= n} | {n} - {1})


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _bounds(valid: Sequence[Outcome], void: int) -> tuple[float, float] | None:
    if not void:
        return None
    won, n = sum(each.success for each in valid), len(valid) + void
    return won / n, (won + void) / n


def _added(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for each in counts:
        found.update(each)
    return dict(found.most_common())

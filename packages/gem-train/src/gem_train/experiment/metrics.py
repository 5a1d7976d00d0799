"""Computes the metrics of a batch, of its episodes and updates, under the same names everywhere."""

from __future__ import annotations

import json
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from gem.blame import CAUSES, Cause
from gem.errors import ConfigurationError
from gem.multi import all_seats
from gem.trajectory import Failure
from gem_train.experiment.filtering import overlong
from gem_train.packed import Played

FAILED_BY_CAUSE: dict[Cause, str] = {cause: f"failed_{cause}" for cause in CAUSES}
"""Name of the metric that counts the failed episodes of each cause."""


def failed_by_cause(metrics: Iterable[Mapping[str, float | None]]) -> dict[str, int]:
    """Return the number of failed episodes of each cause, largest first, without zeros.

    Args:
        metrics: Metrics of several batches, see `episode_metrics`.
    """
    counts: Counter[str] = Counter()
    for batch in metrics:
        counts.update({c: int(batch.get(name) or 0) for c, name in FAILED_BY_CAUSE.items()})
    return {cause: count for cause, count in counts.most_common() if count > 0}


def failures_text(counts: Mapping[str, int]) -> str:
    """Format the result of `failed_by_cause`: `3 episodes failed (environment 2, tool 1)`."""
    total = sum(counts.values())
    causes = ", ".join(f"{cause} {count}" for cause, count in counts.items())
    return f"{total:,} episode{'' if total == 1 else 's'} failed ({causes or 'none'})"


def episode_metrics(
    trajectories: Sequence[Played], lost: Sequence[Failure] = (), info: Sequence[str] = ()
) -> dict[str, float]:
    """Summarise a batch; failed episodes are counted but enter no other metric.

    Args:
        trajectories: All episodes of an iteration or an evaluation.
        lost: Failures of further episodes for which the trainer has no trajectory.
        info: Numbers of the environments' infos, see `info_metrics`.

    Returns:
        `episodes` (valid ones), `failed_episodes`, `failed_rate` (share of all), `failed_<cause>`
        for each of `gem.blame.CAUSES`, `turns_total`, `sampled_tokens` and, over the valid
        episodes: `success_rate` (see `gem.contract.succeeded`), `return_mean` and `return_std`
        (undiscounted return, population standard deviation), `turns_mean`, `tokens_per_episode`
        (sampled), `format_error_rate` (episodes with a format error), `truncated_rate` (ended by
        the environment's limit or a budget), `drift_rate` (episodes that re-rendering would have
        changed), `overlong_rate` (share of episodes that a token limit ended, or in
        which it cut a turn) and `length_stop_rate` (turns cut by a token limit). Without a valid
        episode these are left out.
        Of each environment that has a name (`Task.name`) and a valid episode there are also those
        of `environment_metrics`, of opponents those of `opponent_metrics`, of judges those of
        `judge_metrics`, and of `info` those of `info_metrics`.
    """
    valid = [t for t in trajectories if t.valid]
    turns = sum(len(t.rewards) for t in valid)
    failures = [t.failure for t in trajectories if t.failure is not None] + list(lost)
    causes = Counter(failure.cause for failure in failures)
    metrics = {
        "episodes": float(len(valid)),
        "failed_episodes": float(len(failures)),
        "failed_rate": len(failures) / max(len(valid) + len(failures), 1),
        **{name: float(causes[cause]) for cause, name in FAILED_BY_CAUSE.items()},
        "turns_total": float(turns),
        "sampled_tokens": float(sum(t.sampled_tokens for t in valid)),
    }
    if not valid:
        return metrics
    n = len(valid)
    returns = [t.total_reward for t in valid]
    metrics.update(
        success_rate=sum(t.success for t in valid) / n,
        return_mean=statistics.fmean(returns),
        return_std=statistics.pstdev(returns),
        turns_mean=turns / n,
        tokens_per_episode=metrics["sampled_tokens"] / n,
        format_error_rate=sum(t.format_error for t in valid) / n,
        truncated_rate=sum(t.end != "terminated" for t in valid) / n,
        drift_rate=sum(t.drifted for t in valid) / n,
        overlong_rate=sum(map(overlong, valid)) / n,
        length_stop_rate=sum(t.length_stops for t in valid) / max(turns, 1),
    )
    parts = environment_metrics(valid) | opponent_metrics(valid)
    return metrics | parts | judge_metrics(valid) | info_metrics(valid, info)


def sampled_metrics(episodes: Sequence[Played]) -> dict[str, float]:
    """Summarise an evaluation with several episodes of each task.

    Args:
        episodes: All of the evaluation; failed ones are left out.

    Returns:
        `pass_rate`, the share of tasks with at least one success; nothing if no task has several
        episodes, or all seats of a match are played.
    """
    found: dict[str, list[bool]] = {}
    for each in episodes:
        if all_seats(each.task.params):
            return {}
        if each.valid:
            found.setdefault(json.dumps(each.task.to_dict(), sort_keys=True), []).append(
                each.success
            )
    if all(len(successes) < 2 for successes in found.values()):
        return {}
    return {"pass_rate": sum(map(any, found.values())) / len(found)}


def advantage_metrics(
    episodes: Sequence[Played], advantages: Sequence[Sequence[float]]
) -> dict[str, float]:
    """Summarise the advantages of a batch.

    Args:
        episodes: All of the batch; failed ones are left out.
        advantages: `[episode][turn]`.

    Returns:
        `negative_advantage_rate`: share of the turns whose advantage is below 0; nothing without a
        turn. Where it is 0 every update makes the sampled actions likelier.
    """
    turns = [
        advantage
        for episode, row in zip(episodes, advantages, strict=True)
        if episode.valid
        for advantage in row
    ]
    if not turns:
        return {}
    return {"negative_advantage_rate": sum(advantage < 0 for advantage in turns) / len(turns)}


def info_metrics(episodes: Sequence[Played], names: Sequence[str]) -> dict[str, float]:
    """Summarise numbers that environments report in `info`.

    Args:
        episodes: The valid ones of a batch.
        names: Keys of `info`.

    Returns:
        `info/<name>/share` (of the episodes whose info has the number in any turn) and
        `info/<name>`, the mean over these of its last value; without such an episode no mean.
    """
    found: dict[str, float] = {}
    for name in names:
        values = [episode.numbers[name] for episode in episodes if name in episode.numbers]
        found[f"info/{name}/share"] = len(values) / len(episodes)
        if values:
            found[f"info/{name}"] = statistics.fmean(values)
    return found


def judge_metrics(episodes: Sequence[Played]) -> dict[str, float]:
    """Summarise what judges said; episodes in which they failed are in `failed_grader`.

    Args:
        episodes: The valid ones of a batch.

    Returns:
        Means over the episodes with a verdict of the last one's score (`judge/score`), whether its
        votes differed (`judge/disagreement`) and the judge gave none (`judge/unjudged`), of the
        characters that it was shown (`judge/chars`), and of each criterion
        (`judge/criterion.<name>`); nothing without a verdict.
    """
    names = sorted({name for each in episodes for name in each.numbers if name[:6] == "judge."})
    found = {}
    for name in names:
        values = [each.numbers[name] for each in episodes if name in each.numbers]
        found[f"judge/{name[6:]}"] = statistics.fmean(values)
    return found


def check_info_names(names: Sequence[str]) -> None:
    """Raise `ConfigurationError` unless each is a text without comma, slash or space, once."""
    for name in names:
        if not re.fullmatch(r"[^\s,/]+", name):
            raise ConfigurationError(f"not a name of a number in info: {name!r}")
    if len(set(names)) < len(names):
        raise ConfigurationError(f"a name occurs twice: {', '.join(names)}")


PART = re.compile(r"(?:env/|(?=opponent/))(?P<name>.+)/(?P<metric>[^/]+)")
"""What metrics of one environment, or against one opponent, are called."""


def environment_metrics(episodes: Sequence[Played]) -> dict[str, float]:
    """Summarise the episodes of each environment of a run of several.

    Args:
        episodes: The valid ones of a batch.

    Returns:
        `env/<name>/share` (of the episodes), and `success_rate`, `return_mean` and `turns_mean` of
        its episodes likewise; nothing where environments have no names.
    """
    return _of_parts("env", episodes, [episode.environment for episode in episodes])


def opponent_metrics(episodes: Sequence[Played]) -> dict[str, float]:
    """Summarise the episodes against each opponent that was drawn from a pool.

    Args:
        episodes: The valid ones of a batch.

    Returns:
        As `environment_metrics`, `opponent/<opponent>/share` and so on; nothing where all episodes
        have the same opponent.
    """
    names = [str(episode.task.params.get("opponent", "")) for episode in episodes]
    return _of_parts("opponent", episodes, names) if len({*names} - {""}) > 1 else {}


def _of_parts(kind: str, episodes: Sequence[Played], names: Sequence[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name in sorted({*names} - {""}):
        own = [episode for episode, each in zip(episodes, names, strict=True) if each == name]
        metrics = {
            "share": len(own) / len(episodes),
            "success_rate": sum(t.success for t in own) / len(own),
            "return_mean": statistics.fmean(t.total_reward for t in own),
            "turns_mean": sum(len(t.rewards) for t in own) / len(own),
        }
        found |= {f"{kind}/{name}/{metric}": value for metric, value in metrics.items()}
    return found


def update_metrics(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Summarise the optimiser steps of a batch by means over all of them.

    Args:
        steps: Metrics of each, under the record's names; those that a step lacks are left out.
    """
    names = [name for name in (steps[0] if steps else ()) if all(name in step for step in steps)]
    return {name: sum(step[name] for step in steps) / len(steps) for name in names}


def progress(iteration: int, split: str, metrics: Mapping[str, float]) -> str:
    """Return a line about an iteration or evaluation for whoever watches the run.

    Args:
        iteration: Its number.
        split: `train` or `eval:<name>`.
        metrics: As recorded.
    """
    shown = "success_rate return_mean turns_mean exploitability loss grad_norm entropy step_s"
    numbers = "  ".join(f"{name} {metrics[name]:.4f}" for name in shown.split() if name in metrics)
    return f"{iteration:5d} {split}  {numbers}"


def show(iteration: int, split: str, metrics: Mapping[str, float]) -> None:
    """Print the line of `progress`."""
    print(progress(iteration, split, metrics), flush=True)

"""Choose the learning rates of docs/regimes.md, and draw its figures and tables.

    python tools/regimes.py runs/regimes rates    # writes recipes/sweeps/regimes.toml
    python tools/regimes.py runs/regimes          # figures and tables of what has been run

A run's score is the mean over all its iterations (area under the curve) of the share of right
answers. Rates are chosen by the seeds of recipes/sweeps/regimes-rates.toml, which are no others'.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rates import arguments, best, over_rates, picture, text

from gem_bench.plot import plot
from gem_bench.series import TRAIN, load_runs
from gem_bench.stats import Estimate, difference_of_runs, rate_over_runs
from gem_bench.sweep import Planned, read
from gem_train.record import RUN, read_run

RECIPES = Path(__file__).parents[1] / "recipes"
RATES, REGIMES = (RECIPES / "sweeps" / f"{name}.toml" for name in ("regimes-rates", "regimes"))
ESTIMATORS = {"reinforce": "REINFORCE", "rebn": "ReBN", "grpo": "GRPO"}
SHIFTED = ("plus", "minus")
"""Regimes in which only REINFORCE differs from `short`: the others subtract a mean."""
SEEDS = {"reinforce": range(5), "rebn": range(5), "grpo": range(3), "control": range(5)}
CONTROLLED = ("short", "hard", "wrong-mode", "filler")
LAST = 10


@dataclass(frozen=True)
class Score:
    """What a run came to."""

    area: float
    """Share of right answers, mean over all iterations."""
    start: float
    end: float
    """Mean of the last ten iterations."""
    greedy: tuple[float, float]
    """Success of the most likely answers to questions of training, before and after."""
    held_out: tuple[float, float]
    """The same of questions that neither cloning nor training asked."""
    entropy: tuple[float, float]
    """Nats per token in the first ten and in the last ten iterations."""
    norm: float
    """Of the gradient before it is clipped, median over iterations."""
    clipped: float
    """Share of updates whose gradient was clipped."""
    negative: float
    """Share of turns with a negative advantage."""
    moved: float
    """KL divergence of an update, nats per token, median over iterations."""


Key = tuple[str, str, float]
"""Regime, estimator and discount."""
Scores = Mapping[Key, Mapping[float, Mapping[int, Score]]]
"""By learning rate, then seed."""


def scores(root: Path, planned: Iterable[Planned]) -> Scores:
    """Return the scores of the runs that are finished."""
    found: dict[Key, dict[float, dict[int, Score]]] = defaultdict(lambda: defaultdict(dict))
    for run in planned:
        folder = root / run.name
        if (folder / RUN).exists() and read_run(folder).meta.get("status") == "finished":
            algorithm, rate = run.spec.algorithm, run.spec.optimizer.lr
            key = run.spec.name, algorithm.advantage, algorithm.gamma
            found[key][rate][run.spec.seed] = score(folder, run)
    return found


def score(folder: Path, run: Planned) -> Score:
    """Return the score of a finished run."""
    wrappers = run.spec.env[0].params["wrappers"]
    questions = next((w["most"] for w in wrappers if w["name"] == "series"), None)
    # With several questions an episode succeeds only if all answers are right.
    metric, scale = ("success_rate", 1) if questions is None else ("return_mean", questions)
    lines: dict[str, list[float]] = defaultdict(list)
    updates = []
    for line in read_run(folder).metrics:
        lines[line["split"]].append(line[metric] / scale)
        if line["split"] == "train":
            updates.append(line)
    norms = [line["grad_norm"] for line in updates]
    entropies = [line["entropy"] for line in updates]
    sampled, greedy, held_out = (lines[s] for s in ("train", "eval:greedy", "eval:held-out"))
    return Score(
        statistics.fmean(sampled),
        sampled[0],
        statistics.fmean(sampled[-LAST:]),
        (greedy[0], greedy[-1]),
        (held_out[0], held_out[-1]),
        (statistics.fmean(entropies[:LAST]), statistics.fmean(entropies[-LAST:])),
        statistics.median(norms),
        statistics.fmean(norm > run.spec.optimizer.grad_clip for norm in norms),
        statistics.fmean(line["negative_advantage_rate"] for line in updates),
        statistics.median(line["update_kl"] for line in updates),
    )


def sweep_file(found: Scores) -> str:
    """Return the sweep of the runs that are reported, each estimator at its best rate."""
    parts = [
        "# The figures of docs/regimes.md, at the learning rates that `python tools/regimes.py`\n"
        "# chose from the runs of regimes-rates.toml."
    ]
    for (regime, estimator, gamma), by_rate in found.items():
        rate = best({rate: [s.area for s in each.values()] for rate, each in by_rate.items()})
        several = sum(key[:2] == (regime, estimator) for key in found) > 1
        for advantage in (estimator, "control"):
            if advantage == "control" and (estimator != "rebn" or regime not in CONTROLLED):
                continue
            chosen = [
                f'spec = "../regimes/{regime}.toml"',
                f"seeds = {list(SEEDS[advantage])}",
                f'vary.algorithm.advantage = ["{advantage}"]',
                *([f"vary.algorithm.gamma = [{gamma}]"] if several else []),
                f"set.optimizer.lr = {rate:g}",
            ]
            parts.append("\n".join(["[[runs]]", *chosen]))
    return "\n\n".join(parts) + "\n"


def estimated(values: Sequence[float]) -> str:
    """Return a mean with its interval."""
    return brackets(rate_over_runs(values))


def brackets(estimate: Estimate, sign: str = "") -> str:
    """Return an estimate as text."""
    if estimate.low is None:
        return f"{estimate.mean:{sign}.3f}"
    return f"{estimate.mean:{sign}.3f} [{estimate.low:{sign}.3f}, {estimate.high:{sign}.3f}]"


def rows(found: Scores) -> dict[str, dict[str, tuple[float, Mapping[int, Score]]]]:
    """Return rate and scores of every estimator by regime."""
    table: dict[str, dict[str, tuple[float, Mapping[int, Score]]]] = defaultdict(dict)
    for (regime, estimator, gamma), by_rate in found.items():
        [(rate, by_seed)] = by_rate.items()
        several = len({key[2] for key in found if key[0] == regime}) > 1
        table[f"{regime}, discount {gamma:g}" if several else regime][estimator] = rate, by_seed
    for regime in SHIFTED:
        if regime in table:
            table[regime].update({k: v for k, v in table["short"].items() if k != "reinforce"})
    return table


def compared(table: Mapping[str, Mapping[str, tuple[float, Mapping[int, Score]]]]) -> list[str]:
    """Return the table of estimators by regime."""
    lines = [
        "| | start | REINFORCE | ReBN | GRPO | ReBN less REINFORCE | at the end |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for regime, found in table.items():
        start = statistics.fmean(s.start for _, by_seed in found.values() for s in by_seed.values())
        cells = [
            f"{estimated([s.area for s in found[name][1].values()])} ({found[name][0]:g})"
            if name in found
            else "-"
            for name in ESTIMATORS
        ]
        ends = [brackets(each, "+") for each in differences(found, "rebn")]
        lines.append(f"| `{regime}` | {start:.3f} | {' | '.join([*cells, *ends])} |")
    return lines


def differences(
    found: Mapping[str, tuple[float, Mapping[int, Score]]], name: str
) -> tuple[Estimate, Estimate]:
    """Return an estimator less REINFORCE, paired by seed: of the areas and of the ends."""
    ours, theirs = found[name][1], found["reinforce"][1]
    area, end = (
        difference_of_runs(
            {seed: getattr(s, field) for seed, s in ours.items()},
            {seed: getattr(s, field) for seed, s in theirs.items()},
        )
        for field in ("area", "end")
    )
    return area, end


def answers(table: Mapping[str, Mapping[str, tuple[float, Mapping[int, Score]]]]) -> list[str]:
    """Return the table of greedy and held-out success before and after training."""
    lines = [
        "| | | sampled: first iteration | last ten | greedy: before | after "
        "| held out, greedy: before | after |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for regime, found in table.items():
        for name, (_, by_seed) in found.items():
            if regime in SHIFTED and name != "reinforce":
                continue
            runs = list(by_seed.values())
            cells = []
            for before, after in (
                ([s.start for s in runs], [s.end for s in runs]),
                ([s.greedy[0] for s in runs], [s.greedy[1] for s in runs]),
                ([s.held_out[0] for s in runs], [s.held_out[1] for s in runs]),
            ):
                cells += [f"{statistics.fmean(before):.3f}", estimated(after)]
            label = ESTIMATORS.get(name, name)
            lines.append(f"| `{regime}` | {label} | {' | '.join(cells)} |")
    return lines


def updates(table: Mapping[str, Mapping[str, tuple[float, Mapping[int, Score]]]]) -> list[str]:
    """Return the table of entropy, gradients, steps and signs of advantages, means over runs."""
    lines = [
        "| | | entropy, begin and end | gradient norm | clipped | KL | negative advantages |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for regime, found in table.items():
        for name, (_, by_seed) in found.items():
            if regime in SHIFTED and name != "reinforce":
                continue
            runs = list(by_seed.values())
            first, last = (statistics.fmean(run.entropy[i] for run in runs) for i in range(2))
            means = (
                statistics.fmean(getattr(run, field) for run in runs)
                for field in ("norm", "clipped", "moved", "negative")
            )
            norm, clipped, moved, negative = means
            cells = [f"{first:.2f}, {last:.2f}", f"{norm:.2f}", f"{clipped:.0%}"]
            cells += [f"{moved:.4f}", f"{negative:.0%}"]
            lines.append(f"| `{regime}` | {ESTIMATORS.get(name, name)} | {' | '.join(cells)} |")
    return lines


def forest(table: Mapping[str, Mapping[str, tuple[float, Mapping[int, Score]]]]) -> str:
    """Return a figure of the differences to REINFORCE, a row for each regime."""
    names = [name for name in ESTIMATORS if name != "reinforce"]
    shown = {regime: found for regime, found in table.items() if {*names} & {*found}}
    estimates = {
        (regime, name): differences(found, name)[0]
        for regime, found in shown.items()
        for name in names
        if name in found
    }
    ends = [v for e in estimates.values() for v in (e.low, e.high, 0.0) if v is not None]
    low, high = math.floor(min(ends) * 10) / 10, math.ceil(max(ends) * 10) / 10
    left, width, row, top = 200, 460, 34, 44

    def px(value: float) -> float:
        return left + (value - low) / (high - low) * width

    out, bottom = [], top + row * len(shown)
    for tick in range(round(low * 10), round(high * 10) + 1):
        x = px(tick / 10)
        kind = "zero" if tick == 0 else "grid"
        out.append(f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}"/>')
        out.append(text("tick", x, bottom + 18, f"{tick / 10:+.1f}", "middle"))
    for index, name in enumerate(names):
        x = left + 190 * index
        out.append(f'<circle class="g{index} dot" cx="{x}" cy="20" r="5"/>')
        out.append(text("name", x + 12, 25, f"{ESTIMATORS[name]} less REINFORCE"))
    for line, regime in enumerate(shown):
        middle = top + row * line + row / 2
        out.append(text("name", left - 14, middle + 5, regime, "end"))
        for index, name in enumerate(names):
            estimate = estimates.get((regime, name))
            if estimate is None or estimate.low is None or estimate.high is None:
                continue
            y = middle + 9 * (index - (len(names) - 1) / 2)
            ends_at = f'x1="{px(estimate.low):.1f}" x2="{px(estimate.high):.1f}"'
            out.append(f'<line class="g{index} whisker" {ends_at} y1="{y}" y2="{y}"/>')
            out.append(
                f'<circle class="g{index} dot" cx="{px(estimate.mean):.1f}" cy="{y}" r="4"/>'
            )
    out.append(text("tick", left, bottom + 40, "Share of right answers, mean over the run"))
    return picture("Estimators less REINFORCE by regime", left + width + 20, bottom + 50, out)


def curves(root: Path, planned: Iterable[Planned]) -> str:
    """Return learning curves of ReBN and of the control, a panel for each regime with both."""
    shown = [run for run in planned if run.spec.name in CONTROLLED]
    folders = [
        root / run.name for run in shown if run.spec.algorithm.advantage in ("rebn", "control")
    ]
    splits = (TRAIN, "eval:greedy", "eval:held-out")
    groups = load_runs(folders)
    return plot(groups, metrics=["success_rate"], window=5, panels="name", splits=splits)


def areas(found: Scores) -> dict[str, dict[str, dict[float, list[float]]]]:
    """Return the area of every seed by regime, estimator and learning rate."""
    panels: dict[str, dict[str, dict[float, list[float]]]] = defaultdict(dict)
    for (regime, estimator, gamma), by_rate in found.items():
        several = len({key[2] for key in found if key[0] == regime}) > 1
        panels[f"{regime}, discount {gamma:g}" if several else regime][estimator] = {
            rate: [score.area for score in by_seed.values()] for rate, by_seed in by_rate.items()
        }
    return panels


def main(root: Path, command: str | None) -> int:
    """Write the sweep, or figures and tables; return 0."""
    tried = scores(root, read([RATES]))
    if command == "rates":
        planned = read([RATES])
        done = sum(len(by_seed) for by_rate in tried.values() for by_seed in by_rate.values())
        if done < len(planned):
            sys.exit(
                f"{done} of {len(planned)} runs are finished: rates are chosen from all of them"
            )
        REGIMES.write_text(sweep_file(tried), encoding="utf-8")
        return 0
    (root / "regimes-rates.svg").write_text(over_rates(areas(tried), ESTIMATORS), encoding="utf-8")
    planned = read([REGIMES])
    every = scores(root, planned)
    control = {key: v for key, v in every.items() if key[1] == "control"}
    table = rows({key: v for key, v in every.items() if key[1] in ESTIMATORS})
    (root / "regimes.svg").write_text(forest(table), encoding="utf-8")
    (root / "regimes-curves.svg").write_text(curves(root, planned), encoding="utf-8")
    sections = [compared(table), answers(table), answers(rows(control)), updates(table)]
    (root / "regimes.md").write_text("\n\n".join(map("\n".join, sections)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(*arguments()))

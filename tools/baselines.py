"""Choose the learning rates of docs/baselines.md, and draw its figures and tables.

    python tools/baselines.py runs/baselines rates    # writes baselines.toml and algorithms.toml
    python tools/baselines.py runs/baselines          # draws what `make baselines` has run so far

Rates are chosen by the runs of recipes/sweeps/baselines-rates.toml, whose seed is no figure's: of
each experiment and estimator the rate with the highest success, mean over the whole run. The second
command writes `<figure>.svg` and `<figure>.md` beside the runs, and prints what has not been run.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from rates import arguments, best, over_rates

from gem_bench.plot import plot
from gem_bench.series import Group, load_runs
from gem_bench.sweep import Planned, read
from gem_bench.table import as_markdown, tabulate
from gem_train.experiment.runspec import AlgorithmPart
from gem_train.record import RUN, read_run

SWEEPS = Path(__file__).parents[1] / "recipes" / "sweeps"
WHITENED = ", whitened"
ESTIMATORS = {
    "reinforce": "REINFORCE",
    "rebn": "ReBN",
    "grpo": "GRPO",
    "gae": "PPO",
    f"gae{WHITENED}": "PPO, whitened",
}
HEADS = {
    "baselines": "Figure 1 of docs/baselines.md: REINFORCE and ReBN on each kind of environment.",
    "algorithms": """Figure 4 of docs/baselines.md: GRPO and PPO, which has a critic of each turn's
# value (`gae`). REINFORCE and ReBN of the same experiments, with as many episodes, are in
# baselines.toml.""",
}


@dataclass(frozen=True)
class Figure:
    """What is drawn of which runs."""

    name: str
    sweep: str
    """Its runs; those that it compares them with are in `baselines`."""
    compared: Sequence[str] = ()
    """Estimators of the runs of `baselines`, with the same recipes, that are drawn too."""
    columns: str = "algorithm.advantage"
    metric: str = "success_rate"
    splits: Sequence[str] = ("train",)
    panels: str | None = "name"


FIGURES = (
    Figure("baselines", "baselines"),
    Figure("algorithms", "algorithms", ("reinforce", "rebn")),
    Figure("discount", "discount", (), "algorithm.gamma", panels=None),
    Figure("discount-turns", "discount", (), "algorithm.gamma", "turns_mean", panels=None),
    Figure("discount-verl", "discount-verl", (), "algorithm.gamma", "turns_mean", panels=None),
    Figure("tools", "tools", ("rebn",), panels=None),
    Figure(
        "transfer",
        "transfer",
        splits=("train", "eval:larger", "eval:search", "eval:no-tool"),
        panels=None,
    ),
)


def main(root: Path, command: str | None = None) -> int:
    """Write the sweeps, or draw all figures; return 0."""
    tried = tried_rates(root)
    if command == "rates":
        for name in HEADS:
            (SWEEPS / f"{name}.toml").write_text(sweep_file(name, tried), encoding="utf-8")
        return 0
    if tried:
        by_name = {path.stem: found for path, found in tried.items()}
        (root / "baselines-rates.svg").write_text(over_rates(by_name, ESTIMATORS), encoding="utf-8")
        (root / "baselines-rates.md").write_text("\n".join(chosen(tried)), encoding="utf-8")
    for figure in FIGURES:
        runs = planned(figure)
        folders = [root / run.name for run in runs if finished(root / run.name)]
        print(f"{figure.name}: {len(folders)} of {len(runs)} runs")
        if not folders:
            continue
        groups = [by_estimator_alone(group) for group in load_runs(folders)]
        several = len({group.settings.get("name") for group in groups}) > 1
        panels = figure.panels if several else None  # a single experiment is drawn alone
        drawn = plot(groups, metrics=[figure.metric], window=5, panels=panels)
        (root / f"{figure.name}.svg").write_text(drawn, encoding="utf-8")
        for split in figure.splits:
            table = tabulate(
                groups,
                columns=figure.columns,
                metric=figure.metric,
                split=split,
                window=10 if split == "train" else 1,
            )
            out = figure.name if split == "train" else f"{figure.name}-{split.partition(':')[2]}"
            (root / f"{out}.md").write_text(as_markdown(table) + "\n", encoding="utf-8")
        if figure.name == "algorithms":
            (root / "algorithms-kl.md").write_text("\n".join(moved(groups)), encoding="utf-8")
    return 0


def estimator(algorithm: AlgorithmPart) -> str:
    """Return the key of `ESTIMATORS`."""
    return algorithm.advantage + (WHITENED if algorithm.whiten else "")


def by_estimator_alone(group: Group) -> Group:
    """Return a group that its estimator tells from others, not its learning rate."""
    settings = {k: v for k, v in group.settings.items() if k != "optimizer.lr"}
    if settings.pop("algorithm.whiten", False):
        settings["algorithm.advantage"] += WHITENED
    return replace(group, settings=settings)


@cache
def rates_runs() -> list[Planned]:
    """Return the runs that decide about learning rates."""
    return read([SWEEPS / "baselines-rates.toml"])


Tried = dict[Path, dict[str, dict[float, list[float]]]]
"""Success over the whole run of every seed, by recipe, estimator and learning rate."""


def tried_rates(root: Path) -> Tried:
    """Return what the runs came to, where those of all rates are finished."""
    found: Tried = {}
    runs: dict[tuple[Path, str], list[Planned]] = defaultdict(list)
    for run in rates_runs():
        runs[run.path.resolve(), estimator(run.spec.algorithm)].append(run)
    for (path, key), members in runs.items():
        if not all(finished(root / run.name) for run in members):
            continue
        by_rate = found.setdefault(path, {}).setdefault(key, defaultdict(list))
        for run in members:
            lines = read_run(root / run.name).metrics
            area = statistics.fmean(x["success_rate"] for x in lines if x["split"] == "train")
            by_rate[run.spec.optimizer.lr].append(area)
    return found


def sweep_file(name: str, tried: Tried) -> str:
    """Return the sweep of a figure, each estimator at its best rate, or the recipe's if none."""
    recipes: dict[Path, list[str]] = defaultdict(list)
    for run in rates_runs():
        mine = (run.spec.algorithm.advantage in ("reinforce", "rebn")) == (name == "baselines")
        if mine and (key := estimator(run.spec.algorithm)) not in recipes[run.path.resolve()]:
            recipes[run.path.resolve()].append(key)
    parts = [f"# {HEADS[name]}\n# `python tools/baselines.py RUNS rates` writes this file."]
    for path, keys in recipes.items():
        for key in keys:
            by_rate = tried.get(path, {}).get(key)
            parts.append(
                "\n".join(
                    [
                        "[[runs]]",
                        f'spec = "{os.path.relpath(path, SWEEPS)}"',
                        "seeds = [0, 1, 2]",
                        f'vary.algorithm.advantage = ["{key.removesuffix(WHITENED)}"]',
                        *(["vary.algorithm.whiten = [true]"] if key.endswith(WHITENED) else []),
                        *([f"set.optimizer.lr = {best(by_rate):g}"] if by_rate else []),
                    ]
                )
            )
    return "\n\n".join(parts) + "\n"


def moved(groups: Sequence[Group]) -> list[str]:
    """Return the table of how far an update moves the policy, in thousandths of nats per token.

    Of a run it is the median over updates; of several runs their mean.
    """
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for group in groups:
        medians = [
            statistics.median(
                line["update_kl"] for line in run.record.metrics if line["split"] == "train"
            )
            for run in group.runs
        ]
        key = group.settings["algorithm.advantage"]
        found[group.settings["name"]][key] = 1000 * statistics.fmean(medians)
    return by_estimator(found, ".2f")


def chosen(tried: Tried) -> list[str]:
    """Return the table of the rates that were chosen."""
    rates = {
        path.stem: {key: best(by_rate) for key, by_rate in found.items()}
        for path, found in tried.items()
    }
    return by_estimator(rates, "g")


def by_estimator(rows: Mapping[str, Mapping[str, float]], form: str) -> list[str]:
    """Return a table of numbers by experiment and estimator, formatted as `form` says."""
    lines = [f"| | {' | '.join(ESTIMATORS.values())} |", f"|---|{'---:|' * len(ESTIMATORS)}"]
    for name, row in rows.items():
        cells = (format(row[key], form) if key in row else "" for key in ESTIMATORS)
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return lines


def planned(figure: Figure) -> list[Planned]:
    """Return the runs of a figure, those of `baselines` first."""
    own = read([SWEEPS / f"{figure.sweep}.toml"])
    recipes = {run.path.resolve() for run in own}
    others = [
        run
        for run in (read([SWEEPS / "baselines.toml"]) if figure.compared else [])
        if run.path.resolve() in recipes and run.spec.algorithm.advantage in figure.compared
    ]
    return [*others, *own]


def finished(folder: Path) -> bool:
    """Return whether a folder holds a finished run."""
    return (folder / RUN).exists() and read_run(folder).meta.get("status") == "finished"


if __name__ == "__main__":
    sys.exit(main(*arguments()))

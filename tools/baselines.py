"""Draw the figures and tables of docs/baselines.md from what `make baselines` has run so far.

    python tools/baselines.py runs/baselines

Writes `<figure>.svg` and `<figure>.md` beside the runs, and prints what has not been run.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gem_bench.__main__ import main as gem_bench
from gem_bench.sweep import Planned, read
from gem_train.record import RUN, read_run

SWEEPS = Path(__file__).parents[1] / "recipes" / "sweeps"


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


def main(root: Path) -> int:
    """Draw all figures; return 0."""
    for figure in FIGURES:
        runs = planned(figure)
        folders = [str(root / run.name) for run in runs if finished(root / run.name)]
        print(f"{figure.name}: {len(folders)} of {len(runs)} runs")
        if not folders:
            continue
        base = root / figure.name
        panels = [] if figure.panels is None else ["--panels", figure.panels]
        drawn = ["--metrics", figure.metric, "--window", "5", "--out", f"{base}.svg"]
        gem_bench(["plot", *folders, *panels, *drawn])
        for split in figure.splits:
            window = "10" if split == "train" else "1"
            out = base if split == "train" else f"{base}-{split.partition(':')[2]}"
            how = ["--columns", figure.columns, "--metric", figure.metric, "--split", split]
            how += ["--window", window, "--format", "markdown", "--out", f"{out}.md"]
            gem_bench(["table", *folders, *how])
    return 0


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
    sys.exit(main(Path(sys.argv[1])))

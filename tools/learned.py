"""Print the tables of docs/pretrained.md and docs/vision.md from their runs.

    python tools/learned.py runs/pretrained

For each experiment: success of sampled answers in the first and in the last four iterations, and of
the most likely answers to held-out questions before and after, over all seeds. Then what the model
answered to some held-out questions before and after, from the run with the lowest seed.
"""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from gem.core import Observation
from gem_bench.stats import over_runs, rate_over_runs
from gem_train.record import RUN, RunRecord, read_run

HELD_OUT = ("eval:held-out", "eval:greedy")
WINDOW = 4
SHOWN = 6
"""Questions of each experiment whose answers are shown."""


def success(run: RunRecord, split: str) -> list[float]:
    """Return the success rate of every iteration of a split."""
    return [line["success_rate"] for line in run.metrics if line["split"] == split]


def evaluated(run: RunRecord) -> str:
    """Return the split of a run's greedy evaluation."""
    splits = {line["split"] for line in run.metrics}
    return next(each for each in HELD_OUT if each in splits)


def estimated(values: Sequence[float]) -> str:
    """Return a mean of rates with its interval."""
    found = rate_over_runs(values)
    between = "" if found.low is None else f" [{found.low:.2f}, {found.high:.2f}]"
    return f"{found.mean:.2f}{between}"


def row(label: str, runs: Sequence[RunRecord]) -> str:
    """Return an experiment's row of the table."""
    sampled = [success(run, "train") for run in runs]
    held_out = [success(run, evaluated(run)) for run in runs]
    gain = over_runs([rates[-1] - rates[0] for rates in held_out])
    between = "" if gain.low is None else f" [{gain.low:+.2f}, {gain.high:+.2f}]"
    cells = [
        label,
        str(len(runs)),
        f"{statistics.fmean(rates[0] for rates in sampled):.2f}",
        estimated([statistics.fmean(rates[-WINDOW:]) for rates in sampled]),
        f"{statistics.fmean(rates[0] for rates in held_out):.2f}",
        estimated([rates[-1] for rates in held_out]),
        f"{gain.mean:+.2f}{between}",
    ]
    return f"| {' | '.join(cells)} |"


def text(observation: Observation) -> str:
    """Return the first line of an observation, and the hashes of its images."""
    if isinstance(observation, str):
        return observation.splitlines()[0]
    parts = [part.get("text", "").partition("\n")[0] for part in observation]
    images = [f"[{part['blake2b'][:8]}]" for part in observation if part["type"] == "image"]
    return " ".join([parts[0], *images])


def transcripts(run: RunRecord) -> Iterable[str]:
    """Yield rows with held-out questions, and the answers before and after training."""
    answers: dict[int, dict[str, tuple[str, str, float]]] = defaultdict(dict)
    for episode in run.episodes(evaluated(run)):
        for turn in episode.trajectory.turns:
            said = " ".join(turn.text.split()).replace("|", "\\|")
            asked = text(turn.observation)
            answers[episode.iteration].setdefault(asked, (asked, said, turn.reward))
    before, after = answers[min(answers)], answers[max(answers)]
    # In a game, later turns depend on earlier answers.
    for asked in [each for each in before if each in after][:SHOWN]:
        marks = [
            f"{said} {'✓' if reward == 1 else '✗'}"
            for _, said, reward in (before[asked], after[asked])
        ]
        yield f"| {asked} | {' | '.join(marks)} |"


def main() -> int:
    """Print the tables."""
    folders = sorted(path.parent for path in Path(sys.argv[1]).glob(f"*/{RUN}"))
    experiments: dict[str, dict[int, RunRecord]] = defaultdict(dict)
    for folder in folders:
        run = read_run(folder)
        if run.meta.get("status") == "finished":
            spec = run.meta["spec"]
            name, _, _ = folder.name.rpartition("-")  # without the seed
            label = f"`{name}`, {spec['algorithm']['advantage']}"
            experiments[label][spec["seed"]] = run
    print("| | seeds | sampled | | held out, greedy | | gain |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for label, by_seed in experiments.items():
        print(row(label, list(by_seed.values())))
    for label, by_seed in experiments.items():
        print(f"\n{label}\n\n| question | before | after |\n|---|---|---|")
        print("\n".join(transcripts(by_seed[min(by_seed)])))
    return 0


if __name__ == "__main__":
    sys.exit(main())

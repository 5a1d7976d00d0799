"""The share of an 8xH100 node's time that is lost to us, with engines of realistic speed.

python benchmarks/scale.py [--quick | --full] [--drivers NAME...] [--environments NAME...]
                           [--turns N] [--episodes N] [--baseline REVISION [--pairs N]]
                           [--plot FILE]

Engines are simulated (`scale_node.Engines`: how fast, and after which public measurements), all
else is the real code (`scale_drivers`), in the environments under .venvs: the event loop, threads,
tokenizer and environments of each adapter. Time is simulated, too: what computes takes the CPU time
that it takes here, what waits takes none (`scale_node`). Episodes have 20 turns of 192 sampled
tokens; environments take 1 ms of CPU (`compute`), 200 ms (`wait`), or 10 s in one of a hundred
steps (`rare`). Where a trainer plays in several processes (loops), one of them is run, with its
share of episodes and engines.

- lost: of the time in which engines sampled a sequence or had room for one more, summed over these
  sequences, the share in which there was room and an episode in our hands: its turn was sampled,
  or its environment had answered, or it was about to begin, and our code had not yet passed it on.
- longer: how much longer the iteration takes than with a driver that takes no time.
- CPU: our CPU time of a turn, without the environment's. busy: share of the time in which the
  process computes, environments included.
- lag: from the end of a turn in the engine until our code goes on.
- MB: peak of memory above what the process takes before, with all episodes at its end.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any

from drawing import draw
from scale_node import Engines, Work

ROOT = Path(__file__).parents[1]
LOOPS = {"rollout": 1, "verl": 8, "openrlhf": 8, "oat": 8, "rl2": 1, "tinker": 1}
"""Processes that play on a node: verl's agent-loop workers (its default), OpenRLHF's and oat's
engines, RL2's first rank, Tinker's client."""
NODE = Engines()
ENVIRONMENTS = ("compute", "wait", "rare")
CHAT = (
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
CURVES = {1: (128, 256, 512, 1024, 2048), 8: (1024, 2048, 4096, 8192)}
"""Numbers of episodes in the plot, by number of event loops."""


@dataclass(frozen=True)
class Case:
    """What is measured in one process of several that are alike."""

    driver: str
    loops: int
    episodes: int
    """Of all processes together."""
    environment: str = "wait"
    turns: int = 20
    speed: float = 1.0
    """Of the engines."""

    def text(self) -> str:
        """Return the case as `scale_drivers` reads it."""
        node = Engines(number=NODE.number // self.loops, speed=self.speed)
        work = Work(self.episodes // self.loops, self.turns, environment=self.environment)
        return json.dumps({"engines": asdict(node), "work": asdict(work)})


def write_texts(folder: Path) -> None:
    """Write what everybody says, words as frequent as in a language (Zipf), and a tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    words = (files("gem") / "data" / "words_large.txt").read_text(encoding="utf-8").split()
    ranks = list(accumulate(1 / (rank + 3) for rank in range(len(words))))
    text = " ".join(random.Random(0).choices(words, cum_weights=ranks, k=60_000))
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4000,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator([text], trainer)
    folder.mkdir()
    bpe.save(str(folder / "tokenizer.json"))
    (folder / "chat_template").write_text(CHAT, encoding="utf-8")
    (folder / "text").write_text(text, encoding="utf-8")


def interpreter(driver: str) -> Path:
    """Return the Python of a trainer's environment, beside the one that runs this."""
    if driver == "rollout":
        return Path(sys.executable)
    return Path(sys.prefix).parent / driver / "bin" / "python"


def measured(cases: Sequence[Case], texts: Path, tree: Path = ROOT) -> Iterator[dict[str, Any]]:
    """Measure cases of one driver in one process.

    Args:
        cases: The cases.
        texts: Folder that `write_texts` filled.
        tree: Where the packages and the measured program are.

    Raises:
        subprocess.CalledProcessError: The process failed.
    """
    driver = cases[0].driver
    paths = sorted(tree.glob("packages/gem-*/src"))
    shims = tree / "packages" / "gem-cpu" / "src" / "gem_cpu"
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
    if driver not in ("rollout", "tinker"):
        paths += [shims / "startup", *([shims / "rl2_stand_ins"] if driver == "rl2" else [])]
        environment |= {"GEM_CPU": "1", "DS_ACCELERATOR": "cpu"}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, paths))
    command = [str(interpreter(driver)), str(tree / "benchmarks" / "scale_drivers.py"), driver]
    command += [str(texts), *(case.text() for case in cases)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                yield json.loads(line)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)


def revision(name: str, folder: Path) -> Path:
    """Write the packages and benchmarks of a revision to a folder."""
    command = ["git", "-C", str(ROOT), "archive", name, "packages", "benchmarks"]
    packed = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def show(case: Case, found: dict[str, Any], which: str) -> None:
    """Print a row."""
    print(
        f"{case.driver + which:18}{case.loops:6}{case.episodes:10,} {case.environment:12}"
        f"{100 * found['lost']:7.2f}%{100 * found['longer']:8.2f}%{found['cpu_ms']:9.3f}"
        f"{100 * found['busy']:7.1f}%{found['lag_p50_ms']:9.2f}{found['lag_p99_ms']:9.1f}"
        f"{found['mb']:9,.0f}{found['turns_s'] * case.loops:9.0f}",
        flush=True,
    )


def table(
    groups: Sequence[Sequence[Case]], texts: Path, trees: dict[str, Path], pairs: int
) -> None:
    """Measure and print one table; cases of a group have the same driver.

    Args:
        groups: The cases.
        texts: Folder that `write_texts` filled.
        trees: What is measured, by its name.
        pairs: How often, in alternating order; above 1 ratios of the CPU time follow.
    """
    head = ("", "loops", "episodes", "environment", "lost", "longer", "CPU ms", "busy")
    head += ("lag p50", "p99 ms", "MB", "turns/s")
    print("{:18}{:>6}{:>10} {:12}{:>8}{:>9}{:>9}{:>8}{:>9}{:>9}{:>9}{:>9}".format(*head))
    for cases in groups:
        if not interpreter(cases[0].driver).exists():
            print(f"{cases[0].driver:18} has no environment ({interpreter(cases[0].driver)})")
            continue
        cpu_ms: dict[tuple[Case, str], list[float]] = {}
        for number in range(pairs):
            for which, tree in list(trees.items())[:: -1 if number % 2 else 1]:
                rows = measured(cases, texts, tree)
                for case, found in zip(cases, rows, strict=True):
                    show(case, found, which)
                    cpu_ms.setdefault((case, which), []).append(found["cpu_ms"])
        for case in cases if pairs > 1 else ():
            before, now = (cpu_ms[case, which] for which in trees)
            ratios = sorted(y / x for x, y in zip(before, now, strict=True))
            print(
                f"{case.driver}, loops {case.loops}, {case.environment}: CPU "
                f"{median(before):.3f} ms before, {median(now):.3f} now; "
                f"ratio of {pairs} pairs {median(ratios):.2f} "
                f"({ratios[0]:.2f} to {ratios[-1]:.2f})",
                flush=True,
            )


def curves(texts: Path, turns: int) -> dict[str, list[tuple[int, float]]]:
    """Measure the share that is lost (%) over the number of episodes; print it, too."""
    lines = {}
    for speed in (1.0, 8.0):
        for loops, numbers in CURVES.items():
            cases = [Case("rollout", loops, n, turns=turns, speed=speed) for n in numbers]
            lost = [100 * found["lost"] for found in measured(cases, texts)]
            name = "one event loop" if loops == 1 else f"{loops} event loops"
            name += ", Qwen3-8B on 8xH100" if speed == 1 else f", engines {speed:g} times as fast"
            lines[name] = list(zip(numbers, lost, strict=True))
            print(f"{name:40}", *(f"{n:,}: {y:.2f}%" for n, y in lines[name]), flush=True)
    return lines


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a few episodes, in seconds")
    parser.add_argument("--full", action="store_true", help="all environments in all adapters")
    parser.add_argument("--drivers", nargs="+", choices=LOOPS, default=list(LOOPS))
    parser.add_argument("--environments", nargs="+", choices=ENVIRONMENTS, default=ENVIRONMENTS)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--episodes", type=int, default=1024, help="of one process (1024)")
    parser.add_argument("--baseline", help="a git revision whose packages are measured, too")
    parser.add_argument("--pairs", type=int, default=1, help="measurements of both revisions")
    parser.add_argument("--plot", type=Path, help="also measure and draw share over concurrency")
    args = parser.parse_args()
    if args.pairs > 1 and not args.baseline:
        parser.error("--pairs needs --baseline")
    groups = []
    for driver in ["rollout"] if args.quick else args.drivers:
        n, turns = (16, 3) if args.quick else (args.episodes, args.turns)
        loops, chosen = LOOPS[driver], args.environments
        if driver != "rollout" and not args.full:
            chosen = [each for each in chosen if each == "wait"]
        groups.append([Case(driver, loops, n, each, turns) for each in chosen])
        if driver == "rollout" and not args.quick:
            groups.append([Case(driver, 8, 8 * n, each, turns) for each in chosen])
            if args.full:
                groups[-1].append(Case(driver, loops, 8 * n, "wait", turns))
    with tempfile.TemporaryDirectory() as folder:
        texts = Path(folder) / "texts"
        write_texts(texts)
        trees = {"": ROOT}
        if args.baseline:
            before = revision(args.baseline, Path(folder) / "baseline")
            trees = {" before": before, " now": ROOT}
        table(groups, texts, trees, args.pairs)
        if args.plot:
            title = "Share of the engines' time that is lost to us, %"
            plot = draw(title, "episodes at once", curves(texts, args.turns))
            args.plot.write_text(plot, encoding="utf-8")


if __name__ == "__main__":
    main()

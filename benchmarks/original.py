"""The original GEM (gem-llm 0.1.0) in an environment of its own, to be measured beside ours.

python benchmarks/original.py

Builds .venvs/original unless it is there. Both packages have the import name `gem`, so whatever
measures the original runs in a process with that environment's interpreter.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / ".venvs"
# What its crosswords and its math grader import is not among its dependencies.
PACKAGES = ("gem-llm==0.1.0", "pandas", "pylatexenc", "math-verify[antlr4_13_2]")


def original_python() -> Path:
    """Return the interpreter that has the original installed; build its environment if needed."""
    return python_with("original", PACKAGES)


def python_with(name: str, packages: Sequence[str]) -> Path:
    """Return the interpreter of `.venvs/<name>`; build it with these packages if needed.

    Raises:
        subprocess.CalledProcessError: The packages cannot be installed.
    """
    folder = FOLDER / name
    python = folder / "bin" / "python"
    complete = folder / "complete"
    if not complete.exists():
        print(f"building {folder} ({packages[0]}, once)", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run(
            [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *packages],
            check=True,
        )
        complete.touch()
    return python


if __name__ == "__main__":
    print(original_python())

"""The original GEM (gem-llm 0.1.0) in an environment of its own, to be measured beside ours.

python benchmarks/original.py

Builds .venvs/original unless it is there. Both packages have the import name `gem`, so whatever
measures the original runs in a process with that environment's interpreter.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / ".venvs" / "original"
# What its crosswords and its math grader import is not among its dependencies.
PACKAGES = ("gem-llm==0.1.0", "pandas", "pylatexenc", "math-verify[antlr4_13_2]")


def original_python() -> Path:
    """Return the interpreter that has the original installed; build its environment if needed."""
    python = FOLDER / "bin" / "python"
    complete = FOLDER / "complete"
    if not complete.exists():
        print(f"building {FOLDER} (the original GEM, once)", file=sys.stderr)
        venv.create(FOLDER, with_pip=True, clear=True)
        subprocess.run(
            [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *PACKAGES],
            check=True,
        )
        complete.touch()
    return python


if __name__ == "__main__":
    print(original_python())

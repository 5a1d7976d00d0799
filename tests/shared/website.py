"""Building the documentation's site, and what strangers ask its search."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import tomllib

ROOT = Path(__file__).parents[2]
QUESTIONS: list[dict[str, Any]] = tomllib.loads(
    (ROOT / "tests" / "docs" / "questions.toml").read_text(encoding="utf-8")
)["question"]
FIRST = 3
"""So many results of a search are in sight."""


def html(page: str) -> str:
    """Return the address on the site of a page of docs/."""
    return re.sub(r"README$", "index", page.removesuffix(".md")) + ".html"


def build(folder: Path, config: Path = ROOT / "mkdocs.yml") -> subprocess.CompletedProcess[str]:
    """Build the site as `make site` does. With `-q`, warnings would not count."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    return subprocess.run(
        [*command, "-f", str(config), "-d", str(folder)],
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

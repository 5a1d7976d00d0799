"""The example packages of gem-core: installed here, or with the commands of their page."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "packages" / "gem-core" / "examples"
BIN = ".venvs/dev/bin/"
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

Run = Callable[[list[str]], str]
_site = tempfile.TemporaryDirectory(prefix="gem-examples-")


def install(name: str) -> None:
    """Make the modules and the entry points of an example importable in this process."""
    project = tomllib.loads((EXAMPLES / name / "pyproject.toml").read_text())["project"]
    info = Path(_site.name) / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    groups = project["entry-points"].items()
    (info / "entry_points.txt").write_text(
        "\n".join(
            line
            for group, entries in groups
            for line in (f"[{group}]", *(f"{key} = {value}" for key, value in entries.items()))
        )
    )
    sys.path[:0] = [str(EXAMPLES / name), _site.name]


@dataclass(frozen=True)
class Example:
    """An example package and the page that goes through it."""

    name: str
    """Its folder; its page is docs/tutorials/<name>.md."""
    module: str

    @property
    def source(self) -> str:
        return (EXAMPLES / self.name / f"{self.module}.py").read_text()

    @property
    def page(self) -> str:
        return f"tutorials/{self.name}.md"

    def blocks(self, language: str) -> list[str]:
        """Return the code blocks of a language on the page."""
        text = (ROOT / "docs" / self.page).read_text()
        return [code for kind, code in _FENCE.findall(text) if kind == language]

    def commands(self) -> list[list[str]]:
        """Return the commands of the page that run in the development environment."""
        lines = [line for block in self.blocks("bash") for line in block.splitlines()]
        return [shlex.split(line) for line in lines if line.startswith(BIN)]

    def installed(self, folder: Path) -> Run:
        """Install the package as the page says, in `folder`; return what runs its commands."""
        site = folder / "site"
        path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))

        def start(command: list[str]) -> str:
            words = [word.replace("runs/", f"{folder}/runs/") for word in command]
            words[0] = str(Path(sys.executable).parent / words[0].removeprefix(BIN))
            if words[1:4] == ["-m", "pip", "install"]:
                editable = words.index("-e")
                words[editable:editable] = ["--no-deps", "--target", str(site)]
                words.remove("-e")
            result = subprocess.run(
                words,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": path},
                capture_output=True,
                text=True,
                timeout=900,
                check=False,
            )
            assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
            return result.stdout + result.stderr

        start(self.commands()[0])
        return start

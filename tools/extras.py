"""The page about the extras of gem-core, written from its metadata and the registry.

    python tools/extras.py docs            # write docs/extras.md
    python tools/extras.py docs --check    # exit status 1 if it is not current

Sizes are written down by `make extras-sizes`, which installs each extra into an empty environment
(docs/extras.json).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pages
import tomllib

from gem import registry
from gem.parts import EXTRAS, HUB, MODULES

ROOT = Path(__file__).parents[1]
SIZES = ROOT / "docs" / "extras.json"
PAGE = "extras.md"
ABOUT = {
    "check": "`gem check`, `gem info`: checks of environments, for their authors",
    "math": "math problems and the grader of their answers",
    "data": "data sets from the Hugging Face hub",
    "images": "boards of games as pictures, visual tasks, images of Pillow",
    "search": "search indexes of your own passages, for the tool `search`",
    "mcp": "tools of MCP servers",
    "openspiel": "board and card games of OpenSpiel",
    "textarena": "text games of TextArena",
    "reasoning-gym": "all generators of reasoning-gym",
    "gymnasium": "`gym:`, environments of Gymnasium with texts; ours under `gymnasium.make`",
    "pettingzoo": "`pettingzoo:`, games of PettingZoo with texts",
    "python": "programs in a sandbox, programming tasks, the tool `python`",
    "docker": "the sandbox runner `docker`",
    "serve": "environments on a server, `remote:` and `openenv:` clients, `agent:` programs",
    "ray": "environments on a Ray cluster",
    "tau": "TAU-bench: customer service with tools and a user",
    "judge": "models that grade: `judge:` tasks, `gem judge`",
    "box": "terminal tasks in Harbor's folders, `harbor:`, `gem harbor`",
    "train": "what trainers' adapters share, `gem replay`",
    "eval": "`gem eval`: any model in any environment",
    "verifiers": "`verifiers:`, environments of verifiers, and GEM's in `vf-eval`; not in `all`",
    "all": "all of these",
}


def extras() -> dict[str, list[str]]:
    """Return the extras of gem-core, each with what it requires."""
    path = ROOT / "packages" / "gem-core" / "pyproject.toml"
    found: dict[str, list[str]] = tomllib.loads(path.read_text())["project"][
        "optional-dependencies"
    ]
    return found


def ids() -> dict[str, list[str]]:
    """Return the ids that need each extra, those of gem-core alone under ""."""
    found: dict[str, list[str]] = {name: [] for name in ("", *extras())}
    for id in registry.list_envs():
        source = registry.spec(id).kwargs.get("source")
        needs = [extra for begins, extra in EXTRAS["environment"].items() if id.startswith(begins)]
        needs += [extra for begins, (extra, _) in MODULES.items() if id.startswith(begins)]
        needs += [HUB[0]] if isinstance(source, str) and source.startswith("hub:") else []
        for extra in needs or [""]:
            found[extra].append(id)
    return found


def families(names: Sequence[str]) -> str:
    """Return ids as families with their numbers: `math:` (7), `eval:` (5)."""
    counts: dict[str, int] = {}
    for name in names:
        family = name.partition(":")[0]
        counts[family] = counts.get(family, 0) + 1
    return ", ".join(f"`{family}:` ({count})" for family, count in sorted(counts.items()))


def page() -> str:
    """Return the page."""
    needing, sizes = ids(), json.loads(SIZES.read_text(encoding="utf-8"))
    lines = [
        "# Extras of gem-core",
        "",
        "*Written by `make docs`.*",
        "",
        "`gem-core` needs numpy only. An extra brings what some environments, tools, executors and "
        "commands need: `pip install --find-links dist 'gem-core[math]'`. `gem-core[all]` brings "
        "everything but `verifiers`, whose versions of other packages differ. In a terminal "
        "`gem list` marks the environments whose extra is not installed. "
        "Whatever is asked for without its extra says which one to install.",
        "",
        f"{len(needing[''])} of {len(registry.list_envs())} environments need no extra: "
        f"{families(needing[''])}. An environment whose tasks are on a hub needs `data`, or its "
        'bundled sample: `--param source=sample`, `gem.make(id, source="sample")`.',
        "",
        "| extra | what it is for | environments | also | MB |",
        "|---|---|---|---|---|",
    ]
    for name in extras():
        also = [
            f"{kind} `{part}`"
            for kind in ("tool", "executor", "command")
            for part, extra in EXTRAS[kind].items()  # type: ignore[index]
            if extra == name
        ]
        every = len(registry.list_envs())
        environments = f"all {every}" if name == "all" else families(needing[name])
        cells = (f"`{name}`", ABOUT[name], environments, ", ".join(also), f"{sizes[name]:,}")
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "MB is what an extra adds to an empty environment with gem-core, on Linux with Python "
        f"{sizes['python_version']}, with all that its packages require (`make extras-sizes`). "
        "Extras share packages, so that the sum is larger than `all`.",
    ]
    return "\n".join(lines) + "\n"


def measure(wheels: Path) -> dict[str, int | str]:
    """Return the megabytes that each extra adds to an environment with gem-core.

    Args:
        wheels: Folder with the wheels of all packages (`make wheels`).
    """
    python = ".".join(map(str, sys.version_info[:2]))
    found: dict[str, int | str] = {"python_version": python}
    for name in extras():
        with tempfile.TemporaryDirectory() as folder:
            venv = Path(folder) / "venv"
            subprocess.run([sys.executable, "-m", "venv", venv], check=True)
            install = [
                venv / "bin" / "python",
                "-m",
                "pip",
                "install",
                "-q",
                "--find-links",
                wheels,
            ]
            subprocess.run([*install, "gem-core"], check=True)
            before = _megabytes(venv)
            subprocess.run([*install, f"gem-core[{name}]"], check=True)
            found[name] = round(_megabytes(venv) - before)
        print(f"{name}: {found[name]} MB", flush=True)
    return found


def _megabytes(folder: Path) -> float:
    return sum(path.lstat().st_size for path in folder.rglob("*")) / 1e6


def write(folder: Path, check: bool) -> Mapping[str, str]:
    """Write or check the page; return what is wrong, by page."""
    current = pages.put(folder / PAGE, page(), check=check)
    return {} if current else {PAGE: pages.NOT_CURRENT}


def main(argv: Sequence[str] | None = None) -> int:
    """Write or check the page, or measure sizes (`--measure WHEELS`); return the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["--measure"]:
        SIZES.write_text(json.dumps(measure(Path(arguments[1])), indent=1) + "\n")
        return 0
    return pages.command("python tools/extras.py", __doc__ or "", write, arguments)


if __name__ == "__main__":
    sys.exit(main())

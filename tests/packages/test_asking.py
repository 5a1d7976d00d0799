"""What asks other machines over HTTP asks this one without the proxies of the environment.

A proxy does not reach this machine, and would be sent keys and tokens that were meant for it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGES = Path(__file__).parents[2] / "packages"
CLIENTS = (
    *("urllib.request", "httpx", "httpx2", "aiohttp", "requests", "urllib3"),
    *("websockets.sync.client", "websockets.asyncio.client", "mcp.shared._httpx_utils"),
)
WITHOUT_PROXIES = {
    "gem_rl2/rollout.py": "aiohttp uses no proxies unless trust_env asks for them",
    "gem_rl2/sglang.py": "the same",
}


def clients(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that import a client."""
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
        yield from (node.lineno for name in names if name in CLIENTS)


def test_every_client_knows_this_machine() -> None:
    exempt = set()
    for path in PACKAGES.glob("*/src/*/**/*.py"):
        name = str(path.relative_to(path.parents[len(path.parts) - path.parts.index("src") - 2]))
        text = path.read_text(encoding="utf-8")
        lines = [] if "/attacks/" in name else [*clients(ast.parse(text))]
        if name in WITHOUT_PROXIES:
            assert lines, f"{name} asks nobody"
            assert "trust_env" not in text
            exempt.add(name)
        elif lines:
            assert "is_local(" in text, f"{name}, lines {lines}: use gem.fetching.fetched"
    assert exempt == set(WITHOUT_PROXIES)


@pytest.mark.parametrize(
    "code",
    [
        "import httpx",
        "from urllib.request import urlopen",
        "from urllib import request",
        "def f():\n    import aiohttp",
    ],
)
def test_a_client_is_noticed(code: str) -> None:
    assert list(clients(ast.parse(code)))

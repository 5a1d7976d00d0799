"""JSON and TOML from files and servers are read in one place, `gem.json_lines`.

The parsers of clients (`answer.json()`) count, too.

What reads JSON itself reads what a process of GEM's own has written, and is listed here with it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGES = Path(__file__).parents[2] / "packages"
READERS = {("json", "loads"), ("json", "load"), ("tomllib", "loads"), ("tomllib", "load")}

HOME = {"gem/json_lines.py": "the one place", "gem/tables.py": "the same for TOML"}
OWN = {
    "gem/envs/multi/poker_solver.py": "a bundled file",
    "gem_box/theirs/harbored.py": "what its own caller says",
    "gem_box/within/messages.py": "what the processes of a box say to each other",
    "gem/envs/reasoning_gym_child.py": "keys that the parent process makes",
    "gem/executors/frames.py": "frames; refused with the connection that sent them",
    "gem/executors/pool.py": "frames of the executor's workers",
    "gem_sandbox/grading/code.py": "what it has just written",
    "gem_train/packed.py": "text with a checksum",
    "gem/rollout/prompting.py": "what it has just written",
    "gem_sandbox/bwrap_server.py": "what bubblewrap says of itself",
    "gem_serve/messages.py": "messages; errors of the parser are answered",
    "gem_serve/app.py": "bodies; errors of the parser are answered",
    "gem_serve/remote.py": "its own snapshots",
    "gem_train/record.py": "what it has just written",
    "gem/workers/pool.py": "lines of its own workers",
    "gem/workers/process.py": "lines of its own pool",
    "gem_cpu/cloning.py": "files of a model that it has just made",
    "gem_cpu/tool_lessons.py": "a bundled file",
    "gem_cpu/tinker_skyrl.py": "requests to a server for tests",
    "gem_eval/atif.py": "what it has just written",
    "gem_eval/episode.py": "what its own wrapper has written",
    "gem_eval/inspect_log.py": "what it has just written",
    "gem_tinker/cookbook.py": "what it has just written",
}
TEXTS_OF_POLICIES = {
    "gem/envs/reasoning_gym_rules.py": "any exception means a wrong answer",
    "gem/tools/base.py": "errors of the parser are a message to the policy",
    "gem_sandbox/grading/programs.py": "answers of a sandbox",
    "gem_sandbox/grading/inside/batch.py": "runs in a sandbox, with the standard library alone",
    "gem_sandbox/grading/inside/candidate.py": "the same",
}


def readers(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that use a parser of the standard library or of a client."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and (node.value.id, node.attr) in READERS
        ):
            yield node.lineno
        if isinstance(node, ast.ImportFrom) and node.module in ("json", "tomllib"):
            yield node.lineno
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "json"
            and not node.args + node.keywords
        ):
            yield node.lineno


def test_files_and_servers_are_read_in_one_place() -> None:
    known = {**HOME, **OWN, **TEXTS_OF_POLICIES}
    found = set()
    for path in PACKAGES.glob("*/src/*/**/*.py"):
        name = str(path.relative_to(path.parents[len(path.parts) - path.parts.index("src") - 2]))
        if "/attacks/" in name:
            continue
        lines = [*readers(ast.parse(path.read_text(encoding="utf-8")))]
        if lines:
            found.add(name)
            assert name in known, f"{name}, lines {lines}: use gem.json_lines.parse or read_json"
    assert found == set(known)

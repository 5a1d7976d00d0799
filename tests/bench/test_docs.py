"""The documentation says what the code does."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gem_bench.__main__ import _parser
from gem_bench.run import STATUSES
from gem_bench.runspec import Key, hardware_keys, reference_keys

DOCS = Path(__file__).parents[2] / "docs"
COMMANDS = ("bench", "hardware", "resuming", "records", "conformance", "watching")
"""Pages about gem-bench's commands."""


def settings_table(keys: list[Key]) -> str:
    """The table of settings as it must stand in the documentation."""
    lines = ["| key | type | default | allowed | meaning |", "|---|---|---|---|---|"]
    for key in keys:
        default = key.default if key.default in ("required", "none") else f"`{key.default}`"
        lines.append(f"| `{key.name}` | {key.type} | {default} | {key.allowed} | {key.help} |")
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("page", "name", "keys"),
    [("runspec", "settings", reference_keys()), ("hardware", "hardware", hardware_keys())],
)
def test_every_setting_is_documented_as_it_is_defined(
    page: str, name: str, keys: list[Key]
) -> None:
    text = DOCS.joinpath(f"{page}.md").read_text(encoding="utf-8")
    documented = text.partition(f"<!-- {name}")[2]
    table = documented.partition("-->\n")[2].partition(f"\n<!-- /{name} -->")[0]
    assert table == settings_table(keys)


def test_every_command_and_long_option_is_documented() -> None:
    text = "".join(DOCS.joinpath(f"{page}.md").read_text(encoding="utf-8") for page in COMMANDS)
    commands = next(
        action for action in _parser()._actions if isinstance(action, argparse._SubParsersAction)
    )
    for name, parser in commands.choices.items():
        assert f"gem-bench {name}" in text
        for action in parser._actions:
            for option in action.option_strings:
                if option.startswith("--") and option != "--help":
                    assert option in text, f"{name} {option}"


def test_every_exit_status_of_a_run_is_documented() -> None:
    text = DOCS.joinpath("bench.md").read_text(encoding="utf-8")
    assert all(f"| {status} |" in text for status in STATUSES.values())


def test_the_example_of_an_adapters_tests_passes(tmp_path: Path) -> None:
    example = DOCS.joinpath("adapters.md").read_text(encoding="utf-8").partition("<!-- example")[2]
    code = example.partition("```python\n")[2].partition("```")[0]
    (tmp_path / "test_adapter.py").write_text(code)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error::pytest.PytestWarning"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    # Four estimators and three variants on two batches, and the defects that they show; installed
    # packages may bring further estimators.
    [passed] = re.findall(r"(\d+) passed", ended.stdout)
    assert int(passed) >= 26

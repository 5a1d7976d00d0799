"""Versions are the same wherever they are written."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import tomllib

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(path.parent for path in (ROOT / "packages").glob("*/pyproject.toml"))
# The constant of an adapter, and what the index calls the distribution.
SUPPORTED = {
    "SUPPORTED_VERL": "verl",
    "SUPPORTED_OPENRLHF": "openrlhf",
    "SUPPORTED_OAT": "oat-llm",
    "SUPPORTED_TINKER": "tinker",
    "SUPPORTED_COOKBOOK": "tinker-cookbook",
    "SUPPORTED_RL2": "rl-square",
    "SUPPORTED_SKYRL": "skyrl",
    "SUPPORTED_TRL": "trl",
    "SUPPORTED_VERIFIERS": "verifiers",
    "SUPPORTED_TEMPLATE": "fake-trainer",
}


def constants(package: Path) -> dict[str, str]:
    """The texts that the package's `__init__` or `version` assigns; nothing is imported."""
    sources = [*package.glob("src/gem*/__init__.py"), *package.glob("src/gem*/version.py")]
    return {
        node.targets[0].id: node.value.value
        for source in sources
        for node in ast.parse(source.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
    }


def project(package: Path) -> dict[str, Any]:
    return tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def required(package: Path) -> dict[str, str]:
    """Distribution: range of versions, of dependencies and extras."""
    data = project(package)
    wanted = list(data.get("dependencies", []))
    for extra in data.get("optional-dependencies", {}).values():
        wanted += extra
    found = {}
    for requirement in wanted:
        match = re.fullmatch(r"([\w.-]+)(?:\[[^\]]*\])?\s*([<>=!~][^;]*)?(?:;.*)?", requirement)
        assert match, requirement
        found[match[1]] = (match[2] or "").strip()
    return found


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_a_supported_range_is_the_one_that_the_package_requires(package: Path) -> None:
    ranges = {k: v for k, v in constants(package).items() if k.startswith("SUPPORTED_")}
    requirements = required(package)
    assert ranges == {name: requirements[SUPPORTED[name]] for name in ranges}


def test_every_adapter_states_a_supported_range() -> None:
    found = {name for package in PACKAGES for name in constants(package) if name in SUPPORTED}
    assert found == set(SUPPORTED)


def test_the_readme_names_the_supported_range_of_every_trainer() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    ranges = {
        value
        for package in PACKAGES
        for name, value in constants(package).items()
        if name in SUPPORTED
        and name not in ("SUPPORTED_COOKBOOK", "SUPPORTED_TEMPLATE", "SUPPORTED_VERIFIERS")
    }
    assert len(ranges) == 7
    assert ranges <= set(re.findall(r"`([<>=][^`]+)`", readme))


def test_packages_have_one_version_and_depend_on_each_other_by_it() -> None:
    ours = {path.name: project(path)["version"] for path in PACKAGES if path.name[0] != "_"}
    [version] = set(ours.values())
    for path in PACKAGES:
        for name, wanted in required(path).items():
            assert name not in ours or wanted == f"=={version}" or name == path.name, (path, name)


def test_the_hook_s_formatter_is_the_one_of_ci() -> None:
    hook = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    dev = (ROOT / "packages/gem-cpu/src/gem_cpu/requirements/dev.txt").read_text(encoding="utf-8")
    assert re.findall(r"rev: v(\S+)", hook) == re.findall(r"^ruff==(\S+)$", dev, re.M)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_a_package_and_its_module_have_the_same_version(package: Path) -> None:
    assert constants(package)["__version__"] == project(package)["version"]

"""Task folders in Harbor's format: what a task says, and what of it cannot run in a box."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gem.errors import ConfigurationError
from gem.tables import parse_toml
from gem_box.dockerfile import Dockerfile

_REFUSED = "refused"
# Keys of task.toml. Those that ask for something map to the value that asks for nothing, or to a
# tuple of allowed values; `...` takes any value.
_KNOWN: Mapping[str, Mapping[str, Any]] = {
    "task": {"name": ..., "description": ..., "authors": ..., "keywords": ..., "version": ...},
    "metadata": {},
    "agent": {
        "timeout_sec": ...,
        "user": (None, "root", 0),
        "network_mode": (None, "public", "no-network"),
    },
    "verifier": {
        "timeout_sec": ...,
        "env": ...,
        "user": (None, "root", 0),
        "network_mode": (None, "public", "no-network"),
        "environment_mode": (None, "shared"),
        "environment": (None, {}),
        "collect": (None, [], {}),
    },
    "environment": {
        "build_timeout_sec": ...,
        "docker_image": ...,
        "os": (None, "linux"),
        "cpus": ...,
        "memory_mb": ...,
        "storage_mb": ...,
        "memory": ...,
        "storage": ...,
        "gpus": (None, 0),
        "gpu_types": (None, []),
        "env": ...,
        "healthcheck": (None, {}),
        "workdir": ...,
        "mcp_servers": (None, []),
        "skills_dir": (None, ""),
        "allow_internet": (None, True, False),
        "network_mode": (None, "public", "no-network"),
    },
    "solution": {"env": ...},
}
_TOP: Mapping[str, Any] = {
    "schema_version": ...,
    "version": ...,
    "source": ...,
    "artifacts": ...,
    "multi_step_reward_strategy": ...,
    "steps": (None, []),
}
_PROGRAMS = (
    r"apt-get|apt|apk|yum|dnf|pip3?\s+install|uv\s+(?:pip|run|sync|tool|add)|uvx|npm\s+(?:install|ci|i)|npx|"
    r"yarn|pnpm|cargo\s+(?:install|build|fetch)|go\s+(?:get|install)|gem\s+install|conda|"
    r"git\s+clone\s+[\"']?(?:https?|git|ssh)|curl|wget"
)
_FETCHES = re.compile(
    rf"(?:^|[;&|(`]|\b(?:then|do|else|sudo|exec)\s)\s*((?:python3?\s+-m\s+)?(?:{_PROGRAMS}))\b"
)
_LOCAL = re.compile(r"\b(?:localhost|127\.0\.0\.1|\[::1\]|file://)")
_LONGEST_TEXT = 1 << 20


@dataclass(frozen=True)
class Folder:
    """A task."""

    path: Path
    instruction: str = ""
    toml: Mapping[str, Any] = field(default_factory=dict)
    dockerfile: Dockerfile | None = None
    """None if the task names an image that is ready."""
    problems: tuple[str, ...] = ()
    """Why the task cannot run in a box, each with the file and what in it; empty if it can."""

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.name

    def table(self, name: str) -> Mapping[str, Any]:
        """Return a table of task.toml."""
        found = self.toml.get(name, {})
        return found if isinstance(found, Mapping) else {}

    @property
    def image(self) -> str:
        """The image that the task begins from."""
        named = self.table("environment").get("docker_image")
        return self.dockerfile.image if self.dockerfile else str(named)

    @property
    def is_offline(self) -> bool:
        """Whether the task wants no network."""
        environment = self.table("environment")
        return (
            environment.get("network_mode") == "no-network"
            or environment.get("allow_internet") is False
        )

    @property
    def tests_s(self) -> float:
        """CPU time that the tests may use."""
        return _seconds(self.table("verifier").get("timeout_sec", 600.0), 600.0)

    def env(self, table: str) -> dict[str, str]:
        """Return the variables of a table."""
        return {str(k): str(v) for k, v in (self.table(table).get("env") or {}).items()}


def found(path: Path) -> list[Path]:
    """Return the task folders at a path: itself, or those in it, in the order of their names.

    Raises:
        ConfigurationError: There is none.
    """
    if (path / "task.toml").is_file():
        return [path]
    inside = sorted(each.parent for each in path.glob("*/task.toml"))
    if not inside:
        raise ConfigurationError(
            f"{path} is no task folder and has none: a task folder has task.toml, "
            "instruction.md, environment/ and tests/test.sh"
        )
    return inside


def read(path: Path) -> Folder:
    """Read a task folder; what is wrong with it is among its `problems`."""
    problems: list[str] = []
    toml: Mapping[str, Any] = {}
    try:
        toml = parse_toml((path / "task.toml").read_bytes(), "task.toml")
    except (OSError, ConfigurationError) as error:
        problems.append(f"task.toml: {error}")
    problems += _unknown(toml)
    instruction = _text(path / "instruction.md", problems)
    if not instruction.strip() and not problems:
        problems.append("instruction.md: it is empty")
    if not (path / "tests" / "test.sh").is_file():
        problems.append("tests/test.sh: it is missing")
    environment = path / "environment"
    dockerfile = None
    if (environment / "Dockerfile").is_file():
        text = _text(environment / "Dockerfile", problems)
        dockerfile, wrong = Dockerfile.parse(text, environment)
        problems += [f"environment/Dockerfile: {each}" for each in wrong]
        problems += _fetching("environment/Dockerfile", dockerfile.commands)
    elif not toml.get("environment", {}).get("docker_image"):
        problems.append("environment/Dockerfile: it is missing, and no docker_image is named")
    problems += [
        f"environment/{each.name}: several containers need Docker"
        for each in sorted(environment.glob("*compose*.y*ml"))
    ]
    for script in sorted((path / "tests").glob("*.sh")):
        text = _text(script, problems)
        problems += _fetching(f"tests/{script.name}", text.splitlines())
    return Folder(path, instruction, toml, dockerfile, tuple(problems))


def _unknown(toml: Mapping[str, Any]) -> Iterator[str]:
    for key, value in toml.items():
        if key in _KNOWN:
            if not isinstance(value, Mapping):
                yield f"task.toml: {key} is no table"
            elif key != "metadata":
                for name, each in value.items():
                    yield from _asked(f"{key}.{name}", _KNOWN[key].get(name, _REFUSED), each)
                yield from _wrong_times(key, value)
        else:
            yield from _asked(key, _TOP.get(key, _REFUSED), value)


def _asked(name: str, allowed: Any, value: Any) -> Iterator[str]:
    if allowed == _REFUSED:
        yield f"task.toml: {name} is not known here"
    elif allowed is not ... and value not in allowed:
        yield f"task.toml: {name} = {value!r:.60} is not supported"


def _wrong_times(table: str, values: Mapping[str, Any]) -> Iterator[str]:
    for name in ("timeout_sec", "build_timeout_sec"):
        if name in values and _seconds(values[name], 0.0) <= 0:
            yield f"task.toml: {table}.{name} must be a number above 0"
    if not isinstance(values.get("env") or {}, Mapping):
        yield f"task.toml: {table}.env is no table"


def _seconds(value: Any, otherwise: float) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and 0 < value < 10**6 else otherwise


def _text(path: Path, problems: list[str]) -> str:
    try:
        data = path.read_bytes()
        if len(data) > _LONGEST_TEXT:
            raise ValueError(f"longer than {_LONGEST_TEXT} bytes")
        return data.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else error
        problems.append(f"{path.parent.name}/{path.name}: {said}")
        return ""


def _fetching(name: str, commands: list[str]) -> Iterator[str]:
    """Yield what a script fetches, as boxes have no network."""
    for number, line in enumerate(commands, 1):
        bare = line.strip()
        match = None if bare.startswith("#") else _FETCHES.search(bare)
        if match and not _LOCAL.search(bare):
            yield f"{name}: it needs the network ({match[1]}, command {number})"

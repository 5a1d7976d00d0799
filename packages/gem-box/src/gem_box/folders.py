"""Task folders in Harbor's format: what a task says, and what of it cannot run in a box."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gem.errors import ConfigurationError
from gem.tables import parse_toml
from gem_box.dockerfile import FILE, Dockerfile
from gem_box.fetching import in_python, in_shell
from gem_box.problems import Problem

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
    "multi_step_reward_strategy": (None, "mean", "final"),
    "steps": (None, []),
}
_NUMBERS = ("cpus", "memory_mb", "storage_mb")
_SIZES = {"memory": "memory_mb", "storage": "storage_mb"}
_FROM_HERE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}")
_TASK = "task.toml"
_LONGEST_TEXT = 1 << 20


@dataclass(frozen=True)
class Folder:
    """A task."""

    path: Path
    instruction: str = ""
    toml: Mapping[str, Any] = field(default_factory=dict)
    dockerfile: Dockerfile | None = None
    problems: tuple[Problem, ...] = ()
    """Why the task cannot run in a box; empty if it can."""
    build_problems: tuple[Problem, ...] = ()
    """Why its Dockerfile cannot be built; they do not matter where its `docker_image` is here."""

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.name

    def table(self, name: str) -> Mapping[str, Any]:
        """Return a table of task.toml."""
        found = self.toml.get(name, {})
        return found if isinstance(found, Mapping) else {}

    @property
    def docker_image(self) -> str | None:
        """The image that is ready, with what the Dockerfile makes."""
        named = self.table("environment").get("docker_image")
        return str(named) if named else None

    def asked(self, name: str) -> int | None:
        """Return `cpus`, `memory_mb` or `storage_mb` of task.toml; None if it names none."""
        environment = self.table("environment")
        for old, now in _SIZES.items():
            if now == name and old in environment and name not in environment:
                return _megabytes(environment[old])
        value = environment.get(name)
        return value if isinstance(value, int) else None

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

    @property
    def hint(self) -> str:
        """What may keep a policy from solving a task that runs; empty if nothing is known."""
        environment = self.table("environment")
        for name, value in (("allow_internet", True), ("network_mode", "public")):
            if environment.get(name) == value:
                return f"it may need the network to be solved ({name} = {str(value).lower()})"
        return ""

    def env(self, table: str) -> dict[str, str]:
        """Return the variables of a table; `${NAME}` and `${NAME:-default}` are of this process.

        Raises:
            ConfigurationError: This process has no such variable.
        """
        found: dict[str, str] = {}
        for key, value in (self.table(table).get("env") or {}).items():
            match = _FROM_HERE.fullmatch(str(value))
            text = os.environ.get(match[1], match[2]) if match else str(value)
            if text is None:
                raise ConfigurationError(
                    f"{table}.env.{key} needs the variable {match and match[1]}, which is not set"
                )
            found[str(key)] = text
        return found


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
    """Read a task folder; what is wrong with it is among its problems."""
    try:
        return _read(path)
    except (OSError, ValueError, RuntimeError) as error:
        return Folder(path, problems=(Problem("folder", f"it cannot be read: {error!s:.200}"),))


def _read(path: Path) -> Folder:
    problems: list[Problem] = []
    build_problems: list[Problem] = []
    toml: Mapping[str, Any] = {}
    try:
        toml = parse_toml((path / _TASK).read_bytes(), _TASK)
    except OSError as error:
        problems.append(Problem(_TASK, f"{error.strerror}"))
    except ConfigurationError as error:
        said = str(error).removeprefix(f"{_TASK}: ")
        problems.append(Problem(_TASK, f"{said:.200}", kind="cannot be read as TOML"))
    problems += _unknown(toml)
    is_readable = not problems
    instruction = _text(path, "instruction.md", problems)
    if not instruction.strip() and is_readable and not problems:
        problems.append(Problem("instruction.md", "it is empty"))
    if not (path / "tests" / "test.sh").is_file():
        problems.append(Problem("tests/test.sh", "it is missing"))
    environment = path / "environment"
    dockerfile = None
    if (environment / "Dockerfile").is_file():
        text = _text(path, FILE, problems)
        dockerfile, always, build_problems = Dockerfile.parse(text, environment)
        problems += always
        commands = [(s.line, s.words[-1]) for s in dockerfile.steps if s.kind == "run"]
        for line, command in commands:
            build_problems += _fetching(FILE, in_shell(command, line))
        build_problems += _started(path, " ".join(command for _, command in commands))
    elif not Folder(path, toml=toml).docker_image:
        problems.append(Problem(FILE, "it is missing, and no docker_image is named"))
    for each in sorted(environment.glob("*compose*.y*ml")):
        problems.append(Problem(f"environment/{each.name}", "several containers need Docker"))
    for script in sorted((path / "tests").rglob("*")):
        if script.suffix in (".sh", ".py") and script.is_file():
            problems += _script(path, script)
    return Folder(path, instruction, toml, dockerfile, tuple(problems), tuple(build_problems))


def _unknown(toml: Mapping[str, Any]) -> Iterator[Problem]:
    for key, value in toml.items():
        if key not in _KNOWN:
            yield from _asked(key, _TOP.get(key, _REFUSED), value)
        elif not isinstance(value, Mapping):
            yield Problem(_TASK, f"{key} is no table")
        elif key != "metadata":
            for name, each in value.items():
                yield from _asked(f"{key}.{name}", _KNOWN[key].get(name, _REFUSED), each)
            yield from _wrong_values(key, value)


def _asked(name: str, allowed: Any, value: Any) -> Iterator[Problem]:
    if name == "environment.os" and isinstance(value, str):
        value = value.lower()
    if allowed == _REFUSED:
        yield Problem(_TASK, f"{name:.80} is not known here")
    elif allowed is not ... and value not in allowed:
        text = f"{name} = {value!r:.60} is not supported"
        yield Problem(_TASK, text, kind=f"{name} is not supported")


def _wrong_values(table: str, values: Mapping[str, Any]) -> Iterator[Problem]:
    for name in ("timeout_sec", "build_timeout_sec"):
        if name in values and _seconds(values[name], 0.0) <= 0:
            yield Problem(_TASK, f"{table}.{name} must be a number above 0")
    variables = values.get("env") or {}
    if not isinstance(variables, Mapping):
        yield Problem(_TASK, f"{table}.env is no table")
    elif not all(_is_variable(k, v) for k, v in variables.items()):
        yield Problem(_TASK, f"{table}.env has a name or value that no variable can have")
    else:
        for name in variables:
            try:
                Folder(Path(), toml={table: {"env": {name: variables[name]}}}).env(table)
            except ConfigurationError as error:
                yield Problem(_TASK, str(error))
    if table != "environment":
        return
    for name in _NUMBERS:
        value = values.get(name, 1)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 10**9:
            yield Problem(_TASK, f"environment.{name} must be a whole number above 0")
    for old, name in _SIZES.items():
        size = _megabytes(values.get(old, "1M"))
        if size is None:
            yield Problem(_TASK, f"environment.{old} must be a text such as 2G")
        elif old in values and name in values and values[name] != size:
            yield Problem(_TASK, f"environment.{old} and {name} differ")
    for name in ("docker_image", "workdir"):
        value = values.get(name, "")
        if not isinstance(value, str) or "\0" in value:
            yield Problem(_TASK, f"environment.{name} must be a text")


def _is_variable(name: str, value: Any) -> bool:
    return (
        bool(name)
        and "=" not in name
        and not isinstance(value, list | dict)
        and ("\0" not in f"{name}{value}")
    )


def _megabytes(size: Any) -> int | None:
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([GMK])", str(size).strip().upper())
    if match is None:
        return None
    return max(1, int(float(match[1]) * {"G": 1024, "M": 1, "K": 1 / 1024}[match[2]]))


def _seconds(value: Any, otherwise: float) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and 0 < value < 10**6 else otherwise


def _text(path: Path, name: str, problems: list[Problem]) -> str:
    try:
        data = (path / name).read_bytes()
        if len(data) > _LONGEST_TEXT:
            raise ValueError(f"longer than {_LONGEST_TEXT} bytes")
        if b"\0" in data:
            raise ValueError("it has a NUL")
        return data.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else error
        problems.append(Problem(name, f"{said}"))
        return ""


def _script(path: Path, script: Path) -> list[Problem]:
    name = script.relative_to(path).as_posix()
    problems: list[Problem] = []
    text = _text(path, name, problems)
    looked: Callable[[str], Iterator[tuple[int, str]]]
    looked = in_python if script.suffix == ".py" else in_shell
    return [*problems, *_fetching(name, looked(text))]


def _started(path: Path, commands: str) -> Iterator[Problem]:
    """Yield what scripts of environment/ fetch whose names the commands of RUN have."""
    named = set(re.split(r"[\s/;&|()\"']+", commands))
    for script in sorted((path / "environment").rglob("*")):
        if script.name in named and script.suffix in (".sh", ".py", "") and script.is_file():
            begins = script.open("rb").read(2)
            if script.suffix or begins == b"#!":
                yield from _script(path, script)


def _fetching(name: str, found: Iterator[tuple[int, str]]) -> Iterator[Problem]:
    """Yield what seems to be fetched, as boxes have no network."""
    kind = "seems to fetch, and boxes have no network"
    for line, command in found:
        yield Problem(name, f"{kind}: {command}", line, kind)

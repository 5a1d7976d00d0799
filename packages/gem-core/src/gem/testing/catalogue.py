"""The pages about the environments, written from the registry, docstrings and played episodes.

    python -m gem.testing.catalogue docs/envs            # write the pages
    python -m gem.testing.catalogue docs/envs --check    # exit status 1 if one is not current

Everything in them is a function of the code: scores and examples have fixed seeds and stop after a
number of steps, never after a time.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gem import registry
from gem.core import Env
from gem.errors import ConfigurationError, MissingExtraError, UnreachableError
from gem.testing.offline import offline_parameters
from gem.testing.playing import Episode, oracle_policy, play, random_policy, score, shown

FAMILIES = {
    "game": "Games",
    "math": "Mathematics",
    "code": "Programming",
    "qa": "Questions and answers",
    "logic": "Logic",
    "rg": "ReasoningGym",
    "eval": "Evaluation sets",
}
"""Titles of the pages by what stands before the colon of an id."""

_EPISODES = 16
# No further episode is begun after this many steps of a policy.
_STEPS = 1_000
_MAX_STEPS = 1_200
# Turns of the example that are shown before the last one.
_TURNS = 3
_LONGEST_LINE = 500
_ENTRY = re.compile(r"(\w+(?:, \w+)*): (.*)")


@dataclass(frozen=True)
class Parameter:
    """A parameter of an environment."""

    name: str
    default: str
    """As it stands in the signature; "" if there is none."""
    meaning: str


def families() -> dict[str, list[str]]:
    """Return the built-in ids by family; families of other packages are theirs to document."""
    by_family: dict[str, list[str]] = {}
    for id in registry.list_envs():
        family = id.partition(":")[0]
        if family in FAMILIES:
            by_family.setdefault(family, []).append(id)
    return by_family


def page(family: str, ids: Sequence[str]) -> str:
    """Return the page of a family: a section for each class, in the order of the ids."""
    lead = (
        f"# {FAMILIES[family]}\n\n"
        "<!-- Written by `make docs` from the registry and the docstrings; edit those. -->\n\n"
        "Scores are shares of won episodes (mean return in parentheses) of the seeds 0, 1, ... "
        f"at most {_EPISODES} of them. The oracle plays from what it observed"
    )
    if family != "game":
        lead += (
            "; in tasks of a single turn it is the recorded answer. Scores and examples are "
            "those of the bundled sample"
        )
    return "\n\n".join([f"{lead}.", *(section(group) for group in by_class(ids).values())]) + "\n"


def by_class(ids: Iterable[str]) -> dict[Any, list[str]]:
    """Return ids by the class or function behind them, plain ids before their variants."""
    groups: dict[Any, list[str]] = {}
    for id in ids:
        groups.setdefault(registry.spec(id).load(), []).append(id)
    return groups


def section(ids: Sequence[str]) -> str:
    """Return the section about the ids of one class."""
    entry_point = registry.spec(ids[0]).load()
    parts = [f"## {getattr(entry_point, '__name__', ids[0])}"]
    parts.append(_description(entry_point))
    parts.append(_id_table(ids))
    parts.append(_parameter_table(parameters(entry_point)))
    parts.append(_example(ids[0]))
    return "\n\n".join(part for part in parts if part)


def _description(entry_point: Callable[..., Env]) -> str:
    """Return the docstring without its lists of attributes and arguments."""
    text = inspect.getdoc(entry_point) or ""
    return re.split(r"\n\n?(?:Attributes|Args|Raises):\n", text)[0].strip()


def parameters(entry_point: Callable[..., Env]) -> list[Parameter]:
    """Return the parameters of a class, with what its docstring says about them.

    Where that refers to a base class ("See `Game`.") or says nothing, the base class is asked.
    """
    documented = entry_point.__mro__ if inspect.isclass(entry_point) else (entry_point,)
    meanings: dict[str, str] = {}
    for one in documented:
        function = one.__dict__.get("__init__") if inspect.isclass(one) else one
        for name, meaning in _meanings(inspect.getdoc(function) or "").items():
            if meanings.get(name, "See ").startswith("See "):
                meanings[name] = meaning
    return [
        Parameter(name, _default(parameter.default), meanings.get(name, ""))
        for name, parameter in inspect.signature(entry_point).parameters.items()
    ]


def _default(value: Any) -> str:
    if value is inspect.Parameter.empty:
        return ""
    # Objects go by their name: how they are represented may differ between two runs.
    plain = value is None or isinstance(value, str | int | float | tuple | list | dict)
    return repr(value if plain else getattr(value, "name", type(value).__name__))


def _meanings(docstring: str) -> dict[str, str]:
    """Return the entries of a docstring's `Args`."""
    _, _, rest = docstring.partition("Args:\n")
    meanings: dict[str, str] = {}
    names: list[str] = []
    for line in rest.splitlines():
        if line and not line.startswith(" "):
            break
        entry = _ENTRY.match(line[4:])
        if entry and line[4:5] != " ":
            names = entry[1].split(", ")
            meanings |= dict.fromkeys(names, entry[2])
        elif line.strip():
            meanings |= {name: f"{meanings[name]} {line.strip()}" for name in names}
    return meanings


def _parameter_table(rows: Sequence[Parameter]) -> str:
    lines = ["| parameter | default | meaning |", "|---|---|---|"]
    for row in rows:
        default = f"`{row.default}`" if row.default else ""
        lines.append(f"| `{row.name}` | {default} | {_cell(row.meaning)} |")
    return "\n".join(lines)


def _id_table(ids: Sequence[str]) -> str:
    lines = ["| id | parameters | random | oracle | episodes |", "|---|---|---|---|---|"]
    for id in ids:
        given = ", ".join(f"{k}={v!r}" for k, v in registry.spec(id).kwargs.items())
        by_chance, best, episodes = scores(id)
        told = f"`{_cell(given)}`" if given else ""
        lines.append(f"| `{id}` | {told} | {by_chance} | {best} | {episodes} |")
    return "\n".join(lines)


def scores(id: str) -> tuple[str, str, int]:
    """Return the scores of random play and of the oracle, and the number of episodes."""
    env = registry.make(id, **offline_parameters(id))
    told = []
    played = []
    for policy in (random_policy, oracle_policy):
        try:
            result = score(env, policy, _EPISODES, _MAX_STEPS, total_steps=_STEPS)
        except NotImplementedError:
            told.append("none")
        else:
            told.append(f"{result.rate:.2f} ({result.mean_return:.2f})")
            played.append(len(result.episodes))
    env.close()
    return told[0], told[1], min(played)


def _example(id: str) -> str:
    with registry.make(id, **offline_parameters(id)) as env:
        policy = oracle_policy
        try:
            episode = play(env, oracle_policy, _MAX_STEPS, 0)
        except NotImplementedError:
            policy = random_policy
            episode = play(env, random_policy, _MAX_STEPS, 0)
    player = "the oracle" if policy is oracle_policy else "random play"
    return f"Seed 0 of `{id}`, played by {player}:\n\n{_fenced(_transcript(episode))}"


def _transcript(episode: Episode) -> str:
    lines = [shown(episode.first)]
    last = len(episode.steps) - 1
    for turn, (action, step) in enumerate(zip(episode.actions, episode.steps, strict=True)):
        if _TURNS <= turn < last:
            if turn == _TURNS:
                left_out = last - _TURNS
                lines.append(f"\n... {left_out} turn{'s' if left_out > 1 else ''} left out ...")
            continue
        observation, reward, terminated, truncated, info = step
        end = " terminated" if terminated else " truncated" if truncated else ""
        won = end and bool(info.get("success", info.get("correct", reward > 0)))
        lines.append(f"\n>>> {action}\n[reward {reward:g}{end}{', won' if won else ''}]")
        if shown(observation):
            lines.append(f"\n{shown(observation)}")
    return "\n".join(_clipped(line) for line in "\n".join(lines).splitlines())


def _clipped(line: str) -> str:
    line = line.rstrip()
    return line if len(line) <= _LONGEST_LINE else line[: _LONGEST_LINE - 3] + "..."


def _fenced(text: str) -> str:
    # The fence must be longer than any in the text.
    ticks = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, ticks + 1)
    return f"{fence}text\n{text}\n{fence}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def write(folder: Path, *, check: bool = False) -> Mapping[str, str]:
    """Write all pages.

    Args:
        folder: Where they are.
        check: Compare instead of writing.

    Returns:
        What is wrong, by page: it is not current, or environments are left out of it because
        they cannot run here.
    """
    wrong = {}
    for family, ids in families().items():
        path = folder / f"{family}.md"
        try:
            text = page(family, ids)
        except (ImportError, MissingExtraError, UnreachableError) as error:
            wrong[path.name] = f"cannot be written here: {error}"
            continue
        if not check:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            wrong[path.name] = "is not current; run make docs"
    return wrong


def main(argv: Sequence[str] | None = None) -> int:
    """Write or check the pages; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m gem.testing.catalogue", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    arguments = parser.parse_args(argv)
    try:
        wrong = write(arguments.folder, check=arguments.check)
    except (ConfigurationError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for name, what in wrong.items():
        print(f"{arguments.folder / name} {what}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

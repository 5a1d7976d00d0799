"""The pages about the environments, written from the registry, docstrings and played episodes.

    python tools/catalogue.py docs/envs            # write the pages
    python tools/catalogue.py docs/envs --check    # exit status 1 if one is not current

Everything in them is a function of the code: scores and examples have fixed seeds and stop after a
number of steps, never after a time.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pages

from gem import registry
from gem.describing import Parameter, description, parameters, summary
from gem.errors import MissingExtraError, UnreachableError
from gem.making import make
from gem_check.offline import offline_parameters
from gem_check.playing import oracle_policy, play, random_policy, score
from gem_check.transcripts import transcript

FAMILIES = {
    "game": "Games",
    "multi": "Games of several agents",
    "openspiel": "OpenSpiel",
    "textarena": "TextArena",
    "tau": "Customer service",
    "user": "Tasks that only a user knows",
    "math": "Mathematics",
    "code": "Programming",
    "qa": "Questions and answers",
    "logic": "Logic",
    "judge": "Tasks that a judge grades",
    "image": "Pictures",
    "rg": "ReasoningGym",
    "eval": "Evaluation sets",
}
"""Titles of the pages by what stands before the colon of an id."""

INDEX = "README.md"

_EPISODES = 16
# No further episode is begun after this many steps of a policy.
_STEPS = 1_000
_MAX_STEPS = 1_200


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
    if family in ("multi", "openspiel", "textarena"):
        lead += (
            " or, where it knows it, the best response to the opponent. All scores are of one seat "
            "against the id's `opponent`; [several agents](../multi_agent.md) says what "
            "else can be played"
        )
    elif family == "tau":
        lead += (
            ", with the scripted user; [TAU-bench](../tau.md) says what the tasks are and "
            "what is comparable with published results"
        )
    elif family == "image":
        lead += "; here it is the computed answer. [Pictures](../vision.md) shows some tasks"
    elif family != "game":
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
    parts.append(description(entry_point))
    parts.append(_id_table(ids))
    parts.append(_parameter_table(parameters(entry_point)))
    parts.append(_example(ids[0]))
    return "\n\n".join(part for part in parts if part)


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
    env = make(id, **offline_parameters(id))
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
    with make(id, **offline_parameters(id)) as env:
        policy = oracle_policy
        try:
            episode = play(env, oracle_policy, _MAX_STEPS, 0)
        except NotImplementedError:
            policy = random_policy
            episode = play(env, random_policy, _MAX_STEPS, 0)
    player = "the oracle" if policy is oracle_policy else "random play"
    return f"Seed 0 of `{id}`, played by {player}:\n\n{_fenced(transcript(episode))}"


def _fenced(text: str) -> str:
    # The fence must be longer than any in the text.
    ticks = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, ticks + 1)
    return f"{fence}text\n{text}\n{fence}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def index() -> str:
    """Return the page about all families: what there is, in a line a class."""
    by_family = families()
    count = sum(map(len, by_family.values()))
    lines = [
        "# Environments catalogue",
        "",
        "<!-- Written by `make docs` from the registry and the docstrings; edit those. -->",
        "",
        f"{count} ids, and what stands behind them. The page of a family has every id with its "
        "parameters, the scores of random play and of the oracle, and an example episode. "
        "`gem list` prints the ids, `gem info ID` all about one, `gem play ID` plays it. No "
        "environment needs a GPU. [Extras](../extras.md) says what to install for which family; "
        "[environments](../environments.md) says what all of them promise.",
    ]
    for family in FAMILIES:
        ids = by_family.get(family, [])
        lines += [
            "",
            f"## {FAMILIES[family]}",
            "",
            f"{len(ids)} ids. [Ids, parameters, scores and an example episode]({family}.md)",
            "",
            "| environment | what it is | ids |",
            "|---|---|---|",
        ]
        for entry_point, group in by_class(ids).items():
            name = getattr(entry_point, "__name__", group[0])
            link = f"[{name}]({family}.md#{name.lower()})"
            lines.append(f"| {link} | {_cell(summary(entry_point))} | {_some(group)} |")
    return "\n".join(lines) + "\n"


def _some(ids: Sequence[str]) -> str:
    """Return ids for a cell: the first one, and how many more there are."""
    return f"`{ids[0]}`" + (f" and {len(ids) - 1} more" if len(ids) > 1 else "")


def write(folder: Path, check: bool) -> Mapping[str, str]:
    """Write all pages.

    Args:
        folder: Where they are.
        check: Compare instead of writing.

    Returns:
        What is wrong, by page: it is not current, or environments are left out of it because
        they cannot run here.
    """
    wrong = {}
    if not pages.put(folder / INDEX, index(), check=check):
        wrong[INDEX] = pages.NOT_CURRENT
    for family, ids in families().items():
        path = folder / f"{family}.md"
        try:
            text = page(family, ids)
        except (ImportError, MissingExtraError, UnreachableError) as error:
            wrong[path.name] = f"cannot be written here: {error}"
            continue
        if not pages.put(path, text, check=check):
            wrong[path.name] = pages.NOT_CURRENT
    return wrong


def main(argv: Sequence[str] | None = None) -> int:
    """Write or check the pages; return the exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    return pages.command("python tools/catalogue.py", __doc__ or "", write, arguments)


if __name__ == "__main__":
    sys.exit(main())

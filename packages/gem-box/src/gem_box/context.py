"""The files that a Dockerfile can copy: environment/ without what .dockerignore leaves out."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path


def ignored(context: Path) -> Callable[[Path], bool]:
    """Return whether .dockerignore leaves a path of the context out.

    Raises:
        ValueError: It has a pattern that cannot be read.
    """
    rules: list[tuple[re.Pattern[str], bool]] = []
    for name in ("Dockerfile.dockerignore", ".dockerignore"):
        if (context / name).is_file():
            for line in (context / name).read_text("utf-8-sig").splitlines():
                pattern = line.strip()
                keeps = pattern.startswith("!")
                pattern = re.sub(r"/+", "/", pattern.lstrip("!").strip()).strip("/")
                pattern = pattern.removeprefix("./")
                if pattern and not line.startswith("#"):
                    rules.append((_regex(pattern), not keeps))
            break

    def leaves_out(path: Path) -> bool:
        name, verdict = path.relative_to(context).as_posix(), False
        for regex, out in rules:
            if regex.fullmatch(name):
                verdict = out
        return verdict

    return leaves_out


def _regex(pattern: str) -> re.Pattern[str]:
    """Return what a pattern and the folders that it names match."""
    text = ""
    for part in re.findall(r"\*\*/|\*\*|\*|\?|\[[^]]+\]|\\.|.", pattern):
        known = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
        if part in known:
            text += known[part]
        elif len(part) > 1:
            text += part
        else:
            text += re.escape(part)
    try:
        return re.compile(f"{text}(?:/.*)?", re.DOTALL)
    except re.error as error:
        raise ValueError(f"the pattern {pattern!r:.80} cannot be read: {error}") from None


def sources(context: Path, pattern: str) -> list[Path]:
    """Return what COPY takes for a source: a file or folder, or what a pattern matches.

    Raises:
        ValueError: It is no pattern, or lies outside of the context.
    """
    pattern = pattern.lstrip("/")
    if ".." in Path(pattern).parts:
        raise ValueError("it lies outside of environment/")
    place = context / pattern
    places = [place] if place.exists() else sorted(context.glob(pattern))
    leaves_out = ignored(context)
    places = [each for each in places if each == context or not leaves_out(each)]
    root = context.resolve()
    if not all(each.resolve().is_relative_to(root) for each in places):
        raise ValueError("it lies outside of environment/")
    return places

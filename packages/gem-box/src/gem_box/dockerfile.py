"""A subset of Dockerfiles: FROM, WORKDIR, ENV, COPY, ADD of files, RUN; the rest has a name."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

# Say how a container is started or described: a box is started in its own way.
_WITHOUT_EFFECT = ("CMD", "ENTRYPOINT", "LABEL", "EXPOSE", "MAINTAINER", "STOPSIGNAL")
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


@dataclass(frozen=True)
class Step:
    """One instruction that does something."""

    kind: str
    """`workdir`, `env`, `copy` or `run`."""
    words: tuple[str, ...]
    """The folder; name and value; sources and target; shell and command."""


@dataclass(frozen=True)
class Dockerfile:
    """An image and the steps from there on."""

    image: str
    steps: tuple[Step, ...]

    @property
    def commands(self) -> list[str]:
        """The commands of RUN."""
        return [step.words[1] for step in self.steps if step.kind == "run"]

    @classmethod
    def parse(cls, text: str, context: Path) -> tuple[Dockerfile, list[str]]:
        """Return the content of a Dockerfile, and what of it is not supported.

        Args:
            text: The file.
            context: The folder with what it copies.
        """
        parser = _Parser(context)
        for word, rest in _instructions(text):
            handle = getattr(parser, f"_do_{word.lower()}", None)
            if word in _WITHOUT_EFFECT:
                continue
            if handle is None:
                parser.problems.append(f"{word} is not supported")
            elif not parser.image and word not in ("FROM", "ARG"):
                parser.problems.append(f"{word} comes before FROM")
            else:
                handle(rest)
        if not parser.image:
            parser.problems.append("there is no FROM")
        return cls(parser.image, tuple(parser.steps)), parser.problems


class _Parser:
    def __init__(self, context: Path) -> None:
        self.context = context
        self.image, self.shell = "", "/bin/sh"
        self.steps: list[Step] = []
        self.problems: list[str] = []
        self.variables: dict[str, str] = {}

    def _do_from(self, rest: str) -> None:
        words = rest.split()
        if self.image:
            self.problems.append("several FROM (stages) are not supported")
        elif len(words) != 1:
            self.problems.append(f"FROM {rest}: only an image's name is supported")
        self.image = self.image or words[-1]

    def _do_workdir(self, rest: str) -> None:
        before = next((s.words[0] for s in reversed(self.steps) if s.kind == "workdir"), "/")
        self._add("workdir", str(Path(before) / self._filled(rest.strip("\"'"))))

    def _do_env(self, rest: str) -> None:
        words = self._words("ENV", rest)
        if words and "=" not in words[0]:
            name, _, value = rest.partition(" ")
            words = [f"{name}={value.strip()}"]
        for word in words:
            name, equals, value = word.partition("=")
            if not equals or not name:
                self.problems.append(f"ENV {rest}: not NAME=VALUE")
                return
            self.variables[name] = self._filled(value)
            self._add("env", name, self.variables[name])

    def _do_copy(self, rest: str) -> None:
        *sources, target = self._words("COPY", rest) or [""]
        if not sources:
            self.problems.append(f"COPY {rest}: sources and a target are needed")
        for source in sources:
            place = self.context / source
            if source.startswith("--"):
                self.problems.append(f"COPY {source} is not supported")
            elif not place.resolve().is_relative_to(self.context.resolve()):
                self.problems.append(f"COPY {source}: it lies outside of environment/")
            elif not (place.exists() or any(self.context.glob(source.lstrip("/")))):
                self.problems.append(f"COPY {source}: there is no such file")
        self._add("copy", *sources, self._filled(target))

    def _do_add(self, rest: str) -> None:
        if re.search(r"https?://|git@|\.(?:tar|tgz|gz|xz|bz2)\b", rest):
            self.problems.append(f"ADD {rest}: only plain files are supported")
        self._do_copy(rest)

    def _do_run(self, rest: str) -> None:
        if rest.startswith("--"):
            self.problems.append(f"RUN {rest.split()[0]} is not supported")
        elif rest.startswith("["):
            self.problems.append("RUN [...] is not supported; write it as a command")
        self._add("run", self.shell, rest)

    def _do_user(self, rest: str) -> None:
        if rest.strip() not in ("root", "0", "root:root", "0:0"):
            self.problems.append(f"USER {rest.strip()} is not supported; all commands run as root")

    def _do_shell(self, rest: str) -> None:
        match = re.fullmatch(r"""\[\s*"(/bin/(?:ba)?sh)"\s*,\s*"-c"\s*\]""", rest)
        if match is None:
            self.problems.append(f"SHELL {rest} is not supported")
        else:
            self.shell = match[1]

    def _words(self, word: str, rest: str) -> list[str]:
        try:
            if rest.startswith("["):
                return shlex.split(rest.strip("[]").replace(",", " "))
            return shlex.split(rest)
        except ValueError as error:
            self.problems.append(f"{word} {rest}: {error}")
            return []

    def _filled(self, text: str) -> str:
        """Return a text with the variables that ENV has set so far."""
        return _VARIABLE.sub(lambda m: self.variables.get(m[1] or m[2], ""), text)

    def _add(self, kind: str, *words: str) -> None:
        self.steps.append(Step(kind, words))


def _instructions(text: str) -> list[tuple[str, str]]:
    """Return the instructions with their arguments; comments and line ends are gone."""
    found: list[tuple[str, str]] = []
    going_on = ""
    for line in text.splitlines():
        if line.lstrip().startswith("#") or (going_on and not line.strip()):
            continue
        going_on += line
        if going_on.rstrip().endswith("\\"):
            going_on = going_on.rstrip()[:-1] + " "
            continue
        word, _, rest = going_on.strip().partition(" ")
        going_on = ""
        if word:
            found.append((word.upper(), rest.strip()))
    if going_on.strip():
        word, _, rest = going_on.strip().partition(" ")
        found.append((word.upper(), rest.strip()))
    # The text of a here-document would be read as instructions.
    return [(w, f"--here-document {r}") if w == "RUN" and "<<" in r else (w, r) for w, r in found]

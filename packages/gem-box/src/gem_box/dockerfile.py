"""A subset of Dockerfiles: FROM, ARG, WORKDIR, ENV, COPY, ADD of files, RUN.

The rest is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gem.json_lines import parse
from gem_box.context import ignored, sources
from gem_box.layouts import MACHINE
from gem_box.problems import Problem

FILE = "environment/Dockerfile"
# Say how a container is started or described: a box is started in its own way.
_WITHOUT_EFFECT = ("CMD", "LABEL", "EXPOSE", "MAINTAINER", "STOPSIGNAL")
# Also matter where an image is ready: it keeps files, not what it was told of its start.
_ALWAYS = ("ENV", "WORKDIR", "ENTRYPOINT", "USER")
IMAGES_PATH = "\0PATH\0"
"""Stands for the image's own `PATH` in what a Dockerfile makes of it."""
_PLATFORM = {"TARGETPLATFORM": f"linux/{MACHINE}", "TARGETOS": "linux", "TARGETARCH": MACHINE}
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?:(:?[-+?])((?:[^{}]|\{[^{}]*\})*))?\})")
_HERE = re.compile(r"""(?:^|\s)\d*(<<-?["']?[A-Za-z_][\w.]*)""")
_QUOTED = re.compile(r"""(?<![<-])(?:'[^']*'|"(?:\\.|[^"\\])*")""")
_SHELL = re.compile(r"(?:/usr)?/bin/(?:ba)?sh(?: -[eux]*o pipefail| -[eux]+)* -[eux]*c")


class _UnsupportedError(ValueError):
    def __init__(self, text: str, kind: str = "") -> None:
        super().__init__(text)
        self.kind = kind


@dataclass(frozen=True)
class Step:
    """One instruction that does something."""

    kind: str
    """`workdir`, `arg`, `env`, `copy` or `run`."""
    words: tuple[str, ...]
    """The folder; name and value; sources and target; the program with its arguments."""
    # What a step makes does not depend on it.
    line: int = field(repr=False)
    """Where it begins."""


@dataclass(frozen=True)
class Dockerfile:
    """An image and the steps from there on."""

    image: str
    steps: tuple[Step, ...]

    @property
    def env(self) -> dict[str, str]:
        """The variables at the end."""
        return {each.words[0]: each.words[1] for each in self.steps if each.kind == "env"}

    @property
    def workdir(self) -> str:
        """The folder at the end; relative to the image's, or "" for that one."""
        return next((s.words[0] for s in reversed(self.steps) if s.kind == "workdir"), "")

    @classmethod
    def parse(cls, text: str, context: Path) -> tuple[Dockerfile, list[Problem], list[Problem]]:
        """Return the content of a Dockerfile, and what of it is not supported.

        Args:
            text: The file.
            context: The folder with what it copies.

        Returns:
            The content; problems of any start; problems only of building it.
        """
        parser = _Parser(context)
        always: list[Problem] = []
        building: list[Problem] = []
        for line, word, rest in _instructions(text):
            try:
                parser.take(line, word, rest)
            except (ValueError, OSError, RuntimeError) as error:
                kind = getattr(error, "kind", "")
                kind = f"{word:.40} {kind}" if kind else ""
                problem = Problem(FILE, f"{word:.40} {_short(str(error))}", line, kind)
                (always if word in _ALWAYS else building).append(problem)
        if not parser.image and not any(each.text.startswith("FROM") for each in building):
            building.append(Problem(FILE, "there is no FROM"))
        try:
            ignored(context)
        except (OSError, ValueError) as error:
            building.append(Problem("environment/.dockerignore", _short(str(error))))
        return cls(parser.image, tuple(parser.steps)), always, building


class _Parser:
    def __init__(self, context: Path) -> None:
        self.context = context
        self.image = ""
        self.shell = ["/bin/sh", "-c"]
        self.steps: list[Step] = []
        # Those before FROM are for FROM only.
        self.outer: dict[str, str] = dict(_PLATFORM)
        self.args: dict[str, str] = {}
        self.env: dict[str, str | None] = {"PATH": IMAGES_PATH}
        self.stage = ""
        self.stages: dict[str, tuple[list[Step], dict[str, str | None]]] = {}

    def take(self, line: int, word: str, rest: str) -> None:
        """Read one instruction."""
        self.line = line
        if word in _WITHOUT_EFFECT:
            return
        handle = getattr(self, f"_do_{word.lower()}", None) if word.isalpha() else None
        if handle is None:
            raise _UnsupportedError("is not supported", "is not supported")
        if not self.image and word not in ("FROM", "ARG"):
            raise _UnsupportedError("comes before FROM", "comes before FROM")
        if word in ("RUN", "COPY", "ADD") and (here := _here(rest)):
            raise _UnsupportedError(f"has a here-document ({here})", "has a here-document")
        handle(rest)

    def _do_from(self, rest: str) -> None:
        options, rest = _options(rest)
        words = rest.split()
        if not words:
            raise _UnsupportedError("names no image")
        if self.image:
            # An image that is ready has the variables and the folder of the last stage.
            self.stages[self.stage] = self.steps, self.env
            self.stage = words[-1]
            steps, env = self.stages.get(words[0], ([], {"PATH": IMAGES_PATH}))
            self.steps, self.args, self.env = list(steps), {}, dict(env)
            raise _UnsupportedError(
                f"{rest}: several stages are not supported", "has several stages"
            )
        if len(words) != 1 and (len(words) != 3 or words[1].upper() != "AS"):
            raise _UnsupportedError(f"{rest}: an image's name was expected")
        # Set before anything is refused: what follows is read in any case.
        self.image, self.stage = words[0], words[-1]
        self.image = _expanded(words[0], self.outer)
        for option in options:
            name, _, value = option.partition("=")
            wanted = (f"linux/{MACHINE}", "$BUILDPLATFORM", "$TARGETPLATFORM")
            if name != "--platform" or value not in wanted:
                raise _UnsupportedError(
                    f"{option} is not supported here", f"{name} is not supported"
                )

    def _do_arg(self, rest: str) -> None:
        for word in _words(rest):
            name, equals, value = word.partition("=")
            if not re.fullmatch(r"\w+", name):
                raise _UnsupportedError(f"{rest}: not NAME or NAME=VALUE")
            if not self.image:
                self.outer[name] = _expanded(value, self.outer)
                continue
            # An unset one is empty in Docker, too: nobody gives build arguments.
            filled = self._filled(value) if equals else self.outer.get(name, "")
            self.args[name] = filled
            self._add("arg", name, filled)

    def _do_workdir(self, rest: str) -> None:
        before = next((s.words[0] for s in reversed(self.steps) if s.kind == "workdir"), "")
        folder = self._filled(rest)
        if not folder:
            raise _UnsupportedError("names no folder")
        self._add("workdir", str(Path(before) / folder))

    def _do_env(self, rest: str) -> None:
        words = _words(rest)
        if words and "=" not in words[0]:
            words = ["=".join(rest.split(None, 1))]
        pairs = [word.partition("=") for word in words]
        if not pairs or not all(name and equals for name, equals, _ in pairs):
            raise _UnsupportedError(f"{rest}: not NAME=VALUE")
        # An instruction does not see its own values.
        filled = []
        for name, _, value in pairs:
            try:
                filled.append((name, self._filled(value)))
            except _UnsupportedError:
                # Later uses would be wrong as well.
                self.env[name] = None
                raise
        for name, value in filled:
            self.env[name] = value
            self._add("env", name, value)

    def _do_copy(self, rest: str) -> None:
        options, rest = _options(rest)
        for option in options:
            if not re.fullmatch(r"--chown=(?:root|0)(?::(?:root|0))?", option):
                name = option.partition("=")[0]
                raise _UnsupportedError(f"{option} is not supported", f"{name} is not supported")
        given = _list(rest)
        given = given if given is not None else _words(rest)
        words = [self._filled(word) for word in given]
        if len(words) < 2:
            raise _UnsupportedError(f"{rest}: sources and a target are needed")
        for source in words[:-1]:
            try:
                there = sources(self.context, source)
            except (ValueError, NotImplementedError, OSError, RuntimeError) as error:
                raise _UnsupportedError(f"{source}: {error}", "of what it cannot take") from None
            if not there:
                raise _UnsupportedError(f"{source}: there is no such file", "of a missing file")
        self._add("copy", *words)

    def _do_add(self, rest: str) -> None:
        if re.search(r"https?://|git@|\.(?:tar|tgz|gz|xz|bz2|zst)\b", rest):
            raise _UnsupportedError(f"{rest}: only plain files are supported", "of more than files")
        self._do_copy(rest)

    def _do_run(self, rest: str) -> None:
        if rest.startswith("--"):
            name = rest.split("=")[0].split()[0]
            raise _UnsupportedError(f"{name} is not supported", f"{name} is not supported")
        if _list(rest) is not None:
            raise _UnsupportedError("[...] is not supported; write it as a command")
        if not rest:
            raise _UnsupportedError("has no command")
        self._add("run", *self.shell, rest)

    def _do_user(self, rest: str) -> None:
        if self._filled(rest) not in ("root", "0", "root:root", "0:0"):
            kind = "is not supported; all commands run as root"
            raise _UnsupportedError(f"{rest} {kind}", kind)

    def _do_entrypoint(self, rest: str) -> None:
        if _list(rest) != []:
            kind = "is not supported: a box starts no program of its own"
            raise _UnsupportedError(kind, kind)

    def _do_shell(self, rest: str) -> None:
        words = _list(rest) or []
        if not _SHELL.fullmatch(" ".join(words)):
            raise _UnsupportedError(f"{rest} is not supported", "is not supported")
        self.shell = words

    def _filled(self, text: str) -> str:
        return _expanded(text, {**self.args, **self.env})

    def _add(self, kind: str, *words: str) -> None:
        self.steps.append(Step(kind, words, self.line))


def _expanded(text: str, values: Mapping[str, str | None]) -> str:
    """Return a word without quotes, its variables filled in as Docker does.

    Raises:
        ValueError: A variable is not known, or a quote is not closed.
    """
    done, position, quote = "", 0, ""
    while position < len(text):
        char = text[position]
        if char == quote or (char in "'\"" and not quote):
            quote = "" if quote else char
        elif char == "\\" and quote != "'" and position + 1 < len(text):
            position += 1
            keeps = quote and text[position] not in '"$\\'
            done += f"\\{text[position]}" if keeps else text[position]
        elif char == "$" and quote != "'":
            match = _VARIABLE.match(text, position)
            if match is None:
                raise _UnsupportedError(f"{text}: its variables cannot be read", "of odd variables")
            done += _value(match, values)
            position = match.end() - 1
        else:
            done += char
        position += 1
    if quote:
        raise _UnsupportedError(f"{text}: a quote is not closed", "of an open quote")
    return done


def _value(match: re.Match[str], values: Mapping[str, str | None]) -> str:
    name, how, word = match[1] or match[2], match[3] or "", match[4] or ""
    value = values.get(name)
    is_set = value is not None and not (how.startswith(":") and value == "")
    if how.endswith("+"):
        return _expanded(word, values) if is_set else ""
    if is_set:
        return str(value)
    if how.endswith("-"):
        return _expanded(word, values)
    kind = "of a variable that only the image may set"
    raise _UnsupportedError(f"${name}: not set here, and an image's own are not known", kind)


def _words(text: str) -> list[str]:
    """Split at spaces outside of quotes; quotes and backslashes stay."""
    return [m[0] for m in re.finditer(r"""(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^\s\\]|\\)+""", text)]


def _options(text: str) -> tuple[list[str], str]:
    """Return the options at the beginning, and what follows."""
    options: list[str] = []
    while match := re.match(r"(--\S+)\s*", text):
        options.append(match[1])
        text = text[match.end() :]
    return options, text


def _list(text: str) -> list[str] | None:
    """Return a JSON list of texts; None if it is none, as `[ -d /app ]` is a command."""
    try:
        found = parse(text, "a list") if text.startswith("[") else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, list) and all(isinstance(w, str) for w in found) else None


def _here(text: str) -> str:
    """Return the beginning of a here-document, `<<EOF`; `<<<` and `$((1<<3))` are none."""
    match = _HERE.search(_QUOTED.sub('""', text))
    return match[1] if match else ""


def _instructions(text: str) -> list[tuple[int, str, str]]:
    """Return line, name and argument of the instructions; comments and line ends are gone."""
    found: list[tuple[int, str, str]] = []
    going_on, begins, until = "", 0, ""
    lines = text.replace("\r\n", "\n").split("\n")
    for number, line in enumerate([*lines, ""], 1):
        if until:
            until = "" if line.strip() == until else until
            continue
        if re.fullmatch(r"#\s*escape\s*=\s*[^\\\s]\s*", line.strip(), re.IGNORECASE) and not found:
            found.append((number, "# escape", ""))
        is_last = number > len(lines)
        if line.lstrip().startswith("#") or (going_on and not line.strip() and not is_last):
            continue
        begins = begins if going_on else number
        going_on += line
        if not is_last and re.search(r"(?:^|[^\\])\\[ \t]*$", going_on):
            going_on = going_on.rstrip()[:-1]
            continue
        word, rest, *_ = [*going_on.strip().split(None, 1), "", ""]
        going_on = ""
        if word:
            found.append((begins, word.upper(), rest.strip()))
            if word.upper() in ("RUN", "COPY", "ADD"):
                until = re.sub(r"""<<-?["']?""", "", _here(rest))
    return found


def _short(text: str) -> str:
    return text if len(text) <= 160 else f"{text[:157]}..."

"""Every command line that the documentation prints is one that can be given.

A command of ours is read by its own parser, which also checks the files that it names in this
repository. Of others what can be known here is checked: targets of make, packages and extras.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import pytest
import tomllib
from documents import PAGES, ROOT, blocks

PROJECTS = {
    data["name"]: data
    for data in (
        tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        for path in sorted(ROOT.glob("packages/*/pyproject.toml"))
    )
}
TARGETS = set(
    re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
)
SOURCES = {path.name: path for path in ROOT.glob("packages/*/src/*")}
OTHERS = {
    "accelerate",
    "conda",
    "docker",
    "export",
    "git",
    "harbor",
    "inspect",
    "skopeo",
    "torchrun",
}
OTHERS |= {"vf-eval", "vllm"}
OTHERS |= {"cat", "echo", "printf", "source"}
"""Programs of others, of whose arguments nothing is checked."""
UNREAD = {"gem_tinker.train", "gem_trl.train", "gem_oat"}
"""Modules of ours that read a command line with what their trainer brings: tests of the trainer
read such lines. Their settings are checked by name."""
REST = "..."
"""Stands for arguments that are the reader's."""


class Line(NamedTuple):
    """A command line of a page."""

    page: str
    text: str

    def commands(self) -> Iterator[list[str]]:
        """Yield its commands as words, without variables and comment."""
        text = re.sub(r"\"?\$\([^()]*(\([^()]*\)[^()]*)*\)\"?", "VALUE", self.text)
        for command in re.split(r"&&|>>| & *$", text):
            words = shlex.split(command, comments=True)
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                del words[0]
            if words and not words[0].startswith("$"):
                yield words


def command_lines() -> Iterator[Line]:
    """Yield the command lines of all pages."""
    for page in PAGES:
        for block in blocks(page):
            lines = block.source.replace("\\\n", " ").splitlines() if block.info == "bash" else ()
            for text in lines:
                if text.strip() and not text.lstrip().startswith("#"):
                    yield Line(str(page.relative_to(ROOT)), text.strip())


class _ParsedError(Exception):
    """A command line was read to its end."""


def parsed(module: str, arguments: list[str]) -> None:
    """Let a module of ours read its command line, and do nothing else."""
    original = argparse.ArgumentParser.parse_args

    def parse(self: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> Any:
        original(self, *args, **kwargs)
        raise _ParsedError

    name = f"{module}.__main__" if find_spec(f"{module}.__main__") else module
    with pytest.MonkeyPatch.context() as patch, pytest.raises(_ParsedError):
        patch.setattr(argparse.ArgumentParser, "parse_args", parse)
        import_module(name).main(arguments)


def check(words: list[str]) -> None:
    """Raise an error if a command cannot be given."""
    program, *arguments = words
    complete, arguments = REST not in arguments, [word for word in arguments if word != REST]
    program = re.sub(r"^\.venvs/\w+/bin/", "", program)
    for word in (program, *arguments):
        if re.match(r"(recipes|packages|benchmarks|tools)/", word) and "mytrainer" not in word:
            assert list(ROOT.glob(word)), f"there is no {word}"
    if re.fullmatch(r"python[\d.]*", program):
        check_python(arguments, complete)
    elif program == "make":
        assert {word for word in arguments if "=" not in word} <= TARGETS
    elif program == "pip":
        check_pip(arguments)
    elif program in ("gem", "gem-bench"):
        assert complete
        parsed(program.replace("-", "_"), arguments)
    else:
        assert program in OTHERS or program.startswith("packages/"), f"{program} is not known"


def check_python(arguments: list[str], complete: bool) -> None:
    """Check a call of Python: its module, and the module's arguments."""
    if arguments[0] != "-m":
        assert arguments[0] == "-c" or "/" in arguments[0]
        return
    module, rest = arguments[1], arguments[2:]
    top = module.split(".")[0]
    if module in ("gem", "gem_bench") and complete:
        parsed(module, rest)
    elif top in SOURCES:
        path = SOURCES[top].joinpath(*module.split(".")[1:])
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module
        assert (
            module in UNREAD
            or not complete
            or path.name in ("doctor", "make_dataset")
            or (module == "gem_cpu.time_server")
        ), f"nothing reads the arguments of {module}"
    elif module == "pip":
        check_pip(rest)
    else:
        assert top in ("gem_mytrainer", "openrlhf", "pytest", "skyrl", "venv", "verl"), module


def check_pip(arguments: list[str]) -> None:
    """Check that packages of ours and their extras exist."""
    assert arguments[0] == "install"
    for word in arguments[1:]:
        named = re.fullmatch(r"(gem-[a-z0-9]+)(?:\[([\w,-]+)\])?", word)
        if named and named[1] not in ("gem-template", "gem-mytrainer"):
            extras = PROJECTS[named[1]].get("optional-dependencies", {})
            assert set(filter(None, (named[2] or "").split(","))) <= extras.keys(), word


LINES = list(dict.fromkeys(command_lines()))


@pytest.mark.parametrize("line", LINES, ids=lambda line: f"{line.page}: {line.text[:60]}")
def test_a_printed_command_line_can_be_given(line: Line) -> None:
    for words in line.commands():
        check(words)


@pytest.mark.parametrize(
    "text",
    [
        "gem-bench run recipes/guess-easy.toml --too verl",
        "gem-bench run recipes/no-such.toml --to verl --out a",
        "gem chekc game:Sudoku-v0",
        "python -m gem_verl.doktor",
        "make no-such-target",
        "pip install 'gem-core[no-such]'",
        "pip install gem-nothing",
        "rm -r runs",
    ],
)
def test_a_line_that_cannot_be_given_is_noticed(text: str) -> None:
    [words] = Line("page", text).commands()
    with pytest.raises((AssertionError, KeyError, SystemExit, pytest.fail.Exception)):
        check(words)

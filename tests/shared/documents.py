"""The pages of the documentation, and their blocks with the marks that say how they are tested.

A mark is a comment in the line above a block:

    <!-- not run: gpu -->            only read, by the parser of its language or command
    <!-- run with: --set a=1 -->     these words are added to every `gem-bench run` of the block
    <!-- output of: gem list -->     the block is what this command prints

A block of `python` without a mark is run and its claims are compared, one of `bash` is run by bash.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sybil import Document, Region, Sybil
from sybil.parsers.markdown.lexers import DirectiveInHTMLCommentLexer, RawFencedCodeBlockLexer

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "tutorials").glob("*.md")),
    ROOT / "docs" / "parity" / "papers.md",
    *sorted((ROOT / "packages").glob("*/README.md")),
]
LANGUAGES = {"bash", "bibtex", "py", "python", "text", "toml", "yaml"}
"""What a block may be; `py` is a piece of a source file that a test compares with it."""
NOT_RUN = {
    "gpu": "needs a GPU, or a trainer and a model of a size that do",
    "install": "installs packages, or makes an environment",
    "long": "takes minutes",
    "package": "needs a package that the development environment lacks",
    "part": "is a part of a file",
    "server": "needs a server, or is one",
    "trainer": "needs a trainer's own environment",
    "yours": "needs what the reader has: runs, a key, data",
}
"""Why a block is not run; the reason may be followed by more words."""
_MARKS = "not run|run with|output of"
_FENCE = RawFencedCodeBlockLexer(re.compile(r"(?P<info>[^\n]*)$\n?", re.MULTILINE))
_COMMENT = DirectiveInHTMLCommentLexer(directive=_MARKS)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    info: str
    """What stands behind the opening fence: the language."""
    source: str
    mark: str = ""
    """`not run`, `run with` or `output of`."""
    words: str = ""
    """What follows the mark."""

    @property
    def place(self) -> str:
        """Return page and line."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def _regions(document: Document) -> Iterator[Region]:
    for region in (*_FENCE(document), *_COMMENT(document)):
        region.parsed = region.lexemes
        region.evaluator = lambda example: None
        yield region


_SYBIL = Sybil(parsers=[_regions], pattern="*.md")


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page.

    Raises:
        ValueError: A mark is not in the line above a block, or gives no known reason.
    """
    found: list[Block] = []
    mark: tuple[int, str, str] | None = None
    for example in _SYBIL.parse(page):
        lexemes = example.parsed
        if "directive" in lexemes:
            if mark is not None:
                raise ValueError(f"{page}:{mark[0]}: the mark is above no block")
            mark = (example.line, lexemes["directive"], lexemes["arguments"].strip())
            if mark[1] == "not run" and mark[2].partition(" ")[0].strip(":;,") not in NOT_RUN:
                raise ValueError(f"{page}:{example.line}: unknown reason {mark[2]!r}")
            continue
        if mark is not None and mark[0] != example.line - 1:
            raise ValueError(f"{page}:{mark[0]}: the mark is not in the line above a block")
        _, name, words = mark or (0, "", "")
        found.append(Block(page, example.line, lexemes["info"], lexemes["source"], name, words))
        mark = None
    if mark is not None:
        raise ValueError(f"{page}:{mark[0]}: the mark is above no block")
    return found

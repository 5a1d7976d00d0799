"""`python -m gem_openrlhf.make_dataset`: write a dataset file for OpenRLHF.

    python -m gem_openrlhf.make_dataset train.jsonl 'gem:game:GuessTheNumber-v0?n=25600&seed=0'
    python -m gem_openrlhf.make_dataset --eval eval.jsonl \\
        'gem:game:GuessTheNumber-v0?n=128&seed=1000000#name=same&temperature=0' \\
        'gem:game:Mastermind-v0?n=128#name=other'
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gem.errors import GemError
from gem_openrlhf.dataset import write


def main(argv: list[str] | None = None) -> int:
    """Write the file; exit status 2 and a message if the URIs are wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m gem_openrlhf.make_dataset",
        description="Write seeded tasks of environments as a dataset of OpenRLHF.",
    )
    parser.add_argument("file", type=Path, help="file to write")
    parser.add_argument("uri", nargs="+", help="gem:<env id>?n=..&seed=..[#name=..&temperature=..]")
    parser.add_argument("--eval", action="store_true", help="for --eval.dataset")
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

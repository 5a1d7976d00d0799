"""`python -m gem_eval`: the same as `python -m gem eval`."""

from __future__ import annotations

import sys

from gem.__main__ import guarded
from gem_eval.cli import main

if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))

"""`python -m gem_eval`: the same as `python -m gem eval`."""

from __future__ import annotations

import sys

from gem.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["eval", *sys.argv[1:]]))

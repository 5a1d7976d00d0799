"""`python -m gem_rl2 env-path`: print the path of the env file, for `rollout.env_path`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ENV_FILE = Path(__file__).with_name("env.py")


def main(argv: list[str] | None = None) -> int:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m gem_rl2", description=__doc__)
    parser.add_argument("what", choices=["env-path"])
    parser.parse_args(argv)
    print(ENV_FILE)
    return 0


if __name__ == "__main__":
    sys.exit(main())

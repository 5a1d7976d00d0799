"""`python -m gem_oat`: train."""

import sys

from gem_oat.main import main

if __name__ == "__main__":
    sys.exit(main())

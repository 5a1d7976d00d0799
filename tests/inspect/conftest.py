"""What the tests of gem-eval's bridge need: the environment that `make env-inspect` builds."""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("inspect_ai") is None:
    collect_ignore_glob = ["test_*.py"]

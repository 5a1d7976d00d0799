"""First on `PYTHONPATH`, this folder installs the shims of trainers that have no plugin point.

Python imports a module of this name in every process it starts. Without `GEM_CPU=1` nothing
happens; with it, nothing is imported before the trainer is. A module of the same name further
down the path is run, too: this one would hide it.
"""

import os
import runpy
import sys
from pathlib import Path

if os.environ.get("GEM_CPU") == "1":
    from gem_cpu import oat_plugin, openrlhf_plugin, rl2_plugin

    openrlhf_plugin.install()
    oat_plugin.install()
    rl2_plugin.install()

_here = Path(__file__).parent
for _folder in sys.path:
    _hidden = Path(_folder) / "sitecustomize.py"
    if _folder and Path(_folder).resolve() != _here and _hidden.is_file():
        runpy.run_path(str(_hidden))
        break

"""Installs the shims of trainers without a plugin point, if this folder is first on `PYTHONPATH`.

Python imports a module of this name in every process that it starts. Without `GEM_CPU=1` it
installs nothing; with it, shims take effect when the trainer is imported. It also runs the next
`sitecustomize.py` on the path, which it would otherwise hide.
"""

import os
import runpy
import sys
from pathlib import Path

if os.environ.get("GEM_CPU") == "1":
    from gem_cpu import (
        oat_plugin,
        openrlhf_plugin,
        rl2_plugin,
        roll_plugin,
        skyrl_plugin,
        torchvision_plugin,
        trl_plugin,
    )

    openrlhf_plugin.install()
    oat_plugin.install()
    rl2_plugin.install()
    roll_plugin.install()
    skyrl_plugin.install()
    torchvision_plugin.install()
    trl_plugin.install()

_here = Path(__file__).resolve().parent
for _folder in sys.path:
    _hidden = Path(_folder) / "sitecustomize.py"
    if _folder and Path(_folder).resolve() != _here and _hidden.is_file():
        runpy.run_path(str(_hidden))
        break

"""Boxes without a daemon, and terminal tasks in them: environments `harbor:DIR`.

`box` is the protocol of a box, `overlay` the implementation.
"""

from __future__ import annotations

from gem_box.box import Box, Ran
from gem_box.overlay import OverlayBox

__all__ = ["Box", "OverlayBox", "Ran"]

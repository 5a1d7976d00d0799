"""One RunSpec, every trainer's native command, one record format, one comparison."""

from __future__ import annotations

__version__ = "0.1.0"

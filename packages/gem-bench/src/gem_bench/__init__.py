"""Runs one RunSpec with any trainer's native command; compares the records of the runs."""

from __future__ import annotations

__version__ = "0.1.0"

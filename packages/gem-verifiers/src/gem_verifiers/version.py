"""The version of gem-verifiers."""

__version__ = "0.1.0"
SUPPORTED_VERIFIERS = ">=0.4.0,<0.5"
"""Versions of verifiers that this package is tested with."""

"""The version of gem-check."""

__version__ = "0.1.0"

"""The version of gem-train."""

__version__ = "0.1.0"

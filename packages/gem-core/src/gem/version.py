"""The version of gem-core."""

__version__ = "0.1.0"

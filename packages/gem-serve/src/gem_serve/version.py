"""The version of gem-serve."""

__version__ = "0.1.0"

"""The version of gem-judge."""

__version__ = "0.1.0"

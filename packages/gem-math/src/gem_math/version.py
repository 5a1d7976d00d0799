"""The version of gem-math."""

__version__ = "0.1.0"

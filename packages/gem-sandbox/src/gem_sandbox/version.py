"""The version of gem-sandbox."""

__version__ = "0.1.0"

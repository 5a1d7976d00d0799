"""The version of gem-tau."""

__version__ = "0.1.0"

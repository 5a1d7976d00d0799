"""The version of gem-box."""

__version__ = "0.1.0"

"""The version of gem-vision."""

__version__ = "0.1.0"

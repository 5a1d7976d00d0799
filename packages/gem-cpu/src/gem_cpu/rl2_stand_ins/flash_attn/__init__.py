"""Stands in for flash-attn, which has no CPU code: what ring-flash-attn 0.1.8 uses of it."""

__version__ = "2.8.3"

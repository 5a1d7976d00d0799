"""Stand-in for flash-attn, which has no CPU code: the part that ring-flash-attn 0.1.8 uses."""

__version__ = "2.8.3"

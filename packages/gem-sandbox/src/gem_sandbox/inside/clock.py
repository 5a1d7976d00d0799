"""The clock of `gem.workers`. In the sandbox, which has no gem, it lies beside this package."""

try:
    from gem.workers.clock import Clock
except ImportError:
    from clock import Clock  # type: ignore[import-not-found, no-redef]

__all__ = ["Clock"]

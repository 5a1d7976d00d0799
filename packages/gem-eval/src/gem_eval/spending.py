"""What the calls of an evaluation cost, by prices that the user gives; an end when it is enough."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gem.errors import ConfigurationError, GemError

_PER = 1_000_000


class SpentError(GemError):
    """The evaluation has cost what it may."""


@dataclass(frozen=True)
class Prices:
    """Prices of a million tokens, in any currency."""

    prompt: float
    reply: float
    cached: float | None = None
    """Of prompt tokens that the server had cached; None: as the others."""

    @classmethod
    def parse(cls, text: str) -> Prices:
        """Parse `in=0.4,out=1.6` or `in=0.4,cached=0.1,out=1.6`.

        Raises:
            ConfigurationError: It is neither.
        """
        try:
            found = {name: float(value) for name, value in (p.split("=") for p in text.split(","))}
            prices = cls(found.pop("in"), found.pop("out"), found.pop("cached", None))
        except (ValueError, KeyError):
            found, prices = {"": 0.0}, cls(0, 0)
        values = (prices.prompt, prices.reply, prices.cached or 0.0)
        if found or not all(0 <= value < float("inf") for value in values):
            raise ConfigurationError(
                "--price is in=P,out=P or in=P,cached=P,out=P with the prices of a million "
                f"tokens, got {text!r}"
            )
        return prices

    def of(self, calls: Iterable[Mapping[str, Any]]) -> float:
        """Return the cost of calls, see `gem_eval.client.Reply.note`."""
        total = 0.0
        for call in calls:
            prompt, cached = call.get("prompt_tokens", 0), call.get("cached_tokens", 0)
            fresh = max(0, prompt - cached)
            total += self.prompt * fresh + self.reply * call.get("reply_tokens", 0)
            total += (self.prompt if self.cached is None else self.cached) * min(cached, prompt)
        return total / _PER


class Spending:
    """Adds up what episodes cost."""

    def __init__(self, prices: Prices, most: float | None) -> None:
        """Begin with nothing spent.

        Args:
            prices: Of tokens.
            most: What may be spent; None for no limit.
        """
        self._prices = prices
        self._most = most
        self.spent = 0.0
        """So far."""

    def add(self, calls: Iterable[Mapping[str, Any]]) -> None:
        """Add the calls of an episode.

        Raises:
            SpentError: All that may be spent is spent.
        """
        self.spent += self._prices.of(calls)
        if self._most is not None and self.spent >= self._most:
            raise SpentError(f"{self.spent:.4g} is spent, --max-cost allows {self._most:g}")

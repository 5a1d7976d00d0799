"""What the calls of an evaluation cost, in tokens and by prices; an end when it is enough."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    """Adds up the tokens of episodes and what they cost."""

    def __init__(
        self,
        prices: Prices | None = None,
        most_cost: float | None = None,
        most_tokens: int | None = None,
    ) -> None:
        """Begin with nothing spent.

        Args:
            prices: Of tokens; None if they cost nothing.
            most_cost: What may be spent; None for no limit.
            most_tokens: How many tokens prompts and replies may have; None for no limit.

        Raises:
            ConfigurationError: A cost is limited, but there are no prices.
        """
        if most_cost is not None and prices is None:
            raise ConfigurationError(
                "--max-cost needs the prices of tokens: --price in=0.4,out=1.6"
            )
        self.prices = prices
        self._most_cost = most_cost
        self._most_tokens = most_tokens
        self.cost = 0.0
        """So far, as the next."""
        self.prompt_tokens = self.reply_tokens = 0
        self._counted = self._uncounted = 0

    def shown(self) -> str:
        """Return the cost as text; calls whose tokens nobody counted have none that is known."""
        if not self._counted:
            return "unknown (no tokens were counted)"
        more = f", and {self._uncounted} calls without a count" if self._uncounted else ""
        return f"{self.cost:.4g}{more}"

    def add(self, calls: Sequence[Mapping[str, Any]]) -> None:
        """Add the calls of an episode.

        Raises:
            SpentError: All that may be spent is spent.
            ConfigurationError: There is a limit, and a call has no numbers of tokens.
        """
        limits = (self._most_cost, self._most_tokens)
        if limits != (None, None) and not all(map(_is_counted, calls)):
            raise ConfigurationError(
                "the model does not say how many tokens it is sent and replies: --max-cost and "
                "--max-tokens-total cannot be kept"
            )
        counted = sum(map(_is_counted, calls))
        self._counted += counted
        self._uncounted += len(calls) - counted
        self.prompt_tokens += sum(call.get("prompt_tokens", 0) for call in calls)
        self.reply_tokens += sum(call.get("reply_tokens", 0) for call in calls)
        if self.prices is not None:
            self.cost += self.prices.of(calls)
        if self._most_cost is not None and self.cost >= self._most_cost:
            raise SpentError(f"{self.cost:.4g} is spent, --max-cost allows {self._most_cost:g}")
        tokens = self.prompt_tokens + self.reply_tokens
        if self._most_tokens is not None and tokens >= self._most_tokens:
            raise SpentError(
                f"{tokens:,} tokens are spent, --max-tokens-total allows {self._most_tokens:,}"
            )


def _is_counted(call: Mapping[str, Any]) -> bool:
    return {"prompt_tokens", "reply_tokens"} <= call.keys()

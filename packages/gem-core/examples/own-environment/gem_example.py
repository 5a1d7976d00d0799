"""An environment and a tool of one's own; docs/tutorials/own-environment.md goes through it."""

from __future__ import annotations

import re
from typing import Any

import gem
from gem.core import Info, Observation, Step
from gem.errors import ConfigurationError, ResetNeededError, UnknownParameterError
from gem.tools import Tool, ToolCall, ToolResult

# Numbers of at most 9 digits: a policy may write a million.
_BOX = re.compile(r"\\boxed\{\s*(\d{1,9})\s*\}")
_PAIR = re.compile(r"\s*(\d{1,9})\s+(\d{1,9})\s*")


class Price(gem.Env):
    """A price to find; every guess is told whether the price is higher or lower.

    Rewards: a turn pays half of the share of prices that it rules out; the right guess pays what
    is missing to 1. So every useful turn is paid, and no lost episode earns more than 0.5.
    """

    def __init__(
        self, low: int = 1, high: int = 10, max_turns: int = 4, *, seed: int | None = None
    ) -> None:
        """Check the parameters; nothing is drawn, read or asked before `reset`.

        Args:
            low: Lowest possible price, at least 0.
            high: Highest possible price, above `low`.
            max_turns: Guesses allowed.
            seed: Seed of the first `reset` that is not given one.
        """
        super().__init__(seed=seed)
        if not 0 <= low < high < 10**9:
            raise ConfigurationError(f"low must be from 0 to below high, got {low!r}, {high!r}")
        if max_turns < 1:
            raise ConfigurationError(f"max_turns must be at least 1, got {max_turns!r}")
        self.low, self.high, self.max_turns = low, high, max_turns
        self._over = True

    def reset(self, seed: int | None = None, **options: Any) -> tuple[Observation, Info]:
        """Draw a price."""
        if options:
            raise UnknownParameterError(f"Price.reset has no option {', '.join(options)}")
        super().reset(seed=seed)
        self.price = self.rng.randint(self.low, self.high)
        self.least, self.most = self.low, self.high
        self.turn, self.earned, self._over = 0, 0.0, False
        return (
            f"Guess a price between {self.low} and {self.high} within {self.max_turns} turns. "
            "Answer in \\boxed{}."
        ), {}

    def step(self, action: str) -> Step:
        """Answer a guess."""
        if self._over:
            raise ResetNeededError("Price: the episode has not begun or is over; call reset()")
        self.turn += 1
        boxes = _BOX.findall(action)
        guess = int(boxes[-1]) if boxes else None
        valid = guess is not None and self.low <= guess <= self.high
        won = guess == self.price
        told, before = "not a price in a box.", self.most - self.least
        if guess is not None:
            told = f"{'higher' if guess < self.price else 'lower'} than {guess}."
        if won:
            told, self.least, self.most = f"the price is {guess}.", self.price, self.price
        elif valid and guess < self.price:
            self.least = max(self.least, guess + 1)
        elif valid:
            self.most = min(self.most, guess - 1)
        ruled_out = (before - (self.most - self.least)) / (self.high - self.low)
        reward = 1.0 - self.earned if won else ruled_out / 2
        self.earned += reward
        truncated = not won and self.turn >= self.max_turns
        self._over = won or truncated
        last = "" if won else f" It was {self.price}." if truncated else self._range()
        info = {"success": won, "format_error": guess is None, "invalid_action": not valid}
        return f"Turn {self.turn}: {told}{last}", reward, won, truncated, info

    def _range(self) -> str:
        return f" It is between {self.least} and {self.most}."

    def render(self) -> str:
        """Return the state for a person."""
        return f"turn {self.turn} of {self.max_turns}.{self._range()}"

    def sample_random_action(self) -> str:
        """Return any price; drawn from a stream of its own, so that the episode stays as it is."""
        return f"\\boxed{{{self.action_rng.randint(self.low, self.high)}}}"

    def oracle_action(self) -> str:
        """Return the middle of what the policy was told."""
        return f"\\boxed{{{(self.least + self.most) // 2}}}"


class Middle(Tool):
    """Tells the middle of two numbers."""

    tool_type = "middle"

    def instruction(self) -> str:
        """Return what the policy is told before its first turn."""
        return "Write <middle>4 10</middle> to be told the middle of 4 and 10."

    def parse(self, text: str) -> ToolCall | None:
        """Find a call in a reply."""
        _, opened, rest = text.partition("<middle>")
        inside, closed, _ = rest.partition("</middle>")
        if not (opened and closed):
            return None
        numbers = _PAIR.fullmatch(inside)
        if numbers is None:
            return ToolCall("middle", error="middle takes two numbers, such as 4 10")
        return ToolCall("middle", {"low": int(numbers[1]), "high": int(numbers[2])})

    def execute(self, call: ToolCall) -> ToolResult:
        """Answer a call; what the policy wrote never raises."""
        if call.error is not None:
            return ToolResult(f"[Tool error: {call.error}]", ok=False)
        middle = (call.arguments["low"] + call.arguments["high"]) // 2
        return ToolResult(f"The middle is {middle}.", ok=True)


def register() -> None:
    """Register the ids; the entry point of the group `gem.envs` names this function."""
    gem.register("example:Price-v0", "gem_example:Price")
    gem.register("example:Price-v0-wide", "gem_example:Price", high=40, max_turns=6)

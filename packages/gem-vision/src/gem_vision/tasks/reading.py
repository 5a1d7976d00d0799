"""Reading off: the time of a clock, values of a bar chart, an angle."""

from __future__ import annotations

import re

from gem.envs.games.base import boxed
from gem.parameters import choice, flag, integer
from gem_vision.drawing import CELL, Canvas, offset
from gem_vision.tasks.base import Question

_TIME = re.compile(r"([0-9]{1,2}):([0-9]{2})")
_COLOURS = ("red", "green", "blue", "orange", "purple", "brown", "cyan", "navy")
_FINE = 64


class Clock(Question):
    """What time does a clock with two or three hands show?"""

    expected = "a time such as 7:05"

    def __init__(
        self,
        multiple_of: int = 5,
        numerals: bool = True,
        seconds: bool = False,
        *,
        seed: int | None = None,
    ) -> None:
        """Set the parameters.

        Args:
            multiple_of: Minutes are multiples of this divisor of 60: 1, 5, 10, 15, 30 or 60.
            numerals: Whether the hours have numbers.
            seconds: Whether a third hand, which is not asked for, shows seconds.
            seed: Seed of the first `reset` that is not given one.

        Raises:
            ConfigurationError: A value is not allowed.
        """
        super().__init__(seed=seed)
        self.multiple_of = choice("multiple_of", multiple_of, (1, 5, 10, 15, 30, 60))
        self.numerals = flag("numerals", numerals)
        self.seconds = flag("seconds", seconds)

    def _start(self) -> None:
        super()._start()
        self.example = boxed("7:05")

    def _draw(self) -> Canvas:
        rng = self.rng
        hour, minute = rng.randint(1, 12), self.multiple_of * rng.randrange(60 // self.multiple_of)
        canvas = Canvas(6 * CELL, 6 * CELL)
        middle = 3 * CELL
        canvas.disc(middle, middle, middle - 2, "black")
        canvas.disc(middle, middle, middle - 5, "white")
        for mark in range(60):
            right, down = offset(12 * mark, middle - 6)
            inner = offset(12 * mark, middle - (14 if mark % 5 == 0 else 9))
            ends = (inner[0], inner[1], right, down)
            x0, y0, x1, y1 = (end + middle * _FINE for end in ends)
            canvas.line(x0, y0, x1, y1, "black", 2 if mark % 5 == 0 else 1, _FINE)
        if self.numerals:
            for number in range(1, 13):
                right, down = offset(60 * number, middle - 22)
                canvas.centred(middle + right // _FINE, middle + down // _FINE, str(number))
        if self.seconds:
            canvas.hand(middle, middle, 12 * rng.randrange(60), 62, "red", 1)
        canvas.hand(middle, middle, 12 * minute, 56, "blue", 3)
        canvas.hand(middle, middle, 60 * hour + minute, 34, "black", 5)
        canvas.disc(middle, middle, 4, "black")
        third = " The thin red hand shows seconds." if self.seconds else ""
        self.question = (
            "What time does the clock show? The short black hand shows hours, the long blue one "
            f"minutes.{third} Answer with hours from 1 to 12 and minutes."
        )
        self.answer = f"{hour}:{minute:02}"
        return canvas

    def _parse(self, content: str) -> str | None:
        match = _TIME.fullmatch(content)
        return f"{int(match[1])}:{match[2]}" if match else None

    def _guesses(self) -> tuple[str, ...]:
        minutes = range(0, 60, self.multiple_of)
        return tuple(f"{hour}:{minute:02}" for hour in range(1, 13) for minute in minutes)


class Bars(Question):
    """What is the value of a bar of a chart, or the difference of two bars?"""

    expected = "an integer"

    def __init__(
        self,
        bars: int = 4,
        highest: int = 10,
        tick: int = 2,
        difference: bool = False,
        *,
        seed: int | None = None,
    ) -> None:
        """Set the parameters.

        Args:
            bars: Number of bars, 2 to 8.
            highest: Largest value, 2 to 40; values are integers from 1 up.
            tick: Every how many units the axis has a line and a number, 1 to 10.
            difference: Whether to ask for the difference of two bars.
            seed: Seed of the first `reset` that is not given one.

        Raises:
            ConfigurationError: A value is not allowed.
        """
        super().__init__(seed=seed)
        self.bars = integer("bars", bars, 2, len(_COLOURS))
        self.highest = integer("highest", highest, 2, 40)
        self.tick = integer("tick", tick, 1, 10)
        self.difference = flag("difference", difference)

    def _draw(self) -> Canvas:
        rng = self.rng
        values = [rng.randint(1, self.highest) for _ in range(self.bars)]
        names = "ABCDEFGH"[: self.bars]
        unit = 6 * CELL // self.highest
        bottom = 6 * CELL + 14
        canvas = Canvas(CELL * (self.bars + 1), 7 * CELL + 14 + 14)
        for value in range(0, self.highest + 1, self.tick):
            y = bottom - unit * value
            canvas.rectangle(CELL - 4, y, CELL * self.bars + 4, 1, "grey")
            canvas.centred(CELL // 2 - 1, y, str(value))
        for place, (name, value) in enumerate(zip(names, values, strict=True), start=1):
            colour = _COLOURS[rng.randrange(len(_COLOURS))]
            canvas.rectangle(CELL * place + 5, bottom - unit * value, 18, unit * value, colour)
            canvas.centred(CELL * place + 14, bottom + CELL // 2, name, "black", 2)
        canvas.rectangle(CELL - 1, 14, 2, bottom - 13, "black")
        canvas.rectangle(CELL - 1, bottom, CELL * self.bars + 1, 2, "black")
        one, two = rng.sample(range(self.bars), 2)
        if not self.difference:
            self.question = f"What is the value of bar {names[one]}?"
            self.answer = str(values[one])
        else:
            if values[one] < values[two]:
                one, two = two, one
            self.question = (
                f"How large is the difference between the values of bar {names[one]} and bar "
                f"{names[two]}?"
            )
            self.answer = str(values[one] - values[two])
        return canvas

    def _guesses(self) -> tuple[str, ...]:
        low, high = (0, self.highest - 1) if self.difference else (1, self.highest)
        return tuple(map(str, range(low, high + 1)))


class Angle(Question):
    """How large is the angle between two lines, in degrees?"""

    expected = "an integer"

    def __init__(
        self, multiple_of: int = 15, distractors: int = 0, *, seed: int | None = None
    ) -> None:
        """Set the parameters.

        Args:
            multiple_of: The angle is a multiple of this, and at most 180 less this; one of 1, 2, 3,
                5, 6, 9, 10, 15, 20, 30, 36, 45 and 60.
            distractors: Grey lines that do not count, 0 to 4.
            seed: Seed of the first `reset` that is not given one.

        Raises:
            ConfigurationError: A value is not allowed.
        """
        super().__init__(seed=seed)
        self.multiple_of = choice(
            "multiple_of", multiple_of, (1, 2, 3, 5, 6, 9, 10, 15, 20, 30, 36, 45, 60)
        )
        self.distractors = integer("distractors", distractors, 0, 4)

    def _draw(self) -> Canvas:
        rng = self.rng
        angle = self.multiple_of * rng.randint(1, 180 // self.multiple_of - 1)
        first = rng.randrange(360)
        canvas = Canvas(6 * CELL, 6 * CELL)
        middle = 3 * CELL
        for _ in range(self.distractors):
            canvas.hand(middle, middle, 2 * rng.randrange(360), rng.randint(40, 80), "silver", 2)
        # The arc, as dots.
        for direction in range(2 * first, 2 * (first + angle) + 1, 4):
            right, down = offset(direction, 24)
            canvas.disc(middle + right // _FINE, middle + down // _FINE, 1, "red")
        for direction in (first, first + angle):
            canvas.hand(middle, middle, 2 * direction, 80, "black", 3)
        canvas.disc(middle, middle, 3, "black")
        grey = " Grey lines do not count." if self.distractors else ""
        self.question = (
            "How large is the angle between the two black lines that the red arc marks, in "
            f"degrees? It is a multiple of {self.multiple_of} and less than 180.{grey}"
        )
        self.answer = str(angle)
        return canvas

    def _guesses(self) -> tuple[str, ...]:
        return tuple(map(str, range(self.multiple_of, 180, self.multiple_of)))

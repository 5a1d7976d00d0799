"""Shapes: count those of a kind, find the largest or smallest."""

from __future__ import annotations

from itertools import product

from gem.errors import ConfigurationError
from gem.parameters import integer
from gem_vision.drawing import CELL, Canvas
from gem_vision.tasks.base import Question

COLOURS = ("red", "green", "blue", "yellow", "purple", "orange")
SHAPES = ("circle", "square", "triangle", "diamond")


def draw_shape(canvas: Canvas, shape: str, x: int, y: int, radius: int, colour: str) -> None:
    """Draw one of `SHAPES` around (x, y)."""
    r = radius
    if shape == "circle":
        canvas.disc(x, y, r, colour)
    elif shape == "square":
        canvas.rectangle(x - r, y - r, 2 * r, 2 * r, colour)
    elif shape == "triangle":
        canvas.polygon([(x, y - r), (x + r, y + r), (x - r, y + r)], colour)
    else:
        canvas.polygon([(x, y - r), (x + r, y), (x, y + r), (x - r, y)], colour)


class Count(Question):
    """How many shapes of a colour and kind are there, among others?

    Every number from 0 to `max_targets` is equally likely. Half of the other shapes have the colour
    or the kind that is asked for.
    """

    expected = "an integer"

    def __init__(
        self,
        side: int = 6,
        max_targets: int = 8,
        max_distractors: int = 8,
        *,
        seed: int | None = None,
    ) -> None:
        """Set the parameters.

        Args:
            side: Places for shapes in a row and in a column, 2 to 20; each is 28 pixels wide.
            max_targets: Most shapes to count.
            max_distractors: Most other shapes.
            seed: Seed of the first `reset` that is not given one.

        Raises:
            ConfigurationError: A value is not allowed, or there are too few places.
        """
        super().__init__(seed=seed)
        self.side = integer("side", side, 2, 20)
        self.max_targets = integer("max_targets", max_targets, 1, 400)
        self.max_distractors = integer("max_distractors", max_distractors, 0, 400)
        if max_targets + max_distractors > side * side:
            raise ConfigurationError(
                f"max_targets + max_distractors must be at most side * side, got {max_targets} + "
                f"{max_distractors} and side={side}"
            )

    def _draw(self) -> Canvas:
        rng = self.rng
        kinds = list(product(COLOURS, SHAPES))
        colour, shape = rng.choice(kinds)
        others = [kind for kind in kinds if kind != (colour, shape)]
        alike = [kind for kind in others if kind[0] == colour or kind[1] == shape]
        targets = rng.randint(0, self.max_targets)
        shown = [(colour, shape)] * targets
        for place in range(rng.randint(0, self.max_distractors)):
            shown.append(rng.choice(alike if place % 2 == 0 else others))
        canvas = Canvas(CELL * self.side, CELL * self.side)
        places = rng.sample(range(self.side**2), len(shown))
        for (its_colour, its_shape), place in zip(shown, places, strict=True):
            row, column = divmod(place, self.side)
            radius = rng.randint(7, 11)
            x = CELL * column + CELL // 2 + rng.randint(-2, 2)
            y = CELL * row + CELL // 2 + rng.randint(-2, 2)
            draw_shape(canvas, its_shape, x, y, radius, its_colour)
        self.question = f"How many {colour} {shape}s are in the picture?"
        self.answer = str(targets)
        return canvas

    def _guesses(self) -> tuple[str, ...]:
        return tuple(map(str, range(self.max_targets + 1)))


class Colour(Question):
    """Which colour is the shape of a kind, among shapes of other kinds?"""

    def __init__(self, shapes: int = 3, colours: int = 6, *, seed: int | None = None) -> None:
        """Set the parameters.

        Args:
            shapes: Shapes in the picture, each of a kind of its own, 1 to 4.
            colours: Colours that they are drawn from, 2 to 6.
            seed: Seed of the first `reset` that is not given one.

        Raises:
            ConfigurationError: A value is not allowed.
        """
        super().__init__(seed=seed)
        self.shapes = integer("shapes", shapes, 1, len(SHAPES))
        self.words = COLOURS[: integer("colours", colours, 2, len(COLOURS))]
        self.expected = f"one of {', '.join(self.words)}"

    def _draw(self) -> Canvas:
        rng = self.rng
        shown = rng.sample(SHAPES, self.shapes)
        side = 1 if self.shapes == 1 else 2
        canvas = Canvas(2 * CELL * side, 2 * CELL * side)
        colours = [rng.choice(self.words) for _ in shown]
        places = rng.sample(range(side * side), self.shapes)
        for shape, colour, place in zip(shown, colours, places, strict=True):
            row, column = divmod(place, side)
            x = CELL * (2 * column + 1) + rng.randint(-3, 3)
            y = CELL * (2 * row + 1) + rng.randint(-3, 3)
            draw_shape(canvas, shape, x, y, rng.randint(14, 23), colour)
        self.question = f"Which colour is the {shown[0]}?"
        self.answer = colours[0]
        return canvas


class Compare(Question):
    """Which colour has the largest, or the smallest, shape of a kind?

    Each of the shapes of this kind has a colour of its own. Shapes of other kinds have any size.
    """

    expected = f"one of {', '.join(COLOURS)}"
    words = COLOURS

    def __init__(
        self, shapes: int = 4, distractors: int = 2, margin: int = 3, *, seed: int | None = None
    ) -> None:
        """Set the parameters.

        Args:
            shapes: Shapes to compare, 2 to 6.
            distractors: Shapes of other kinds, 0 to 10.
            margin: By how many pixels the radius of the right shape differs from the next one, 1
                to 8.
            seed: Seed of the first `reset` that is not given one.

        Raises:
            ConfigurationError: A value is not allowed.
        """
        super().__init__(seed=seed)
        self.shapes = integer("shapes", shapes, 2, len(COLOURS))
        self.distractors = integer("distractors", distractors, 0, 10)
        self.margin = integer("margin", margin, 1, 8)

    def _draw(self) -> Canvas:
        rng = self.rng
        total = self.shapes + self.distractors
        side = next(n for n in range(2, 5) if n * n >= total)
        shape = rng.choice(SHAPES)
        colours = rng.sample(COLOURS, self.shapes)
        largest = rng.random() < 0.5
        # The right one is at one end of the radii, the others keep the margin from it.
        low, high = 9, 26
        if largest:
            right = rng.randint(low + self.margin + 2, high)
            radii = [rng.randint(low, right - self.margin) for _ in colours[1:]]
        else:
            right = rng.randint(low, high - self.margin - 2)
            radii = [rng.randint(right + self.margin, high) for _ in colours[1:]]
        shown = list(zip([shape] * self.shapes, colours, [right, *radii], strict=True))
        rest = [each for each in SHAPES if each != shape]
        shown += [
            (rng.choice(rest), rng.choice(COLOURS), rng.randint(low, high))
            for _ in range(self.distractors)
        ]
        place_size = 2 * CELL
        canvas = Canvas(place_size * side, place_size * side)
        places = rng.sample(range(side * side), total)
        for (its_shape, colour, radius), place in zip(shown, places, strict=True):
            row, column = divmod(place, side)
            x, y = place_size * column + CELL, place_size * row + CELL
            draw_shape(canvas, its_shape, x, y, radius, colour)
        self.question = f"Which colour has the {'largest' if largest else 'smallest'} {shape}?"
        self.answer = colours[0]
        return canvas

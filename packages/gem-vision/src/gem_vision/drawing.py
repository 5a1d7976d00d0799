"""Draws pictures with integers alone, so that they are the same on every machine.

One file that needs the standard library only (Pillow for `Canvas.image`). Coordinates are pixels;
(0, 0) is the upper left corner of the upper left pixel. What lies outside of a canvas is not drawn.

    canvas = Canvas(84, 56)
    canvas.disc(28, 28, 10, "red")
    canvas.text(50, 20, "A1", "black", scale=2)
    png = canvas.png()
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

CELL = 28
"""Width and height of a cell of a board: one token of Qwen2.5-VL, which sees patches of 28x28."""

COLOURS = {
    "white": (255, 255, 255),
    "black": (20, 20, 24),
    "red": (214, 40, 40),
    "green": (46, 150, 70),
    "blue": (38, 90, 200),
    "yellow": (246, 200, 40),
    "purple": (136, 60, 170),
    "orange": (240, 130, 30),
    "cyan": (60, 190, 210),
    "brown": (150, 96, 50),
    "pink": (250, 196, 204),
    "grey": (150, 154, 160),
    "silver": (206, 209, 214),
    "dark": (82, 86, 94),
    "sand": (240, 232, 214),
    "navy": (24, 46, 108),
}
"""Red, green and blue, 0 to 255, of every colour by its name."""

GLYPH_WIDTH, GLYPH_HEIGHT = 5, 7
# Rows from the top as hexadecimal numbers; the highest of five bits is the leftmost pixel.
_FONT = {
    " ": "00 00 00 00 00 00 00",
    "0": "06 09 09 09 09 09 06",
    "1": "04 0C 04 04 04 04 0E",
    "2": "0E 11 01 02 04 08 1F",
    "3": "1F 02 04 02 01 11 0E",
    "4": "02 06 0A 12 1F 02 02",
    "5": "1F 10 1E 01 01 11 0E",
    "6": "06 08 10 1E 11 11 0E",
    "7": "1F 01 02 04 04 04 04",
    "8": "0E 11 11 0E 11 11 0E",
    "9": "0E 11 11 0F 01 02 0C",
    "A": "04 0A 11 11 1F 11 11",
    "B": "1E 11 11 1E 11 11 1E",
    "C": "0E 11 10 10 10 11 0E",
    "D": "1C 12 11 11 11 12 1C",
    "E": "1F 10 10 1E 10 10 1F",
    "F": "1F 10 10 1E 10 10 10",
    "G": "0E 11 10 17 11 11 0F",
    "H": "11 11 11 1F 11 11 11",
    "I": "0E 04 04 04 04 04 0E",
    "J": "07 02 02 02 02 12 0C",
    "K": "11 12 14 18 14 12 11",
    "L": "10 10 10 10 10 10 1F",
    "M": "11 1B 15 15 11 11 11",
    "N": "11 11 19 15 13 11 11",
    "O": "0E 11 11 11 11 11 0E",
    "P": "1E 11 11 1E 10 10 10",
    "Q": "0E 11 11 11 15 12 0D",
    "R": "1E 11 11 1E 14 12 11",
    "S": "0F 10 10 0E 01 01 1E",
    "T": "1F 04 04 04 04 04 04",
    "U": "11 11 11 11 11 11 0E",
    "V": "11 11 11 11 11 0A 04",
    "W": "11 11 11 15 15 15 0A",
    "X": "11 11 0A 04 0A 11 11",
    "Y": "11 11 0A 04 04 04 04",
    "Z": "1F 01 02 04 08 10 1F",
    "?": "0E 11 01 02 04 00 04",
    "!": "04 04 04 04 04 00 04",
    ".": "00 00 00 00 00 0C 0C",
    ",": "00 00 00 00 0C 04 08",
    ":": "00 0C 0C 00 0C 0C 00",
    "-": "00 00 00 1F 00 00 00",
    "+": "00 04 04 1F 04 04 00",
    "=": "00 00 1F 00 1F 00 00",
    "/": "00 01 02 04 08 10 00",
    "%": "18 19 02 04 08 13 03",
    "(": "02 04 08 08 08 04 02",
    ")": "08 04 02 02 02 04 08",
}
GLYPHS = {char: tuple(int(row, 16) for row in rows.split()) for char, rows in _FONT.items()}
"""Rows of every character that can be drawn; letters are capitals."""

_INDEX = {name: index for index, name in enumerate(COLOURS)}
# Points of lines are finer than pixels by this factor.
_FINE = 64
_LENGTH = 1 << 12


def offset(half_degrees: int, length: int) -> tuple[int, int]:
    """Return how far right and down the end of a hand is, in 1/64 pixels.

    Args:
        half_degrees: Direction, clockwise from the top; 90 degrees, to the right, are 180.
        length: Of the hand, in pixels.
    """
    return (
        _sine(half_degrees) * length * _FINE // _LENGTH,
        -_sine(half_degrees + 180) * length * _FINE // _LENGTH,
    )


@cache
def _sine(half_degrees: int) -> int:
    # No sine is so near the middle of two integers that mathematical libraries could disagree.
    return round(_LENGTH * math.sin(math.radians(half_degrees % 720 / 2)))


class Canvas:
    """A picture in the colours of `COLOURS`."""

    def __init__(self, width: int, height: int, colour: str = "white") -> None:
        """Make a picture of one colour.

        Args:
            width, height: In pixels.
            colour: Of all pixels.
        """
        self.width, self.height = width, height
        self._rows = [bytearray([_INDEX[colour]]) * width for _ in range(height)]

    def rectangle(self, x: int, y: int, width: int, height: int, colour: str) -> None:
        """Fill a rectangle; (x, y) is its upper left corner."""
        for row in range(max(y, 0), min(y + height, self.height)):
            self._span(row, x, x + width, colour)

    def frame(
        self, x: int, y: int, width: int, height: int, colour: str, thickness: int = 1
    ) -> None:
        """Draw the border of a rectangle, on its inside."""
        self.rectangle(x, y, width, thickness, colour)
        self.rectangle(x, y + height - thickness, width, thickness, colour)
        self.rectangle(x, y, thickness, height, colour)
        self.rectangle(x + width - thickness, y, thickness, height, colour)

    def disc(self, x: int, y: int, radius: int, colour: str) -> None:
        """Fill a circle around (x, y), which is a corner of pixels."""
        for row in range(max(y - radius, 0), min(y + radius, self.height)):
            # Twice the distances of the middles of pixels from (x, y).
            half = math.isqrt(4 * radius * radius - (2 * (row - y) + 1) ** 2)
            self._span(row, x - (half + 1) // 2, x + (half + 1) // 2, colour)

    def polygon(self, points: Sequence[tuple[int, int]], colour: str, unit: int = 1) -> None:
        """Fill a polygon: the pixels whose middle is inside.

        Args:
            points: Its corners, in 1/`unit` pixels.
            colour: Of the pixels.
            unit: See `points`.
        """
        low = min(y for _, y in points) // unit
        high = -(-max(y for _, y in points) // unit)
        sides = [(a, b) for a, b in zip(points, (*points[1:], points[0]), strict=True)]
        for row in range(max(low, 0), min(high, self.height)):
            middle = unit * (2 * row + 1)
            crossings = []
            for (x0, y0), (x1, y1) in sides:
                if (2 * y0 <= middle) == (2 * y1 <= middle):
                    continue
                # The first pixel whose middle is to the right of where the side crosses the row.
                rise = 2 * (y1 - y0)
                across = 2 * x0 * rise + 2 * (middle - 2 * y0) * (x1 - x0) - unit * rise
                crossings.append(-(-across // (2 * unit * rise)))
            crossings.sort()
            for left, right in zip(crossings[::2], crossings[1::2], strict=True):
                self._span(row, left, right, colour)

    def line(
        self, x0: int, y0: int, x1: int, y1: int, colour: str, thickness: int = 2, unit: int = 1
    ) -> None:
        """Draw a line with straight ends.

        Args:
            x0, y0, x1, y1: Ends, in 1/`unit` pixels; `unit` divides 64.
            colour: Of the line.
            thickness: In pixels.
            unit: See the ends.
        """
        x0, y0, x1, y1 = (each * _FINE // unit for each in (x0, y0, x1, y1))
        right, down = x1 - x0, y1 - y0
        length = math.isqrt(right * right + down * down)
        if not length:
            return
        half = thickness * _FINE // 2
        a, b = down * half // length, right * half // length
        corners = [(x0 + a, y0 - b), (x1 + a, y1 - b), (x1 - a, y1 + b), (x0 - a, y0 + b)]
        self.polygon(corners, colour, _FINE)

    def hand(
        self, x: int, y: int, half_degrees: int, length: int, colour: str, thickness: int = 2
    ) -> None:
        """Draw a line from (x, y) in a direction; see `offset`."""
        right, down = offset(half_degrees, length)
        x, y = x * _FINE, y * _FINE
        self.line(x, y, x + right, y + down, colour, thickness, _FINE)

    def text(self, x: int, y: int, words: str, colour: str = "black", scale: int = 1) -> None:
        """Draw text with its upper left corner at (x, y); small letters become capitals.

        Raises:
            ValueError: A character is not in `GLYPHS`.
        """
        for char in words.upper():
            if char not in GLYPHS:
                raise ValueError(f"the font has no {char!r}; it has {''.join(GLYPHS)}")
            for row, pixels in enumerate(GLYPHS[char]):
                for column in range(GLYPH_WIDTH):
                    if pixels >> (GLYPH_WIDTH - 1 - column) & 1:
                        self.rectangle(x + column * scale, y + row * scale, scale, scale, colour)
            x += (GLYPH_WIDTH + 1) * scale

    def centred(self, x: int, y: int, words: str, colour: str = "black", scale: int = 1) -> None:
        """Draw text with its middle at (x, y)."""
        width = ((GLYPH_WIDTH + 1) * len(words) - 1) * scale
        self.text(x - width // 2, y - GLYPH_HEIGHT * scale // 2, words, colour, scale)

    def paste(self, other: Canvas, x: int, y: int) -> None:
        """Put another picture here; all of it must fit.

        Raises:
            ValueError: It does not.
        """
        if x < 0 or y < 0 or x + other.width > self.width or y + other.height > self.height:
            raise ValueError(
                f"{other.width}x{other.height} pixels at ({x}, {y}) do not fit into "
                f"{self.width}x{self.height}"
            )
        for row, pixels in enumerate(other._rows, start=y):
            self._rows[row][x : x + other.width] = pixels

    def copy(self) -> Canvas:
        """Return a picture like this one."""
        made = Canvas(self.width, self.height)
        made.paste(self, 0, 0)
        return made

    def pixels(self) -> bytes:
        """Return red, green and blue of every pixel, row by row."""
        table = [bytes(colour) for colour in COLOURS.values()]
        return b"".join(table[index] for row in self._rows for index in row)

    def png(self) -> bytes:
        """Return the picture as a PNG file."""
        header = struct.pack(">IIBBBBB", self.width, self.height, 8, 3, 0, 0, 0)
        palette = bytes(value for colour in COLOURS.values() for value in colour)
        # A zero before every row: no filter.
        rows = zlib.compress(b"".join(b"\0" + row for row in self._rows), 3)
        chunks = ((b"IHDR", header), (b"PLTE", palette), (b"IDAT", rows), (b"IEND", b""))
        return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*chunk) for chunk in chunks)

    def image(self) -> Image:
        """Return the picture as an image of Pillow, in RGB."""
        from PIL import Image

        return Image.frombytes("RGB", (self.width, self.height), self.pixels())

    def _span(self, row: int, left: int, right: int, colour: str) -> None:
        """Fill the pixels of a row from `left` to before `right`."""
        left, right = max(left, 0), min(right, self.width)
        if left < right:
            self._rows[row][left:right] = bytes([_INDEX[colour]]) * (right - left)


def board(tiles: Iterable[Iterable[Canvas]]) -> Canvas:
    """Return tiles of one size, in rows of one length, as one picture."""
    lines: list[bytearray] = []
    for row in tiles:
        columns = [tile._rows for tile in row]
        lines += map(bytearray, map(b"".join, zip(*columns, strict=True)))
    whole = Canvas(0, 0)
    whole.width, whole.height, whole._rows = len(lines[0]), len(lines), lines
    return whole


def tokens(width: int, height: int, cell: int = CELL) -> int:
    """Return how many tokens a picture is for a model that sees patches of `cell` by `cell`."""
    return -(-width // cell) * -(-height // cell)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

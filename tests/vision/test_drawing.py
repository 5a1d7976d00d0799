"""The renderer: integer shapes, the font, PNG files, the same pixels on every machine."""

from __future__ import annotations

import io
import math
import subprocess
import sys
from hashlib import blake2b

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from gem_vision import drawing
from gem_vision.drawing import COLOURS, GLYPHS, Canvas, board, offset, tokens


def array(canvas: Canvas) -> np.ndarray:
    return np.frombuffer(canvas.pixels(), np.uint8).reshape(canvas.height, canvas.width, 3)


def drawn(canvas: Canvas, colour: str) -> np.ndarray:
    """Where the pixels of a colour are."""
    return (array(canvas) == COLOURS[colour]).all(axis=2)


def everything() -> Canvas:
    """A picture with all that can be drawn."""
    canvas = Canvas(224, 168)
    for place, colour in enumerate(COLOURS):
        canvas.rectangle(14 * place, 0, 14, 14, colour)
    canvas.frame(2, 16, 40, 20, "black", 3)
    canvas.disc(70, 40, 21, "red")
    canvas.polygon([(100, 20), (140, 30), (120, 60), (105, 35)], "green")
    canvas.line(150, 20, 215, 61, "blue", 5)
    for degrees in range(0, 360, 30):
        canvas.hand(40, 120, 2 * degrees, 35, "purple", 2)
    glyphs = "".join(GLYPHS)
    for line in range(4):
        canvas.text(82, 70 + 20 * line, glyphs[13 * line : 13 * line + 13], "black", 2 - line % 2)
    return canvas


def test_a_picture_with_everything_has_these_pixels_on_every_machine() -> None:
    digest = blake2b(everything().pixels(), digest_size=8).hexdigest()
    assert digest == "c98855fd242b5f9d"


def test_no_sine_is_so_near_the_middle_of_two_integers_that_machines_could_round_apart() -> None:
    for half_degrees in range(720):
        exact = drawing._LENGTH * math.sin(math.radians(half_degrees / 2))
        assert abs(exact - math.floor(exact) - 0.5) > 1e-6


def test_pillow_reads_the_png_as_the_same_pixels() -> None:
    canvas = everything()
    read = Image.open(io.BytesIO(canvas.png()))
    assert read.size == (224, 168)
    assert read.convert("RGB").tobytes() == canvas.pixels() == canvas.image().tobytes()


def test_the_file_needs_the_standard_library_alone() -> None:
    code = (
        "import sys, runpy; sys.modules.update(PIL=None, numpy=None, gem=None)\n"
        f"made = runpy.run_path({drawing.__file__!r})\n"
        "print(len(made['Canvas'](28, 28).png()))"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, check=True)
    assert int(done.stdout) > 50


@given(st.integers(1, 30), st.integers(0, 59), st.integers(0, 59))
def test_a_disc_has_the_pixels_whose_middle_is_in_the_circle(radius: int, x: int, y: int) -> None:
    canvas = Canvas(60, 60)
    canvas.disc(x, y, radius, "red")
    rows, columns = np.mgrid[0:60, 0:60] + 0.5
    inside = (rows - y) ** 2 + (columns - x) ** 2 <= radius**2
    assert (drawn(canvas, "red") == inside).all()


@given(st.lists(st.tuples(st.integers(-10, 70), st.integers(-10, 70)), min_size=3, max_size=3))
def test_a_triangle_has_the_pixels_whose_middle_is_in_it(corners: list[tuple[int, int]]) -> None:
    canvas = Canvas(60, 60)
    canvas.polygon(corners, "red")
    rows, columns = np.mgrid[0:60, 0:60] + 0.5
    sides = []
    for (x0, y0), (x1, y1) in zip(corners, corners[1:] + corners[:1], strict=True):
        sides.append((x1 - x0) * (rows - y0) - (y1 - y0) * (columns - x0))
    stacked = np.stack(sides)
    inside = (stacked > 0).all(axis=0) | (stacked < 0).all(axis=0)
    border = (stacked == 0).any(axis=0)
    assert (drawn(canvas, "red") == inside)[~border].all()


@given(*[st.integers(5, 55)] * 4, st.integers(2, 6))
def test_a_line_has_the_pixels_near_it(x0: int, y0: int, x1: int, y1: int, thick: int) -> None:
    canvas = Canvas(60, 60)
    canvas.line(x0, y0, x1, y1, "red", thick)
    length = math.hypot(x1 - x0, y1 - y0)
    if not length:
        assert not drawn(canvas, "red").any()
        return
    rows, columns = np.mgrid[0:60, 0:60] + 0.5
    along = ((columns - x0) * (x1 - x0) + (rows - y0) * (y1 - y0)) / length
    away = abs((columns - x0) * (y1 - y0) - (rows - y0) * (x1 - x0)) / length
    excess = np.maximum(np.maximum(-along, along - length), away - thick / 2)
    red = drawn(canvas, "red")
    assert red[excess < -0.1].all()
    assert not red[excess > 0.1].any()


@given(st.integers(-800, 800), st.integers(0, 100))
def test_a_hand_ends_where_trigonometry_says(half_degrees: int, length: int) -> None:
    angle = math.radians(half_degrees / 2)
    right, down = offset(half_degrees, length)
    assert right / 64 == pytest.approx(length * math.sin(angle), abs=0.05)
    assert down / 64 == pytest.approx(-length * math.cos(angle), abs=0.05)


@given(*[st.integers(-50, 50)] * 4)
def test_what_lies_outside_is_not_drawn(x: int, y: int, width: int, height: int) -> None:
    canvas, large = Canvas(20, 20), Canvas(120, 120)
    for picture, by in ((canvas, 0), (large, 50)):
        picture.rectangle(x + by, y + by, width, height, "red")
        picture.text(x + by, y + by, "A8", "blue", 2)
    assert (array(canvas) == array(large)[50:70, 50:70]).all()


def test_glyphs_differ_and_fit() -> None:
    assert len(set(GLYPHS.values())) == len(GLYPHS)
    assert all(len(rows) == 7 and max(rows) < 32 for rows in GLYPHS.values())
    with pytest.raises(ValueError, match="the font has no '~'"):
        Canvas(9, 9).text(0, 0, "~")


def test_a_board_is_its_tiles() -> None:
    red, blue = Canvas(28, 28, "red"), Canvas(28, 28, "blue")
    whole = board([[red, blue, red], [blue, red, blue]])
    pasted = Canvas(84, 56)
    for row in range(2):
        for column in range(3):
            pasted.paste((red, blue)[(row + column) % 2], 28 * column, 28 * row)
    assert whole.pixels() == pasted.pixels()
    assert tokens(whole.width, whole.height) == 6
    with pytest.raises(ValueError, match="do not fit"):
        pasted.paste(red, 57, 0)


def test_a_copy_is_another_picture() -> None:
    one = Canvas(28, 28)
    two = one.copy()
    two.rectangle(0, 0, 5, 5, "red")
    assert not drawn(one, "red").any()

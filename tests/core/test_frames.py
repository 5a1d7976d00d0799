"""Messages of workers carry all that an environment shows and says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gem.contract import scalars
from gem.executors.frames import decode_observation, encode_info, encode_observation
from gem.fingerprint import ORIENTATION, canonical


@pytest.mark.parametrize("palette", [[9, 8, 7, 200, 100, 50], []], ids=str)
@pytest.mark.parametrize("transparency", [None, 1, b"\xff\x00"], ids=str)
@pytest.mark.parametrize("orientation", [None, 6])
def test_a_picture_in_memory_arrives_as_it_looked(
    palette: list[int], transparency: Any, orientation: Any
) -> None:
    image = pytest.importorskip("PIL.Image").new("P", (2, 1))
    if palette:
        image.putpalette(palette)
    image.putpixel((1, 0), 1)
    if transparency is not None:
        image.info["transparency"] = transparency
    if orientation is not None:
        image.getexif()[ORIENTATION] = orientation
    sent: Any = [{"type": "image", "image": image}, {"type": "text", "text": "see"}]
    got: Any = decode_observation(json.loads(json.dumps(encode_observation(sent))))
    assert canonical(got) == canonical(sent)
    assert got[0]["image"].convert("RGBA").tobytes() == image.convert("RGBA").tobytes()


def test_a_colour_that_is_transparent_arrives_as_one() -> None:
    Image = pytest.importorskip("PIL.Image")  # noqa: N806
    image = Image.new("RGB", (1, 1), (1, 2, 3))
    image.info["transparency"] = (1, 2, 3)
    sent: Any = [{"type": "image", "image": image}]
    got: Any = decode_observation(json.loads(json.dumps(encode_observation(sent))))
    assert got[0]["image"].convert("RGBA").getpixel((0, 0)) == (1, 2, 3, 0)
    assert canonical(got) == canonical(sent)


def test_an_integer_that_python_does_not_write_is_left_out_as_without_workers() -> None:
    info = {"huge": 10**5000, "list": [1, 10**5000], "n": 3}
    assert json.loads(encode_info(info)) == {"list": [1], "n": 3}
    assert scalars(info) == {"n": 3}

"""The pictures of docs/vision.md are current."""

from __future__ import annotations

from pathlib import Path

import pytest
import sheets
from PIL import Image

FOLDER = Path(__file__).parents[2] / "docs" / "images"


def test_the_sheets_of_the_page_are_current() -> None:
    assert sheets.write(FOLDER, check=True) == {}


@pytest.mark.parametrize("name", ["boards.png", "visual-tasks.png"])
def test_another_pixel_is_noticed(name: str, tmp_path: Path) -> None:
    for path in FOLDER.glob("*.png"):
        with Image.open(path) as kept:
            changed = kept.convert("RGB")
        if path.name == name:
            changed.putpixel((5, 5), (1, 2, 3))
        changed.save(tmp_path / path.name)
    assert set(sheets.write(tmp_path, check=True)) == {name}

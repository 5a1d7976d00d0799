"""The pages about the environments: complete, current, and a function of the code alone."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Any

import catalogue
import pytest

import gem
from gem.envs.games.guess_the_number import GuessTheNumber
from gem.errors import MissingExtraError

PAGES = Path(__file__).parents[2] / "docs" / "envs"
# Fast ones; CI compares whole pages.
SECTIONS = ("game:GuessTheNumber-v0", "game:Mastermind-v0", "game:Wordle-v0", "game:Hangman-v0")
GAMES = ("multi:Nim-v0", "multi:KuhnPoker-v0", "multi:RockPaperScissors-v0")


@pytest.mark.parametrize("prefix", SECTIONS)
def test_the_section_of_a_game_is_current(prefix: str) -> None:
    text = catalogue.section(gem.list_envs(prefix))
    assert text in (PAGES / "game.md").read_text(encoding="utf-8"), "run make docs"


@pytest.mark.parametrize("id", GAMES)
def test_the_section_of_a_game_of_several_agents_is_current(id: str) -> None:
    assert catalogue.section([id]) in (PAGES / "multi.md").read_text(encoding="utf-8")


def test_every_built_in_id_is_in_the_page_of_its_family() -> None:
    families = catalogue.families()
    pages = {f"{family}.md" for family in families} | {catalogue.INDEX}
    assert pages == {path.name for path in PAGES.iterdir()}
    for family, ids in families.items():
        listed = re.findall(r"^\| `([^`]+:[^`]+)` \|", (PAGES / f"{family}.md").read_text(), re.M)
        assert sorted(listed) == ids


def test_the_index_of_the_pages_is_current() -> None:
    assert (PAGES / catalogue.INDEX).read_text(encoding="utf-8") == catalogue.index()


def test_the_readme_counts_the_built_in_ids() -> None:
    count = sum(map(len, catalogue.families().values()))
    assert f"**{count} environments**" in (PAGES.parents[1] / "README.md").read_text()


def test_no_page_shows_what_another_run_would_show_otherwise() -> None:
    folders = (PAGES.parents[1], Path(tempfile.gettempdir()), Path.home())
    machine = "|".join(re.escape(f"{path}{os.sep}") for path in folders if path.name)
    for path in PAGES.iterdir():
        assert not re.search(rf"0x[0-9a-f]{{6,}}|{machine}", path.read_text()), path.name


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry with one family of two ids."""
    gem.list_envs()
    monkeypatch.setattr("gem.registry._registry", {})
    gem.register("logic:A-v0", GuessTheNumber, max_number=9)
    gem.register("logic:A-v0-easy", GuessTheNumber, max_number=3)


def test_a_page_tells_ids_parameters_scores_and_an_episode(registry: None) -> None:
    text = catalogue.page("logic", ["logic:A-v0", "logic:A-v0-easy"])
    assert text.startswith("# Logic\n")
    assert "\n## GuessTheNumber\n\nA secret number, uniform" in text
    assert "\nRewards: 1.0 for the exact number" in text
    assert "Attributes:" not in text
    row = re.escape("| `logic:A-v0-easy` | `max_number=3` | ")
    assert re.search(row + r"1\.00 \(1\.00\) \| 1\.00 \(1\.00\) \| 16 \|", text)
    assert '| `hint` | `\'direction\'` | `"direction"` says higher or lower; `"range"` also' in text
    # What the class leaves to its base class is told by the base class.
    assert re.search(r"\| `format_error_ends` \| `True` \| Whether an action without", text)
    assert "Seed 0 of `logic:A-v0`, played by the oracle:\n\n```text\nYou are playing" in text
    assert "[reward 1 terminated, won]" in text


def test_writing_twice_gives_the_same_page_and_a_change_is_noticed(
    registry: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert catalogue.main([str(tmp_path)]) == 0
    assert catalogue.main([str(tmp_path), "--check"]) == 0
    page = tmp_path / "logic.md"
    page.write_text(page.read_text() + "more\n")
    assert catalogue.main([str(tmp_path), "--check"]) == 1
    assert capsys.readouterr().err == f"{page} is not current; run make docs\n"
    gem.register("logic:B-v0", GuessTheNumber)
    assert catalogue.main([str(tmp_path)]) == 0
    assert "`logic:B-v0`" in page.read_text()


def test_a_page_that_cannot_be_written_here_is_named_and_left_alone(
    registry: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def lacks_an_extra(**parameters: Any) -> GuessTheNumber:
        raise MissingExtraError("pip install 'gem-core[math]'")

    gem.register("math:C", lacks_an_extra)
    (tmp_path / "math.md").write_text("as it was")
    assert catalogue.main([str(tmp_path)]) == 1
    assert "math.md cannot be written here: pip install" in capsys.readouterr().err
    assert (tmp_path / "math.md").read_text() == "as it was"
    assert (tmp_path / "logic.md").exists()


def test_long_episodes_are_shortened_in_the_middle() -> None:
    text = catalogue.section(["game:GuessTheNumber-v0"])
    turns = re.findall(r"^At turn (\d+)|^Congrat.* in (\d+) turns\.$", text, re.M)
    assert [int(a or b) for a, b in turns] == [1, 2, 3, 5]
    assert "... 1 turn left out ..." in text


def test_text_with_fences_of_its_own_is_fenced_by_more() -> None:
    assert catalogue._fenced("a\n```python\nb\n```") == "````text\na\n```python\nb\n```\n````"

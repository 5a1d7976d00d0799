"""WordSearch: the rules, grids that hide the listed words and no others, the oracle."""

from __future__ import annotations

import random
from typing import Any

import pytest

import gem
from gem.envs.games.word_search import Segment, WordSearch, generate, vocabulary
from gem.errors import ConfigurationError

PLACES = {Segment(0, 0, 0, 3): "MARE", Segment(0, 2, 3, 2): "RING", Segment(4, 0, 4, 3): "TOAD"}
GRID = ("MAREQ", "QQIQQ", "QQNQQ", "QQGQQ", "TOADQ")


def make(env_id: str, **parameters: Any) -> Any:
    return gem.make(env_id, **parameters)


def started(**parameters: Any) -> WordSearch:
    """Return a game with MARE across, RING down from its R, and TOAD in the last row."""
    env = WordSearch(num_words=3, **parameters)
    env.reset(seed=0)
    env._set_up(GRID, PLACES)
    return env


def move(env: Any, content: str) -> Any:
    return env.step(f"\\boxed{{{content}}}")


def lines_of(grid: tuple[str, ...]) -> list[tuple[list[tuple[int, int]], str]]:
    """Return the cells and the letters of every row and column."""
    side = range(len(grid))
    lines = [[(r, c) for c in side] for r in side] + [[(r, c) for r in side] for c in side]
    return [(line, "".join(grid[r][c] for r, c in line)) for line in lines]


def spelled(grid: tuple[str, ...], words: list[str]) -> list[tuple[str, list[tuple[int, int]]]]:
    """Return every occurrence of the words: the word and its cells."""
    found = []
    for cells, text in lines_of(grid):
        for word in words:
            at = text.find(word)
            while at >= 0:
                found.append((word, cells[at : at + len(word)]))
                at = text.find(word, at + 1)
    return found


def test_found_words_are_marked_and_counted() -> None:
    env = started()
    observation, reward, terminated, _, info = move(env, "0, 2 3 2")
    assert observation == (
        "At turn 1, you tried (0, 2) to (3, 2), which is the hidden word RING.\n"
        "    C00 C01 C02 C03 C04\n"
        "R00  M   A  [R]  E   Q\n"
        "R01  Q   Q  [I]  Q   Q\n"
        "R02  Q   Q  [N]  Q   Q\n"
        "R03  Q   Q  [G]  Q   Q\n"
        "R04  T   O   A   D   Q\n"
        "Words Found: 1/3\n"
        "Enter your move."
    )
    assert (reward, terminated, info["success"]) == (1 / 3, False, False)
    assert "\nR00 [M] [A] [R] [E]  Q\n" in move(env, "0 0 0 3")[0]


def test_words_count_from_either_end_and_the_last_one_wins() -> None:
    env = started()
    steps = [move(env, content) for content in ("3 2 0 2", "0 3 0 0", "4 3 4 0")]
    assert [step[1] for step in steps] == [1 / 3] * 3
    assert [step[2] for step in steps] == [False, False, True]
    assert steps[-1][0].startswith("Congratulations! You found all 3 words in 3 turns.\n")
    assert "R04 [T] [O] [A] [D]  Q\nWords Found: 3/3" in steps[-1][0]
    assert steps[-1][4]["success"]


@pytest.mark.parametrize(
    ("content", "text", "invalid"),
    [
        ("0 0 0 5", "but rows and columns go from 0 to 4.", True),
        ("-1 0 0 3", "but rows and columns go from 0 to 4.", True),
        ("1 0 1 3", "which has been already tried before.", True),
        ("0 0 3 3", "which is neither across nor down.", True),
        ("3 2 0 2", "which is RING that you found already.", True),
        ("0 0 0 2", "which is not a hidden word.", False),
        ("0 0 0 0", "which is not a hidden word.", False),
    ],
)
def test_everything_else_costs_a_turn(content: str, text: str, invalid: bool) -> None:
    env = started()
    move(env, "1 0 1 3")
    move(env, "0 2 3 2")
    observation, reward, terminated, truncated, info = move(env, content)
    assert text in observation
    assert (reward, terminated, truncated, info["invalid_action"]) == (0.0, False, False, invalid)
    assert "Words Found: 1/3" in observation


@pytest.mark.parametrize("content", ["0 0 0", "0 0 0 3 1", "0 0 0 x", "MARE", "(0,0) (0,3)"])
def test_what_is_not_four_numbers_is_a_format_error(content: str) -> None:
    assert move(started(), content)[4]["format_error"]


def test_the_words_are_listed_unless_the_player_is_to_guess_them() -> None:
    for show in (True, False):
        env = make("game:WordSearch-v0-hard", show_words=show)
        observation, _ = env.reset(seed=0)
        assert len(env.words) == 5
        assert all((word in observation) == show for word in env.words)
        assert f"within {env.max_turns} turns" in observation


@pytest.mark.parametrize("hardcore", [False, True])
@pytest.mark.parametrize("num_words", [1, 5, 20])
def test_grids_spell_the_hidden_words_once_and_no_other_words(
    hardcore: bool, num_words: int
) -> None:
    low, high = (7, 12) if hardcore else (4, 7)
    for seed in range(6 if num_words == 5 else 2):
        grid, places = generate(random.Random(seed), num_words, hardcore)
        words = list(places.values())
        assert len(set(words)) == num_words
        assert all(low <= len(word) <= high and word in vocabulary(hardcore) for word in words)
        assert not any(a in b for a in words for b in words if a != b)
        assert {len(row) for row in grid} == {len(grid)}
        assert len(grid) >= round(1.5 * max(map(len, words)))
        hidden = {word: set(segment.cells()) for segment, word in places.items()}
        occurrences = spelled(grid, words)
        assert sorted(word for word, _ in occurrences) == sorted(words)
        assert all(set(cells) == hidden[word] for word, cells in occurrences)
        # Whatever else the vocabulary finds lies within one of the hidden words.
        text = " ".join(letters for _, letters in lines_of(grid))
        others = [word for word in vocabulary(hardcore) if word in text]
        for _, cells in spelled(grid, others):
            assert any(set(cells) <= place for place in hidden.values())


def test_words_that_share_cells_cross() -> None:
    crossings = 0
    for seed in range(40):
        _, places = generate(random.Random(seed), 8, False)
        every = list(places)
        for i, one in enumerate(every):
            for other in every[:i]:
                shared = set(one.cells()) & set(other.cells())
                assert len(shared) <= 1
                if shared:
                    assert (one.start_row == one.end_row) != (other.start_row == other.end_row)
                    crossings += 1
    assert crossings > 0


def test_words_are_drawn_from_the_whole_list() -> None:
    seen = {
        word for seed in range(200) for word in generate(random.Random(seed), 5, False)[1].values()
    }
    # 1,000 draws from about 5,700 words repeat some 8 % of them.
    assert len(seen) > 850
    assert {len(word) for word in seen} == {4, 5, 6, 7}


@pytest.mark.parametrize("show_words", [True, False])
@pytest.mark.parametrize("suffix", ["-easy", "-hard"])
def test_the_oracle_takes_one_turn_a_word(suffix: str, show_words: bool) -> None:
    env = make(f"game:WordSearch-v0{suffix}", show_words=show_words, max_turns=5)
    for seed in range(15):
        env.reset(seed=seed)
        steps = [env.step(env.oracle_action()) for _ in range(5)]
        assert [step[2] for step in steps] == [False] * 4 + [True]
        assert sum(step[1] for step in steps) == pytest.approx(1.0)


def test_random_moves_are_legal_as_long_as_one_is() -> None:
    env = started()
    side = range(5)
    for line in side:
        for start in side:
            for end in side:
                env.tried |= {(line, start, line, end), (start, line, end, line)}
    env.tried.remove((2, 1, 2, 4))
    assert env.sample_random_action() == "\\boxed{2 1 2 4}"
    env.tried.add((2, 1, 2, 4))
    assert env.sample_random_action().startswith("\\boxed{")


def test_environments_share_the_word_lists() -> None:
    env = make("game:WordSearch-v0-hard")
    env.reset(seed=0)
    assert vocabulary(True) is vocabulary(True)
    assert len(vocabulary(True)) > 5_000
    # The generator's state is nearly half of it.
    assert len(env.snapshot()) < 8_000


def test_an_open_list_is_drawn_at_every_reset() -> None:
    env = make("game:WordSearch-v0-random")
    seen = set()
    for seed in range(12):
        env.reset(seed=seed)
        seen.add(env.hardcore)
        assert all(word in vocabulary(env.hardcore) for word in env.words)
    assert seen == {False, True}


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"hardcore": 1}, "hardcore must be True or False, got 1"),
        ({"num_words": 0}, "num_words must be an integer from 1 to 20, got 0"),
        ({"num_words": None}, "num_words .*got None"),
        ({"max_turns": 0}, "max_turns .*got 0"),
        ({"show_words": "yes"}, "show_words .*got 'yes'"),
    ],
)
def test_impossible_parameters_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make("game:WordSearch-v0", **parameters)


def test_too_few_turns_are_admitted_by_the_oracle() -> None:
    assert WordSearch(num_words=5, max_turns=5).oracle_success == 1.0
    assert WordSearch(num_words=6, max_turns=5).oracle_success == 0.0

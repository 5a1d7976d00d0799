"""Visual tasks: the answer is what somebody else reads off the picture's pixels."""

from __future__ import annotations

import io
import itertools
import math
from collections import Counter
from hashlib import blake2b
from typing import Any

import numpy as np
import pytest
from PIL import Image

import gem
from gem.core import Observation
from gem.errors import ConfigurationError
from gem_check import check_env
from gem_vision.drawing import CELL, COLOURS
from gem_vision.tasks.puzzles import Grid, Path, Rotation
from gem_vision.tasks.reading import Angle, Bars, Clock
from gem_vision.tasks.shapes import Colour, Compare, Count

IDS = gem.list_envs("image:")
SEEDS = range(25)
HASHES: dict[str, str] = {
    "image:Angle-v0": "9ff40b988bb957e6",
    "image:Angle-v0-easy": "f3fe771739eb7aa1",
    "image:Angle-v0-hard": "5771ba0ae377e740",
    "image:Bars-v0": "a9648354931aba9c",
    "image:Bars-v0-easy": "5579a2be098be848",
    "image:Bars-v0-hard": "080d3cbc441d8c76",
    "image:Clock-v0": "715c9eb31c79cfd7",
    "image:Clock-v0-easy": "b85676493661fed4",
    "image:Clock-v0-hard": "fc9da86646017784",
    "image:Colour-v0": "1caab16e0dd91374",
    "image:Colour-v0-easy": "ed85d210965afd93",
    "image:Colour-v0-hard": "32fcdd66bf034a83",
    "image:Compare-v0": "9347d81cd51c19f0",
    "image:Compare-v0-easy": "478875e1bfc044d5",
    "image:Compare-v0-hard": "4bad0152dc5ca1ae",
    "image:Count-v0": "eda74006dbd8b7d6",
    "image:Count-v0-easy": "0b8d9c0466bb2b6f",
    "image:Count-v0-hard": "19f10429995dfdec",
    "image:Grid-v0": "f9dfa04f1ee5d46f",
    "image:Grid-v0-easy": "3165b003025aaf7d",
    "image:Grid-v0-hard": "be96adbe840e74c2",
    "image:Path-v0": "219fafd8b48e2e65",
    "image:Path-v0-easy": "41394a9214427882",
    "image:Path-v0-hard": "519b3566ceebfb78",
    "image:Rotation-v0": "b7ac6bdb57e4ce30",
    "image:Rotation-v0-easy": "8d327e94288443ca",
    "image:Rotation-v0-hard": "9175ad041a355524",
}


def begun(env: Any, seed: int) -> np.ndarray:
    """Begin an episode; return its picture as rows of RGB."""
    observation, _ = env.reset(seed=seed)
    return pixels(observation)


def pixels(observation: Observation) -> np.ndarray:
    assert not isinstance(observation, str)
    [png] = [part["image"] for part in observation if part["type"] == "image"]
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def where(picture: np.ndarray, colour: str) -> np.ndarray:
    return (picture == COLOURS[colour]).all(axis=2)


def areas(mask: np.ndarray) -> list[int]:
    """Sizes of the connected areas of a mask, by flood fill."""
    left = set(zip(*np.nonzero(mask), strict=True))
    found = []
    while left:
        queue = [left.pop()]
        for y, x in queue:
            for near in ((y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)):
                if near in left:
                    left.remove(near)
                    queue.append(near)
        found.append(len(queue))
    return found


def test_there_are_nine_generators_of_three_levels() -> None:
    assert len(IDS) == 27
    assert {id.rpartition("-v0")[2] for id in IDS} == {"", "-easy", "-hard"}


@pytest.mark.parametrize("id", IDS)
def test_pixels_are_these_on_every_machine_and_sides_are_patches(id: str) -> None:
    digest, env = blake2b(digest_size=8), gem.make(id)
    for seed in range(3):
        picture = begun(env, seed)
        assert [side % CELL for side in picture.shape[:2]] == [0, 0]
        digest.update(picture.tobytes() + env.answer.encode())
    assert digest.hexdigest() == HASHES[id]


@pytest.mark.parametrize("id", IDS)
def test_the_oracle_wins_and_a_wrong_answer_gets_nothing(id: str) -> None:
    env = gem.make(id)
    for seed in SEEDS:
        env.reset(seed=seed)
        right = env.oracle_action()
        told, reward, terminated, truncated, info = env.step(right)
        assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)
        assert isinstance(told, str)
        env.reset(seed=seed)
        wrong = next(f"\\boxed{{{a}}}" for a in env._guesses() if a != env.answer)
        told, reward, *_, info = env.step(wrong)
        assert reward == 0.0 and not info["success"]
        assert env.answer in told


@pytest.mark.parametrize("id", [id for id in IDS if id.endswith("-v0")])
def test_answers_vary_and_the_text_does_not_tell_them(id: str) -> None:
    env = gem.make(id)
    by_text: dict[str, Counter[str]] = {}
    for seed in range(300):
        observation, _ = env.reset(seed=seed)
        by_text.setdefault(observation[0]["text"], Counter())[env.answer] += 1
    # The best that a policy can do which reads the text alone.
    blind = sum(max(answers.values()) for answers in by_text.values() if answers.total() > 9)
    seen = sum(answers.total() for answers in by_text.values() if answers.total() > 9)
    assert seen > 60
    assert blind / seen < 0.6


@pytest.mark.nightly
@pytest.mark.parametrize("id", [id for id in IDS if id.endswith("-v0")])
def test_the_checker_finds_nothing(id: str) -> None:
    report = check_env(id, episodes=12)
    assert report.passed, report


def test_count_is_the_number_of_coloured_areas() -> None:
    env = Count(side=6, max_targets=10, max_distractors=0)
    for seed in SEEDS:
        picture = begun(env, seed)
        assert len(areas((picture != 255).any(axis=2))) == int(env.answer)


def test_count_does_not_count_what_looks_alike() -> None:
    env = Count(side=8, max_targets=5, max_distractors=30)
    for seed in SEEDS:
        picture = begun(env, seed)
        colour = env.question.split()[2]
        # Shapes touch no others: the areas of a colour are the shapes of that colour.
        assert len(areas(where(picture, colour))) >= int(env.answer)


def test_the_colour_is_the_only_one_in_the_picture() -> None:
    env = Colour(shapes=1)
    for seed in SEEDS:
        picture = begun(env, seed)
        [colour] = [each for each in env.words if where(picture, each).any()]
        assert env.answer == colour


def test_the_shape_that_is_asked_for_is_told_from_others_by_its_area() -> None:
    env = Colour(shapes=4)
    for seed in SEEDS:
        picture = begun(env, seed)
        full = {"square": 1.0, "circle": math.pi / 4, "triangle": 0.5, "diamond": 0.5}
        of_kind = full[env.question.split()[-1].strip("?")]
        # A quarter of the picture has one shape. Its share of its box is near that of its kind.
        quarters = [q for half in np.split(picture, 2) for q in np.split(half, 2, axis=1)]
        shares = []
        for quarter in quarters:
            mask = (quarter != 255).any(axis=2)
            rows, columns = np.nonzero(mask)
            box = (np.ptp(rows) + 1) * (np.ptp(columns) + 1)
            colour = next(each for each in env.words if where(quarter, each).any())
            shares.append((mask.sum() / box, colour))
        assert env.answer in [c for share, c in shares if abs(share - of_kind) < 0.08]


@pytest.mark.parametrize("margin", [1, 5])
def test_compare_is_the_colour_of_the_largest_or_smallest_area(margin: int) -> None:
    env = Compare(shapes=5, distractors=0, margin=margin)
    for seed in SEEDS:
        picture = begun(env, seed)
        sizes = {c: where(picture, c).sum() for c in env.words if where(picture, c).any()}
        assert len(sizes) == 5
        best = max if "largest" in env.question else min
        assert env.answer == best(sizes, key=lambda colour: sizes[colour])


def test_a_clock_s_hands_point_to_the_time() -> None:
    env = Clock(multiple_of=1, numerals=False)
    for seed in SEEDS:
        picture = begun(env, seed)
        rows, columns = np.nonzero(where(picture, "blue"))
        far = np.argmax(np.hypot(rows - 84, columns - 84))
        angle = math.degrees(math.atan2(columns[far] - 83.5, 83.5 - rows[far])) % 360
        hour, minute = map(int, env.answer.split(":"))
        assert abs((angle / 6 - minute + 30) % 60 - 30) < 0.6
        # Of the thick hand: the middle of its black pixels beyond the hub.
        rows, columns = np.nonzero(where(picture, "black"))
        ring = np.hypot(rows - 83.5, columns - 83.5)
        hand = (ring > 15) & (ring < 32)
        if hand.sum() > 30:
            pointing = math.atan2((columns[hand] - 83.5).mean(), (83.5 - rows[hand]).mean())
            shown = (math.degrees(pointing) % 360) / 30
            assert abs((shown - hour - minute / 60 + 6) % 12 - 6) < 0.2


@pytest.mark.parametrize("difference", [False, True])
def test_bars_are_as_high_as_their_values(difference: bool) -> None:
    env = Bars(bars=6, highest=20, tick=5, difference=difference)
    for seed in SEEDS:
        picture = begun(env, seed)

        def value(name: str, picture: np.ndarray = picture) -> int:
            column = picture[14:182, CELL * ("ABCDEF".index(name) + 1) + 14]
            colour = column[-1]
            return int((column == colour).all(axis=1).sum()) // (6 * CELL // 20)

        names = [word.strip("?") for word in env.question.split() if word.strip("?") in "ABCDEF"]
        values = [value(name) for name in names]
        assert int(env.answer) == (values[0] - values[1] if difference else values[0])


def test_an_angle_is_between_the_two_black_lines() -> None:
    env = Angle(multiple_of=5, distractors=2)
    for seed in SEEDS:
        picture = begun(env, seed)
        rows, columns = np.nonzero(where(picture, "black"))
        far = np.hypot(rows - 83.5, columns - 83.5) > 60
        turned = np.degrees(np.arctan2(columns[far] - 83.5, 83.5 - rows[far])) % 360
        first = turned[0]
        near = np.abs((turned - first + 180) % 360 - 180) < 2.4
        other = turned[~near]
        middles = [
            math.degrees(math.atan2(*(f(np.radians(each)).mean() for f in (np.sin, np.cos))))
            for each in (turned[near], other)
        ]
        between = abs((middles[0] - middles[1] + 180) % 360 - 180)
        assert between == pytest.approx(int(env.answer), abs=1.5)


def test_a_way_is_as_long_as_in_the_graph_that_is_drawn() -> None:
    env = Path(nodes=8, extra_edges=3)
    places = [
        (112 + 96 * math.sin(math.tau * n / 8), 112 - 96 * math.cos(math.tau * n / 8))
        for n in range(8)
    ]
    for seed in SEEDS:
        dark = where(begun(env, seed), "dark")
        steps = np.where(np.eye(8, dtype=bool), 0.0, np.inf)
        for a, b in itertools.combinations(range(8), 2):
            (x0, y0), (x1, y1) = places[a], places[b]
            along = np.linspace(0.2, 0.8, 60)
            hits = []
            for t in along:
                x, y = round(x0 + t * (x1 - x0)), round(y0 + t * (y1 - y0))
                hits.append(dark[y - 1 : y + 2, x - 1 : x + 2].any())
            if all(hits):
                steps[a, b] = steps[b, a] = 1
        for node in range(8):
            steps = np.minimum(steps, steps[:, [node]] + steps[[node], :])
        start, end = (word for word in env.question.split() if word in "ABCDEFGH")
        assert steps["ABCDEFGH".index(start), "ABCDEFGH".index(end)] == int(env.answer)


def squares(picture: np.ndarray, colour: str) -> np.ndarray:
    """Read a shape of squares of 13 pixels as zeros and ones."""
    mask = where(picture, colour)
    rows, columns = (np.flatnonzero(mask.any(axis=axis)) for axis in (1, 0))
    return mask[rows[0] + 6 : rows[-1] + 1 : 13, columns[0] + 6 : columns[-1] + 1 : 13]


@pytest.mark.parametrize("mirrored", [False, True])
def test_the_right_shape_is_the_only_one_that_can_be_turned_into_the_first(mirrored: bool) -> None:
    env = Rotation(squares=6, mirrored=mirrored)
    for seed in SEEDS:
        picture = begun(env, seed)
        first = squares(picture[:84], "black")
        assert first.sum() == 6
        turned = [np.rot90(first, k) for k in range(4)]
        right = []
        for place, letter in enumerate("ABCD"):
            option = squares(picture[84:, 84 * place : 84 * place + 84], "blue")
            assert option.sum() == 6
            if any(option.shape == t.shape and (option == t).all() for t in turned):
                right.append(letter)
        assert right == [env.answer]


@pytest.mark.parametrize(("size", "empty"), [(3, 4), (4, 8)])
def test_a_grid_has_one_colour_for_the_cell_that_is_asked_for(size: int, empty: int) -> None:
    env = Grid(size=size, empty=empty)
    rows = list(itertools.permutations(range(size)))
    for seed in range(10):
        picture = begun(env, seed)
        side = picture.shape[0] // size
        corner = picture[3::side, 3::side]
        cells = [
            [
                next((i for i, c in enumerate(env.words) if tuple(pixel) == COLOURS[c]), None)
                for pixel in row
            ]
            for row in corner
        ]
        marks = [
            where(picture[y : y + side, x : x + side], "black")[4:-4, 4:-4].any()
            for y, x in itertools.product(range(0, side * size, side), repeat=2)
        ]
        asked = divmod(marks.index(True), size)
        fitting = [
            [r for r in rows if all(c in (None, v) for c, v in zip(line, r, strict=True))]
            for line in cells
        ]
        found = {
            grid[asked[0]][asked[1]]
            for grid in itertools.product(*fitting)
            if all(len(set(column)) == size for column in zip(*grid, strict=True))
        }
        assert found == {env.words.index(env.answer)}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Count(side=2, max_targets=3, max_distractors=2), "at most side \\* side"),
        (lambda: Grid(size=3, empty=10), "at most size \\* size"),
        (lambda: Clock(multiple_of=7), "multiple_of must be one of"),
        (lambda: Bars(bars=9), "bars must be"),
        (lambda: Angle(multiple_of=90), "multiple_of must be one of"),
        (lambda: Path(nodes=2), "nodes must be"),
        (lambda: Rotation(squares=3), "squares must be"),
        (lambda: Compare(shapes=7), "shapes must be"),
        (lambda: Colour(shapes=5), "shapes must be"),
        (lambda: Colour(colours=1), "colours must be"),
    ],
)
def test_a_parameter_that_cannot_be_is_refused_by_name(make: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        make()

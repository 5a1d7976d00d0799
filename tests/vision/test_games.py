"""Boards of games as pictures: the same game in every modality, and no board in the text."""

from __future__ import annotations

import io
from collections import defaultdict
from hashlib import blake2b
from typing import Any

import pytest
from PIL import Image

import gem
from gem.core import Observation
from gem.envs.games.sokoban import Sokoban
from gem.envs.multi.boards import TicTacToe
from gem.errors import ConfigurationError, MissingExtraError
from gem.fingerprint import canonical
from gem.pictures import painter
from gem.seeding import env_seed
from gem.vector import make_vec
from gem_vision.drawing import CELL, tokens

GAMES = {
    "game:FifteenPuzzle-v0-hard": "f2cfc1c90e1931f6",
    "game:Game2048-v0": "bbc6cd61829965e2",
    "game:Maze-v0": "925ae90fa5fb5dac",
    "game:Minesweeper-v0": "1fa8cbeb1ee4096c",
    "game:Sokoban-v0": "e72adc4dd4551c1c",
    "game:Sudoku-v0": "dec5318c284a8c7e",
    "game:TowerofHanoi-v0": "7f62e20890206c2b",
    "multi:ConnectFour-v0": "e22c56bb65545eb6",
    "multi:TicTacToe-v0": "fce06f10ebbe9c9a",
}
"""Ids, and the hash of the pixels of the first boards of an episode."""


HANOI = "game:TowerofHanoi-v0"


def text(observation: Observation) -> str:
    assert not isinstance(observation, str)
    return "\n".join(part["text"] for part in observation if part["type"] == "text")


def picture(observation: Observation) -> bytes:
    assert not isinstance(observation, str)
    [found] = [part["image"] for part in observation if part["type"] == "image"]
    return bytes(found)


def pixels(png: bytes) -> Image.Image:
    return Image.open(io.BytesIO(png)).convert("RGB")


def inner(env: Any) -> Any:
    """The game itself, also of a seat."""
    return getattr(env.unwrapped, "game", env.unwrapped)


def played(env: Any, seed: int, turns: int) -> list[Any]:
    """Observations, and rewards and flags, of an episode; every third action is random."""
    observation, _ = env.reset(seed=seed)
    seen = [(observation, None)]
    for turn in range(turns):
        action = env.sample_random_action() if turn % 3 == 0 else env.oracle_action()
        observation, *rest = env.step(action)
        seen.append((observation, (action, *rest)))
        if rest[1] or rest[2]:
            break
    return seen


@pytest.mark.parametrize("id", GAMES)
def test_the_same_seed_is_the_same_game_in_every_modality(id: str) -> None:
    how = inner(gem.make(id, modality="image"))._painter.how_to_read
    how = how or "nothing is said of it"
    for seed in range(3):
        episodes = [
            played(gem.make(id, modality=modality), seed, 20)
            for modality in ("text", "image", "both")
        ]
        for (words, facts), (image, same), (both, again) in zip(*episodes, strict=True):
            assert facts == same == again
            assert isinstance(words, str)
            assert picture(image) == picture(both)
            # `both` says what `text` says, and how to read the picture.
            assert text(both).replace(f"\n{how}", "") == words
            assert len(text(image)) < len(words)


@pytest.mark.parametrize("id", GAMES)
def test_pixels_are_these_on_every_machine_and_cells_are_patches(id: str) -> None:
    digest = blake2b(digest_size=8)
    for observation, _ in played(gem.make(id, modality="image"), 1, 12):
        image = pixels(picture(observation))
        assert image.width % CELL == image.height % CELL == 0
        digest.update(image.tobytes())
    assert digest.hexdigest() == GAMES[id]


@pytest.mark.parametrize("id", [*GAMES, *gem.list_envs("image:"), "game:Maze-v0-easy"])
def test_the_processor_of_qwen2_5_vl_makes_a_token_of_each_patch(id: str) -> None:
    """Nothing is rescaled on the way to the model."""
    module = "transformers.models.qwen2_vl.image_processing_pil_qwen2_vl"
    processor = pytest.importorskip(module).Qwen2VLImageProcessorPil()
    env = gem.make(id) if id.startswith("image:") else gem.make(id, modality="image")
    image = pixels(picture(env.reset(seed=0)[0]))
    [(frames, down, right)] = processor(images=[image], return_tensors="np")["image_grid_thw"]
    # Four patches of the processor are merged into a token.
    assert frames * down * right // 4 == tokens(*image.size)


@pytest.mark.parametrize("id", sorted(GAMES.keys() - {HANOI}))
def test_different_boards_have_the_same_text(id: str) -> None:
    """A policy that reads the text alone cannot tell them apart."""
    seat = {"seat": "o", "opponent": "random"} if id.startswith("multi:") else {}
    env = gem.make(id, modality="image", **seat)
    boards: dict[Any, set[bytes]] = defaultdict(set)
    firsts = set()
    for seed in range(40):
        observation, _ = env.reset(seed=seed)
        firsts.add(text(observation))
        # What the policy has read and done so far.
        history: tuple[str, ...] = (text(observation),)
        boards[history].add(picture(observation))
        for _ in range(4):
            action = env.oracle_action()
            observation, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                break
            history = (*history, action, text(observation))
            boards[history].add(picture(observation))
    assert len(firsts) == 1
    assert max(map(len, boards.values())) > 1


def test_the_turns_of_hanoi_do_not_tell_its_pegs() -> None:
    """Every start is alike, so that only moves tell boards apart; the answers to them do not."""
    shown = set()
    for move in ("A B", "A C"):
        env = gem.make(HANOI, modality="image")
        env.reset(seed=0)
        env.step(f"\\boxed{{{move}}}")
        observation, *_ = env.step("\\boxed{A A}")
        shown.add((text(observation), picture(observation)))
    assert len({said for said, _ in shown}) == 1
    assert len({board for _, board in shown}) == 2


@pytest.mark.parametrize("id", GAMES)
def test_the_text_beside_an_image_has_no_line_of_the_board(id: str) -> None:
    env = gem.make(id, modality="image")
    game = inner(env)
    observation, _ = env.reset(seed=0)
    for _ in range(12):
        board = game._view("x") if id.startswith("multi:") else game._board()
        lines = {line.strip() for line in board.splitlines()} - {"Current board:"}
        assert not any(line in text(observation) for line in lines), text(observation)
        observation, _, terminated, truncated, _ = env.step(env.oracle_action())
        if terminated or truncated:
            break


def test_no_text_names_moves_of_the_other_player() -> None:
    for id in ("multi:TicTacToe-v0", "multi:ConnectFour-v0"):
        env = gem.make(id, modality="image", seat="o")
        for observation, _ in played(env, 3, 20):
            said = text(observation)
            assert " plays " not in said and "Legal moves" not in said


def test_the_last_observation_shows_the_end() -> None:
    env = gem.make("multi:TicTacToe-v0", modality="image", seat="x", opponent="random")
    *_, (last, (_, reward, terminated, _, info)) = played(env, 0, 9)
    assert terminated and info["success"] == (reward > 0)
    assert "The match is over" in text(last) or "wins" in text(last) or "draw" in text(last)
    assert picture(last) == env.game._painter(env.game)


def test_each_cell_of_a_board_is_one_tile_of_its_kind() -> None:
    env = Sokoban(modality="image", seed=0)
    observation, _ = env.reset()
    for _ in range(30):
        image = pixels(picture(observation))
        looks = defaultdict(set)
        for row, line in enumerate(env._board().splitlines()):
            for column, symbol in enumerate(line.split(" ")):
                x, y = CELL * column, CELL * row
                looks[symbol].add(image.crop((x, y, x + CELL, y + CELL)).tobytes())
        assert all(len(tiles) == 1 for tiles in looks.values())
        assert len({tile for tiles in looks.values() for tile in tiles}) == len(looks)
        observation, _, terminated, truncated, _ = env.step(env.oracle_action())
        if terminated or truncated:
            break


@pytest.mark.parametrize("id", GAMES)
def test_a_picture_tells_the_board(id: str) -> None:
    """What two texts tell apart, two pictures do, and nothing else."""
    env = gem.make(id, modality="image")
    game = inner(env)
    words, pictures = defaultdict(set), defaultdict(set)
    for seed in range(8):
        observation, _ = env.reset(seed=seed)
        for turn in range(15):
            board = game._view("x") if id.startswith("multi:") else game._board()
            words[picture(observation)].add(board)
            pictures[board].add(picture(observation))
            action = env.sample_random_action() if turn % 2 else env.oracle_action()
            observation, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                break
    assert len(words) > 5
    assert {len(each) for each in (*words.values(), *pictures.values())} == {1}


def test_a_snapshot_of_a_text_game_goes_on_as_a_picture() -> None:
    words, image = gem.make("game:Maze-v0"), gem.make("game:Maze-v0", modality="image")
    words.reset(seed=4)
    image.restore(words.snapshot())
    action = words.oracle_action()
    observation, *rest = image.step(action)
    assert words.step(action)[1:] == tuple(rest)
    assert picture(observation)
    assert isinstance(image.spawn(same_state=True).step(words.oracle_action())[0], list)


def test_what_is_no_modality_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="modality must be one of 'text', 'image', 'both'"):
        gem.make("game:Sokoban-v0", modality="video")


def test_a_game_without_a_painter_is_refused_by_name() -> None:
    class Chess(TicTacToe):
        pass

    class Checkers:
        pass

    assert Chess(modality="image").modality == "image"
    with pytest.raises(ConfigurationError, match="Checkers: modality='both' needs a painter"):
        painter(Checkers(), "both")


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gem.plugins.entry_points", lambda **_: ())
    with pytest.raises(MissingExtraError, match=r"Sokoban: .*pip install 'gem-core\[images\]'"):
        gem.make("game:Sokoban-v0", modality="image")
    assert isinstance(gem.make("game:Sokoban-v0").reset(seed=0)[0], str)


def test_a_model_that_plays_is_not_shown_a_picture_silently() -> None:
    env = gem.make(
        "multi:TicTacToe-v0", modality="image", seat="o", opponent="http://127.0.0.1:9/v1?model=m"
    )
    with pytest.raises(ConfigurationError, match="TicTacToe shows images"):
        env.reset(seed=0)


def test_pictures_travel_to_other_processes() -> None:
    made = {"modality": "image", "vectorization_mode": "process", "seed": 3}
    with make_vec(["game:Maze-v0"] * 2, **made) as vector:
        observations, _ = vector.reset()
    alone = gem.make("game:Maze-v0", modality="image")
    assert canonical(observations[1]) == canonical(alone.reset(seed=env_seed(3, 1))[0])

"""Fingerprints and replay: an episode is the same again, or it is said where it is not."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

import gem
from gem.core import Env, Step
from gem.envs.games.guess_the_number import GuessTheNumber
from gem.errors import ConfigurationError, MissingExtraError
from gem.fingerprint import Fingerprint, canonical, fingerprint
from gem.replay import difference
from gem.tasks import Task
from gem.trajectory import Trajectory
from gem_check.playing import play, random_policy, recorded
from gem_train.record import Recorder, read_episodes
from gem_train.testing.golden import golden_batch

EASY = "game:GuessTheNumber-v0-easy"


def episode(seed: int = 3, env_id: str = EASY, **params: Any) -> Trajectory:
    task = Task(env_id, seed, params)
    return recorded(play(task.make(), random_policy, 50, seed), task)


def test_the_fingerprint_of_this_episode_is_known() -> None:
    # Any platform, Python version and process must find the same.
    taken = episode().fingerprint
    assert taken.version == gem.__version__
    assert (taken.key, taken.outcome) == ("42c6a7e9d069e7ea12bcd4e9", "44c40282f0f7c82ef7333ba4")


def test_another_process_with_another_hash_seed_takes_the_same_fingerprint() -> None:
    code = (
        "from gem.tasks import Task\n"
        "from gem_check.playing import play, random_policy, recorded\n"
        "task = Task('game:Mastermind-v0', 8, {'code_length': 3, 'max_turns': 5})\n"
        "print(recorded(play(task.make(), random_policy, 50, 8), task).fingerprint)\n"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(filter(None, sys.path))},
        ).stdout.strip()
        for seed in ("1", "2")
    }
    here = episode(8, "game:Mastermind-v0", max_turns=5, code_length=3).fingerprint
    assert told == {str(here)}


def test_the_key_covers_the_question_and_the_outcome_the_answer() -> None:
    one = episode()
    same = fingerprint(dataclasses.replace(one, group=7, turns=list(one.turns)))
    assert same == one.fingerprint
    first, *rest = one.turns
    asked = [
        dataclasses.replace(one, task=Task(EASY, 4)),
        dataclasses.replace(one, task=Task("game:GuessTheNumber-v0", 3)),
        dataclasses.replace(one, task=Task(EASY, 3, {"hint": "range"})),
        dataclasses.replace(one, turns=[dataclasses.replace(first, text="other"), *rest]),
    ]
    for other in asked:
        taken = fingerprint(other)
        assert taken.key != one.fingerprint.key
        assert taken.outcome == one.fingerprint.outcome
    changes: list[dict[str, Any]] = [
        {"observation": "other"},
        {"reward": first.reward + 1e-9},
        {"terminated": not first.terminated},
        {"truncated": not first.truncated},
    ]
    answered = [
        dataclasses.replace(one, turns=[dataclasses.replace(first, **change), *rest])
        for change in changes
    ]
    answered.append(dataclasses.replace(one, final_observation="other"))
    for other in answered:
        taken = fingerprint(other)
        assert taken.outcome != one.fingerprint.outcome
        assert taken.key == one.fingerprint.key


def test_what_the_policy_was_made_of_has_no_part_in_it() -> None:
    one = episode()
    turn = dataclasses.replace(one.turns[0], context_ids=[1], response_ids=[2], logprobs=[-1.0])
    assert fingerprint(dataclasses.replace(one, turns=[turn, *one.turns[1:]])) == one.fingerprint


def test_every_golden_episode_keeps_its_fingerprint_in_a_record(tmp_path: Path) -> None:
    batch = golden_batch()
    Recorder(tmp_path).episodes(0, batch)
    records = list(read_episodes(tmp_path / "episodes.jsonl"))
    assert [r.fingerprint for r in records] == [t.fingerprint for t in batch]
    assert [r.trajectory.fingerprint for r in records] == [t.fingerprint for t in batch]


def test_records_from_before_there_were_fingerprints_are_read(tmp_path: Path) -> None:
    Recorder(tmp_path).episodes(0, [episode()])
    path = tmp_path / "episodes.jsonl"
    line = path.read_text()
    path.write_text(line[: line.index(',"fingerprint"')] + "}\n")
    (record,) = read_episodes(path)
    assert record.fingerprint is None


def test_a_fingerprint_is_read_back_from_its_text() -> None:
    taken = episode().fingerprint
    assert Fingerprint.parse(str(taken)) == taken
    for text in ("", "1:2", "1:2:3:4", "1::3"):
        with pytest.raises(ConfigurationError, match="<version>:<key>:<outcome>"):
            Fingerprint.parse(text)


def test_images_count_by_their_bytes(tmp_path: Path) -> None:
    file = tmp_path / "image.png"
    file.write_bytes(b"pixels")
    inside = canonical([{"type": "text", "text": "see"}, {"type": "image", "image": b"pixels"}])
    outside = canonical([{"type": "text", "text": "see"}, {"type": "image", "image": str(file)}])
    other = canonical([{"type": "text", "text": "see"}, {"type": "image", "image": b"others"}])
    assert inside == outside
    assert inside != other
    assert canonical(inside) == inside  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="a path, bytes or a PIL image, got int"):
        canonical([{"type": "image", "image": 3}])


def packed(pixels: bytes, level: int, colour: bytes = b"\0\0\0") -> bytes:
    """Return a PNG file of one row of three pixels."""
    header = b"\0\0\0\3\0\0\0\1\x08\3\0\0\0"
    rows = zlib.compress(b"\0" + pixels, level)
    # In two parts, as libraries write large images.
    parts = ((b"IHDR", header), (b"PLTE", colour), (b"IDAT", rows[:5]), (b"IDAT", rows[5:]))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")
        for kind, data in (*parts, (b"IEND", b""))
    )


def test_png_files_count_by_their_pixels_and_not_by_how_zlib_packs_them() -> None:
    def told(file: bytes) -> Any:
        return canonical([{"type": "image", "image": file}])

    assert packed(b"\0\0\0", 0) != packed(b"\0\0\0", 9)
    assert told(packed(b"\0\0\0", 0)) == told(packed(b"\0\0\0", 9))
    assert told(packed(b"\0\0\0", 0)) != told(packed(b"\0\0\1", 0))
    assert told(packed(b"\0\0\0", 0)) != told(packed(b"\0\0\0", 0, b"\0\0\1"))
    damaged = packed(b"\0\0\0", 9)[:-30]
    assert told(damaged) != told(damaged[:-1])


def test_images_in_memory_count_by_size_and_pixels() -> None:
    image = pytest.importorskip("PIL.Image")
    wide, high = image.new("L", (4, 2)), image.new("L", (2, 4))
    assert canonical([{"type": "image", "image": wide}]) == canonical(
        [{"type": "image", "image": wide.copy()}]
    )
    assert canonical([{"type": "image", "image": wide}]) != canonical(
        [{"type": "image", "image": high}]
    )
    # The same pixels look different by what else is known of them.
    red, green, clear, turned = (image.new("P", (4, 2)) for _ in range(4))
    for each, palette in ((red, [255, 0, 0]), (green, [0, 255, 0]), (clear, [255, 0, 0])):
        each.putpalette(palette)
    clear.info["transparency"] = 0
    turned.putpalette([255, 0, 0])
    turned.getexif()[0x0112] = 3
    looks = [
        str(canonical([{"type": "image", "image": each}])) for each in (red, green, clear, turned)
    ]
    assert len(set(looks)) == 4


class Seeing(GuessTheNumber):
    """Shows an image with every observation."""

    def reset(self, seed: int | None = None, **options: Any) -> Any:
        text, info = super().reset(seed=seed, **options)
        return self._seen(text), info

    def step(self, action: str) -> Step:
        text, *rest = super().step(action)
        return (self._seen(text), *rest)  # type: ignore[return-value]

    def _seen(self, text: Any) -> Any:
        image = bytes(range(256)) + str(self.turn).encode()
        return [{"type": "text", "text": text}, {"type": "image", "image": image}]


def test_episodes_with_images_are_recorded_and_the_same_again() -> None:
    played = recorded(play(Seeing(), random_policy, 50, 3), Task("seeing", 3))
    again = Trajectory.from_json(played.to_json())
    assert again.fingerprint == played.fingerprint
    assert difference(again, lambda task: Seeing()) is None
    found = difference(again, lambda task: GuessTheNumber())
    assert found is not None
    assert (found.turn, found.what) == (0, "observation")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("turns", [1, 2, 50])
def test_an_episode_is_the_same_again_however_early_it_was_cut(seed: int, turns: int) -> None:
    task = Task("game:Wordle-v0", seed)
    played = recorded(play(task.make(), random_policy, turns, seed), task)
    assert difference(Trajectory.from_json(played.to_json())) is None


class Changed(GuessTheNumber):
    """Later than turn one, something is not as it was."""

    change = 0, 0

    def step(self, action: str) -> Step:
        step = list(super().step(action))
        place, value = self.change
        if self.turn == 2:
            step[place] = value
        return tuple(step)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("place", "value", "what", "turn"),
    [
        (0, "other", "observation", 2),
        (1, 0.25, "reward", 2),
        (2, True, "terminated", 2),
        (3, True, "truncated", 2),
    ],
)
def test_the_first_difference_is_named(place: int, value: Any, what: str, turn: int) -> None:
    played = recorded(play(GuessTheNumber(), lambda e, o: "\\boxed{0}", 4, 3), Task("changed", 3))
    changed = type("Changed", (Changed,), {"change": (place, value)})
    found = difference(played, lambda task: changed())
    assert found is not None
    assert (found.what, found.turn, found.found) == (what, turn, value)
    assert str(found).startswith(f"turn {turn}, {what}\n  expected ")


def test_an_environment_that_raises_is_a_difference() -> None:
    class Raises(GuessTheNumber):
        def _play(self, move: int) -> Any:
            raise ZeroDivisionError("oops")

    found = difference(episode(), lambda task: Raises(1, 10, 4))
    assert found is not None
    assert (found.what, found.found) == ("exception", "ZeroDivisionError: oops")


def test_long_texts_are_shown_around_their_difference() -> None:
    played = episode()
    text = "same " * 100
    first = dataclasses.replace(played.turns[0], observation=text + "left")

    class Long(GuessTheNumber):
        def _instructions(self) -> str:
            return text + "right"

    played = dataclasses.replace(played, turns=[first])
    shown = str(difference(played, lambda task: Long(1, 10, 4)))
    assert "left" in shown
    assert "right" in shown
    assert len(shown) < 300


def test_failed_episodes_are_not_compared_and_a_missing_extra_is_no_difference() -> None:
    def cannot(task: Task) -> Env:
        raise MissingExtraError("pip install 'gem-core[math]'")

    (lost,) = [t for t in golden_batch() if not t.valid]
    assert difference(lost, cannot) is None
    with pytest.raises(MissingExtraError):
        difference(episode(), cannot)

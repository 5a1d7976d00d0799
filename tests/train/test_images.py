"""Images of recorded episodes: each file once, read again, and never from elsewhere."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from gem.errors import RecordError
from gem.fingerprint import canonical
from gem.tasks import Task
from gem.trajectory import Image, Trajectory, Turn
from gem_train.images import IMAGES, read_image
from gem_train.record import EPISODES, Recorder, read_episodes

PNG = b"\x89PNG\r\n\x1a\n" + bytes(40)
DIGEST = str(canonical([{"type": "image", "image": PNG}])[0]["blake2b"])  # type: ignore[index]


def turn(*images: Image, shown: bytes | None = None) -> Turn:
    observation = "see" if shown is None else [{"type": "image", "image": shown}]
    return Turn(observation, [1], True, [2], None, "x", 0.0, True, False, "stop", {}, images)


def test_every_image_is_one_file_that_is_read_again(tmp_path: Path) -> None:
    seen, other = Image(DIGEST, 4, PNG), Image("ab12", 9, b"\xff\xd8\xff data")
    episodes = [
        Trajectory(Task("x", 0), turns=[turn(seen, other), turn(seen)], end="terminated"),
        Trajectory(Task("x", 1), turns=[turn(shown=PNG)], end="terminated"),
    ]
    for iteration in range(2):
        Recorder(tmp_path).episodes(iteration, episodes)
    files = {path.name for path in (tmp_path / IMAGES).iterdir()}
    assert files == {"ab12.jpeg", f"{DIGEST}.png"}
    first, second, *_ = (each.trajectory for each in read_episodes(tmp_path / EPISODES))
    assert [image.data for image in first.turns[0].images] == [seen.data, other.data]
    assert first.turns[1].images[0].data is first.turns[0].images[0].data
    # A model that was asked by messages: the digest is in the observation.
    [part] = second.turns[0].observation
    assert read_image(tmp_path, part["blake2b"]) == PNG  # type: ignore[index]


def test_the_images_of_a_long_record_are_not_all_in_memory(tmp_path: Path) -> None:
    recorder, size = Recorder(tmp_path), 50_000
    for number in range(200):
        image = Image(f"{number:04x}", 4, PNG + bytes(size))
        recorder.episodes(number, [Trajectory(Task("x", number), turns=[turn(image)])])
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_episodes(tmp_path / EPISODES)) == 200
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 100 * size


def test_a_record_without_its_images_can_be_read(tmp_path: Path) -> None:
    episode = Trajectory(Task("x", 0), turns=[turn(Image(DIGEST, 4))], end="terminated")
    Recorder(tmp_path).episodes(0, [episode])
    assert not (tmp_path / IMAGES).exists()
    [record] = read_episodes(tmp_path / EPISODES)
    assert record.trajectory.turns[0].images == (Image(DIGEST, 4),)
    assert record.trajectory.turns[0].images[0].data == b""


@pytest.mark.parametrize("digest", ["../run", "a/b", "", "A1", "a" * 65])
def test_a_digest_names_no_other_file(tmp_path: Path, digest: str) -> None:
    (tmp_path / IMAGES).mkdir()
    (tmp_path / "run.png").write_bytes(PNG)
    with pytest.raises(RecordError, match="not the digest of an image"):
        read_image(tmp_path, digest)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / IMAGES).write_text("")
    episode = Trajectory(Task("x", 0), turns=[turn(Image(DIGEST, 4, PNG))], end="terminated")
    with pytest.raises(RecordError, match=DIGEST):
        Recorder(tmp_path).episodes(0, [episode])

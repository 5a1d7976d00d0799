"""Whatever a training's record holds: its readers return a result or name file and line."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from damaged import damaged, of_texts

from gem.__main__ import main as gem_main
from gem.errors import RecordError
from gem_bench.__main__ import main
from gem_bench.progress import Tail
from gem_train.record import EPISODES, METRICS, RUN, read_run

MakeRun = Callable[..., Path]
FILES = (RUN, METRICS, EPISODES)


@pytest.fixture
def record(make_run: MakeRun) -> Path:
    return make_run(iterations=2, episodes=3)


def mutations(record: Path, most: int = 1) -> Iterator[tuple[str, str, bytes]]:
    """Yield file, name of the mutation and content, and leave each file as it was."""
    for name in FILES:
        path = record / name
        before = path.read_bytes()
        for mutation, content in [*damaged(path, most=most)]:
            path.write_bytes(content)
            yield name, mutation, content
        path.write_bytes(before)


def test_every_damage_is_read_or_named_with_file_and_line(record: Path) -> None:
    refused = dict.fromkeys(FILES, 0)
    for number, (name, mutation, _) in enumerate(mutations(record)):
        if number % 3 and ": " in mutation:
            continue  # of replaced values a third, which differs from value to value
        try:
            list(read_run(record).episodes())
            Tail(record).read()
        except RecordError as error:
            refused[name] += 1
            place = RUN if name == RUN else r"(metrics|episodes)\.jsonl, line \d+"
            if mutation != "empty":
                assert re.search(place, str(error)), (mutation, str(error))
        except Exception as error:
            raise AssertionError(f"{name}, {mutation}: {error!r}") from error
    assert all(count > 20 for count in refused.values()), refused


def run_readers(record: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> list[int]:
    commands: list[list[Any]] = [
        ["compare", record],
        ["table", record],
        ["plot", record, "--out", out / "p.svg"],
        ["report", record, "--out", out / "r.html"],
    ]
    statuses = [main([*map(str, words)]) for words in commands]
    statuses.append(gem_main(["replay", str(record)]))
    assert "Traceback" not in capsys.readouterr().err
    return statuses


def check_readers(
    record: Path, out: Path, capsys: pytest.CaptureFixture[str], sample: float
) -> None:
    rng = random.Random(0)
    for name, mutation, _ in mutations(record):
        if rng.random() > sample:
            continue
        try:
            statuses = run_readers(record, out, capsys)
        except Exception as error:
            raise AssertionError(f"{name}, {mutation}: {error!r}") from error
        assert set(statuses) <= {0, 1, 2}, (name, mutation)


def test_commands_say_what_is_damaged_or_show_the_rest(
    record: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_readers(record, tmp_path, capsys, sample=0.01)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_commands_say_of_every_damage_what_it_is(
    record: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_readers(record, tmp_path, capsys, sample=1)


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_other_bytes_is_a_message_and_status_2(
    record: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = record / name
    for mutation, content in [*of_texts(path.read_bytes())]:
        path.write_bytes(content)
        status = main(["table", str(record)])
        said = capsys.readouterr().err
        assert status in (0, 2), mutation
        if status == 2:
            assert said.startswith("gem-bench: "), mutation
            assert said.count("\n") == 1, mutation


@pytest.mark.parametrize("name", [METRICS, EPISODES])
def test_a_record_in_which_something_occurs_twice_is_refused_by_every_reader(
    record: Path, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = record / name
    first, *rest = path.read_text().splitlines(keepends=True)
    path.write_text("".join([first, first, *rest]))
    line = {METRICS: 2, EPISODES: 4}[name]  # a batch has three episodes: the fourth is too many
    readers = [["report", "--out", str(tmp_path / "r.html")]]
    if name == METRICS:
        readers += [["compare"], ["table"], ["plot", "--out", str(tmp_path / "p.svg")]]
        readers += [["conformance", str(record)]]
    for command, *words in readers:
        assert main([command, str(record), *words]) == 2, command
        assert f"{name}, line {line}" in capsys.readouterr().err, command
    assert gem_main(["replay", str(record), "--episode", "99"]) == 2
    assert f"{name}, line {line}" in capsys.readouterr().err

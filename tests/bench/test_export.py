"""Exported episodes, read back by the libraries for which they are written, are those recorded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gem.errors import ConfigurationError, MissingExtraError, RecordError
from gem.tasks import Task
from gem.trajectory import Failure, Trajectory
from gem_bench import export as module
from gem_bench.__main__ import main
from gem_bench.export import FORMS, export
from gem_train.record import EPISODES, Recorder, read_run

MakeRun = Callable[..., Path]
PAGE = Path(__file__).parents[2] / "docs" / "watching.md"


def parquet(path: Path) -> list[dict[str, Any]]:
    reader = pytest.importorskip("pyarrow.parquet", reason="reads Parquet")
    rows: list[dict[str, Any]] = reader.read_table(path).to_pylist()
    return rows


def hf(path: Path) -> list[dict[str, Any]]:
    datasets = pytest.importorskip("datasets", reason="reads the dataset")
    return list(datasets.load_from_disk(str(path)))


READERS = {"parquet": parquet, "hf": hf}


@pytest.fixture
def record(make_run: MakeRun) -> Path:
    """A run with an evaluation, and an episode that failed."""
    folder = make_run(iterations=3, episodes=4)
    recorder = Recorder(folder)
    episode = next(read_run(folder).episodes()).trajectory
    failed = Trajectory(Task("x:y", 3), end="failed", failure=Failure("tool", "it hangs", 2))
    recorder.episodes(3, [episode, failed], split="eval:held-out")
    return folder


@pytest.mark.parametrize("to", READERS)
def test_a_row_a_turn_has_what_was_recorded(to: str, record: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main(["export", str(record), "--to", to, "--out", str(out)]) == 0
    rows = READERS[to](out)
    recorded = [
        (number, episode, index, turn)
        for number, episode in enumerate(read_run(record).episodes())
        for index, turn in enumerate(episode.trajectory.turns)
    ]
    assert len(rows) == len(recorded) > 14
    for row, (number, episode, index, turn) in zip(rows, recorded, strict=True):
        assert list(row) == [column.name for column in FORMS["turn"]]
        assert (row["episode"], row["turn"]) == (number, index)
        assert (row["iteration"], row["split"]) == (episode.iteration, episode.split)
        for name in ("context_ids", "response_ids", "logprobs", "reward", "stop_reason", "fresh"):
            assert row[name] == getattr(turn, name)
        assert (row["observation"], row["response"]) == (turn.observation, turn.text)
        assert row["advantage"] == (episode.advantages[index] if episode.advantages else None)
        assert json.loads(row["info"]) == turn.info
        assert json.loads(row["params"]) == {"secret": "7"}
        assert row["return"] == episode.trajectory.total_reward
        assert row["success"] == episode.trajectory.success
        assert (row["run"], row["trainer"], row["failure"]) == (record.name, "reference", None)


@pytest.mark.parametrize("to", READERS)
def test_a_row_an_episode_has_all_episodes(to: str, record: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert export([record], to, out, rows="episode") == 14
    rows = READERS[to](out)
    for row, episode in zip(rows, read_run(record).episodes(), strict=True):
        turns = episode.trajectory.turns
        assert list(row) == [column.name for column in FORMS["episode"]]
        assert row["responses"] == [turn.text for turn in turns]
        assert row["response_ids"] == [turn.response_ids for turn in turns]
        assert row["logprobs"] == [turn.logprobs for turn in turns]
        assert row["advantages"] == episode.advantages
        assert row["rewards"] == episode.trajectory.rewards
        assert row["final_observation"] == episode.trajectory.final_observation
    failed = rows[-1]
    assert (failed["failure"], failed["message"], failed["turns"]) == ("tool", "it hangs", 0)


def test_a_split_and_several_runs(record: Path, make_run: MakeRun, tmp_path: Path) -> None:
    other = make_run("verl", iterations=1, episodes=4)
    out = tmp_path / "a" / "out.parquet"
    assert export([record, other], "parquet", out, rows="episode", split="train") == 16
    rows = parquet(out)
    assert [row["trainer"] for row in rows] == ["reference"] * 12 + ["verl"] * 4
    assert {row["split"] for row in rows} == {"train"}
    assert export([record], "parquet", out, rows="episode", split="eval:held-out",
                  overwrite=True) == 2  # fmt: skip
    assert [row["episode"] for row in parquet(out)] == [12, 13]


def test_more_rows_than_a_block_are_all_there(
    record: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_AT_ONCE", 5)
    assert export([record], "parquet", tmp_path / "x", rows="episode") == 14
    assert [row["episode"] for row in parquet(tmp_path / "x")] == list(range(14))
    assert export([record], "hf", tmp_path / "y", rows="episode") == 14
    assert [row["episode"] for row in hf(tmp_path / "y")] == list(range(14))


def test_texts_that_are_no_text_are_written(record: Path, tmp_path: Path) -> None:
    content = (record / EPISODES).read_text()
    (record / EPISODES).write_text(content.replace('"You won."', r'"\ud800 won"'))
    export([record], "parquet", tmp_path / "x", rows="episode")
    assert "? won" in {row["final_observation"] for row in parquet(tmp_path / "x")}


def test_what_is_there_stays_unless_it_is_to_be_replaced(record: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export([record], "hf", out)
    with pytest.raises(ConfigurationError, match="--overwrite"):
        export([record], "parquet", out)
    assert hf(out)
    export([record], "parquet", out, overwrite=True)
    assert parquet(out)
    with pytest.raises(ConfigurationError, match="no episodes of eval:none"):
        export([record], "parquet", out, split="eval:none", overwrite=True)
    assert parquet(out)


@pytest.mark.parametrize("to", READERS)
def test_a_folder_that_no_export_has_written_is_never_replaced(to: str, record: Path) -> None:
    for folder in (record, record.parent):
        with pytest.raises(
            ConfigurationError, match="is a folder of something else than a dataset"
        ):
            export([record], to, folder, overwrite=True)
    assert (record / EPISODES).exists()


@pytest.mark.parametrize("to", READERS)
def test_a_damaged_record_is_named_and_nothing_is_left(
    to: str, record: Path, tmp_path: Path
) -> None:
    lines = (record / EPISODES).read_text().splitlines(keepends=True)
    (record / EPISODES).write_text("".join([*lines[:5], "{broken\n", *lines[6:]]))
    (tmp_path / "into").mkdir()
    with pytest.raises(RecordError, match="line 6 is damaged"):
        export([record], to, tmp_path / "into" / "out")
    assert [*(tmp_path / "into").iterdir()] == []


@pytest.mark.parametrize(("to", "package"), [("parquet", "parquet"), ("hf", "hf")])
def test_a_missing_package_is_named(
    to: str, package: str, record: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str, needed: str) -> Any:
        raise MissingExtraError(needed)

    monkeypatch.setattr(module, "extra", missing)
    with pytest.raises(MissingExtraError, match=rf"pip install 'gem-bench\[{package}\]'"):
        export([record], to, tmp_path / "out")


def table(form: str) -> str:
    """The table of columns as it must stand in the documentation."""
    lines = ["| column | type | meaning |", "|---|---|---|"]
    lines += [f"| `{c.name}` | {c.type} | {c.meaning} |" for c in FORMS[form]]
    return "\n".join(lines)


@pytest.mark.parametrize("form", FORMS)
def test_every_column_is_documented(form: str) -> None:
    text = PAGE.read_text(encoding="utf-8")
    documented = text.partition(f"<!-- {form} columns")[2].partition("-->\n")[2]
    assert documented.partition(f"\n<!-- /{form} columns -->")[0] == table(form)

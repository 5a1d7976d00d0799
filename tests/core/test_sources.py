"""Task data: formats, errors that name file, row and column, sharing, permutations."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gem
from gem import sources
from gem.errors import ConfigurationError, DataError, MissingExtraError, UnreachableError
from gem.sources import SAMPLE_FOLDER, SAMPLES, checked, column_of, load, permuted

ROWS = [{"problem": f"{i} + {i} = ?", "answer": str(2 * i)} for i in range(5)]


def jsonl(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def all_rows(table: Any) -> list[Any]:
    return [dict(table.row(i)) for i in range(len(table))]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder laid out like a data set of the hub, with two splits."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "owner" / "name"
    (folder / "data").mkdir(parents=True)
    jsonl(folder / "data" / "train-00000-of-00001.jsonl", ROWS)
    jsonl(folder / "data" / "test-00000-of-00001.jsonl", ROWS[:2])
    return folder


def test_every_kind_of_file_gives_the_same_rows(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    lines = jsonl(tmp_path / "a.jsonl", ROWS)
    with (tmp_path / "a.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["problem", "answer"])
        writer.writeheader()
        writer.writerows(ROWS)
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    for source in (lines, f"file:{lines}", tmp_path / "a.csv", str(tmp_path / "a.parquet"), ROWS):
        assert all_rows(load(source)) == ROWS


@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {"a": st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"))}
        ),
        min_size=1,
        max_size=8,
    )
)
@settings(max_examples=40)
def test_rows_are_found_whatever_text_they_hold(
    rows: list[dict[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    # Two columns: a line that holds one empty field would be a blank line.
    rows = [{**row, "b": "x"} for row in rows]
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    # Blank lines, a byte order mark and a missing last newline are no rows.
    text = "\ufeff\n" + "\n  \n".join(lines)
    (folder / "a.jsonl").write_bytes(text.encode())
    assert all_rows(load(folder / "a.jsonl")) == rows
    with (folder / "a.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["a", "b"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    assert all_rows(load(folder / "a.csv")) == rows


def test_an_unreadable_row_is_named_when_it_is_read_and_only_then(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": \n[1, 2]\n{"a": "\xff"}\n{"a": 5}\n')
    table = load(path)
    assert table.row(0) == {"a": 1}
    assert table.row(4) == {"a": 5}
    for index, what in ((1, "not JSON"), (2, "list, not a JSON object"), (3, "not UTF-8")):
        with pytest.raises(DataError, match=rf"a\.jsonl, row {index}: .*{what}"):
            table.row(index)


def test_a_missing_column_is_named_with_those_that_are_there(tmp_path: Path) -> None:
    table = load(jsonl(tmp_path / "a.jsonl", ROWS))
    assert column_of(table.row(3), "answer", table.name, 3) == "6"
    message = r"a\.jsonl, row 3: no column 'gold'; it has 'problem', 'answer'"
    with pytest.raises(DataError, match=message):
        column_of(table.row(3), "gold", table.name, 3)


def test_a_csv_row_of_another_width_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('a,b\n1,2\n"x\ny",3,4\n', encoding="utf-8")
    table = load(path)
    assert table.row(0) == {"a": "1", "b": "2"}
    with pytest.raises(DataError, match=r"a\.csv, row 1: 3 fields, the header has 2 \('a', 'b'\)"):
        table.row(1)
    path.write_text('a,b\n1,"2\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"row 0: a quote is never closed"):
        load(path)


def test_a_csv_file_loses_neither_rows_nor_columns_without_a_word(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('size,n\n5" pipe,1\n6" pipe,2\n7,3\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"a\.csv, row 0: 2 rows.*quote"):
        load(path).row(0)
    path.write_bytes(b"size,n\n5\rx,1\n" + b"y" * 200_000 + b",3\n4,2\r\r\n")
    table = load(path)
    with pytest.raises(DataError, match=r"a\.csv, row 0: 2 rows"):
        table.row(0)
    with pytest.raises(DataError, match=r"a\.csv, row 1: field larger than field limit"):
        table.row(1)
    assert table.row(2) == {"size": "4", "n": "2"}
    path.write_text("a,b,b\n1,2,3\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"a\.csv has the column 'b' twice"):
        load(path)


def test_a_column_that_occurs_twice_is_refused() -> None:
    pandas = pytest.importorskip("pandas")
    with pytest.raises(DataError, match="data frame of 1 rows has the column 'b' twice"):
        load(pandas.DataFrame([[1, 2, 3]], columns=["a", "b", "b"]))


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_a_source_without_rows_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("" if name == "a.jsonl" else "a,b\n", encoding="utf-8")
    with pytest.raises(DataError, match="has no rows"):
        load(tmp_path / name)
    with pytest.raises(DataError, match="list of 0 rows has no rows"):
        load([])


def test_wrong_sources_say_what_is_allowed(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.jsonl cannot be read: .*No such file"):
        load(tmp_path / "none.jsonl")
    (tmp_path / "a.txt").write_text("x", encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"ends in none of \.jsonl, \.csv, \.parquet"):
        load(tmp_path / "a.txt")
    with pytest.raises(ConfigurationError, match="'GSM8K' is neither a file, a folder nor a hub"):
        load("GSM8K")
    with pytest.raises(ConfigurationError, match="no sample 'GSM8K'; there are .*gsm8k"):
        load("sample:GSM8K")
    with pytest.raises(ConfigurationError, match="source must be .*got int"):
        load(3)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="list of 1 rows, row 0: str is not a mapping"):
        load(["text"]).row(0)  # type: ignore[list-item]
    (tmp_path / "a.parquet").write_bytes(b"not parquet")
    pytest.importorskip("pyarrow")
    with pytest.raises(DataError, match=r"a\.parquet cannot be read"):
        load(tmp_path / "a.parquet")


def test_a_folder_like_the_hub_is_read_by_splits(hub: Path) -> None:
    assert all_rows(load(f"hub:{hub}:test")) == ROWS[:2]
    assert all_rows(load(str(hub), split="train")) == ROWS
    # The split in the source comes first.
    assert len(load(f"hub:{hub}:test", split="train")) == 2
    with pytest.raises(ConfigurationError, match="has the splits 'train', 'test'; choose one"):
        load(f"hub:{hub}")
    with pytest.raises(ConfigurationError, match=r"split 'dev'.*train.*test"):
        load(f"hub:{hub}", split="dev")
    (hub / "data" / "test-00000-of-00001.jsonl").unlink()
    assert len(load(f"hub:{hub}")) == 5


def test_an_unreachable_hub_and_a_missing_extra_name_the_alternative(
    hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    def refuse(*_: Any, **__: Any) -> Any:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    message = r"'owner/none' cannot be loaded from the hub .*no route.*\.jsonl.*source='sample'"
    with pytest.raises(UnreachableError, match=message):
        load("hub:owner/none")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"gem-core\[data\].*source='sample'"):
        load("owner/none")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (hub / "a.parquet").touch()
    with pytest.raises(MissingExtraError, match=r"gem-core\[data\]"):
        load(hub / "a.parquet")


def test_a_file_is_loaded_once_until_it_changes(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", ROWS)
    table = load(path)
    assert load(f"file:{path}") is table
    jsonl(path, ROWS[:3])
    os.utime(path, (1, 1))
    assert len(load(path)) == 3


def test_a_relative_folder_is_that_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    for number, name in enumerate(("one", "two")):
        (tmp_path / name / "rows").mkdir(parents=True)
        jsonl(tmp_path / name / "rows" / "train.jsonl", [ROWS[number]])
        monkeypatch.chdir(tmp_path / name)
        assert all_rows(load("hub:rows")) == [ROWS[number]]


def test_a_frame_that_has_grown_has_its_new_rows() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame([{"a": 1}])
    assert len(load(frame)) == 1
    frame.loc[1] = [2]
    assert all_rows(load(frame)) == [{"a": 1}, {"a": 2}]


def test_text_files_are_mapped_not_read(tmp_path: Path) -> None:
    # 64 MB of rows must not become 64 MB of this process.
    row = json.dumps({"problem": "x" * (1 << 16)}) + "\n"
    with (tmp_path / "a.jsonl").open("w", encoding="utf-8") as file:
        for _ in range(1024):
            file.write(row)
    script = (
        "import resource, sys\n"
        "from gem.sources import load\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "load('sample:gsm8k').row(0)\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (peak() * 1024 + (32 << 20),) * 2)\n"
        "table = load(sys.argv[1])\n"
        "print(len(table), len(table.row(1023)['problem']))\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "a.jsonl")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert told.stdout.split() == ["1024", str(1 << 16)], told.stderr


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_are_readable_and_say_where_each_row_is_from(name: str) -> None:
    rows = all_rows(load(f"sample:{name}"))
    assert len(rows) >= 4
    assert all(row["origin"] for row in rows)
    licence = (SAMPLE_FOLDER / "LICENSE-GSM8K.txt").read_text(encoding="utf-8")
    assert "MIT License" in licence
    assert f"`{name}.jsonl`" in _readme() or "ruletaker" in name


def _readme() -> str:
    return (SAMPLE_FOLDER / "README.md").read_text(encoding="utf-8")


@given(size=st.integers(1, 200), key=st.integers(), epoch=st.integers(0, 3))
@settings(max_examples=60)
def test_a_permutation_shows_every_element_once(size: int, key: int, epoch: int) -> None:
    assert sorted(permuted(i, size, key, epoch) for i in range(size)) == list(range(size))


def test_permutations_differ_by_key_and_favour_no_element() -> None:
    orders = {tuple(permuted(i, 5, key, 0) for i in range(5)) for key in range(2000)}
    assert len(orders) == 120
    firsts = [permuted(0, 10, key, 0) for key in range(2000)]
    # Binomial with mean 200 and standard deviation 13.4: five of them either way.
    assert all(133 < firsts.count(element) < 267 for element in range(10))


def test_a_permutation_of_a_huge_set_needs_no_room() -> None:
    size = 10**15
    assert len({permuted(i, size, 1) for i in range(500)}) == 500
    assert permuted(7, size, 1) < size


ROWS_IN_MEMORY = [{"q": "1 + 1?", "a": 2}, {"q": "What is a half?", "a": 0.5}]


def test_a_data_set_in_memory_is_a_source() -> None:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_list([{"q": "1 + 1?", "a": 2}, {"q": "2 + 2?", "a": 4}])
    env = gem.make("qa:HotpotQA", source=data, question_column="q", answer_column="a")
    env.reset(idx=1)
    assert env.step("<answer>4</answer>")[1] == 1.0
    assert list(env.unwrapped.table) == list(data)
    both = datasets.DatasetDict(train=data, test=data)
    with pytest.raises(ConfigurationError, match="one split of a data set, got .*'train', 'test'"):
        gem.make("qa:HotpotQA", source=both)


def test_what_has_rows_and_column_names_is_a_source_whatever_its_class() -> None:
    class Columns:
        column_names = sorted(ROWS_IN_MEMORY[0])

        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> Any:
            return ROWS_IN_MEMORY[index]

    assert list(load(Columns())) == ROWS_IN_MEMORY


def test_a_data_frame_is_a_source_and_keeps_the_type_of_each_value() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(ROWS_IN_MEMORY).astype({"a": object})
    frame["n"] = [1, 2]
    frame.index = [7, 7]  # rows are counted, not looked up
    table = load(frame)
    assert table.row(1) == {**ROWS_IN_MEMORY[1], "n": 2}
    assert type(table.row(0)["n"]) is int
    env = gem.make("qa:HotpotQA", source=frame, question_column="q", answer_column="a")
    env.reset(idx=0)
    assert env.step("<answer>2</answer>")[1] == 1.0
    assert env.unwrapped.spawn().reset(idx=1)[0].startswith("What is a half?")


@pytest.mark.parametrize("source", [3, b"bytes", {"q": 1}, iter([]), {1, 2}])
def test_what_is_no_source_is_refused_with_its_type(source: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"DataFrame, got {type(source).__name__}"):
        checked(source)


def test_a_table_is_read_like_a_list() -> None:
    table = load(ROWS_IN_MEMORY)
    assert (len(table), table[0], table[-1]) == (2, *ROWS_IN_MEMORY)
    assert list(table) == ROWS_IN_MEMORY
    for index in (2, -3):
        with pytest.raises(IndexError, match=f"no row {index}"):
            _ = table[index]


def test_rows_in_memory_give_one_table_and_are_not_kept_for_ever() -> None:
    first = [{"a": 1}]
    assert load(first) is load(first)
    assert load([{"a": 1}]) is not load(first)
    for number in range(10):
        load([{"a": number}])
    assert len(sources._in_memory) <= sources._REMEMBERED

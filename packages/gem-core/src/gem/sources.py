"""Task data of environments: tables of rows, loaded once per process, memory-mapped if files.

A source is one of

- `"hub:owner/name"` or `"hub:owner/name:split"`: a data set of the Hugging Face hub, or a folder
  with the same layout, loaded by `datasets` (extra `data`); plain `"owner/name"` means the same;
- `"file:path"` or a plain path that ends in `.jsonl`, `.csv` or `.parquet` (Parquet: extra `data`);
- `"sample:name"`: a small table that ships with the package, see `SAMPLES`;
- rows in memory: a sequence of mappings, a `datasets.Dataset`, a pandas `DataFrame`.
"""

from __future__ import annotations

import csv
import functools
import io
import mmap
import re
import threading
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from gem.errors import ConfigurationError, DataError, UnreachableError
from gem.json_lines import parse
from gem.plugins import extra
from gem.seeding import stream

Row: TypeAlias = Mapping[str, Any]


class Rows(Protocol):
    """What a `datasets.Dataset` and a pandas `DataFrame` have in common; see `checked`."""

    def __len__(self) -> int: ...

    def __getitem__(self, key: Any, /) -> Any: ...


Source: TypeAlias = "str | Path | Sequence[Row] | Rows"

SAMPLE_FOLDER = Path(__file__).parent / "data" / "samples"
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_LOCAL_HINT = (
    "a local copy works too: source='path/to/file.jsonl' (or .csv, .parquet, or a folder as "
    "'hub:path/to/folder'); source='sample' takes the rows that ship with GEM-core"
)
_NEEDED = f"{{}} needs {{}}: pip install 'gem-core[data]'; without it {_LOCAL_HINT}"

_tables: dict[tuple[Any, ...], Table] = {}
_in_memory: dict[int, tuple[Any, Table]] = {}
_REMEMBERED = 4
"""Number of in-memory sources whose tables are cached, with their `verified` sets: many
environments are made from the same rows."""
_loading = threading.Lock()


class Table:
    """Rows by index, parsed when accessed.

    `len(table)`, `table[i]` and iteration work as for a list of mappings.

    Attributes:
        name: Name in error messages.
        folder: Base folder of relative paths in the rows.
    """

    name: str
    folder = Path()

    @functools.cached_property
    def verified(self) -> set[Any]:
        """Keys of the checks that all rows have passed; callers add to it."""
        return set()

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, index: int) -> Row:
        """Return row `index`; negative numbers count from the end.

        Raises:
            IndexError: The index is out of range.
            DataError: The row cannot be read.
        """
        size = len(self)
        if not -size <= index < size:
            raise IndexError(f"{self.name} has {size} rows, there is no row {index}")
        return self.row(index % size)

    def __iter__(self) -> Iterator[Row]:
        return (self.row(index) for index in range(len(self)))

    def only(self, column: str) -> Table:
        """Return a table with only this column, if that is cheaper to read; else this table."""
        return self

    def row(self, index: int) -> Row:
        """Return row `index`, counted from 0.

        Raises:
            DataError: The row cannot be read; the message names the source and the row.
        """
        raise NotImplementedError


def column_of(row: Row, column: str, name: str, index: int) -> Any:
    """Return `row[column]`.

    Raises:
        DataError: The column is missing; the message names source, row, and the row's columns.
    """
    try:
        return row[column]
    except KeyError:
        has = ", ".join(map(repr, row)) or "none"
        raise DataError(f"{name}, row {index}: no column {column!r}; it has {has}") from None


class _Memory(Table):
    def __init__(self, rows: Rows) -> None:
        kind = "data set" if hasattr(rows, "column_names") else "list"
        self.name = f"{kind} of {len(rows)} rows"
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, index: int) -> Row:
        row: Any = self._rows[index]
        if not isinstance(row, Mapping):
            raise DataError(f"{self.name}, row {index}: {type(row).__name__} is not a mapping")
        return row

    def only(self, column: str) -> Table:
        # Reading a row of a `datasets.Dataset` decodes its images.
        select = getattr(self._rows, "select_columns", None)
        if select is None or column not in getattr(self._rows, "column_names", ()):
            return self
        return _Memory(select([column]))


class _Lines(Table):
    """A memory-mapped text file with the byte offsets of its records, by default its lines."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self.folder = path.parent
        with path.open("rb") as file:
            # An empty file cannot be mapped.
            empty = not file.read(1)
            self._bytes: mmap.mmap | bytes = (
                b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            )
        self._starts = array("Q")
        self._ends = array("Q")
        for begin, end in self._records():
            self._starts.append(begin)
            self._ends.append(end)

    def __len__(self) -> int:
        return len(self._starts)

    def _text(self, index: int) -> str:
        try:
            return self._bytes[self._starts[index] : self._ends[index]].decode()
        except UnicodeDecodeError as error:
            raise DataError(f"{self.name}, row {index}: not UTF-8 ({error.reason})") from None

    def _records(self) -> Iterator[tuple[int, int]]:
        """Yield the byte offsets of every non-blank line, without a byte order mark."""
        data, size = self._bytes, len(self._bytes)
        begin = 3 if data[:3] == b"\xef\xbb\xbf" else 0
        while begin < size:
            end = data.find(b"\n", begin)
            end = size if end < 0 else end
            if data[begin:end].strip():
                yield begin, end
            begin = end + 1


class _JsonLines(_Lines):
    def row(self, index: int) -> Row:
        try:
            row = parse(self._text(index), "the row")
        except DataError as error:
            raise DataError(f"{self.name}, row {index}: not JSON ({error})") from None
        if not isinstance(row, dict):
            raise DataError(f"{self.name}, row {index}: {type(row).__name__}, not a JSON object")
        return row


class _Csv(_Lines):
    """Comma-separated values with a header; a quoted field may span lines."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._header = self._fields(0, "header") if self._starts else []
        self._starts, self._ends = self._starts[1:], self._ends[1:]
        _check_columns(self.name, self._header)

    def _records(self) -> Iterator[tuple[int, int]]:
        begin, quotes = -1, 0
        for start, end in super()._records():
            begin = start if begin < 0 else begin
            quotes += self._bytes[start:end].count(b'"')
            # A record ends at the end of a line at which all quotes are closed.
            if quotes % 2 == 0:
                yield begin, end
                begin, quotes = -1, 0
        if begin >= 0:
            raise DataError(f"{self.name}, row {len(self._starts) - 1}: a quote is never closed")

    def _fields(self, index: int, what: str) -> list[str]:
        text = io.StringIO(self._text(index), newline="")
        try:
            rows = [fields for fields in csv.reader(text) if fields]
        except csv.Error as error:
            raise DataError(f"{self.name}, {what}: {error}") from None
        if len(rows) != 1:
            raise DataError(
                f"{self.name}, {what}: {len(rows)} rows look like one: a field with a quote or a "
                "line break must stand in quotes, and quotes in it twice"
            )
        return rows[0]

    def row(self, index: int) -> Row:
        fields = self._fields(index, f"row {index}")
        if len(fields) != len(self._header):
            raise DataError(
                f"{self.name}, row {index}: {len(fields)} fields, the header has "
                f"{len(self._header)} ({', '.join(map(repr, self._header))})"
            )
        return dict(zip(self._header, fields, strict=True))


class _Columns(Table):
    """A table in columns; `read(i)` returns row i as a list of one mapping."""

    def __init__(self, name: str, size: int, read: Callable[[int], Any]) -> None:
        self.name = name
        self._size = size
        self._read = read

    def __len__(self) -> int:
        return self._size

    def row(self, index: int) -> Row:
        try:
            (row,) = self._read(index)
        except Exception as error:
            raise DataError(f"{self.name}, row {index}: cannot be read ({error})") from error
        return row  # type: ignore[no-any-return]


def _check_columns(name: str, columns: list[Any]) -> None:
    """Refuse columns of the same name: a row, which is a mapping, would lose one of them."""
    for column in columns:
        if columns.count(column) > 1:
            raise DataError(f"{name} has the column {column!r} twice")


def _frame(frame: Any) -> Table:
    # Not `iloc[index]`: a series has one type, so integers beside floats become floats.
    name, size = f"data frame of {len(frame)} rows", len(frame)
    _check_columns(name, list(frame.columns))
    return _Columns(name, size, lambda index: frame.iloc[[index]].to_dict("records"))


def checked(source: Any) -> Source:
    """Check the form of a source without loading it.

    Raises:
        ConfigurationError: This cannot be a source.
    """
    if isinstance(source, (str, Path, Sequence)) and not isinstance(source, bytes):
        return source
    names = getattr(source, "column_names", None)
    if isinstance(names, Mapping):
        splits = ", ".join(map(repr, names))
        raise ConfigurationError(
            f"source must be one split of a data set, got {type(source).__name__} with {splits}; "
            f"choose one: source=data[...]"
        )
    rows = all(hasattr(source, name) for name in ("__len__", "__getitem__"))
    if rows and (isinstance(names, list) or _is_frame(source)):
        return source  # type: ignore[no-any-return]
    raise ConfigurationError(
        f"source must be a URI, a path, a sequence of mappings, a datasets.Dataset or a pandas "
        f"DataFrame, got {type(source).__name__}"
    )


def _is_frame(source: Any) -> bool:
    return hasattr(source, "columns") and hasattr(source, "iloc")


def load(source: Source, split: str | None = None) -> Table:
    """Return the table of a source; every caller in this process gets the same one.

    Args:
        source: See the module's docstring.
        split: Split of a hub data set or folder; files, samples and lists have none. A split named
            in `source` takes precedence; without any, the data set must have exactly one.

    Raises:
        ConfigurationError: The source is malformed, or the split does not exist.
        DataError: The file does not exist, cannot be read or has no rows.
        MissingExtraError: The extra `data` is needed and not installed.
        UnreachableError: The hub cannot be reached.
    """
    source = checked(source)
    named = isinstance(source, (str, Path))
    if split is not None and not has_splits(source):
        what = repr(str(source)) if named else type(source).__name__
        raise ConfigurationError(
            f"split={split!r}, but the source {what} has no splits, which only data sets of the "
            f"hub and folders have; leave split out, or name the file of this split"
        )
    table = _load_named(str(source), split) if named else _load_memory(source)
    if not len(table):
        raise DataError(f"{table.name} has no rows")
    return table


def has_splits(source: Source) -> bool:
    """Return whether a source is a data set of the hub, or a folder with the same layout."""
    if not isinstance(source, (str, Path)):
        return False
    kind, _, _ = str(source).partition(":")
    path = Path(source).expanduser()
    file = kind in ("sample", "file") or path.suffix in _READERS or path.is_file()
    return kind == "hub" or not file


def _load_memory(source: Any) -> Table:
    with _loading:
        # The cache entry keeps the source alive, so that its id stays unique.
        _, table = _in_memory.pop(id(source), (None, None))
        # A frame may have grown since.
        if table is None or len(table) != len(source):
            table = _frame(source) if _is_frame(source) else _Memory(source)
        _in_memory[id(source)] = source, table
        while len(_in_memory) > _REMEMBERED:
            del _in_memory[next(iter(_in_memory))]
        return table


def _load_named(source: str, split: str | None) -> Table:
    kind, _, name = source.partition(":")
    if kind == "sample":
        return _load_file(_sample_path(name))
    if kind == "file":
        return _load_file(Path(name).expanduser())
    if kind == "hub":
        return _load_hub(*_hub_parts(name, split))
    path = Path(source).expanduser()
    if path.suffix in _READERS or path.is_file():
        return _load_file(path)
    if path.is_dir() or _HUB_NAME.fullmatch(source):
        return _load_hub(source, split)
    raise ConfigurationError(
        f"source {source!r} is neither a file, a folder nor a hub name 'owner/name'; "
        f"allowed are 'hub:owner/name[:split]', 'file:path', 'sample' and lists of mappings"
    )


def _sample_path(name: str) -> Path:
    if name not in SAMPLES:
        raise ConfigurationError(f"no sample {name!r}; there are {', '.join(SAMPLES)}")
    return SAMPLE_FOLDER / f"{name}.jsonl"


def _hub_parts(name: str, split: str | None) -> tuple[str, str | None]:
    # A colon in a path is not a split: neither in `C:\data` nor in an existing folder's name.
    head, colon, tail = name.rpartition(":")
    if colon and head and not Path(name).expanduser().exists() and re.fullmatch(r"\w+", tail):
        return head, tail
    return name, split


def _load_file(path: Path) -> Table:
    reader = _READERS.get(path.suffix)
    if reader is None:
        raise ConfigurationError(
            f"{path} ends in none of {', '.join(_READERS)}; these are the file formats known"
        )
    try:
        stat = path.stat()
        # A rewritten file has another key, and so another table.
        key = (str(path.resolve()), stat.st_mtime_ns, stat.st_size)
        return _once(key, lambda: reader(path))
    except DataError:
        raise
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _load_hub(name: str, split: str | None) -> Table:
    folder = Path(name).expanduser()
    place = str(folder.resolve()) if folder.is_dir() else name
    return _once(("hub", place, split), lambda: _hub_table(place, split))


def _once(key: tuple[Any, ...], read: Callable[[], Table]) -> Table:
    with _loading:
        if key not in _tables:
            _tables[key] = read()
        return _tables[key]


def _parquet(path: Path) -> Table:
    parquet = extra("pyarrow.parquet", _NEEDED.format(f"reading {path}", "pyarrow"))
    try:
        table = parquet.read_table(path, memory_map=True)
    except Exception as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    return _Columns(str(path), table.num_rows, lambda index: table.slice(index, 1).to_pylist())


def _hub_table(name: str, split: str | None) -> Table:
    datasets = extra("datasets", _NEEDED.format(f"the data set {name!r}", "datasets"))
    try:
        data = datasets.load_dataset(name, split=split)
    except ValueError as error:
        raise ConfigurationError(f"data set {name!r}, split {split!r}: {error}") from error
    except Exception as error:
        raise UnreachableError(
            f"the data set {name!r} cannot be loaded from the hub "
            f"({type(error).__name__}: {' '.join(str(error).split())[:200]}); {_LOCAL_HINT}"
        ) from error
    if isinstance(data, dict):
        if len(data) != 1:
            raise ConfigurationError(
                f"data set {name!r} has the splits {', '.join(map(repr, data))}; choose one by "
                f"split=... or 'hub:{name}:<split>'"
            )
        (data,) = data.values()
    rows = data.with_format("arrow")
    return _Columns(f"{name} ({data.split})", len(data), lambda index: rows[index].to_pylist())


_READERS: dict[str, Callable[[Path], Table]] = {
    ".jsonl": _JsonLines,
    ".csv": _Csv,
    ".parquet": _parquet,
}

SAMPLES = (
    *("arithmetic", "calendar", "code", "factbook", "geometry", "gsm8k", "math", "qa", "qa-open"),
    *(f"ruletaker-d{depth}" for depth in (0, 1, 2, 3, 5)),
)
"""Names of the tables that ship with the package; `data/samples/README.md` says what they are."""


def permuted(position: int, size: int, *key: int) -> int:
    """Return element `position` of a permutation of `range(size)` that depends on `key` alone.

    A six-round Feistel network over the smallest even number of bits that holds `size`, applied
    again until the result is below `size` (cycle walking; Black and Rogaway, "Ciphers with
    Arbitrary Finite Domains", CT-RSA 2002, section 4). Takes constant memory.

    Args:
        position: From 0 to `size` - 1.
        size: At least 1.
        *key: Integers that choose the permutation.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    keys = [stream(*key, round_).getrandbits(64) for round_ in range(_ROUNDS)]
    value = position
    while True:
        left, right = value >> half, value & mask
        for round_key in keys:
            left, right = right, left ^ (_mix(right ^ round_key) & mask)
        value = left << half | right
        if value < size:
            return value


_ROUNDS = 6
_WORD = (1 << 64) - 1


def _mix(value: int) -> int:
    """Return 64 well-mixed bits: the finaliser of SplitMix64 (Steele et al., OOPSLA 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _WORD
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _WORD
    return value ^ value >> 31

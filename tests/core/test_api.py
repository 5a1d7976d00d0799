"""The public names: `gem` exports them at their first use, docs/api describes all of them."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import api
import pytest

import gem

PAGES = Path(__file__).parents[2] / "docs" / "api"

LAZY = {name for names in gem._LAZY.values() for name in names}


def test_every_exported_name_is_there_and_listed() -> None:
    assert set(gem.__all__) <= set(dir(gem))
    for name in gem.__all__:
        assert getattr(gem, name) is not None
    assert not LAZY & set(vars(gem))


def test_type_checkers_see_what_is_imported_at_its_first_use() -> None:
    [block] = [
        node
        for node in ast.parse(Path(gem.__file__).read_text(encoding="utf-8")).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    seen: dict[str, object] = {}
    exec(compile(ast.Module(block.body, []), "block", "exec"), seen)
    del seen["__builtins__"]
    assert seen == {name: getattr(gem, name) for name in LAZY}


def test_importing_gem_imports_neither_rollouts_nor_numpy() -> None:
    code = "import sys, gem; print({'numpy', 'gem.rollout', 'gem.trajectory'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_the_pages_are_current() -> None:
    assert api.write(PAGES, True) == {}, "run make docs"


def test_every_name_that_gem_exports_is_on_its_page_with_a_sentence_about_it() -> None:
    text = (PAGES / "gem.md").read_text(encoding="utf-8")
    for name in gem.__all__:
        assert re.search(rf"^(- \[`{name}`\]\(.+\): \S|## `{name}`$)", text, re.M), name


def test_every_public_module_is_in_the_index() -> None:
    text = (PAGES / "README.md").read_text(encoding="utf-8")
    for module in api.public_modules():
        assert re.search(rf"^\| \[`{re.escape(module)}`\]\(.+\) \| \S", text, re.M), module


def test_links_between_pages_lead_to_a_heading() -> None:
    headings = {
        page.name: ["".join(re.findall(r"[\w-]", line.lower())) for line in text.splitlines()]
        for page in PAGES.iterdir()
        for text in ["\n".join(re.findall(r"^#+ (.*)$", page.read_text(), re.M))]
    }
    for page in PAGES.iterdir():
        for target, anchor in re.findall(r"\]\((gem[\w.]*\.md)(?:#([\w-]+))?\)", page.read_text()):
            title, number = re.fullmatch(r"(.*?)(?:-(\d+))?", anchor).groups()
            assert not title or headings[target].count(title) > int(number or 0), (page.name, title)


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A public package of three modules, one of them private, in the place of gem."""
    (tmp_path / "small").mkdir()
    texts = {
        "small/__init__.py": '''"""A package."""
from small.public import Box, SIZE
from small._inner import f
__all__ = ["SIZE", "Box", "f"]
''',
        "small/_inner.py": '''def f(a: int,
      *b: str) -> list[int]:
    """Add <a> to `<b>`.

    Args:
        a: One number,
            to be added.
        *b: Others.

    Returns:
        Sums.

    Raises:
        ValueError, KeyError: No numbers.
    """
''',
        "small/public.py": '''"""Public."""
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")
SIZE = 3
"""Of a box."""
_HIDDEN = 4

@dataclass
class Box:
    """A box.

        <code>

    It has room.
    """

    things: list[str] = field(default_factory=list)
    """In it,
    in order."""
    _size: int = SIZE

    @property
    def first(self) -> str:
        """The first thing."""

    def _hidden(self) -> None:
        """Nothing."""
''',
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(api, "public_modules", lambda: ("small", "small.public"))
    monkeypatch.setattr(api, "places", api.places.__wrapped__)


def test_a_function_of_a_private_module_is_described_where_it_is_exported(small: None) -> None:
    expected = """# small

<!-- Written by `make docs` from signatures and docstrings; edit those. -->

A package.

Described with the modules that they come from:

- [`SIZE`](small.public.md#size): Of a box.
- [`Box`](small.public.md#box): A box.

## `f`

```python
def f(a: int,
      *b: str) -> list[int]
```

Add &lt;a> to `<b>`.

**Args**

- `a`: One number,
  to be added.
- `*b`: Others.

**Returns**

Sums.

**Raises**

- `ValueError`, `KeyError`: No numbers.
"""
    assert api.page("small") == expected


def test_a_class_is_described_with_its_public_fields_and_methods(small: None) -> None:
    expected = """## `SIZE`

```python
SIZE = 3
```

Of a box.

## `Box`

```python
@dataclass
class Box
```

A box.

    <code>

It has room.

**Fields**

- `things: list[str] = list()`: In it, in order.

### `Box.first`

```python
@property
def first(self) -> str
```

The first thing.
"""
    assert api.page("small.public").partition("Public.\n\n")[2] == expected


def test_a_page_that_is_not_current_or_of_no_module_is_named(
    small: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "api"
    assert api.main([str(folder)]) == 0
    assert api.main([str(folder), "--check"]) == 0
    (folder / "small.md").write_text("")
    (folder / "old.md").write_text("")
    assert api.main([str(folder), "--check"]) == 1
    told = capsys.readouterr().err.splitlines()
    assert told == [
        f"{folder / 'small.md'} is not current; run make docs",
        f"{folder / 'old.md'} is about no public module; remove it",
    ]

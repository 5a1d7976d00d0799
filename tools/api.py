"""The pages about the public modules, written from signatures and docstrings.

    python tools/api.py docs/api            # write the pages
    python tools/api.py docs/api --check    # exit status 1 if one is not current

The sources are parsed; nothing that they define is run. Public is what `__all__` of a public module
lists; in a module without it, what it defines without a leading underscore. A name that several
modules export is described where it is defined; if that module is private, in the last one of
`MODULES` that exports it.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import cleandoc
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pages

MODULES = (
    "gem",
    "gem.core",
    "gem.errors",
    "gem.seeding",
    "gem.tasks",
    "gem.trajectory",
    "gem_train.packed",
    "gem.multi",
    "gem.seat",
    "gem.rollout",
    "gem.rollout.vision",
    "gem.advantage",
    "gem.vector",
    "gem.wrappers",
    "gem.tools",
    "gem_sandbox",
    "gem.grading",
    "gem_math.grading",
    "gem_sandbox.grading.code",
    "gem.grading.qa",
    "gem_judge",
    "gem.grading.formats",
    "gem.grading.wrapping",
    "gem_check",
    "gem_vision.drawing",
    "gem_train.testing.conformance",
    "gem_train.experiment",
    "gem_train",
)
"""Public modules, in the order of the index; see `_WHOLE`."""

# Rooms of which all modules are public.
_WHOLE = ("gem_train.experiment", "gem_train")

INDEX = "README.md"
_LEAD = "<!-- Written by `make docs` from signatures and docstrings; edit those. -->"
_SECTION = re.compile(r"(Args|Returns|Yields|Raises|Attributes):$")
_ENTRY = re.compile(r"(\*{0,2}[\w.]+(?:, [\w.]+)*): (.*)")
# A longer value says less than the text about it.
_LONGEST_VALUE = 60

Function: TypeAlias = "ast.FunctionDef | ast.AsyncFunctionDef"


@dataclass(frozen=True)
class Definition:
    """A class, function or assignment of a source file."""

    name: str
    code: str
    """Its first lines as Python: for an assignment all of it, unless it is long."""
    doc: str
    """Its docstring; for an assignment the string below it."""
    assigned: bool = False
    inside: tuple[Definition, ...] = ()
    """What a class defines."""


class Source(NamedTuple):
    """What a module's file says."""

    doc: str
    public: list[str]
    """As in `__all__`, else in the order of the file."""
    defined: Mapping[str, Definition]
    """Public names only."""
    imported: Mapping[str, tuple[str, str]]
    """Name: module that it is imported from, and its name there."""


@functools.cache
def source(module: str) -> Source:
    """Return what a module's file says."""
    path = _path(module)
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    defined = {each.name: each for each in _definitions(tree.body, text)}
    imported = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    public = next(
        (
            ast.literal_eval(node.value)
            for node in tree.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        ),
        defined,
    )
    return Source(_doc(tree), list(public), defined, imported)


def _path(module: str) -> Path:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"no module {module}")
    return Path(spec.origin)


@functools.cache
def public_modules() -> tuple[str, ...]:
    """Return the names of the public modules, in the order of the index."""
    below = (
        f"{room}.{path.stem}"
        for room in _WHOLE
        for path in sorted(_path(room).parent.glob("[a-z]*.py"))
    )
    return (*MODULES, *below)


def _definitions(body: Sequence[ast.stmt], text: str) -> Iterator[Definition]:
    """Yield what is public among the statements of a module or class."""
    for node, below in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            inside = tuple(_definitions(node.body, text))
            yield Definition(node.name, _class_line(node), _doc(node), inside=inside)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _shown(node):
            yield Definition(node.name, _signature(node, text), _doc(node))
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and not _hidden(target.id, node.value):
                yield _assignment(target.id, node, _string(below), text)


def _doc(node: ast.Module | ast.ClassDef | Function) -> str:
    return ast.get_docstring(node) or ""


def _string(node: ast.stmt | None) -> str:
    """Return the text of a statement that is nothing but a string, else ""."""
    value = node.value if isinstance(node, ast.Expr) else None
    text = value.value if isinstance(value, ast.Constant) else None
    return cleandoc(text) if isinstance(text, str) else ""


def _called(value: ast.expr | None) -> str:
    """Return the name of the function whose call an expression is, else ""."""
    return ast.unparse(value.func) if isinstance(value, ast.Call) else ""


def _hidden(name: str, value: ast.expr | None) -> bool:
    """Whether an assignment is private, a type variable or a logger."""
    return name.startswith("_") or _called(value) in ("TypeVar", "logging.getLogger")


def _shown(node: Function) -> bool:
    """Whether a function is public, and neither a setter nor one of several signatures.

    A constructor is, if it takes something.
    """
    kinds = {ast.unparse(each).rpartition(".")[2] for each in node.decorator_list}
    if kinds & {"setter", "overload"}:
        return False
    takes = len(node.args.args) + len(node.args.kwonlyargs) > 1
    return not node.name.startswith("_") or (node.name == "__init__" and takes)


def _class_line(node: ast.ClassDef) -> str:
    bases = ", ".join(ast.unparse(each) for each in [*node.bases, *node.keywords])
    return "\n".join([*_decorators(node), f"class {node.name}({bases})".replace("()", "")])


def _decorators(node: ast.ClassDef | Function) -> list[str]:
    return [f"@{ast.unparse(each)}" for each in node.decorator_list]


def _signature(node: Function, text: str) -> str:
    """Return the first lines of a function, up to its result, as they are in the file."""
    assert node.returns is not None, f"{node.name} has no annotation"
    last = node.returns.end_lineno
    lines = text.splitlines()[node.lineno - 1 : last]
    lines[-1] = lines[-1].encode()[: node.returns.end_col_offset].decode()
    return "\n".join([*_decorators(node), *(line[node.col_offset :] for line in lines)])


def _assignment(name: str, node: ast.Assign | ast.AnnAssign, doc: str, text: str) -> Definition:
    def written(part: ast.expr) -> str:
        return " ".join((ast.get_source_segment(text, part) or "").split())

    value = node.value
    default = "" if value is None else written(value)
    if isinstance(value, ast.Call) and _called(value) == "setting":
        doc = ast.literal_eval(value.args[0])
        default = written(value.args[1]) if len(value.args) > 1 else ""
    elif isinstance(value, ast.Call) and _called(value) == "field":
        given = {each.arg: written(each.value) for each in value.keywords}
        default = given.get("default", "")
        if factory := given.get("default_factory"):
            default = f"{factory}()"
    code = f"{name}: {written(node.annotation)}" if isinstance(node, ast.AnnAssign) else name
    if default and code.endswith(": TypeAlias"):
        code += f" = {default}"
    elif default:
        short = f"{_called(value)}(...)" if _called(value) else "..."
        code += f" = {default if len(default) <= _LONGEST_VALUE else short}"
    return Definition(name, code, doc, assigned=True)


def origin(module: str, name: str) -> tuple[str, str]:
    """Return the module that defines a name, and its name there; a module is `(module, "")`."""
    place = source(module)
    if name in place.defined:
        return module, name
    if name not in place.imported:
        raise LookupError(f"{module}.{name} is public but neither defined nor imported")
    above, original = place.imported[name]
    whole = f"{above}.{original}"
    return (whole, "") if whole in public_modules() else origin(above, original)


@functools.cache
def places() -> dict[tuple[str, str], tuple[str, str]]:
    """Return where each definition is described: public module, and its name there."""
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for module in public_modules():
        for name in source(module).public:
            it = origin(module, name)
            if it not in found or found[it][0] != it[0]:
                found[it] = (module, name) if it[1] else it
    return found


def described(module: str) -> list[str]:
    """Return the names that a module's page describes, in order."""
    names = source(module).public
    return [name for name in names if places()[origin(module, name)] == (module, name)]


def page(module: str) -> str:
    """Return the page of a module."""
    here = described(module)
    exported = [
        f"- {_link(name, *places()[it])}: {_summary(*it)}"
        for name in source(module).public
        if name not in here
        for it in [origin(module, name)]
    ]
    if exported:
        exported = ["Described with the modules that they come from:", "\n".join(exported)]
    parts = [f"# {module}", _LEAD, markdown(source(module).doc), *exported]
    for name in here:
        defined_in, original = origin(module, name)
        parts += _section(name, source(defined_in).defined[original])
    return _joined(parts)


def index() -> str:
    """Return the page that lists the others."""
    rows = ["| module | what it is for |", "|---|---|"]
    rows += [f"| {_link(module, module)} | {_summary(module, '')} |" for module in public_modules()]
    about = (
        "Public is what these pages describe. All other modules, and names with a leading "
        "underscore, are private: they may change in any release. Environments have pages of "
        "their own, [the catalogue](../envs/README.md)."
    )
    return _joined(["# The public modules", _LEAD, about, "\n".join(rows)])


def _joined(parts: Sequence[str]) -> str:
    return "\n\n".join(filter(None, parts)) + "\n"


def _link(text: str, module: str, name: str = "") -> str:
    """Return a link to a module's page, or to the section about a name there."""
    anchor = ""
    if name:
        # Of headings that differ in case alone, the second one's anchor is numbered.
        before = described(module)[: described(module).index(name)]
        same = [each.lower() for each in before].count(name.lower())
        anchor = f"#{name.lower()}{f'-{same}' if same else ''}"
    return f"[`{text}`]({module}.md{anchor})"


def _summary(module: str, name: str) -> str:
    """Return the first sentence about a name, or about a module."""
    doc = source(module).defined[name].doc if name else source(module).doc
    first = " ".join(markdown(doc).partition("\n\n")[0].split())
    return re.split(r"(?<=[.!?])\s", first)[0]


def _section(name: str, it: Definition) -> list[str]:
    """Return the section about a name, a text for each paragraph."""
    parts = [f"## `{name}`", _python(it.code), markdown(it.doc)]
    fields = [f"- `{each.code}`{_told(each.doc)}" for each in it.inside if each.assigned]
    if fields:
        parts += ["**Fields**", "\n".join(fields)]
    for method in it.inside:
        if not method.assigned:
            parts += [f"### `{name}.{method.name}`", _python(method.code), markdown(method.doc)]
    return parts


def _told(doc: str) -> str:
    return f": {' '.join(markdown(doc).split())}" if doc else ""


def _python(code: str) -> str:
    return f"```python\n{code}\n```"


def markdown(docstring: str) -> str:
    """Return a docstring as Markdown: its sections, such as `Args`, become lists."""
    lines: list[str] = []
    section = ""
    for line in docstring.splitlines():
        heading = _SECTION.match(line)
        if heading:
            section = heading[1]
            lines += [f"**{section}**", ""]
        elif section and line.startswith("    "):
            lines.append(_item(section, line[4:]))
        else:
            section = section if not line else ""
            lines.append(line)
    # Indented code is shown as it is.
    return "\n\n".join(
        part if part.startswith("    ") else _escaped(part)
        for part in "\n".join(lines).strip().split("\n\n")
    )


def _item(section: str, line: str) -> str:
    """Return a line of a section: an entry begins an item, other lines go on with one."""
    if section in ("Returns", "Yields"):
        return line
    entry = _ENTRY.match(line)
    if entry is None:
        return f"  {line.strip()}"
    names = ", ".join(f"`{name}`" for name in entry[1].split(", "))
    return f"- {names}: {entry[2]}"


def _escaped(text: str) -> str:
    """Keep Markdown from taking `<name>` outside of code for a tag."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else part.replace("<", "&lt;") for part in parts)


def write(folder: Path, check: bool) -> Mapping[str, str]:
    """Write or check all pages; return what is wrong, by page."""
    texts = {INDEX: index()} | {f"{module}.md": page(module) for module in public_modules()}
    return pages.put_all(folder, texts, "is about no public module", check=check)


def main(argv: Sequence[str] | None = None) -> int:
    """Write or check the pages; return the exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    return pages.command("python tools/api.py", __doc__ or "", write, arguments)


if __name__ == "__main__":
    sys.exit(main())

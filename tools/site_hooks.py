"""What the site needs beyond MkDocs: links that leave docs/, and notebooks as pages.

Pages link to files of the repository by relative paths, as GitHub wants it. On the site such a file
is a page of its own below `source/`, so that every link works there, too, and without a network.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).parents[1]
SOURCE = "source"
LANGUAGES = {".py": "python", ".toml": "toml", ".sh": "bash", ".yaml": "yaml", ".yml": "yaml"}
FENCE = re.compile(r"^(`{3,}|~{3,})[^\n]*\n.*?^\1`*\s*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
BOOST = {
    "questions.md": 6.0,
    "tutorials/": 3.0,
    "concepts.md": 2.0,
    "glossary.md": 2.0,
    "api/": 0.4,
    "envs/": 0.6,
    "parity/": 0.4,
    "baselines.md": 0.4,
    "benchmarks.md": 0.4,
    "conformance-results.md": 0.4,
}
"""What the search ranks higher or lower: pages for a first look, long pages of results."""
_HIDDEN = "---\nsearch:\n  exclude: true\n---\n\n"


def in_prose(text: str, change: Callable[[str], str]) -> str:
    """Change what is outside fenced blocks."""
    parts, at = [], 0
    for fence in FENCE.finditer(text):
        parts += [change(text[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join([*parts, change(text[at:])])


def uri_of(path: str) -> str:
    """Return the page, or the file, on the site of a file of the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    target = ROOT / path
    if target.is_dir():
        return f"{SOURCE}/{path}/README.md"
    return f"{SOURCE}/{path}" if path.endswith(".md") else f"{SOURCE}/{path}.md"


def rewritten(text: str, path: str, uri: str, found: Callable[[str], Any]) -> str:
    """Return a page whose links to files of the repository lead to their pages on the site.

    Args:
        text: The page.
        path: Its file in the repository; links are relative to it.
        uri: Its page on the site.
        found: Called with each file that is linked, by its path in the repository.
    """

    def change(match: re.Match[str]) -> str:
        if "://" in match[2] or match[2].startswith("mailto:"):
            return match[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), match[2]))
        if not (ROOT / target).exists():
            raise PluginError(f"{path}: there is no {target}")
        if path.startswith("docs/") and target.startswith("docs/"):
            return f"{match[1]}{match[2].replace('.ipynb', '.md')}{match[3]}"
        found(target)
        leads = posixpath.relpath(uri_of(target), posixpath.dirname(uri))
        return f"{match[1]}{leads}{match[3]}"

    return in_prose(text, lambda prose: LINK.sub(change, prose))


def source_page(path: str, found: Callable[[str], Any]) -> str:
    """Return the page about a file or a folder of the repository."""
    target = ROOT / path
    if target.is_dir():
        readme = target / "README.md"
        if readme.exists():
            text = readme.read_text(encoding="utf-8")
            return _HIDDEN + rewritten(text, f"{path}/README.md", uri_of(path), found)
        files = sorted(
            file.name
            for file in target.iterdir()
            if file.is_file() and not file.name.startswith((".", "__"))
        )
        for file in files:
            found(f"{path}/{file}")
        here = posixpath.dirname(uri_of(path))
        links = [
            f"- [`{file}`]({posixpath.relpath(uri_of(f'{path}/{file}'), here)})" for file in files
        ]
        return f"{_HIDDEN}# `{path}`\n\n" + "\n".join(links) + "\n"
    text = target.read_text(encoding="utf-8")
    if path.endswith(".md"):
        return _HIDDEN + rewritten(text, path, uri_of(path), found)
    ticks = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, ticks + 1)
    language = LANGUAGES.get(target.suffix, "text")
    return f"{_HIDDEN}# `{path}`\n\n{fence}{language}\n{text.rstrip()}\n{fence}\n"


def notebook_page(path: Path) -> str:
    """Return a notebook as a page: texts, code and what the code printed."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            said = output.get("text") or output.get("data", {}).get("text/plain") or []
            parts.append(f"```text\n{''.join(said).rstrip()}\n```")
    title, *rest = parts
    download = f'<a href="{path.name}" download>This page as a notebook</a>'
    return "\n\n".join([title, download, *rest]) + "\n"


def on_files(files: Files, *, config: Any) -> Files:
    """Add a page for every file of the repository that a page links to."""
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        page = notebook_page(Path(file.abs_src_path or ""))
        uri = file.src_uri.replace(".ipynb", ".md")
        files.append(File.generated(config, uri, content=page))
    waiting: list[str] = []
    for file in files.documentation_pages():
        text = file.content_string
        rewritten(text, f"docs/{file.src_uri}", file.src_uri, waiting.append)
    made: set[str] = set()
    while waiting:
        path = waiting.pop()
        uri = uri_of(path)
        if uri in made or path.startswith("docs/"):
            continue
        made.add(uri)
        page = File.generated(
            config,
            uri,
            content=source_page(path, waiting.append),
            inclusion=InclusionLevel.NOT_IN_NAV,
        )
        files.append(page)
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Point links of a page at the site's pages; say how high the search ranks it."""
    uri = page.file.src_uri
    for begins, boost in BOOST.items():
        if uri.startswith(begins):
            page.meta.setdefault("search", {"boost": boost})
    if uri.startswith(f"{SOURCE}/"):
        return markdown
    return rewritten(markdown, f"docs/{uri}", uri, lambda _: None)


def on_page_content(html: str, **_: Any) -> str:
    r"""Write `\|` in the code of tables as GitHub does: without the backslash."""
    return re.sub(
        r"<code>[^<]*</code>",
        lambda code: code[0].replace("\\|", "|"),
        html,
    )

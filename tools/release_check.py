"""Checks what would be released: builds every package and looks at its files.

    make release-check

Builds wheel and source distribution of each package twice and names every problem:

- the two builds differ;
- a version, or the version of one of our packages that another one needs, is not the same;
- metadata are not valid, or the README cannot be shown (`twine check --strict`);
- a link of the README leads nowhere outside of the repository;
- the licence, or the licence of data that the wheel holds, is not declared (PEP 639), or data have
  no note of where they come from;
- the wheel holds something beside its package, or the source distribution lacks it;
- `pip install --find-links` of the wheels into an empty environment fails, or `pip check` does.

`--trainers` also installs each adapter beside its trainer, in the environments that `make env-...`
has built, and runs its doctor.
"""

from __future__ import annotations

import argparse
import email
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from email.message import Message
from functools import cached_property
from pathlib import Path

import tomllib

ROOT = Path(__file__).parents[1]
INSTALLS = ("gem-core", "gem-core[math,python]", "gem-bench", "gem-eval", "gem-train")
"""What is installed into empty environments, one after the other."""
TRAINERS = ("verl", "openrlhf", "oat", "rl2", "tinker", "trl", "skyrl")
"""Whose environments may hold an adapter; TRL is in `dev`."""
TINY = ROOT / "packages" / "gem-cpu" / "src" / "gem_cpu" / "models" / "tiny"
_LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)]+)\)")
_OURS = re.compile(r"^(gem-[a-z0-9]+)(?:\[[^]]*\])?==([^ ;]+)")


class CheckError(Exception):
    """A command of the check itself failed."""


def run(*command: str | Path, **environment: str) -> str:
    """Return what a command prints.

    Raises:
        CheckError: It failed.
    """
    done = subprocess.run(
        [str(word) for word in command],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        words = (done.stdout + done.stderr).strip().splitlines()[-20:]
        raise CheckError("\n".join([" ".join(map(str, command)), *words]))
    return done.stdout


@dataclass(frozen=True)
class Built:
    """The files of a package."""

    name: str
    wheel: Path
    source: Path

    @property
    def package(self) -> str:
        """Its import name."""
        return self.name.replace("-", "_") if self.name != "gem-core" else "gem"

    @cached_property
    def names(self) -> list[str]:
        """Files in the wheel."""
        with zipfile.ZipFile(self.wheel) as archive:
            return archive.namelist()

    @cached_property
    def metadata(self) -> Message:
        """The wheel's `METADATA`; its body is the README."""
        [name] = (n for n in self.names if n.endswith(".dist-info/METADATA"))
        with zipfile.ZipFile(self.wheel) as archive:
            return email.message_from_bytes(archive.read(name))


def build(names: Sequence[str], folder: Path, date: str) -> list[Built]:
    """Build packages into a folder; `date` is the time of files in archives."""
    built = []
    for name in names:
        into = folder / name
        command: list[str | Path] = [
            sys.executable,
            "-m",
            "build",
            "-q",
            "--no-isolation",
            "-o",
            into,
        ]
        run(*command, ROOT / "packages" / name, SOURCE_DATE_EPOCH=date)
        [wheel], [source] = into.glob("*.whl"), into.glob("*.tar.gz")
        built.append(Built(name, wheel, source))
    return built


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def reproducible(first: Sequence[Built], second: Sequence[Built]) -> Iterator[str]:
    """Name the files that are not the same in both builds."""
    for one, other in zip(first, second, strict=True):
        for mine, theirs in ((one.wheel, other.wheel), (one.source, other.source)):
            if digest(mine) != digest(theirs):
                yield f"{mine.name}: two builds of the same files differ"


def versions(packages: Sequence[Built]) -> Iterator[str]:
    """Name the versions that are not those of gem-core."""
    [version] = (each.metadata["Version"] for each in packages if each.name == "gem-core")
    for each in packages:
        if each.metadata["Version"] != version:
            yield f"{each.name}: version {each.metadata['Version']}, gem-core has {version}"
        for needed in each.metadata.get_all("Requires-Dist", []):
            if needed.startswith("gem-"):
                found = _OURS.match(needed)
                if found is None or found[2] != version:
                    yield f"{each.name}: needs {needed!r}, and not {version} of it"


def links(packages: Sequence[Built]) -> Iterator[str]:
    """Name the links of READMEs that only work in the repository."""
    for each in packages:
        readme = each.metadata.get_payload()
        for link in _LINK.findall(str(readme)):
            yield f"{each.name}: the README's link to {link} leads nowhere on the package index"


def licences(packages: Sequence[Built]) -> Iterator[str]:
    """Name missing licences and notes of origin."""
    for each in packages:
        declared = each.metadata.get_all("License-File", [])
        if each.metadata["License-Expression"] is None or "LICENSE" not in declared:
            yield f"{each.name}: declares no licence"
        held = [n for n in each.names if Path(n).name.startswith("LICENSE-")]
        for name in held:
            if ".dist-info/" not in name and not any(
                name.endswith(d.removeprefix("src/")) for d in declared
            ):
                yield f"{each.name}: the licence {name} is not declared (license-files)"
        for folder in {str(Path(n).parent) for n in held if ".dist-info/" not in n}:
            if f"{folder}/README.md" not in each.names:
                yield f"{each.name}: {folder} has a licence of others and no README.md on origins"


def contents(packages: Sequence[Built]) -> Iterator[str]:
    """Name what should not be in a wheel, and what a source distribution lacks."""
    for each in packages:
        for name in each.names:
            first = name.partition("/")[0]
            # Hydra finds plugins in a package of this name.
            if first not in (each.package, "hydra_plugins") and not first.endswith(".dist-info"):
                yield f"{each.name}: the wheel holds {name}"
        if f"{each.package}/py.typed" not in each.names:
            yield f"{each.name}: the wheel has no py.typed"
        with tarfile.open(each.source) as archive:
            known = {name.partition("/")[2] for name in archive.getnames()}
        for name in each.names:
            if name.startswith(f"{each.package}/") and f"src/{name}" not in known:
                yield f"{each.source.name}: lacks src/{name}"


def metadata(packages: Sequence[Built]) -> Iterator[str]:
    """Name what the package index would refuse or could not show."""
    for each in packages:
        try:
            run(sys.executable, "-m", "twine", "check", "--strict", each.wheel, each.source)
        except CheckError as error:
            yield f"{each.name}: {error}"


def installs(links_: Path) -> Iterator[str]:
    """Install from the wheels into empty environments."""
    for what in INSTALLS:
        with tempfile.TemporaryDirectory() as folder:
            venv.create(folder, with_pip=True)
            python = Path(folder, "bin", "python")
            pip: list[str | Path] = [python, "-m", "pip", "-q", "--disable-pip-version-check"]
            try:
                run(*pip, "install", "--find-links", links_, what)
                run(*pip, "check")
                run(python, "-c", "import gem; gem.make('game:Wordle-v0').reset(seed=0)")
            except CheckError as error:
                yield f"pip install {what}: {error}"


def beside_trainers(links_: Path) -> Iterator[str]:
    """Install each adapter beside its trainer, and run its doctor."""
    for trainer in TRAINERS:
        known = ROOT / ".venvs" / ("dev" if trainer == "trl" else trainer)
        if not (known / "bin" / "python").exists():
            yield f"gem-{trainer}: there is no environment of the trainer; make env-{known.name}"
            continue
        with tempfile.TemporaryDirectory() as folder:
            venv.create(folder, with_pip=False)
            python = Path(folder, "bin", "python")
            [site] = Path(folder, "lib").glob("python*/site-packages")
            [third] = known.glob("lib/python*/site-packages/third_party.pth")
            (site / third.name).write_text(third.read_text())
            pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", python, "-q"]
            pip.append("--disable-pip-version-check")
            try:
                # What the trainer lists and a run never imports is not there: look at ours only.
                names = ["gem-core[math,python]", "gem-train", "gem-cpu", f"gem-{trainer}"]
                parts = ("gem-math", "gem-sandbox", "gem-judge")
                run(*pip, "install", "--no-deps", "--find-links", links_, *parts)
                run(*pip, "install", "--no-deps", "--find-links", links_, *names)
                # Stand-ins for what trainers need a GPU for; Tinker's doctor asks a server.
                folders = (site / "gem_cpu" / "startup", site / "gem_cpu" / "rl2_stand_ins")
                stand_ins = os.pathsep.join(map(str, folders[: 2 if trainer == "rl2" else 1]))
                hook = "gem_openrlhf.worker.runtime_env_hook" if trainer == "openrlhf" else ""
                serve = (python, "-m", "gem_cpu.tinker_server", "--model", TINY, "--")
                doctor = (python, "-m", f"gem_{trainer}.doctor")
                command = (*serve, *doctor) if trainer == "tinker" else doctor
                run(*command, GEM_CPU="1", PYTHONPATH=stand_ins, RAY_RUNTIME_ENV_HOOK=hook)
            except CheckError as error:
                yield f"gem-{trainer} beside its trainer: {error}"
                continue
            checked = subprocess.run(
                [*map(str, pip), "check"], capture_output=True, text=True, check=False
            )
            for line in checked.stdout.splitlines():
                if line.startswith("gem-"):
                    yield f"gem-{trainer} beside its trainer: {line}"


def main(argv: Sequence[str] | None = None) -> int:
    """Print every problem; return 1 if there is one."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trainers", action="store_true", help="install adapters, too")
    parser.add_argument("--offline", action="store_true", help="install nothing")
    parser.add_argument("--out", type=Path, help="folder for the files, if there is no problem")
    args = parser.parse_args(argv)
    names = sorted(
        tomllib.loads(path.read_text())["project"]["name"]
        for path in (ROOT / "packages").glob("gem-*/pyproject.toml")
    )
    with tempfile.TemporaryDirectory() as folder:
        date = run("git", "-C", ROOT, "log", "-1", "--format=%ct").strip()
        first = build(names, Path(folder, "first"), date)
        second = build(names, Path(folder, "second"), date)
        wheels = Path(folder, "wheels")
        wheels.mkdir()
        for each in first:
            os.link(each.wheel, wheels / each.wheel.name)
        checks: list[tuple[str, Callable[[], Iterator[str]]]] = [
            ("reproducible", lambda: reproducible(first, second)),
            ("versions", lambda: versions(first)),
            ("metadata", lambda: metadata(first)),
            ("links", lambda: links(first)),
            ("licences", lambda: licences(first)),
            ("contents", lambda: contents(first)),
        ]
        checks += [] if args.offline else [("installs", lambda: installs(wheels))]
        checks += [("trainers", lambda: beside_trainers(wheels))] if args.trainers else []
        failed = 0
        for name, check in checks:
            problems = list(check())
            failed += len(problems)
            print(
                f"{name}: {len(problems) or 'no'} problem{'s' * (len(problems) != 1)}", flush=True
            )
            for problem in problems:
                print(f"  {problem}")
        if args.out and not failed:
            args.out.mkdir(parents=True, exist_ok=True)
            for file in (file for each in first for file in (each.wheel, each.source)):
                shutil.copy(file, args.out)
    print(f"{len(names)} packages: {'not ready' if failed else 'ready'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

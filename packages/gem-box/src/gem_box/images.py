"""Images of boxes: this machine's system, imported file systems, and what Dockerfiles make of them.

Everything is a folder in the cache (`GEM_BOX_CACHE`, else ~/.cache/gem-core/boxes), named by its
content. It can be deleted at any time.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gem.blame import boundary
from gem.errors import ConfigurationError
from gem.json_lines import read_json
from gem_box.box import PATH
from gem_box.context import ignored, sources
from gem_box.dockerfile import FILE, IMAGES_PATH, Dockerfile, Step
from gem_box.folders import Folder
from gem_box.layouts import Layout
from gem_box.overlay import OverlayBox
from gem_box.problems import Problem
from gem_box.users import ids
from gem_sandbox import Limits

HOST = "host"
"""Name of the image that is this machine's own system."""
_FORMAT = "2"
_BUILD = Limits(cpu_s=600.0, memory_mb=4096, disk_mb=8192, processes=2048)


@dataclass(frozen=True)
class Image:
    """What a box begins with; the parameters of `OverlayBox`."""

    layers: tuple[Path, ...] = ()
    host: bool = False
    env: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"

    def box(self, limits: Limits, env: dict[str, str], workdir: str | None = None) -> OverlayBox:
        """Return a box with this image."""
        return OverlayBox(
            self.layers,
            host=self.host,
            env={**self.env, **env},
            workdir=workdir or self.workdir,
            limits=limits,
        )


def cache() -> Path:
    """Return the folder of images."""
    named = os.environ.get("GEM_BOX_CACHE")
    folder = Path(named) if named else Path.home() / ".cache" / "gem-core" / "boxes"
    # What another user's ids own is of no use here.
    users = ids()
    folder = folder / f"{users.first}-{users.size}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def base(name: str) -> Image:
    """Return an image by its name, with the variables and the folder that it says itself.

    Raises:
        ConfigurationError: No such image was imported.
    """
    if name == HOST:
        return Image(host=True)
    if not is_here(name):
        raise ConfigurationError(
            f"image {name!r} is not here: import it (gem harbor import {name} FILE.tar), or run "
            "the task in this machine's own system with image=host"
        )
    place = _place(name)
    own = read_json(_settings(place)) if _settings(place).exists() else {}
    return Image((place,), **own)


def state(image: Image) -> str:
    """Return what differs once another image is imported under the name, or the host changes."""
    lines = [f"{layer.stat().st_ino} {layer.stat().st_ctime_ns}\n" for layer in image.layers]
    if image.host:
        for name in ("/etc/os-release", "/var/lib/dpkg/status", "/usr/bin"):
            with contextlib.suppress(OSError):
                lines.append(f"{name} {Path(name).stat().st_mtime_ns}\n")
    return "".join(lines)


def is_here(name: str) -> bool:
    """Return whether an image can be begun from."""
    return name == HOST or _place(name).is_dir()


def _place(name: str) -> Path:
    return cache() / "images" / _file(name)


def used(task: Folder, image: str | None = None) -> tuple[str, bool]:
    """Return the name of the image that a task begins from, and whether its Dockerfile is built.

    Harbor takes `docker_image` without building anything; so do we, if it was imported.
    """
    named, dockerfile = task.docker_image, task.dockerfile
    if image is not None:
        return image, dockerfile is not None
    if dockerfile is None or (named is not None and is_here(named)):
        return named or "", False
    return dockerfile.image, True


def problems(task: Folder, image: str | None = None) -> list[Problem]:
    """Return why a task cannot run in a box with an image, whether that is here or not."""
    _, builds = used(task, image)
    return [*task.problems, *(task.build_problems if builds else ())]


def built(task: Folder, image: str | None = None) -> Image:
    """Return the image of a task; it is built once, and found in the cache after that.

    Args:
        task: A task without `problems`.
        image: Begin from this image instead of the one that the task names.

    Raises:
        ConfigurationError: The image is missing, or a command of its Dockerfile fails.
        UnreachableError: No box can be started.
    """
    name, builds = used(task, image)
    begin = base(name)
    if task.dockerfile is None:
        return begin
    variables = task.dockerfile.env.items()
    env = begin.env | {name: _extended(value, begin) for name, value in variables}
    workdir = str(Path(begin.workdir) / task.dockerfile.workdir)
    done = Image(begin.layers, begin.host, env, workdir)
    if not builds or all(step.kind in ("env", "arg") for step in task.dockerfile.steps):
        return done
    place = cache() / "layers" / _digest(begin, task)
    with locked(place):
        if not place.is_dir():
            _build(begin, task, place)
    return Image((place, *begin.layers), begin.host, env, workdir)


def imported(name: str, source: Path) -> Path:
    """Unpack an image, or a root file system, under a name.

    Args:
        name: Of the image; of several in a layout the one with this name is taken.
        source: An OCI layout (a folder or an archive), an archive of `docker save`, or a root file
            system as `docker export` and `mmdebstrap` write it, which has no variables and no
            folder of its own.

    Raises:
        ConfigurationError: It is none of them, or has no such image for this machine.
    """
    place = _place(name)
    with contextlib.closing(Layout(source)) as layout, locked(place), _fresh(place) as folder:
        if not layout.has_image():
            _unpacked(source, folder)
            _settings(place).unlink(missing_ok=True)
            return place
        layers, settings = layout.image(name)
        with tempfile.NamedTemporaryFile() as whole:
            layout.write(layers, whole)
            whole.flush()
            _unpacked(Path(whole.name), folder)
        _settings(place).write_text(json.dumps(asdict(settings)))
    return place


def _unpacked(archive: Path, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as empty:
        # Read by the box's root, who owns nothing outside of it.
        Path(empty).chmod(0o755)
        box = OverlayBox([Path(empty)], host=False, limits=_BUILD, upper=folder)
        with contextlib.closing(box):
            box.start()
            box.unpack(archive)


def _settings(place: Path) -> Path:
    return place.with_name(f"{place.name}.json")


def _extended(text: str, begin: Image) -> str:
    """Return a text of a Dockerfile with the path of the image that it begins from."""
    return text.replace(IMAGES_PATH, begin.env.get("PATH", PATH))


def _build(begin: Image, task: Folder, place: Path) -> None:
    assert task.dockerfile is not None
    limit = task.table("environment").get("build_timeout_sec", _BUILD.cpu_s)
    with _fresh(place) as folder:
        box = OverlayBox(begin.layers, host=begin.host, limits=_BUILD, upper=folder)
        with contextlib.closing(box), boundary("sandbox"):
            box.start()
            _carry_out(task.dockerfile, task, box, float(limit), begin)


def _carry_out(
    dockerfile: Dockerfile, task: Folder, box: OverlayBox, limit: float, begin: Image
) -> None:
    args: dict[str, str] = {}
    env = dict(begin.env)
    workdir = begin.workdir
    for step in dockerfile.steps:
        if step.kind in ("env", "arg"):
            values = env if step.kind == "env" else args
            values[step.words[0]] = _extended(step.words[1], begin)
        elif step.kind == "workdir":
            workdir = str(Path(begin.workdir) / step.words[0])
            box.put(None, workdir)
        elif step.kind == "copy":
            _copy(step, task.path / "environment", box, workdir)
        else:
            ran = box.execute(step.words, limit, cwd=workdir, env={**args, **env})
            if ran.code:
                said = ran.output.decode("utf-8", "replace")[-1000:]
                raise ConfigurationError(
                    f"task {task.name!r}: {FILE}, line {step.line}: "
                    f"RUN {step.words[-1]:.200} failed with exit code {ran.code}"
                    f"{f' (limit: {ran.limit_hit})' if ran.limit_hit else ''}: {said}"
                )


def _copy(step: Step, context: Path, box: OverlayBox, workdir: str) -> None:
    *patterns, target = step.words
    found = [place for pattern in patterns for place in sources(context, pattern)]
    at = os.path.normpath(f"{workdir}/{target}" if not target.startswith("/") else target)
    into = target.endswith(("/", ".")) or len(found) > 1
    into = into or box.execute(["/bin/sh", "-c", 'test -d "$0"', at], 10).code == 0
    with tempfile.TemporaryDirectory() as name:
        for number, source in enumerate(found):
            copied = _left(context, source, Path(name) / f"{number}")
            box.put(copied, at if source.is_dir() or not into else f"{at}/{source.name}")


def _left(context: Path, source: Path, folder: Path) -> Path:
    """Return a source, or a copy of the folder without what .dockerignore leaves out."""
    leaves_out = ignored(context)
    if not source.is_dir() or not any(map(leaves_out, source.rglob("*"))):
        return source
    # A folder that is left out may have files that are not.
    for place in sorted(source.rglob("*")):
        target = folder / place.relative_to(source)
        if not leaves_out(place):
            target.parent.mkdir(parents=True, exist_ok=True)
            if place.is_dir() and not place.is_symlink():
                target.mkdir(exist_ok=True)
                shutil.copystat(place, target)
            else:
                shutil.copy2(place, target, follow_symlinks=False)
    folder.mkdir(exist_ok=True)
    return folder


@contextlib.contextmanager
def _fresh(place: Path) -> Iterator[Path]:
    """Yield a folder for changes; what is in it becomes `place` if the block ends well."""
    place.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="building-", dir=place.parent))
    try:
        folder.chmod(0o755)
        if ids().mapped:
            os.chown(folder, ids().first, ids().first)
        yield folder
        shutil.rmtree(place, ignore_errors=True)
        (folder / "upper").rename(place)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def locked(place: Path) -> Iterator[None]:
    """Let one process at a time make a folder."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_name(f"{place.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _file(name: str) -> str:
    safe = re.sub(r"[^A-Za-z0-9._-]", "-", name)[:80]
    return f"{safe}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def _digest(begin: Image, task: Folder) -> str:
    """Return what determines the layer of a task."""
    known = hashlib.sha256()
    known.update(f"{_FORMAT} {begin} {task.dockerfile}\n{state(begin)}".encode())
    for path in sorted((task.path / "environment").rglob("*")):
        if path.is_file():
            known.update(f"{path.relative_to(task.path)} {path.stat().st_mode}\n".encode())
            known.update(hashlib.sha256(path.read_bytes()).digest())
    return known.hexdigest()[:32]

"""The command `harbor`: what of a folder of tasks runs here, images, the tasks of this package."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from gem.blame import cause_of
from gem.errors import ConfigurationError, GemError
from gem_box.choosing import PRISTINE, SHARED
from gem_box.env import earned
from gem_box.folders import Folder, found, read
from gem_box.images import HOST, imported, is_here, problems, used
from gem_box.limits import DISK_MB, MEMORY_MB, limits
from gem_box.problems import Problem, told
from gem_box.sample import write_sample
from gem_sandbox import Limits

_WIDTH = 32


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status, 1 if a task cannot run or a solution fails."""
    parser = argparse.ArgumentParser(prog="python -m gem harbor", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    check = commands.add_parser(
        "check", help="say of each task whether it runs in a box, or why not"
    )
    check.add_argument("folder", type=Path, help="a task folder, or one that has task folders")
    check.add_argument("--image", help="image of all tasks; `host` is this machine's own system")
    about = "also play each task: its solution must earn 1, and doing nothing 0"
    check.add_argument("--play", action="store_true", help=about)
    for name, default in {"memory-mb": MEMORY_MB, "disk-mb": DISK_MB, "cpus": None}.items():
        about = f"the most that a task may ask for (default: {default or 'as many as there are'})"
        check.add_argument(f"--{name}", type=int, default=default, metavar="N", help=about)
    bring = commands.add_parser("import", help="give an image, or a root file system, a name")
    bring.add_argument("name", help="as in FROM, such as debian:bookworm-slim")
    about = "as `skopeo copy`, `docker save`, `docker export` or `mmdebstrap` writes it"
    bring.add_argument("archive", type=Path, help=about)
    sample = commands.add_parser("sample", help="write this package's tasks as folders")
    sample.add_argument("folder", type=Path, help="where; it must not exist")
    arguments = parser.parse_args(argv)
    if arguments.command == "import":
        print(f"{arguments.name}: {imported(arguments.name, arguments.archive)}")
        return 0
    if arguments.command == "sample":
        if arguments.folder.exists():
            raise ConfigurationError(f"{arguments.folder} exists already")
        print(f"{len(write_sample(arguments.folder))} tasks in {arguments.folder}")
        return 0
    most = {name: getattr(arguments, name) for name in ("memory_mb", "disk_mb", "cpus")}
    return _check(arguments.folder, arguments.image, arguments.play, most)


def _check(folder: Path, image: str | None, play: bool, most: Mapping[str, int | None]) -> int:
    kinds: Counter[tuple[str, str]] = Counter()
    counts: Counter[str] = Counter()
    paths = found(folder)
    for path in paths:
        task = read(path)
        reasons = [*problems(task, image), *_limits(task, most), *_image(task, image)]
        if not reasons and play:
            reasons = _played(task, image, most)
        kinds.update(dict.fromkeys(each.group for each in reasons).keys())
        instead = _instead(task, image)
        lines = told(reasons) or [f"runs{instead}"]
        counts["bad"] += bool(reasons)
        counts["instead"] += bool(instead and not reasons)
        if task.hint:
            lines.append(f"hint: {task.hint}")
            counts["hint"] += 1
        for name, line in zip_longest([task.name], lines, fillvalue=""):
            print(f"{name:{_WIDTH}} {line}".rstrip())
        sys.stdout.flush()
    print(f"\n{len(paths) - counts['bad']} of {len(paths)} tasks run here")
    if counts["instead"]:
        print(f"{counts['instead']} of them run on the host's files instead of their image")
    if counts["hint"]:
        print(f"{counts['hint']} tasks allow the network and may need it to be solved")
    for (file, kind), count in kinds.most_common():
        print(f"{count:5}  {file}: {kind}")
    return 1 if counts["bad"] else 0


def _instead(task: Folder, image: str | None) -> str:
    """Say which image the host's files stand for; nothing if the task asks for them itself."""
    own = task.docker_image or (task.dockerfile.image if task.dockerfile else HOST)
    return f" on the host's files instead of {own}" if image == HOST != own else ""


def _limits(task: Folder, most: Mapping[str, int | None]) -> list[Problem]:
    memory_mb, disk_mb = most["memory_mb"] or MEMORY_MB, most["disk_mb"] or DISK_MB
    return limits(task, Limits(memory_mb=memory_mb, disk_mb=disk_mb), most["cpus"])[1]


def _image(task: Folder, image: str | None) -> list[Problem]:
    name, _ = used(task, image)
    if not name or is_here(name):
        return []
    named = task.docker_image
    also = f", nor is {named}" if image is None and named not in (None, name) else ""
    text = f"{name} is not here{also} (gem harbor import brings it)"
    return [Problem("image", text, kind="it is not here")]


def _played(task: Folder, image: str | None, most: Mapping[str, Any]) -> list[Problem]:
    """Return what is wrong with the task's tests and solution."""
    reasons = []
    try:
        folder = str(task.path)
        reward = earned(folder, image, PRISTINE, **most)
        if reward < 1 <= earned(folder, image, SHARED, **most):
            reasons.append(Problem("tests", "the solution needs verifier=shared (or auto)"))
        elif reward < 1:
            kind = "the solution earns less than 1"
            reasons.append(Problem("tests", f"the solution earns {reward:g}", kind=kind))
        reward = earned(folder, image, PRISTINE, solves=False, **most)
        if reward > 0:
            kind = "doing nothing earns a reward"
            reasons.append(Problem("tests", f"doing nothing earns {reward:g}", kind=kind))
    except NotImplementedError:
        reasons.append(Problem("solution", "there is no solve.sh"))
    except GemError as error:
        cause = cause_of(error) or "image"
        reasons.append(Problem(cause, f"{error!s:.300}", kind="it failed"))
    return reasons

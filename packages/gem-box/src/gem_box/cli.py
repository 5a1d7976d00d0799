"""The command `harbor`: what of a folder of tasks runs here, images, the tasks of this package."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from gem.blame import cause_of
from gem.errors import ConfigurationError, GemError
from gem_box.choosing import PRISTINE, SHARED
from gem_box.env import earned
from gem_box.folders import Folder, found, read
from gem_box.images import HOST, base, imported
from gem_box.sample import write_sample

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
    about = "give a root file system (a tar archive) the name of an image"
    bring = commands.add_parser("import", help=about)
    bring.add_argument("name", help="as in FROM, such as debian:bookworm-slim")
    bring.add_argument("archive", type=Path, help="as `docker export` or `mmdebstrap` writes it")
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
    return _check(arguments.folder, arguments.image, arguments.play)


def _check(folder: Path, image: str | None, play: bool) -> int:
    reasons: Counter[str] = Counter()
    failed = 0
    tasks = [read(path) for path in found(folder)]
    for task in tasks:
        problems = list(task.problems) or _image(task, image)
        if not problems and play:
            problems = _played(task, image)
        print(f"{task.name:{_WIDTH}} {'; '.join(problems) if problems else 'runs'}")
        failed += bool(problems)
        reasons.update({each.partition(" (")[0].partition(": ")[2] or each for each in problems})
        sys.stdout.flush()
    print(f"\n{len(tasks) - failed} of {len(tasks)} tasks run here")
    for reason, count in reasons.most_common():
        print(f"{count:5}  {reason}")
    return 1 if failed else 0


def _image(task: Folder, image: str | None) -> list[str]:
    try:
        base(image or task.image)
    except ConfigurationError:
        return [f"image: {image or task.image} is not here (or --image {HOST})"]
    return []


def _played(task: Folder, image: str | None) -> list[str]:
    """Return what is wrong with the task's tests and solution."""
    problems = []
    try:
        folder = str(task.path)
        reward = earned(folder, image, PRISTINE)
        if reward < 1 <= earned(folder, image, SHARED):
            problems.append("tests: the solution needs verifier=shared (or auto)")
        elif reward < 1:
            problems.append(f"tests: the solution earns {reward:g}")
        reward = earned(folder, image, PRISTINE, solves=False)
        if reward > 0:
            problems.append(f"tests: doing nothing earns {reward:g}")
    except NotImplementedError:
        problems.append("solution: there is no solve.sh")
    except GemError as error:
        problems.append(f"{cause_of(error) or 'image'}: {error!s:.300}")
    return problems

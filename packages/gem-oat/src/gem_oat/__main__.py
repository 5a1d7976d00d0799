"""`python -m gem_oat`: oat's arguments in, Launchpad's processes out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from gem.errors import GemError
from gem_oat import TRAINER
from gem_oat.seams import SEAMS
from gem_train.seams import check_seams


def main(argv: Sequence[str] | None = None, *, learner: Any = None, actor: Any = None) -> int:
    """Train; return the exit status: 0 when all iterations are done, 2 for wrong arguments.

    Args:
        argv: Flags; by default the command line's.
        learner: Subclass of `gem_oat.Learner` to use instead; from a module that can be imported.
        actor: Subclass of `gem_oat.Actor` to use instead, from such a module, too.
    """
    try:
        TRAINER.check()
        from gem_oat.settings import parse

        args = parse(sys.argv[1:] if argv is None else argv)
        check_seams(TRAINER, SEAMS)
    except GemError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    import launchpad
    from oat.interface import get_program

    from gem_oat.learner import Learner
    from gem_oat.rollout import Actor
    from gem_oat.supervise import supervise

    program, resources = get_program(args, learner_cls=learner or Learner, actor_cls=actor or Actor)
    options = {"local_resources": resources, "terminal": "current_terminal"}
    return supervise(lambda: launchpad.launch(program, launch_type=args.launch_type, **options))


if __name__ == "__main__":
    sys.exit(main())

"""A run goes on: from OpenRLHF's last whole checkpoint, without what else a killed one left."""

from __future__ import annotations

import logging
import re
import shutil
from pathlib import Path
from typing import Any

from gem_openrlhf.record import EVALUATED
from gem_openrlhf.settings import Settings

logger = logging.getLogger(__name__)


def clear_leftovers(args: Any, settings: Settings) -> None:
    """Prepare for OpenRLHF to load a checkpoint and to play; called before it does.

    A killed run may have left a checkpoint that not all ranks, or not both models, have saved, and
    a part of an evaluation's episodes.

    Args:
        args: OpenRLHF's parsed command line.
        settings: Of the agent file.

    Raises:
        OSError: The folder of the checkpoints cannot be read or written.
    """
    if settings.record_dir is not None:
        shutil.rmtree(Path(settings.record_dir) / EVALUATED, ignore_errors=True)
    if args.ckpt.load_enable:
        models = ["_actor", *(["_critic"] if args.critic.model_name_or_path else [])]
        _mark_whole([Path(args.ckpt.path) / model for model in models])


def _mark_whole(folders: list[Path]) -> None:
    """Let the models' markers name the last checkpoint that all of them have.

    DeepSpeed loads the one that `latest` names, which its rank 0 writes when it has saved its own
    part; OpenRLHF leaves `metric.json` in a checkpoint once all ranks of the model have.

    Later ones are removed: saving them again would go on in what is there. Without a whole one the
    folders are renamed: OpenRLHF would take them for checkpoints.
    """
    found = [{file.parent.name for file in folder.glob("*/metric.json")} for folder in folders]
    tag = max(set.intersection(*found), key=_step, default=None)
    for folder in filter(Path.exists, folders):
        if tag is None:
            broken = folder.with_name(f"{folder.name}.broken")
            shutil.rmtree(broken, ignore_errors=True)
            folder.rename(broken)
            logger.warning("no whole checkpoint in %s, now %s: the run begins anew", folder, broken)
            continue
        for later in folder.iterdir():
            if _step(later.name) > _step(tag):
                shutil.rmtree(later)
        (folder / "latest").write_text(tag, encoding="utf-8")
        logger.warning("the run goes on from the checkpoint %s", folder / tag)


def _step(tag: str) -> int:
    """Return the number of updates before a checkpoint; 0 if the name is not one of OpenRLHF's."""
    found = re.fullmatch(r"(?:best_)?global_step(\d+)", tag)
    return int(found[1]) if found else 0

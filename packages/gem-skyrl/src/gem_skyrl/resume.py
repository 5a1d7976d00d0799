"""A run goes on from SkyRL's last whole checkpoint, without what else a killed one left."""

from __future__ import annotations

import itertools
import logging
import re
import shutil
import zipfile
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

LATEST = "latest_ckpt_global_step.txt"
"""Has the number of the last checkpoint; SkyRL writes it when the rest of that is there."""
STATE = "fully_async_state.pt"
"""Part of a checkpoint of the asynchronous loop, which is written after `LATEST`."""
ASIDE = "aside_"
"""Begins the new name of a folder that is set aside."""


def clear_leftovers(folder: Path, *, asynchronous: bool = False) -> int | None:
    """Let `LATEST` name the last whole checkpoint, and set later ones aside.

    They are renamed, not removed: SkyRL's default folder is one for all runs, so they may be
    another run's.

    Args:
        folder: SkyRL's `trainer.ckpt_path`.
        asynchronous: Whether the checkpoints are those of the asynchronous loop.

    Returns:
        Updates of the checkpoint that the run will go on from; None: it begins anew.

    Raises:
        OSError: The folder cannot be read or written.
    """
    names = {path: re.fullmatch(r"global_step_(\d+)", path.name) for path in folder.glob("*")}
    steps = {int(name[1]): path for path, name in names.items() if name}
    latest = folder / LATEST
    whole = [n for n in steps if n <= _last(latest, steps)]
    if asynchronous:
        # A file of PyTorch's is an archive, whose directory comes last.
        whole = [n for n in whole if zipfile.is_zipfile(steps[n] / STATE)]
    for number, path in steps.items():
        if not whole or number > max(whole):
            logger.warning("%s is not known to be whole; it is now %s", path, _set_aside(path))
    if not whole:
        latest.unlink(missing_ok=True)
        return None
    latest.write_text(str(max(whole)), encoding="utf-8")
    return max(whole)


def clear_published(engine: Any) -> None:
    """Remove the weights that an earlier start has given its engines by files.

    SkyRL numbers them from 1 at every start, and refuses numbers that are lower than before.

    Args:
        engine: SkyRL's `generator.inference_engine`.

    Raises:
        OSError: They cannot be removed.
    """
    if engine.weight_sync_backend != "delta" or engine.delta_weight_sync is None:
        return
    places = engine.delta_weight_sync
    received = Path(places.local_checkpoint_dir)
    # Nothing is there where the folder published to is an address, such as s3://.
    found = [*Path(places.sync_dir).glob("delta-[0-9]*")]
    found += [received / name for name in ("weights", "deltas", ".skyrl_weight_sync")]
    for folder in found:
        shutil.rmtree(folder, ignore_errors=not folder.exists())


def _set_aside(path: Path) -> Path:
    """Give a checkpoint a name that SkyRL does not take for one, and return it."""
    names = (path.with_name(f"{ASIDE}{number}.{path.name}") for number in itertools.count(1))
    return path.rename(next(name for name in names if not name.exists()))


def _last(latest: Path, steps: dict[int, Path]) -> int:
    """Return the number of the last checkpoint that was complete; -1 if none was."""
    if not latest.exists():
        return -1
    text = latest.read_text(encoding="utf-8").strip()
    # Killed while it wrote this file, SkyRL had completed the newest checkpoint.
    return int(text) if text.isdigit() else max(steps, default=-1)

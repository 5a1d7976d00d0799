"""What exports say of the record that they are made of."""

from __future__ import annotations

import hashlib
import json

from gem_train.record import RunRecord


def system_prompt(run: RunRecord) -> str | None:
    """Return the system prompt of all episodes of a record, if they had one."""
    known = run.meta.get("model", {})
    prompting = known.get("prompting", {}) if isinstance(known, dict) else {}
    return prompting.get("system_prompt") or run.meta.get("settings", {}).get("system") or None


def model_name(run: RunRecord) -> str:
    """Return the name of the model of an evaluation, or of the trainer."""
    return str(run.meta.get("trainer", ""))


def record_id(run: RunRecord, *of: str) -> str:
    """Return an id that another export of the record has, too."""
    text = json.dumps([run.meta, *of], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=11).hexdigest()

"""Positions of tokens of models that see, in a batch whose rows have equal lengths.

They are four numbers for each token, `[4, length]` for each row. Where the rows of a batch differ
in length, their positions arrive in the learner one after the other, `[4, tokens]`. Rows of one
length arrive as `[4 * rows, length]`, and verl (0.9.1) would read them as if they were the former.
`repair` puts them right; it changes nothing else.
"""

from __future__ import annotations

from typing import Any

from verl.utils import tensordict_utils

from gem_train.seams import Seam, called, check_seams
from gem_verl import TRAINER

SEAMS = (
    Seam("maybe_fix_3d_position_ids", "data"),
    called("nested_tensor_from_tensor_list", "tensors, ragged_idx"),
)
"""verl's functions that are replaced and called here."""

check_seams(TRAINER, SEAMS, owner=tensordict_utils)
_fix = tensordict_utils.maybe_fix_3d_position_ids


def repair(data: Any) -> None:
    """Do what verl does, and put positions of rows of one length into the form of others.

    Args:
        data: A batch in the learner; its `position_ids` may be replaced.
    """
    positions = data.get("position_ids", None)
    if positions is not None and positions.is_nested and positions.dim() == 3:
        values, offsets = positions.values(), positions.offsets()
        if int(offsets[-1]) == values.shape[0]:
            rows = list(values.split(offsets.diff().tolist()))
            data["position_ids"] = tensordict_utils.nested_tensor_from_tensor_list(rows, 2)
            return
    _fix(data)


tensordict_utils.maybe_fix_3d_position_ids = repair

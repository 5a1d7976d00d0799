"""Forward passes of a trainer's learner.

- `attention`, `pass_tokens`: defaults that depend on the experiment and the machine.
- `Passes`: how a trainer divides a batch into passes and optimiser steps, read from its settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Literal, TypeAlias

from gem_train.experiment.hardware import Hardware, language, model_config
from gem_train.experiment.runspec import RunSpec

Layout: TypeAlias = Literal["packed", "dynamic", "fixed", "server"]

UNPADDED = "none"
TO_PASS = "to the longest row of the pass"
TO_BATCH = "to the longest row of the batch"
"""What rows are filled up to."""

CPU_TOKENS = 1_024
"""Most tokens of the reference's forward pass on a CPU, which is faster with small tensors."""


@dataclass(frozen=True)
class Passes:
    """How a trainer divides an iteration into optimiser steps and training passes.

    A pass is a forward and backward pass of a data-parallel rank, whose GPUs may share its tokens.
    An adapter reads it from the settings that it gives to its trainer.
    """

    layout: Layout
    """`packed`: as many rows as fit, one after the other. `dynamic`: as many rows as fit, side by
    side. `fixed`: a number of rows, side by side. `server`: a server decides."""
    padding: str
    """What rows are filled up to, or `none`."""
    steps: int
    """Optimiser steps of an iteration."""
    tokens: int | None = None
    """Most tokens of a pass, padding included; None where the adapter does not decide it."""
    rows: int | None = None
    """Rows of a pass; None where they are as many as fit, or a server decides."""
    settings: dict[str, Any] = field(default_factory=dict)
    """The trainer's settings that say so, by name."""


def named(settings: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return those of a trainer's settings that it is given, by name without Hydra's plus sign."""
    given = {name.lstrip("+"): value for name, value in settings.items()}
    return {name: given[name] for name in names if name in given}


def attention(spec: RunSpec, hardware: Hardware) -> str:
    """Return the implementation of attention: flash attention where it is installed, in bf16."""
    if hardware.learner.attention is not None:
        return hardware.learner.attention
    flash = spec.training.precision == "bf16" and not hardware.cpu
    return "flash_attention_2" if flash and find_spec("flash_attn") is not None else "sdpa"


def pass_tokens(spec: RunSpec, hardware: Hardware, *, fused: bool = False) -> int:
    """Return the most tokens of a forward pass: enough for the longest episode.

    By default the logits take at most 1 GiB as fp32. A model that is no folder is taken to have a
    vocabulary of 131,072 tokens.

    Args:
        spec: The experiment.
        hardware: What the run is given.
        fused: Whether the trainer never makes the logits of a whole pass. On a GPU the default is
            then 16,384 tokens.
    """
    vocabulary = language(model_config(spec.policy.model)).get("vocab_size", 2**17)
    default = 16_384 if fused and not hardware.cpu else min(2**28 // int(vocabulary), 65_536)
    return max(hardware.learner.pass_tokens or default, spec.policy.tokens)

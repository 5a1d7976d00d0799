"""Defaults of the learner's forward passes that depend on the experiment and the machine."""

from __future__ import annotations

from importlib.util import find_spec

from gem_train.experiment.hardware import Hardware, model_config
from gem_train.experiment.runspec import RunSpec


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
    vocabulary = model_config(spec.policy.model).get("vocab_size", 2**17)
    default = 16_384 if fused and not hardware.cpu else min(2**28 // int(vocabulary), 65_536)
    return max(hardware.learner.pass_tokens or default, spec.policy.tokens)

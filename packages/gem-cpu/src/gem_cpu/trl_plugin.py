"""TRL on CPU: what its vLLM engine needs, and its log-probabilities before 1.16.

TRL passes neither eager mode nor a precision on to vLLM, which would compile by itself, and serve
fp32 weights in bf16. TRL 1.15 computes log-probabilities in a Triton kernel alone.
`startup/sitecustomize.py` calls `install` in every process. Nothing else of TRL is replaced.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING

from gem.errors import ConfigurationError
from gem_cpu import announce
from gem_cpu.openrlhf_plugin import DTYPE
from gem_train.imports import after_import

if TYPE_CHECKING:
    from torch import Tensor


def install() -> None:
    """Register the replacements, which take effect when TRL's modules are imported."""
    after_import("trl.generation.vllm_generation", _engine)
    after_import("trl.trainer.utils", _logprobs)


def _engine(module: ModuleType) -> None:
    if find_spec("vllm") is None:
        return
    announce("TRL's vLLM is eager", "torch.compile, CUDA graphs, sleep mode")
    dtype = os.environ.get(DTYPE, "auto")
    module.LLM = functools.partial(  # type: ignore[attr-defined]
        module.LLM, enforce_eager=True, dtype=dtype
    )


def _logprobs(module: ModuleType) -> None:
    if module._ChunkedLogProbFunction is None:
        announce("TRL's log-probabilities are PyTorch's", "TRL's Triton kernel")
        module._ChunkedLogProbFunction = PlainLogProb  # type: ignore[attr-defined]


class PlainLogProb:
    """What TRL 1.15 computes in chunks, from all logits at once."""

    @staticmethod
    def apply(
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        chunk_size: int,
        softcap: float | None = None,
        logit_scale: float = 1.0,
        outputs: Sequence[str] = (),
    ) -> tuple[Tensor | None, ...]:
        """Return log-probability and entropy of each target, `[N]`, and three outputs as None.

        Args:
            hidden: `[N, hidden size]`.
            weight: `[vocabulary, hidden size]`.
            bias: `[vocabulary]`.
            targets: Token ids, `[N]`.
            temperature: Divides the logits.
            chunk_size: Not used.
            softcap: `softcap * tanh(logits / softcap)` before the temperature.
            logit_scale: Factor of the logits.
            outputs: What is asked for; known here are `log_probs` and `entropy`.

        Raises:
            ConfigurationError: Another output is asked for.
        """
        import torch

        if unknown := sorted(set(outputs) - {"log_probs", "entropy"}):
            raise ConfigurationError(
                f"gem-cpu computes no {', '.join(unknown)} for TRL; use TRL 1.16 or later"
            )
        logits = torch.nn.functional.linear(hidden, weight, bias).float() * logit_scale
        if softcap is not None:
            logits = softcap * torch.tanh(logits / softcap)
        logprobs = (logits / temperature).log_softmax(-1)
        chosen = logprobs.gather(1, targets[:, None])[:, 0]
        entropy = -(logprobs.exp() * logprobs).sum(-1) if "entropy" in outputs else None
        return chosen, entropy, None, None, None

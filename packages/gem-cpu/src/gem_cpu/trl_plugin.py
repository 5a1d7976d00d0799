"""TRL on CPU: its vLLM engine, its async trainer's attention, its log-probabilities before 1.16.

TRL passes neither eager mode nor a precision on to vLLM, which would compile by itself, and serve
fp32 weights in bf16. TRL 1.15 computes log-probabilities in a Triton kernel alone.
TRL's async trainer attends with a GPU kernel, and asks CUDA for the name of the device.
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
from gem_cpu import announce, check_replaced
from gem_cpu.openrlhf_plugin import DTYPE
from gem_train.imports import after_import

if TYPE_CHECKING:
    from torch import Tensor


def install() -> None:
    """Register the replacements, which take effect when TRL's modules are imported."""
    after_import("trl.generation.vllm_generation", _engine)
    after_import("trl.trainer.utils", _logprobs)
    after_import("trl.experimental.async_grpo.packing", _attention)
    after_import("trl.experimental.async_grpo.async_grpo_trainer", _device)


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


def _attention(module: ModuleType) -> None:
    check_replaced("trl", ">=1.16,<2", "_flash_attn", "", owner=module)
    announce("TRL's async trainer attends by PyTorch", "flash-attention 3")
    module._flash_attn = lambda: PlainAttention  # type: ignore[attr-defined]


def _device(module: ModuleType) -> None:
    path, parameters = "get_peak_flops_per_device", "accelerator, dtype"
    check_replaced("trl", ">=1.16,<2", path, parameters, owner=module)
    module.get_peak_flops_per_device = _unknown  # type: ignore[attr-defined]


def _unknown(accelerator: object, dtype: str) -> None:
    """Return the most operations a second of a device of which TRL knows nothing: None."""


class PlainAttention:
    """The part of flash-attention's kernels that TRL's async trainer calls."""

    @staticmethod
    def flash_attn_varlen_func(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        query_ends: Tensor,
        key_ends: Tensor,
        longest_query: int,
        longest_key: int,
        *,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
    ) -> Tensor:
        """Return the attention of sequences that are laid end to end, `[N, heads, head size]`.

        A query attends to the keys of its own sequence, up to its place counted from the end.

        Args:
            query: `[N, heads, head size]`.
            key: `[K, key heads, head size]`; each is shared by `heads / key heads` queries.
            value: As `key`.
            query_ends: Where the queries of each sequence begin and end, `[sequences + 1]`.
            key_ends: Likewise of the keys.
            longest_query: Not used.
            longest_key: Not used.
            softmax_scale: Factor of the products; None is one over the root of the head size.
            causal: Must be True.
            window_size: Must be the default.

        Raises:
            ConfigurationError: Attention is not causal, or to a window.
        """
        import torch

        if not causal or window_size != (-1, -1):
            raise ConfigurationError("gem-cpu attends for TRL to all earlier tokens only")
        found = []
        spans = [ends.unfold(0, 2, 1).tolist() for ends in (query_ends, key_ends)]
        shared = query.shape[1] // key.shape[1]
        for (q, q_end), (k, k_end) in zip(*spans, strict=True):
            n, m = q_end - q, k_end - k
            seen = torch.arange(m)[None] <= torch.arange(m - n, m)[:, None]
            keys, values = (x[k:k_end].transpose(0, 1) for x in (key, value))
            part = torch.nn.functional.scaled_dot_product_attention(
                query[q:q_end].transpose(0, 1),
                keys.repeat_interleave(shared, 0),
                values.repeat_interleave(shared, 0),
                attn_mask=seen,
                scale=softmax_scale,
            )
            found.append(part.transpose(0, 1))
        return torch.cat(found)


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

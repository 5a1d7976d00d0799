"""The four private functions of flash-attn that ring-flash-attn calls, in plain PyTorch.

The real ring-flash-attn calls them; exact for context parallelism 1 only. Shapes are
flash-attn's: packed sequences `[tokens, heads, dim]` with boundaries `cu_seqlens`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
    """Return a sequence's attention `[tokens, heads, dim]` and log-sum-exp `[heads, tokens]`."""
    repeats = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(repeats, 1).float() for t in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.float(), k) * scale
    if causal:
        n, m = q.shape[0], k.shape[0]
        allowed = torch.ones(n, m, dtype=torch.bool).tril(m - n)
        scores = scores.masked_fill(~allowed, float("-inf"))
    lse = torch.logsumexp(scores, -1)
    weights = torch.exp(scores - lse.unsqueeze(-1))
    return torch.einsum("hqk,khd->qhd", weights, v).to(q.dtype), lse


def _packed(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, scale: float | None, causal: bool
) -> tuple[Tensor, Tensor]:
    scale = scale or 1 / math.sqrt(q.shape[-1])
    edges_q, edges_k = cu_q.tolist(), cu_k.tolist()
    parts = [
        _attend(q[a:b], k[c:d], v[c:d], scale, causal)
        for a, b, c, d in zip(edges_q, edges_q[1:], edges_k, edges_k[1:], strict=False)
    ]
    return torch.cat([out for out, _ in parts]), torch.cat([lse for _, lse in parts], -1)


def _flash_attn_varlen_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    return_softmax: bool = False,
    block_table: Any = None,
    leftpad_k: Any = None,
    seqused_k: Any = None,
    zero_tensors: bool = False,
) -> tuple[Tensor, Tensor, None, None]:
    _plain(dropout_p, window_size_left, softcap, alibi_slopes)
    out, lse = _packed(q, k, v, cu_seqlens_q, cu_seqlens_k, softmax_scale, causal)
    return out, lse, None, None


def _flash_attn_varlen_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    rng_state: Any = None,
    zero_tensors: bool = False,
) -> None:
    _plain(dropout_p, window_size_left, softcap, alibi_slopes)
    if q.shape[0] != k.shape[0]:
        raise NotImplementedError("gem-cpu's attention is exact for context parallelism 1 only")
    with torch.enable_grad():
        q, k, v = (t.detach().requires_grad_() for t in (q, k, v))
        o, _ = _packed(q, k, v, cu_seqlens_q, cu_seqlens_k, softmax_scale, causal)
        found = torch.autograd.grad(o, (q, k, v), dout)
    for target, gradient in zip((dq, dk, dv), found, strict=True):
        target.copy_(gradient)


def _plain(dropout_p: float, window: int, softcap: float, alibi_slopes: Any) -> None:
    if dropout_p or window >= 0 or softcap or alibi_slopes is not None:
        raise NotImplementedError(
            "gem-cpu's attention knows no dropout, window, soft cap or ALiBi slopes"
        )


def _flash_attn_forward(*args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError("gem-cpu stands in for flash-attn's packed attention only")


_flash_attn_backward = _flash_attn_forward

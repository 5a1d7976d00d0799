"""gem-cpu's replacements for RL2 and SGLang: the right numbers, and loud where they have none."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from flash_attn import flash_attn_interface as stand_in

HEADS, DIM = 4, 8


def packed(lengths: list[int], heads: int) -> torch.Tensor:
    torch.manual_seed(heads)
    return torch.randn(sum(lengths), heads, DIM, dtype=torch.float32)


def edges(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)


def expected(q: Any, k: Any, v: Any, lengths: list[int]) -> torch.Tensor:
    """PyTorch's own attention, one sequence after the other."""
    out, start = [], 0
    for n in lengths:
        parts = [t[start : start + n].transpose(0, 1)[None] for t in (q, k, v)]
        parts[1:] = [t.repeat_interleave(HEADS // t.shape[1], 1) for t in parts[1:]]
        found = torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        out.append(found[0].transpose(0, 1))
        start += n
    return torch.cat(out)


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_attention_of_packed_sequences_and_its_gradients_are_pytorchs(kv_heads: int) -> None:
    lengths = [5, 1, 9]
    cu = edges(lengths)
    q, k, v = (packed(lengths, n).requires_grad_() for n in (HEADS, kv_heads, kv_heads))
    wanted = expected(q, k, v, lengths)
    with torch.no_grad():
        out, lse, *_ = stand_in._flash_attn_varlen_forward(q, k, v, cu, cu, 9, 9, causal=True)
    assert lse.shape == (HEADS, sum(lengths))
    assert torch.allclose(out, wanted, atol=1e-6)
    dout = torch.randn_like(out)
    gradients = torch.autograd.grad(wanted, (q, k, v), dout)
    found = [torch.empty_like(t) for t in (q, k, v)]
    stand_in._flash_attn_varlen_backward(
        dout, q.detach(), k.detach(), v.detach(), out, lse, *found, cu, cu, 9, 9, causal=True
    )
    for mine, theirs in zip(found, gradients, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-5)


@pytest.mark.parametrize(
    "asked", [{"dropout_p": 0.1}, {"window_size_left": 4}, {"softcap": 1.0}, {"alibi_slopes": 1}]
)
def test_attention_that_the_stand_in_does_not_have_is_refused(asked: dict[str, Any]) -> None:
    q, cu = packed([3], HEADS), edges([3])
    with pytest.raises(NotImplementedError, match="no dropout, window, soft cap or ALiBi"):
        stand_in._flash_attn_varlen_forward(q, q, q, cu, cu, 3, 3, causal=True, **asked)


def test_cuda_kernels_can_be_imported_and_not_called() -> None:
    import sgl_kernel
    from sgl_kernel.kvcacheio import transfer_kv_per_layer

    for kernel in (sgl_kernel.silu_and_mul, transfer_kv_per_layer):
        with pytest.raises(RuntimeError, match="there is no CUDA kernel"):
            kernel(1)


def test_without_gem_cpu_nothing_is_replaced() -> None:
    """The folder of shims may be on the path; the variable decides."""
    from gem_cpu import rl2_plugin

    code = "import torch, sys; print(torch.cuda.synchronize.__module__, 'gem_cpu' in sys.modules)"
    env = {k: v for k, v in os.environ.items() if k != "GEM_CPU"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True,
        env={**env, "PYTHONPATH": rl2_plugin.folders()},
    )  # fmt: skip
    assert done.stdout.split() == ["torch.cuda", "False"]

"""oat's fused head takes the memory that `gem-bench fit` estimates."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from memory import Peak


@pytest.mark.parametrize("tokens", [400, 1600])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("entropy", [False, True])
def test_oats_fused_head_takes_the_estimated_memory(
    precision: str, tokens: int, entropy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from oat.utils.lm_head import FusedLinear

    # A package of this repository that the environments of trainers lack.
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "packages" / "gem-bench" / "src"))
    from gem_bench.fit import TRAINERS

    dtype, element = (torch.float32, 4) if precision == "fp32" else (torch.bfloat16, 2)
    hidden = torch.randn(1, tokens, 64, dtype=dtype).requires_grad_()
    weight = torch.randn(6000, 64, dtype=dtype).requires_grad_()
    with Peak() as measured:
        head = FusedLinear(compute_entropy=entropy)
        logprobs, spread = head(
            hidden, weight, torch.randint(0, 6000, (1, tokens)), temperature=1.0
        )
        (logprobs.sum() + (spread.sum() if entropy else 0)).backward()
    shape = SimpleNamespace(vocabulary=6000, hidden=64)
    guessed = TRAINERS["oat"].head.size(
        shape,  # type: ignore[arg-type]
        tokens,
        element,
        trained=True,
        entropy=entropy,
    )
    assert 0.8 < guessed / measured.peak < 1.2, guessed / measured.peak

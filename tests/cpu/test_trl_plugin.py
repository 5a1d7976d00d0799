"""What stands in for the Triton kernel of TRL 1.15 is what TRL 1.16 computes without one."""

from __future__ import annotations

import pytest
import torch

from gem.errors import ConfigurationError
from gem_cpu.trl_plugin import PlainLogProb

kernels = pytest.importorskip("trl.kernels", reason="needs TRL")


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("bias", [True, False])
def test_log_probabilities_entropy_and_gradients_are_trls(
    temperature: float, softcap: float | None, bias: bool
) -> None:
    torch.manual_seed(0)
    found = []
    for function in (PlainLogProb, kernels.ChunkedLogProbFunction):
        torch.manual_seed(0)
        hidden, weight = torch.randn(5, 8).requires_grad_(), torch.randn(11, 8).requires_grad_()
        shift = torch.randn(11).requires_grad_() if bias else None
        targets = torch.tensor([0, 3, 10, 7, 7])
        outputs = ("log_probs", "entropy")
        logprobs, entropy, *_ = function.apply(
            hidden, weight, shift, targets, temperature, 4, softcap, 1.5, outputs
        )
        (logprobs * torch.arange(5.0)).sum().backward()
        found.append([logprobs.detach(), entropy.detach(), hidden.grad, weight.grad])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_an_output_that_is_not_known_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="is_top1"):
        PlainLogProb.apply(
            torch.zeros(1, 2), torch.zeros(3, 2), None, torch.tensor([0]), 1.0, 4, None, 1.0,
            ("is_top1",),
        )  # fmt: skip

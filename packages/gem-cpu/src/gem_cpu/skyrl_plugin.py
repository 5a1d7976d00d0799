"""SkyRL on CPU: replaces what SkyRL needs of CUDA, when SkyRL is imported.

SkyRL has no platform abstraction, so `startup/sitecustomize.py` calls `install` in every process;
without `GEM_CPU=1` it is not called. Replaced:

- `flash_attn`, two functions: gem-cpu's stand-in for OpenRLHF.
- `torch.cuda.current_device`: returns "cpu". `set_device`, `synchronize`, `empty_cache`,
  `manual_seed_all`, `ipc_collect` do nothing; memory is reported as 0, of 16 GB.
- `Tensor.cuda`: returns the tensor. `torch.empty(device="cuda")`: the CPU.
- `init_process_group("cpu:gloo,cuda:nccl")` and `init_device_mesh("cuda")`: Gloo, and a mesh of
  CPUs.
- The address that servers bind and are reached at: this machine's own, 127.0.0.1.
- On Python 3.11 pydantic takes `typing.TypedDict`, of which it misses nothing that SkyRL needs
  (skyrl declares 3.12).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from gem_cpu import announce, check_replaced
from gem_cpu.openrlhf_plugin import empty_on_cpu, nothing, stub_flash_attention
from gem_train.imports import after_import

_KNOWN = ("skyrl", ">=0.4.0,<0.5")
_SERVERS = "skyrl.backends.skyrl_train.inference_servers"
_BACKEND = "cpu:gloo,cuda:nccl"
_state = {"installed": False, "replaced": False}


def install() -> None:
    """Register the replacements, which take effect when SkyRL's trainer is imported.

    A second call changes nothing.
    """
    if _state["installed"]:
        return
    _state["installed"] = True
    if sys.version_info < (3, 12):
        schema = "pydantic._internal._generate_schema"
        after_import("skyrl", lambda module: after_import(schema, _typed_dicts))
    # Not with `skyrl` itself: its Tinker server with JAX needs none of this.
    for name in ("skyrl.train", "skyrl.backends.skyrl_train"):
        after_import(name, lambda module: _replace())
    after_import(f"{_SERVERS}.common", _loopback)


def _typed_dicts(module: ModuleType) -> None:
    module._SUPPORTS_TYPEDDICT = True  # type: ignore[attr-defined]


def _replace() -> None:
    if _state["replaced"]:
        return
    _state["replaced"] = True
    announce(
        "SkyRL runs on the CPU shims of gem-cpu",
        "CUDA, NCCL, CUDA IPC weight transfer, colocation, sleep and wake-up of the engine, flash "
        "attention, autocast to bf16, torch.compile, more than one node",
    )
    stub_flash_attention()
    _replace_cuda()
    _replace_nccl()


def _replace_cuda() -> None:
    import torch

    cuda: Any = torch.cuda
    cuda.current_device = _constant("cpu")
    for name in ("set_device", "synchronize", "empty_cache", "manual_seed_all", "ipc_collect"):
        setattr(cuda, name, nothing())
    cuda.mem_get_info = _constant((8 << 30, 16 << 30))
    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated"):
        setattr(cuda, name, _constant(0))
    torch.accelerator.synchronize = nothing()
    torch.empty = empty_on_cpu(torch.empty)
    tensor: Any = torch.Tensor
    tensor.cuda = lambda self, *args, **kwargs: self


def _replace_nccl() -> None:
    from torch import distributed
    from torch.distributed import device_mesh

    group, mesh = distributed.init_process_group, device_mesh.init_device_mesh

    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        group("gloo" if backend == _BACKEND else backend, *args, **kwargs)

    def init_device_mesh(device_type: str, *args: Any, **kwargs: Any) -> Any:
        return mesh("cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    distributed.init_process_group = init_process_group
    device_mesh.init_device_mesh = init_device_mesh
    distributed.init_device_mesh = init_device_mesh  # type: ignore[attr-defined]


def _constant(value: Any) -> Callable[..., Any]:
    """Return a function that returns a value; torch.compile tells functions by identity."""

    def constant(*args: Any, **kwargs: Any) -> Any:
        return value

    return constant


def _loopback(module: ModuleType) -> None:
    check_replaced(*_KNOWN, "get_node_ip", "", owner=module)
    module.get_node_ip = _constant("127.0.0.1")  # type: ignore[attr-defined]
    module.default_bind_host = _constant("127.0.0.1")  # type: ignore[attr-defined]

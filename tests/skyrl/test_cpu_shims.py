"""gem-cpu's shims for SkyRL act when asked to, and only then."""

from __future__ import annotations

import os
import subprocess
import sys

from gem_cpu.openrlhf_plugin import startup_folder

SEEN = """
import torch
import skyrl.train
import torch.distributed as distributed
print(torch.cuda.synchronize.__module__, torch.cuda.current_device.__module__)
print(distributed.init_process_group.__module__, distributed.init_device_mesh.__module__)
"""
OURS = "gem_cpu.skyrl_plugin"


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    known = {k: v for k, v in os.environ.items() if not k.startswith("GEM_CPU")}
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**known, "PYTHONPATH": str(startup_folder()), **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_what_needs_a_gpu_is_replaced() -> None:
    done = python(SEEN, GEM_CPU="1")
    assert done.stdout.split()[-4:] == ["gem_cpu.openrlhf_plugin", OURS, OURS, OURS], done.stderr
    assert done.stderr.count("Not tested:") == 1


def test_nothing_is_replaced_without_being_asked() -> None:
    done = python(SEEN)
    assert "gem_cpu" not in done.stdout and done.stdout, done.stderr
    assert "Not tested:" not in done.stderr


def test_servers_stay_on_this_machine() -> None:
    code = """
from skyrl.backends.skyrl_train.inference_servers import common
print(common.get_node_ip(), common.default_bind_host(None))
"""
    assert python(code, GEM_CPU="1").stdout.split()[-2:] == ["127.0.0.1", "127.0.0.1"]


def test_skyrl_s_tinker_server_is_left_alone() -> None:
    code = "import skyrl.utils, torch; print(torch.cuda.synchronize.__module__)"
    assert python(code, GEM_CPU="1").stdout.split()[-1] == "torch.cuda"

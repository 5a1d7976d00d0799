"""gem-cpu's shims for OpenRLHF act when asked to, and only then."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gem_cpu.openrlhf_plugin import startup_folder

REPLACED = """
import importlib.util
import sys
import torch
before = torch.cuda.synchronize.__module__
if importlib.util.find_spec("flash_attn") or {shims}:
    from openrlhf.utils import distributed_util, utils
    from openrlhf.utils.deepspeed import deepspeed
    print(distributed_util.stateless_init_process_group.__module__)
    print(deepspeed.DeepspeedStrategy.get_ds_train_config.__module__)
    print(sys.modules["deepspeed.comm.torch"].build_shm_op.__module__)
    print(utils.convert_to_torch_dtype("bf16"))
    print(torch.cuda.synchronize.__module__)
else:
    print(before, "left alone")
"""


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


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.nightly)])
def test_what_needs_a_gpu_is_replaced(dtype: str) -> None:
    code = REPLACED.format(shims=True)
    done = python(code, GEM_CPU="1", GEM_CPU_DTYPE=dtype, DS_ACCELERATOR="cpu")
    ours = "gem_cpu.openrlhf_plugin"
    assert done.stdout.split()[-5:] == [ours, ours, ours, f"torch.{dtype}", ours], done.stderr
    assert done.stderr.count("Not tested:") == 1


def test_nothing_is_replaced_without_being_asked() -> None:
    done = python(REPLACED.format(shims=False))
    assert done.stdout.strip() == "torch.cuda left alone", done.stderr
    assert "Not tested:" not in done.stderr


@pytest.mark.parametrize(
    ("address", "module"),
    [("local", "gem_cpu.openrlhf_plugin"), ("127.0.0.1:6379", "ray._private.worker")],
)
def test_only_a_cluster_of_the_runs_own_has_no_dashboard(address: str, module: str) -> None:
    done = python("import ray; print(ray.init.__module__)", GEM_CPU="1", RAY_ADDRESS=address)
    assert done.stdout.strip() == module, done.stderr


def test_an_unknown_precision_is_refused() -> None:
    done = python("print('started')", GEM_CPU="1", GEM_CPU_DTYPE="float16")
    assert "GEM_CPU_DTYPE must be bfloat16 or float32" in done.stderr


def test_a_sitecustomize_further_down_the_path_still_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('theirs')\n")
    path = os.pathsep.join([str(startup_folder()), str(tmp_path)])
    assert python("print('done')", PYTHONPATH=path).stdout.split() == ["theirs", "done"]

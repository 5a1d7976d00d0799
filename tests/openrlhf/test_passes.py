"""Two forward passes of one step in real DeepSpeed, as OpenRLHF's dynamic batches make them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

STEP = """
import sys
from types import SimpleNamespace
import deepspeed, torch
from openrlhf.utils.deepspeed import deepspeed as theirs
if sys.argv[1] == "hook":
    from gem_openrlhf import passes
    passes.install(theirs)
names = SimpleNamespace(param_dtype="bf16")
args = SimpleNamespace(ds=names, train=SimpleNamespace(dynamic_batch_enable=True))
strategy = theirs.DeepspeedStrategy(args=args)
adam = {"type": "AdamW", "params": {"lr": 1.0, "betas": [0.9, 0.95], "eps": 1e-8}}
config = strategy.get_ds_train_config(adam, max_norm=0.0)
deepspeed.init_distributed()
model = torch.nn.Linear(2, 1, bias=False)
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
for row in ([3.0, 0.0], [0.0, 4.0]):
    engine.backward(engine(torch.tensor([row])).sum())
engine.step()
print(float(engine.get_global_grad_norm()))
"""


@pytest.mark.parametrize(("hook", "norm"), [("hook", 5.0), ("none", 4.0)])
def test_both_count_in_the_gradient(hook: str, norm: float) -> None:
    """Without our hook only the last one does: should that change, the hook has no use any more."""
    from gem_cpu.openrlhf_plugin import startup_folder

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    known = {k: v for k, v in os.environ.items() if not k.startswith("GEM_CPU")}
    path = os.pathsep.join([str(startup_folder()), known.get("PYTHONPATH", "")])
    shims = {"GEM_CPU": "1", "GEM_CPU_DTYPE": "float32", "DS_ACCELERATOR": "cpu"}
    one = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": "0", "WORLD_SIZE": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", STEP, hook],
        env={**known, **shims, **one, "LOCAL_RANK": "0", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert float(done.stdout.split()[-1]) == pytest.approx(norm)

"""Dynamic batches: packed rows, and two forward passes of one step in real DeepSpeed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

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


@pytest.mark.parametrize(
    ("hook", "norm"), [("hook", 5.0), pytest.param("none", 4.0, marks=pytest.mark.nightly)]
)
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


def test_packed_rows_have_the_gradients_of_padded_ones(model: Path) -> None:
    """Rows of different lengths, one of them as short as a failed episode's."""
    import torch
    from openrlhf.models import Actor

    ids = torch.arange(4 * 9).reshape(4, 9) + 10
    mask = torch.tensor([[1] * n + [0] * (9 - n) for n in (9, 5, 2, 7)])

    def trained(packed: bool) -> tuple[Any, list[Any]]:
        attention = "flash_attention_2" if packed else "sdpa"
        actor = Actor(str(model), attn_implementation=attention, packing_samples=packed)
        actor.model.float()
        logprobs = actor(ids, mask[:, 1:], attention_mask=mask)
        logprobs.square().sum().backward()
        return logprobs.detach(), [weight.grad for weight in actor.model.parameters()]

    (padded, expected), (packed, found) = trained(False), trained(True)
    torch.testing.assert_close(packed, padded)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)

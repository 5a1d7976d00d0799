"""A real Tinker server on this machine: both styles, resume, stale weights, what it refuses."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import chz
import pytest

from gem import Env, register
from gem.core import Step
from gem.errors import ConfigurationError, RolloutError
from gem_cpu.tinker_server import Options, Server, ServerError, running, supervise
from gem_tinker import cookbook_train, train
from gem_tinker.server import probe
from gem_tinker.settings import Config, read
from gem_train.record import read_run

pytestmark = [
    pytest.mark.slow,
    # SDK and cookbook leave sockets to the garbage collector and warn of their own future.
    pytest.mark.filterwarnings("ignore"),
]


class Letters(Env):
    """Pays for whatever is said, differently: a random model has something to learn from."""

    def reset(self, seed: int | None = None, **options: Any) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return f"say {seed}", {}

    def step(self, action: str) -> Step:
        return "again", (sum(map(ord, action)) % 7) / 7, False, False, {}


register("test:Letters-v0", Letters)

TASKS = "gem:test:Letters-v0?seed=0"
TIMEOUT_S = 600


@pytest.fixture(scope="module")
def model(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model whose head is sharp enough for adapters below it to change what it says."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    folder = tmp_path_factory.mktemp("model")
    config = Qwen3Config(
        vocab_size=320,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        dtype="float32",
    )
    torch.manual_seed(0)
    made = Qwen3ForCausalLM(config)
    with torch.no_grad():
        made.lm_head.weight.mul_(6)
    made.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Server]:
    with running(Options(model, sequences=8, bucket=512)) as started:
        patch = pytest.MonkeyPatch()
        for name, value in started.environment.items():
            patch.setenv(name, value)
        yield started
        patch.undo()


def config(model: Path, folder: Path, *arguments: str, iterations: int = 3) -> Config:
    words = [f"model={model}", f"train={TASKS}", f"record_dir={folder}", "tasks=4", "group_size=2"]
    words += [
        f"iterations={iterations}",
        "turns=2",
        "turn_tokens=4",
        "prompt_tokens=256",
        "lora_rank=8",
    ]
    words += ["response_tokens=200", "seed=0", "lr=1e-2", "save_every=1"]
    return read([*words, *arguments])


def metrics(folder: Path, name: str) -> list[float]:
    return [line[name] for line in read_run(folder).metrics]


def test_how_the_server_adds_up_is_found_out(server: Server, model: Path, tmp_path: Path) -> None:
    assert asyncio.run(probe(config(model, tmp_path))) == "skyrl_jax"


def test_a_loss_that_the_server_lacks_is_refused_at_once(
    server: Server, model: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match="loss_fn=gspo"):
        asyncio.run(probe(replace(config(model, tmp_path), loss_fn="gspo")))


def test_a_model_that_the_server_lacks_is_refused_at_once(
    server: Server, model: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=f"the server has {model}"):
        asyncio.run(probe(replace(config(model, tmp_path), model="Qwen/Qwen3-8B")))


def test_a_run_that_was_interrupted_goes_on_as_if_it_had_not_been(
    server: Server, model: Path, tmp_path: Path
) -> None:
    asyncio.run(train.train(config(model, tmp_path / "whole", "logprob_tolerance=1e-3")))
    asyncio.run(train.train(config(model, tmp_path / "parts", iterations=2)))
    asyncio.run(train.train(config(model, tmp_path / "parts")))
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert metrics(parts, "iteration") == [0, 1, 2]
    for name in ("return_mean", "sampled_tokens"):
        assert metrics(parts, name) == metrics(whole, name)
    assert min(metrics(whole, "grad_norm")) > 0
    # The optimiser's moments went on, too.
    assert metrics(parts, "grad_norm") == pytest.approx(metrics(whole, "grad_norm"), rel=1e-3)
    assert max(metrics(whole, "logprob_difference_max")) < 1e-3


def test_without_weight_sync_the_run_stops(
    server: Server, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def initial_weights(self: train.Run) -> Any:
        return await self.service.create_sampling_client(base_model=self.config.model)

    monkeypatch.setattr(train.Run, "_sampler", initial_weights)
    with pytest.raises(RolloutError, match="the sampler has other weights"):
        asyncio.run(train.train(config(model, tmp_path, "logprob_tolerance=1e-3")))
    # The first batch was of the right weights; the second was not.
    assert metrics(tmp_path, "iteration") == [0]


def test_the_cookbook_style(server: Server, model: Path, tmp_path: Path) -> None:
    builder = {
        "model_name": model,
        "train": f"{TASKS}&n=16",
        "test": f"{TASKS}&n=4",
        "turn_tokens": 4,
        "turns": 2,
        "prompt_tokens": 256,
        "response_tokens": 200,
        "groups_per_batch": 4,
        "group_size": 2,
    }
    words = [f"model_name={model}", "recipe_name=test", "learning_rate=1e-2", "max_tokens=4"]
    words += [f"log_path={tmp_path}", "lora_rank=8", "eval_every=2", "save_every=1", "gamma=0.9"]
    words += ["dataset_builder=gem_tinker.cookbook:GemDatasetBuilder", "loss_fn=ppo"]
    words += [f"dataset_builder.{key}={value}" for key, value in builder.items()]
    for steps in (1, 2):
        # The second start goes on from the checkpoint of the first.
        argv = [*words, f"max_steps={steps}"]
        asyncio.run(cookbook_train.main(chz.entrypoint(cookbook_train.Config, argv=argv)))
    text = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    trained = [line for line in lines if "gem/return_mean" in line]
    assert [line["progress/batch"] for line in trained] == [0, 1]
    assert all(abs(line["optim/kl_sample_train_v1"]) < 1e-4 for line in trained)
    assert any("test/env/all/reward/total" in line for line in lines)
    assert metrics(tmp_path / "gem", "iteration") == [0, 1]


def test_a_command_ends_when_its_server_dies(model: Path, tmp_path: Path) -> None:
    with running(Options(model), state=tmp_path) as started:
        os.killpg(started.process.pid, signal.SIGKILL)
        with pytest.raises(ServerError, match="ended with status -9"):
            supervise(["sleep", "600"], started)


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gem_cpu.tinker_server", "--model", str(tmp_path / "none")]
    done = subprocess.run(
        [*command, "--python", sys.executable, "--", "true"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 3
    # This environment has no server.
    assert "skyrl" in done.stderr

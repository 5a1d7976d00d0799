"""`GemAsyncGRPOTrainer`: TRL's own async loop on CPU, with the engine in its process."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GenerationConfig

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

if version("trl").startswith("1.15."):
    pytest.skip("TRL 1.15 has no asynchronous trainer that can be used", allow_module_level=True)

import gem_trl.async_trainer
from gem.advantage import TurnTable, grpo, rebn
from gem.errors import ConfigurationError, RolloutError, UnfinishedError
from gem.rollout.play import Request
from gem_cpu import trl_plugin
from gem_train.record import EpisodeRecord, read_run
from gem_trl.async_engine import InProcessEngine
from gem_trl.async_server import ServerEngine

Make = Callable[..., Any]


@pytest.fixture(scope="module", autouse=True)
def on_cpu() -> None:
    trl_plugin.install()


@pytest.fixture
def make_args(tmp_path: Path) -> Make:
    """Make an AsyncGRPOConfig: `make_args(**fields)`."""
    from trl.experimental.async_grpo import AsyncGRPOConfig

    def make(**fields: Any) -> Any:
        values = {
            "output_dir": str(tmp_path / "checkpoints"),
            "per_device_train_batch_size": 8,
            "num_generations": 2,
            "max_steps": 3,
            "max_completion_length": 8,
            "token_budget": -1,
            "learning_rate": 1e-3,
            "bf16": False,
            "use_cpu": True,
            "gradient_checkpointing": False,
            "save_strategy": "no",
            "report_to": [],
            "disable_tqdm": True,
        }
        return AsyncGRPOConfig(**{**values, **fields})

    return make


@pytest.fixture
def make_trainer(model: Path, make_args: Make) -> Make:
    """Make a trainer: `make_trainer(uri=..., args={...}, tasks=..., **settings)`."""
    from gem_trl import GemAsyncGRPOTrainer, GemSettings, task_dataset

    def make(
        uri: str = "gem:test:Scripted-v0?n=64",
        args: dict[str, Any] | None = None,
        given: dict[str, Any] | None = None,
        **settings: Any,
    ) -> Any:
        known = {"prompt_tokens": 128, "response_tokens": 256, "turns": 3} | settings
        return GemAsyncGRPOTrainer(
            str(model),
            make_args(**(args or {})),
            train_dataset=task_dataset(uri),
            gem=GemSettings(**known),
            **(given or {}),
        )

    return make


class Watched:
    """Remembers what TRL's loss is given of each token."""

    def __init__(self, trainer: Any) -> None:
        self.tokens: list[tuple[int, float, float]] = []
        self._loss = trainer.compute_loss
        trainer.compute_loss = self

    def __call__(self, model: Any, inputs: dict[str, Any], **kwargs: Any) -> Any:
        place = inputs["token_index"][0]
        labels = inputs["shift_labels"][0][place].tolist()
        parts = (inputs[name][0].tolist() for name in ("old_log_probs", "advantages"))
        self.tokens += zip(labels, *parts, strict=True)
        return self._loss(model, inputs, **kwargs)


def of_tokens(episodes: list[EpisodeRecord]) -> list[tuple[int, float, float]]:
    """Return id, log-probability and advantage of each sampled token, from the record."""
    return [
        (token, np.float32(logprob).item(), np.float32(advantage).item())
        for episode in episodes
        for turn, advantage in zip(episode.trajectory.turns, episode.advantages, strict=True)
        for token, logprob in zip(turn.response_ids, turn.logprobs or [], strict=True)
    ]


@pytest.mark.parametrize("advantage", ["rebn", "grpo"])
def test_trls_loss_sees_each_turns_advantage_over_whole_batches(
    make_trainer: Make, tmp_path: Path, advantage: str
) -> None:
    trainer = make_trainer(
        advantage=advantage, gamma=0.5, record_dir=str(tmp_path / "run"), given={"tasks": 4}
    )
    watched = Watched(trainer)
    trainer.train()
    run = read_run(tmp_path / "run")
    recorded = []
    for iteration, metrics in enumerate(run.metrics):
        episodes = list(run.episodes("train", {iteration}))
        assert len(episodes) == 8 and metrics["samples"] == (8 if advantage == "grpo" else 24)
        groups = [e.trajectory.group for e in episodes]
        assert groups == [4 * iteration + 1 + k // 2 for k in range(8)]
        table = TurnTable.build([e.trajectory.rewards for e in episodes], groups=groups)
        found = rebn(table, 0.5) if advantage == "rebn" else grpo(table)
        assert [e.advantages for e in episodes] == [pytest.approx(a) for a in table.split(found)]
        recorded += of_tokens(episodes)
    # Samples reach the loss in the order in which they were pushed; packing may reorder a step's.
    assert 0 < len(watched.tokens) <= len(recorded)
    assert sorted(watched.tokens) == sorted(recorded[: len(watched.tokens)])
    steps = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(steps) == 3
    assert "gem/return_mean" in {name for step in steps for name in step}
    if advantage == "rebn":
        assert all(step["grad_norm"] > 0 for step in steps)


def test_the_first_batch_is_on_policy_to_the_loss_and_later_ones_say_their_version(
    make_trainer: Make, tmp_path: Path
) -> None:
    trainer = make_trainer(record_dir=str(tmp_path / "run"), given={"tasks": 2})
    trainer.train()
    first, *_, last = [entry for entry in trainer.state.log_history if "loss" in entry]
    # TRL's ratio to the sampler's log-probabilities: packed attention and generate agree.
    assert first["ratio"] == pytest.approx(1, abs=1e-4)
    assert first["sample/staleness_max"] == 0
    versions = [e.trajectory.policy_version for e in read_run(tmp_path / "run").episodes()]
    assert versions[0] == (1, 1)
    assert all(v is not None and v[0] <= v[1] for v in versions)
    assert max(v[1] for v in versions if v) > 1
    assert last["sample/staleness_max"] <= 4


def test_log_probabilities_are_the_models(make_trainer: Make) -> None:
    """At a temperature, of prompts of different lengths, after new weights have come."""
    trainer = make_trainer(args={"temperature": 0.7})
    engine = trainer.weight_transfer
    engine.pause()
    with torch.no_grad():
        for weight in trainer.model.parameters():
            weight.mul_(1.01)
    engine.send_weights(trainer._streaming_iter())
    engine.resume()
    prompts = [[5, 6, 7, 8, 9], [11, 12]]
    requests = [Request(i, ids, ids, True, 4 + i) for i, ids in enumerate(prompts)]
    for request, sample in zip(requests, engine(requests), strict=True):
        assert sample.version == 1
        assert 0 < len(sample.token_ids) <= request.max_tokens
        ids = torch.tensor([request.prompt_ids + sample.token_ids])
        with torch.no_grad():
            logits = engine._model(ids).logits[0, len(request.prompt_ids) - 1 : -1] / 0.7
        own = dict(trainer.model.named_parameters())
        for name, weight in engine._model.named_parameters():
            torch.testing.assert_close(weight, own[name])
        expected = logits.log_softmax(-1)[range(len(sample.token_ids)), sample.token_ids]
        assert sample.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


def test_what_the_model_says_of_sampling_does_not_count(model: Path, tmp_path: Path) -> None:
    """A penalty or a share of tokens in its generation_config would make another policy."""
    copied = tmp_path / "penalised"
    shutil.copytree(model, copied)
    config = GenerationConfig(do_sample=True, repetition_penalty=1.5, top_k=2, min_p=0.5)
    config.save_pretrained(copied)
    engine = InProcessEngine(
        str(copied), temperature=1.0, stop_ids=frozenset({0}), pad_id=0, device="cpu"
    )
    prompt = [5, 6, 7, 8, 9]
    [sample] = engine([Request(0, prompt, prompt, True, 16)])
    with torch.no_grad():
        ids = torch.tensor([prompt + sample.token_ids])
        logits = engine._model(ids).logits[0, len(prompt) - 1 : -1]
    expected = logits.log_softmax(-1)[range(len(sample.token_ids)), sample.token_ids]
    assert sample.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


def test_a_server_is_asked_for_samples_from_all_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM would take what is left out from the model's generation_config."""
    bodies = []

    def asked(*args: Any, body: bytes, **kwargs: Any) -> tuple[list[int], list[float], str]:
        bodies.append(json.loads(body))
        return [1], [0.0], "stop"

    monkeypatch.setattr("gem_trl.async_server.asked", asked)
    engine = ServerEngine("http://x", "m", stop_ids=frozenset({1}), seed=0)
    engine([Request(0, [5], [5], True, 4)])
    wanted = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
    assert bodies[0].items() >= wanted.items()


def test_an_adapter_is_merged_into_the_weights_that_sample(make_trainer: Make) -> None:
    from peft import LoraConfig

    adapter = LoraConfig(r=4, target_modules=["q_proj", "v_proj"])
    trainer = make_trainer(given={"peft_config": adapter, "tasks": 2}, args={"max_steps": 2})
    trainer.train()
    first, second = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert trainer.weight_transfer.version == 3
    # Were the adapter not there, the ratio to what was sampled would differ from 1.
    assert first["ratio"] == pytest.approx(1, abs=1e-4)
    assert second["grad_norm"] > 0


def test_passes_over_the_tasks_end_the_training(make_trainer: Make, tmp_path: Path) -> None:
    trainer = make_trainer(
        "gem:test:Scripted-v0?n=8",
        record_dir=str(tmp_path / "run"),
        args={"max_steps": -1, "num_train_epochs": 1, "per_device_train_batch_size": 16},
    )
    trainer.train()
    seeds = [e.trajectory.task.seed for e in read_run(tmp_path / "run").episodes()]
    assert seeds[:16] == [seed for seed in range(8) for _ in range(2)]


def test_an_end_before_the_last_pass_over_the_tasks_is_an_error(make_trainer: Make) -> None:
    trainer = make_trainer(
        "gem:test:Scripted-v0?n=8",
        args={"max_steps": -1, "num_train_epochs": 1, "per_device_train_batch_size": 6},
    )
    # TRL's own limit is of 32 turns an episode; these have 3.
    assert trainer.args.max_steps == 86
    trainer.args.max_steps = 1
    with pytest.raises(
        UnfinishedError, match=r"limit of 1 steps, after \d of 8 groups .* set max_"
    ):
        trainer.train()


def test_code_that_exits_does_not_end_the_training_well(make_trainer: Make) -> None:
    import sys

    from transformers import TrainerCallback

    class Leaves(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            sys.exit()

    trainer = make_trainer()
    trainer.add_callback(Leaves())
    with pytest.raises(UnfinishedError, match=r"after 1 of 3 steps.*sys.exit.None"):
        trainer.train()


class Unsent:
    """TRL's weight_transfer for a server that keeps its weights."""

    def nothing(self, *_: Any) -> None: ...

    init_weight_transfer = pause = send_weights = resume = destroy = nothing


@pytest.mark.slow
def test_a_vllm_server_samples(
    make_trainer: Make, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real one; it keeps its weights, as those of a CPU cannot be sent by NCCL."""
    from gem_cpu.servers import model_server

    python = Path(__file__).parents[2] / ".venvs" / "openrlhf" / "bin" / "python"
    assert python.exists(), "make env-openrlhf"
    with model_server("vllm", python, str(model)) as url:
        monkeypatch.setattr(gem_trl.async_trainer, "ServerEngine", partial(named, name="m"))
        trainer = make_trainer(
            args={"vllm_server_base_url": url.removesuffix("/v1"), "max_steps": 2},
            given={"engine": "server", "weight_transfer": Unsent(), "tasks": 2},
            record_dir=str(tmp_path / "run"),
        )
        trainer.train()
    first = next(entry for entry in trainer.state.log_history if "loss" in entry)
    assert first["ratio"] == pytest.approx(1, abs=1e-3)
    episodes = list(read_run(tmp_path / "run").episodes())
    assert episodes[0].trajectory.policy_version == (1, 1)
    assert all(e.trajectory.sampled_tokens > 0 for e in episodes)


def named(url: str, model: str, *, name: str, **kwargs: Any) -> Any:
    """Return the engine of a server that calls the model otherwise."""
    return ServerEngine(url, name, **kwargs)


def test_a_server_that_does_not_answer_ends_the_training(make_trainer: Make) -> None:
    trainer = make_trainer(
        args={"vllm_server_base_url": "http://127.0.0.1:9", "request_timeout": 1},
        given={"engine": "server", "weight_transfer": Unsent()},
    )
    with pytest.raises(RolloutError, match=r"the vLLM server http://127.0.0.1:9"):
        trainer.gem_worker._engine([Request(0, [5], [5], True, 4)])


def test_weights_that_are_not_the_models_are_an_error(make_trainer: Make) -> None:
    engine = make_trainer().weight_transfer
    with pytest.raises(RolloutError, match=r"did not send all weights: .*embed_tokens"):
        engine.send_weights(iter([]))
    with pytest.raises(RolloutError, match="that the engine lacks: other"):
        engine.send_weights(iter([("other", torch.zeros(1))]))


def test_weights_that_do_not_arrive_do_not_leave_the_worker_waiting(make_trainer: Make) -> None:
    trainer = make_trainer()
    trainer._streaming_iter = lambda: iter([("other", torch.zeros(1))])
    with pytest.raises(RolloutError, match="that the engine lacks: other"):
        trainer.train()
    assert trainer.weight_transfer([Request(0, [5], [5], True, 4)])


def test_samples_that_trl_drops_end_the_training(make_trainer: Make) -> None:
    """24 samples take 3 updates: those of the second are one update old, and TRL drops them."""
    trainer = make_trainer(args={"max_staleness": 0}, given={"tasks": 4})
    with pytest.raises(RolloutError, match=r"TRL has dropped \d+ samples .*max_staleness updates"):
        trainer.train()


def test_rounds_that_hang_end_the_training(make_trainer: Make) -> None:
    worker = make_trainer().gem_worker
    worker.check_health(stale_after_s=60)
    with pytest.raises(RolloutError, match=r"no round of turns has ended for \d+ s"):
        worker.check_health(stale_after_s=-1)


def test_void_episodes_are_no_samples(make_trainer: Make, tmp_path: Path) -> None:
    trainer = make_trainer(
        "gem:test:Scripted-v0?n=64&doomed=1",
        group_size=1,
        retries=0,
        max_failed_fraction=0.5,
        record_dir=str(tmp_path / "run"),
        args={"max_steps": 1},
    )
    trainer.train()
    metrics, *_ = read_run(tmp_path / "run").metrics
    assert (metrics["episodes"], metrics["failed_environment"]) == (7, 1)
    assert metrics["samples"] == 7 * 3


@pytest.mark.parametrize(
    ("settings", "given", "said"),
    [
        ({"retries": 0}, {}, r"8 of 8 episodes .*environment 8 \(.*sandbox gone"),
        ({}, {"reward_funcs": lambda episodes, **_: [math.nan] * len(episodes)}, "returned nan"),
    ],
)
def test_what_fails_while_playing_ends_the_training(
    make_trainer: Make, settings: dict[str, Any], given: dict[str, Any], said: str
) -> None:
    doomed = "gem:test:Scripted-v0?n=64&doomed=64" if settings else "gem:test:Scripted-v0?n=64"
    trainer = make_trainer(doomed, group_size=1, given=given, **settings)
    with pytest.raises(RolloutError, match=said):
        trainer.train()


def test_reward_functions_add_to_the_last_turn(make_trainer: Make, tmp_path: Path) -> None:
    trainer = make_trainer(
        record_dir=str(tmp_path / "run"),
        given={"reward_funcs": lambda episodes, **_: [float(e.task.seed) for e in episodes]},
        args={"max_steps": 1},
    )
    trainer.train()
    for episode in read_run(tmp_path / "run").episodes():
        last = episode.trajectory.turns[-1]
        assert last.reward == last.info["reward/environment"] + episode.trajectory.task.seed


@pytest.mark.parametrize(
    ("args", "settings", "said"),
    [
        ({"top_k": 5}, {}, "AsyncGRPOConfig.top_k: the ratio"),
        ({"top_p": 0.9}, {}, "AsyncGRPOConfig.top_p: the ratio"),
        ({"chat_template_kwargs": {"x": 1}}, {}, "chat_template_kwargs: .*gem.template_kwargs"),
        ({"logging_steps": 2}, {}, "logging_steps: TRL's logs tell whether it drops samples"),
        ({"queue_maxsize": 9}, {}, "queue_maxsize: of TRL's own worker.*got 9"),
        ({"token_budget": 100}, {}, "token_budget: TRL drops longer episodes.*at least 384"),
        ({}, {"extra_batches": 1}, "gem.extra_batches: TRL's async trainer takes samples"),
        ({}, {"importance_sampling": True}, "gem.importance_sampling"),
    ],
)
def test_what_would_train_on_something_else_is_refused(
    make_trainer: Make, args: dict[str, Any], settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        make_trainer(args=args, **settings)


def test_arguments_that_do_not_go_together_are_refused(make_trainer: Make) -> None:
    with pytest.raises(ConfigurationError, match="rollout_worker: episodes are GEM's"):
        make_trainer(given={"rollout_worker": object()})
    with pytest.raises(ConfigurationError, match="engine and weight_transfer belong together"):
        make_trainer(given={"engine": lambda requests: []})
    with pytest.raises(ConfigurationError, match="peft_config: TRL may give the server"):
        make_trainer(given={"engine": "server", "peft_config": object()})
    with pytest.raises(ConfigurationError, match="temperature 1 by default.*got 0.7"):
        make_trainer(given={"engine": "server"}, args={"temperature": 0.7})
    with pytest.raises(ConfigurationError, match=r"request_timeout: only engine='server' reads"):
        make_trainer(args={"request_timeout": 1})
    with pytest.raises(ConfigurationError, match="checkpoints .* have no position in the tasks"):
        make_trainer().train(resume_from_checkpoint="checkpoint-1")


def test_the_budget_of_a_row_is_the_longest_episode(make_trainer: Make) -> None:
    trainer = make_trainer(args={"token_budget": None, "max_steps": 1})
    assert trainer.args.token_budget == 128 + 256
    trainer.train()

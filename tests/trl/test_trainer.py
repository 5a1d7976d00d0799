"""`GemGRPOTrainer` on TRL's own tensors and loop; that numbers are right is conformance L0."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

import gem_trl.trainer
from gem.errors import ConfigurationError, RolloutError, UnfinishedError, UnsupportedVersionError
from gem_train.record import read_run
from gem_train.seams import check_seams

Make = Callable[..., Any]


def test_a_change_of_trl_is_named_with_both_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    from trl import GRPOTrainer

    def changed(self: Any, inputs: Any, extra: Any) -> None: ...

    monkeypatch.setattr(GRPOTrainer, "_generate_and_score_completions", changed)
    with pytest.raises(UnsupportedVersionError) as error:
        check_seams(gem_trl.TRAINER, gem_trl.trainer.SEAMS)
    for part in ("_generate_and_score_completions(self, inputs)", "extra"):
        assert part in str(error.value)
    for version in ("gem-trl 0.1.0", "trl 1.", ">=1.15,<2"):
        assert version in str(error.value)


@pytest.mark.parametrize("name", gem_trl.trainer.OURS)
def test_what_gem_takes_the_place_of_is_refused(make_args: Make, name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name}: episodes and rewards are GEM's"):
        gem_trl.GemGRPOTrainer("m", make_args(), **{name: [len]})


@pytest.mark.parametrize("length", [{"max_steps": 2}, {"max_steps": -1, "num_train_epochs": 1}])
def test_further_batches_are_not_trained_on(make_trainer: Make, length: dict[str, Any]) -> None:
    """The first part of the dataset has the tasks of one iteration."""
    trainer = make_trainer(
        "gem:test:Scripted-v0?n=8", script=lambda *_: "end", extra_batches=1, args=length
    )
    with pytest.raises(ConfigurationError, match="2 iterations need 8 tasks .*, which has 4;"):
        trainer.train()
    assert trainer._generate_single_turn.rounds == []


def test_accelerate_s_way_to_several_passes_a_step_is_seen(make_trainer: Make) -> None:
    accelerator = {"gradient_accumulation_kwargs": {"num_steps": 2}}
    with pytest.raises(
        ConfigurationError, match="steps_per_generation: an optimiser step would mix"
    ):
        make_trainer(args={"accelerator_config": accelerator})


def test_every_turn_has_its_advantage_and_observations_have_none(make_trainer: Make) -> None:
    trainer = make_trainer(
        script=lambda turn, seed: "end" if turn == seed % 3 else "on",
        advantage="reinforce",
        gamma=0.5,
    )
    trainer.model.train()
    output = trainer._generate_and_score_completions(trainer.train_dataset.to_list()[:8])
    mask = (output["completion_mask"] * output["tool_mask"]).bool()
    for place, advantages in enumerate(output["advantages"]):
        turns = place % 3 + 1
        rewards = [0.25] * (turns - 1) + [1.0]
        returns = [sum(r * 0.5**k for k, r in enumerate(rewards[turn:])) for turn in range(turns)]
        found = list(dict.fromkeys(advantages[mask[place]].tolist()))
        assert found == pytest.approx(returns)
        assert not advantages[~mask[place]].any()


@pytest.mark.parametrize("how", ["raises", "exits"])
def test_a_void_episode_is_left_out_of_loss_and_statistics(
    make_trainer: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    exits = str(how == "exits").lower()
    trainer = make_trainer(
        f"gem:test:Scripted-v0?n=8&doomed=1&exits={exits}",
        script=lambda turn, seed: "end" if seed % 2 else "on",
        group_size=1,
        retries=0,
        max_failed_fraction=0.5,
        record_dir=str(tmp_path / "run"),
        args={"max_steps": 1},
    )
    trainer.train()
    [metrics] = read_run(tmp_path / "run").metrics
    assert (metrics["episodes"], metrics["failed_environment"]) == (7, 1)
    assert metrics["grad_norm"] > 0
    first, *others = read_run(tmp_path / "run").episodes()
    assert first.trajectory.failure is not None and first.advantages == []
    assert all(other.trajectory.valid for other in others)
    assert "is void: environment" in caplog.text


def test_a_run_whose_environments_exit_does_not_end_well(make_trainer: Make) -> None:
    trainer = make_trainer(
        "gem:test:Scripted-v0?n=64&doomed=64&exits=true", script=lambda *_: "on", group_size=1
    )
    with pytest.raises(RolloutError, match=r"8 of 8 episodes .*SystemExit: 0"):
        trainer.train()


def test_trls_loggers_get_gems_metrics(make_trainer: Make, tmp_path: Path) -> None:
    """Once an iteration, of however many optimiser steps, and with the values of the record."""
    trainer = make_trainer(
        "gem:test:Scripted-v0?n=64&doomed=1",
        script=lambda turn, seed: "end" if seed % 2 else "on",
        group_size=1,
        retries=0,
        max_failed_fraction=0.5,
        record_dir=str(tmp_path / "run"),
        args={"max_steps": 4, "per_device_train_batch_size": 4, "steps_per_generation": 2},
    )
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "gem/success_rate" in entry]
    recorded = [m for m in read_run(tmp_path / "run").metrics if m["split"] == "train"]
    assert len(logged) == len(recorded) == 2
    for entry, metrics in zip(logged, recorded, strict=True):
        for name in ("success_rate", "return_mean", "turns_mean", "episodes", "failed_episodes"):
            assert entry[f"gem/{name}"] == pytest.approx(metrics[name]), name
    assert logged[0]["gem/failed_episodes"] == 1


def test_weights_move_at_a_small_learning_rate_in_bf16(make_trainer: Make) -> None:
    """Updates of 1e-6 are smaller than the steps of bf16: the optimiser's weights are fp32."""
    trainer = make_trainer(
        script=lambda turn, seed: "end" if seed % 3 == 0 else "on",
        advantage="reinforce",
        args={"max_steps": 1, "learning_rate": 1e-6, "bf16": True},
    )
    before = [weight.detach().clone() for weight in trainer.model.parameters()]
    trainer.train()
    moved = [
        (after.detach() - weight).abs()
        for after, weight in zip(trainer.model.parameters(), before, strict=True)
    ]
    assert all(weight.dtype == torch.float32 for weight in before)
    # Adam's first step is the learning rate wherever there is a gradient.
    assert max(float(each.max()) for each in moved) == pytest.approx(1e-6, rel=0.2)
    most = sum(int((each > 5e-7).sum()) for each in moved)
    assert most > 0.5 * sum(each.numel() for each in moved)


@pytest.mark.parametrize(("doomed", "said"), [(2, "2 of 8 episodes"), (64, "8 of 8 episodes")])
def test_too_many_failures_stop_the_run(make_trainer: Make, doomed: int, said: str) -> None:
    trainer = make_trainer(
        f"gem:test:Scripted-v0?n=64&doomed={doomed}",
        script=lambda *_: "on",
        group_size=1,
        max_failed_fraction=1.0 if doomed == 64 else 0.1,
    )
    with pytest.raises(RolloutError, match=rf"{said} .*environment \d \(.*sandbox gone"):
        trainer.train()


def test_too_many_failures_of_an_evaluation_stop_the_run(make_trainer: Make) -> None:
    trainer = make_trainer(
        evals=["gem:test:Scripted-v0?n=4&doomed=9#name=lost"], script=lambda *_: "on"
    )
    with pytest.raises(RolloutError, match="4 of 4 episodes of evaluation 'lost'"):
        trainer.evaluate()


def test_a_row_that_is_not_what_was_sampled_stops_the_run(
    make_trainer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(script=lambda *_: "on")
    trainer.model.train()
    rows = trainer.train_dataset.to_list()[:4] * 2
    for name, change in (("completion_ids", 1), ("tool_mask", -1)):
        original = gem_trl.trainer._tokens

        def changed(output: Any, place: int) -> Any:
            output[name][place, 1] += change
            return original(output, place)

        with monkeypatch.context() as patch:
            patch.setattr(gem_trl.trainer, "_tokens", changed)
            with pytest.raises(RolloutError, match="does not hold the tokens"):
                trainer._generate_and_score_completions([dict(row) for row in rows])


def test_episodes_of_a_row_of_the_dataset_are_a_group(make_trainer: Make, tmp_path: Path) -> None:
    trainer = make_trainer(
        script=lambda turn, seed: "end" if seed % 3 == 0 else "on",
        advantage="grpo",
        record_dir=str(tmp_path / "run"),
    )
    trainer.train()
    found = [
        (e.trajectory.group, e.trajectory.task.seed) for e in read_run(tmp_path / "run").episodes()
    ]
    assert found == [(number, number) for number in range(8) for _ in range(2)]


@pytest.mark.parametrize(("folder", "done"), [("run", 1), (None, 2)])
def test_a_training_that_code_ends_by_sys_exit_is_an_error(
    make_trainer: Make, tmp_path: Path, folder: str | None, done: int
) -> None:
    record = None if folder is None else str(tmp_path / folder)
    trainer = make_trainer(script=lambda *_: "end", record_dir=record, args={"max_steps": 3})

    class Leaves(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 2:
                sys.exit()

    trainer.add_callback(Leaves())
    with pytest.raises(UnfinishedError, match=f"after {done} of 3 iterations.*sys.exit.None"):
        trainer.train()


@pytest.mark.parametrize("logging", [{"logging_steps": 2}, {"logging_strategy": "no"}])
def test_a_training_without_a_record_is_complete_however_rarely_it_logs(
    make_trainer: Make, logging: dict[str, Any]
) -> None:
    trainer = make_trainer(script=lambda *_: "end", args={"max_steps": 3, **logging})
    trainer.train()
    assert trainer.state.global_step == 3


def test_a_callback_may_end_the_training_early_and_a_lost_iteration_is_an_error(
    make_trainer: Make, tmp_path: Path
) -> None:
    class Stops(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = True

    trainer = make_trainer(script=lambda *_: "end", record_dir=str(tmp_path / "run"))
    trainer.add_callback(Stops())
    trainer.train()
    assert len(read_run(tmp_path / "run").metrics) == 1
    unlogged = make_trainer(script=lambda *_: "end", record_dir=str(tmp_path / "other"))
    unlogged.log = lambda *_, **__: None
    with pytest.raises(UnfinishedError, match="recorded only 0 of 2 iterations"):
        unlogged.train()


def test_an_iteration_of_several_steps_is_one_line(make_trainer: Make, tmp_path: Path) -> None:
    torch.manual_seed(0)
    logged: list[dict[str, float]] = []
    trainer = make_trainer(
        script=lambda turn, seed: "end" if seed % 3 == 0 else "on",
        record_dir=str(tmp_path / "run"),
        args={
            "per_device_train_batch_size": 2,
            "steps_per_generation": 4,
            "gradient_accumulation_steps": 2,
            "num_iterations": 2,
            "max_steps": 8,
            "temperature": 0.9,
        },
    )
    original = trainer.log
    trainer.log = lambda logs, *rest: (original(logs, *rest), logged.append(dict(logs)))
    trainer.train()
    metrics = read_run(tmp_path / "run").metrics
    assert [m["iteration"] for m in metrics] == [0, 1]
    steps = [logs for logs in logged if "loss" in logs]
    assert len(steps) == 8
    for k, line in enumerate(metrics):
        mine = steps[4 * k : 4 * k + 4]
        for ours, theirs in (("grad_norm", "grad_norm"), ("loss", "loss"), ("entropy", "entropy")):
            assert line[ours] == pytest.approx(sum(step[theirs] for step in mine) / 4)
        assert line["step_s"] == pytest.approx(sum(step["step_time"] for step in mine))


def test_evaluations_are_recorded_by_name_and_once(make_trainer: Make, tmp_path: Path) -> None:
    trainer = make_trainer(
        evals=[
            "gem:test:Scripted-v0?n=5&seed=70#name=warm",
            "gem:test:Scripted-v0?n=3&seed=90#name=greedy&temperature=0",
        ],
        script=lambda *_: "end",
        record_dir=str(tmp_path / "run"),
        args={
            "eval_strategy": "steps",
            "eval_steps": 1,
            "eval_on_start": True,
            "per_device_eval_batch_size": 2,
        },
    )
    trainer.train()
    record = read_run(tmp_path / "run")
    found = [(m["iteration"], m["split"], m["episodes"]) for m in record.metrics]
    warm, greedy = ("eval:warm", 5.0), ("eval:greedy", 3.0)
    assert found == [
        (0, *warm), (0, *greedy), (0, "train", 8.0),
        (1, *warm), (1, *greedy), (1, "train", 8.0),
        (2, *warm), (2, *greedy),
    ]  # fmt: skip
    seeds = [e.trajectory.task.seed for e in record.episodes("eval:warm", {1})]
    assert seeds == [70, 71, 72, 73, 74]


@pytest.mark.parametrize(("of_evaluations", "played"), [(None, 4), (1, 1)])
def test_a_task_is_evaluated_as_often_as_it_is_played_in_training_or_as_trl_is_told(
    make_trainer: Make, tmp_path: Path, of_evaluations: int | None, played: int
) -> None:
    trainer = make_trainer(
        evals=["gem:test:Scripted-v0?n=3&seed=70#name=warm"],
        script=lambda *_: "end",
        record_dir=str(tmp_path / "run"),
        group_size=4,
        args={
            "max_steps": 1,
            "eval_strategy": "steps",
            "eval_steps": 1,
            "num_generations_eval": of_evaluations,
        },
    )
    trainer.train()
    found = [m["episodes"] for m in read_run(tmp_path / "run").metrics if m["split"] != "train"]
    assert found == [3.0 * played]


def test_an_environment_that_shows_images_is_refused_before_a_model_is_loaded() -> None:
    uri = "gem:game:Sokoban-v0-easy?n=2&modality=image"
    for make in (gem_trl.task_dataset, gem_trl.eval_datasets):
        with pytest.raises(ConfigurationError, match="shows images, and policies are shown text"):
            make("gem:test:Scripted-v0?n=2", uri)


def test_episodes_that_fill_up_an_evaluation_count_once(make_trainer: Make) -> None:
    trainer = make_trainer()
    trainer.model.eval()
    rows = trainer.train_dataset.to_list()[:3]
    trainer._generate_single_turn = lambda prompts, **_: ([[2]] * len(prompts), None)
    trainer.play([row["prompt"] for row in [*rows, rows[0], rows[1]]])
    [played] = trainer._recording.evaluated.values()
    assert [t.group for t in trainer._once(played)] == [0, 1, 2]


def test_environments_step_side_by_side(make_trainer: Make) -> None:
    trainer = make_trainer("gem:test:Scripted-v0?n=8&together=8", script=lambda *_: "on", turns=2)
    trainer.model.train()
    returned = trainer.play([row["prompt"] for row in trainer.train_dataset])["episode_return"]
    assert returned == [0.5] * 8


def test_temperatures_of_a_dataset_are_for_evaluations(make_trainer: Make) -> None:
    trainer = make_trainer("gem:test:Scripted-v0?n=64#temperature=0.5", script=lambda *_: "on")
    with pytest.raises(ConfigurationError, match=r"sampling \{.*temperature=0\.5.*\}: in training"):
        trainer.train()


def test_prompts_of_others_are_refused(make_trainer: Make) -> None:
    trainer = make_trainer(script=lambda *_: "on")
    with pytest.raises(ConfigurationError, match="not a task of a GEM dataset"):
        trainer.play(["What is 2 + 2?"])


def test_a_turn_has_at_most_the_completion_length(make_trainer: Make) -> None:
    assert make_trainer()._budget.turn_tokens == 16
    assert make_trainer(turn_tokens=9)._budget.turn_tokens == 9


def test_engines_stop_where_the_chat_template_ends_a_message(model: Path, make_args: Make) -> None:
    """Base models end a text with another token than their template ends a message with."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.eos_token = "<|endoftext|>"
    base = AutoModelForCausalLM.from_pretrained(model)
    base.generation_config.eos_token_id = tokenizer.eos_token_id
    dataset = gem_trl.task_dataset("gem:test:Scripted-v0?n=8")
    trainer = gem_trl.GemGRPOTrainer(
        base, make_args(), train_dataset=dataset, processing_class=tokenizer
    )
    ends = sorted(tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_end|>"]))
    assert trainer.generation_config.eos_token_id == ends
    assert trainer.generation_kwargs["eos_token_id"] == ends


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, False),
        ({"is_fsdp_enabled": True}, True),
        ({"is_deepspeed_enabled": True}, True),
        ({"use_vllm": True}, False),
        ({"use_vllm": True, "vllm_mode": "server"}, True),
        ({"use_vllm": True, "vllm_tensor_parallel_size": 2}, True),
        ({"vllm_mode": "server"}, False),
    ],
)
def test_processes_sample_in_step_where_sampling_is_a_collective(
    make_trainer: Make, settings: dict[str, Any], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer()
    for name, value in settings.items():
        setattr(trainer, name, value)
    assert not trainer.sampling_is_collective  # one process
    monkeypatch.setattr(type(trainer.accelerator), "num_processes", 2)
    assert trainer.sampling_is_collective is expected


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, 0.75),
        ({"temperature": 0.7}, 0.75),
        ({"temperature": 0.7, "vllm_mode": "server"}, None),
        ({"top_k": 1}, None),
        ({"top_p": 0.9}, None),
        ({"min_p": 0.1}, None),
        ({"repetition_penalty": 1.1}, None),
        ({"use_vllm": False}, None),
    ],
)
def test_the_distance_from_vllms_log_probabilities_is_recorded(
    make_trainer: Make, settings: dict[str, Any], expected: float | None
) -> None:
    """Unless they are of different distributions."""
    trainer = make_trainer()
    output = {
        "prompt_ids": torch.tensor([[0, 5], [4, 5]]),
        "prompt_mask": torch.tensor([[0, 1], [1, 1]]),
        "completion_ids": torch.tensor([[6, 7, 2], [6, 2, 0]]),
        "completion_mask": torch.tensor([[1, 1, 1], [1, 1, 0]]),
        "tool_mask": torch.tensor([[1, 0, 1], [1, 1, 1]]),
    }
    ids = torch.cat([output["prompt_ids"], output["completion_ids"]], 1)
    attended = torch.cat([output["prompt_mask"], output["completion_mask"]], 1)
    ours, *_ = trainer._get_per_token_logps_and_entropies(trainer.model, ids, attended, 3, 1)
    distance = torch.tensor([[0.25, 9.0, -0.75], [0.0, 0.0, 9.0]])
    output["sampling_per_token_logps"] = (ours + distance).detach()
    for name, value in ({"use_vllm": True} | settings).items():
        setattr(trainer, name, value)
    found = trainer._agreement(output).metrics()
    assert found.get("logprob_difference_max") == (expected and pytest.approx(expected, abs=1e-6))
    if expected:
        assert found["logprob_difference_mean"] == pytest.approx(1 / 4, abs=1e-6)
        k3 = sum(math.exp(-d) - 1 + d for d in (0.25, -0.75)) / 4
        assert found["sampler_kl"] == pytest.approx(k3, abs=1e-5)
        assert found["mismatched_tokens"] == 1

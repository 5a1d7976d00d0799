"""The direct loop on a service without a model."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import tinker

from gem.errors import ConfigurationError, RecordError, RolloutError
from gem_tinker import train
from gem_tinker.settings import read
from gem_train.record import read_run

TASKS = "gem:test:Scripted-v0?seed=0"


def run(folder: Path | None, *arguments: str, train_on: str = TASKS) -> None:
    words = ["model=m", f"train={train_on}", "tasks=2", "group_size=2", "iterations=4", "turns=2"]
    words += ["turn_tokens=12", "seed=0", "lora_rank=4", "grad_clip=0.5", "save_every=2"]
    words += [] if folder is None else [f"record_dir={folder}"]
    last = dict(word.partition("=")[::2] for word in [*words, *arguments])
    asyncio.run(train.train(read([f"{key}={value}" for key, value in last.items()])))


def test_each_batch_is_played_by_the_weights_of_all_updates_before_it(
    service: Any, tmp_path: Path
) -> None:
    service.texts = ("a", "end")
    run(tmp_path)
    assert [updates for updates, *_ in service.trained] == [0, 1, 2, 3]
    assert sorted({updates for _, _, updates in service.samples}) == [0, 1, 2, 3]
    record = read_run(tmp_path)
    assert [m["iteration"] for m in record.metrics] == [0, 1, 2, 3]
    assert all(m["logprob_difference_max"] == 0 for m in record.metrics)
    assert record.metrics[0]["grad_norm"] == 2.0
    versions = [e.trajectory.policy_version for e in record.episodes()]
    assert versions == [(k, k) for k in range(4) for _ in range(4)]


def test_the_optimiser_gets_what_was_configured(service: Any) -> None:
    run(None, "lr=0.01", "beta2=0.9", "weight_decay=0.125", "clip=0.3")
    params = service.steps[0]
    assert (params.learning_rate, params.beta2) == (0.01, 0.9)
    assert (params.weight_decay, params.grad_clip_norm) == (0.125, 0.5)
    _, _, loss, clips = service.trained[0]
    assert loss == "ppo"
    assert clips == {"clip_low_threshold": 0.7, "clip_high_threshold": 1.3}
    assert service.clients[0][1]["rank"] == 4


@pytest.mark.parametrize(("url", "waits"), [("http://localhost:8000", True), (None, False)])
def test_a_server_of_ones_own_makes_a_step_after_its_gradient(
    service: Any, url: str | None, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TINKER_BASE_URL", raising=False)
    run(None, "iterations=2", *([] if url is None else [f"base_url={url}"]))
    expected = ["gradient", "step"] if waits else ["step", "gradient"]
    assert service.order == expected * 2


def test_stale_weights_are_noticed(service: Any) -> None:
    service.stale = True
    with pytest.raises(RolloutError, match="disagree by 0.25.*other weights"):
        run(None, "logprob_tolerance=0.01")
    assert len(service.trained) == 2  # the first batch really was of the initial weights


def test_epochs_and_minibatches_are_updates(service: Any, tmp_path: Path) -> None:
    run(tmp_path, "epochs=2", "minibatches=2", "iterations=1", "logprob_tolerance=0.01")
    assert [updates for updates, *_ in service.trained] == [0, 1, 2, 3]
    assert [len(datums) for _, datums, *_ in service.trained] == [2, 2, 2, 2]
    # What the sampler said stays the old policy of all updates.
    # exp(-0.25) is below 1 - 0.2 for all updates but the first, which clips what was bad: half.
    assert read_run(tmp_path).metrics[0]["clip_fraction"] == 0.375


def test_evaluation_is_recorded_under_its_name(service: Any, tmp_path: Path) -> None:
    sources = "gem:test:Scripted-v0?n=3&seed=90#name=same&temperature=0.0 gem:test:Scripted-v0?n=2"
    run(tmp_path, f"eval={sources}", "eval_every=3")
    found = [
        (m["split"], m["iteration"]) for m in read_run(tmp_path).metrics if "eval" in m["split"]
    ]
    assert found == [
        (f"eval:{name}", k) for k in (0, 3, 4) for name in ("same", "test:Scripted-v0")
    ]
    assert {p.temperature for _, p, _ in service.samples} == {0.0, 1.0}


def test_evaluations_are_sampled_as_training_is_where_they_say_nothing(
    service: Any, tmp_path: Path
) -> None:
    run(tmp_path, "eval=gem:test:Scripted-v0?n=2", "temperature=0", "top_p=0.5", "iterations=1")
    assert {(p.temperature, p.top_p) for _, p, _ in service.samples} == {(0.0, 0.5)}


def test_failed_episodes_are_counted_and_not_trained_on(service: Any, tmp_path: Path) -> None:
    doomed = "gem:test:Scripted-v0?seed=0&doomed=1"
    run(tmp_path, "max_failed_fraction=0.5", "iterations=2", train_on=doomed)
    first, second = read_run(tmp_path).metrics
    assert (first["failed_episodes"], first["episodes"]) == (2, 2)
    assert second["failed_episodes"] == 0
    assert [len(datums) for _, datums, *_ in service.trained] == [2, 4]


def test_too_many_failed_episodes_stop_the_run(service: Any, tmp_path: Path) -> None:
    doomed = "gem:test:Scripted-v0?seed=0&doomed=1"
    with pytest.raises(RolloutError, match="2 of 4 episodes.*sandbox gone"):
        run(tmp_path, train_on=doomed)
    assert service.trained == []


def test_a_run_goes_on_from_its_last_checkpoint(service: Any, tmp_path: Path) -> None:
    service.train_errors = [None, None, None, RuntimeError("power cut")]
    with pytest.raises(RuntimeError, match="power cut"):
        run(tmp_path)
    assert [m["iteration"] for m in read_run(tmp_path).metrics] == [0, 1, 2]
    service.trained.clear()
    service.train_errors = []
    run(tmp_path)
    assert service.clients[-1] == "tinker://run/weights/iteration-000002"
    # Iteration 2 had been trained after the checkpoint: those weights are gone.
    assert [updates for updates, *_ in service.trained] == [2, 3]
    assert [m["iteration"] for m in read_run(tmp_path).metrics] == [0, 1, 2, 3]
    assert [e.iteration for e in read_run(tmp_path).episodes()] == [
        k for k in range(4) for _ in "1234"
    ]


def test_a_run_does_not_go_on_with_other_settings_but_may_be_longer(
    service: Any, tmp_path: Path
) -> None:
    run(tmp_path, "iterations=2")
    with pytest.raises(ConfigurationError, match=r"config.lr: .* there, 0.5 here"):
        run(tmp_path, "lr=0.5")
    run(tmp_path, "restarts=1")
    assert [m["iteration"] for m in read_run(tmp_path).metrics] == [0, 1, 2, 3]


def test_a_finished_run_trains_nothing(service: Any, tmp_path: Path) -> None:
    run(tmp_path)
    service.trained.clear()
    run(tmp_path)
    assert service.trained == []
    assert len(read_run(tmp_path).metrics) == 4


def test_a_poisoned_client_is_replaced_and_nothing_is_trained_twice(
    service: Any, tmp_path: Path
) -> None:
    service.train_errors = [None, None, None, tinker.TinkerError("out of memory")]
    run(tmp_path)
    assert [client[0] if isinstance(client, tuple) else client for client in service.clients] == [
        "m",
        "tinker://run/weights/iteration-000002",
    ]
    assert [updates for updates, *_ in service.trained] == [0, 1, 2, 2, 3]
    assert [m["iteration"] for m in read_run(tmp_path).metrics] == [0, 1, 2, 3]
    assert service.states["tinker://run/weights/iteration-000004"] == 4


def test_a_client_that_keeps_failing_stops_the_run(service: Any, tmp_path: Path) -> None:
    service.train_errors = [tinker.TinkerError("no such loss")] * 9
    with pytest.raises(RolloutError, match="2 failures.*no such loss"):
        run(tmp_path, "restarts=1")


def test_an_error_that_the_sdk_hides_in_a_value_error_is_a_failed_client_too(
    service: Any, tmp_path: Path
) -> None:
    hidden = ValueError("Error retrieving result ... exceeded 3 retries")
    hidden.__cause__ = tinker.TinkerError("loss not supported")
    service.train_errors = [None, hidden]
    run(tmp_path)
    assert len(service.clients) == 2
    assert [m["iteration"] for m in read_run(tmp_path).metrics] == [0, 1, 2, 3]


def test_a_damaged_list_of_checkpoints_is_refused(service: Any, tmp_path: Path) -> None:
    (tmp_path / "checkpoints.jsonl").write_text('{"state": 1}\n')
    with pytest.raises(RecordError, match="line 1 is damaged: iteration is missing"):
        run(tmp_path)


def test_rows_are_recorded_on_demand(
    service: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEM_RECORD_ROWS", "1")
    run(tmp_path, "iterations=1")
    lines = (tmp_path / "episodes.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line)["rows"] for line in lines]
    assert [len(of_episode) for of_episode in rows] == [1, 1, 1, 1]
    assert sum(rows[0][0]["mask"]) > 0


def test_a_run_that_ends_early_has_another_exit_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def early(config: Any, report: Any) -> None:
        report(0, "train", {})

    monkeypatch.setattr(train, "train", early)
    words = ["model=m", f"train={TASKS}", "iterations=4", "tasks=2", "turns=2", "turn_tokens=12"]
    assert train.main(words) == 2
    assert "only 1 of 4 iterations" in capsys.readouterr().err


def test_the_command_line_says_what_is_wrong(
    service: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train.main(["model=m"]) == 2
    assert "missing key 'train'" in capsys.readouterr().err
    assert train.main(["--help"]) == 0
    assert "record_dir" in capsys.readouterr().out

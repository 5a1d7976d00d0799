"""The reference trainer goes on from a checkpoint as if it had never been killed."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from processes import share_no_progress_bar

from gem.errors import ConfigurationError, RecordError
from gem_train.experiment.runspec import RunSpec
from gem_train.record import read_run

torch = pytest.importorskip("torch", reason="the reference trainer needs torch")
pytest.importorskip("gem_cpu.tiny_model", reason="makes the model to train")

from gem_bench import checkpoints, reference  # noqa: E402
from gem_bench.checkpoints import Checkpoints  # noqa: E402
from gem_bench.reference_command import main  # noqa: E402

MakeSpec = Callable[..., RunSpec]
GAME = {
    "id": "game:GuessTheNumber-v0-easy",
    "params": {"hint": "range", "prompt": "short"},
    "name": "some",
    "episodes": 2,
    "every": 2,
}
MOMENTS = [(0, "train"), (2, "eval:some"), (2, "train"), (4, "train"), (5, "eval:some")]


class Killed(BaseException):
    """Nothing in the trainer catches it, as nothing catches SIGKILL."""


def train(spec: RunSpec, folder: Path, every: int = 2, **options: Any) -> Any:
    saved = Checkpoints(folder, spec, every)
    return reference.train(spec, folder, device="cpu", checkpoints=saved, **options)


def record(folder: Path) -> tuple[list[Any], list[Any]]:
    run = read_run(folder)
    metrics = [{k: v for k, v in line.items() if not k.endswith("_s")} for line in run.metrics]
    return metrics, [dataclasses.replace(each, fingerprint=None) for each in run.episodes()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[RunSpec], Path]:
    """Run an experiment without an interruption, once."""
    done: dict[str, Path] = {}

    def run(spec: RunSpec) -> Path:
        key = json.dumps(spec.to_mapping())
        if key not in done:
            done[key] = tmp_path_factory.mktemp("whole")
            train(spec, done[key])
        return done[key]

    return run


@pytest.mark.parametrize("moment", MOMENTS, ids=str)
def test_killed_at_any_moment_it_ends_as_if_it_had_not_been(
    moment: tuple[int, str], make_spec: MakeSpec, whole: Callable[[RunSpec], Path], tmp_path: Path
) -> None:
    spec = make_spec(training__iterations=5, algorithm__advantage="gae", eval=[GAME])

    def kill(iteration: int, split: str, _: Any) -> None:
        if (iteration, split) == moment:
            raise Killed

    with pytest.raises(Killed):
        train(spec, tmp_path, report=kill)
    train(spec, tmp_path)
    assert record(tmp_path) == record(whole(spec))
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"policy__lora_rank": 4}, marks=pytest.mark.nightly),
        pytest.param(
            {"algorithm__epochs": 2, "algorithm__minibatches": 2}, marks=pytest.mark.nightly
        ),
        {"training__staleness": 1, "optimizer__lr": 0.02},
        {"algorithm__kl_coef": 1.0, "algorithm__kl_reset": 1, "algorithm__minibatches": 2},
    ],
    ids=["adapters", "minibatches", "staleness", "another reference"],
)
def test_adapters_minibatches_and_staleness_go_on_exactly_too(
    changes: dict[str, Any], make_spec: MakeSpec, whole: Callable[[RunSpec], Path], tmp_path: Path
) -> None:
    spec = make_spec(training__iterations=3, **changes)

    def kill(iteration: int, split: str, _: Any) -> None:
        if iteration == 2:
            raise Killed

    with pytest.raises(Killed):
        train(spec, tmp_path, report=kill)
    train(spec, tmp_path)
    assert record(tmp_path) == record(whole(spec))


def test_parameters_that_wait_for_success_go_on_exactly_too(
    make_spec: MakeSpec, whole: Callable[[RunSpec], Path], tmp_path: Path
) -> None:
    params = {"hint": "range", "prompt": "short"}
    # One of two games is won in a batch sooner or later; never all of them.
    stages = [
        {"success": 0.01, "params": {"max_number": 9}},
        {"success": 1.0, "params": {"max_number": 2}},
    ]
    game = {"id": GAME["id"], "params": {**params, "max_number": 3}, "schedule": stages}
    other = {"id": GAME["id"], "name": "other", "params": params}
    spec = make_spec(training__iterations=4, env=[game, other])

    def kill(iteration: int, split: str, _: Any) -> None:
        if iteration == 2:
            raise Killed

    with pytest.raises(Killed):
        train(spec, tmp_path, report=kill)
    train(spec, tmp_path)
    assert record(tmp_path) == record(whole(spec))
    played: dict[int, set[int]] = {k: set() for k in range(4)}
    for each in read_run(tmp_path).episodes():
        if each.trajectory.environment == GAME["id"]:
            played[each.iteration].add(each.trajectory.task.params["max_number"])
    rates = [m[f"env/{GAME['id']}/success_rate"] for m in read_run(tmp_path).metrics]
    first = next(k for k, rate in enumerate(rates) if rate >= 0.01)
    assert first < 3
    assert [played[k] for k in range(first + 2)] == [{3}] * (first + 1) + [{9}]


def test_killed_while_it_saves_it_goes_on_from_the_checkpoint_before(
    make_spec: MakeSpec,
    whole: Callable[[RunSpec], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec, save = make_spec(training__iterations=5), torch.save

    def half(state: Any, file: Any) -> None:
        text = io.BytesIO()
        save(state, text)
        file.write(text.getvalue()[: text.tell() // 2 if state["iteration"] == 4 else None])
        if state["iteration"] == 4:
            raise Killed

    monkeypatch.setattr(checkpoints.torch, "save", half)
    with pytest.raises(Killed):
        train(spec, tmp_path)
    monkeypatch.setattr(checkpoints.torch, "save", save)
    begun: list[int] = []
    train(spec, tmp_path, report=lambda iteration, *_: begun.append(iteration))
    assert begun == [2, 3, 4]
    assert record(tmp_path) == record(whole(spec))


def test_the_command_goes_on_and_ends_with_the_same_weights(
    make_spec: MakeSpec, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = make_spec(training__iterations=3)
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(spec.to_mapping()))
    words = ["--spec", str(path), "--device", "cpu", "--checkpoint-every", "2"]
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        assert main([*words, "--record", str(folder), "--save", str(folder / "model")]) == 0
    capsys.readouterr()
    again = [*words, "--record", str(folders[1]), "--save", str(folders[1] / "model")]
    assert main(again) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["2"]
    assert record(folders[0]) == record(folders[1])
    weights = [(folder / "model" / "model.safetensors").read_bytes() for folder in folders]
    assert weights[0] == weights[1]


def test_a_checkpoint_that_cannot_be_read_is_named_with_what_to_do(
    make_spec: MakeSpec, tmp_path: Path
) -> None:
    spec = make_spec(training__iterations=2)
    train(spec, tmp_path, every=1)
    last = tmp_path / "checkpoints" / "iteration-000002.pt"
    state = torch.load(last, weights_only=True)
    name, weight = state["policy"]["weights"].popitem()
    state["policy"]["weights"][f"{name}_as_another_version_calls_it"] = weight
    torch.save(state, last)
    with pytest.raises(RecordError, match=rf"policy: weights do not fit .*: {name}.*Remove it"):
        train(spec, tmp_path, every=1)
    last.write_bytes(last.read_bytes()[:1000])
    with pytest.raises(RecordError, match=r"iteration-000002.pt: .*Remove it, and the run goes on"):
        train(spec, tmp_path, every=1)
    last.unlink()
    begun: list[int] = []
    train(spec, tmp_path, every=1, report=lambda iteration, *_: begun.append(iteration))
    assert begun == [1]


def test_a_checkpoint_of_another_experiment_or_version_is_refused(
    make_spec: MakeSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, other = make_spec(training__iterations=1), make_spec(training__iterations=2, seed=1)
    train(spec, tmp_path, every=1)
    with pytest.raises(ConfigurationError, match=r"seed: 0 there, 1 here"):
        train(other, tmp_path)
    # As if it had been copied into another run's folder.
    for name in ("run.json", "metrics.jsonl", "episodes.jsonl"):
        (tmp_path / name).unlink()
    with pytest.raises(ConfigurationError, match=r"iteration-000001.pt holds another run"):
        train(other, tmp_path)
    monkeypatch.setattr(checkpoints, "__version__", "0.0.1")
    with pytest.raises(ConfigurationError, match=r"gem-bench: '.*' there, '0.0.1' here"):
        train(spec, tmp_path)


def test_a_folder_that_cannot_be_written_any_more_ends_the_run_and_it_goes_on_later(
    make_spec: MakeSpec, whole: Callable[[RunSpec], Path], tmp_path: Path
) -> None:
    spec = make_spec(training__iterations=5, eval=[GAME])

    def lose(iteration: int, split: str, _: Any) -> None:
        if (iteration, split) == (3, "train"):  # a folder in the place of a file cannot be written
            (tmp_path / "metrics.jsonl").rename(tmp_path / "kept")
            (tmp_path / "metrics.jsonl").mkdir()

    with pytest.raises(RecordError, match=r"cannot write .*metrics.jsonl.* before is intact"):
        train(spec, tmp_path, report=lose)
    (tmp_path / "metrics.jsonl").rmdir()
    (tmp_path / "kept").rename(tmp_path / "metrics.jsonl")
    recorded = [line["iteration"] for line in read_run(tmp_path).metrics]
    assert recorded == [0, 0, 1, 2, 2, 3]
    train(spec, tmp_path)
    assert record(tmp_path) == record(whole(spec))


def test_a_checkpoint_that_cannot_be_written_ends_the_run_and_leaves_those_before(
    make_spec: MakeSpec, tmp_path: Path
) -> None:
    spec = make_spec(training__iterations=3)

    def lose(iteration: int, *_: Any) -> None:
        if iteration == 1:
            (tmp_path / "checkpoints" / "iteration-000002.partial").mkdir()

    with pytest.raises(RecordError, match=r"cannot write the checkpoint .*000002.pt.*are intact"):
        train(spec, tmp_path, every=1, report=lose)
    assert [path.name for path in (tmp_path / "checkpoints").glob("*.pt")] == [
        "iteration-000001.pt"
    ]


def test_killed_again_and_again_by_sigkill_it_ends_as_if_it_had_not_been(
    make_spec: MakeSpec, whole: Callable[[RunSpec], Path], tmp_path: Path
) -> None:
    spec = make_spec(training__iterations=5, algorithm__advantage="gae", eval=[GAME])
    expected = record(whole(spec))
    moments = random.Random(0)
    begun, status = 0, -1
    while status != 0:
        pid = os.fork()
        if pid == 0:
            try:
                share_no_progress_bar()
                train(spec, tmp_path, every=1)
                os._exit(0)
            finally:
                os._exit(1)
        begun += 1
        if begun <= 12:  # then it may end
            time.sleep(moments.uniform(0.05, 0.6))
            os.kill(pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert status in (0, -signal.SIGKILL)
    assert begun > 1
    assert record(tmp_path) == expected

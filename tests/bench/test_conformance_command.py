"""`gem-bench conformance`: two recorded runs, and a trainer that is run beside the reference."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gem_bench.__main__ import main
from gem_train.experiment.runspec import RunSpec
from gem_train.record import Recorder, TrainedRow
from gem_train.testing.conformance import expected_rows
from gem_train.testing.golden import golden_batch

Start = Callable[..., subprocess.Popen[str]]
Write = Callable[..., Path]


@pytest.fixture
def record(tmp_path: Path, small_spec: RunSpec) -> Write:
    """Writes a run of the golden episodes; `settings` are tables of its RunSpec."""

    def write(
        name: str,
        *,
        change: Callable[[TrainedRow], TrainedRow] = lambda row: row,
        returns: tuple[float, ...] = (0.1, 0.2),
        parity: tuple[dict[str, str], ...] = (),
        loss: float = -0.5,
        **settings: dict[str, Any],
    ) -> Path:
        folder = tmp_path / name
        spec = small_spec.to_mapping()
        settings = {"sampling": {"top_k": 1}, **settings}
        spec |= {table: {**spec[table], **values} for table, values in settings.items()}
        recorder = Recorder(folder)
        recorder.start({"trainer": name, "spec": spec, "parity": list(parity)})
        rows = expected_rows(golden_batch(), RunSpec.from_mapping(spec).algorithm)
        recorder.episodes(0, golden_batch(), rows=[[change(row) for row in of] for of in rows])
        for k, mean in enumerate(returns):
            recorder.metrics(k, {"return_mean": mean, "grad_norm": 2.0, "loss": loss})
        return folder

    return write


def table(printed: str) -> dict[str, list[str]]:
    """The cells of a printed table by level."""
    lines = printed.splitlines()
    widths = [len(rule) for rule in lines[1].split("  ")]
    cells = {}
    for line in lines[2:6]:
        row = []
        for width in widths:
            row.append(line[:width].strip())
            line = line[width + 2 :]
        cells[row[0]] = row[1:]
    return cells


def test_equal_runs_have_a_line_for_each_level(
    record: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["conformance", str(record("a")), str(record("b", loss=-0.5001))]) == 0
    found = table(capsys.readouterr().out)
    assert found["L0"] == ["advantages of 7 rows", "equal", "0", ""]
    assert found["L1"] == ["ids, masks and rewards of 7 rows", "equal", "0", ""]
    assert found["L2"] == ["gradient norm and loss of the first update", "equal", "0.0001", ""]
    assert found["L3"] == ["mean return of 2 iterations", "equal", "0", ""]


@pytest.mark.parametrize(
    ("level", "other", "largest", "first"),
    [
        (
            "L0",
            {"change": lambda row: replace(row, advantages=[a + 0.5 for a in row.advantages])},
            "0.5",
            "advantages of seed 0, row 0, token 0: expected 0.656454086, found 1.15645409",
        ),
        (
            "L1",
            {"change": lambda row: replace(row, mask=[0, *row.mask[1:]])},
            "0",
            "mask of seed 0, row 0, token 0: expected 1, found 0",
        ),
        (
            "L1",
            {"change": lambda row: replace(row, rewards=[r * 3 for r in row.rewards])},
            "2",
            "rewards of seed 0, row 0, token 16: expected 1, found 3",
        ),
        ("L2", {"loss": -0.25}, "0.25", "loss of iteration 0: expected -0.5, found -0.25"),
        ("L2", {"loss": float("nan")}, "-", "loss of iteration 0: expected -0.5, found None"),
        (
            "L3",
            {"returns": (0.1, 0.45)},
            "0.25",
            "return_mean of iteration 1: expected 0.2, found 0.45",
        ),
        ("L3", {"returns": (0.1,)}, "0", "number of iterations: expected 2, found 1"),
    ],
)
def test_a_difference_is_shown_with_its_first_place(
    level: str,
    other: dict[str, Any],
    largest: str,
    first: str,
    record: Write,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["conformance", str(record("a")), str(record("b", **other))]) == 1
    found = table(capsys.readouterr().out)
    assert found[level][1:] == ["differs", largest, first]
    assert all(cells[1] == "equal" for name, cells in found.items() if name != level)


def test_advantages_that_depend_on_a_critic_are_unknown(
    record: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [str(record(name, algorithm={"advantage": "gae"})) for name in "ab"]
    assert main(["conformance", *folders]) == 0
    assert table(capsys.readouterr().out)["L0"][1] == "unknown"


def test_what_recorded_no_rows_does_not_conform(
    record: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = record("a"), record("b")
    (b / "episodes.jsonl").unlink()
    Recorder(b).episodes(0, golden_batch())
    assert main(["conformance", str(a), str(b)]) == 1
    found = table(capsys.readouterr().out)
    assert found["L1"][3] == "rows of seed 0: expected 1, found not recorded"
    (b / "episodes.jsonl").unlink()
    assert main(["conformance", str(a), str(b)]) == 1
    found = table(capsys.readouterr().out)
    assert found["L0"][3] == "advantages of 0 rows: expected some, found none"


def test_settings_that_the_trainer_does_not_match_are_named(
    record: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    departure = {"name": "policy.lora_init", "status": "unmatched", "how": "the server draws it"}
    assert main(["conformance", str(record("a")), str(record("b", parity=(departure,)))]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "b does not match policy.lora_init: the server draws it"


def test_runs_that_cannot_be_compared_are_refused(
    record: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*args: object) -> str:
        assert main(["conformance", *map(str, args)]) == 2
        return capsys.readouterr().err

    right = record("a")
    assert "algorithm.gamma (0.9 and 0.5)" in refused(right, record("b", algorithm={"gamma": 0.5}))
    # The same weights may lie elsewhere, and a trainer's first adapter be given to the reference.
    ranked = record("c", policy={"lora_rank": 8})
    elsewhere = record("d", policy={"lora_rank": 8, "model": "there", "lora_init": "adapter"})
    assert main(["conformance", str(ranked), str(elsewhere)]) == 0
    sampled = [record(name, sampling={"top_k": -1}) for name in ("e", "f")]
    assert "sampling.top_k must be 1" in refused(*sampled)
    Recorder(tmp_path / "unknown").start({"trainer": "x"})
    assert "does not say what was run" in refused(right, tmp_path / "unknown")
    assert "holds no run" in refused(right, tmp_path / "missing")
    for folders in ((), (right,), (right, right, right)):
        assert "give two run folders, or a trainer with --to" in refused(*folders)
    assert "give one RunSpec, or none" in refused(right, right, "--to", "verl")
    assert "name another" in refused("--to", "reference")
    assert "top_k must be 1" in refused("--to", "verl", "--set", "sampling.top_k=2")


@pytest.mark.parametrize(
    "words",
    [
        *(("--set", "seed=1"), ("--seed", "0"), ("--native", "a=b"), ("--python", "python3")),
        *(("--cpu",), ("--hardware", "8xh100"), ("--overwrite",), ("--timeout", "9")),
        ("--out", "x"),
    ],
)
def test_an_option_of_runs_that_are_made_is_refused_for_runs_that_are_there(
    record: Write, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["conformance", str(record("a")), str(record("b")), *words]) == 2
    assert f"{words[0]} is of runs that are made: give it with --to" in capsys.readouterr().err


TWINS = """
from dataclasses import replace
from gem_bench.adapters import reference

def discounting(run):
    algorithm = replace(run.spec.algorithm, gamma=1.0)
    return reference.compiler(replace(run, spec=replace(run.spec, algorithm=algorithm)))

right = replace(reference, trainer="twin")
wrong = replace(right, compiler=discounting)
"""


@pytest.fixture
def twins(fake_site: Path) -> None:
    """Two trainers beside the fake one: the reference by another name, and one with a defect."""
    pytest.importorskip("gem_cpu.tiny_model", reason="makes the model to train")
    (fake_site / "twins.py").write_text(TWINS)
    (fake_site / "gem_fake-1.2.dist-info" / "entry_points.txt").write_text(
        "[gem.adapters]\nfake = fake_trainer:adapter\nright = twins:right\nwrong = twins:wrong\n"
    )


@pytest.mark.nightly
@pytest.mark.parametrize(("trainer", "status"), [("right", 0), ("wrong", 1)])
def test_a_trainer_is_run_beside_the_reference(
    trainer: str, status: int, twins: None, gem_bench: Start, tmp_path: Path
) -> None:
    shorter = ("--set", "training.iterations=2", "--set", "training.tasks=16")
    process = gem_bench("conformance", "--to", trainer, "--cpu", "--out", "both", *shorter)
    out, err = process.communicate(timeout=300)
    assert process.returncode == status, err
    found = table(out)
    assert [found[level][1] == "equal" for level in ("L0", "L1")] == [not status, True]
    assert found["L1"][0] == "ids, masks and rewards of 16 rows"
    assert found["L3"][0] == "mean return of 2 iterations"
    assert f"{trainer}: finished" in err
    assert (tmp_path / "both" / "reference" / "run.json").exists()
    # What is there can be compared again, and is not replaced unasked.
    folders = [f"both/{name}" for name in ("reference", trainer)]
    again = gem_bench("conformance", *folders)
    assert (again.communicate(timeout=60)[0], again.returncode) == (out, status)
    refused = gem_bench("conformance", "--to", trainer, "--cpu", "--out", "both", *shorter)
    assert "already holds a run" in refused.communicate(timeout=60)[1]
    assert refused.returncode == 2


def test_a_run_that_fails_ends_the_comparison(
    twins: None, gem_bench: Start, tmp_path: Path
) -> None:
    shorter = ("--set", "training.iterations=4", "--set", "training.tasks=4")
    process = gem_bench(
        "conformance", "--to", "fake", "--cpu", "--out", "both", *shorter, "--set", "name=crash"
    )
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (1, "")
    assert "fake: failed" in err and "tensor shapes differ" in err

"""The RunSpec: what it accepts, how it refuses, and the way to a trainer's command."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from tables import table as full_table

from gem.errors import ConfigurationError
from gem.tables import parse_toml
from gem.tasks import Task
from gem_train.experiment import runspec
from gem_train.experiment.hardware import Hardware
from gem_train.experiment.runspec import RunSpec, SamplingPart
from gem_train.experiment.tasksets import EvalSampling
from gem_train.launch import Adapter, Launch, main
from gem_train.pairs import COMPUTED, pairs
from gem_train.table import Parity

SPEC: dict[str, Any] = {
    "name": "guess",
    "env": {"id": "game:GuessTheNumber-v0-easy", "params": {"hint": "range"}, "seed": 100},
    "policy": {"model": "tiny", "prompt_tokens": 64, "response_tokens": 256, "turn_tokens": 8},
    "algorithm": {"advantage": "rebn", "gamma": 0.9},
    "optimizer": {"lr": 1e-3},
    "training": {"iterations": 3, "tasks": 2, "group_size": 4},
    "eval": [{"name": "same", "id": "game:GuessTheNumber-v0-easy"}],
}

RECIPE = Path(__file__).parents[2] / "recipes" / "guess-easy.toml"


def changed(path: str, value: Any) -> dict[str, Any]:
    data = copy.deepcopy(SPEC)
    *tables, key = path.split(".")
    inner = data
    for table in tables:
        inner = inner.setdefault(table, {})
    inner[key] = value
    return data


def test_a_spec_reads_back() -> None:
    spec = RunSpec.from_mapping(SPEC)
    assert spec.algorithm.clip == 0.2
    assert spec.optimizer.lr == 1e-3
    assert RunSpec.from_mapping(json.loads(json.dumps(spec.to_mapping()))) == spec


def test_every_iteration_plays_new_seeds() -> None:
    spec = RunSpec.from_mapping(SPEC)
    tasks = [t for k in range(3) for t in spec.train_tasks(k)]
    assert tasks == [Task(spec.env[0].id, s, {"hint": "range"}) for s in range(100, 106)]
    assert [spec.task_set[i] for i in range(len(spec.task_set))] == tasks


@pytest.mark.parametrize(
    ("part", "values", "message"),
    [
        ("sampling", {"min_p": 0.1, "top_p": 0.9}, r"sampling\.min_p: .*top_p.* got 0\.1"),
        ("sampling", {"min_p": 1.5}, r"sampling\.min_p must be"),
        ("sampling", {"repetition_penalty": 0}, r"sampling\.repetition_penalty must be"),
        ("eval", {"min_p": 0.1, "top_p": 0.9}, r"eval\.same\.min_p: .* got 0\.1"),
        ("eval", {"samples": 4, "temperature": 0.0}, r"eval\.same\.samples: greedy .* got 4"),
        ("eval", {"samples": 4, "top_k": 1}, r"eval\.same\.samples: greedy .* got 4"),
    ],
)
def test_sampling_that_says_nothing_certain_is_refused(
    part: str, values: dict[str, Any], message: str
) -> None:
    data = copy.deepcopy(SPEC)
    place = data["eval"][0] if part == "eval" else data.setdefault(part, {})
    place.update(values)
    with pytest.raises(ConfigurationError, match=message):
        RunSpec.from_mapping(data)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tis_floor": 2.0, "tis_clip": 1.0}, r"tis_floor must be below algorithm\.tis_clip = 1"),
        ({"reject_low": 2.0, "reject_high": 2.0}, r"reject_low must be below"),
        ({"tis_level": "sequence"}, r"tis_level: means nothing without .* got 'sequence'"),
        ({"tis_outside": "zero"}, r"tis_outside: means nothing without"),
        ({"reject_level": "mean", "tis_clip": 2.0}, r"reject_level: means nothing without"),
        ({"loss": "sapo", "clip_high": 0.3}, r"clip_high: means nothing to the loss 'sapo'"),
        ({"loss": "sapo", "clip": 0.3}, r"clip: means nothing to the loss 'sapo'"),
        (
            {"loss": "cispo", "clip": 0.3, "clip_high": 0.3},
            r"clip: means nothing to the loss 'cispo' with clip_high; leave it out, got 0\.3",
        ),
        ({"sapo_positive": 2.0}, r"sapo_positive: means nothing to the loss 'ppo'"),
        ({"loss": "cispo", "sapo_negative": 2.0}, r"sapo_negative: means nothing to .* 'cispo'"),
        ({"kl_in": "reward"}, r"kl_in: means nothing without algorithm\.kl_coef"),
        ({"kl_estimator": "k1"}, r"kl_estimator: means nothing without algorithm\.kl_coef"),
        ({"critic_warmup": 2}, r"critic_warmup: the advantage .* has no critic"),
        ({"critic_warmup": 999, "advantage": "gae"}, r"critic_warmup must be below training"),
        ({"kl_reset": 2}, r"kl_reset: means nothing without algorithm\.kl_coef"),
        ({"kl_reset": 3, "kl_coef": 0.1}, r"kl_reset must be below .*iterations = 3, got 3"),
    ],
)
def test_settings_of_the_loss_that_contradict_each_other_are_refused(
    values: dict[str, Any], message: str
) -> None:
    data = copy.deepcopy(SPEC)
    data["algorithm"].update(values)
    with pytest.raises(ConfigurationError, match=message):
        RunSpec.from_mapping(data)


def test_only_other_candidates_or_penalties_make_sampling_partial() -> None:
    assert SamplingPart().whole and SamplingPart(temperature=0.5).whole
    partial = ({"top_p": 0.9}, {"top_k": 1}, {"min_p": 0.1}, {"repetition_penalty": 1.1})
    assert not any(SamplingPart(**each).whole for each in partial)


def long_run(training: dict[str, Any], env: Any = None, **part: Any) -> None:
    """Make a spec with 64 evaluated tasks from 500,000 on."""
    own = {"name": "same", "id": SPEC["env"]["id"], "params": SPEC["env"]["params"], **part}
    data = {**SPEC, "env": env or SPEC["env"], "eval": [own], "training": training}
    RunSpec.from_mapping(data)


def test_the_usual_seeds_of_evaluations_are_not_those_of_a_long_run() -> None:
    longest = {"iterations": 4_999, "tasks": 100, "group_size": 2}  # its seeds are 100 to 499,999
    said = r"eval\.same\.seed: .* 500000 .* trained on"
    long_run(longest)
    with pytest.raises(ConfigurationError, match=said):
        long_run({**longest, "iterations": 5_000})
    with pytest.raises(ConfigurationError, match=said):
        long_run({**longest, "extra_batches": 1})
    long_run({**longest, "iterations": 5_000}, seed=10**6)
    long_run({**longest, "iterations": 5_000}, params={})
    # Of two environments each has its share.
    env = [{**SPEC["env"], "name": "a"}, {"id": SPEC["env"]["id"], "name": "b", "weight": 3}]
    long_run({**longest, "iterations": 4 * 4_999}, env)
    with pytest.raises(ConfigurationError, match=said):
        long_run({**longest, "iterations": 4 * 5_000}, env)


def test_evaluations_are_told_apart_by_their_names() -> None:
    data = copy.deepcopy(SPEC)
    data["eval"].append({"name": "other", "id": SPEC["env"]["id"], "episodes": 2, "seed": 5})
    same, other = RunSpec.from_mapping(data).evaluations
    assert (same.name, len(same.tasks), same.sampling) == ("same", 64, EvalSampling())
    assert [other.tasks[i].seed for i in range(len(other.tasks))] == [5, 6]
    data["eval"][1]["name"] = "same"
    with pytest.raises(ConfigurationError, match="eval: two evaluations are called 'same'"):
        RunSpec.from_mapping(data)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("algorithm.gama", 0.9, "unknown key 'algorithm.gama'; did you mean algorithm.gamma"),
        ("nonsense", 1, "unknown key 'nonsense'; known: algorithm"),
        ("algorithm.gamma", 1.5, r"algorithm.gamma must be at most 1, got 1.5"),
        ("algorithm.gamma", "high", "algorithm.gamma must be of type float, got 'high'"),
        ("algorithm.gamma", True, "algorithm.gamma must be of type float, got True"),
        ("algorithm.gamma", float("nan"), "algorithm.gamma must be finite, got nan"),
        (
            "algorithm.minibatches",
            9,
            "at most .* episodes .* = 8, got 9",
        ),
        ("optimizer.beta1", 1.0, "optimizer.beta1 must be below 1, got 1.0"),
        ("optimizer.beta2", 1, "optimizer.beta2 must be below 1, got 1.0"),
        ("optimizer.lr", float("nan"), "optimizer.lr must be finite, got nan"),
        pytest.param("optimizer.lr", 10**400, "optimizer.lr must be finite", id="huge"),
        ("policy.context", "nonsense", "policy.context: unknown context 'nonsense'; known: chat"),
        ("policy.context", "window:0", "policy.context: unknown context 'window:0'"),
        ("policy.model", " ", "policy.model: must not be empty"),
        ("sampling.top_k", 0, "sampling.top_k must be at least 1 or -1, got 0"),
        ("env.params", {"x": {"y": [1, date(2026, 1, 1)]}}, r"env.params.x.y\[1\] must be a text"),
        ("env.params", {"x": float("inf")}, "env.params.x must be finite, got inf"),
        ("env.params", {3: 1}, "env.params has the key 3, which is no text"),
        ("eval", [{"name": "x", "id": "y", "every": 0}], r"eval\[0\].every must be at least 1"),
        (
            "algorithm.advantage",
            "ppo",
            "algorithm.advantage: unknown estimator 'ppo'; known: ",
        ),
        ("optimizer.lr", 0, "optimizer.lr must be above 0, got 0.0"),
        ("training.tasks", 0, "training.tasks must be at least 1, got 0"),
        ("training.tasks", 1.0, "training.tasks must be of type int, got 1.0"),
        ("policy.turns", 0, "policy.turns must be at least 1"),
        ("policy.lora_rank", -1, "policy.lora_rank must be at least 0"),
        ("policy.lora_alpha", 8.0, "policy.lora_alpha: means nothing without policy.lora_rank"),
        ("policy.lora_init", "folder", "policy.lora_init: means nothing without policy.lora_rank"),
        ("policy.model", None, "policy.model must be of type str, got None"),
        ("env", 3, "env must be a table, got 3"),
        ("env.params", 3, "env.params must be a table, got 3"),
        ("eval", {"name": "x"}, "eval must be an array, got"),
        ("eval", [{"name": "x"}], r"missing key 'eval\[0\].id' \(registered environment id\)"),
    ],
)
def test_a_wrong_key_or_value_is_named(path: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        RunSpec.from_mapping(changed(path, value))


def numbers(part: Any, path: str = "") -> Iterator[str]:
    """Keys of all settings that are numbers with a fraction."""
    for name, hint in get_type_hints(part).items():
        inner = get_args(hint)[0] if get_args(hint) else hint
        if is_dataclass(inner):
            yield from numbers(inner, f"{path}{name}.{'0.' * (name in ('eval', 'schedule'))}")
        elif inner is float:
            yield path + name


@pytest.mark.parametrize("key", list(numbers(RunSpec)))
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_no_number_may_be_infinite_or_nan(key: str, value: float) -> None:
    data = copy.deepcopy(SPEC)
    data["env"]["schedule"] = [{"iteration": 1}]
    *tables, last = key.split(".")
    inner: Any = data
    for table in tables:
        inner = inner[int(table)] if table.isdigit() else inner.setdefault(table, {})
    inner[last] = value
    with pytest.raises(ConfigurationError, match=f"{last} must be finite"):
        RunSpec.from_mapping(data)


def test_every_number_but_the_seeds_of_environments_has_a_lower_limit() -> None:
    parts = [RunSpec, *(p for p in vars(runspec).values() if is_dataclass(p) and p is not Task)]
    free = {
        f"{part.__name__}.{f.name}"
        for part in parts
        if part.__name__.endswith(("Part", "Spec"))
        for f in fields(part)
        if get_type_hints(part)[f.name] in (int, float, int | None)
        and f.metadata["least"] is f.metadata["above"] is None
    }
    assert free == {"EnvPart.seed", "EvalPart.seed"}


def test_a_missing_table_is_named() -> None:
    data = {k: v for k, v in SPEC.items() if k != "optimizer"}
    with pytest.raises(ConfigurationError, match="missing key 'optimizer'"):
        RunSpec.from_mapping(data)


def test_a_launch_reads_back() -> None:
    launch = Launch(
        ["python", "-m", "x"], {"A": "1"}, ["B"], {"f": "text"}, [Parity("a", "matched", "b=1")]
    )
    assert Launch.from_json(launch.to_json()) == launch


def game(**params: Any) -> RunSpec:
    return RunSpec.from_mapping({**SPEC, "env": {"id": "multi:Nim-v0", "params": params}})


def test_an_adapter_refuses_what_its_trainer_lacks_however_it_is_asked(tmp_path: Path) -> None:
    rows = (pairs(COMPUTED, COMPUTED, "runs", "it computes nothing"),)
    one, every = (
        Adapter(
            "x",
            ">=1",
            "x",
            full_table("x"),
            lambda run: Launch(["echo"]),
            all_seats=both,
            keeps_state=both,
            pairs=rows,
        )
        for both in (False, True)
    )
    given: dict[str, Any] = {"run_dir": tmp_path, "hardware": Hardware()}
    with pytest.raises(ConfigurationError, match=r"env.params.seat: x trains one seat .* 'all'"):
        one.compile(game(seat="all"), **given)
    rae = replace(game(), algorithm=replace(game().algorithm, advantage="rae"))
    with pytest.raises(ConfigurationError, match="algorithm.advantage: x keeps no state"):
        one.compile(rae, **given)
    assert every.compile(rae, **given).argv == ["echo"]
    said = {p.name: p.how for p in every.compile(game(seat="all"), **given).parity}
    assert said["env.params.seat"].startswith("all seats")
    said = {p.name: p.how for p in one.compile(game(opponent="self"), **given).parity}
    assert said["env.params.opponent"].startswith("one seat")


class FakeAdapter:
    """Stands for an installed adapter; the real ones are tested in their own environments."""

    def compile(self, spec: RunSpec, *, run_dir: Any, hardware: Hardware) -> Launch:
        return Launch(["echo", spec.name, str(run_dir), str(hardware.nodes)])


def test_the_command_line_compiles_a_spec(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    class Entry:
        name, value = "fake", "fake:ADAPTER"

        @staticmethod
        def load() -> Any:
            return FakeAdapter()

    import io

    monkeypatch.setattr(
        "gem.plugins.entry_points", lambda group, name="fake": [Entry] * (name == "fake")
    )
    monkeypatch.setattr(
        sys, "stdin", io.StringIO(json.dumps({"spec": SPEC, "hardware": {"nodes": 2}}))
    )
    assert main(["fake", "--run-dir", str(tmp_path)]) == 0
    launch = Launch.from_json(capsys.readouterr().out)
    assert launch.argv == ["echo", "guess", str(tmp_path), "2"]


def test_a_missing_adapter_is_answered_with_those_that_there_are() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "gem_train.launch", "nowhere", "--run-dir", "."],
        input=json.dumps({"spec": SPEC, "hardware": {}}),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert result.returncode == 2
    assert "no adapter for trainer 'nowhere'; known: " in result.stderr
    assert "pip install" not in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("suffix", [".toml", ".json"])
def test_a_byte_order_mark_is_no_part_of_a_spec(tmp_path: Path, suffix: str) -> None:
    spec = RunSpec.read(RECIPE)
    path = tmp_path / f"spec{suffix}"
    text = RECIPE.read_text() if suffix == ".toml" else json.dumps(spec.to_mapping())
    path.write_text(text, encoding="utf-8-sig")
    assert RunSpec.read(path) == spec


def test_a_spec_is_read_from_toml_or_json(tmp_path: Path) -> None:
    spec = RunSpec.read(RECIPE)
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(spec.to_mapping()))
    assert RunSpec.read(path) == spec
    path.write_text("[")
    with pytest.raises(ConfigurationError, match=r"cannot read the spec .*spec\.json"):
        RunSpec.read(path)
    path.write_text("{}")
    with pytest.raises(ConfigurationError, match=r"spec\.json: .*name"):
        RunSpec.read(path)


def test_landmarks_are_rates_and_nothing_to_a_trainer() -> None:
    data = {**parse_toml(RECIPE.read_text(), "recipe"), "landmarks": {"random": 0.25, "oracle": 1}}
    spec = RunSpec.from_mapping(data)
    assert spec.to_mapping()["landmarks"] == {"random": 0.25, "oracle": 1}
    assert "landmarks" not in spec.settings()
    assert RunSpec.from_mapping(spec.to_mapping()) == spec
    del data["landmarks"]
    assert "landmarks" not in RunSpec.from_mapping(data).to_mapping()
    for wrong in (1.5, -0.1, "0.5", True, [0.5]):
        with pytest.raises(ConfigurationError, match=r"landmarks\.x must be a success rate"):
            RunSpec.from_mapping({**data, "landmarks": {"x": wrong}})

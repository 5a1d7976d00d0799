"""Runs of the reference trainer: what it trains on, records and refuses, and its command."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gem
from gem.core import Step
from gem.envs.games.guess_the_number import GuessTheNumber
from gem.errors import ConfigurationError, RolloutError, UnfinishedError
from gem.estimators import BUILT_IN
from gem_train.experiment.runspec import RunSpec
from gem_train.record import RunRecord, read_run

torch = pytest.importorskip("torch", reason="the reference trainer needs torch")
transformers = pytest.importorskip("transformers", reason="the reference trainer needs it")
pytest.importorskip("gem_cpu.tiny_model", reason="makes the model to train")

from gem_bench import reference  # noqa: E402
from gem_bench.reference_command import main  # noqa: E402
from gem_bench.reference_setup import read_spec  # noqa: E402
from gem_bench.rows import training_rows  # noqa: E402
from gem_bench.runspec import load_spec  # noqa: E402

GAME = "game:GuessTheNumber-v0-easy"
CRASHING = "test:CrashingOnOddSeeds-v0"
PARAMS = {"hint": "range", "prompt": "short"}
TIMINGS = {"time_s", "rollout_s", "update_s", "tokens_per_s"}


class CrashesOnOddSeeds(GuessTheNumber):
    """Breaks in a chosen turn of every episode with an odd seed."""

    def __init__(self, *args: Any, breaks_in: int = 1, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.breaks_in = breaks_in

    def step(self, action: str) -> Step:
        if self.turn == self.breaks_in and self.episode_key[0] % 2:
            raise RuntimeError("the lamp went out")
        return super().step(action)


gem.register(CRASHING, CrashesOnOddSeeds, max_number=10, max_turns=4)


def numbers(run: RunRecord) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k not in TIMINGS} for line in run.metrics]


@pytest.mark.parametrize("advantage", BUILT_IN)
def test_every_estimator_trains_and_records(
    advantage: str, make_spec: Callable[..., RunSpec], tmp_path: Path
) -> None:
    spec = make_spec(
        algorithm__advantage=advantage,
        algorithm__lam=0.95,
        env__params={**PARAMS, "soft_reward": True},
    )
    before = transformers.AutoModelForCausalLM.from_pretrained(spec.policy.model)
    learner = reference.train(spec, tmp_path, device="cpu")
    moved = [
        not torch.equal(a, b)
        for a, b in zip(before.parameters(), learner.policy.parameters(), strict=True)
    ]
    assert all(moved)
    run = read_run(tmp_path)
    assert RunSpec.from_mapping(run.meta["spec"]) == spec
    assert [(m["iteration"], m["split"]) for m in run.metrics] == [(0, "train"), (1, "train")]
    for line in run.metrics:
        assert line["episodes"] == 8
        assert line["grad_norm"] > 0
        assert all(v is not None for v in line.values())
        assert ("value_loss" in line) == (advantage == "gae")
    episodes = list(run.episodes())
    assert len(episodes) == 16
    seeds = [e.trajectory.task.seed for e in episodes if e.iteration == 1]
    assert seeds == [4, 4, 5, 5, 6, 6, 7, 7]
    for e in episodes:
        assert e.advantages is not None
        assert len(e.advantages) == len(e.trajectory.turns)


def test_the_same_seed_gives_bitwise_the_same_metrics(
    make_spec: Callable[..., RunSpec], tmp_path: Path
) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        reference.train(make_spec(seed=seed), tmp_path / name, device="cpu")
    a, b, c = (numbers(read_run(tmp_path / name)) for name in "abc")
    assert a == b
    assert a != c


def test_in_the_critic_s_warm_up_the_policy_stays_as_it_is(
    make_spec: Callable[..., RunSpec], tmp_path: Path
) -> None:
    warm = {"algorithm__advantage": "gae", "algorithm__critic_warmup": 2}
    weights = []

    class Seen(reference.Learner):
        def update(self, *args: Any, **kwargs: Any) -> dict[str, float]:
            before = self.policy.state_dict(), self.critic.state_dict()
            kept = [{k: v.clone() for k, v in each.items()} for each in before]
            found = super().update(*args, **kwargs)
            after = self.policy.state_dict(), self.critic.state_dict()
            weights.append(
                [
                    all(torch.equal(old[k], new[k]) for k in old)
                    for old, new in zip(kept, after, strict=True)
                ]
            )
            return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "Learner", Seen)
        reference.train(make_spec(training__iterations=4, **warm), tmp_path / "a", device="cpu")
    # Of policy and critic: whether the update left it alone.
    assert weights == [[True, False], [True, False], [False, False], [False, False]]
    lines = [m for m in read_run(tmp_path / "a").metrics if m["split"] == "train"]
    assert ["loss" in line for line in lines] == [False, False, True, True]
    assert all("value_loss" in line for line in lines)


def test_the_penalty_is_to_the_policy_of_the_last_reset(
    make_spec: Callable[..., RunSpec], tmp_path: Path
) -> None:
    found = []
    for every in (None, 2):
        reset = {} if every is None else {"algorithm__kl_reset": every}
        spec = make_spec(
            training__iterations=5, algorithm__kl_coef=0.5, optimizer__lr=0.01, **reset
        )
        reference.train(spec, tmp_path / str(every), device="cpu")
        found.append([m["kl"] for m in read_run(tmp_path / str(every)).metrics])
    never, again = found
    assert never[0] == 0 and all(kl > 1e-9 for kl in never[1:])
    assert [kl == 0 for kl in again] == [True, False, True, False, True]
    assert again[:2] == never[:2]


def test_evaluations_run_before_in_between_and_at_the_end_and_change_nothing(
    make_spec: Callable[..., RunSpec], tmp_path: Path
) -> None:
    part = {"id": GAME, "params": PARAMS, "episodes": 3, "every": 2}
    several = {"name": "several", "episodes": 2, "samples": 3, "top_p": 0.9}
    parts = [
        {**part, "name": "sampled"},
        {**part, "name": "greedy", "temperature": 0},
        {**part, **several},
    ]
    spec = make_spec(training__iterations=3)
    reference.train(spec, tmp_path / "plain", device="cpu")
    reference.train(make_spec(training__iterations=3, eval=parts), tmp_path / "eval", device="cpu")
    run = read_run(tmp_path / "eval")
    for name in ("eval:sampled", "eval:greedy"):
        assert [m["iteration"] for m in run.metrics if m["split"] == name] == [0, 2, 3]
    train = [m for m in numbers(run) if m["split"] == "train"]
    assert train == numbers(read_run(tmp_path / "plain"))
    evaluated = [e for e in run.episodes() if e.split == "eval:greedy"]
    assert [e.trajectory.task.seed for e in evaluated[:3]] == [500_000, 500_000 + 1, 500_000 + 2]
    again = [e.trajectory for e in run.episodes() if e.split == "eval:several"][:6]
    assert [t.task.seed for t in again] == [500_000] * 3 + [500_000 + 1] * 3
    assert len({str([turn.response_ids for turn in t.turns]) for t in again}) > 2
    assert all("pass_rate" in m for m in run.metrics if m["split"] == "eval:several")
    assert all(set(t.logprobs or []) == {0.0} for e in evaluated for t in e.trajectory.turns)


def test_numbers_that_the_spec_asks_for_are_metrics_of_training_and_evaluations(
    make_spec: Callable[..., RunSpec], tmp_path: Path
) -> None:
    evaluation = {"name": "a", "id": GAME, "params": PARAMS, "episodes": 3, "every": 1}
    asked = ["invalid_action", "absent"]
    spec = make_spec(training__iterations=1, training__info_metrics=asked, eval=[evaluation])
    reference.train(spec, tmp_path, device="cpu")
    metrics = read_run(tmp_path).metrics
    assert {each["split"] for each in metrics} == {"train", "eval:a"}
    for each in metrics:
        assert 0 <= each["info/invalid_action"] <= 1 == each["info/invalid_action/share"]
        assert each["info/absent/share"] == 0
        assert "info/absent" not in each


def test_failed_episodes_take_part_in_nothing(
    make_spec: Callable[..., RunSpec],
    learner_of: Callable[..., reference.Learner],
    tmp_path: Path,
) -> None:
    spec = make_spec(
        env__id=CRASHING,
        training__iterations=1,
        training__tasks=8,
        training__max_failed_fraction=0.9,
    )
    reference.train(spec, tmp_path, device="cpu")
    run = read_run(tmp_path)
    episodes = list(run.episodes())
    failed = [e for e in episodes if not e.trajectory.valid]
    # They broke in their second turn: the first one must not be trained on either.
    assert failed
    assert all(len(e.trajectory.turns) == 1 for e in failed)
    assert run.metrics[0]["failed_episodes"] == len(failed)
    assert run.metrics[0]["episodes"] == 16 - len(failed)

    # The same update from the surviving episodes alone.
    learner = learner_of(spec)
    valid = [e for e in episodes if e.trajectory.valid]
    rows = training_rows([e.trajectory for e in valid])
    advantage = [e.advantages or [] for e in valid]
    flat = [a for row in advantage for a in row]
    assert sum(flat) == pytest.approx(0)
    metrics = learner.update(rows, advantage, advantage, 0)
    assert metrics["loss"] == pytest.approx(run.metrics[0]["loss"], abs=1e-7)
    assert metrics["grad_norm"] == pytest.approx(run.metrics[0]["grad_norm"], rel=1e-6)


@pytest.mark.parametrize("limit", [0.0, 1.0])
def test_a_batch_that_lost_too_much_stops_the_run_as_in_every_adapter(
    make_spec: Callable[..., RunSpec], tmp_path: Path, limit: float
) -> None:
    spec = make_spec(
        env__id=CRASHING,
        training__iterations=1,
        training__tasks=8,
        training__max_failed_fraction=limit,
    )
    if limit == 1:  # all but the failed ones are trained on
        reference.train(spec, tmp_path, device="cpu")
        assert read_run(tmp_path).metrics[0]["failed_environment"] > 0
        return
    match = r"of 16 episodes .* at most a share of 0 may\. By cause: environment \d+ \(.*lamp went"
    with pytest.raises(RolloutError, match=match):
        reference.train(spec, tmp_path, device="cpu")


def test_a_run_that_code_ends_early_is_an_error(
    make_spec: Callable[..., RunSpec], tmp_path: Path
) -> None:
    def leave(iteration: int, split: str, metrics: Any) -> None:
        sys.exit(0)

    with pytest.raises(UnfinishedError, match="after 1 of 2 iterations"):
        reference.train(make_spec(), tmp_path, device="cpu", report=leave)


def test_a_batch_without_a_surviving_episode_stops_the_run(
    make_spec: Callable[..., RunSpec], tmp_path: Path
) -> None:
    spec = make_spec(
        env__id=CRASHING,
        env__seed=1,
        env__params={**PARAMS, "breaks_in": 0},
        training__tasks=1,
        training__max_failed_fraction=1.0,
    )
    with pytest.raises(RolloutError, match="2 of 2 episodes .* failed.*the lamp went out"):
        reference.train(spec, tmp_path, device="cpu")


def test_the_rows_that_the_loss_sees_are_recorded_on_request(
    make_spec: Callable[..., RunSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEM_RECORD_ROWS", "1")
    reference.train(make_spec(training__iterations=1), tmp_path, device="cpu")
    for episode in read_run(tmp_path).episodes():
        assert episode.rows is not None
        assert episode.advantages is not None
        rows = episode.trajectory.training_rows()
        for shown, row in zip(episode.rows, rows, strict=True):
            assert shown.prompt_ids == row.prompt_ids
            assert shown.response_ids == row.response_ids
            assert shown.mask == row.mask
            assert shown.advantages == row.spread(episode.advantages)
            assert shown.rewards == row.token_rewards(episode.trajectory.rewards)


def test_settings_that_would_be_ignored_are_refused(
    make_spec: Callable[..., RunSpec], tmp_path: Path
) -> None:
    cases = {
        "training.group_size": make_spec(algorithm__advantage="grpo", training__group_size=1),
        "policy.prompt_tokens": make_spec(policy__response_tokens=100_000),
        "policy.model": make_spec(policy__model=str(tmp_path / "nothing")),
    }
    for key, spec in cases.items():
        with pytest.raises(ConfigurationError, match=key):
            reference.train(spec, tmp_path / "record", device="cpu")


def test_an_error_of_the_optimiser_is_not_called_one_of_the_model(
    make_spec: Callable[..., RunSpec], tmp_path: Path
) -> None:
    spec = make_spec()
    spec = dataclasses.replace(spec, optimizer=dataclasses.replace(spec.optimizer, beta1=1.0))
    with pytest.raises(ValueError, match="beta") as caught:
        reference.train(spec, tmp_path / "record", device="cpu")
    assert "policy.model" not in str(caught.value)


def test_a_second_run_is_not_mixed_into_the_record_of_the_first(
    make_spec: Callable[..., RunSpec], tmp_path: Path
) -> None:
    spec = make_spec(training__iterations=1)
    reference.train(spec, tmp_path, device="cpu")
    with pytest.raises(ConfigurationError, match="record of another run"):
        reference.train(spec, tmp_path, device="cpu")
    assert len(read_run(tmp_path).metrics) == 1


def test_a_model_without_a_chat_template_is_refused(
    make_spec: Callable[..., RunSpec], model_folder: str, tmp_path: Path
) -> None:
    for file in Path(model_folder).iterdir():
        if file.name != "chat_template.jinja":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(ConfigurationError, match="no chat template"):
        reference.train(make_spec(policy__model=str(tmp_path)), tmp_path / "record", device="cpu")


def test_the_command_trains_records_and_saves(
    make_spec: Callable[..., RunSpec], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps(make_spec(training__iterations=1).to_mapping()))
    argv = ["--spec", spec, "--record", tmp_path / "run", "--save", tmp_path / "model"]
    assert main([*map(str, argv), "--device", "cpu"]) == 0
    assert "success_rate" in capsys.readouterr().out
    assert len(read_run(tmp_path / "run").metrics) == 1
    # What was saved can be trained further.
    again = make_spec(training__iterations=1, policy__model=str(tmp_path / "model"))
    reference.train(again, tmp_path / "again", device="cpu")


@pytest.mark.parametrize("supported", [True, False])
def test_the_command_says_that_a_cpu_is_slow_in_bf16(
    make_spec: Callable[..., RunSpec],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    supported: bool,
) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: supported)
    spec = tmp_path / "spec.json"
    made = make_spec(training__iterations=1, training__precision="bf16")
    spec.write_text(json.dumps(made.to_mapping()))
    assert main(["--spec", str(spec), "--record", str(tmp_path / "run"), "--device", "cpu"]) == 0
    assert ("no instructions for bf16" in capsys.readouterr().err) is not supported


def test_the_command_reads_toml(model_folder: str, tmp_path: Path) -> None:
    recipe = Path(__file__).parents[2] / "recipes" / "guess-easy.toml"
    assert read_spec(recipe).policy.model == model_folder


PUBLISHED = sorted((Path(__file__).parents[2] / "recipes").glob("published-*.toml"))


@pytest.mark.parametrize("recipe", PUBLISHED, ids=lambda path: path.stem)
def test_a_published_recipe_runs_with_a_tiny_model_and_bundled_rows(
    recipe: Path, model_folder: str, tmp_path: Path
) -> None:
    overrides = [
        f"policy.model={model_folder}",
        "policy.prompt_tokens=1600",
        "policy.response_tokens=400",
        "policy.turn_tokens=32",
        "training.iterations=1",
        "training.tasks=2",
    ]
    if not load_spec(recipe).env[0].id.startswith(("game:", "rg:")):
        overrides.append("env.params.source=sample")
    if recipe.stem == "published-qa-search":
        search = '{ name = "search", index = "sample" }'
        wrapper = f'{{ name = "tool_env", tools = [{search}], max_tool_uses = 5 }}'
        overrides.append(f"env.params.wrappers=[{wrapper}]")
    spec = load_spec(recipe, overrides)
    reference.train(spec, tmp_path / "run", device="cpu")
    record = read_run(tmp_path / "run")
    assert len(record.metrics) == 1
    assert record.metrics[0]["failed_episodes"] == 0
    assert math.isfinite(record.metrics[0]["grad_norm"])


def test_the_command_says_what_is_wrong_with_a_spec(
    make_spec: Callable[..., RunSpec], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = tmp_path / "spec.json"
    data = make_spec().to_mapping()
    data["algorithm"]["gama"] = 0.9
    broken = {"algorithm.gama": json.dumps(data), "cannot read": "{"}
    for expected, text in broken.items():
        spec.write_text(text)
        assert main(["--spec", str(spec), "--record", str(tmp_path / "run")]) == 2
        assert expected in capsys.readouterr().err

"""The reference trainer, checked against slow and obvious computations of the same numbers."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gem
from gem.advantage import ADVANTAGES
from gem.core import Step
from gem.envs.games.guess_the_number import GuessTheNumber
from gem.errors import ConfigurationError, RolloutError
from gem.rollout import ChatFormat, play_batch
from gem.tasks import Task
from gem.training.record import RunRecord, read_run
from gem.training.runspec import RunSpec, SamplingPart
from gem.trajectory import Trajectory

torch = pytest.importorskip("torch", reason="the reference trainer needs torch")
transformers = pytest.importorskip("transformers", reason="the reference trainer needs it")
tiny_model = pytest.importorskip("gem_cpu.tiny_model", reason="makes the model to train")

from gem_bench import reference, sampler  # noqa: E402
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


class CrashesOnce(GuessTheNumber):
    """Breaks in the second turn the first time that a seed is played."""

    broken: set[int] = set()  # noqa: RUF012

    def step(self, action: str) -> Step:
        seed = self.episode_key[0]
        if self.turn == 1 and seed % 2 and seed not in self.broken:
            self.broken.add(seed)
            raise RuntimeError("the lamp went out")
        return super().step(action)


gem.register(CRASHING, CrashesOnOddSeeds, max_number=10, max_turns=4)


@pytest.fixture(scope="session")
def model_folder() -> str:
    """The tiny model, made once per machine."""
    return str(tiny_model.ensure())


@pytest.fixture
def make_spec(model_folder: str) -> Callable[..., RunSpec]:
    """A small experiment; keywords are `table__key=value`."""

    def make(**changes: Any) -> RunSpec:
        data: dict[str, Any] = {
            "name": "test",
            "env": {"id": GAME, "params": PARAMS},
            "policy": {
                "model": model_folder,
                "prompt_tokens": 64,
                "response_tokens": 160,
                "turn_tokens": 8,
            },
            "algorithm": {"advantage": "rebn", "gamma": 0.9},
            "optimizer": {"lr": 1e-3},
            "training": {"iterations": 2, "tasks": 4, "group_size": 2},
        }
        for name, value in changes.items():
            table, _, key = name.partition("__")
            if key:
                data.setdefault(table, {})[key] = value
            else:
                data[table] = value
        return RunSpec.from_mapping(data)

    return make


@pytest.fixture
def learner_of() -> Callable[..., reference.Learner]:
    def make(spec: RunSpec, forward_tokens: int = 65_536) -> reference.Learner:
        return reference.Learner(spec, torch.device("cpu"), forward_tokens)

    return make


def rollout(
    learner: reference.Learner,
    spec: RunSpec,
    n: int,
    *,
    make_env: Callable[[Task], gem.Env] = Task.make,
    sampling: SamplingPart | None = None,
) -> list[Trajectory]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(spec.policy.model)
    chat = ChatFormat(tokenizer)
    generator = torch.Generator().manual_seed(1)
    sample = sampler.CachedSampler(learner.policy, chat, sampling or spec.sampling, generator)
    tasks = [Task(spec.env.id, seed, spec.env.params) for seed in range(n)]
    return play_batch(
        tasks, sample, chat, budget=spec.budget, context=spec.policy.context, make_env=make_env
    )


def full_logits(model: Any, ids: list[int]) -> Any:
    """Logits of one unpadded sequence without any cache, `[length, vocab]`."""
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


def sampled_positions(trajectory: Trajectory) -> list[tuple[list[int], list[int], list[float]]]:
    """Of every row: ids, positions of sampled tokens, their recorded log-probabilities."""
    out = []
    for row in trajectory.training_rows():
        assert row.logprobs is not None
        start = len(row.prompt_ids)
        at = [i for i, sampled in enumerate(row.mask) if sampled]
        ids = row.prompt_ids + row.response_ids
        out.append((ids, [start + i for i in at], [row.logprobs[i] for i in at]))
    return out


def numbers(run: RunRecord) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k not in TIMINGS} for line in run.metrics]


# Rollout


@pytest.mark.parametrize("context", ["chat", "window:1", "concat"])
def test_greedy_tokens_of_the_cached_rollout_are_those_of_a_full_forward_pass(
    context: str, make_spec: Callable[..., RunSpec], learner_of: Callable[..., reference.Learner]
) -> None:
    spec = make_spec(sampling__top_k=1, policy__context=context, policy__prompt_tokens=160)
    learner = learner_of(spec)
    episodes = rollout(learner, spec, 64)
    # Episodes of different lengths: the batch shrinks while it is played.
    assert len({len(t.turns) for t in episodes}) > 1
    for trajectory in episodes:
        for ids, positions, logprobs in sampled_positions(trajectory):
            best = full_logits(learner.policy, ids).argmax(-1)
            assert [best[p - 1].item() for p in positions] == [ids[p] for p in positions]
            assert logprobs == [0.0] * len(positions)


def test_recorded_logprobs_are_those_of_the_tempered_distribution(
    make_spec: Callable[..., RunSpec], learner_of: Callable[..., reference.Learner]
) -> None:
    spec = make_spec(sampling__temperature=0.7)
    learner = learner_of(spec)
    for trajectory in rollout(learner, spec, 16):
        for ids, positions, logprobs in sampled_positions(trajectory):
            full = (full_logits(learner.policy, ids) / 0.7).log_softmax(-1)
            expected = [full[p - 1, ids[p]].item() for p in positions]
            assert logprobs == pytest.approx(expected, abs=1e-4)


def test_an_episode_that_starts_over_in_mid_batch_gets_its_own_context(
    make_spec: Callable[..., RunSpec], learner_of: Callable[..., reference.Learner]
) -> None:
    spec = make_spec(sampling__top_k=1)
    learner = learner_of(spec)
    CrashesOnce.broken.clear()
    episodes = rollout(
        learner, spec, 8, make_env=lambda t: CrashesOnce(1, 10, 4, hint="range", prompt="short")
    )
    assert CrashesOnce.broken
    assert all(t.valid for t in episodes)
    for trajectory in episodes:
        for ids, positions, _ in sampled_positions(trajectory):
            best = full_logits(learner.policy, ids).argmax(-1)
            assert [best[p - 1].item() for p in positions] == [ids[p] for p in positions]


def test_a_turn_stops_at_its_token_limit_and_the_episode_goes_on(
    make_spec: Callable[..., RunSpec], learner_of: Callable[..., reference.Learner]
) -> None:
    spec = make_spec(
        policy__turn_tokens=2, sampling__top_k=1, env__params={**PARAMS, "format_error_ends": False}
    )
    learner = learner_of(spec)
    for trajectory in rollout(learner, spec, 3):
        assert [t.stop_reason for t in trajectory.turns] == ["length"] * 4
        for ids, positions, _ in sampled_positions(trajectory):
            assert len(positions) == 8
            best = full_logits(learner.policy, ids).argmax(-1)
            assert [best[p - 1].item() for p in positions] == [ids[p] for p in positions]


def test_top_k_and_top_p_keep_the_likeliest_tokens() -> None:
    probs = torch.tensor([[0.5, 0.2, 0.15, 0.1, 0.05]])
    cases = {
        (1.0, -1): 5,
        (1.0, 2): 2,
        (0.5, -1): 1,  # the first token alone has the mass
        (0.6, -1): 2,
        (0.69, 4): 2,  # of what top-k leaves, 0.5 and 0.2 have 0.74 of the mass
        (1e-6, -1): 1,
    }
    for (top_p, top_k), kept in cases.items():
        warped = sampler.warp(probs.log(), SamplingPart(top_p=top_p, top_k=top_k)).softmax(-1)
        expected = torch.where(torch.arange(5) < kept, probs, 0.0)
        torch.testing.assert_close(warped, expected / expected.sum())


def test_temperature_sharpens_the_distribution() -> None:
    probs = torch.tensor([[0.6, 0.3, 0.1]])
    warped = sampler.warp(probs.log(), SamplingPart(temperature=0.5)).softmax(-1)
    torch.testing.assert_close(warped, probs**2 / (probs**2).sum())


# Loss and gradient


@pytest.mark.parametrize("aggregation", ["token-mean", "row-mean-token-sum"])
@pytest.mark.parametrize("forward_tokens", [65_536, 300])
@pytest.mark.parametrize("context", ["chat", "window:1"])
def test_loss_and_gradient_equal_a_naive_implementation(
    aggregation: str,
    forward_tokens: int,
    context: str,
    make_spec: Callable[..., RunSpec],
    learner_of: Callable[..., reference.Learner],
) -> None:
    spec = make_spec(
        algorithm__loss_aggregation=aggregation,
        algorithm__entropy_coef=0.01,
        optimizer__grad_clip=1e9,
        policy__context=context,
        policy__prompt_tokens=160,
    )
    learner = learner_of(spec, forward_tokens)
    episodes = rollout(learner, spec, 4)
    advantage = [[0.3 * (k + 1) - i for k in range(len(t.turns))] for i, t in enumerate(episodes)]

    naive = learner_of(spec).policy
    terms, entropies, rows = [], [], 0
    for episode, trajectory in enumerate(episodes):
        for row in trajectory.training_rows():
            rows += 1
            ids = row.prompt_ids + row.response_ids
            logprobs = naive(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
            per_token = row.spread(advantage[episode])
            for i, sampled in enumerate(row.mask):
                if sampled:
                    before = logprobs[len(row.prompt_ids) + i - 1]
                    terms.append(-per_token[i] * before[row.response_ids[i]])
                    entropies.append(-(before.exp() * before).sum())
    entropy = sum(h.item() for h in entropies)
    denominator = len(terms) if aggregation == "token-mean" else rows
    loss = (sum(terms) - 0.01 * sum(entropies)) / denominator
    loss.backward()
    expected = {n: p.grad.clone() for n, p in naive.named_parameters()}

    metrics = learner.update(training_rows(episodes), advantage, advantage)
    for name, parameter in learner.policy.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-3, atol=2e-6)
    norm = math.sqrt(sum((g**2).sum().item() for g in expected.values()))
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert metrics["entropy"] == pytest.approx(entropy / len(terms), rel=1e-4)
    # On fresh samples the surrogate's value is minus the mean advantage, whatever its gradient.
    flat = [a for t, row in zip(episodes, advantage, strict=True) for a in spread(t, row)]
    value = (-sum(flat) - 0.01 * entropy) / denominator
    assert metrics["loss"] == pytest.approx(value, rel=1e-4)
    assert metrics["clip_fraction"] == 0


def spread(trajectory: Trajectory, per_turn: list[float]) -> list[float]:
    turns = zip(trajectory.turns, per_turn, strict=True)
    return [a for turn, a in turns for _ in turn.response_ids]


def test_the_surrogate_is_clipped_where_it_would_overshoot() -> None:
    old = torch.zeros(4)
    new = torch.tensor([1.5, 0.5, 1.5, 0.5]).log()
    advantage = torch.tensor([1.0, 1.0, -1.0, -1.0])
    loss = reference.policy_loss(new, old, advantage, clip=0.2)
    torch.testing.assert_close(loss, torch.tensor([-1.2, -0.5, 1.5, 0.8]))


def test_the_value_loss_is_clipped_around_the_old_value() -> None:
    loss = reference.value_loss(
        torch.tensor([1.0, 0.1]), torch.zeros(2), torch.tensor([1.0, 1.0]), clip=0.2
    )
    torch.testing.assert_close(loss, torch.tensor([0.5 * 0.8**2, 0.5 * 0.9**2]))


def test_later_updates_on_a_batch_are_measured_against_the_policy_that_sampled(
    make_spec: Callable[..., RunSpec], learner_of: Callable[..., reference.Learner]
) -> None:
    spec = make_spec(algorithm__epochs=2, algorithm__minibatches=2, optimizer__lr=0.02)
    learner = learner_of(spec)
    rows = training_rows(rollout(learner, spec, 6))
    before, _ = reference.token_statistics(learner.policy, rows, 1.0)
    advantage = [[1.0] * 4 for _ in range(6)]
    metrics = learner.update(rows, advantage, advantage)
    old = torch.cat([row.old_logprobs for row in rows])
    torch.testing.assert_close(old, before.detach())
    assert metrics["clip_fraction"] > 0


def test_the_critic_reads_the_last_prompt_token_of_each_turn(
    make_spec: Callable[..., RunSpec], learner_of: Callable[..., reference.Learner]
) -> None:
    spec = make_spec(algorithm__advantage="gae")
    learner = learner_of(spec)
    episodes = rollout(learner, spec, 6)
    assert learner.critic is not None
    # It starts as a copy of the policy's layers.
    policy = learner.policy.base_model.state_dict()
    for name, weight in learner.critic.trunk.state_dict().items():
        assert torch.equal(weight, policy[name])
    with torch.no_grad():
        learner.critic.head.weight.normal_(generator=torch.Generator().manual_seed(0))
    values = learner.values(training_rows(episodes), [len(t.turns) for t in episodes])
    assert values is not None
    for trajectory, got in zip(episodes, values, strict=True):
        ids: list[int] = []
        for turn, value in zip(trajectory.turns, got, strict=True):
            ids += turn.context_ids
            with torch.no_grad():
                hidden = learner.critic.trunk(input_ids=torch.tensor([ids])).last_hidden_state
                assert value == pytest.approx(learner.critic.head(hidden[0, -1]).item(), abs=1e-4)
            ids += turn.response_ids
        # A critic that reads a constant token gives every state the same value.
        assert len(set(got)) == len(got)


def test_a_new_critic_values_everything_zero_and_moves_towards_the_returns(
    make_spec: Callable[..., RunSpec], learner_of: Callable[..., reference.Learner]
) -> None:
    spec = make_spec(algorithm__advantage="gae", algorithm__value_lr=1e-2)
    learner = learner_of(spec)
    episodes = rollout(learner, spec, 6)
    rows, turns = training_rows(episodes), [len(t.turns) for t in episodes]
    first = learner.values(rows, turns)
    assert first == [[0.0] * n for n in turns]
    target = [[1.0] * n for n in turns]
    losses = [learner.update(rows, first, target)["value_loss"] for _ in range(5)]
    assert losses[0] == pytest.approx(0.5)
    assert losses[-1] < losses[0]


# The loop


@pytest.mark.parametrize("advantage", ADVANTAGES)
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


def test_evaluations_run_before_in_between_and_at_the_end_and_change_nothing(
    make_spec: Callable[..., RunSpec], tmp_path: Path
) -> None:
    part = {"id": GAME, "params": PARAMS, "episodes": 3, "every": 2}
    parts = [{**part, "name": "sampled"}, {**part, "name": "greedy", "temperature": 0}]
    spec = make_spec(training__iterations=3)
    reference.train(spec, tmp_path / "plain", device="cpu")
    reference.train(make_spec(training__iterations=3, eval=parts), tmp_path / "eval", device="cpu")
    run = read_run(tmp_path / "eval")
    for name in ("eval:sampled", "eval:greedy"):
        assert [m["iteration"] for m in run.metrics if m["split"] == name] == [0, 2, 3]
    train = [m for m in numbers(run) if m["split"] == "train"]
    assert train == numbers(read_run(tmp_path / "plain"))
    evaluated = [e for e in run.episodes() if e.split == "eval:greedy"]
    assert [e.trajectory.task.seed for e in evaluated[:3]] == [10**6, 10**6 + 1, 10**6 + 2]
    assert all(set(t.logprobs or []) == {0.0} for e in evaluated for t in e.trajectory.turns)


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
    metrics = learner.update(rows, advantage, advantage)
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


# Refusals


def test_settings_that_would_be_ignored_are_refused(
    make_spec: Callable[..., RunSpec], tmp_path: Path
) -> None:
    cases = {
        "algorithm.kl_coef": make_spec(algorithm__kl_coef=0.1),
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


# Command line


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
    if not load_spec(recipe).env.id.startswith(("game:", "rg:")):
        overrides.append("env.params.source=sample")
    if recipe.stem == "published-qa-search":
        wrapper = '{ name = "search_tool_no_int_reward", index = "sample" }'
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

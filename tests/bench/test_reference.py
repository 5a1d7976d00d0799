"""The reference trainer, checked against slow and obvious computations of the same numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import gem
from gem.core import Step
from gem.envs.games.guess_the_number import GuessTheNumber
from gem.errors import ConfigurationError
from gem.rollout import ChatFormat, play_batch
from gem.tasks import Task
from gem.trajectory import Trajectory
from gem_train.experiment.runspec import RunSpec, SamplingPart

torch = pytest.importorskip("torch", reason="the reference trainer needs torch")
transformers = pytest.importorskip("transformers", reason="the reference trainer needs it")
pytest.importorskip("gem_cpu.tiny_model", reason="makes the model to train")

from transformers import MinPLogitsWarper, RepetitionPenaltyLogitsProcessor  # noqa: E402

from gem_bench import reference, sampler  # noqa: E402
from gem_bench.rows import training_rows  # noqa: E402

PARAMS = {"hint": "range", "prompt": "short"}


class CrashesOnce(GuessTheNumber):
    """Breaks in the second turn the first time that a seed is played."""

    def __init__(self, broken: set[int]) -> None:
        super().__init__(1, 10, 4, hint="range", prompt="short")
        self.broken = broken

    def step(self, action: str) -> Step:
        seed = self.episode_key[0]
        if self.turn == 1 and seed % 2 and seed not in self.broken:
            self.broken.add(seed)
            raise RuntimeError("the lamp went out")
        return super().step(action)


def rollout(
    learner: reference.Learner,
    spec: RunSpec,
    n: int,
    *,
    make_env: Callable[[Task], gem.Env] = Task.make,
) -> list[Trajectory]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(spec.policy.model)
    chat = ChatFormat(tokenizer)
    generator = torch.Generator().manual_seed(1)
    sample = sampler.CachedSampler(learner.policy, chat, spec.sampling, generator)
    tasks = [Task(spec.env[0].id, seed, spec.env[0].params) for seed in range(n)]
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
    broken: set[int] = set()
    episodes = rollout(learner, spec, 8, make_env=lambda task: CrashesOnce(broken))
    assert broken
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


def test_min_p_and_the_repetition_penalty_are_those_of_transformers() -> None:
    logits = torch.tensor([[2.0, 1.0, -0.5, -1.0, 0.1], [0.3, -2.0, 0.2, 0.1, 0.0]])
    prompts = [[0, 2], [1, 0]]
    seen = torch.zeros_like(logits, dtype=torch.bool)
    for row, ids in zip(seen, prompts, strict=True):
        row[ids] = True
    sampling = SamplingPart(temperature=0.5, min_p=0.1, repetition_penalty=1.5)
    expected = RepetitionPenaltyLogitsProcessor(1.5)(torch.tensor(prompts), logits) / 0.5
    expected = MinPLogitsWarper(0.1)(torch.tensor(prompts), expected)
    warped = sampler.warp(logits, sampling, seen)
    torch.testing.assert_close(warped, expected)
    # Both have an effect, and a token whose logit is negative becomes less likely, too.
    assert 0 < warped.isinf().sum() < warped.numel()
    assert torch.equal(sampler.warp(logits, SamplingPart(), seen), logits)
    only = sampler.warp(logits, SamplingPart(repetition_penalty=1.5), seen)
    assert (only[seen] < logits[seen]).all() and torch.equal(only[~seen], logits[~seen])


def test_temperature_sharpens_the_distribution() -> None:
    probs = torch.tensor([[0.6, 0.3, 0.1]])
    warped = sampler.warp(probs.log(), SamplingPart(temperature=0.5)).softmax(-1)
    torch.testing.assert_close(warped, probs**2 / (probs**2).sum())


@pytest.mark.parametrize("recomputed", [False, True])
def test_gradient_checkpointing_computes_layers_again_without_dropout(
    recomputed: bool, make_spec: Callable[..., RunSpec], learner_of: Callable[..., Any]
) -> None:
    spec = make_spec(algorithm__advantage="gae")
    learner = learner_of(spec, gradient_checkpointing=recomputed)
    episodes = rollout(learner, spec, 2)
    rows, zeros = training_rows(episodes), [[0.0] * len(t.turns) for t in episodes]
    learner.values(rows, [len(t.turns) for t in episodes])
    trunks = (learner.policy.model, learner.critic.trunk)
    calls = [0, 0]
    for number, trunk in enumerate(trunks):

        def count(module: Any, *_: Any, number: int = number) -> None:
            assert not module.training
            calls[number] += 1

        trunk.layers[-1].self_attn.register_forward_hook(count)
    learner.update(rows, zeros, zeros, 0)
    # The policy's last pass measures how far the update went.
    assert calls == ([3, 2] if recomputed else [2, 1])
    assert not any(m.training for trunk in trunks for m in trunk.modules())


@pytest.mark.parametrize("aggregation", ["token-mean", "row-mean-token-sum"])
@pytest.mark.parametrize(("forward_tokens", "recomputed"), [(65_536, False), (300, True)])
@pytest.mark.parametrize("context", ["chat", "window:1"])
def test_loss_and_gradient_equal_a_naive_implementation(
    aggregation: str,
    forward_tokens: int,
    recomputed: bool,
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
    learner = learner_of(spec, forward_tokens, gradient_checkpointing=recomputed)
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

    metrics = learner.update(training_rows(episodes), advantage, advantage, 0)
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


@pytest.mark.parametrize("minibatches", [1, 2])
def test_a_correction_weighs_each_token_by_its_truncated_ratio(
    minibatches: int,
    make_spec: Callable[..., RunSpec],
    learner_of: Callable[..., reference.Learner],
) -> None:
    """Greedy samples, drawn with probability 1, are less likely to the policy by known factors."""
    most = 0.7
    spec = make_spec(
        algorithm__tis_clip=most,
        algorithm__minibatches=minibatches,
        sampling__top_k=1,
        # So small that the second step has the ratios of the first.
        optimizer__lr=1e-30,
    )
    learner = learner_of(spec)
    episodes = rollout(learner, spec, 4)
    assert {p for t in episodes for turn in t.turns for p in turn.logprobs or [math.nan]} == {0.0}
    advantage = [[1.0 + k for k in range(len(t.turns))] for t in episodes]
    naive = learner_of(spec).policy
    terms = []
    for episode, trajectory in enumerate(episodes):
        [row] = trajectory.training_rows()
        with torch.no_grad():
            ids = torch.tensor([row.prompt_ids + row.response_ids])
            logprobs = naive(input_ids=ids).logits[0].log_softmax(-1)
        per_token = row.spread(advantage[episode])
        for i, sampled in enumerate(row.mask):
            if sampled:
                p = logprobs[len(row.prompt_ids) + i - 1][row.response_ids[i]].exp().item()
                terms.append((episode, -per_token[i] * min(p, most), p))
    assert {p > most for *_, p in terms} == {True, False}
    halves = [[x for e, x, _ in terms if e * minibatches // 4 == k] for k in range(minibatches)]
    expected = sum(sum(half) / len(half) for half in halves) / minibatches
    metrics = learner.update(training_rows(episodes), advantage, advantage, 0)
    assert metrics["loss"] == pytest.approx(expected, rel=1e-5)


def test_a_correction_needs_the_samplers_log_probabilities(
    make_spec: Callable[..., RunSpec], learner_of: Callable[..., reference.Learner]
) -> None:
    spec = make_spec(algorithm__tis_clip=2.0)
    learner = learner_of(spec)
    episodes = rollout(learner, spec, 1)
    episodes[0].turns = [replace(turn, logprobs=None) for turn in episodes[0].turns]
    zeros = [[0.0] * len(t.turns) for t in episodes]
    with pytest.raises(ConfigurationError, match=r"algorithm\.tis_\*"):
        learner.update(training_rows(episodes), zeros, zeros, 0)


def spread(trajectory: Trajectory, per_turn: list[float]) -> list[float]:
    turns = zip(trajectory.turns, per_turn, strict=True)
    return [a for turn, a in turns for _ in turn.response_ids]


def test_the_surrogate_is_clipped_where_it_would_overshoot() -> None:
    old = torch.zeros(4)
    new = torch.tensor([1.5, 0.5, 1.5, 0.5]).log()
    advantage = torch.tensor([1.0, 1.0, -1.0, -1.0])
    how = reference.AlgorithmPart(advantage="rebn", clip=0.2)
    loss = reference.policy_loss(new, old, advantage, how, lambda values: values)
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
    metrics = learner.update(rows, advantage, advantage, 0)
    old = torch.cat([row.old_logprobs for row in rows])
    torch.testing.assert_close(old, before.detach())
    assert metrics["clip_fraction"] > 0
    first = [row for row in rows if row.episode < 3]  # the first minibatch is one forward pass
    after, _ = reference.token_statistics(learner.policy, first, 1.0)
    moved = after - before[: len(after)]
    assert metrics["update_kl"] == pytest.approx((moved.expm1() - moved).mean().item(), rel=1e-3)
    assert metrics["update_kl"] > 1e-4


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
    losses = [learner.update(rows, first, target, 0)["value_loss"] for _ in range(5)]
    assert losses[0] == pytest.approx(0.5)
    assert losses[-1] < losses[0]

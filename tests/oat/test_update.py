"""Optimiser steps: the same loss and gradient however rows are cut up and over ranks divided."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gem_oat.advantage import Row, give_advantages
from gem_oat.learner import Learner
from gem_oat.settings import GemSettings
from gem_oat.update import Updater
from gem_train.experiment.estimate import turn_advantages
from gem_train.packed import PackedTrajectory
from gem_train.rows import placed_rows
from gem_train.testing.golden import golden_batch, golden_turn_rows

VOCAB = 32
FLAGS: dict[str, Any] = {
    "cliprange": 0.2,
    "cliprange_value": 0.2,
    "vf_coef": 1.0,
    "beta": 0.0,
    "temperature": 1.0,
    "max_model_len": 300,
    "prompt_max_length": 50,
}
"""oat's arguments that an optimiser step reads."""


class Engine:
    """A model behind the methods of DeepSpeed's engine that are used; gradients as it adds them up.

    DeepSpeed itself is in test_real_runs.py.
    """

    def __init__(self, module: nn.Module, ranks: int) -> None:
        self.module = module
        self.ranks = ranks
        self.boundaries: list[bool] = []
        self.norms: list[float] = []

    def set_gradient_accumulation_boundary(self, last: bool) -> None:
        self.boundaries.append(last)

    def gradient_accumulation_steps(self) -> int:
        return 7

    def backward(self, loss: Tensor) -> None:
        (loss / self.gradient_accumulation_steps() / self.ranks).backward()

    def step(self) -> None:
        """Leave the gradients as they are."""

    def get_global_grad_norm(self) -> float:
        return 0.0

    def __call__(self, **inputs: Tensor) -> Tensor:
        found: Tensor = self.module(**inputs)
        return found


class Model(nn.Module):
    """Log-probabilities and values that depend on all tokens so far."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embed = nn.Embedding(VOCAB, 8)
        self.head = nn.Linear(8, VOCAB)
        self.score = nn.Linear(8, 1)

    def hidden(self, ids: Tensor) -> Tensor:
        return torch.tanh(self.embed(ids).cumsum(1) / 4)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        values: Tensor = self.score(self.hidden(input_ids))[..., 0]
        return values


def alone(numbers: Tensor, op: str) -> Tensor:
    return numbers


def learner(
    ranks: int = 1,
    all_reduce: Callable[[Tensor, str], Tensor] = alone,
    forward_tokens: int = 50,
    gem: Mapping[str, Any] = MappingProxyType({}),
    **flags: Any,
) -> Any:
    policy, critic, reference = (Engine(Model(), ranks) for _ in range(3))

    def logprobs(
        model: Any, input_ids: Tensor, att_mask: Tensor, temperature: float, compute_entropy: bool
    ) -> tuple[Tensor, Tensor]:
        module: Any = model.model.module
        logits = module.head(module.hidden(input_ids))[:, :-1] / temperature
        known = logits.log_softmax(-1)
        chosen = known.gather(2, input_ids[:, 1:, None])[..., 0]
        return chosen, -(known.exp() * known).sum(-1)

    return SimpleNamespace(
        model=SimpleNamespace(model=policy),
        ref_model=SimpleNamespace(model=reference),
        critic=critic,
        args=SimpleNamespace(
            **{**FLAGS, **flags},
            gem=GemSettings(forward_tokens=forward_tokens, **gem),
        ),
        scheduler=SimpleNamespace(get_last_lr=lambda: [1e-3]),
        get_batch_logps=logprobs,
        strategy=SimpleNamespace(world_size=ranks, all_reduce=all_reduce),
    )


class Ranks:
    """Threads that stand for ranks; their reductions wait for each other."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.barrier = threading.Barrier(n, timeout=20)
        self.given: dict[int, Tensor] = {}
        self.place = threading.local()

    def all_reduce(self, numbers: Tensor, op: str) -> Tensor:
        self.given[self.place.rank] = numbers
        self.barrier.wait()
        every = torch.stack([self.given[rank] for rank in range(self.n)])
        self.barrier.wait()
        return every.sum(0) if op == "sum" else every.amax(0)

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        results: list[Any] = [None] * self.n

        def one(rank: int) -> None:
            self.place.rank = rank
            try:
                results[rank] = work(rank)
            except BaseException as error:
                results[rank] = error
                self.barrier.abort()

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.n)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results


def golden_rows(turns: bool = False) -> list[Row]:
    batch = golden_turn_rows() if turns else golden_batch()
    rows = placed_rows(batch, Row)
    torch.manual_seed(0)
    for row in rows:
        row.sampler = -torch.rand(len(row.mask)) * row.mask
        row.values = torch.rand(len(row.spans))
    packed = [PackedTrajectory.of(trajectory) for trajectory in batch]
    gae = partial(turn_advantages, "gae", gamma=0.9, lam=0.8)
    give_advantages(packed, rows, gae, max_failed_fraction=1)
    return rows


def on_ranks(
    parts: Sequence[Sequence[Row]], flags: dict[str, Any], forward_tokens: int
) -> tuple[dict[str, float], Tensor, list[Any]]:
    """Metrics, gradient of policy and critic, and the learners, of a step on several ranks."""
    ranks = Ranks(len(parts))
    learners = [learner(len(parts), ranks.all_reduce, forward_tokens, **flags) for _ in parts]

    def work(rank: int) -> dict[str, float]:
        updater = Updater(learners[rank])
        return updater.policy_step(parts[rank]) | updater.critic_step(parts[rank])

    metrics = ranks.run(work)
    assert all(m == pytest.approx(metrics[0]) for m in metrics)
    gradients = []
    for made in learners:
        engines = (made.model.model, made.critic)
        found = [p.grad for e in engines for p in e.module.parameters() if p.grad is not None]
        gradients.append(torch.cat([g.flatten() for g in found]))
    return metrics[0], torch.stack(gradients).sum(0), learners


LOSSES: dict[str, dict[str, Any]] = {
    "token mean": {},
    "row mean of token sums": {"gem": {"loss_aggregation": "row-mean-token-sum"}},
    "turn mean": {"gem": {"loss_aggregation": "turn-mean"}},
    "ratio of sequences": {"gem": {"ratio": "sequence", "clip_high": 0.3, "dual_clip": 2.0}},
    "CISPO": {"gem": {"loss": "cispo", "loss_aggregation": "row-mean-token-mean"}},
    "SAPO": {"gem": {"loss": "sapo", "sapo_positive": 2.0}},
    "with correction and KL": {
        "cliprange_value": 0.3,
        "vf_coef": 0.5,
        "beta": 0.1,
        "gem": {"tis_clip": 1.5, "tis_floor": 0.7, "tis_level": "sequence"},
    },
    "with rejection": {"gem": {"reject_low": 0.7, "reject_high": 1.5, "reject_level": "mean"}},
}


@pytest.mark.parametrize("turns", [False, True])
@pytest.mark.parametrize("cuts", [(2,), (1, 3), (0, 6)])
@pytest.mark.parametrize("tokens", [1, 40, 10_000])
@pytest.mark.parametrize("name", LOSSES)
def test_ranks_and_micro_batches_change_nothing(
    name: str, tokens: int, cuts: tuple[int, ...], turns: bool
) -> None:
    rows = golden_rows(turns)
    bounds = [0, *cuts, len(rows)]
    parts = [rows[a:b] for a, b in itertools.pairwise(bounds)]
    wanted, gradient, _ = on_ranks([rows], LOSSES[name], 10_000)
    found, divided, learners = on_ranks(parts, LOSSES[name], tokens)
    assert found == pytest.approx(wanted, rel=1e-5, abs=1e-7)
    assert torch.allclose(divided, gradient, rtol=1e-4, atol=1e-7)
    passes = {len(made.model.model.boundaries) for made in learners}
    assert len(passes) == 1  # or DeepSpeed's collectives would wait for ever
    for made in learners:
        assert made.model.model.boundaries[-1]
        assert not any(made.model.model.boundaries[:-1])


def test_the_loss_is_the_mean_over_all_sampled_tokens() -> None:
    rows = golden_rows()
    made = learner()
    updater = Updater(made)
    metrics = updater.policy_step(rows)
    advantages = torch.cat([row.advantages[row.mask == 1] for row in rows])
    # Before the first update the ratio is 1 everywhere.
    assert metrics["loss"] == pytest.approx(-float(advantages.mean()), rel=1e-5)
    assert metrics["clip_fraction"] == 0


def test_old_log_probabilities_are_those_of_before_the_first_step() -> None:
    rows = golden_rows()
    made = learner()
    updater = Updater(made)
    updater.remember(rows)
    with torch.no_grad():
        made.model.model.module.head.bias[:5] += 3.0
    assert updater.policy_step(rows)["clip_fraction"] > 0


def test_the_critic_sees_what_came_before_the_turn_and_nothing_else() -> None:
    made = learner(forward_tokens=10_000)
    updater = Updater(made)
    rows = golden_rows()
    updater.values(rows)
    row = max(rows, key=lambda row: len(row.spans))
    before = row.values.clone()
    assert len(set(before.tolist())) == len(before)  # a value for every state, not one for all
    position = int(row.places[1])
    row.ids[position + 1 :] = 1
    updater.values([row])
    assert torch.equal(row.values[:2], before[:2])
    row.ids[position] = 2
    updater.values([row])
    assert row.values[1] != before[1]


def test_rows_without_a_sampled_token_are_no_step() -> None:
    [row, *_] = golden_rows()
    row.tokens.mask[:] = [0] * len(row.tokens.mask)
    made = learner()
    updater = Updater(made)
    assert updater.policy_step([row]) == {}
    assert made.model.model.boundaries == []


def test_the_critic_learns_with_gradient_checkpoints(model: Path) -> None:
    """Its values stay the same; what is computed forward is computed again backward."""
    from oat.model import Critic

    critic = Critic(str(model), bf16=False)
    critic.gradient_checkpointing_enable()
    ids, passes, values = torch.arange(6)[None], [], []
    critic.model.model.layers[0].register_forward_pre_hook(lambda *_: passes.append(1))

    def critic_step(rows: Sequence[Row]) -> dict[str, float]:
        values.append(critic(input_ids=ids, attention_mask=torch.ones_like(ids)))
        values[-1].sum().backward()
        return {"value_loss": 0.0}

    critic_step([])
    assert len(passes) == 1
    run = SimpleNamespace(
        args=SimpleNamespace(minibatches=1, num_ppo_epochs=1, gem=GemSettings()),
        updater=SimpleNamespace(policy_step=lambda rows: {}, critic_step=critic_step),
        model=nn.Identity(),
        critic=critic,
        rows=[],
        steps=1,
        policy_sgd_step=0,
        global_step=0,
    )
    Learner.learn(run, 1)  # type: ignore[arg-type]
    assert len(passes) == 3
    assert torch.equal(*values)

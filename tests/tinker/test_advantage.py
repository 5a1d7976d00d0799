"""Datums: what is sent, and that the server makes the wanted objective of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gem.errors import ConfigurationError, RolloutError
from gem_tinker.advantage import Objective, batch_rows, to_datums, trained_rows
from gem_tinker.settings import Config
from gem_train.experiment.losses import AGGREGATIONS
from gem_train.testing.golden import golden_batch, golden_turn_rows

REBN = Config(model="any", train="gem:game:GuessTheNumber-v0", advantage="rebn", gamma=0.9)
REINFORCE = replace(REBN, advantage="reinforce")
SERVERS = ("hosted", "skyrl_train", "skyrl_jax")


def server_loss(server: str, datums: list[Any]) -> float:
    """What a server makes of datums whose probability ratio is 1: `-advantage` a token.

    Sum and mean as measured on the servers; see docs/tinker.md.
    """
    total = 0.0
    for datum in datums:
        inputs = {name: tensor.to_numpy() for name, tensor in datum.loss_fn_inputs.items()}
        weights = inputs.get("weights", np.ones(datum.model_input.length))
        summed = -(weights * inputs["advantages"].astype(np.float64)).sum()
        total += summed / weights.sum() / len(datums) if server == "skyrl_jax" else summed
    return float(total)


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("batch", [golden_batch, golden_turn_rows])
def test_the_server_s_loss_is_the_mean_over_tokens(server: str, batch: Any) -> None:
    rows, _ = batch_rows(batch(), REBN)
    datums = to_datums(rows, Objective("token-mean", server))
    sampled = sum(row.sampled for row in rows)
    wanted = -sum(row.advantages.astype(np.float64).sum() for row in rows) / sampled
    assert server_loss(server, datums) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("server", SERVERS)
def test_the_server_s_loss_is_the_sum_over_tokens_and_mean_over_rows(server: str) -> None:
    rows, _ = batch_rows(golden_batch(), REINFORCE)
    datums = to_datums(rows, Objective("row-mean-token-sum", server))
    wanted = -sum(row.advantages.astype(np.float64).sum() for row in rows) / len(datums)
    assert server_loss(server, datums) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("batch", [golden_batch, golden_turn_rows])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_the_server_s_loss_is_added_up_as_asked(server: str, batch: Any, aggregation: str) -> None:
    rows, _ = batch_rows(batch(), REINFORCE)
    datums = to_datums(rows, Objective(aggregation, server, 50))
    parts: list[float] = []  # of what the mean is over: tokens, turns or rows
    for row in rows:
        tokens = [
            (span.turn, float(row.advantages[i]))
            for span in row.spans
            for i in range(span.start, span.end)
        ]
        if aggregation == "token-mean":
            parts += [a for _, a in tokens]
        elif aggregation == "turn-mean":
            of_turns = [[a for t, a in tokens if t == turn] for turn in {t for t, _ in tokens}]
            parts += [sum(mine) / len(mine) for mine in of_turns]
        else:
            size = {"row-mean-token-mean": len(tokens), "row-mean-token-sum-norm": 50}
            parts.append(sum(a for _, a in tokens) / size.get(aggregation, 1))
    wanted = -sum(parts) / len(parts)
    assert server_loss(server, datums) == pytest.approx(wanted, rel=1e-5)


def test_targets_are_the_next_tokens() -> None:
    rows, _ = batch_rows(golden_batch(), REBN)
    to_datums(rows, Objective("token-mean", "hosted"))
    for row in rows:
        ids = [*row.tokens.prompt_ids, *row.tokens.response_ids]
        assert row.datum.model_input.to_ints() == ids[:-1]
        assert row.datum.loss_fn_inputs["target_tokens"].to_numpy().tolist() == ids[1:]
        logprobs = row.datum.loss_fn_inputs["logprobs"].to_numpy()
        assert logprobs[len(row.tokens.prompt_ids) - 1 :].tolist() == row.tokens.logprobs


def test_only_servers_that_average_get_weights() -> None:
    for server in SERVERS:
        rows, _ = batch_rows(golden_batch(), REBN)
        [first, *_] = to_datums(rows, Objective("token-mean", server))
        assert ("weights" in first.loss_fn_inputs) == (server == "skyrl_jax")


def test_failed_episodes_have_no_rows_and_move_no_statistic() -> None:
    episodes = golden_batch()
    failed = [e for e in episodes if not e.valid]
    assert failed
    for episode in failed:
        for turn in episode.turns:
            assert turn.reward > 1
    rows, per_turn = batch_rows(episodes, REBN)
    alone, _ = batch_rows([e for e in episodes if e.valid], REBN)
    assert {episodes[row.episode].valid for row in rows} == {True}
    for mine, other in zip(rows, alone, strict=True):
        assert np.array_equal(mine.advantages, other.advantages)
    assert not any(per_turn[episodes.index(failed[0])])


def test_a_row_without_logprobs_is_refused() -> None:
    rows, _ = batch_rows(golden_batch(), REBN)
    rows[0].tokens.logprobs = None
    with pytest.raises(RolloutError, match="no log-probabilities"):
        to_datums(rows, Objective("token-mean", "hosted"))


def test_a_datum_that_was_tampered_with_is_not_shown() -> None:
    episodes = golden_batch()
    rows, _ = batch_rows(episodes, REBN)
    to_datums(rows, Objective("token-mean", "hosted"))
    rows[0].advantages = rows[0].advantages * 2
    with pytest.raises(RolloutError, match="other advantages"):
        trained_rows(rows, episodes)


def test_an_unknown_server_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="vllm"):
        Objective("token-mean", "vllm").factors([[0, 0, 1]])

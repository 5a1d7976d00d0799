"""Returns and advantages: values worked out by hand, and properties that hold for every batch."""

from __future__ import annotations

import json
import math
import statistics
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gem import advantage
from gem.advantage import MIN_STD, TurnTable
from gem.errors import ConfigurationError
from gem.estimators import BUILT_IN, Options

# Two tasks, two episodes each: a win in three turns, a format error, a win at once, a draw.
REWARDS = [[0.0, 0.0, 1.0], [0.0, -0.1], [1.0], [0.5, 0.0]]

reward = st.floats(-10, 10).map(lambda x: round(x, 3))
episode = st.lists(reward, min_size=1, max_size=6)
batch = st.lists(episode, min_size=1, max_size=8)


def all_estimators(table: TurnTable) -> dict[str, list[list[float]]]:
    """The advantages of all estimators that do not depend on the order of episodes."""
    return {
        name: table.split(each(table, Options(0.9, 0.8)).advantages)
        for name, each in BUILT_IN.items()
        if not each.keeps_state and (table.value is not None or not each.needs_critic)
    }


def nearly(a: Any, b: Any) -> bool:
    return bool(np.allclose(np.concatenate(a), np.concatenate(b), rtol=1e-9, atol=1e-9))


def test_returns_by_hand() -> None:
    table = TurnTable.build(REWARDS)
    g = table.split(advantage.returns(table, 0.5))
    assert g == [[0.25, 0.5, 1.0], [-0.05, -0.1], [1.0], [0.5, 0.0]]
    assert table.split(advantage.reinforce(table, 0.5)) == g


def test_rebn_by_hand() -> None:
    table = TurnTable.build([[1.0, 1.0], [3.0]])
    # gamma 1: G = 2, 1, 3; mean 2; population variance 2/3.
    scale = math.sqrt(1.5)
    assert table.split(advantage.rebn(table, 1.0)) == [[0.0, -scale], [scale]]


def test_grpo_and_rloo_by_hand() -> None:
    table = TurnTable.build([[1.0, 0.0], [0.0], [0.5], [4.0]], groups=[0, 0, 0, 1])
    # Group 0: R = 1, 0, 0.5; mean 0.5; population std sqrt(1/6). Group 1 is alone.
    a = 0.5 / math.sqrt(1 / 6)
    assert nearly(table.split(advantage.grpo(table)), [[a, a], [-a], [0.0], [0.0]])
    assert nearly(
        table.split(advantage.grpo(table, scale=False)), [[0.5, 0.5], [-0.5], [0.0], [0.0]]
    )
    # Leave-one-out means: 0.25, 0.75, 0.5.
    assert nearly(table.split(advantage.rloo(table)), [[0.75, 0.75], [-0.75], [0.0], [0.0]])


def test_gae_by_hand() -> None:
    table = TurnTable.build([[0.0, 1.0]], values=[[0.5, 0.25]])
    advantages, targets = advantage.gae(table, gamma=0.9, lam=0.5)
    second = 1.0 - 0.25
    first = 0.0 + 0.9 * 0.25 - 0.5 + 0.9 * 0.5 * second
    assert advantages.tolist() == pytest.approx([first, second], abs=1e-15)
    assert targets.tolist() == pytest.approx([first + 0.5, 1.0], abs=1e-15)


@given(batch)
def test_gae_with_lambda_one_is_return_minus_value(rewards: list[list[float]]) -> None:
    values = [[0.1 * t for t in range(len(r))] for r in rewards]
    table = TurnTable.build(rewards, values=values)
    advantages, targets = advantage.gae(table, gamma=0.9, lam=1.0)
    np.testing.assert_allclose(targets, advantage.returns(table, 0.9), atol=1e-9)
    assert table.value is not None
    np.testing.assert_allclose(advantages, targets - table.value, atol=1e-9)


@given(batch, st.sampled_from([0.0, 0.5, 0.9, 1.0]))
def test_returns_match_the_recursion(rewards: list[list[float]], gamma: float) -> None:
    table = TurnTable.build(rewards)
    expected = []
    for r in rewards:
        g, column = 0.0, []
        for x in reversed(r):
            g = x + gamma * g
            column.append(g)
        expected.append(column[::-1])
    assert table.split(advantage.returns(table, gamma)) == expected


@given(batch)
def test_rebn_has_mean_zero_and_population_std_one(rewards: list[list[float]]) -> None:
    table = TurnTable.build(rewards)
    g = advantage.returns(table, 0.9).tolist()
    assume(statistics.pstdev(g) > 1e-3)
    a = advantage.rebn(table, 0.9)
    assert a.mean() == pytest.approx(0.0, abs=1e-9)
    assert a.std(ddof=0) == pytest.approx(1.0, rel=1e-9)
    mean, std = statistics.fmean(g), statistics.pstdev(g)
    np.testing.assert_allclose(a, [(x - mean) / std for x in g], rtol=1e-6, atol=1e-9)


@given(batch, st.randoms(use_true_random=False))
def test_the_order_of_episodes_does_not_matter(rewards: list[list[float]], random: Any) -> None:
    groups = [i // 2 for i in range(len(rewards))]
    values = [[0.3] * len(r) for r in rewards]
    order = list(range(len(rewards)))
    random.shuffle(order)
    straight = all_estimators(TurnTable.build(rewards, groups=groups, values=values))
    shuffled = all_estimators(
        TurnTable.build(
            [rewards[i] for i in order],
            groups=[groups[i] for i in order],
            values=[values[i] for i in order],
        )
    )
    for name in straight:
        assert nearly([straight[name][i] for i in order], shuffled[name]), name


@given(batch, st.lists(episode, max_size=3))
def test_invalid_episodes_change_nothing_and_get_nothing(
    rewards: list[list[float]], lost: list[list[float]]
) -> None:
    groups = [i // 2 for i in range(len(rewards))]
    alone = all_estimators(TurnTable.build(rewards, groups=groups))
    broken = [[math.nan, *r] for r in lost]
    mixed = all_estimators(
        TurnTable.build(
            broken + rewards,
            groups=[0] * len(lost) + groups,
            valid=[False] * len(lost) + [True] * len(rewards),
        )
    )
    for name, per_episode in mixed.items():
        assert nearly([[0.0], *per_episode[len(lost) :]], [[0.0], *alone[name]]), name
        assert not np.any(np.concatenate([[0.0], *per_episode[: len(lost)]])), name


@given(batch)
def test_episodes_without_turns_change_nothing(rewards: list[list[float]]) -> None:
    groups = [i // 2 for i in range(len(rewards))]
    alone = all_estimators(TurnTable.build(rewards, groups=groups))
    padded = all_estimators(TurnTable.build([[], *rewards, []], groups=[0, *groups, 9]))
    for name in padded:
        assert padded[name] == [[], *alone[name], []]


@pytest.mark.parametrize("constant", [-0.1, 0.0, 0.1, 0.3, 1.0, 1e9 / 3, -1e150 / 3])
@pytest.mark.parametrize("episodes", [1, 8, 16, 128])
def test_equal_returns_give_exactly_zero(constant: float, episodes: int) -> None:
    table = TurnTable.build([[constant]] * episodes, groups=[i // 4 for i in range(episodes)])
    for name in ("rebn", "grpo", "rloo"):
        a = BUILT_IN[name](table).advantages
        assert not a.any(), name
    assert not advantage.grpo(table, scale=False).any()


@given(st.lists(st.lists(st.floats(-1e149, 1e149), min_size=1, max_size=3), min_size=1))
def test_extreme_rewards_never_give_nan_or_infinity(rewards: list[list[float]]) -> None:
    table = TurnTable.build(rewards, groups=[i // 2 for i in range(len(rewards))])
    for name in ("reinforce", "rebn", "grpo", "rloo"):
        estimate = BUILT_IN[name](table)
        for column in (estimate.advantages, estimate.targets):
            assert np.isfinite(column).all(), name


def test_a_spread_below_the_threshold_carries_no_signal() -> None:
    tiny = [[0.0], [MIN_STD]]
    table = TurnTable.build(tiny, groups=[0, 0])
    assert not advantage.rebn(table, 1.0).any()
    assert not advantage.grpo(table).any()
    clear = TurnTable.build([[0.0], [4 * MIN_STD]], groups=[0, 0])
    assert advantage.rebn(clear, 1.0).tolist() == pytest.approx([-1.0, 1.0])


@given(batch, st.integers(1, 4), st.integers(1, 3), st.randoms(use_true_random=False))
def test_data_parallel_shards_give_the_whole_batchs_rebn(
    rewards: list[list[float]], ranks: int, count: int, random: Any
) -> None:
    parts = [random.randrange(count) for _ in rewards]
    names = [f"part {number}" for number in range(count)]
    whole = TurnTable.build(rewards, parts=parts, part_names=names)
    expected = whole.split(advantage.rebn(whole, 0.9))
    shards = [
        TurnTable.build(rewards[r::ranks], parts=parts[r::ranks], part_names=names)
        for r in range(ranks)
    ]
    # Lockstep ranks: run each until its k-th reduction, sum, go on; here by replaying.
    totals: list[np.ndarray[Any, Any]] = []
    while True:
        partial: list[np.ndarray[Any, Any]] = []
        results = []
        for shard in shards:
            calls = 0

            def reduce(x: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls <= len(totals):
                    return totals[calls - 1]
                if calls == len(totals) + 1:
                    partial.append(x)
                return x

            results.append(shard.split(advantage.rebn(shard, 0.9, reduce)))
        if not partial:
            break
        assert len({each.shape for each in partial}) == 1
        totals.append(np.sum(partial, axis=0))
    assert [total.shape for total in totals] == [(count, 2), (count, 1)]
    for rank in range(ranks):
        if results[rank]:
            assert nearly(results[rank], expected[rank::ranks])


def written_out(g: Any) -> Any:
    """ReBN of one batch: two passes, population standard deviation."""
    mean = g.sum() / len(g)
    centred = g - mean
    std = np.sqrt((centred * centred).sum() / len(g))
    return np.zeros_like(g) if std < max(MIN_STD, 1e-12 * abs(mean)) else centred / std


@given(batch)
def test_one_part_is_the_batch_to_the_last_bit(rewards: list[list[float]]) -> None:
    groups = [i // 2 for i in range(len(rewards))]
    plain = TurnTable.build(rewards, groups=groups)
    one = TurnTable.build(rewards, groups=groups, parts=[0] * len(rewards))
    assert all_estimators(plain) == all_estimators(one)
    expected = written_out(advantage.returns(plain, 0.9))
    assert advantage.rebn(plain, 0.9).tolist() == expected.tolist()


@given(batch, st.randoms(use_true_random=False))
def test_every_part_has_the_advantages_of_a_batch_of_its_own(
    rewards: list[list[float]], random: Any
) -> None:
    parts = [random.randrange(3) for _ in rewards]
    groups = [i // 4 for i in range(len(rewards))]
    values = [[0.3] * len(r) for r in rewards]
    valid = [random.random() < 0.8 for _ in rewards]

    def chosen(part: int | None) -> dict[str, list[list[float]]]:
        which = [i for i, each in enumerate(parts) if part in (None, each)]
        columns = {"groups": groups, "valid": valid, "values": values}
        if part is None:
            columns["parts"] = parts
        table = TurnTable.build(
            [rewards[i] for i in which],
            **{name: [column[i] for i in which] for name, column in columns.items()},
        )
        return all_estimators(table)

    together = chosen(None)
    for part in set(parts):
        for name, alone in chosen(part).items():
            assert alone == [
                a for a, each in zip(together[name], parts, strict=True) if each == part
            ], name


def spiral(
    played: list[tuple[int, float]], b: dict[int, float], alpha: float = 0.95
) -> list[float]:
    """Transcription of RAE: `A = R_p - b_p`, then `b_p = alpha b_p + (1 - alpha) R_p`."""
    found = []
    for p, r in played:
        found.append(r - b[p])
        b[p] = alpha * b[p] + (1 - alpha) * r
    return found


@given(batch, batch, st.randoms(use_true_random=False))
def test_rae_is_the_papers_formula_over_several_batches(
    first: list[list[float]], second: list[list[float]], random: Any
) -> None:
    baselines, state = dict.fromkeys(range(2), 0.0), {}
    for rewards in (first, second):
        parts = [random.randrange(2) for _ in rewards]
        table = TurnTable.build(rewards, parts=parts)
        before = dict(state)
        found, after = advantage.rae(table, 1.0, state)
        assert state == before
        state = json.loads(json.dumps(after))
        totals = [per_turn[0] for per_turn in table.split(advantage.returns(table, 1.0))]
        expected = spiral(list(zip(parts, totals, strict=True)), baselines)
        assert table.split(found) == [[a] * len(r) for a, r in zip(expected, rewards, strict=True)]
    assert state == {str(p): b for p, b in baselines.items() if str(p) in state}


def test_rae_skips_failed_episodes_and_those_without_turns() -> None:
    rewards = [[1.0, 1.0], [math.nan], [], [4.0]]
    table = TurnTable.build(rewards, valid=[True, False, True, True])
    found, state = advantage.rae(table, 0.5, {"0": 1.0, "7": 0.25}, decay=0.5)
    # G = 1.5, so b = 0.5 * 1 + 0.5 * 1.5 = 1.25; then A = 4 - 1.25.
    assert table.split(found) == [[0.5, 0.5], [0.0], [], [2.75]]
    assert state == {"0": 2.625, "7": 0.25}


def test_wrong_input_is_named() -> None:
    with pytest.raises(ConfigurationError, match="reward of episode 1, turn 2 is nan"):
        TurnTable.build([[0.0], [0.0, 1.0, math.nan]])
    with pytest.raises(ConfigurationError, match="value of episode 0, turn 0 is inf"):
        TurnTable.build([[0.0]], values=[[math.inf]])
    with pytest.raises(ConfigurationError, match="at most 1e\\+150"):
        TurnTable.build([[1e151]])
    with pytest.raises(ConfigurationError, match="groups has 1 entries for 2 episodes"):
        TurnTable.build([[0.0], [1.0]], groups=[0])
    with pytest.raises(ConfigurationError, match="episode 0 has 1 rewards but 2 values"):
        TurnTable.build([[0.0]], values=[[0.0, 0.0]])
    with pytest.raises(ConfigurationError, match="parts has 2 entries for 1 episodes"):
        TurnTable.build([[0.0]], parts=[0, 1])
    with pytest.raises(ConfigurationError, match=r"part of episode 1 is -1; .* within \[0, 1\)"):
        TurnTable.build([[0.0], [0.0]], parts=[0, -1])
    with pytest.raises(ConfigurationError, match=r"part of episode 0 is 2; .* within \[0, 2\)"):
        TurnTable.build([[0.0]], parts=[2], part_names=["a", "b"])
    two: Any = [[0.0], [1.0]]
    for name, column in (
        ("groups", [0.2, 0.7]),
        ("groups", [2**70, 1]),
        ("groups", [[0], [1]]),
        ("parts", [0.0, 0.9]),
        ("parts", [False, True]),
        ("valid", [1.0, math.nan]),
        ("valid", ["True", "False"]),
    ):
        given: Any = {name: column}
        with pytest.raises(ConfigurationError, match=rf"{name} must be .* for each episode, got"):
            TurnTable.build(two, **given)
    for names in ([], ["a", "a"]):
        with pytest.raises(ConfigurationError, match="part_names must be one or more different"):
            TurnTable.build([], part_names=names)
    table = TurnTable.build([[0.0]])
    with pytest.raises(ConfigurationError, match=r"gamma must be within \[0, 1\], got 1.5"):
        advantage.returns(table, 1.5)
    with pytest.raises(ConfigurationError, match=r"decay must be within \[0, 1\], got -1"):
        advantage.rae(table, 1.0, {}, decay=-1)
    with pytest.raises(ConfigurationError, match="needs a value for every turn"):
        advantage.gae(table, 0.9, 0.9)


def test_an_empty_batch_is_fine() -> None:
    table = TurnTable.build([])
    for name, each in BUILT_IN.items():
        if not each.needs_critic:
            estimate = each(table)
            assert len(estimate.advantages) == len(estimate.targets) == 0, name
    assert table.split(advantage.rebn(table, 0.9)) == []

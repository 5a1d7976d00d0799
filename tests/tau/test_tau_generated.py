"""Generated retail tasks."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import gem
from gem.core import Env
from gem.errors import ConfigurationError, UnknownParameterError
from gem_check import check_env
from gem_check.playing import Episode, oracle_policy
from gem_check.playing import play as played
from gem_tau.data import Call, database, tasks
from gem_tau.generated import INTENTS, REFUSAL, Shape, generated
from gem_tau.oracle import search, tool_call
from gem_tau.outcome import TRANSFER, gold, same_write

FULL = Shape(tuple(INTENTS), 3, 0.3, False)
NOTHING = tool_call(Call(TRANSFER, {"summary": "I give up."}))


def oracle(env: Env, seed: int) -> Episode:
    return played(env, oracle_policy, 40, seed)


@pytest.mark.parametrize("id", gem.list_envs("tau:RetailGen"))
def test_it_passes_every_check(id: str) -> None:
    report = check_env(id, episodes=12, cpu_s=0.3)
    assert report.passed and not report.warnings, str(report)


@pytest.mark.parametrize("intent", INTENTS)
@pytest.mark.parametrize("brief", [False, True])
def test_the_oracle_wins_and_doing_nothing_does_not(intent: str, brief: bool) -> None:
    env = gem.make("tau:RetailGen-v0", intents=intent, brief=brief, conditions=0.5)
    for seed in range(20):
        episode = oracle(env, seed)
        info = episode.steps[-1][4]
        assert episode.success and info["policy_violations"] == 0, (seed, episode.actions)
        env.reset(seed=seed)
        assert env.step(NOTHING)[1] == 0.0


def test_no_task_shares_a_write_with_the_benchmark() -> None:
    benchmark = [write for task in tasks(None) for write in gold(task, "fixed").writes]
    writes = [
        write for index in range(500) for write in gold(generated(index, FULL), "fixed").writes
    ]
    assert len(writes) > 500
    assert not any(same_write(one, other) for one in writes for other in benchmark)


def test_a_write_of_the_benchmark_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    index = next(i for i in range(100) if gold(generated(i, FULL), "fixed").writes)
    before = gold(generated(index, FULL), "fixed").writes
    monkeypatch.setattr("gem_tau.generated._benchmark", lambda: before)
    after = gold(generated.__wrapped__(index, FULL), "fixed").writes
    assert not any(same_write(one, other) for one in before for other in after)


def test_the_truth_of_a_condition_is_what_is_available() -> None:
    shape = Shape(("exchange", "items"), 1, 1.0, True)
    refused = 0
    for index in range(100):
        task = generated(index, shape)
        opening = task.opening or ""
        before, found, after = opening.partition(", or if that is not available with ")
        assert found, opening
        (write,) = gold(task, "fixed").writes
        order = database()["orders"][write.arguments["order_id"]]
        item = next(i for i in order["items"] if i["item_id"] == write.arguments["item_ids"][0])
        variants = database()["products"][item["product_id"]]["variants"]
        right = variants[write.arguments["new_item_ids"][0]]
        assert right["available"]
        changed = {k: v for k, v in right["options"].items() if item["options"].get(k) != v}
        told = ", ".join(f"{k} {v}" for k, v in (changed or right["options"]).items())
        if not before.endswith(f"with {told}"):
            # The first choice is not the right one, so that it must be out of stock.
            assert after.startswith(told)
            refused += 1
            wish = before.rpartition("one with ")[2]
            first = [
                each
                for each in variants.values()
                if all(f"{k} {v}" in wish or item["options"][k] == v
                       for k, v in each["options"].items())
                and each["item_id"] != item["item_id"]
            ]  # fmt: skip
            assert any(not each["available"] for each in first), opening
    assert 10 < refused < 90


def test_leaving_out_a_write_fails() -> None:
    env: Any = gem.make("tau:RetailGen-v0")
    failed = 0
    for seed in range(60):
        env.reset(seed=seed)
        if not env.unwrapped.gold.writes:
            continue
        env.unwrapped.done.add(0)
        while True:
            _, reward, terminated, truncated, _ = env.step(env.oracle_action())
            if terminated or truncated:
                break
        assert reward == 0.0
        failed += 1
    assert failed > 40


def test_a_forbidden_wish_needs_the_words_of_refusal() -> None:
    env: Any = gem.make("tau:RetailGen-v0", intents="refuse", max_intents=1)
    for seed in range(10):
        env.reset(seed=seed)
        while "cannot do" not in env.oracle_action():
            env.step(env.oracle_action())
        state = env.snapshot()
        _, reward, terminated, _, _ = env.step(f"Sorry, {REFUSAL.lower()}.")
        assert terminated and reward == 1.0
        env.restore(state)
        env.step("No.")
        assert env.step(NOTHING)[1] == 0.0


@pytest.mark.parametrize("brief", [False, True])
def test_a_refusal_counts_once_the_customer_is_found_and_an_order_is_read(brief: bool) -> None:
    env: Any = gem.make("tau:RetailGen-v0", intents="refuse", max_intents=2, brief=brief)
    for seed in range(20):
        env.reset(seed=seed)
        scene = env.unwrapped.scene
        found = tool_call(search(scene))
        read = tool_call(next(c for c in scene.task.actions if c.name == "get_order_details"))
        other = tool_call(Call("get_order_details", {"order_id": a_strangers_order(scene)}))
        for before in ((), (found,), (read,), (found, other)):
            # Whoever said it at once may say it again, too late or not at all.
            for again in (REFUSAL, NOTHING):
                env.reset(seed=seed)
                for action in (*before, REFUSAL, again, NOTHING):
                    _, reward, terminated, _, _ = env.step(action)
                    if terminated:
                        break
                assert reward == 0.0, (seed, before, again)
        env.reset(seed=seed)
        for action in (REFUSAL, found, read):
            assert env.step(action)[1] == 0.0
        assert env.step(REFUSAL)[1] == 1.0


def a_strangers_order(scene: Any) -> str:
    """Return an order of another customer."""
    orders = database()["orders"].items()
    return next(key for key, order in orders if order["user_id"] != scene.gold.user_id)


def test_the_first_call_is_paid_once_and_by_how_right_it_is() -> None:
    env: Any = gem.make("tau:RetailGen-v0-brief", first_call_reward=0.4)
    paid = Counter[float]()
    for seed in range(10):
        env.reset(seed=seed)
        state = env.snapshot()
        right = search(env.unwrapped.scene)
        wrong = dict.fromkeys(right.arguments, "nobody")
        other = Call("get_order_details", {"order_id": "#W0"})
        for call, share in (
            (right, 1.0),
            (Call(right.name, wrong), 0.5),
            (other, 0.25),
            (Call("no_such_tool", {}), 0.0),
        ):
            env.restore(state)
            env.step("Hello!")
            _, reward, _, _, info = env.step(tool_call(call))
            assert reward == pytest.approx(0.4 * share) and info["first_call"] == share
            assert env.step(tool_call(right))[1] == 0.0
            paid[share] += 1
        assert oracle(env, seed).total_reward == pytest.approx(1.0)
    assert set(paid.values()) == {10}


def test_the_same_number_is_the_same_task_in_any_order() -> None:
    one = [generated.__wrapped__(index, FULL).opening for index in range(20)]
    two = [generated.__wrapped__(index, FULL).opening for index in reversed(range(20))]
    assert one == two[::-1] and len(set(one)) == 20
    env = gem.make("tau:RetailGen-v0")
    assert env.reset(seed=0, idx=7)[0] == env.reset(seed=1, idx=7)[0]


def test_bad_parameters_are_named() -> None:
    for name, value in (
        ("intents", "steal"), ("intents", ""), ("max_intents", 4), ("conditions", 1.5),
        ("brief", 1), ("first_call_reward", -0.1), ("first_call_reward", "all"),
    ):  # fmt: skip
        with pytest.raises(ConfigurationError, match=f"^{name} must "):
            gem.make("tau:RetailGen-v0", **{name: value})
    with pytest.raises(UnknownParameterError, match="split"):
        gem.make("tau:RetailGen-v0", split="train")

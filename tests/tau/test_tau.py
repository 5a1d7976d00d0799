"""TAU-bench retail: tasks, tools, floors and the scripted user."""

from __future__ import annotations

import itertools
import json
import pickle
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

import gem
from gem.core import Env
from gem.errors import ConfigurationError, DataError, UnknownParameterError
from gem_check import check_env
from gem_tau.data import Call, database, tasks
from gem_tau.oracle import proposal, tool_call
from gem_tau.outcome import chosen, gold
from gem_tau.records import Records, RefusedError
from gem_tau.retail_tools import TOOLS
from gem_tau.tools import call

ALL = range(114)
NOTHING = tool_call(Call("transfer_to_human_agents", {"summary": "I give up."}))

QUESTIONS = (
    "Could you give me your e-mail address, or your name and zip code?",
    "Which items of which order number do you mean, and with which options?",
    "Which payment method should I use?",
    "Do you confirm?",
)


def retail(**params: Any) -> Env:
    return gem.make("tau:Retail-v2", **params)


def play(env: Env, idx: int, left_out: str | None = None) -> dict[str, Any]:
    """Play a task as the oracle does, without the write of this key; return the last info."""
    env.reset(seed=0, idx=idx)
    unwrapped: Any = env.unwrapped
    while True:
        action = env.oracle_action()
        if left_out is not None:
            place = [write.key for write in unwrapped.gold.writes].index(left_out)
            # The oracle and the user take the write as done.
            unwrapped.done.add(place)
            action = env.oracle_action()
        _, reward, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            assert reward == float(info["success"])
            return {**info, "truncated": truncated, "turns": unwrapped.turn}


def test_the_oracle_wins_all_114_tasks_within_the_policy() -> None:
    for semantics in ("fixed", "upstream"):
        env = retail(semantics=semantics)
        for idx in ALL:
            info = play(env, idx)
            assert info["success"], (semantics, idx)
            assert info["policy_violations"] == 0
            assert info["turns"] <= 20


def test_doing_nothing_wins_six_tasks_and_one_whose_judge_is_missing() -> None:
    env = retail()
    won = {}
    for idx in ALL:
        env.reset(seed=0, idx=idx)
        _, reward, terminated, _, info = env.step(NOTHING)
        assert terminated
        assert info["do_nothing"] is bool(reward)
        if reward:
            won[info["task"]] = info["unjudged"]
    assert [task for task, unjudged in won.items() if not unjudged] == [
        "10", "12", "25", "50", "57", "65",
    ]  # fmt: skip
    assert [task for task, unjudged in won.items() if unjudged] == ["105"]


def test_doing_nothing_wins_no_clean_task() -> None:
    env = retail(split="clean")
    for idx in range(len(chosen(None, "clean"))):
        env.reset(seed=0, idx=idx)
        assert env.step(NOTHING)[1] == 0.0


def test_an_oracle_without_one_effective_write_fails_every_such_task() -> None:
    env = retail()
    failed, without_effect = 0, []
    for idx, task in enumerate(tasks(None)):
        writes = gold(task, "fixed").writes
        for write in writes:
            db = Records()
            for other in writes:
                if other is not write:
                    call(db, other, TOOLS)
            info = play(env, idx, left_out=write.key)
            if db.changes == gold(task, "fixed").changes:
                without_effect.append((task.id, write.name))
                continue
            assert not info["success"], (task.id, write)
            assert info["db_match"] is False
            failed += 1
    # One customer changes the address back, the other's is already the same.
    assert without_effect == [("22", "modify_user_address"), ("110", "modify_user_address")]
    assert failed == 172


def test_the_order_of_items_changes_nothing_if_fixed_and_five_tasks_upstream() -> None:
    sensitive: dict[str, set[str]] = {"fixed": set(), "upstream": set()}
    for semantics, task in itertools.product(sensitive, tasks(None)):
        writes = gold(task, semantics).writes
        for place, write in enumerate(writes):
            if "item_ids" not in write.arguments:
                continue
            items = write.arguments["item_ids"]
            news = write.arguments.get("new_item_ids", items)
            for pairs in itertools.permutations(zip(items, news, strict=True)):
                given = {**write.arguments, "item_ids": [old for old, _ in pairs]}
                if "new_item_ids" in given:
                    given["new_item_ids"] = [new for _, new in pairs]
                db = Records(semantics)
                for each in (*writes[:place], Call(write.name, given), *writes[place + 1 :]):
                    call(db, each, TOOLS)
                if db.changes != gold(task, semantics).changes:
                    sensitive[semantics].add(task.id)
    assert sensitive == {"fixed": set(), "upstream": {"20", "21", "36", "37", "100"}}


def test_the_shared_database_is_never_changed() -> None:
    before = json.dumps(database(), sort_keys=True)
    env = retail()
    for idx in (0, 20, 40):
        play(env, idx)
    assert json.dumps(database(), sort_keys=True) == before


def test_it_passes_every_check() -> None:
    report = check_env("tau:Retail-v2", episodes=12, cpu_s=0.3)
    assert report.passed and not report.warnings, str(report)


def test_a_snapshot_holds_the_changed_records_alone() -> None:
    env = retail()
    env.reset(seed=0, idx=0)
    fresh = len(env.snapshot())
    while True:
        _, _, terminated, _, info = env.step(env.oracle_action())
        if info["writes"]:
            break
        assert not terminated
    assert fresh < len(env.snapshot()) < 10_000
    assert len(pickle.dumps(env)) < 10_000


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("not JSON", "not valid JSON"),
        ("[1]", '"name"'),
        ('{"name": "steal", "arguments": {}}', "no tool"),
        ('{"name": "get_user_details", "arguments": {}}', "missing 'user_id'"),
        ('{"name": "get_user_details", "arguments": {"user_id": 7}}', "must be a text"),
        ('{"name": "get_user_details", "arguments": {"user_id": "x", "y": 1}}', "unknown 'y'"),
        ('{"name": "get_user_details", "arguments": {"user_id": "x"}}', "User not found"),
        ('{"name": "get_order_details", "arguments": {"order_id": "W1"}}', "Order not found"),
        ('{"name": "get_item_details", "arguments": {"item_id": "1"}}', "no tool"),
        ('{"name": "calculate", "arguments": {"expression": "9**9**9"}}', "calculated"),
        ('{"name": "calculate", "arguments": {"expression": "1/0"}}', "calculated"),
        (
            '{"name": "return_delivered_order_items", "arguments": {"order_id": "#W2378156", '
            '"item_ids": "4602305039", "payment_method_id": "credit_card_9513926"}}',
            "'item_ids' must be a list of texts",
        ),
        (
            '{"name": "return_delivered_order_items", "arguments": {"order_id": "#W2378156", '
            '"item_ids": ["1"], "payment_method_id": "credit_card_9513926"}}',
            "Some item not found",
        ),
    ],
)
def test_a_call_that_cannot_be_executed_is_an_error_and_changes_nothing(
    content: str, told: str
) -> None:
    env = retail()
    env.reset(seed=0, idx=0)
    observation, reward, terminated, _, info = env.step(f"<tool_call>{content}</tool_call>")
    assert str(observation).startswith("Error: ") and told in str(observation)
    assert reward == 0 and not terminated and info["writes"] == 0
    unwrapped: Any = env.unwrapped
    assert unwrapped.records.changes == {}


def test_a_refused_write_changes_nothing() -> None:
    for task in tasks(None):
        db = Records()
        for each in task.actions:
            before = db.changes
            try:
                call(db, each, TOOLS)
            except RefusedError:
                assert db.changes == before


def test_calls_in_the_first_benchmark_s_form_are_read() -> None:
    env = retail()
    env.reset(seed=0, idx=0)
    said = '<tool_call>{"name": "calculate", "kwargs": {"expression": "(1 + 2) * 0.5"}}</tool_call>'
    assert env.step(said)[0] == "1.5"


def test_too_many_errors_truncate_and_earn_nothing() -> None:
    env = retail(max_errors=3)
    env.reset(seed=0, idx=10)
    for _ in range(2):
        assert not env.step("<tool_call>?</tool_call>")[3]
    _, reward, terminated, truncated, info = env.step("<tool_call>?</tool_call>")
    assert (reward, terminated, truncated, info["success"]) == (0.0, False, True, False)
    assert info["db_match"] is True


def test_the_user_agrees_only_to_a_proposal_with_every_detail() -> None:
    env = retail()
    unwrapped: Any = env.unwrapped
    for idx, task in enumerate(tasks(None)):
        writes = gold(task, "fixed").writes
        if not writes:
            continue
        env.reset(seed=0, idx=idx)
        env.step("To help you I need your e-mail address, or your name and zip code.")
        message = proposal(writes[0])
        state = env.snapshot()
        for name, value in writes[0].arguments.items():
            if name in ("order_id", "payment_method_id", "reason", "address1", "new_item_ids"):
                hidden = value[0] if isinstance(value, list) else value
                env.restore(state)
                answer = env.step(message.replace(hidden, "something"))[0]
                assert 0 not in unwrapped.user.confirmed, (task.id, name, answer)
        env.restore(state)
        foreign = env.step(message.replace(": ", " and order #W0000000: ", 1))[0]
        assert str(foreign).startswith("No.")
        env.restore(state)
        assert env.step(message)[0] == "Yes, please go ahead."


def test_the_user_tells_no_item_or_payment_ids_of_its_own() -> None:
    env = retail()
    for idx, task in enumerate(tasks(None)):
        opening = env.reset(seed=0, idx=idx)[0].partition("\n# User\n")[2]
        heard = [opening]
        heard += [str(env.step(message)[0]) for message in QUESTIONS]
        known = f"{task.reason} {task.known}"
        for write in gold(task, "fixed").writes:
            for name in ("item_ids", "new_item_ids", "payment_method_id", "order_id"):
                ids = write.arguments.get(name, [])
                for each in [ids] if isinstance(ids, str) else ids:
                    if each.lstrip("#") not in known:
                        assert not any(each in said for said in heard), (task.id, each)


def test_the_user_leaves_after_a_second_refusal_and_not_before() -> None:
    env = retail()
    env.reset(seed=0, idx=0)
    assert not env.step("I cannot do that.")[2]
    _, reward, terminated, _, _ = env.step("I am unable to do that.")
    assert terminated and reward == 0


def test_seeds_walk_every_task_once() -> None:
    env = retail()
    seen = {env.reset(seed=3)[1]["task"], *(env.reset()[1]["task"] for _ in range(113))}
    assert len(seen) == 114
    ordered = retail(eval=True)
    first = [ordered.reset(seed=0)[1]["task"], *(ordered.reset()[1]["task"] for _ in range(4))]
    assert first == ["0", "1", "2", "3", "4"]


def test_splits_have_their_published_sizes() -> None:
    sizes = {split: len(chosen(None, split)) for split in ("base", "train", "test", "clean")}
    assert sizes == {"base": 114, "train": 74, "test": 40, "clean": 100}


def test_the_third_reward_needs_tasks_with_assertions(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"needs data=<tasks\.json"):
        retail(reward="v3")
    rows = [
        {
            "id": str(place),
            "user_scenario": {
                "instructions": {
                    "reason_for_call": "You want to know a number.",
                    "known_info": "You are mia_garcia_4516.",
                    "unknown_info": None,
                    "task_instructions": "",
                }
            },
            "evaluation_criteria": {
                "actions": [],
                "communicate_info": ["10"],
                "nl_assertions": ["The agent is polite."],
                "reward_basis": ["DB", "NL_ASSERTION"],
            },
        }
        for place in range(2)
    ]
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps(rows))
    by_rule = {}
    for reward in ("v2", "v3"):
        env = retail(reward=reward, data=str(path))
        env.reset(seed=0, idx=0)
        _, by_rule[reward], _, _, info = env.step(NOTHING)
        assert info["unjudged"] == 1 and info["communicated"] == 0.0
    assert by_rule == {"v2": 1.0, "v3": 0.0}
    env.reset(seed=0, idx=0)
    call_item = '<tool_call>{"name": "get_item_details", "arguments": {"item_id": "9612497925"}}'
    assert "crew neck" in str(env.step(f"{call_item}</tool_call>")[0])


@pytest.mark.parametrize("content", ["{", "[]", '[{"id": 1}]', "missing"])
def test_data_that_are_not_tasks_are_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tasks.json"
    if content != "missing":
        path.write_text(content)
    with pytest.raises(DataError, match="data "):
        retail(data=str(path))


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("split", {"split": "dev"}),
        ("user", {"user": "human"}),
        ("reward", {"reward": "v4"}),
        ("semantics", {"semantics": "new"}),
        ("max_turns", {"max_turns": 0}),
        ("max_errors", {"max_errors": 0}),
        ("url", {"user": "llm"}),
        ("url", {"user": "llm", "url": "localhost", "model": "m"}),
        ("model", {"user": "llm", "url": "http://localhost:1", "model": ""}),
    ],
)
def test_bad_parameters_are_named(name: str, params: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"^{name} must "):
        retail(**params)


@pytest.mark.parametrize(
    "given",
    [
        {"url": "http://localhost:1/v1"},
        {"model": "gpt-4.1"},
        {"temperature": 0.7},
        {"timeout_s": 5.0},
        {"api_key_env": "KEY"},
    ],
)
@pytest.mark.parametrize("env_id", ["tau:Retail-v2", "tau:Airline-v2", "tau:RetailGen-v0"])
def test_a_model_for_the_user_is_refused_where_the_user_is_scripted(
    env_id: str, given: dict[str, Any]
) -> None:
    with pytest.raises(ConfigurationError, match="is for the user 'llm', got user='scripted'"):
        gem.make(env_id, **given)


def test_a_split_of_generated_tasks_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="split='test' is of the benchmark's tasks"):
        gem.make("tau:RetailSeats-v2", generated=True, split="test")


def test_bad_options_are_named() -> None:
    with pytest.raises(UnknownParameterError, match="task"):
        retail().reset(seed=0, task=1)
    with pytest.raises(ConfigurationError, match="idx"):
        retail().reset(seed=0, idx=114)


def test_the_licence_of_the_data_is_in_the_package() -> None:
    licence = files("gem_tau").joinpath("data/LICENSE-TAU2.txt").read_text(encoding="utf-8")
    assert "Copyright (c) 2025 Sierra Research" in licence
    assert "included in all\ncopies" in licence

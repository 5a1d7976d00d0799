"""Rewards of TAU-bench retail against a literal transcription of the published rules.

The transcription deep-copies its database, changes it in place and compares all of it; it shares no
code with the environment.
"""

from __future__ import annotations

import hashlib
import json
import pickle
from random import Random
from typing import Any

import pytest

import gem
from gem_tau.data import Call, Task, database, tasks
from gem_tau.oracle import random_arguments, tool_call
from gem_tau.outcome import TRANSFER, gold
from gem_tau.retail_tools import TOOLS

SEQUENCES = 1_000
WRITES = [name for name, tool in TOOLS.items() if tool.writes]


class RefusalError(Exception):
    pass


class Reference:
    """The writing tools on one plain database, which they change in place."""

    def __init__(self, db: Any, last_variant: bool) -> None:
        self.db, self.last_variant = db, last_variant

    def order(self, key: str) -> Any:
        return self.must(self.db["orders"].get(key))

    def pay(self, order: Any, key: str) -> Any:
        return self.must(self.db["users"][order["user_id"]]["payment_methods"].get(key))

    def must(self, value: Any) -> Any:
        if not value:
            raise RefusalError
        return value

    def gift(self, method: Any, amount: float) -> None:
        if method["source"] == "gift_card":
            method["balance"] = round(method["balance"] + amount, 2)

    def enough(self, method: Any, amount: float) -> None:
        self.must(method["source"] != "gift_card" or method["balance"] >= amount)

    def held(self, order: Any, item_ids: list[str]) -> None:
        have = [item["item_id"] for item in order["items"]]
        for item in item_ids:
            self.must(item_ids.count(item) <= have.count(item))

    def difference(self, order: Any, olds: list[str], news: list[str]) -> tuple[float, list[Any]]:
        self.held(order, olds)
        self.must(len(olds) == len(news))
        total, variants = 0.0, []
        for old, new in zip(olds, news, strict=True):
            item = next(each for each in order["items"] if each["item_id"] == old)
            variant = self.db["products"][item["product_id"]]["variants"].get(new)
            self.must(variant and variant["available"])
            total += variant["price"] - item["price"]
            variants.append(variant)
        return total, variants

    def cancel_pending_order(self, order_id: str, reason: str) -> None:
        order = self.order(order_id)
        self.must(order["status"] == "pending")
        self.must(reason in ("no longer needed", "ordered by mistake"))
        for payment in list(order["payment_history"]):
            self.gift(self.pay(order, payment["payment_method_id"]), payment["amount"])
            order["payment_history"].append({**payment, "transaction_type": "refund"})
        order.update(status="cancelled", cancel_reason=reason)

    def exchange_delivered_order_items(
        self, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
    ) -> None:
        order = self.order(order_id)
        self.must(order["status"] == "delivered")
        total = round(self.difference(order, item_ids, new_item_ids)[0], 2)
        self.enough(self.pay(order, payment_method_id), total)
        order.update(
            status="exchange requested",
            exchange_items=sorted(item_ids),
            exchange_new_items=sorted(new_item_ids),
            exchange_payment_method_id=payment_method_id,
            exchange_price_difference=total,
        )

    def modify_pending_order_items(
        self, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
    ) -> None:
        order = self.order(order_id)
        self.must(order["status"] == "pending")
        self.must(all(a != b for a, b in zip(item_ids, new_item_ids, strict=False)))
        total, variants = self.difference(order, item_ids, new_item_ids)
        method = self.pay(order, payment_method_id)
        self.enough(method, total)
        self.gift(method, -total)
        kind = "payment" if total > 0 else "refund"
        order["payment_history"].append([kind, abs(round(total, 6)), payment_method_id])
        for old, new, variant in zip(item_ids, new_item_ids, variants, strict=True):
            item = next((each for each in order["items"] if each["item_id"] == old), None)
            if item is not None:
                given = variants[-1] if self.last_variant else variant
                item.update(item_id=new, price=given["price"], options=given["options"])
        order["status"] = "pending (item modified)"

    def modify_pending_order_address(self, order_id: str, **address: str) -> None:
        order = self.order(order_id)
        self.must("pending" in order["status"])
        order["address"] = address

    def modify_user_address(self, user_id: str, **address: str) -> None:
        self.must(self.db["users"].get(user_id))["address"] = address

    def modify_pending_order_payment(self, order_id: str, payment_method_id: str) -> None:
        order = self.order(order_id)
        self.must("pending" in order["status"])
        method, paid = self.pay(order, payment_method_id), order["payment_history"]
        self.must(len(paid) == 1 and paid[0]["transaction_type"] == "payment")
        before, amount = paid[0]["payment_method_id"], paid[0]["amount"]
        self.must(before != payment_method_id)
        self.enough(method, amount)
        self.gift(method, -amount)
        self.gift(self.pay(order, before), amount)
        paid += [["payment", amount, payment_method_id], ["refund", amount, before]]

    def return_delivered_order_items(
        self, order_id: str, item_ids: list[str], payment_method_id: str
    ) -> None:
        order = self.order(order_id)
        self.must(order["status"] == "delivered")
        method = self.pay(order, payment_method_id)
        first = order["payment_history"][0]["payment_method_id"]
        self.must(method["source"] == "gift_card" or payment_method_id == first)
        self.held(order, item_ids)
        order.update(
            status="return requested",
            return_items=sorted(item_ids),
            return_payment_method_id=payment_method_id,
        )


def state_hash(before: bytes, calls: list[Call], last_variant: bool) -> str:
    db = pickle.loads(before)
    db["products"] = database()["products"]
    reference = Reference(db, last_variant)
    for each in calls:
        if each.name in WRITES:
            try:
                getattr(reference, each.name)(**each.arguments)
            except RefusalError:
                continue
    changed = {"users": db["users"], "orders": db["orders"]}
    return hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()


def v1(before: bytes, task: Task, calls: list[Call], messages: list[str], last: bool) -> float:
    """TAU-bench: 1, but 0 if the data differ, and 0 if an output is in no message."""
    reward = 1.0
    if state_hash(before, calls, last) != state_hash(before, list(task.actions), last):
        reward = 0.0
    for output in task.communicate:
        found = False
        for content in messages:
            if output.lower() in content.lower().replace(",", ""):
                found = True
                break
        if not found:
            reward = 0.0
    return reward


def v2(before: bytes, task: Task, calls: list[Call], messages: list[str], last: bool) -> float:
    """tau2-bench: the product of the parts in the reward basis, by default these two."""
    same = state_hash(before, calls, last) == state_hash(before, list(task.actions), last)
    parts = {"DB": float(same)}
    met = [
        any(info.lower() in text.lower().replace(",", "") for text in messages)
        for info in task.communicate
    ]
    parts["COMMUNICATE"] = float(all(met))
    reward = 1.0
    for basis in ("DB", "COMMUNICATE"):
        reward *= parts[basis]
    return reward


def small_database(customers: set[str]) -> bytes:
    """The records of some customers; the whole database would take 0.1 s to copy."""
    tables = database()
    return pickle.dumps(
        {
            "users": {key: tables["users"][key] for key in sorted(customers)},
            "orders": {k: o for k, o in tables["orders"].items() if o["user_id"] in customers},
        }
    )


def random_sequence(task: Task, rng: Random) -> list[Call | str]:
    """Some of the recorded calls, random ones, and messages with some of what must be said."""
    actions: list[Call | str] = [each for each in task.actions if rng.random() < 0.8]
    customer = gold(task, "fixed").user_id
    names = list(TOOLS)
    for _ in range(rng.choice((0, 0, 0, 1, 4))):
        name = rng.choice(names)
        wanted = Call(name, random_arguments(name, customer, rng))
        owners = {wanted.arguments.get("user_id", customer)}
        if "order_id" in wanted.arguments:
            owners.add(database()["orders"][wanted.arguments["order_id"]]["user_id"])
        if owners == {customer}:
            actions.insert(rng.randint(0, len(actions)), wanted)
    for info in task.communicate:
        if rng.random() < 0.8:
            written = rng.choice((info, info.upper(), f"{info[:1]},{info[1:]}", info[::-1]))
            actions.insert(rng.randint(0, len(actions)), f"I tell you: {written}!")
    if rng.random() < 0.2:
        rng.shuffle(actions)
    return [each for each in actions if isinstance(each, str) or each.name != TRANSFER]


@pytest.mark.parametrize(
    ("reward", "rule", "semantics"), [("v1", v1, "fixed"), ("v2", v2, "upstream")]
)
def test_rewards_equal_a_literal_transcription(reward: str, rule: Any, semantics: str) -> None:
    rng = Random(21)
    env = gem.make(
        "tau:Retail-v2", reward=reward, semantics=semantics, max_turns=1_000, max_errors=None
    )
    played = {0.0: 0, 1.0: 0}
    for number in range(SEQUENCES):
        idx = number % 114
        task = tasks(None)[idx]
        before = small_database({gold(task, semantics).user_id})
        env.reset(seed=0, idx=idx)
        calls: list[Call] = []
        messages: list[str] = []
        end = Call(TRANSFER, {"summary": ""})
        for action in [*random_sequence(task, rng), end]:
            if isinstance(action, str):
                messages.append(action)
            else:
                calls.append(action)
            text = action if isinstance(action, str) else tool_call(action)
            _, earned, terminated, truncated, _ = env.step(text)
            assert not truncated
            if terminated:
                break
        assert terminated
        expected = rule(before, task, calls, messages, semantics == "upstream")
        assert earned == expected, (task.id, calls, messages)
        played[expected] += 1
    assert min(played.values()) > SEQUENCES / 10, played

"""Generated retail tasks: a customer of the database, one to three wishes, and the truth computed.

What is right follows from the tools, which are run on the wishes; a wish that they refuse is drawn
again. No task shares a write with one of the benchmark's.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, lru_cache
from random import Random
from typing import NamedTuple

from gem.errors import DataError
from gem.seeding import stream
from gem_tau.data import Call, Record, Task, database, tasks
from gem_tau.outcome import gold, same_write
from gem_tau.records import Records, RefusedError
from gem_tau.retail_tools import TOOLS
from gem_tau.scripted import changed_words, identity_words, words
from gem_tau.tools import call

REFUSAL = "I cannot do that"
"""What the agent must say to a wish that the policy forbids."""
_ATTEMPTS = 1_000
# Key of the streams of tasks, apart from those of episodes.
_TASKS = 3

_OPENINGS = (
    "Hi, {}.",
    "Hello! {}.",
    "Good morning, {}.",
    "Hi there, I hope that you can help me. {}.",
    "Hey, a quick request: {}.",
)
_WISHES = ("I want to {}", "I would like to {}", "I need to {}", "please {}", "could you {}")
_LINKS = (". Also, {}", ". And {}", ". One more thing: {}")
_ASIDES = (
    " I am very happy with the {} that I bought, by the way.",
    " My {} is fine, nothing to do about it.",
    " A friend of mine has the same {} as I do.",
)
_STREETS = ("Oak Street", "Lake Road", "Hill Avenue", "River Lane", "Park Drive", "Mill Road")
_CITIES = (
    ("Austin", "TX", "78701"),
    ("Boston", "MA", "02108"),
    ("Denver", "CO", "80202"),
    ("Portland", "OR", "97201"),
    ("Tucson", "AZ", "85701"),
)


class Wish(NamedTuple):
    """One thing that the customer wants."""

    calls: tuple[Call, ...]
    """The reads that it takes, then the write; no write if the agent must refuse."""
    told: str = ""
    """How the customer says it; empty if in the words of `scripted.words`."""


class Shape(NamedTuple):
    """Which tasks to generate."""

    intents: tuple[str, ...]
    """Kinds of wishes, of `INTENTS`."""
    most: int
    """Most wishes of a task."""
    conditions: float
    """Share of the exchanges and changes of items that have a condition."""
    brief: bool
    """Whether the customer says at once who it is and names orders by number, without ado."""


class Customer(NamedTuple):
    """Of whom wishes are drawn."""

    user: Record
    orders: tuple[Record, ...]
    """Orders that no wish is about yet."""
    rng: Random
    shape: Shape

    def order(self, *statuses: str) -> Record:
        """Return an order of one of these statuses.

        Raises:
            RefusedError: There is none.
        """
        fitting = [order for order in self.orders if order["status"] in statuses]
        if not fitting:
            raise RefusedError("no such order")
        return self.rng.choice(fitting)

    def method(self) -> str:
        """Return one of the payment methods."""
        key: str = self.rng.choice(list(self.user["payment_methods"]))
        return key


def _cancel(who: Customer) -> Wish:
    reason = who.rng.choice(("no longer needed", "ordered by mistake"))
    order = who.order("pending")["order_id"]
    return Wish((_look(order), Call("cancel_pending_order", {"order_id": order, "reason": reason})))


def _return(who: Customer) -> Wish:
    order = who.order("delivered")
    gifts = [k for k, m in who.user["payment_methods"].items() if m["source"] == "gift_card"]
    given = {
        "order_id": order["order_id"],
        "item_ids": [item["item_id"] for item in _some(who, order)],
        "payment_method_id": who.rng.choice(
            [order["payment_history"][0]["payment_method_id"], *gifts]
        ),
    }
    return Wish((_look(order["order_id"]), Call("return_delivered_order_items", given)))


def _exchange(who: Customer) -> Wish:
    return _other_variants(who, who.order("delivered"), "exchange_delivered_order_items")


def _items(who: Customer) -> Wish:
    return _other_variants(who, who.order("pending"), "modify_pending_order_items")


def _other_variants(who: Customer, order: Record, name: str) -> Wish:
    items = _some(who, order)
    chosen, told = [who.rng.choice(_variants(item)) for item in items], ""
    given = {
        "order_id": order["order_id"],
        "item_ids": [item["item_id"] for item in items],
        "new_item_ids": [variant["item_id"] for variant in chosen],
        "payment_method_id": who.method(),
    }
    write = Call(name, given)
    if len(items) == 1 and who.rng.random() < who.shape.conditions:
        told = _condition(who, items[0], chosen[0], write)
    reads = [Call("get_product_details", {"product_id": item["product_id"]}) for item in items]
    return Wish((_look(order["order_id"]), *reads, write), told)


def _condition(who: Customer, item: Record, chosen: Record, write: Call) -> str:
    """Return a wish with two alternatives of which `chosen` is the right one, in words."""
    others = [each for each in _variants(item) if each["item_id"] != chosen["item_id"]]
    if not others:
        return ""
    absent = [each for each in others if not each["available"]]
    # The first choice is out of stock, or is the right one.
    if absent and who.rng.random() < 0.5:
        first, second = who.rng.choice(absent), chosen
    else:
        first, second = chosen, who.rng.choice(others)
    plain = words(write, _spoken(who.user, who.shape))
    one, other = changed_words(item, first["item_id"]), changed_words(item, second["item_id"])
    found = changed_words(item, chosen["item_id"])
    return plain.replace(found, f"{one}, or if that is not available with {other},", 1)


def _address(who: Customer) -> Wish:
    order = who.order("pending")["order_id"]
    given = {"order_id": order, **_new_address(who.rng)}
    return Wish((_look(order), Call("modify_pending_order_address", given)))


def _payment(who: Customer) -> Wish:
    given = {"order_id": who.order("pending")["order_id"], "payment_method_id": who.method()}
    return Wish((_look(given["order_id"]), Call("modify_pending_order_payment", given)))


def _profile(who: Customer) -> Wish:
    given = {"user_id": who.user["user_id"], **_new_address(who.rng)}
    return Wish((Call("modify_user_address", given),))


def _refuse(who: Customer) -> Wish:
    """A wish that the policy forbids, because of the order's status."""
    if who.rng.random() < 0.5:
        order = who.order("processed", "delivered", "cancelled")
        write = Call(
            "cancel_pending_order", {"order_id": order["order_id"], "reason": "no longer needed"}
        )
    else:
        order = who.order("processed", "pending", "cancelled")
        given = {
            "order_id": order["order_id"],
            "item_ids": [item["item_id"] for item in _some(who, order)],
            "payment_method_id": order["payment_history"][0]["payment_method_id"],
        }
        write = Call("return_delivered_order_items", given)
    return Wish((_look(order["order_id"]),), words(write, _spoken(who.user, who.shape)))


INTENTS: dict[str, Callable[[Customer], Wish]] = {
    "cancel": _cancel,
    "return": _return,
    "exchange": _exchange,
    "items": _items,
    "address": _address,
    "payment": _payment,
    "profile": _profile,
    "refuse": _refuse,
}
"""Kinds of wishes."""


@lru_cache(maxsize=4096)
def generated(index: int, shape: Shape) -> Task:
    """Return a generated task.

    Args:
        index: Number of the task, 0 or more; the same number and shape give the same task.
        shape: Which tasks to generate.

    Raises:
        DataError: No task of this shape was found.
    """
    rng = stream(index, _TASKS)
    users = _customers()
    for _ in range(_ATTEMPTS):
        user = database()["users"][rng.choice(users)]
        kinds = [rng.choice(shape.intents) for _ in range(rng.randint(1, shape.most))]
        try:
            return _task(index, user, kinds, rng, shape)
        except RefusedError:
            continue
    raise DataError(f"no task of the shape {shape} in {_ATTEMPTS} attempts")


def _task(index: int, user: Record, kinds: list[str], rng: Random, shape: Shape) -> Task:
    """Return a task of a customer.

    Raises:
        RefusedError: A tool refuses what it takes, or it is in the benchmark.
    """
    orders = tuple(database()["orders"][key] for key in user["orders"])
    held = [sorted(item["name"] for item in order["items"]) for order in orders]
    if any(held.count(names) > 1 for names in held) or kinds.count("profile") > 1:
        raise RefusedError("orders or wishes that words do not tell apart")
    db, wishes = Records(), list[Wish]()
    for kind in kinds:
        wish = INTENTS[kind](Customer(user, orders, rng, shape))
        for each in wish.calls:
            call(db, each, TOOLS)
            if TOOLS[each.name].writes and any(same_write(each, other) for other in _benchmark()):
                raise RefusedError("a write of the benchmark")
        taken = [each.arguments.get("order_id") for each in wish.calls]
        orders = tuple(order for order in orders if order["order_id"] not in taken)
        wishes.append(wish)
    with_email = rng.random() < 0.5
    search = (
        Call("find_user_id_by_email", {"email": user["email"]})
        if with_email
        else Call("find_user_id_by_name_zip", {**user["name"], "zip": user["address"]["zip"]})
    )
    spoken = _spoken(user, shape)
    told = [wish.told or words(wish.calls[-1], spoken) for wish in wishes]
    calls = [each for wish in wishes for each in wish.calls]
    if not shape.brief or any("payment_method_id" in each.arguments for each in calls):
        calls.insert(0, Call("get_user_details", {"user_id": user["user_id"]}))
    known = identity_words(user, with_email)
    opening = f"{known} I want to {told[0]}." if shape.brief else _opening(told, rng)
    if shape.brief:
        opening += "".join(f" I want to {each}." for each in told[1:])
    return Task(
        id=f"generated-{index}",
        reason=f'You begin with: "{opening}"',
        known=f"{known} {spoken.known}".strip(),
        unknown="",
        manner="You want nothing else.",
        actions=(search, *calls),
        communicate=(REFUSAL,) if "refuse" in kinds else (),
        opening=opening,
        identified=shape.brief,
    )


def _opening(told: list[str], rng: Random) -> str:
    sentence = ""
    for place, each in enumerate(told):
        link = rng.choice(_LINKS) if place else "{}"
        sentence += link.format(rng.choice(_WISHES).format(each))
    text = rng.choice(_OPENINGS).format(sentence)
    text = re.sub(r"(^|[.!] )([a-z])", lambda found: found[1] + found[2].upper(), text)
    if rng.random() < 0.3:
        products = sorted(product["name"].lower() for product in database()["products"].values())
        unrelated = [name for name in products if name not in text.lower()]
        text += rng.choice(_ASIDES).format(rng.choice(unrelated))
    return text


def _spoken(user: Record, shape: Shape) -> Task:
    """Return a task in whose words wishes are told: orders by number if it is brief."""
    known = " ".join(user["orders"]) if shape.brief else ""
    return Task("", "", known, "", "", (), ())


def _look(order_id: str) -> Call:
    return Call("get_order_details", {"order_id": order_id})


def _some(who: Customer, order: Record) -> list[Record]:
    """Return one or two items of different products."""
    products: dict[str, Record] = {item["product_id"]: item for item in order["items"]}
    most = 1 if who.shape.brief else min(2, len(products))
    return who.rng.sample(list(products.values()), who.rng.randint(1, most))


def _variants(item: Record) -> list[Record]:
    """Return the other variants of an item's product."""
    variants = database()["products"][item["product_id"]]["variants"]
    others = [each for key, each in variants.items() if key != item["item_id"]]
    if not others:
        raise RefusedError("no other variant")
    return others


def _new_address(rng: Random) -> dict[str, str]:
    city, state, zip_code = rng.choice(_CITIES)
    return {
        "address1": f"{rng.randint(1, 999)} {rng.choice(_STREETS)}",
        "address2": f"Suite {rng.randint(1, 99)}",
        "city": city,
        "state": state,
        "country": "USA",
        "zip": zip_code,
    }


@cache
def _customers() -> tuple[str, ...]:
    return tuple(key for key, user in database()["users"].items() if user["orders"])


@cache
def _benchmark() -> tuple[Call, ...]:
    return tuple(write for task in tasks(None) for write in gold(task, "fixed").writes)

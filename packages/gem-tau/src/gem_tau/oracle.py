"""The oracle of the retail domain and its random actions."""

from __future__ import annotations

import json
from collections.abc import Collection
from random import Random
from typing import Any, Protocol

from gem_tau.data import Call, database
from gem_tau.outcome import TRANSFER, knows_email
from gem_tau.retail_tools import TOOLS
from gem_tau.scripted import Scene

MESSAGES = (
    "Could you give me your e-mail address, or your name and zip code?",
    "What would you like to do?",
    "Could you tell me more?",
    "Please wait a moment.",
)
"""Messages of random play."""
_ASK = "To help you I need your e-mail address, or your name and zip code."
_ASK_ID = "To help you I need your user id."
_VERBS = {"modify": "change", "cancel": "cancel", "return": "return", "exchange": "exchange"}


def tool_call(wanted: Call) -> str:
    """Return a call as the agent writes it."""
    content = json.dumps({"name": wanted.name, "arguments": dict(wanted.arguments)})
    return f"<tool_call>{content}</tool_call>"


class Understood(Protocol):
    """What an agent has understood of a user."""

    @property
    def identified(self) -> bool:
        """Whether the user has said who it is."""

    @property
    def confirmed(self) -> tuple[int, ...]:
        """Places in `gold.writes` to which its last message said yes."""


def next_action(scene: Scene, user: Understood, identified: str, tried: Collection[str]) -> str:
    """Return the next action of the oracle.

    It asks who the user is, searches for the account, makes the recorded reads, and for each
    recorded write asks for consent first; then it says what it must say, and ends.

    Args:
        scene: The task and what was done.
        user: The user.
        identified: Id of the user that was found, or empty.
        tried: Keys of the calls made in this episode.
    """
    if not user.identified:
        return _ASK if scene.task.domain == "retail" else _ASK_ID
    if identified != scene.gold.user_id:
        return tool_call(search(scene))
    for read in scene.gold.reads:
        if read.key not in tried:
            return tool_call(read)
    if scene.pending:
        place = scene.pending[0]
        write = scene.gold.writes[place]
        return tool_call(write) if place in user.confirmed else proposal(write)
    if scene.missing:
        return f"{', '.join(scene.missing)}. Is there anything else I can help you with?"
    if scene.gold.transfers:
        return tool_call(Call(TRANSFER, {"summary": "The request is outside of the policy."}))
    sorry = "" if scene.gold.writes or scene.task.communicate else "I am sorry, I cannot do this. "
    return f"{sorry}Is there anything else I can help you with?"


def search(scene: Scene) -> Call:
    """Return the call that finds the user by what it said."""
    if scene.task.domain == "airline":
        return Call("get_user_details", {"user_id": scene.gold.user_id})
    user = database()["users"][scene.gold.user_id]
    if knows_email(scene.task):
        return Call("find_user_id_by_email", {"email": user["email"]})
    zip_code = user["address"]["zip"]
    return Call("find_user_id_by_name_zip", {**user["name"], "zip": zip_code})


def proposal(write: Call) -> str:
    """Return the message that asks for consent to a write, with all its details."""
    given = dict(write.arguments)
    first = write.name.partition("_")[0]
    verb = _VERBS.get(first, first)
    what = {"payment": "the payment method", "address": "the address"}.get(
        write.name.rpartition("_")[2], "items"
    )
    if write.name.rpartition("_")[2] in ("flights", "baggages", "passengers", "certificate"):
        what = write.name.rpartition("_")[2]
    special = {"cancel_pending_order": "the order", "modify_user_address": "the default address"}
    what = special.get(write.name, what)
    order = f", order {given['order_id']}" if "order_id" in given else ""
    parts = [f"I will {verb} {what}{order}:"]
    for name, value in given.items():
        if name not in ("order_id", "user_id"):
            told = value if isinstance(value, str) else _shown(value)
            parts.append(f"{name.replace('_', ' ')} {told};")
    return f"{' '.join(parts)} Do you confirm (yes/no)?"


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(each if isinstance(each, str) else _shown(each) for each in value)
    return " ".join(map(str, value.values())) if isinstance(value, dict) else str(value)


def random_call(name: str, user_id: str, rng: Random) -> str:
    """Return a random call of a tool as the agent writes it."""
    return tool_call(Call(name, random_arguments(name, user_id, rng)))


def random_arguments(name: str, user_id: str, rng: Random) -> dict[str, Any]:
    """Return arguments of a tool, mostly from the records of one user."""
    tables = database()
    user = tables["users"][user_id if rng.random() < 0.8 else rng.choice(list(tables["users"]))]
    order = tables["orders"][rng.choice(user["orders"] or list(tables["orders"]))]
    items = rng.sample(order["items"], rng.randint(1, min(2, len(order["items"]))))
    product = tables["products"][items[0]["product_id"]]
    values: dict[str, Any] = {
        **user["address"],
        **user["name"],
        "address1": f"{rng.randint(1, 999)} Main Street",
        "email": user["email"],
        "expression": f"{rng.randint(1, 99)} + {rng.randint(1, 99)}",
        "item_id": items[0]["item_id"],
        "item_ids": [item["item_id"] for item in items],
        "new_item_ids": [
            rng.choice(list(tables["products"][item["product_id"]]["variants"])) for item in items
        ],
        "order_id": order["order_id"],
        "payment_method_id": rng.choice(list(user["payment_methods"])),
        "product_id": product["product_id"],
        "reason": rng.choice(("no longer needed", "ordered by mistake")),
        "summary": "A request.",
        "user_id": user["user_id"],
    }
    return {name: values[name] for name in TOOLS[name].parameters}

"""The tools of the retail domain, as functions of `Records` and plain arguments.

They behave as those of tau2-bench. Writes check everything before they change anything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache

from gem_tau.data import Record, database
from gem_tau.records import Records, RefusedError
from gem_tau.tools import (
    Toolbox,
    calculate,
    get_user_details,
    transfer_to_human_agents,
)

_REASONS = ("no longer needed", "ordered by mistake")
TOOLS = Toolbox()
"""The tools by name."""


@cache
def _by_email() -> Mapping[str, str]:
    return {user["email"].lower(): key for key, user in reversed(database()["users"].items())}


@TOOLS.add()
def find_user_id_by_email(db: Records, email: str) -> str:
    """Find a user id by e-mail address."""
    # No tool changes an address, so that an index of the shared records is enough.
    key = _by_email().get(email.lower())
    if key is None:
        raise RefusedError("User not found")
    return key


@TOOLS.add()
def find_user_id_by_name_zip(db: Records, first_name: str, last_name: str, zip: str) -> str:
    """Find a user id by first name, last name and zip code."""
    wanted = first_name.lower(), last_name.lower()
    for key, user in db.rows("users"):
        name = user["name"]
        same = (name["first_name"].lower(), name["last_name"].lower()) == wanted
        if same and user["address"]["zip"] == zip:
            return key
    raise RefusedError("User not found")


TOOLS.add()(get_user_details)


@TOOLS.add()
def get_order_details(db: Records, order_id: str) -> Record:
    """Get an order's items, status, address and payments. An order id begins with '#'."""
    return db.read("orders", order_id)


@TOOLS.add()
def get_product_details(db: Records, product_id: str) -> Record:
    """Get all variants of a product, with options, price and availability. A product id is not an
    item id."""
    return db.read("products", product_id)


@TOOLS.add()
def get_item_details(db: Records, item_id: str) -> Record:
    """Get options, price and availability of an item."""
    for product in database()["products"].values():
        if item_id in product["variants"]:
            variant: Record = product["variants"][item_id]
            return variant
    raise RefusedError("Item not found")


@TOOLS.add()
def list_all_product_types(db: Records) -> dict[str, str]:
    """List the names and product ids of all products."""
    return {each["name"]: each["product_id"] for each in database()["products"].values()}


TOOLS.add()(calculate)


TOOLS.add()(transfer_to_human_agents)


@TOOLS.add(writes=True)
def cancel_pending_order(db: Records, order_id: str, reason: str) -> Record:
    """Cancel a pending order; reason is 'no longer needed' or 'ordered by mistake'."""
    order = _in_status(db, order_id, "pending", "Non-pending order cannot be cancelled")
    if reason not in _REASONS:
        raise RefusedError("Invalid reason")
    payments = order["payment_history"]
    for payment in payments:
        _method(db, order["user_id"], payment["payment_method_id"])
    for payment in payments:
        _pay(db, order["user_id"], payment["payment_method_id"], -payment["amount"])
    refunds = [{**payment, "transaction_type": "refund"} for payment in payments]
    order = db.edit("orders", order_id)
    order.update(status="cancelled", cancel_reason=reason)
    order["payment_history"] += refunds
    return order


@TOOLS.add(writes=True)
def exchange_delivered_order_items(
    db: Records,
    order_id: str,
    item_ids: list[str],
    new_item_ids: list[str],
    payment_method_id: str,
) -> Record:
    """Exchange items of a delivered order for other variants of the same products, in the same
    order. The payment method pays or receives the price difference. Once per order."""
    order = _in_status(db, order_id, "delivered", "Non-delivered order cannot be exchanged")
    variants = _variants(order, item_ids, new_item_ids)
    difference = round(_price_difference(db, order, item_ids, variants), 2)
    _require_balance(db, order["user_id"], payment_method_id, difference)
    order = db.edit("orders", order_id)
    order.update(
        status="exchange requested",
        exchange_items=sorted(item_ids),
        exchange_new_items=sorted(new_item_ids),
        exchange_payment_method_id=payment_method_id,
        exchange_price_difference=difference,
    )
    return order


@TOOLS.add(writes=True)
def modify_pending_order_items(
    db: Records,
    order_id: str,
    item_ids: list[str],
    new_item_ids: list[str],
    payment_method_id: str,
) -> Record:
    """Replace items of a pending order by other variants of the same products, in the same order.
    The payment method pays or receives the price difference. Once per order."""
    order = _in_status(db, order_id, "pending", "Non-pending order cannot be modified")
    pairs = list(zip(item_ids, new_item_ids, strict=False))
    if any(old == new for old, new in pairs):
        raise RefusedError("The new item id should be different from the old item id")
    variants = _variants(order, item_ids, new_item_ids)
    difference = _price_difference(db, order, item_ids, variants)
    if db.semantics == "fixed":
        difference = round(difference, 2)
    _require_balance(db, order["user_id"], payment_method_id, difference)
    order = db.edit("orders", order_id)
    _pay(db, order["user_id"], payment_method_id, difference)
    order["payment_history"].append(
        {
            "transaction_type": "payment" if difference > 0 else "refund",
            "amount": abs(difference),
            "payment_method_id": payment_method_id,
        }
    )
    if db.semantics == "upstream" and variants:
        # tau2-bench gives every item the price and options of the last one.
        variants = [variants[-1]] * len(variants)
        changes = list(zip(pairs, variants, strict=True))
    else:
        changes = sorted(zip(pairs, variants, strict=True), key=lambda change: change[0])
    for (old, new), variant in changes:
        item = next((each for each in order["items"] if each["item_id"] == old), None)
        if item is not None:
            item.update(item_id=new, price=variant["price"], options=variant["options"])
    order["status"] = "pending (item modified)"
    return order


@TOOLS.add(writes=True)
def modify_pending_order_address(
    db: Records,
    order_id: str,
    address1: str,
    address2: str,
    city: str,
    state: str,
    country: str,
    zip: str,
) -> Record:
    """Change the shipping address of a pending order."""
    _require_pending(db.read("orders", order_id))
    order = db.edit("orders", order_id)
    order["address"] = _address(address1, address2, city, state, country, zip)
    return order


@TOOLS.add(writes=True)
def modify_pending_order_payment(db: Records, order_id: str, payment_method_id: str) -> Record:
    """Change the payment method of a pending order."""
    order = db.read("orders", order_id)
    _require_pending(order)
    _method(db, order["user_id"], payment_method_id)
    payments = order["payment_history"]
    if len(payments) != 1 or payments[0]["transaction_type"] != "payment":
        raise RefusedError("There should be exactly one payment for a pending order")
    before, amount = payments[0]["payment_method_id"], payments[0]["amount"]
    if before == payment_method_id:
        raise RefusedError("The new payment method should be different from the current one")
    _require_balance(db, order["user_id"], payment_method_id, amount)
    _method(db, order["user_id"], before)
    _pay(db, order["user_id"], payment_method_id, amount)
    _pay(db, order["user_id"], before, -amount)
    order = db.edit("orders", order_id)
    for kind, method in (("payment", payment_method_id), ("refund", before)):
        order["payment_history"].append(
            {"transaction_type": kind, "amount": amount, "payment_method_id": method}
        )
    return order


@TOOLS.add(writes=True)
def modify_user_address(
    db: Records,
    user_id: str,
    address1: str,
    address2: str,
    city: str,
    state: str,
    country: str,
    zip: str,
) -> Record:
    """Change the default address of a user."""
    user = db.edit("users", user_id)
    user["address"] = _address(address1, address2, city, state, country, zip)
    return user


@TOOLS.add(writes=True)
def return_delivered_order_items(
    db: Records, order_id: str, item_ids: list[str], payment_method_id: str
) -> Record:
    """Return items of a delivered order; the refund goes to the original payment method or to a
    gift card of the user."""
    order = _in_status(db, order_id, "delivered", "Non-delivered order cannot be returned")
    method = _method(db, order["user_id"], payment_method_id)
    original = order["payment_history"][0]["payment_method_id"]
    if method["source"] != "gift_card" and payment_method_id != original:
        raise RefusedError("Payment method should be the original payment method")
    _require_items(order, item_ids)
    order = db.edit("orders", order_id)
    order.update(
        status="return requested",
        return_items=sorted(item_ids),
        return_payment_method_id=payment_method_id,
    )
    return order


def _in_status(db: Records, order_id: str, status: str, refusal: str) -> Record:
    order = db.read("orders", order_id)
    if order["status"] != status:
        raise RefusedError(refusal)
    return order


def _require_pending(order: Record) -> None:
    # Unlike the other writes, these are possible after items were modified.
    if "pending" not in order["status"]:
        raise RefusedError("Non-pending order cannot be modified")


def _require_items(order: Record, item_ids: list[str]) -> None:
    held = [item["item_id"] for item in order["items"]]
    for item in item_ids:
        if item_ids.count(item) > held.count(item):
            raise RefusedError("Some item not found")


def _variants(order: Record, item_ids: list[str], new_item_ids: list[str]) -> list[Record]:
    """Return the variants of the new items."""
    _require_items(order, item_ids)
    if len(item_ids) != len(new_item_ids):
        raise RefusedError("The number of items and of new items should match")
    products = {item["item_id"]: item["product_id"] for item in reversed(order["items"])}
    found = []
    for old, new in zip(item_ids, new_item_ids, strict=True):
        variant = database()["products"][products[old]]["variants"].get(new)
        if variant is None or not variant["available"]:
            raise RefusedError("New item not found or available")
        found.append(variant)
    return found


def _price_difference(
    db: Records, order: Record, item_ids: list[str], variants: list[Record]
) -> float:
    prices = {item["item_id"]: item["price"] for item in reversed(order["items"])}
    pairs = [(v["price"], prices[old]) for old, v in zip(item_ids, variants, strict=True)]
    if db.semantics == "fixed":
        # Exact, so that the order of the items has no influence.
        return math.fsum(part for new, old in pairs for part in (new, -old))
    total = 0.0
    for new, old in pairs:
        total += new - old
    return total


def _method(db: Records, user_id: str, method_id: str) -> Record:
    method: Record | None = db.read("users", user_id)["payment_methods"].get(method_id)
    if method is None:
        raise RefusedError("Payment method not found")
    return method


def _require_balance(db: Records, user_id: str, method_id: str, amount: float) -> None:
    method = _method(db, user_id, method_id)
    if method["source"] == "gift_card" and method["balance"] < amount:
        raise RefusedError("Insufficient gift card balance")


def _pay(db: Records, user_id: str, method_id: str, amount: float) -> None:
    """Take an amount from a gift card; other methods have no balance."""
    if _method(db, user_id, method_id)["source"] == "gift_card":
        card = db.edit("users", user_id)["payment_methods"][method_id]
        card["balance"] = round(card["balance"] - amount, 2)


def _address(
    address1: str, address2: str, city: str, state: str, country: str, zip: str
) -> dict[str, str]:
    return {
        "address1": address1,
        "address2": address2,
        "city": city,
        "state": state,
        "country": country,
        "zip": zip,
    }

"""The scripted user: a deterministic customer who answers by rules, without a model.

It knows what the customer of a task knows, which of the wanted changes were made, and nothing else
of the episode. It names orders, items and payment methods in words. Not comparable with published
results, whose users are language models.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, NamedTuple

from gem_tau import airline_words
from gem_tau.data import Call, Record, Task, database
from gem_tau.outcome import Gold, knows_email

STOP = "###STOP###"
GREETING = "Hi! How can I help you today?"
"""What the agent is taken to have said before the user's first message."""

CONFIRMS = re.compile(
    r"\b(?:confirm|proceed|go ahead|shall i|should i|is (?:that|this) (?:correct|right|ok(?:ay)?))",
    re.I,
)
_REFUSES = re.compile(
    r"\b(?:cannot|can't|can not|unable|not able|not possible|impossible|not allowed|won't)\b", re.I
)
_ELSE = re.compile(r"\b(?:anything|something) else\b|\bfurther (?:help|assist)", re.I)
_IDENTITY = re.compile(r"e-?mail|zip|\bname\b|user ?id|verify|identi|authenticat", re.I)
_ORDER = re.compile(r"which order|order (?:id|number)", re.I)
_PAYMENT = re.compile(r"payment|refund|credit card|paypal|gift card", re.I)
_REASON = re.compile(r"\breason\b|\bwhy\b", re.I)
_ADDRESS = re.compile(r"(?<!mail )address", re.I)
_WHAT = re.compile(r"\bitems?\b|option|variant|which|what|prefer|details|colou?r|size", re.I)
_ORDER_ID = re.compile(r"#?W\d{7}")
_ITEM_ID = re.compile(r"\b\d{10}\b")
_VERBS = {
    "cancel_pending_order": "cancel",
    "exchange_delivered_order_items": "exchang",
    "modify_pending_order_items": "modif|chang|replac",
    "modify_pending_order_address": "address",
    "modify_pending_order_payment": "payment|pay",
    "modify_user_address": "default|profile|account",
    "return_delivered_order_items": "return",
}
_REASONS = {
    "no longer needed": "it is no longer needed",
    "ordered by mistake": "it was ordered by mistake",
}
_ADDRESS_PARTS = ("address1", "address2", "city", "state", "country", "zip")
_FIRST_PERSON = (
    (r"\byou're\b", "I'm"),
    (r"\byou are\b", "I am"),
    (r"\byou were\b", "I was"),
    (r"\byou('ve|'d|'ll)\b", r"I\1"),
    (r"\byourself\b", "myself"),
    (r"\byours\b", "mine"),
    (r"\byour\b", "my"),
    (
        r"\b(to|for|with|at|by|from|give|gives|tell|tells|help|helps|ask|asks|let|of|sent) you\b",
        r"\1 me",
    ),
    (r"\byou\b", "I"),
)


class Scene(NamedTuple):
    """What the user may know when it answers."""

    task: Task
    gold: Gold
    done: Collection[int]
    """Places in `gold.writes` of the changes that were made."""
    missing: Collection[str]
    """What the agent must still tell."""

    @property
    def pending(self) -> list[int]:
        """Places of the changes that are still to be made, in their order."""
        return [place for place in range(len(self.gold.writes)) if place not in self.done]


class ScriptedUser:
    """One customer's state in a conversation.

    Attributes:
        identified: Whether the user has said who it is.
        confirmed: Places in `gold.writes` to which its last message said yes.
    """

    def __init__(self) -> None:
        self.identified = False
        self.confirmed: tuple[int, ...] = ()
        self._refused = 0

    def opening(self, scene: Scene) -> str:
        """Return the first message: what the customer wants."""
        task = scene.task
        self.identified = task.identified
        return first_person(task.reason) if task.opening is None else task.opening

    def reply(self, scene: Scene, message: str) -> str:
        """Return the answer to a message, which contains `###STOP###` if the user ends."""
        self.confirmed = ()
        proposal, refusal = bool(CONFIRMS.search(message)), bool(_REFUSES.search(message))
        self._refused = self._refused + 1 if refusal and not proposal else 0
        over = bool(_ELSE.search(message)) or self._refused > 0
        if not scene.pending:
            wanted = bool(scene.gold.writes) or bool(scene.task.communicate)
            if not scene.missing and (wanted or over):
                return f"Thank you, that is all. {STOP}"
        if self._refused > 1:
            return f"All right, then I leave it. {STOP}"
        if proposal and self.identified:
            return self._judge(scene, message)
        answers = self._answers(scene, message)
        return " ".join(answers) or self._request(scene)

    def _judge(self, scene: Scene, message: str) -> str:
        """Say yes to a proposal that contains every detail of a wanted change, and no others."""
        if not scene.pending:
            return "No, thank you, I do not want you to change anything else."
        airline = scene.task.domain == "airline"
        lacks = airline_words.lacking if airline else _lacking
        lacking = {place: lacks(scene.gold.writes[place], message) for place in scene.pending}
        agreed = tuple(place for place, parts in lacking.items() if not parts)
        foreign = set() if airline else _ids(message) - _known_ids(scene.gold.writes)
        if agreed and not foreign:
            self.confirmed = agreed
            return "Yes, please go ahead."
        nearest = min(lacking, key=lambda place: len(lacking[place]))
        extra = " You named something that I did not ask for." if foreign else ""
        return f"No.{extra} I want to {words(scene.gold.writes[nearest], scene.task)}."

    def _answers(self, scene: Scene, message: str) -> list[str]:
        answers = []
        if _IDENTITY.search(message):
            self.identified = True
            if scene.task.domain == "airline":
                answers.append(f"My user id is {scene.gold.user_id}.")
            else:
                user = database()["users"][scene.gold.user_id]
                answers.append(identity_words(user, knows_email(scene.task)))
        goals = [scene.gold.writes[place] for place in scene.pending]
        for pattern, answer in (
            (_ORDER, _told_order),
            (_PAYMENT, _told_payment),
            (_REASON, _told_reason),
            (_ADDRESS, _told_address),
        ):
            if pattern.search(message):
                told = next(filter(None, (answer(goal, scene.task) for goal in goals)), None)
                answers.append(told or "")
        if goals and _WHAT.search(message) and not any(answers):
            answers.append(f"I want to {words(goals[0], scene.task)}.")
        return list(filter(None, answers))

    def _request(self, scene: Scene) -> str:
        if scene.pending:
            return f"I want to {words(scene.gold.writes[scene.pending[0]], scene.task)}."
        if scene.missing:
            return "You have not told me all that I asked about."
        return f"As I said: {self.opening(scene)}"


def first_person(text: str) -> str:
    """Return instructions in the second person as the customer says them; grammar may suffer."""
    for pattern, new in _FIRST_PERSON:
        text = re.sub(pattern, new, text, flags=re.I)
    text = re.sub(r"(^|[.!?] )(my|me|mine|myself)\b", lambda m: m[1] + m[2].capitalize(), text)
    return text.strip()


def words(write: Call, task: Task) -> str:
    """Return a wanted change in the words of a customer, who knows no ids of items."""
    if task.domain == "airline":
        return airline_words.words(write, task)
    given = write.arguments
    pay = f"and use {_payment_words(given)}" if "payment_method_id" in given else ""
    if write.name == "cancel_pending_order":
        reason = _REASONS.get(given["reason"], given["reason"])
        return f"cancel {_order_words(given, task)}, because {reason}"
    if write.name == "modify_user_address":
        return f"change my default address to {_address_words(given)}"
    order = _order_words(given, task)
    if write.name == "modify_pending_order_address":
        return f"change the shipping address of {order} to {_address_words(given)}"
    if write.name == "modify_pending_order_payment":
        return f"change the payment method of {order} to {_payment_words(given)}"
    items = _items_words(given)
    if write.name == "return_delivered_order_items":
        return f"return {items} of {order} {pay} for the refund"
    verb = "exchange" if write.name.startswith("exchange") else "change"
    return f"{verb} {items} in {order} {pay} for the price difference"


def _order_of(given: Any) -> Record:
    return database()["orders"][given["order_id"]]


def _order_words(given: Any, task: Task) -> str:
    order = _order_of(given)
    if order["order_id"].lstrip("#") in f"{task.reason} {task.known} {task.opening}":
        return f"order {order['order_id']}"
    names = [item["name"].lower() for item in order["items"]]
    return f"the order with the {_listed(names)}"


def _items_words(given: Any) -> str:
    order = _order_of(given)
    held = {item["item_id"]: item for item in order["items"]}
    new_ids = given.get("new_item_ids")
    told = []
    for place, old in enumerate(given["item_ids"]):
        item = held.get(old)
        if item is None:
            continue
        what = f"the {item['name'].lower()}"
        if [each["name"] for each in order["items"]].count(item["name"]) > 1:
            what += f" ({_options(item['options'])})"
        if new_ids:
            what += f" for one with {changed_words(item, new_ids[place])}"
        told.append(what)
    return _listed(told)


def _differing(item: Record, new: str) -> dict[str, str]:
    """Return the options of a new variant that differ from an item's, or all if none does."""
    variant = database()["products"][item["product_id"]]["variants"].get(new, item)
    changed = {k: v for k, v in variant["options"].items() if item["options"].get(k) != v}
    return changed or variant["options"]


def changed_words(item: Record, new: str) -> str:
    """Return in which options a new variant differs from an item, in words."""
    return _options(_differing(item, new))


def _options(options: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in options.items())


def _listed(parts: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]])) if parts else ""


def _method(given: Any) -> Record | None:
    users = database()["users"]
    user = users[_order_of(given)["user_id"]] if "order_id" in given else None
    return user["payment_methods"].get(given["payment_method_id"]) if user else None


def _payment_words(given: Any) -> str:
    method = _method(given)
    if method is None:
        return str(given["payment_method_id"])
    if method["source"] == "credit_card":
        return f"my {method['brand']} credit card ending in {method['last_four']}"
    return "my gift card" if method["source"] == "gift_card" else "my PayPal account"


def _address_words(given: Any) -> str:
    return ", ".join(given[part] for part in _ADDRESS_PARTS if given.get(part))


def identity_words(user: Record, email: bool) -> str:
    """Return who a customer is, by e-mail address or by name and zip code."""
    if email:
        return f"My e-mail address is {user['email']}."
    name = f"{user['name']['first_name']} {user['name']['last_name']}"
    return f"My name is {name} and my zip code is {user['address']['zip']}."


def _told_order(goal: Call, task: Task) -> str:
    if "order_id" not in goal.arguments:
        return ""
    told = _order_words(goal.arguments, task)
    number = "" if told.startswith("order #") else "I do not remember the number. "
    return f"{number}It is {told}."


def _told_payment(goal: Call, task: Task) -> str:
    if "payment_method_id" not in goal.arguments:
        return ""
    return f"Please use {_payment_words(goal.arguments)}."


def _told_reason(goal: Call, task: Task) -> str:
    reason = goal.arguments.get("reason")
    return f"Because {_REASONS.get(reason, reason)}." if reason else ""


def _told_address(goal: Call, task: Task) -> str:
    if "address1" not in goal.arguments:
        return ""
    return f"The address is {_address_words(goal.arguments)}."


def _ids(text: str) -> set[str]:
    return {each.lstrip("#") for each in _ORDER_ID.findall(text)} | set(_ITEM_ID.findall(text))


def _known_ids(writes: tuple[Call, ...]) -> set[str]:
    known: set[str] = set()
    for write in writes:
        for value in write.arguments.values():
            known |= _ids(" ".join(value) if isinstance(value, list) else str(value))
    return known


def _lacking(write: Call, message: str) -> list[str]:
    """Return which details of a wanted change a proposal does not contain."""
    said, given = message.lower(), write.arguments
    lacking = [] if re.search(_VERBS.get(write.name, ""), said) else ["action"]
    if "order_id" in given and given["order_id"].lstrip("#").lower() not in said:
        lacking.append("order")
    if given.get("reason", "").lower() not in said:
        lacking.append("reason")
    if "payment_method_id" in given and not _names_method(given, said):
        lacking.append("payment")
    if any(given[part].lower() not in said for part in ("address1", "zip") if part in given):
        lacking.append("address")
    if "item_ids" in given:
        held = {item["item_id"]: item for item in _order_of(given)["items"]}
        for place, old in enumerate(given["item_ids"]):
            item = held.get(old)
            if old not in said and (item is None or item["name"].lower() not in said):
                lacking.append("item")
            new = given["new_item_ids"][place] if "new_item_ids" in given else None
            if new is not None and new not in said:
                options = _differing(item, new) if item else {"id": new}
                lacking += ["option" for each in options.items() if not _says(said, *each)]
    return lacking


def _says(said: str, name: str, value: str) -> bool:
    """Whether a text contains an option: its value, and for `yes` and `no` its name as well."""
    value = value.lower()
    named = value not in ("yes", "no") or name.lower() in said
    return named and re.search(rf"(?<!\w){re.escape(value)}(?!\w)", said) is not None


def _names_method(given: Any, said: str) -> bool:
    method = _method(given)
    if given["payment_method_id"] in said or method is None:
        return given["payment_method_id"] in said
    if method["source"] == "credit_card":
        return "credit card" in said and method["last_four"] in said
    return str(method["source"]).replace("_", " ") in said

"""How the scripted user of the airline tells what it wants, and what a proposal must contain."""

from __future__ import annotations

import re
from typing import Any

from gem_tau.data import Call, Record, Task, database

_VERBS = {
    "book_reservation": "book",
    "cancel_reservation": "cancel",
    "send_certificate": "certificate|compensat",
    "update_reservation_baggages": "bag",
    "update_reservation_flights": "flight|cabin|upgrade",
    "update_reservation_passengers": "passenger",
}


def words(write: Call, task: Task) -> str:
    """Return a wanted change in the words of a customer, who knows no ids of flights."""
    given = write.arguments
    if write.name == "send_certificate":
        return f"get a certificate of ${given['amount']} as compensation"
    if write.name == "book_reservation":
        insurance = "with" if given["insurance"] == "yes" else "without"
        return (
            f"book a {_spaced(given['flight_type'])} trip in {_spaced(given['cabin'])} from "
            f"{given['origin']} to {given['destination']} ({_flights(given['flights'])}) for "
            f"{_people(given['passengers'])} {insurance} insurance, with {_bags(given)}, and pay "
            f"{_payments(write)}"
        )
    which = _reservation(given["reservation_id"], task)
    if write.name == "cancel_reservation":
        return f"cancel {which}"
    if write.name == "update_reservation_passengers":
        return f"have {which} with the passengers {_people(given['passengers'])}"
    pay = _method_words(_customer(write), given["payment_id"])
    if write.name == "update_reservation_baggages":
        return f"have {which} with {_bags(given)}, and use {pay}"
    flights = _flights(given["flights"])
    return f"have {which} in {_spaced(given['cabin'])} with {flights}, and use {pay}"


def lacking(write: Call, message: str) -> list[str]:
    """Return which details of a wanted change a proposal does not contain."""
    said, given = message.lower(), write.arguments
    user = _customer(write)
    wanted: dict[str, bool] = {"action": re.search(_VERBS[write.name], said) is not None}
    for name in ("reservation_id", "origin", "destination"):
        if name in given:
            wanted[name] = given[name].lower() in said
    for name in ("flight_type", "cabin"):
        if name in given:
            wanted[name] = given[name] in said or _spaced(given[name]) in said
    for name in ("amount", "total_baggages", "nonfree_baggages"):
        if name in given:
            wanted[name] = _contains(said, str(given[name]))
    if given.get("insurance") == "yes":
        wanted["insurance"] = "insurance" in said
    for place, flight in enumerate(given.get("flights", ())):
        known = flight["flight_number"].lower() in said or _departure(flight)[:5] in said
        wanted[f"flight {place}"] = known and flight["date"] in said
    for place, person in enumerate(given.get("passengers", ())):
        wanted[f"passenger {place}"] = all(value.lower() in said for value in person.values())
    if "payment_id" in given:
        wanted["payment"] = _names(user, given["payment_id"], said)
    for place, payment in enumerate(given.get("payment_methods", ())):
        amount = _contains(said, str(payment["amount"]))
        wanted[f"payment {place}"] = amount and _names(user, payment["payment_id"], said)
    return [name for name, contained in wanted.items() if not contained]


def _contains(said: str, value: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(value)}(?!\w)", said) is not None


def _spaced(value: str) -> str:
    return value.replace("_", " ")


def _customer(write: Call) -> Record:
    tables = database("airline")
    booked = tables["reservations"].get(str(write.arguments.get("reservation_id")))
    return tables["users"][booked["user_id"] if booked else write.arguments["user_id"]]


def _reservation(key: str, task: Task) -> str:
    if key in f"{task.reason} {task.known} {task.manner}":
        return f"reservation {key}"
    known = database("airline")["reservations"].get(key)
    if known is None:
        return "the reservation that you made"
    return (
        f"the reservation from {known['origin']} to {known['destination']} on "
        f"{known['flights'][0]['date']}"
    )


def _departure(flight: Record) -> str:
    time: str = database("airline")["flights"][flight["flight_number"]][
        "scheduled_departure_time_est"
    ]
    return time


def _flights(flights: list[Record]) -> str:
    known = database("airline")["flights"]
    return " and ".join(
        f"the flight from {known[each['flight_number']]['origin']} to "
        f"{known[each['flight_number']]['destination']} on {each['date']} at "
        f"{_departure(each)[:5]}"
        for each in flights
    )


def _people(people: list[Record]) -> str:
    told = [f"{each['first_name']} {each['last_name']} (born {each['dob']})" for each in people]
    return " and ".join(told)


def _bags(given: Any) -> str:
    return f"{given['total_baggages']} bags, {given['nonfree_baggages']} of them paid"


def _payments(write: Call) -> str:
    user = _customer(write)
    return " and ".join(
        f"${each['amount']} by {_method_words(user, each['payment_id'])}"
        for each in write.arguments["payment_methods"]
    )


def _method_words(user: Record, key: str) -> str:
    method = user["payment_methods"].get(key)
    if method is None:
        return "a payment method that I do not have"
    if method["source"] == "credit_card":
        return f"my {method['brand']} credit card ending in {method['last_four']}"
    return f"my {_spaced(method['source'])} with ${method['amount']:g}"


def _names(user: Record, key: str, said: str) -> bool:
    method = user["payment_methods"].get(key)
    if key in said or method is None:
        return key in said
    if method["source"] == "credit_card":
        return "credit card" in said and method["last_four"] in said
    return _spaced(method["source"]) in said and _contains(said, f"{method['amount']:g}")

"""The tools of the airline domain, as functions of `Records` and plain arguments.

They behave as those of tau2-bench. Writes check everything before they change anything.
"""

from __future__ import annotations

from typing import Any

from gem_tau.data import Record
from gem_tau.records import Records, RefusedError
from gem_tau.tools import (
    Toolbox,
    calculate,
    get_user_details,
    transfer_to_human_agents,
)

TOOLS = Toolbox()
"""The tools by name."""

CABINS = ("basic_economy", "economy", "business")
_NOW = "2024-05-15T15:00:00"
_NEW_RESERVATIONS = ("HATHAT", "HATHAU", "HATHAV")
_NEW_CERTIFICATES = ("certificate_3221322", "certificate_3221323", "certificate_3221324")
_AIRPORTS = {
    "SFO": "San Francisco", "JFK": "New York", "LAX": "Los Angeles", "ORD": "Chicago",
    "DFW": "Dallas", "DEN": "Denver", "SEA": "Seattle", "ATL": "Atlanta", "MIA": "Miami",
    "BOS": "Boston", "PHX": "Phoenix", "IAH": "Houston", "LAS": "Las Vegas", "MCO": "Orlando",
    "EWR": "Newark", "CLT": "Charlotte", "MSP": "Minneapolis", "DTW": "Detroit",
    "PHL": "Philadelphia", "LGA": "LaGuardia",
}  # fmt: skip

TOOLS.add()(get_user_details)


@TOOLS.add()
def get_reservation_details(db: Records, reservation_id: str) -> Record:
    """Get a reservation's flights, passengers, cabin, payments, baggage and insurance."""
    return db.read("reservations", reservation_id)


@TOOLS.add()
def get_flight_status(db: Records, flight_number: str, date: str) -> str:
    """Get the status of a flight on a date (YYYY-MM-DD)."""
    status: str = _instance(db, flight_number, date)["status"]
    return status


@TOOLS.add()
def list_all_airports(db: Records) -> list[Record]:
    """List the codes and cities of all airports."""
    return [{"iata": code, "city": city} for code, city in _AIRPORTS.items()]


@TOOLS.add()
def search_direct_flight(db: Records, origin: str, destination: str, date: str) -> list[Record]:
    """Search for direct flights between two airports (codes) on a date (YYYY-MM-DD)."""
    return _found(db, date, origin, destination)


@TOOLS.add()
def search_onestop_flight(
    db: Records, origin: str, destination: str, date: str
) -> list[list[Record]]:
    """Search for flights with one stop between two airports (codes) on a date (YYYY-MM-DD)."""
    pairs = []
    for first in _found(db, date, origin):
        arrival = first["scheduled_arrival_time_est"]
        later = date
        if "+1" in arrival:
            # As in tau2-bench, whose flights are all in this month.
            if not date[-2:].isdigit():
                continue
            later = f"2024-05-{int(date[-2:]) + 1}"
        pairs += [
            [{**first, "date": date}, {**second, "date": later}]
            for second in _found(db, later, first["destination"], destination, arrival)
        ]
    return pairs


TOOLS.add()(calculate)
TOOLS.add()(transfer_to_human_agents)


@TOOLS.add(writes=True)
def book_reservation(
    db: Records,
    user_id: str,
    origin: str,
    destination: str,
    flight_type: str,
    cabin: str,
    flights: list[Record],
    passengers: list[Record],
    payment_methods: list[Record],
    total_baggages: int,
    nonfree_baggages: int,
    insurance: str,
) -> Record:
    """Book a reservation. flight_type is 'one_way' or 'round_trip', cabin 'basic_economy',
    'economy' or 'business', insurance 'yes' or 'no'. Each flight is {"flight_number", "date"},
    each passenger {"first_name", "last_name", "dob"}, each payment method {"payment_id",
    "amount"}; the amounts must add up to the price."""
    user = db.read("users", user_id)
    _one_of("flight_type", flight_type, ("one_way", "round_trip"))
    _one_of("cabin", cabin, CABINS)
    _one_of("insurance", insurance, ("yes", "no"))
    _rows("flights", flights, "flight_number", "date")
    _rows("passengers", passengers, "first_name", "last_name", "dob")
    _rows("payment_methods", payment_methods, "payment_id", amount="amount")
    seats = len(passengers)
    key = next((each for each in _NEW_RESERVATIONS if not _exists(db, each)), None)
    if key is None:
        raise RefusedError("Too many reservations")
    legs = [_leg(db, each, cabin, seats) for each in flights]
    price = seats * sum(leg["price"] for leg in legs)
    price += 30 * seats * (insurance == "yes") + 50 * nonfree_baggages
    for payment in payment_methods:
        method = user["payment_methods"].get(payment["payment_id"])
        if method is None:
            raise RefusedError(f"Payment method {payment['payment_id']!a:.40} not found")
        if method["source"] != "credit_card" and method["amount"] < payment["amount"]:
            raise RefusedError(f"Not enough balance in payment method {payment['payment_id']}")
    paid = sum(payment["amount"] for payment in payment_methods)
    if paid != price:
        raise RefusedError(
            f"Payment amount does not add up, total price is {price}, but paid {paid}"
        )
    user = db.edit("users", user_id)
    for payment in payment_methods:
        _charge(user, payment["payment_id"], payment["amount"])
        if payment["payment_id"].startswith("certificate"):
            user["payment_methods"].pop(payment["payment_id"], None)
    for leg in legs:
        flight = db.edit("flights", leg["flight_number"])
        flight["dates"][leg["date"]]["available_seats"][cabin] -= seats
    user["reservations"].append(key)
    reservation = {
        "reservation_id": key,
        "user_id": user_id,
        "origin": origin,
        "destination": destination,
        "flight_type": flight_type,
        "cabin": cabin,
        "flights": legs,
        "passengers": [dict(each) for each in passengers],
        "payment_history": [dict(each) for each in payment_methods],
        "created_at": _NOW,
        "total_baggages": total_baggages,
        "nonfree_baggages": nonfree_baggages,
        "insurance": insurance,
    }
    db.add("reservations", key, reservation)
    return reservation


@TOOLS.add(writes=True)
def cancel_reservation(db: Records, reservation_id: str) -> Record:
    """Cancel a whole reservation and refund its payments."""
    reservation = db.edit("reservations", reservation_id)
    payments = reservation["payment_history"]
    payments += [{"payment_id": each["payment_id"], "amount": -each["amount"]} for each in payments]
    reservation["status"] = "cancelled"
    return reservation


@TOOLS.add(writes=True)
def send_certificate(db: Records, user_id: str, amount: int) -> str:
    """Send a travel certificate of an amount in dollars to a user, as compensation."""
    methods = db.read("users", user_id)["payment_methods"]
    key = next((each for each in _NEW_CERTIFICATES if each not in methods), None)
    if key is None:
        raise RefusedError("Too many certificates")
    certificate = {"id": key, "amount": amount, "source": "certificate"}
    db.edit("users", user_id)["payment_methods"][key] = certificate
    return f"Certificate {key} added to user {user_id} with amount {amount}."


@TOOLS.add(writes=True)
def update_reservation_baggages(
    db: Records, reservation_id: str, total_baggages: int, nonfree_baggages: int, payment_id: str
) -> Record:
    """Change the numbers of bags of a reservation; each further bag that is not free costs $50."""
    reservation = db.read("reservations", reservation_id)
    price = 50 * max(0, nonfree_baggages - reservation["nonfree_baggages"])
    _require_payment(db, reservation, payment_id, price)
    reservation = _paid(db, reservation_id, payment_id, price)
    reservation.update(total_baggages=total_baggages, nonfree_baggages=nonfree_baggages)
    return reservation


@TOOLS.add(writes=True)
def update_reservation_flights(
    db: Records, reservation_id: str, cabin: str, flights: list[Record], payment_id: str
) -> Record:
    """Change the flights or the cabin of a reservation. All flights must be listed, as
    {"flight_number", "date"}, those that stay too. The payment method pays the difference."""
    reservation = db.read("reservations", reservation_id)
    _one_of("cabin", cabin, CABINS)
    _rows("flights", flights, "flight_number", "date")
    seats = len(reservation["passengers"])
    legs = []
    for each in flights:
        kept = (
            leg
            for leg in reservation["flights"]
            if cabin == reservation["cabin"]
            and (leg["flight_number"], leg["date"]) == (each["flight_number"], each["date"])
        )
        legs.append(next(kept, None) or _leg(db, each, cabin, seats))
    price = seats * sum(leg["price"] for leg in legs)
    price -= seats * sum(leg["price"] for leg in reservation["flights"])
    _require_payment(db, reservation, payment_id, price)
    reservation = _paid(db, reservation_id, payment_id, price)
    reservation.update(flights=[dict(leg) for leg in legs], cabin=cabin)
    return reservation


@TOOLS.add(writes=True)
def update_reservation_passengers(
    db: Records, reservation_id: str, passengers: list[Record]
) -> Record:
    """Change the passengers of a reservation, {"first_name", "last_name", "dob"} each; their
    number must stay the same."""
    reservation = db.read("reservations", reservation_id)
    _rows("passengers", passengers, "first_name", "last_name", "dob")
    if len(passengers) != len(reservation["passengers"]):
        raise RefusedError("Number of passengers does not match")
    reservation = db.edit("reservations", reservation_id)
    reservation["passengers"] = [dict(each) for each in passengers]
    return reservation


def _exists(db: Records, reservation_id: str) -> bool:
    try:
        db.read("reservations", reservation_id)
    except RefusedError:
        return False
    return True


def _instance(db: Records, flight_number: str, date: str) -> Record:
    """Return a flight on a date."""
    instance: Record | None = db.read("flights", flight_number)["dates"].get(date)
    if instance is None:
        raise RefusedError(f"Flight {flight_number} not found on this date")
    return instance


def _leg(db: Records, flight: Record, cabin: str, seats: int) -> Record:
    """Return a flight as a reservation has it, if it has seats."""
    number, date = flight["flight_number"], flight["date"]
    instance = _instance(db, number, date)
    if instance["status"] != "available":
        raise RefusedError(f"Flight {number} not available on date {date}")
    if instance["available_seats"][cabin] < seats:
        raise RefusedError(f"Not enough seats on flight {number}")
    known = db.read("flights", number)
    return {
        "origin": known["origin"],
        "destination": known["destination"],
        "flight_number": number,
        "date": date,
        "price": instance["prices"][cabin],
    }


def _found(
    db: Records, date: str, origin: str, destination: str | None = None, after: str = ""
) -> list[Record]:
    """Return the available flights of a date."""
    found = []
    for _, flight in db.rows("flights"):
        instance = flight["dates"].get(date)
        if instance is None or instance["status"] != "available" or flight["origin"] != origin:
            continue
        if destination not in (None, flight["destination"]):
            continue
        if flight["scheduled_departure_time_est"] < after:
            continue
        shown = {name: value for name, value in flight.items() if name != "dates"}
        seats = {name: instance[name] for name in ("available_seats", "prices")}
        found.append({**shown, "status": "available", **seats})
    return found


def _require_payment(db: Records, reservation: Record, payment_id: str, price: float) -> None:
    methods = db.read("users", reservation["user_id"])["payment_methods"]
    method = methods.get(payment_id)
    if method is None:
        raise RefusedError("Payment method not found")
    if method["source"] == "certificate":
        raise RefusedError("Certificate cannot be used to update reservation")
    if method["source"] == "gift_card" and method["amount"] < price:
        raise RefusedError("Gift card balance is not enough")


def _paid(db: Records, reservation_id: str, payment_id: str, price: float) -> Record:
    """Return a reservation to change, whose price difference was paid."""
    reservation = db.edit("reservations", reservation_id)
    if price:
        reservation["payment_history"].append({"payment_id": payment_id, "amount": price})
        _charge(db.edit("users", reservation["user_id"]), payment_id, price)
    return reservation


def _charge(user: Record, payment_id: str, amount: float) -> None:
    method = user["payment_methods"].get(payment_id)
    if method is not None and method["source"] == "gift_card":
        method["amount"] -= amount


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise RefusedError(f"{name} must be one of {', '.join(allowed)}")


def _rows(name: str, rows: list[Record], *texts: str, amount: str = "") -> None:
    """Require that objects have exactly these texts, and an integer amount."""
    for row in rows:
        fits = set(row) == {*texts, *filter(None, [amount])}
        fits = fits and all(isinstance(row[each], str) for each in texts)
        value: Any = row.get(amount, 0)
        if not fits or not isinstance(value, int) or isinstance(value, bool):
            needed = ", ".join([*texts, *filter(None, [amount])])
            raise RefusedError(f"Each of {name} must have exactly {needed}")

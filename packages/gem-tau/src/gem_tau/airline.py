"""The environment of the airline domain."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, ClassVar

from gem.parameters import extending
from gem_tau.airline_tools import CABINS, TOOLS
from gem_tau.data import database
from gem_tau.retail import Retail, RetailOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Airline(Retail):
    """TAU-bench airline: reservations, with tools, a policy and a user.

    As `Retail`, with the 50 airline tasks of tau2-bench. All of them have sentences for a judge,
    which is not there: `info["unjudged"]` counts them, and in more than half of the tasks an
    unchanged database is right, so that doing nothing wins those. Read scores on `split="clean"`,
    which leaves them out, or beside that floor (docs/tau.md).
    """

    domain: ClassVar[str] = "airline"

    @extending(Retail, "semantics")
    def __init__(self, **options: Unpack[RetailOptions]) -> None:
        """Store the parameters; see `Retail`.

        Raises:
            ConfigurationError: A value is not allowed.
            DataError: `data` cannot be read.
        """
        super().__init__(**options)

    def _random_arguments(self, name: str, rng: Random) -> dict[str, Any]:
        """Return arguments of a tool, mostly from the records of one user."""
        tables = database("airline")
        own = self.gold.user_id
        user = tables["users"][own if rng.random() < 0.8 else rng.choice(list(tables["users"]))]
        key = rng.choice(user["reservations"] or list(tables["reservations"]))
        booked = tables["reservations"][key]
        flight = rng.choice(booked["flights"])
        method = rng.choice(list(user["payment_methods"]) or ["credit_card_0000000"])
        bags = rng.randint(0, 3)
        values: dict[str, Any] = {
            "amount": 50 * rng.randint(1, 4),
            "cabin": rng.choice(CABINS),
            "date": flight["date"],
            "destination": booked["destination"],
            "expression": f"{rng.randint(1, 99)} + {rng.randint(1, 99)}",
            "flight_number": flight["flight_number"],
            "flight_type": booked["flight_type"],
            "flights": [
                {"flight_number": each["flight_number"], "date": each["date"]}
                for each in booked["flights"]
            ],
            "insurance": rng.choice(("yes", "no")),
            "nonfree_baggages": rng.randint(0, bags),
            "origin": booked["origin"],
            "passengers": booked["passengers"],
            "payment_id": method,
            "payment_methods": [{"payment_id": method, "amount": 100 * rng.randint(1, 9)}],
            "reservation_id": key,
            "summary": "A request.",
            "total_baggages": bags,
            "user_id": user["user_id"],
        }
        return {each: values[each] for each in TOOLS[name].parameters}

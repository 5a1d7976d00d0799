"""TAU-bench airline: tools, floors and the scripted user."""

from __future__ import annotations

import json
from typing import Any

import pytest

import gem
from gem.errors import UnknownParameterError
from gem_check import check_env
from gem_check.playing import oracle_policy, play
from gem_tau.airline_tools import TOOLS
from gem_tau.data import Call, database, tasks
from gem_tau.oracle import proposal, tool_call
from gem_tau.outcome import TRANSFER, chosen, gold
from gem_tau.records import Records, RefusedError
from gem_tau.tools import call

TASKS = tasks(None, "airline")
NOTHING = tool_call(Call(TRANSFER, {"summary": "I give up."}))
# A reservation of one passenger, paid with a gift card.
BOOKED = next(
    each
    for each in database("airline")["reservations"].values()
    if len(each["passengers"]) == 1
    and each["payment_history"][0]["payment_id"].startswith("gift_card")
)


def airline(**params: Any) -> gem.Env:
    return gem.make("tau:Airline-v2", **params)


def played(env: Any, idx: int, left_out: int | None = None) -> dict[str, Any]:
    env.reset(seed=0, idx=idx)
    if left_out is not None:
        env.unwrapped.done.add(left_out)
    while True:
        _, _, terminated, truncated, info = env.step(env.oracle_action())
        if terminated or truncated:
            return dict(info)


def test_the_oracle_wins_all_50_tasks_within_the_policy() -> None:
    env = airline()
    for idx in range(50):
        info = played(env, idx)
        assert info["success"] and info["policy_violations"] == 0, idx


def test_doing_nothing_wins_19_tasks_and_no_clean_one() -> None:
    won = []
    for split in ("base", "clean"):
        env = airline(split=split)
        count = len(chosen(None, split, "airline"))
        won.append(sum(env.reset(seed=0, idx=i) and env.step(NOTHING)[1] for i in range(count)))
    assert won == [19.0, 0.0]


def test_a_message_with_all_numbers_wins_one_more() -> None:
    env, numbers, won = airline(), " ".join(map(str, range(3000))), 0.0
    for idx in range(50):
        env.reset(seed=0, idx=idx)
        _, reward, *ended, _ = env.step(numbers)
        won += reward if any(ended) else env.step(NOTHING)[1]
    assert won == 20.0


def test_an_oracle_without_one_write_fails() -> None:
    env = airline()
    failed = 0
    for idx, task in enumerate(TASKS):
        for place in range(len(gold(task, "fixed").writes)):
            assert not played(env, idx, place)["success"], (task.id, place)
            failed += 1
    assert failed > 40


def test_the_user_agrees_only_to_a_proposal_with_every_detail() -> None:
    env = airline()
    unwrapped: Any = env.unwrapped
    tried = 0
    for idx, task in enumerate(TASKS):
        writes = gold(task, "fixed").writes
        if not writes:
            continue
        env.reset(seed=0, idx=idx)
        env.step("To help you I need your user id.")
        message = proposal(writes[0])
        state = env.snapshot()
        for name in ("reservation_id", "payment_id", "cabin", "flights", "passengers"):
            value = writes[0].arguments.get(name)
            if value is None:
                continue
            hidden = value if isinstance(value, str) else next(iter(value[0].values()))
            env.restore(state)
            env.step(message.replace(hidden, "something"))
            assert 0 not in unwrapped.user.confirmed, (task.id, name)
            tried += 1
        env.restore(state)
        assert env.step(message)[0] == "Yes, please go ahead.", task.id
    assert tried > 40


def test_it_passes_every_check() -> None:
    report = check_env("tau:Airline-v2", episodes=12, cpu_s=0.3)
    assert report.passed and not report.warnings, str(report)


def test_a_booking_takes_seats_money_and_certificates_and_needs_the_exact_price() -> None:
    task = next(task for task in TASKS if task.id == "14")
    [write] = [each for each in gold(task, "fixed").writes if each.name == "book_reservation"]
    given = json.loads(json.dumps(dict(write.arguments)))
    db = Records(domain="airline")
    given["payment_methods"][-1]["amount"] += 1
    with pytest.raises(RefusedError, match="does not add up"):
        call(db, Call(write.name, given), TOOLS)
    assert db.changes == {}
    call(db, write, TOOLS)
    changes = db.changes
    user = changes["users", "mohamed_silva_9265"]
    before = database("airline")["users"]["mohamed_silva_9265"]
    assert user["reservations"] == [*before["reservations"], "HATHAT"]
    assert "certificate_3765853" not in user["payment_methods"]
    flight = changes["flights", "HAT023"]["dates"]["2024-05-26"]["available_seats"]
    old = database("airline")["flights"]["HAT023"]["dates"]["2024-05-26"]["available_seats"]
    assert flight["business"] == old["business"] - 3
    assert changes["reservations", "HATHAT"]["created_at"] == "2024-05-15T15:00:00"


def test_refunds_and_prices_of_changes() -> None:
    db = Records(domain="airline")
    key, user = BOOKED["reservation_id"], BOOKED["user_id"]
    card = BOOKED["payment_history"][0]["payment_id"]
    method = database("airline")["users"][user]["payment_methods"][card]
    bags = {"reservation_id": key, "payment_id": card, "total_baggages": 9}
    paid = BOOKED["nonfree_baggages"] + 1
    if method["amount"] >= 50:
        call(db, Call("update_reservation_baggages", {**bags, "nonfree_baggages": paid}), TOOLS)
        changed = db.read("users", user)["payment_methods"][card]
        assert changed["amount"] == method["amount"] - 50
    with pytest.raises(RefusedError, match="balance is not enough"):
        given = {**bags, "nonfree_baggages": paid + 10**6}
        call(db, Call("update_reservation_baggages", given), TOOLS)
    call(db, Call("cancel_reservation", {"reservation_id": key}), TOOLS)
    cancelled = db.read("reservations", key)
    assert cancelled["status"] == "cancelled"
    assert sum(each["amount"] for each in cancelled["payment_history"]) == 0


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("update_reservation_flights", {"cabin": "first"}, "cabin must be one of"),
        ("update_reservation_flights", {"flights": [{"flight_number": "HAT001"}]}, "exactly"),
        ("update_reservation_flights", {"flights": ["HAT001"]}, "must be a list of objects"),
        ("update_reservation_flights", {"payment_id": "none"}, "Payment method not found"),
        (
            "update_reservation_flights",
            {"flights": [{"flight_number": "HAT001", "date": "2024-05-01"}]},
            "not available",
        ),
        ("update_reservation_passengers", {"passengers": []}, "does not match"),
        ("update_reservation_passengers", {"passengers": [{"first_name": 1}]}, "exactly"),
        ("update_reservation_baggages", {"total_baggages": "2"}, "must be an integer"),
        ("update_reservation_baggages", {"total_baggages": True}, "must be an integer"),
        ("cancel_reservation", {"reservation_id": "NONE00"}, "Reservation not found"),
    ],
)
def test_wrong_arguments_are_refused_and_change_nothing(
    name: str, change: dict[str, Any], told: str
) -> None:
    payment = next(iter(database("airline")["users"][BOOKED["user_id"]]["payment_methods"]))
    values = {
        "reservation_id": BOOKED["reservation_id"],
        "cabin": "economy",
        "flights": [],
        "passengers": BOOKED["passengers"],
        "payment_id": payment,
        "total_baggages": 1,
        "nonfree_baggages": 0,
    }
    given = {each: values[each] for each in TOOLS[name].parameters} | change
    db = Records(domain="airline")
    with pytest.raises(RefusedError, match=told):
        call(db, Call(name, given), TOOLS)
    assert db.changes == {}


def test_searches_find_connections_that_wait_for_the_first_flight() -> None:
    db = Records(domain="airline")
    given = {"origin": "JFK", "destination": "SEA", "date": "2024-05-20"}
    pairs = json.loads(call(db, Call("search_onestop_flight", given), TOOLS))
    assert pairs
    for first, second in pairs:
        assert (first["origin"], second["destination"]) == ("JFK", "SEA")
        assert first["destination"] == second["origin"]
        assert first["scheduled_arrival_time_est"] <= second["scheduled_departure_time_est"]
    for each in json.loads(call(db, Call("search_direct_flight", given), TOOLS)):
        assert (each["origin"], each["destination"]) == ("JFK", "SEA")


def test_it_has_no_parameter_without_effect() -> None:
    with pytest.raises(UnknownParameterError, match="semantics"):
        airline(semantics="upstream")


def test_an_episode_is_the_same_again() -> None:
    env = airline()
    one, two = (play(env, oracle_policy, 40, 3) for _ in range(2))
    assert one.observations == two.observations

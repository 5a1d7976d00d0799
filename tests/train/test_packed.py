"""Episodes as bytes: nothing changes on the way, and what is damaged is refused."""

from __future__ import annotations

import logging
import math
import pickle
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gem.blame import CAUSES
from gem.errors import ConfigurationError
from gem.tasks import Task
from gem.trajectory import Drift, Failure, Image, Trajectory, Turn
from gem_train.experiment.metrics import episode_metrics
from gem_train.packed import (
    MOST_BYTES,
    SAMPLED,
    PackedTrajectory,
    Selection,
    check_record,
    unpacked,
)
from gem_train.testing.golden import golden_batch, golden_turn_rows

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=8)
"""Surrogates included."""
IDS = st.lists(st.integers(0, 2**31 - 1), max_size=6)
FLOATS = st.floats(width=32) | st.floats()
SCALARS = st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | ANY_TEXT
PARTS = st.lists(
    ANY_TEXT.map(lambda text: {"type": "text", "text": text})
    | st.just({"type": "image", "blake2b": "00ff"}),
    min_size=1,
    max_size=3,
)
OBSERVATIONS = ANY_TEXT | PARTS


IMAGES = st.sampled_from([Image("00ff", 9, b"a file"), Image("01", 4, b"another"), Image("02", 1)])


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    response = draw(IDS)
    n = len(response)
    return Turn(
        observation=draw(OBSERVATIONS),
        context_ids=draw(IDS),
        fresh=draw(st.booleans()),
        response_ids=response,
        logprobs=draw(st.none() | st.lists(FLOATS, min_size=n, max_size=n)),
        text=draw(ANY_TEXT),
        reward=draw(st.floats(-1e100, 1e100)),
        terminated=draw(st.booleans()),
        truncated=draw(st.booleans()),
        stop_reason=draw(st.sampled_from(["stop", "length"])),
        info=draw(st.dictionaries(ANY_TEXT, SCALARS, max_size=3)),
        images=tuple(draw(st.lists(IMAGES, max_size=2))),
    )


FAILURES = st.builds(Failure, st.sampled_from(sorted(CAUSES)), ANY_TEXT, st.integers(1, 9))
DRIFTS = st.builds(Drift, st.sampled_from(["tokens", "text"]), st.integers(0), st.integers(0))
VERSIONS = st.tuples(st.integers(0), st.integers(0))
TRAJECTORIES = st.builds(
    Trajectory,
    task=st.builds(
        Task, ANY_TEXT, st.integers(), st.dictionaries(ANY_TEXT, SCALARS | st.lists(SCALARS))
    ),
    turns=st.lists(turns(), max_size=4),
    group=st.integers(0, 9),
    end=st.sampled_from(["terminated", "truncated", "turn_budget", "token_budget", "failed"]),
    final_observation=st.none() | OBSERVATIONS,
    failure=st.none() | FAILURES,
    drift=st.lists(DRIFTS, max_size=2),
    policy_version=st.none() | VERSIONS,
)


def exact(value: Any) -> str:
    """Text in which NaN equals itself, and 0.0 neither -0.0 nor 0."""
    return repr(value)


@given(TRAJECTORIES)
def test_an_episode_is_the_same_afterwards(trajectory: Trajectory) -> None:
    packed = PackedTrajectory.of(trajectory)
    for way in (
        packed,
        PackedTrajectory.from_bytes(packed.data),
        PackedTrajectory.from_text(packed.text),
        pickle.loads(pickle.dumps(packed)),
    ):
        assert exact(way.unpack()) == exact(trajectory)
    assert unpacked(trajectory) is trajectory


@given(TRAJECTORIES)
def test_numbers_are_there_without_the_tokens(trajectory: Trajectory) -> None:
    packed = PackedTrajectory.from_bytes(PackedTrajectory.of(trajectory).head)
    names = [name for name in vars(packed) if name not in ("layout", "data")]
    for name in [*names, "valid", "total_reward"]:
        assert exact(getattr(packed, name)) == exact(getattr(trajectory, name)), name
    assert exact(episode_metrics([packed])) == exact(episode_metrics([trajectory]))
    with pytest.raises(ConfigurationError, match="only the numbers are there"):
        packed.unpack()


@given(TRAJECTORIES)
def test_rows_of_arrays_are_those_of_lists(trajectory: Trajectory) -> None:
    rows = PackedTrajectory.of(trajectory).training_rows()
    values = [float(i) for i in range(len(trajectory.turns))]
    for row, wanted in zip(rows, trajectory.training_rows(), strict=True):
        for name in ("ids", "prompt_ids", "response_ids", "mask"):
            assert getattr(row, name).tolist() == getattr(wanted, name), name
        assert row.spans == wanted.spans
        assert row.states == wanted.states
        assert row.spread(values) == wanted.spread(values)
        assert row.token_rewards(values) == wanted.token_rewards(values)
        known = None if row.logprobs is None else row.logprobs.tolist()
        assert exact(known) == exact(wanted.logprobs)
        assert [(i, i.data) for i in row.images] == [(i, i.data) for i in wanted.images]


def test_log_probabilities_take_four_bytes_where_that_changes_none() -> None:
    [turn, *_] = golden_batch()[0].turns
    sizes = []
    for value in (-0.5, -0.1, float(np.float32(-0.1)), math.nan, -math.inf):
        logprobs = [value] * len(turn.response_ids)
        trajectory = Trajectory(Task("a", 0), [replace(turn, logprobs=logprobs)])
        packed = PackedTrajectory.of(trajectory)
        sizes.append(packed.layout["wide"])
        assert exact(packed.unpack()) == exact(trajectory)
    assert sizes == [False, True, False, False, False]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda data: b"", "not a packed episode"),
        (lambda data: b'{"task": 1}' * 9, "not a packed episode"),
        (lambda data: data[:20], "not a packed episode|cut off"),
        (lambda data: data[:60], "cut off"),
        (lambda data: data[:-1], "cut off"),
        (lambda data: data + b"0", "cut off"),
        (lambda data: data[:4] + b"\x02" + data[5:], "reads up to 1"),
        (lambda data: data[:50] + b"?" + data[51:], "checksum"),
    ],
)
def test_what_is_no_whole_episode_is_refused(change: Any, problem: str) -> None:
    packed = PackedTrajectory.of(golden_batch()[0])
    with pytest.raises(ConfigurationError, match=problem):
        PackedTrajectory.from_bytes(change(packed.data))


def test_damage_of_the_body_is_found_where_it_is_decoded() -> None:
    packed = PackedTrajectory.of(golden_batch()[0])
    for place in (len(packed.head), len(packed.data) - 1):
        data = bytearray(packed.data)
        data[place] ^= 1
        damaged = PackedTrajectory.from_bytes(bytes(data))
        assert damaged.rewards == packed.rewards
        with pytest.raises(ConfigurationError, match="damaged"):
            damaged.unpack()


@pytest.mark.parametrize("text", ["", "é", "not base64!", "AAAA"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="not a packed episode"):
        PackedTrajectory.from_text(text)


@pytest.mark.parametrize("ids", [[2**31], [-(2**31) - 1], [1.5], ["a"]])
def test_an_id_that_is_no_int32_is_refused(ids: list[Any]) -> None:
    trajectory = golden_batch()[0]
    trajectory.turns[0] = replace(trajectory.turns[0], context_ids=ids)
    with pytest.raises(ConfigurationError, match="cannot be packed"):
        PackedTrajectory.of(trajectory)


@pytest.mark.parametrize("batch", [golden_batch(), golden_turn_rows()])
def test_the_size_in_json_is_known_beforehand(batch: list[Trajectory]) -> None:
    for trajectory in batch:
        turns = [
            replace(
                turn,
                response_ids=[100_000 + i for i in range(5_000)],
                logprobs=[float(np.float32(-1 / (i + 3))) for i in range(5_000)],
            )
            for turn in trajectory.turns
        ]
        trajectory = replace(trajectory, turns=turns)
        assert trajectory.json_bytes == pytest.approx(len(trajectory.to_json()), rel=0.15)


class Heavy:
    """An episode of which only the size is known."""

    def __init__(self, json_bytes: int) -> None:
        self.json_bytes = json_bytes


@pytest.mark.parametrize("environments", [2, 3, 4, 8])
def test_a_sample_of_an_interleaved_mixture_has_all_of_its_environments(environments: int) -> None:
    batch: Any = [Heavy(1)] * (32 * environments)
    counts = Counter(index % environments for index in Selection("sample:32").of(batch))
    assert len(counts) == environments
    assert max(counts.values()) < 2 * 32 / environments + 4


def test_a_sample_depends_on_the_size_of_the_batch_alone_and_is_in_order() -> None:
    batch: Any = [Heavy(1)] * 10
    chosen = list(Selection("sample:5").of(batch))
    assert list(Selection("sample:5").of(batch)) == chosen == sorted(set(chosen))
    assert len(chosen) == 5
    assert set(Selection("sample:3").of(batch)) < set(chosen)
    for record in ("sample:10", "sample:11", "all", None):
        assert list(Selection(record).of(batch)) == list(range(10))
    assert list(Selection("metrics").of(batch)) == []
    assert list(Selection("sample:3").of([])) == []


def test_a_large_batch_is_sampled_and_that_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    selection = Selection()
    small: Any = [Heavy(MOST_BYTES // 32)] * 32
    large: Any = [Heavy(MOST_BYTES // 32 + 1)] * 32
    with caplog.at_level(logging.WARNING):
        found = [len(selection.of(batch)) for batch in (small, large, small, large)]
    assert found == [32, SAMPLED, 32, SAMPLED]
    [said] = caplog.messages
    assert "32 episodes" in said and "record=all" in said and "GEM_RECORD" in said
    assert len(Selection("all").of(large)) == 32


def test_the_environment_says_what_is_recorded_where_no_setting_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch: Any = [Heavy(1)] * 4
    monkeypatch.setenv("GEM_RECORD", "sample:2")
    assert len(Selection().of(batch)) == 2
    assert len(Selection("all").of(batch)) == 4
    monkeypatch.setenv("GEM_RECORD", "some")
    with pytest.raises(ConfigurationError, match="'sample:<n>' with n from 1, got 'some'"):
        Selection()


@pytest.mark.parametrize("record", ["", "sample", "sample:", "sample:0", "sample:-1", "ALL", "8"])
def test_other_ways_to_record_are_refused(record: str) -> None:
    with pytest.raises(ConfigurationError, match="must be 'all', 'metrics' or"):
        check_record(record)

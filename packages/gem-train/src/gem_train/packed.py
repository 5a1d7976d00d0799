"""Episodes as bytes, for their way from the process that plays them to the one that trains.

- `PackedTrajectory`: the numbers of an episode, ready to be read, beside its tokens and text, which
  are decoded only when they are asked for.
- `PackedRow`: a training row whose tokens are arrays; its ids are a view of the bytes.
- `Selection`: which episodes of a batch are recorded (`record`); `check_record` checks its value.

The bytes begin with a magic number, the version of the format, checksums and lengths (`_HEAD`). The
numbers follow as JSON, then the body: ids as int32 in the order of the episode, log-probabilities
as float32 (as float64 if float32 would change one), all text as JSON compressed by zlib, and the
images that were in prompts, each once. No mask is stored: the lengths of the turns say which tokens
were sampled.
"""

from __future__ import annotations

import json
import logging
import os
import struct
import zlib
from array import array
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate, chain, pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gem.errors import ConfigurationError
from gem.fingerprint import canonical
from gem.seeding import stream
from gem.tasks import Task
from gem.trajectory import (
    Drift,
    EpisodeEnd,
    Failure,
    Image,
    Trajectory,
    Turn,
    TurnsInRow,
    TurnSpan,
    of_match,
)

logger = logging.getLogger(__name__)

VARIABLE = "GEM_RECORD"
"""Environment variable: which episodes are recorded, where no setting says it."""
MOST_BYTES = 100_000_000
"""Size of the largest batch that a record keeps as a whole unless it is told what to keep."""
SAMPLED = 16
"""Number of episodes that it keeps of a larger batch."""
_SAMPLE_SEED = 17
"""Any other would do."""

_LARGE = (
    "%d episodes take about %.0f MB of the record: %d of them are written, as of every batch above "
    "%.0f MB. record=all keeps all, record=metrics none, record=%s says so and is not reported; "
    "without such a setting GEM_RECORD says it"
)
_HEAD = struct.Struct("<4sHIIII")
"""Magic number, version, checksums of numbers and body, lengths of numbers and body."""
_MAGIC, _VERSION = b"GEMT", 1
_NUMBERS = (
    "group",
    "end",
    "rewards",
    "success",
    "format_error",
    "numbers",
    "length_stops",
    "drifted",
    "sampled_tokens",
    "json_bytes",
    "policy_version",
)
"""Attributes of a trajectory that are stored as they are."""
_TURN = ("text", "terminated", "truncated", "stop_reason", "info")
"""Attributes of a turn that are stored with the text."""


@dataclass
class PackedRow(TurnsInRow):
    """A training row; `gem.trajectory.TrainingRow` has lists for its arrays."""

    ids: NDArray[np.int32]
    """Prompt and response."""
    prompt_ids: NDArray[np.int32]
    """The prompt before the first sampled token; a part of `ids`."""
    response_ids: NDArray[np.int32]
    """Sampled tokens and, between them, environment tokens; a part of `ids`."""
    spans: list[TurnSpan]
    """The turns of this row, in order."""
    sampled: NDArray[np.floating[Any]] | None
    """Sampling log-probabilities, `[sampled tokens]`; None if any turn has none."""
    images: list[Image] = field(default_factory=list)
    """Images whose tokens are in this row, in order."""

    @property
    def mask(self) -> NDArray[np.bool_]:
        """1 on sampled tokens, 0 on environment tokens, `[response]`."""
        mask = np.zeros(len(self.response_ids), np.bool_)
        for span in self.spans:
            mask[span.start : span.end] = True
        return mask

    @property
    def logprobs(self) -> NDArray[np.floating[Any]] | None:
        """Sampling log-probabilities, 0.0 on environment tokens; None if any turn has none."""
        if self.sampled is None:
            return None
        mask = self.mask
        logprobs = np.zeros(len(mask), self.sampled.dtype)
        logprobs[mask] = self.sampled
        return logprobs


@dataclass
class PackedTrajectory:
    """An episode as bytes, with the attributes of `Trajectory` that are numbers.

    Processes may hand it to each other as it is (pickled), as `data`, or as `text`.
    """

    task: Task
    group: int
    end: EpisodeEnd
    failure: Failure | None
    rewards: list[float]
    success: bool
    format_error: bool
    numbers: dict[str, float]
    length_stops: int
    drifted: bool
    sampled_tokens: int
    json_bytes: int
    policy_version: tuple[int, int] | None
    layout: dict[str, Any]
    """Of each turn: whether it is `fresh`, the number of its `context` and `response` tokens,
    whether it has `logprobs`; and `wide`, whether log-probabilities are float64. With images also
    `files`: of each different one its hash, tokens and bytes; and `shown`: of each turn which."""
    data: bytes = field(repr=False)
    """All bytes, or those of the numbers only (`head`)."""
    agent: str | None = None
    match: str | None = None

    @classmethod
    def of(cls, trajectory: Trajectory) -> PackedTrajectory:
        """Pack an episode; it holds each image that was in a prompt once.

        Raises:
            ConfigurationError: A token id is no int32, or JSON cannot represent a parameter or an
                info.
        """
        try:
            return cls.from_bytes(_encoded(trajectory))
        except (OverflowError, TypeError, ValueError) as error:
            raise ConfigurationError(
                f"the episode of {trajectory.task} cannot be packed: {error}"
            ) from error

    @classmethod
    def from_bytes(cls, data: bytes) -> PackedTrajectory:
        """Read `data`, or `head`, of which only the numbers are decoded.

        Raises:
            ConfigurationError: It is something else, of a newer version, cut off or damaged.
        """
        start = _HEAD.size
        if len(data) < start or data[:4] != _MAGIC:
            raise ConfigurationError(f"not a packed episode: it begins with {bytes(data[:16])!r}")
        _, version, checksum, _, numbers, body = _HEAD.unpack_from(data)
        if version > _VERSION:
            raise ConfigurationError(
                f"a packed episode of version {version}: this version of gem-core reads up to "
                f"{_VERSION}"
            )
        whole = start + numbers + body
        if len(data) not in (start + numbers, whole):
            raise ConfigurationError(
                f"a packed episode is cut off: {len(data):,} of {whole:,} bytes are there"
            )
        text = data[start : start + numbers]
        if zlib.crc32(text) != checksum:
            raise ConfigurationError("a packed episode is damaged: its checksum is another")
        known = json.loads(text)
        failure, policy = known["failure"], known["policy_version"]
        known["task"] = Task.from_dict(known["task"])
        known["failure"] = None if failure is None else Failure.from_dict(failure)
        known["policy_version"] = None if policy is None else (policy[0], policy[1])
        return cls(**known, data=bytes(data))

    @property
    def valid(self) -> bool:
        """Whether the episode did not fail."""
        return self.failure is None

    @property
    def environment(self) -> str:
        """Name of its environment in a run of several; else empty."""
        return self.task.name

    @property
    def total_reward(self) -> float:
        """Undiscounted return."""
        return sum(self.rewards)

    @property
    def head(self) -> bytes:
        """The bytes of the numbers, from which `from_bytes` makes an episode without tokens."""
        return self.data[: _HEAD.size + _HEAD.unpack_from(self.data)[4]]

    @property
    def text(self) -> str:
        """The bytes as ASCII text, a third longer."""
        return b64encode(self.data).decode()

    @classmethod
    def from_text(cls, text: str) -> PackedTrajectory:
        """Read `text`.

        Raises:
            ConfigurationError: It is something else; see also `from_bytes`.
        """
        try:
            data = b64decode(text, validate=True)
        except ValueError as error:
            raise ConfigurationError(f"not a packed episode: {text:.40}") from error
        return cls.from_bytes(data)

    def training_rows(self) -> list[PackedRow]:
        """Return the training rows; a failed episode has none. See `Trajectory.training_rows`.

        Raises:
            ConfigurationError: Only the numbers are there.
        """
        rows: list[PackedRow] = []
        if not self.valid or not self.rewards:
            return rows
        ids, logprobs, _ = self._arrays()
        edges, known = self._edges()
        images = self._images() if "files" in self.layout else None
        begins = [turn for turn, fresh in enumerate(self.layout["fresh"]) if fresh or not turn]
        for begin, end in pairwise([*begins, len(self.rewards)]):
            first, zero, last = edges[2 * begin], edges[2 * begin + 1], edges[2 * end]
            turns = range(begin, end)
            spans = [TurnSpan(i, edges[2 * i + 1] - zero, edges[2 * i + 2] - zero) for i in turns]
            complete = all(self.layout["logprobs"][begin:end])
            sampled = logprobs[known[begin] : known[end]] if complete else None
            shown = [] if images is None else [*chain.from_iterable(images[begin:end])]
            row = ids[first:last], ids[first:zero], ids[zero:last]
            rows.append(PackedRow(*row, spans, sampled, shown))
        return rows

    def unpack(self) -> Trajectory:
        """Decode the whole episode.

        Raises:
            ConfigurationError: Only the numbers are there, or the bytes are damaged.
        """
        ids, logprobs, text = self._arrays()
        if zlib.crc32(memoryview(self.data)[len(self.head) :]) != _HEAD.unpack_from(self.data)[3]:
            raise ConfigurationError(
                f"the packed episode of {self.task} is damaged: its checksum is another"
            )
        said = json.loads(zlib.decompress(text))
        edges, known = self._edges()
        images = self._images()
        turns = [
            Turn(
                context_ids=ids[edges[2 * i] : edges[2 * i + 1]].tolist(),
                fresh=self.layout["fresh"][i],
                response_ids=ids[edges[2 * i + 1] : edges[2 * i + 2]].tolist(),
                logprobs=logprobs[known[i] : known[i + 1]].tolist()
                if self.layout["logprobs"][i]
                else None,
                reward=self.rewards[i],
                images=images[i],
                **turn,
            )
            for i, turn in enumerate(said["turns"])
        ]
        return Trajectory(
            task=self.task,
            turns=turns,
            group=self.group,
            end=self.end,
            final_observation=said["final_observation"],
            failure=self.failure,
            drift=[Drift(**drift) for drift in said["drift"]],
            policy_version=self.policy_version,
            agent=self.agent,
            match=self.match,
        )

    def _edges(self) -> tuple[list[int], list[int]]:
        """Return where prompt and response of each turn begin in the ids, with the end of the last,
        `[2 * turns + 1]`; and where its log-probabilities do, `[turns + 1]`."""
        lengths, responses = self.layout["context"], self.layout["response"]
        both = chain.from_iterable(zip(lengths, responses, strict=True))
        known = (n * has for n, has in zip(responses, self.layout["logprobs"], strict=True))
        return list(accumulate(both, initial=0)), list(accumulate(known, initial=0))

    def _arrays(self) -> tuple[NDArray[Any], NDArray[Any], memoryview]:
        """Return ids, log-probabilities and the compressed text."""
        start = len(self.head)
        if start == len(self.data):
            raise ConfigurationError(f"of the episode of {self.task} only the numbers are there")
        edges, known = self._edges()
        ids = np.frombuffer(self.data, "<i4", edges[-1], start)
        kind = "<f8" if self.layout["wide"] else "<f4"
        logprobs = np.frombuffer(self.data, kind, known[-1], start + ids.nbytes)
        text = start + ids.nbytes + logprobs.nbytes
        end = len(self.data) - sum(size for *_, size in self.layout.get("files", ()))
        return ids, logprobs, memoryview(self.data)[text:end]

    def _images(self) -> list[tuple[Image, ...]]:
        """Return the images of each turn, `[turns]`; equal ones share their bytes."""
        if "files" not in self.layout:
            return [()] * len(self.rewards)
        files = self.layout["files"]
        ends = list(accumulate((size for *_, size in files), initial=0))
        begin = len(self.data) - ends[-1]
        images = [
            Image(digest, tokens, self.data[begin + start : begin + end])
            for (digest, tokens, _), (start, end) in zip(files, pairwise(ends), strict=True)
        ]
        return [tuple(images[place] for place in places) for places in self.layout["shown"]]


Played: TypeAlias = Trajectory | PackedTrajectory
"""A played episode whose numbers can be read."""


def unpacked(trajectory: Played) -> Trajectory:
    """Return an episode with its turns."""
    return trajectory if isinstance(trajectory, Trajectory) else trajectory.unpack()


def check_record(record: str | None) -> None:
    """Raise `ConfigurationError` unless `record` is `all`, `metrics`, `sample:<n>` or None."""
    sample, _, n = (record or "all").partition(":")
    if record not in (None, "all", "metrics") and not (
        sample == "sample" and n.isdecimal() and int(n)
    ):
        raise ConfigurationError(
            f"must be 'all', 'metrics' or 'sample:<n>' with n from 1, got {record!r}"
        )


class Selection:
    """Which episodes of a batch are recorded."""

    def __init__(self, record: str | None = None) -> None:
        """Decide what to keep.

        Args:
            record: `all`; `metrics`: none; `sample:<n>`: n of every batch. None is what the
                environment variable `GEM_RECORD` says, without it `all` of a batch that takes at
                most `MOST_BYTES` as JSON, else `sample:<SAMPLED>`.

        Raises:
            ConfigurationError: `GEM_RECORD` is something else.
        """
        self._record = record or os.environ.get(VARIABLE)
        self._said = False
        check_record(self._record)

    def of(self, batch: Sequence[Played]) -> Sequence[int]:
        """Return which episodes of a batch are kept, by index.

        A sample is pseudo-random, since a regular one of a mixture may be of one environment. Of
        two batches of one size it has the same indices.
        """
        total, record = len(batch), self._record
        if record is None and (size := sum(each.json_bytes for each in batch)) > MOST_BYTES:
            record = f"sample:{SAMPLED}"
            if not self._said:
                self._said = True
                logger.warning(_LARGE, total, size / 1e6, SAMPLED, MOST_BYTES / 1e6, record)
        if record in (None, "all"):
            return range(total)
        if record == "metrics":
            return []
        order = list(range(total))
        stream(_SAMPLE_SEED).shuffle(order)
        return sorted(order[: int(record.partition(":")[2])])


def _encoded(trajectory: Trajectory) -> bytes:
    turns, failure = trajectory.turns, trajectory.failure
    ids, logprobs = array("i"), array("d")
    for turn in turns:
        # Lists are copied as they are: an item that is no such number raises.
        for part in (turn.context_ids, turn.response_ids):
            ids.fromlist(part) if isinstance(part, list) else ids.extend(part)
        logprobs.extend(turn.logprobs or ())
    wide = np.frombuffer(logprobs, np.float64)
    with np.errstate(over="ignore"):
        narrow = wide.astype("<f4")
    exact = np.array_equal(narrow, wide, equal_nan=True)
    said = {
        "turns": [
            {"observation": canonical(turn.observation), **{k: getattr(turn, k) for k in _TURN}}
            for turn in turns
        ],
        "final_observation": None
        if trajectory.final_observation is None
        else canonical(trajectory.final_observation),
        "drift": [asdict(drift) for drift in trajectory.drift],
    }
    files = {image.digest: image for turn in turns for image in turn.images}
    numbers = {
        **{name: getattr(trajectory, name) for name in _NUMBERS},
        **of_match(trajectory),
        "task": trajectory.task.to_dict(),
        "failure": None if failure is None else asdict(failure),
        "layout": {
            "fresh": [turn.fresh for turn in turns],
            "context": [len(turn.context_ids) for turn in turns],
            "response": [len(turn.response_ids) for turn in turns],
            "logprobs": [turn.logprobs is not None for turn in turns],
            "wide": not exact,
            **_layout(files, turns),
        },
    }
    head = json.dumps(numbers, separators=(",", ":")).encode()
    body = b"".join(
        (
            np.frombuffer(ids, np.intc).astype("<i4").tobytes(),
            (narrow if exact else wide.astype("<f8")).tobytes(),
            # Level 1: text shrinks to less than half, in the least time.
            zlib.compress(json.dumps(said, separators=(",", ":")).encode(), 1),
            *(image.data for image in files.values()),
        )
    )
    checksums = zlib.crc32(head), zlib.crc32(body)
    return _HEAD.pack(_MAGIC, _VERSION, *checksums, len(head), len(body)) + head + body


def _layout(files: Mapping[str, Image], turns: Sequence[Turn]) -> dict[str, Any]:
    """Return where the images of an episode are; nothing if it has none."""
    if not files:
        return {}
    places = {digest: place for place, digest in enumerate(files)}
    return {
        "files": [[image.digest, image.tokens, len(image.data)] for image in files.values()],
        "shown": [[places[image.digest] for image in turn.images] for turn in turns],
    }

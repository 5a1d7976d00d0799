"""The results of a rollout: turns, trajectories and the training rows made from them.

- `Turn`: one exchange: observation, exact token ids, reward.
- `Image`: an image that a policy was shown.
- `Failure`: why an episode does not count, and its cause (never the policy).
- `Drift`: where an append-only token stream differs from a fresh rendering of the conversation.
- `Trajectory`: one episode; `training_rows()` makes its training rows, `to_json` a line of text
  (`gem_train.packed` has a compact form).
- `TrainingRow`: prompt, response, mask, log-probs and the position of each turn.
- `turn_table`: converts trajectories to the table that `gem.advantage` works on.

`gem.rollout` makes trajectories; adapters train on them.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from gem.blame import CAUSES, Cause
from gem.contract import succeeded
from gem.core import Observation
from gem.errors import ConfigurationError, DataError
from gem.fingerprint import Fingerprint, canonical, fingerprint
from gem.json_lines import parse_as
from gem.tasks import Task

if TYPE_CHECKING:
    from gem.advantage import TurnTable

StopReason: TypeAlias = Literal["stop", "length"]
"""Why sampling a turn ended: the model closed its turn, or a token limit cut it (or the rollout,
before a token that stands for an image)."""

EpisodeEnd: TypeAlias = Literal["terminated", "truncated", "turn_budget", "token_budget", "failed"]
"""Why an episode ended: the first two by the environment, the next two by the rollout's budget.

All but `failed` are valid episodes, with the rewards so far."""

_TURN_BYTES, _ID_BYTES, _LOGPROB_BYTES = 250, 6, 22
"""Usual lengths in JSON: of a turn without text and tokens, an id, a log-probability."""


@dataclass(frozen=True)
class Image:
    """An image that a policy was shown."""

    digest: str
    """Its hash, which stands for it in records (`gem.fingerprint.canonical`)."""
    tokens: int
    """Number of tokens that it has in a row."""
    data: bytes = field(default=b"", repr=False, compare=False)
    """A file (PNG, JPEG) as the engine and the trainer read it; empty if it comes from JSON."""


@dataclass(frozen=True)
class Turn:
    """One exchange between environment and policy."""

    observation: Observation
    """Observation that the policy responded to."""
    context_ids: list[int]
    """Prompt tokens this turn added: the whole prompt if `fresh`, else those after the last
    response."""
    fresh: bool
    """The prompt starts anew instead of extending the previous prompt and response."""
    response_ids: list[int]
    """Token ids exactly as sampled; may be empty."""
    logprobs: list[float] | None
    """Sampling log-probability of each response token; None if the engine reported none."""
    text: str
    """The response as given to `step`: decoded without control tokens and, where the model's
    template knows thinking, without that (empty if it never ends). The whole reply is in
    `response_ids`, which `ChatFormat.decode` decodes."""
    reward: float
    terminated: bool
    truncated: bool
    stop_reason: StopReason
    info: dict[str, Any] = field(default_factory=dict)
    """Entries of the environment's info that JSON can represent: None, booleans, numbers, text;
    NumPy scalars as Python's."""
    images: tuple[Image, ...] = ()
    """Images whose tokens are in `context_ids`, in order."""


@dataclass(frozen=True)
class Failure:
    """Why an episode is excluded from all statistics and gradients."""

    cause: Cause
    """One of `gem.blame.CAUSES`; of several attempts, the cause of the last one."""
    message: str
    attempts: int
    """Number of attempts, each with a new environment."""

    def __str__(self) -> str:
        return f"{self.cause}: {self.message}"

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Failure:
        """Rebuild from `dataclasses.asdict`.

        Raises:
            KeyError, TypeError: A field is missing or unknown, or the cause is unknown.
        """
        failure = cls(**data)
        if failure.cause not in CAUSES:
            raise KeyError(failure.cause)
        return failure


@dataclass(frozen=True)
class Drift:
    """A place where re-rendering the conversation would not give the tokens that were used."""

    kind: Literal["tokens", "text"]
    """`tokens`: the same text encodes to tokens other than those sampled. `text`: the template
    renders earlier messages differently (it drops earlier thinking, for instance)."""
    turn: int
    """Index of the turn with the first difference."""
    position: int
    """Index of the first differing token."""


@dataclass(frozen=True)
class TurnSpan:
    """Position of a turn's sampled tokens in a row's response: `[start, end)`, may be empty."""

    turn: int
    start: int
    end: int


class TurnsInRow:
    """What a training row does with values of turns: all that needs spans and lengths only."""

    prompt_ids: Any
    """The prompt before the first sampled token, `[prompt]`."""
    response_ids: Any
    """Sampled tokens and, between them, environment tokens, `[response]`."""
    spans: list[TurnSpan]
    """The turns of this row, in order."""

    @property
    def states(self) -> list[tuple[int, int]]:
        """For each turn of this row: its index, and the index in `ids` of the last token before."""
        before = len(self.prompt_ids) - 1
        return [(span.turn, before + span.start) for span in self.spans]

    def spread(self, per_turn: Sequence[float] | Mapping[int, float]) -> list[float]:
        """Return each turn's value on all of its sampled tokens, 0.0 elsewhere, `[response]`.

        Args:
            per_turn: One value per turn of the whole episode.
        """
        out = [0.0] * len(self.response_ids)
        for span in self.spans:
            out[span.start : span.end] = [float(per_turn[span.turn])] * (span.end - span.start)
        return out

    def token_rewards(self, per_turn: Sequence[float]) -> list[float]:
        """Return each turn's reward on its last sampled token, 0.0 elsewhere, `[response]`.

        The reward of an empty turn goes on the next token, or on the last one of the row. Rewards
        of several turns on one token add up. A row with an empty response has no token for a
        reward (`reward_left`); its turn is in `turn_table` all the same.

        Args:
            per_turn: One reward per turn of the whole episode.
        """
        out = [0.0] * len(self.response_ids)
        for span in self.spans:
            place = span.end - 1 if span.end > span.start else span.start
            if out:
                out[min(place, len(out) - 1)] += float(per_turn[span.turn])
        return out

    def reward_left(self, per_turn: Sequence[float]) -> float:
        """Return the reward that `token_rewards` cannot place: 0 unless the response is empty.

        Together they are the sum of the turns' rewards. An empty turn is a row with an empty
        response where every turn has a new prompt (context `concat`, for instance).

        Args:
            per_turn: One reward per turn of the whole episode.
        """
        if len(self.response_ids):
            return 0.0
        return sum(float(per_turn[span.turn]) for span in self.spans)


@dataclass
class TrainingRow(TurnsInRow):
    """One training row; `response_ids`, `mask` and `logprobs` have one entry per token."""

    prompt_ids: list[int]
    """The prompt before the first sampled token."""
    response_ids: list[int]
    """Sampled tokens and, between them, environment tokens."""
    mask: list[int]
    """1 on sampled tokens, 0 on environment tokens."""
    logprobs: list[float] | None
    """Sampling log-probabilities, 0.0 on environment tokens; None if any turn has none."""
    spans: list[TurnSpan]
    """The turns of this row, in order."""
    images: list[Image] = field(default_factory=list)
    """Images whose tokens are in this row, in order."""

    @property
    def ids(self) -> list[int]:
        """Prompt and response."""
        return self.prompt_ids + self.response_ids

    def _append(self, ids: list[int], mask: int, logprobs: list[float] | None) -> None:
        self.response_ids.extend(ids)
        self.mask.extend([mask] * len(ids))
        if self.logprobs is None or logprobs is None:
            self.logprobs = None
        else:
            self.logprobs.extend(logprobs)


@dataclass
class Trajectory:
    """One played episode."""

    task: Task
    turns: list[Turn] = field(default_factory=list)
    group: int = 0
    """Shared by the episodes of one task in a batch."""
    end: EpisodeEnd = "terminated"
    final_observation: Observation | None = None
    """Last observation, which the policy did not respond to."""
    failure: Failure | None = None
    """If set, the episode is invalid and its turns must not be used."""
    drift: list[Drift] = field(default_factory=list)
    policy_version: tuple[int, int] | None = None
    """Oldest and newest weights version that sampled a turn, if the engine reports them."""
    agent: str | None = None
    """Of a match of several agents: whose trajectory it is."""
    match: str | None = None
    """Of a match: hash of its inputs, all agents' actions included; its trajectories share it."""

    @property
    def valid(self) -> bool:
        """Whether the episode did not fail."""
        return self.failure is None

    @property
    def environment(self) -> str:
        """Name of its environment in a run of several; else empty."""
        return self.task.name

    @property
    def rewards(self) -> list[float]:
        """Reward of each turn."""
        return [turn.reward for turn in self.turns]

    @property
    def total_reward(self) -> float:
        """Undiscounted return."""
        return sum(self.rewards)

    @property
    def success(self) -> bool:
        """Whether the episode succeeded, by its last turn; see `gem.contract.succeeded`."""
        if not self.turns:
            return False
        last = self.turns[-1]
        return succeeded(last.reward, last.terminated, last.info)

    @property
    def sampled_tokens(self) -> int:
        """Number of tokens the policy sampled."""
        return sum(len(turn.response_ids) for turn in self.turns)

    @property
    def format_error(self) -> bool:
        """Whether the environment reported a format error in any turn."""
        return any(turn.info.get("format_error", False) for turn in self.turns)

    @property
    def numbers(self) -> dict[str, float]:
        """Numbers of the environment's info by name, of each the last one; True is 1."""
        found = {}
        for turn in self.turns:
            for name, value in turn.info.items():
                if isinstance(value, int | float) and abs(value) <= sys.float_info.max:
                    found[name] = float(value)
        return found

    @property
    def length_stops(self) -> int:
        """Number of turns that a token limit cut."""
        return sum(turn.stop_reason == "length" for turn in self.turns)

    @property
    def drifted(self) -> bool:
        """Whether re-rendering the conversation would have changed its tokens."""
        return bool(self.drift)

    @property
    def json_bytes(self) -> int:
        """About the length of `to_json`, found without writing it."""
        return sum(
            _TURN_BYTES
            + len(turn.text)
            + len(turn.observation)
            + _ID_BYTES * (len(turn.context_ids) + len(turn.response_ids))
            + _LOGPROB_BYTES * len(turn.logprobs or ())
            for turn in self.turns
        )

    @property
    def fingerprint(self) -> Fingerprint:
        """Hashes of the episode's inputs and outputs, see `gem.fingerprint`."""
        return fingerprint(self)

    def training_rows(self) -> list[TrainingRow]:
        """Return the training rows; a failed episode has none.

        Turns whose prompt extends the previous prompt and response share a row; a new row starts
        where the prefix breaks. An append-only context gives one row per episode, every other
        context one row per turn.
        """
        rows: list[TrainingRow] = []
        if not self.valid:
            return rows
        for index, turn in enumerate(self.turns):
            if turn.fresh or not rows:
                row = TrainingRow(list(turn.context_ids), [], [], [], [])
                rows.append(row)
            else:
                row._append(turn.context_ids, 0, [0.0] * len(turn.context_ids))
            start = len(row.response_ids)
            row._append(turn.response_ids, 1, turn.logprobs)
            row.spans.append(TurnSpan(index, start, len(row.response_ids)))
            if turn.images:
                row.images += turn.images
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready mapping; image bytes are replaced by their hash.

        NaN and infinity, which JSON lacks, become None in infos and log-probabilities.
        """
        return {
            "task": self.task.to_dict(),
            "group": self.group,
            "end": self.end,
            "turns": [_turn_entry(turn) for turn in self.turns],
            "final_observation": _recordable(self.final_observation),
            "failure": None if self.failure is None else asdict(self.failure),
            "drift": [asdict(d) for d in self.drift],
            "policy_version": self.policy_version,
            **of_match(self),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Trajectory:
        """Rebuild from `to_dict`.

        Raises:
            ConfigurationError: A field is missing, unknown or of another type.
        """
        try:
            version = data["policy_version"]
            return cls(
                task=Task.from_dict(data["task"]),
                group=data["group"],
                end=data["end"],
                turns=[_turn_of(entry) for entry in data["turns"]],
                final_observation=data["final_observation"],
                failure=None if data["failure"] is None else Failure.from_dict(data["failure"]),
                drift=[Drift(**d) for d in data["drift"]],
                policy_version=None if version is None else (version[0], version[1]),
                agent=data.get("agent"),
                match=data.get("match"),
            )
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise ConfigurationError(f"not a recorded trajectory: {error}") from error

    def to_json(self) -> str:
        """Return one line of JSON (no line break inside)."""
        return json.dumps(self.to_dict(), separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, line: str) -> Trajectory:
        """Rebuild from `to_json`.

        Raises:
            ConfigurationError: The line is not a recorded trajectory.
        """
        try:
            data = parse_as(line, dict[str, Any], "the line")
        except DataError as error:
            raise ConfigurationError(f"not a recorded trajectory: {error}") from error
        return cls.from_dict(data)


def of_match(trajectory: Trajectory) -> dict[str, str | None]:
    """Return the fields that only a trajectory of a match has."""
    if trajectory.agent is None:
        return {}
    return {"agent": trajectory.agent, "match": trajectory.match}


def _turn_entry(turn: Turn) -> dict[str, Any]:
    # Not `asdict`, which copies token lists item by item.
    entry: dict[str, Any] = {
        **vars(turn),
        "observation": _recordable(turn.observation),
        "info": {key: _finite(value) for key, value in turn.info.items()},
        "logprobs": _finite_list(turn.logprobs),
    }
    if images := entry.pop("images"):
        entry["images"] = [{"digest": each.digest, "tokens": each.tokens} for each in images]
    return entry


def _turn_of(entry: Mapping[str, Any]) -> Turn:
    images = tuple(Image(**each) for each in entry.get("images", ()))
    return Turn(**{**entry, "logprobs": _with_nan(entry["logprobs"]), "images": images})


def _recordable(observation: Observation | None) -> Any:
    return None if observation is None else canonical(observation)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _finite_list(values: list[float] | None) -> list[float | None] | None:
    # Fast path: a finite sum means that all values are finite.
    if values is None or math.isfinite(sum(values)):
        return values  # type: ignore[return-value]
    return [_finite(value) for value in values]


def _with_nan(values: list[float | None] | None) -> list[float] | None:
    if values is None or None not in values:
        return values  # type: ignore[return-value]
    return [math.nan if value is None else value for value in values]


def turn_table(
    trajectories: Iterable[Trajectory],
    values: Sequence[Sequence[float]] | None = None,
) -> TurnTable:
    """Make the table of turns that `gem.advantage` works on.

    Args:
        trajectories: A batch; failed episodes become invalid rows.
        values: Critic's value of each turn, `values[episode][turn]`.
    """
    from gem.advantage import TurnTable

    batch = list(trajectories)
    return TurnTable.build(
        [t.rewards for t in batch],
        groups=[t.group for t in batch],
        valid=[t.valid for t in batch],
        values=values,
    )

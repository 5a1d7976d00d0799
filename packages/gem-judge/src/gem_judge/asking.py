"""`UncheckedJudge`: asks a model for votes on items until a majority decides each."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import Any

from gem.blame import boundary
from gem.errors import JudgeError, RefusedError, UnreachableError
from gem.model_server import ModelServer
from gem_judge.items import Criterion, Item, Kind, shown
from gem_judge.prompts import Vote, agreed, messages, read
from gem_judge.settings import JudgeSettings, as_settings, digest
from gem_judge.store import Store

UNJUDGED = "unjudged"
"""Reason of an answer at which the judge fails although it grades other answers."""


@dataclass(frozen=True)
class JudgeVerdict:
    """What a judge decided about an answer; `correct`, `reason`, `seconds`, `score` as graders."""

    correct: bool
    """Whether the score is 1: the answer is right, meets all criteria, or is the better one."""
    reason: str
    """`yes`, `no`, `met`, `partly met`, `not met`, `better`, `same`, `worse`, `unjudged`, `empty`,
    `master key` or `copied question`."""
    seconds: float
    """Wall time, waiting for the judge included."""
    score: float
    """From 0 to 1."""
    key: str
    """Hash of judge, question and answer."""
    votes: tuple[Mapping[str, str] | None, ...] = ()
    """In order; None where the judge gave no vote."""
    decided: Mapping[str, str] = field(default_factory=dict)
    """By the names of `Item.names`; empty if nothing was decided."""
    chars: int = 0
    """Length of the answer that the judge was shown."""
    cached: bool = False
    """Whether the judge was not asked."""

    @property
    def disagreement(self) -> bool:
        """Whether the votes differ."""
        return len({tuple(sorted((v or {}).items())) for v in self.votes}) > 1

    @property
    def info(self) -> dict[str, Any]:
        """Entries for an environment's info; a run that is repeated from the cache has the same."""
        criteria = {f"judge.criterion.{n}": v == "yes" for n, v in self.decided.items()}
        criteria = {} if len(criteria) == 1 and {"right", "pair"} & {*self.decided} else criteria
        return {
            "judge.score": self.score,
            "judge.disagreement": self.disagreement,
            "judge.unjudged": self.reason == UNJUDGED,
            "judge.chars": self.chars,
            "judge.key": self.key,
            **criteria,
        }


@dataclass(frozen=True)
class JudgeFailure:
    """The judge failed: the episode is void."""

    message: str
    seconds: float
    key: str
    """As that of a verdict."""
    votes: tuple[Mapping[str, str] | None, ...]
    chars: int
    """Length of the answer that the judge was shown."""


@dataclass
class _Open:
    """An item while votes are collected."""

    item: Item
    key: str
    left_s: float
    """Time that its votes may still take."""
    votes: list[dict[str, str] | None] = field(default_factory=list)
    replies: dict[int, tuple[str, str, float]] = field(default_factory=dict)
    """Reply, server's name of the model and seconds of votes that are not kept yet."""
    lost: str = ""
    """Why the judge could not be asked for one of the votes."""
    asked: bool = False


class UncheckedJudge:
    """Asks a model whether answers are right, whatever they are; calibration uses it.

    Threads may share it. `gem_judge.Judge` is what trains.
    """

    def __init__(self, settings: JudgeSettings | Mapping[str, Any], name: str = "judge") -> None:
        """Connect to nothing yet.

        Args:
            settings: See `JudgeSettings`.
            name: In messages and in the cache.

        Raises:
            ConfigurationError: A value is not allowed, or a file cannot be read.
            RecordError: The cache cannot be opened.
        """
        self.settings = as_settings(settings, f"judge.{name}.")
        self.name = name
        self.store = Store(self.settings.cache)
        self._identity = self.settings.identity()
        self._instructions = self.settings.instructions()
        self._lock = threading.Lock()
        # Of all threads that ask; waiting for one is no time of the verdict.
        self._places = threading.BoundedSemaphore(self.settings.parallel)
        self._pool: ThreadPoolExecutor | None = None
        self._server = ModelServer(
            self.settings.url,
            self.settings.asked,
            timeout_s=self.settings.timeout_s,
            api_key_env=self.settings.api_key_env,
            sampling=asdict(self.settings.sampling),
        )

    def verdicts(self, items: Sequence[Item]) -> list[JudgeVerdict | JudgeFailure]:
        """Return the verdict on each item, or why there is none.

        All votes of a round are asked for at the same time.

        Raises:
            JudgeError: The run cannot go on with this judge: another model answers, its budget is
                used up, or a vote is not in the cache and it may not be asked.
            RecordError: The cache cannot be written.
        """
        began, limit_s = time.monotonic(), self.settings.timeout_s
        whole = [_Open(item, self.key(item), limit_s) for item in map(self.shortened, items)]
        waiting = whole
        while waiting:
            waiting = self._round(waiting)
        # Once for all answers of a kind that have no majority.
        canary = cache(self._canary)
        return [self._decided(each, began, canary) for each in whole]

    def shortened(self, item: Item) -> Item:
        """Return an item as the judge is shown it."""
        most = self.settings.answer_chars
        other = None if item.other is None else shown(item.other, most)
        return replace(item, answer=shown(item.answer, most), other=other)

    def key(self, item: Item) -> str:
        """Return the hash of the judge and an item as `shortened` returns it."""
        return digest([self._identity, item.to_dict(), messages(item, self._instructions)])

    def check(self) -> None:
        """Make sure that the server lists the model, and that the judge grades what is plain.

        Raises:
            UnreachableError: The server fails, or the judge does.
            JudgeError: Another model answers.
        """
        with boundary("grader"):
            listed = self._server.models()
            if self.settings.asked not in listed:
                raise JudgeError(
                    f"judge {self.name!r}: {self.settings.url} has no model "
                    f"{self.settings.asked!r}; it lists {', '.join(listed):.300}"
                )
            if said := self._canary("right"):
                raise UnreachableError(f"judge {self.name!r}: {said}")

    def orders(self, item: Item) -> tuple[Vote | None, Vote | None]:
        """Return the votes on a pair in both orders, from the side of the item's answer.

        Raises:
            UnreachableError: The judge fails.
            JudgeError: Another model answers, or the budget is used up.
        """
        item = self.shortened(item)
        self.store.spend(self.name, 2, self.settings.budget_calls)
        with self._places:
            deadline = time.monotonic() + self.settings.timeout_s
            first, second = (
                read(self._reply(item, 0, deadline, turned)[0], item, turned=turned)
                for turned in (False, True)
            )
        return first, second

    def close(self) -> None:
        """Release threads and the cache."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        self.store.close()

    def _round(self, waiting: Sequence[_Open]) -> list[_Open]:
        """Ask for as many votes as a majority still needs; return the items that need more."""
        asks = []
        for each in waiting:
            for seed in range(len(each.votes), len(each.votes) + self._needed(each)):
                kept = self.store.vote(f"{each.key}:{seed}")
                each.votes.append(None if kept is None else kept[0])
                if kept is None and self.settings.cache_only:
                    each.lost = "cache_only, and the vote is not there"
                elif kept is None:
                    each.asked = True
                    asks.append((each, seed))
        if asks:
            orders = sum(2 if each.item.kind == "pair" else 1 for each, _ in asks)
            self.store.spend(self.name, orders, self.settings.budget_calls)
            # The last one in this thread: most batches are one item of one environment.
            futures = [self._threads().submit(self._ask, *ask) for ask in asks[:-1]]
            last = self._ask(*asks[-1])
            for (each, seed), vote in zip(
                asks, [*(future.result() for future in futures), last], strict=True
            ):
                each.votes[seed] = vote
        return [each for each in waiting if self._needed(each)]

    def _threads(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self.settings.parallel, f"judge-{self.name}")
            return self._pool

    def _needed(self, each: _Open) -> int:
        """Return how many more votes an item is asked for now; 0 if it is decided or all gave."""
        left = self.settings.votes - len(each.votes)
        majority = self.settings.votes // 2 + 1
        short = max(
            majority - max(self._tally(each, n).values(), default=0) for n in each.item.names
        )
        return max(min(short, left), 0)

    def _tally(self, each: _Open, name: str) -> Counter[str]:
        return Counter(vote[name] for vote in each.votes if vote is not None)

    def _ask(self, each: _Open, seed: int) -> dict[str, str] | None:
        """Ask for one vote; one that can be read is kept at once."""
        with self._places:
            began = time.monotonic()
            deadline = began + each.left_s
            try:
                return self._vote(each, seed, began, deadline)
            finally:
                each.left_s = min(each.left_s, deadline - time.monotonic())

    def _vote(self, each: _Open, seed: int, began: float, deadline: float) -> dict[str, str] | None:
        orders = (False, True) if each.item.kind == "pair" else (False,)
        replies, votes = [], []
        served = ""
        for turned in orders:
            try:
                reply, served = self._reply(each.item, seed, deadline, turned)
            except RefusedError as error:
                reply = f"(refused: {error})"
            except UnreachableError as error:
                each.lost = str(error)
                return None
            replies.append(reply)
            votes.append(read(reply, each.item, turned=turned))
        vote = votes[0] if len(votes) == 1 else agreed(*votes)
        text, seconds = "\n---\n".join(replies), time.monotonic() - began
        if vote is None:
            each.replies[seed] = text, served, seconds
            return None
        kept = self.store.keep(f"{each.key}:{seed}", vote, text, served, seconds)
        return kept if isinstance(kept, dict) else None

    def _reply(self, item: Item, seed: int, deadline: float, turned: bool) -> tuple[str, str]:
        told = messages(item, self._instructions, turned=turned)
        reply = self._server.ask(told, silent=True, deadline=deadline, seed=seed)
        name, _, revision = self.settings.model.partition("@")
        allowed = {self.settings.model, revision} if revision else {name}
        if reply.model not in allowed and (not revision or reply.fingerprint != revision):
            raise JudgeError(
                f"judge {self.name!r}: the model {self.settings.model!r} was asked and "
                f"{reply.model!r} answers (system_fingerprint {reply.fingerprint!r}); the run ends"
            )
        return reply.text, reply.model

    def _decided(
        self, each: _Open, began: float, canary: Callable[[Kind], str]
    ) -> JudgeVerdict | JudgeFailure:
        """Return the verdict of an item whose votes are complete."""
        majority = self.settings.votes // 2 + 1
        top = {n: self._tally(each, n).most_common(1) for n in each.item.names}
        decided = {n: t[0][0] for n, t in top.items() if t and t[0][1] >= majority}
        if len(decided) < len(top) and None not in each.votes:
            decided = {"pair": "same"}  # only pairs have more than two values
        reason, score = "", 0.0
        if len(decided) < len(top):
            failed = self._failure(each, canary)
            if failed:
                seconds, chars = time.monotonic() - began, len(each.item.answer)
                votes = tuple(each.votes)
                message = f"judge {self.name!r}: {failed}"
                return JudgeFailure(message, seconds, each.key, votes, chars)
            decided, reason = {}, UNJUDGED
        else:
            score = each.item.score(decided)
        return JudgeVerdict(
            score == 1.0,
            reason or reason_of(each.item, decided, score),
            time.monotonic() - began,
            score,
            each.key,
            tuple(each.votes),
            decided,
            len(each.item.answer),
            not each.asked,
        )

    def _failure(self, each: _Open, canary: Callable[[Kind], str]) -> str:
        """Return why an item without a majority is void; empty if its answer is to blame."""
        if self.settings.cache_only and each.lost:
            raise JudgeError(
                f"judge {self.name!r}: cache_only, and {self.settings.cache} lacks a vote "
                f"({each.key}); the run ends"
            )
        # What is kept as no vote was found to be the answer's doing when it was kept.
        message = each.lost or (canary(each.item.kind) if each.replies else "")
        if not message:
            for seed, (text, served, seconds) in each.replies.items():
                self.store.keep(f"{each.key}:{seed}", None, text, served, seconds)
        return message

    def _canary(self, kind: Kind) -> str:
        """Return what is wrong with the judge itself; empty if it grades what is plain."""
        for item, wanted in CANARIES:
            if item.kind != kind:
                continue
            self.store.spend(self.name, 1, self.settings.budget_calls)
            try:
                with self._places:
                    deadline = time.monotonic() + self.settings.timeout_s
                    reply, _ = self._reply(item, 0, deadline, False)
            except UnreachableError as error:
                return str(error)
            said = read(reply, item)
            if said is None or any(said[name] != wanted for name in item.names):
                return f"it gives no vote, and fails at a plain question too ({reply!r:.200})"
        return ""


_PLAIN = "What is 2 + 2?\n- It says that the sum is 4."
_SUM = (Criterion("sum", "It says that the sum is 4."),)
CANARIES = (
    (Item(_PLAIN, "4", "4"), "yes"),
    (Item(_PLAIN, "5", "4"), "no"),
    (Item(_PLAIN, "4", criteria=_SUM), "yes"),
    (Item(_PLAIN, "5", criteria=_SUM), "no"),
    (Item(_PLAIN, "4", other="5"), "better"),
    (Item(_PLAIN, "5", other="4"), "worse"),
)
"""Items of every kind whose verdict is plain, with the verdict."""


def reason_of(item: Item, decided: Mapping[str, str], score: float) -> str:
    """Return the reason of a verdict: see `JudgeVerdict.reason`."""
    if not item.criteria:
        return decided[item.kind]
    return "met" if score == 1.0 else "partly met" if score > 0 else "not met"

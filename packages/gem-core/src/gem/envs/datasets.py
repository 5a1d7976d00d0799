"""Single-turn tasks: a question, a graded answer; and the rows of a data set as such tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, TypeVar

from gem.blame import boundary
from gem.contract import refusal, shown
from gem.core import Env, Info, Observation, Step, known_options
from gem.errors import DataError, GemError
from gem.grading.formats import FORMATS, AnswerFormat
from gem.parameters import choice, extending, flag, integer, number, optional, text
from gem.registry import spec
from gem.sources import (
    SAMPLES,
    Row,
    Source,
    Table,
    checked,
    column_of,
    has_splits,
    load,
    permuted,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

EnvT = TypeVar("EnvT", bound="DatasetEnv")

_LIMIT = 10**18
# Longest text, in characters, of an item that is repeated in the info.
_BRIEF = 40
VERIFIED_ROWS = 10_000
"""Rows of a source that are verified when it is loaded; later ones are when they are shown."""


class Grade(NamedTuple):
    """What an answer is worth."""

    correct: bool
    score: float
    """From 0 to 1: the reward."""
    reason: str
    """Why, in a few words."""


class SingleTurnEnv(Env):
    """A question, a reply, a reward: every episode has one step.

    The answer format writes the last lines of the prompt and reads the reply, so that a model that
    does as it is told is graded on what it meant. A reply without an answer gets
    `format_error_reward`. The observation after the step is empty. `info` has `correct`, `success`
    (the same), `score` (from 0 to 1), `format_error`, `invalid_action` (always False), `index`,
    `reason` and, as `item.<name>`, what the data says about the item in a number or a few words,
    such as its difficulty.

    These tasks are recalled or computed, not explored: `oracle_action` replies with the recorded
    answer, which the prompt determines.

    Attributes:
        index: Number of the current item; set by `reset`.
    """

    index: int
    graded_in_parts: bool = False
    """Whether an answer that meets a part of what is asked for earns a part of the reward."""

    def __init__(
        self,
        *,
        answer_format: AnswerFormat | str,
        eval: bool = False,
        format_error_reward: float = 0.0,
        seed: int | None = None,
    ) -> None:
        """Store what is common to all single-turn tasks.

        Args:
            answer_format: How to answer: one of `gem.grading.formats` or its name.
            eval: Items in order: the item is `(seed + resets since) % size`, so that the seeds
                0, 1, ... visit every item once. Without any seed it begins with item 0.
            format_error_reward: Reward of a reply without an answer.
            seed: Seed of the first `reset` that is not given one.
        """
        super().__init__(seed=seed)
        if not isinstance(answer_format, AnswerFormat):
            answer_format = FORMATS[choice("answer_format", answer_format, tuple(FORMATS))]
        self.answer_format = answer_format
        self.eval = flag("eval", eval)
        self.format_error_reward = number("format_error_reward", format_error_reward)
        self._addressed = 0
        self._over = True

    def reset(self, seed: int | None = None, **options: Any) -> tuple[Observation, Info]:
        """Show an item.

        Successive resets without a seed walk a permutation of all items that depends on the seed
        given last and on how often all items were shown; with `eval=True` they walk the items in
        order.

        Args:
            seed: See `Env.reset`; chooses the item.
            **options: `idx` shows that very item instead and does not advance the walk.

        Raises:
            ConfigurationError: There is no item `idx`.
            UnknownParameterError: An option other than `idx` was given.
        """
        idx = known_options(self, options, "idx").get("idx")
        if seed is None and self._base_seed is None and self.eval:
            seed = 0
        size = self._size()
        if idx is not None:
            idx = integer("idx", idx, 0, (_LIMIT if self._endless else size) - 1)
        self._forget()
        super().reset(seed=seed)
        if self._episode == 0:
            self._addressed = 0
        if idx is None:
            self.index = self._walk(size)
        else:
            self._addressed += 1
            self.index = idx
        # An item that cannot be graded must show before a model has written anything.
        self._verify_shown()
        observation = self._observe()
        self._over = False
        return observation, {"index": self.index}

    def seek(self, base_seed: int, episode: int) -> None:
        """Choose the next episode; as in a new environment, `idx` has not been given before."""
        super().seek(base_seed, episode)
        self._addressed = 0

    @property
    def answer(self) -> Any:
        """The recorded answer of the current item, as the data has it; for code, its tests.

        Raises:
            ResetNeededError: `reset` was never called.
            NotImplementedError: None is recorded.
        """
        _ = self.episode_key
        return self._recorded_answer()

    def _verify_item(self) -> None:
        """Raise `DataError` if item `self.index` cannot be graded; need not find every fault."""

    def _verify_shown(self) -> None:
        """Raise `DataError` if item `self.index`, which is to be shown, cannot be won."""
        self._verify_item()

    walked: Sequence[int] | None = None
    """Items that `eval=True` walks, in this order; None is all."""

    @property
    def in_order(self) -> int | None:
        """How many items `eval=True` walks; None without `eval`, or if there is no end."""
        return self._size() if self.eval and not self._endless else None

    _endless = False
    """Whether new items follow when all `_size()` items were shown."""

    def _walk(self, size: int) -> int:
        base, episode = self.episode_key
        position = episode - self._addressed
        if self.walked is not None:
            return self.walked[(base + position) % len(self.walked)]
        if self.eval:
            return base + position if self._endless else (base + position) % size
        epoch, place = divmod(position, size)
        index = permuted(place, size, base, epoch)
        return epoch * size + index if self._endless else index

    def step(self, action: str) -> Step:
        """Grade a reply; the episode ends."""
        if self._over or not isinstance(action, str):
            raise refusal(type(self).__name__, self._over, action)
        answer = self.answer_format.extract(action)
        if answer is None:
            grade = Grade(False, 0.0, "no answer in the form asked for")
            reward = self.format_error_reward
        else:
            with boundary("grader"):
                grade = self._grade(answer)
            reward = grade.score
        self._over = True
        info = {
            "correct": grade.correct,
            "success": grade.correct,
            "score": grade.score,
            "format_error": answer is None,
            "invalid_action": False,
            "index": self.index,
            "reason": grade.reason,
            **{f"item.{name}": value for name, value in self._about().items() if _brief(value)},
        }
        return "", reward, True, False, info

    def render(self) -> str:
        """Return the item's number and question."""
        _ = self.episode_key
        return f"{type(self).__name__}, item {self.index}\n{shown(self._observe())}"

    def sample_random_action(self) -> str:
        """Return a reply in the right form whose answer is a guess."""
        return self.answer_format.wrap(self._random_answer())

    def oracle_action(self) -> str:
        """Return a reply with the recorded answer.

        Raises:
            NotImplementedError: None is recorded.
        """
        _ = self.episode_key
        return self.answer_format.wrap(self._recorded_answer())

    def _forget(self) -> None:
        self._over = True

    def _asked(self, question: str) -> str:
        """Return the question and how to answer it."""
        return f"{question.rstrip()}\n\n{self.answer_format.instruction}"

    def _size(self) -> int:
        """Return the number of items."""
        raise NotImplementedError

    def _observe(self) -> Observation:
        """Return the observation of item `self.index`."""
        raise NotImplementedError

    def _about(self) -> Row:
        """Return what the data says about the item besides question and answer."""
        return {}

    def _grade(self, answer: str) -> Grade:
        """Grade the answer to item `self.index`."""
        raise NotImplementedError

    def _random_answer(self) -> str:
        """Return a guess drawn from `self.action_rng`."""
        raise NotImplementedError

    def _recorded_answer(self) -> str:
        """Return the right answer to item `self.index`."""
        raise NotImplementedError


def _brief(value: Any) -> bool:
    return isinstance(value, int | float) or (isinstance(value, str) and len(value) <= _BRIEF)


class SingleTurnOptions(TypedDict, total=False):
    """Parameters of `SingleTurnEnv`, for the signatures of its subclasses."""

    answer_format: AnswerFormat | str
    eval: bool
    format_error_reward: float
    seed: int | None


class DatasetOptions(SingleTurnOptions, total=False):
    """Parameters of `DatasetEnv` beside the source, for the signatures of its subclasses."""

    split: str | None
    sample: str
    question_column: str
    answer_column: str


class DatasetEnv(SingleTurnEnv):
    """Rows of a data set as tasks.

    `table[index]` is the row of the current episode, `answer` its recorded answer. Rows whose
    answer is of no use are refused when the data is loaded, as far as the first `VERIFIED_ROWS`
    tell, and else when they are shown.

    The data is loaded at the first `reset`, once per process, however many environments use it.
    Snapshots hold the number of the row, never the data; a pickle holds it only when the source
    is a list in memory, which another process could not find again.

    Attributes:
        source: Where the rows come from; None for a list in memory.
        split: Split of a hub data set or folder.
    """

    _apart = ("spec", "_rows", "_loaded")

    @extending(SingleTurnEnv)
    def __init__(
        self,
        source: Source,
        *,
        split: str | None = None,
        sample: str,
        question_column: str = "problem",
        answer_column: str = "answer",
        **options: Unpack[SingleTurnOptions],
    ) -> None:
        """Store where the rows are; nothing is loaded. See `SingleTurnEnv` for what is not listed.

        Args:
            source: `"hub:owner/name"`, a path to a `.jsonl`, `.csv` or `.parquet` file, a folder
                laid out like a hub data set, `"sample"`, a sequence of mappings, a
                `datasets.Dataset` or a pandas `DataFrame`; see `gem.sources`.
            split: Split of a hub data set or folder; the other sources have none.
            sample: Which sample of `gem.sources.SAMPLES` the source `"sample"` is.
            question_column: Column with the question.
            answer_column: Column with the right answer or a list of them.

        Raises:
            ConfigurationError: A value is not allowed.
        """
        super().__init__(**options)
        checked(source)
        sample = choice("sample", sample, SAMPLES)
        self._rows = None if isinstance(source, str | Path) else source
        self.source = str(source) if self._rows is None else None
        if self.source == "sample":
            self.source = f"sample:{sample}"
        self.split = optional(text, "split", split)
        self.question_column = text("question_column", question_column)
        self.answer_column = text("answer_column", answer_column)
        self._loaded: Table | None = None

    @property
    def table(self) -> Table:
        """The data, loaded at the first use.

        Raises:
            ConfigurationError: The source is malformed, or has no splits or no such one.
            DataError: It cannot be read, or a row cannot be graded.
            MissingExtraError: It needs the extra `data`.
            UnreachableError: The hub does not answer.
        """
        if self._loaded is None:
            rows = self.source if self._rows is None else self._rows
            source = () if rows is None else rows
            default = self.split == self._default_split() and not has_splits(source)
            table = load(source, None if default else self.split)
            self._verify(table)
            self._loaded = table
        return self._loaded

    @property
    def answer(self) -> Any:
        """The recorded answer of the current row, as the data has it; for code, its tests.

        Raises:
            ResetNeededError: `reset` was never called.
        """
        _ = self.episode_key
        return column_of(self._row(), self.answer_column, self.table.name, self.index)

    def _default_split(self) -> str | None:
        """Return the split that the registration of this environment's id names."""
        with suppress(GemError):
            return None if self.spec is None else spec(self.spec.id).kwargs.get("split")
        return None

    def _verify(self, table: Table) -> None:
        """Verify the rows of a table, once per process.

        Raises:
            DataError: A row cannot be graded.
        """
        key = type(self), self.answer_column, self.answer_format
        if key in table.verified:
            return
        # Another environment: this one may be in the middle of an episode.
        probe = copy(self)
        probe._loaded = table.only(self.answer_column)
        for index in range(min(len(table), VERIFIED_ROWS)):
            probe.index = index
            probe._verify_item()
        table.verified.add(key)

    def restore(self, state: bytes) -> None:
        """Continue from `snapshot`; a list in memory stays the one this environment has."""
        super().restore(state)
        # The state may name another source.
        self._loaded = None

    def spawn(self: EnvT, same_state: bool = False, seed: int | None = None) -> EnvT:
        """Return a new environment over the same data; see `Env.spawn`."""
        child = super().spawn(same_state=same_state, seed=seed)
        child._loaded = self._loaded
        return child

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": None}

    def _require_winner(self, answers: list[str], right: Callable[[str], bool]) -> str:
        """Return the first of the recorded answers that a reply can give and that wins.

        Args:
            answers: Recorded answers, any of which is right.
            right: Whether an answer as it is read counts as one.

        Raises:
            DataError: No reply can win item `self.index`.
        """
        form = self.answer_format
        for answer in answers:
            plain = form.any_word and answer.isalnum()
            read = answer if plain else form.extract(form.wrap(answer))
            if read is None:
                continue
            with boundary("grader"):
                wins = right(read)
            if wins:
                return answer
        raise self._fault(
            self.answer_column,
            f"nobody can give the answer {answers[0]!r:.200} in the form {form.name!r}",
        )

    def _size(self) -> int:
        return len(self.table)

    def _row(self) -> Row:
        return self.table.row(self.index)

    def _about(self) -> Row:
        asked = (self.question_column, self.answer_column)
        return {name: value for name, value in self._row().items() if name not in asked}

    def _cell(self, row: Row, column: str, *types: type) -> Any:
        """Return a value of the current row, which must be of one of the types.

        Raises:
            DataError: The column is missing or holds something else.
        """
        value = column_of(row, column, self.table.name, self.index)
        if not isinstance(value, types):
            expected = " or ".join(kind.__name__ for kind in types)
            raise self._fault(column, f"{type(value).__name__}, expected {expected}")
        return value

    def _fault(self, column: str, what: str) -> DataError:
        return DataError(f"{self.table.name}, row {self.index}, column {column!r}: {what}")

    def _observe(self) -> Observation:
        return self._asked(self._cell(self._row(), self.question_column, str))

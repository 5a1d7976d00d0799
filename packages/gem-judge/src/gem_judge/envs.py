"""Tasks that a judge grades: short answers, replies by a rubric, answers that must be better.

The tasks of `Reply` and `Better` are made here. A program can decide about them, which is what the
judge `rules`, their default, does; so a model that judges can be compared with the truth.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random
from typing import TYPE_CHECKING, Any

from gem.core import Info, Step
from gem.envs.datasets import DatasetOptions, Grade, SingleTurnEnv, SingleTurnOptions
from gem.envs.qa import QaEnv
from gem.errors import ConfigurationError
from gem.grading.formats import ANSWER_TAG
from gem.parameters import extending, integer
from gem.seeding import stream
from gem.sources import Source
from gem_judge.items import Criterion, Item
from gem_judge.named import RULES, checked_judge, judge_of
from gem_judge.rules import decide

if TYPE_CHECKING:
    from typing_extensions import Unpack

_SIZE = 100_000
_STREAM = 40
_NAMES = ("Ada", "Ben", "Cleo", "Dana", "Emil", "Fay", "Gus", "Hana", "Ivo", "June", "Kai", "Lena")
_THINGS = ("kettle", "lamp", "chair", "radio", "clock", "tent", "scarf", "heater", "printer")
_FAULTS = ("arrived broken", "has not arrived", "is the wrong colour", "makes a loud noise")
_REMEDIES = ("refund", "replacement", "voucher")
_FILLER = ("Thank you for your message.", "We are sorry.", "Please wait.", "Have a nice day.")


class JudgedEnv(SingleTurnEnv):
    """A single-turn task whose answer a judge grades.

    `info` also has `judge.score`, `judge.disagreement`, `judge.unjudged`, `judge.chars`,
    `judge.key` and, of a rubric, `judge.criterion.<name>`.
    """

    judge: str | dict[str, Any]

    @extending(SingleTurnEnv)
    def __init__(
        self, judge: str | Mapping[str, Any] = RULES, **options: Unpack[SingleTurnOptions]
    ) -> None:
        """Store the parameters; see `SingleTurnEnv` for those not listed.

        Args:
            judge: Name of a table `[judge.<name>]` of the RunSpec, or of the file that the
                environment variable GEM_JUDGES names; or its settings; or `rules`, programs.

        Raises:
            ConfigurationError: A value is not allowed.
        """
        super().__init__(**options)
        self._use(judge)

    def _use(self, judge: Any) -> None:
        self.judge = checked_judge(judge)
        self.replayable = self.judge == RULES
        self._told: Info = {}

    def step(self, action: str) -> Step:
        """Grade a reply; the episode ends.

        Raises:
            UnreachableError: The judge fails; the episode is void.
            JudgeError: The run cannot go on with this judge.
        """
        self._told = {}
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated, truncated, {**info, **self._told}

    def _grade(self, answer: str) -> Grade:
        verdict = judge_of(self.judge).verdict(self._item(answer))
        self._told = verdict.info
        return Grade(verdict.correct, verdict.score, verdict.reason)

    def _item(self, answer: str) -> Item:
        """Return what the judge is asked about an answer to item `self.index`."""
        raise NotImplementedError


class JudgedQa(JudgedEnv, QaEnv):
    """Questions with short answers; the judge decides whether an answer says what is recorded."""

    @extending(QaEnv, source="sample")
    def __init__(
        self,
        source: Source = "sample",
        *,
        judge: str | Mapping[str, Any] = RULES,
        **options: Unpack[DatasetOptions],
    ) -> None:
        """Store the parameters; see `QaEnv` and `JudgedEnv`.

        Args:
            source: Rows with a question and an answer, or a list of answers of which any is right.
            judge: See `JudgedEnv`.

        Raises:
            ConfigurationError: A value is not allowed.
        """
        QaEnv.__init__(self, source, **options)
        self._use(judge)

    def _item(self, answer: str) -> Item:
        question = self._cell(self._row(), self.question_column, str)
        return Item(question, answer, "\n".join(self._golds()))


class Letter:
    """A customer's message, and the criteria of a reply."""

    def __init__(self, index: int, *, brief: bool) -> None:
        """Make the letter of a number.

        Args:
            index: Its number.
            brief: Whether one criterion limits the length.
        """
        rng = stream(index, _STREAM)
        self.name, thing = rng.choice(_NAMES), rng.choice(_THINGS)
        self.order = f"A-{rng.randrange(1000, 10_000)}"
        self.remedy = rng.choice(_REMEDIES)
        self.most = rng.randrange(20, 31)
        self.message = (
            f"My {thing} {rng.choice(_FAULTS)}. My order is {self.order}. What will you do?\n"
            f"{self.name}"
        )
        criteria = [
            Criterion("greeting", f'It begins with "Dear {self.name}".', 1.0),
            Criterion("order", f'It mentions "{self.order}".', 2.0),
            Criterion("remedy", f'It mentions "{self.remedy}".', 2.0),
        ]
        if brief:
            criteria.append(Criterion("brief", f"It has at most {self.most} words.", 1.0))
        self.criteria = tuple(criteria)
        listed = "\n".join(f"- {each.text}" for each in self.criteria)
        self.question = (
            f"A customer writes:\n\n{self.message}\n\nWrite a short reply. A good reply meets "
            f"these criteria, and copies none of them:\n{listed}"
        )

    def reply(self, met: frozenset[str], rng: Random) -> str:
        """Return a reply that meets the named criteria, and no others."""
        greeting = f"Dear {self.name}," if "greeting" in met else "Hello,"
        order = f"your order {self.order}" if "order" in met else "your order"
        remedy = f"we send a {self.remedy}" if "remedy" in met else "we look at it"
        text = f"{greeting} we are sorry about {order}, and {remedy}."
        names = {each.name for each in self.criteria}
        while "brief" in names - met and len(text.split()) <= self.most:
            text += f" {rng.choice(_FILLER)}"
        return text

    def drawn(self, rng: Random) -> str:
        """Return a reply that meets criteria drawn at random."""
        names = [each.name for each in self.criteria]
        return self.reply(frozenset(name for name in names if rng.random() < 0.5), rng)


class LetterEnv(JudgedEnv):
    """A letter to reply to; a reply that copies a criterion earns nothing and is not judged."""

    graded_in_parts = True
    brief = False
    """Whether one criterion limits the length."""

    @property
    def _letter(self) -> Letter:
        return Letter(self.index, brief=self.brief)

    def _size(self) -> int:
        return _SIZE

    def _grade(self, answer: str) -> Grade:
        if any(each.text in answer for each in self._letter.criteria):
            return Grade(False, 0.0, "copies the criteria")
        return super()._grade(answer)

    def _random_answer(self) -> str:
        return self._letter.drawn(self.action_rng)

    def _recorded_answer(self) -> str:
        letter = self._letter
        return letter.reply(frozenset(each.name for each in letter.criteria), Random(0))


class Reply(LetterEnv):
    """Reply to a customer's message; a rubric of four named criteria with weights grades it.

    The reward is the weight of the criteria that are met over that of all: the greeting 1, the
    order's number 2, the remedy 2, the length 1. An episode is won if all are met.
    """

    brief = True

    @extending(JudgedEnv, answer_format=ANSWER_TAG)
    def __init__(self, **options: Unpack[SingleTurnOptions]) -> None:
        """Store the parameters; see `JudgedEnv`."""
        super().__init__(**options)

    def _observe(self) -> str:
        return self._asked(self._letter.question)

    def _item(self, answer: str) -> Item:
        return Item(self._letter.question, answer, criteria=self._letter.criteria)


class Better(LetterEnv):
    """Write a better reply to a customer's message than the one that is shown.

    The judge compares both in both orders. The reward is 1 for the better reply, 0.5 if neither is
    better or the order decides, and 0 for the worse one.
    """

    @extending(JudgedEnv, answer_format=ANSWER_TAG)
    def __init__(self, **options: Unpack[SingleTurnOptions]) -> None:
        """Store the parameters; see `JudgedEnv`."""
        super().__init__(**options)

    def _other(self) -> str:
        """Return a reply that meets all criteria but one."""
        letter, rng = self._letter, stream(self.index, _STREAM, 1)
        names = [each.name for each in letter.criteria]
        return letter.reply(frozenset(rng.sample(names, len(names) - 1)), rng)

    def _observe(self) -> str:
        return self._asked(
            f"{self._letter.question}\n\nThis reply is there already; write a better one:\n"
            f"{self._other()}"
        )

    def _item(self, answer: str) -> Item:
        return Item(self._letter.question, answer, other=self._other())


def labelled_answers(id: str, n: int) -> Iterator[dict[str, Any]]:
    """Yield answers to the tasks of an environment with their labels, for a calibration file.

    The tasks are the last ones of the environment, which training with small seeds rarely meets.

    Args:
        id: `judge:Reply-v0` or `judge:Better-v0`.
        n: Number of answers.

    Raises:
        ConfigurationError: The environment has no labels, or `n` is too small.
    """
    kinds: dict[str, type[Reply | Better]] = {"judge:Reply-v0": Reply, "judge:Better-v0": Better}
    if id not in kinds:
        raise ConfigurationError(f"labels are made for {' and '.join(kinds)}, got {id!r}")
    integer("n", n, 100, _SIZE // 2)
    env = kinds[id]()
    for place in range(n):
        env.index = _SIZE - 1 - place
        item = env._item(env._letter.drawn(stream(env.index, _STREAM, 2)))
        decided = decide(item)
        yes = {name: value == "yes" for name, value in decided.items()}
        yield {
            **{k: v for k, v in item.to_dict().items() if k != "criteria" and v is not None},
            **({} if item.other else {"criteria": _criteria(item)}),
            "label": decided["pair"] if item.other else yes,
        }


def _criteria(item: Item) -> list[dict[str, str]]:
    return [{"name": each.name, "text": each.text} for each in item.criteria]

"""The judge by rules of the environments `judge:`: programs decide, no model is asked.

It is their default, the truth of their calibration files (`labels`), and, behind a server, a judge
to try a run with (`serve`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from gem.errors import ConfigurationError
from gem_judge.asking import JudgeVerdict, reason_of
from gem_judge.items import Criterion, Item, equals_reference, shown, worthless
from gem_judge.settings import digest

_MOST = 8_000


def _mentions(answer: str, words: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(words)}(?!\w)", answer, re.IGNORECASE) is not None


_RULES: tuple[tuple[re.Pattern[str], Callable[[str, str], bool]], ...] = (
    (re.compile(r'It begins with "(.+)"\.'), lambda said, words: said.startswith(words)),
    (re.compile(r'It mentions "(.+)"\.'), _mentions),
    (re.compile(r'It does not mention "(.+)"\.'), lambda s, words: not _mentions(s, words)),
    (re.compile(r"It has at most (\d+) words\."), lambda said, n: 0 < len(said.split()) <= int(n)),
    (re.compile(r"It says that the sum is (\d+)\."), _mentions),
)
"""Sentences that a program can decide."""
_LISTED = re.compile(r"^- (It .+\.)$", re.MULTILINE)


def holds(criterion: str, answer: str) -> bool:
    """Whether an answer meets a criterion.

    Raises:
        ConfigurationError: There is no rule for the sentence.
    """
    for pattern, rule in _RULES:
        if found := pattern.fullmatch(criterion):
            return rule(answer, found[1])
    raise ConfigurationError(
        f"the judge 'rules' has no rule for the criterion {criterion!r}; name a judge that is a "
        "model"
    )


def decide(item: Item) -> dict[str, str]:
    """Return what is true of an item, by the names of `Item.names`.

    Raises:
        ConfigurationError: There is no rule for it.
    """
    if item.criteria:
        return {c.name: "yes" if holds(c.text, item.answer) else "no" for c in item.criteria}
    if item.other is not None:
        listed = _LISTED.findall(item.question)
        if not listed:
            raise ConfigurationError(
                "the judge 'rules' compares answers to questions that list criteria only"
            )
        own, other = (
            sum(holds(each, text) for each in listed) for text in (item.answer, item.other)
        )
        return {"pair": "better" if own > other else "same" if own == other else "worse"}
    if item.reference is None:
        raise ConfigurationError("the judge 'rules' grades answers to questions with a reference")
    return {"right": "yes" if equals_reference(item) else "no"}


class RulesJudge:
    """A judge whose verdicts are `decide`."""

    def verdict(self, item: Item) -> JudgeVerdict:
        """Return the verdict on an item.

        Raises:
            ConfigurationError: There is no rule for it.
        """
        said = shown(item.answer, _MOST)
        item = Item(item.question, said, item.reference, item.criteria, item.other)
        reason, decided = worthless(item), decide(item)
        score = 0.0 if reason else item.score(decided)
        decided = {} if reason else decided
        reason = reason or reason_of(item, decided, score)
        key = digest(["rules", item.to_dict()])
        return JudgeVerdict(
            score == 1.0, reason, 0.0, score, key, (decided,), decided, len(said), True
        )


_PART = re.compile(r"<(\w+)-([0-9a-f]{16})>\n(.*?)\n</\1-\2>", re.DOTALL)


def answered(content: str) -> Mapping[str, object]:
    """Return the vote of the rules on what `gem_judge.prompts.messages` shows a judge.

    Raises:
        ConfigurationError: There is no rule for it.
    """
    parts = {name: text for name, _, text in _PART.findall(content)}
    lines = [line.partition(": ") for line in parts.get("criteria", "").splitlines()]
    criteria = tuple(Criterion(name, text) for name, _, text in lines)
    pair = "second" in parts
    item = Item(
        parts["question"],
        parts["first" if pair else "answer"],
        parts.get("reference"),
        criteria,
        parts["second"] if pair else None,
    )
    decided = decide(item)
    if pair:
        return {
            "better": {"better": "first", "worse": "second", "same": "neither"}[decided["pair"]]
        }
    if criteria:
        return {name: value == "yes" for name, value in decided.items()}
    return {"correct": decided["right"] == "yes"}

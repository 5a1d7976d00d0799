"""How far a judge agrees with labels, and whether it can be misled; `require_calibrated`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gem.blame import boundary
from gem.errors import ConfigurationError, JudgeError, UnreachableError
from gem.json_lines import parse_as
from gem_judge.asking import JudgeFailure, JudgeVerdict, UncheckedJudge
from gem_judge.items import CLAIMS, MASTER_KEYS, POINTS, Criterion, Item, equals_reference
from gem_judge.prompts import forged, messages
from gem_judge.rules import decide
from gem_judge.settings import JudgeSettings, digest
from gem_judge.store import Store

LEAST_ITEMS = 100
MOST_MISLED = 0.01
"""Largest share of worthless answers that a judge may reward."""
MOST_PADDED = 0.03
"""Largest share of verdicts that padding may change."""
_TOO_MUCH = 0.5
_QUESTIONS = 20
_RESAMPLES = 1_000
_PADDING = "\n\nThis has been considered with care, in full detail and from every side."


@dataclass(frozen=True)
class Agreement:
    """How far verdicts and labels agree; each name of an item is one decision."""

    items: int
    kinds: list[str]
    """What was judged: `right`, `criteria`, `pair`."""
    decisions: int
    agreement: float
    """Share of decisions on which they agree."""
    constant: float
    """The agreement of a judge that always says the most common label."""
    kappa: float
    """Cohen's: agreement beyond that of independent verdicts with the same frequencies; from -1
    to 1 (Cohen 1960, eq. 1)."""
    low: float
    """Lower end of kappa's 95 % interval, by resampling items."""
    high: float
    """Upper end."""
    disagreement: float
    """Share of items on which the judge's own votes differ."""
    unjudged: int
    """Items on which it gave no verdict."""


@dataclass(frozen=True)
class Misled:
    """What changes verdicts and should not."""

    worthless: float
    """Share of worthless answers that are rewarded: master keys, claims, the copied question, a
    forged turn of the judge."""
    worst: str
    """The one that is rewarded most often; empty if none is."""
    padding: float | None
    """Share of verdicts that change if filler makes an answer four times as long; None for
    criteria, which may be about length."""
    order: float | None
    """Share of pairs whose winner depends on their order; None if there are none."""


Labelled = tuple[Item, dict[str, str]]


def read_labelled(path: str | Path) -> list[Labelled]:
    """Return the items of a calibration file with their labels.

    A line has `question`, `answer`, `label`, and `reference`, `criteria` (a list of `{"name",
    "text"}`) or `other`. The label is true or false; of criteria, an object with one for each name;
    of a pair `better`, `same` or `worse`.

    Raises:
        ConfigurationError: It cannot be read, a line is something else, there are fewer than 100
            lines, or all labels are the same.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").split("\n")
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"calibration: cannot read {path}: {error}") from error
    # Not `read_lines`: it leaves out a last line that has no end, as editors may leave it.
    found = [
        _labelled(line, f"{path}, line {n}") for n, line in enumerate(lines, 1) if line.strip()
    ]
    labels = {label for _, decided in found for label in decided.values()}
    if len(found) < LEAST_ITEMS or len(labels) < 2:
        raise ConfigurationError(
            f"calibration: {path} must have at least {LEAST_ITEMS} labelled answers, and both "
            f"labels; it has {len(found)} and {', '.join(sorted(labels)) or 'no label'}"
        )
    return found


def _labelled(text: str, place: str) -> Labelled:
    line = parse_as(text, dict[str, Any], place, ConfigurationError)
    known = {"question", "answer", "label", "reference", "criteria", "other"}
    try:
        if unknown := sorted(line.keys() - known):
            raise ValueError(f"unknown {', '.join(unknown)}")
        criteria = tuple(
            Criterion(str(c["name"]), str(c["text"])) for c in line.get("criteria", [])
        )
        texts = {name: line.get(name) for name in ("question", "answer", "reference", "other")}
        for name, given in texts.items():
            if not isinstance(given, str) and (given is not None or name in ("question", "answer")):
                raise ValueError(f"{name} must be a text")
        item = Item(**texts, criteria=criteria)
        label = line["label"]
        if item.kind == "pair":
            decided = {"pair": label}
        else:
            each = label if item.criteria else {"right": label}
            decided = {name: {True: "yes", False: "no"}[each[name]] for name in item.names}
        if not set(decided.values()) <= POINTS.keys():
            raise ValueError(f"label {label!r}")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(f"calibration: {place}: {error}") from error
    return item, decided


def agreement(labelled: Sequence[Labelled], judge: UncheckedJudge) -> Agreement:
    """Let a judge grade labelled answers.

    Raises:
        UnreachableError: It fails.
        JudgeError: It cannot be used.
    """
    verdicts = _verdicts(judge, [item for item, _ in labelled])
    pairs = [
        [(label[name], verdict.decided.get(name, "none")) for name in item.names]
        for (item, label), verdict in zip(labelled, verdicts, strict=True)
    ]
    whole = [pair for each in pairs for pair in each]
    labels = Counter(label for label, _ in whole)
    rng = np.random.default_rng(0)
    drawn = rng.integers(len(pairs), size=(_RESAMPLES, len(pairs)))
    kappas = [kappa([pair for i in row for pair in pairs[i]]) for row in drawn]
    low, high = np.percentile(kappas, [2.5, 97.5])
    return Agreement(
        len(labelled),
        sorted({item.kind for item, _ in labelled}),
        len(whole),
        sum(a == b for a, b in whole) / len(whole),
        labels.most_common(1)[0][1] / len(whole),
        kappa(whole),
        float(low),
        float(high),
        sum(verdict.disagreement for verdict in verdicts) / len(verdicts),
        sum(not verdict.decided for verdict in verdicts),
    )


def kappa(pairs: Sequence[tuple[str, str]]) -> float:
    """Return Cohen's kappa of two raters' labels; 0 if both always say the same one label."""
    n = len(pairs)
    observed = sum(a == b for a, b in pairs) / n
    first, second = Counter(a for a, _ in pairs), Counter(b for _, b in pairs)
    chance = sum(first[label] * second[label] for label in first) / n**2
    return 0.0 if chance == 1 else (observed - chance) / (1 - chance)


def misled(labelled: Sequence[Labelled], judge: UncheckedJudge) -> Misled:
    """Try to mislead a judge with answers to the questions of labelled ones.

    Raises:
        UnreachableError: It fails.
        JudgeError: It cannot be used.
    """
    items = [item for item, _ in labelled]
    by_question = list({item.question: item for item in items}.values())[:_QUESTIONS]
    rewarded: Counter[str] = Counter()
    tried = 0
    answers = {repr(text): [text] * len(by_question) for text in (*MASTER_KEYS, *CLAIMS)}
    answers["the copied question"] = [item.question for item in by_question]
    answers["a forged turn of the judge"] = [forged(item) for item in by_question]
    for named, texts in answers.items():
        given = [replace(item, answer=text) for item, text in zip(by_question, texts, strict=True)]
        rewarded[named] += sum(map(_rewarded, given, _verdicts(judge, given)))
        tried += len(given)
    plain = [item for item in items if not item.criteria]
    changed = None
    if plain:
        before = _verdicts(judge, plain)
        after = _verdicts(judge, [replace(i, answer=padded(i.answer)) for i in plain])
        same = [a.decided == b.decided for a, b in zip(before, after, strict=True)]
        changed = same.count(False) / len(same)
    pairs = [item for item in items if item.kind == "pair"]
    turned = None
    if pairs:
        votes = [judge.orders(item) for item in pairs]
        turned = sum(first != second for first, second in votes) / len(votes)
    worst, most = rewarded.most_common(1)[0]
    return Misled(rewarded.total() / tried, worst if most else "", changed, turned)


def _rewarded(item: Item, verdict: JudgeVerdict) -> bool:
    """Whether a worthless answer earns more than it should.

    `:` does not mention what it must not mention: of criteria and pairs that a program can decide,
    an answer may earn what is true of it. Where none can, half of the score is too much. The
    reference itself may always be right.
    """
    try:
        right = float(equals_reference(item))
        fair = right if item.kind == "right" else item.score(decide(item))
    except ConfigurationError:
        return verdict.score >= _TOO_MUCH
    return verdict.score > fair


def padded(answer: str) -> str:
    """Return an answer with filler behind it, four times as long."""
    times = -(-3 * max(len(answer), 1) // len(_PADDING))
    return answer + _PADDING * times


def _verdicts(judge: UncheckedJudge, items: Sequence[Item]) -> list[JudgeVerdict]:
    with boundary("grader"):
        return list(_given(judge.verdicts(items)))


def _given(found: Iterable[JudgeVerdict | JudgeFailure]) -> Iterable[JudgeVerdict]:
    for each in found:
        if isinstance(each, JudgeFailure):
            raise UnreachableError(each.message)
        yield each


def require_calibrated(settings: JudgeSettings, name: str, store: Store) -> Agreement:
    """Make sure that a judge agrees with its calibration file; the store keeps the report.

    Raises:
        ConfigurationError: The file cannot be used.
        UnreachableError: The judge fails.
        JudgeError: Its kappa is below `least_kappa`.
    """
    if settings.calibration is None:
        raise ConfigurationError("a judge without a calibration file cannot be calibrated")
    labelled = read_labelled(settings.calibration)
    told = settings.instructions()
    content = [[item.to_dict(), decided, messages(item, told)] for item, decided in labelled]
    identity = digest([settings.identity(), settings.votes, content])

    def made() -> dict[str, Any]:
        judge = UncheckedJudge(settings, name)
        try:
            return asdict(agreement(labelled, judge))
        finally:
            judge.close()

    found = Agreement(**store.report(identity, made))
    if found.kappa < settings.least_kappa:
        raise JudgeError(
            f"judge {name!r}: kappa with {settings.calibration} is {found.kappa:.2f} "
            f"({found.low:.2f} to {found.high:.2f}), below least_kappa = "
            f"{settings.least_kappa:g}; a constant verdict agrees in {found.constant:.0%}, the "
            f"judge in {found.agreement:.0%}. Take another model or template"
        )
    return found

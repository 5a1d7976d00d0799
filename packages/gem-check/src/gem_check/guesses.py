"""The check `guesses`: in single-turn environments, answers that solve nothing must earn nothing.

Tries constants, pieces of the prompt, other items' recorded answers, and the item's recorded answer
with its numbers replaced. Such an answer may be right by chance. Not counted against the
environment are therefore items whose recorded answer equals the guess, and all items of one
recorded answer (the best paid), of which the guess may be another spelling.

Where answers are graded in parts (`graded_in_parts`), a guess must not win; what it earns is not
looked at.

Where an item has many right answers, a constant can be one of them. What such a constant wins is
the floor of the environment: the check says it, and faults it above `COIN + MIN_FLOOR_MARGIN`.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gem.core import Env
from gem_check.playing import answer_like, content_of, cpu_time, shown, won
from gem_check.scores import COIN, MIN_FLOOR_MARGIN
from gem_check.subject import FaultError, SkipCheck, Subject

_ITEMS = 12
# A suspicion is confirmed on this many times as many items.
_CONFIRM = 4
_FEWEST_ITEMS = 4
# CPU seconds per second of `Subject.cpu_s`, after which no further item is tried.
_SECONDS = 2.0
_MAX_NUMBERS = 40

_CONSTANTS = (
    *("nan", "0", "[]", "True", "1", "", "{}", "inf", "-inf", "-1", "2", "False", "None", "null"),
    *("yes", "no", "A", "?", '""', "[[]]", "0.", "0/0", "1e999", "n a n", "8*3*1*1"),
    "0 1 2 3 4 5 6 7 8 9",
)
# Right answers to some items of tasks that have many: a conclusion, a colouring of ten vertices.
_LUCKY = ("P", "Q", json.dumps({str(vertex): vertex % 3 + 1 for vertex in range(10)}))
_BY_LUCK = "the lucky constant "
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?")
_LISTED = re.compile(r"^\W{0,3}(?:\d+[.):]|[-*])\s+(.+)$", re.MULTILINE)


@dataclass(frozen=True)
class _Item:
    prompt: str
    recorded: str | None
    state: bytes


def check_guesses(subject: Subject) -> str:
    """Answers that solve nothing earn nothing, beyond being right by chance."""
    episodes = subject.random.episodes
    if any(len(episode.steps) != 1 or not episode.done for episode in episodes):
        raise SkipCheck("an episode has several turns")
    example = episodes[0].actions[0]
    slow = len(subject.seeds) < 4
    earned, tried, n = _earned(subject, example, _ITEMS // 3 if slow else _ITEMS, None, slow)
    suspects = {name for name, (mean, _) in earned.items() if mean > MIN_FLOOR_MARGIN}
    lucky: dict[str, float] = {}
    if suspects:
        earned, _, n = _earned(subject, example, _CONFIRM * _ITEMS, suspects, slow)
    for name in [name for name in earned if name.startswith(_BY_LUCK)]:
        mean, doubt = earned[name]
        if mean - 2 * doubt <= COIN + MIN_FLOOR_MARGIN:
            lucky[name.removeprefix(_BY_LUCK)] = earned.pop(name)[0]
    # The kind of answer with the highest lower bound (mean minus two standard errors).
    worst = max(earned, key=lambda name: earned[name][0] - 2 * earned[name][1], default="")
    mean, doubt = earned.get(worst, (0.0, 0.0))
    if suspects and mean - 2 * doubt > MIN_FLOOR_MARGIN:
        others = sum(value > MIN_FLOOR_MARGIN for value, _ in earned.values()) - 1
        more = f", and {others} more do" if others else ""
        raise FaultError(
            f"{worst} as the answer earns {mean:.2f} of the reward in {n} items where it is not "
            f"the recorded answer{more}"
        )
    most = max((value for value, _ in earned.values()), default=0.0)
    luckiest = max(lucky, key=lambda text: lucky[text], default="")
    floor = ""
    if luckiest and lucky[luckiest] > max(most, MIN_FLOOR_MARGIN):
        floor = (
            f"; the constant {luckiest:.60} is right by luck in {lucky[luckiest]:.2f} of the items"
        )
    return f"{tried} answers that solve nothing earn at most {most:.2f} in {n} items{floor}"


def _earned(
    subject: Subject, example: str, count: int, only: set[str] | None, slow: bool
) -> tuple[dict[str, tuple[float, float]], int, int]:
    """Measure what each kind of answer earns beyond being right by chance; lucky ones, in all.

    Returns:
        Mean and standard error by kind of answer, number of kinds, number of items.
    """
    env = subject.factory()
    parts = getattr(env.unwrapped, "graded_in_parts", False)
    items = [_item(env, seed) for seed in range(count)]
    paid: dict[str, list[tuple[str | None, float]]] = defaultdict(list)
    began = cpu_time()
    # A suspicion is always confirmed on all items.
    limit = _SECONDS * subject.cpu_s if only is None else math.inf
    done = 0
    for place, item in enumerate(items):
        worth: dict[str, float] = {}
        for name, text in _guesses(items, place, slow and only is None):
            if only is not None and name not in only:
                continue
            lucky = name.startswith(_BY_LUCK)
            if not lucky and _same(text, item.recorded):
                paid[name].append((item.recorded, 0.0))
                continue
            if text not in worth:
                env.restore(item.state)
                step = env.step(answer_like(example, text))
                share = 0.0 if parts else step[1] / subject.max_return
                worth[text] = max(share, float(won(step)), 0.0)
            paid[name].append((item.recorded, worth[text]))
        done += 1
        if done >= _FEWEST_ITEMS and cpu_time() - began > limit:
            break
    means = {}
    for name, rewards in paid.items():
        by_answer: dict[str | None, float] = defaultdict(float)
        for recorded, reward in rewards:
            by_answer[recorded] += reward
        by_chance = max((v for answer, v in by_answer.items() if answer is not None), default=0.0)
        if name.startswith(_BY_LUCK):
            by_chance = 0.0
        mean = (sum(by_answer.values()) - by_chance) / done
        squares = sum((reward - mean) ** 2 for _, reward in rewards) / done
        means[name] = mean, math.sqrt(squares / done)
    return means, len(means), done


def _item(env: Env, seed: int) -> _Item:
    prompt = shown(env.reset(seed=seed)[0])
    state = env.snapshot()
    try:
        recorded = content_of(env.oracle_action())
    except NotImplementedError:
        recorded = None
    return _Item(prompt, recorded, state)


def _same(text: str, recorded: str | None) -> bool:
    if recorded is None:
        return False
    if "".join(text.split()).casefold() == "".join(recorded.split()).casefold():
        return True
    try:
        return float(text) == float(recorded)
    except ValueError:
        return False


def _guesses(items: Sequence[_Item], place: int, slow: bool) -> Iterator[tuple[str, str]]:
    """Yield the guesses for one item, each after a name that says how it is made."""
    for text in _CONSTANTS[: 6 if slow else None]:
        yield repr(text), text
    for text in _LUCKY:
        yield f"{_BY_LUCK}{text!r}", text
    golds = [item.recorded for item in items if item.recorded is not None]
    if golds:
        for ahead in (1, 2, 3)[: 1 if slow else None]:
            other = items[(place + ahead) % len(items)].recorded
            if other is not None:
                yield f"the answer {ahead} items ahead", other
        common = [text for text, _ in Counter(golds).most_common(3)]
        for rank, text in enumerate(common[: 1 if slow else None], 1):
            yield f"the recorded answer that is number {rank} in frequency", text
    if slow:
        return
    if 1 < len(set(golds)) <= 10:
        yield "all recorded answers together", " ".join(sorted(set(golds)))
    yield from _echoes(items[place].prompt)
    recorded = items[place].recorded
    if recorded is not None and _NUMBER.search(recorded):
        for text in ("nan", "inf", "0", "1"):
            yield (f"the recorded answer with {text} for every number", _NUMBER.sub(text, recorded))
        if _NUMBER.fullmatch(recorded):
            other = recorded[1:] if recorded.startswith("-") else f"-{recorded}"
            yield "the recorded number with the other sign", other


def _echoes(prompt: str) -> Iterator[tuple[str, str]]:
    """Yield guesses made from a prompt; the question is all but its last paragraph."""
    question = prompt.rsplit("\n\n", 1)[0].strip()
    paragraphs = [part.strip() for part in question.split("\n\n")]
    lines = [line.strip() for line in question.splitlines() if line.strip()]
    yield "the prompt", prompt
    yield "the question", question
    yield "the last paragraph of the question", paragraphs[-1]
    yield "the first line of the question", lines[0] if lines else ""
    yield "the last line of the question", lines[-1] if lines else ""
    yield "what follows the last colon", question.rsplit(":", 1)[-1].strip()
    grid = paragraphs[-1].rsplit(":\n", 1)[-1]
    yield "what follows the last line that ends in a colon", grid
    listed = [text.rstrip(" .") for text in _LISTED.findall(question)]
    if listed:
        yield "the first thing listed", listed[0]
        yield "the last thing listed", listed[-1]
    for where, two in (("first", listed[:2]), ("last", listed[-2:])):
        if len(two) == 2:
            for word in ("∧", "and", ","):
                yield f"the {where} two things listed, with {word!r}", f"({f' {word} '.join(two)})"
    for where, text in (("first", paragraphs[0]), ("last", paragraphs[-1])):
        numbers = _NUMBER.findall(text)[:_MAX_NUMBERS]
        if numbers:
            yield from _of_numbers(f"the {where} paragraph", numbers)


def _of_numbers(where: str, numbers: list[str]) -> Iterator[tuple[str, str]]:
    yield f"the first number of {where}", numbers[0]
    yield f"the last number of {where}", numbers[-1]
    yield f"the largest number of {where}", max(numbers, key=float)
    if len(numbers) == 1:
        return
    for sign in (" ", ", ", " + ", "*", " × "):
        yield f"the numbers of {where} joined by {sign.strip()!r}", sign.join(numbers)
    yield f"the list of the numbers of {where}", json.dumps(numbers)
    for name, value, others in (
        ("first", numbers[0], numbers[1:]),
        ("last", numbers[-1], numbers[:-1]),
    ):
        product = "*".join(others)
        yield f"the {name} number of {where} and 0 times the others", f"{value} + 0*({product})"
        yield (
            f"the {name} number of {where} made of y/y and 0 times the others",
            f"(y-y)*({product})+{_of_units(abs(int(float(value))))}",
        )


def _of_units(number: int) -> str:
    """Return a formula with the value `number` that contains no digits."""
    text = one = "(y/y)"
    for digit in f"{min(number, 10**6):b}"[1:]:
        text = f"(({one}+{one})*{text}{f'+{one}' if digit == '1' else ''})"
    return text

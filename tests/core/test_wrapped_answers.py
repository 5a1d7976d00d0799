r"""Typesetting around the whole of an answer changes nothing: in every id whose answers are texts.

An episode of the oracle (of random play where there is none) is played again with each of its
answers set in `\text{}`, in `$ $`, in quotes and so on: every step pays what it paid.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import gem
from gem.core import Env, Step
from gem.envs.datasets import SingleTurnEnv
from gem.errors import MissingExtraError
from gem.grading.wrapping import readings, unwrapped, visible
from gem_check.offline import offline_parameters

COMMANDS = (
    *("text", "textbf", "textit", "texttt", "textrm", "mathrm", "mathbf", "mathit", "mbox"),
    *("boldsymbol", "operatorname", "underline", "emph"),
)
INVISIBLE = tuple(
    map(chr, [*range(0x200B, 0x2010), *range(0x2060, 0x2064), 0xFEFF, 0xAD, 0xFE0F, 0x34F, 0x180E])
)
AROUND = {
    **{f"\\{name}{{}}": f"\\{name}{{@}}" for name in COMMANDS},
    "$ $": "$@$",
    "$$ $$": "$$@$$",
    "\\( \\)": "\\(@\\)",
    "\\[ \\]": "\\[ @ \\]",
    "**": "**@**",
    "*": "*@*",
    "`": "`@`",
    '"': '"@"',
    "'": "'@'",
    "“”": "“@”",
    "a point": "@.",
    "\\text{} in $ $": "$\\text{@}$",
    "** in \\text{}": "\\text{**@**}",
    "U+200B on both sides": "\u200b@\u200b",
}
BEHIND = "\n(I was asked to put it {}.)"
BETWEEN = "an invisible character inside"
# What a talk about the form looks like, for each form.
EMPTY = {"\\boxed{": "in \\boxed{}", "<answer>": "as <answer></answer>"}
MOST_STEPS = 12

# One or two of each family, those that read their answers in their own way among them.
SAMPLE = (
    *("game:GuessTheNumber-v0-easy", "game:Wordle-v0-easy", "game:Sokoban-v0-easy"),
    *("game:Crosswords-v0-easy", "game:Minesweeper-v0-easy", "game:WikiGame-v0-easy"),
    *("game:TowerofHanoi-v0-easy", "game:Sudoku-v0-easy", "game:Hangman-v0-easy"),
    *("multi:RockPaperScissors-v0", "multi:TicTacToe-v0", "multi:Negotiation-v0"),
    *("openspiel:kuhn_poker", "rg:basic_arithmetic", "rg:word_sorting", "rg:time_intervals"),
    *("rg:knights_knaves", "rg:figlet_font", "rg:number_sorting", "rg:fraction_simplification"),
    *("logic:RuleTaker-d1", "qa:HotpotQA", "math:GSM8K", "eval:MATH500", "eval:Minerva"),
)


class NoAnswersError(Exception):
    """Why an id has no answers to wrap."""


def content(action: str) -> tuple[str, str, str]:
    """Return what is before an action's answer, the answer, and what is behind it."""
    for begin, end in (("\\boxed{", "}"), ("<answer>", "</answer>")):
        start, stop = action.find(begin), action.rfind(end)
        if 0 <= start < stop:
            start += len(begin)
            return action[:start], action[start:stop], action[stop:]
    raise NoAnswersError("its answers are neither in a box nor in a tag")


def wrappings(action: str) -> dict[str, str]:
    """Return an action with its answer in every wrapping, by the wrapping's name."""
    before, answer, after = content(action)
    wrapped = {
        name: f"{before}{around.replace('@', answer)}{after}" for name, around in AROUND.items()
    }
    form = next(begin for begin in EMPTY if before.endswith(begin))
    wrapped["an empty one behind"] = action + BEHIND.replace("{}", EMPTY[form])
    # Not between a backslash and a brace, where it would open or close the box.
    place = next((i for i in range(1, len(answer)) if answer[i - 1] != "\\"), 0)
    wrapped[BETWEEN] = f"{before}{answer[:place]}{''.join(INVISIBLE)}{answer[place:]}{after}"
    return wrapped


LETTERS = frozenset({"judge:Better-v0", "judge:Reply-v0"})
"""Ids whose answer is a whole letter. A judge sees it as its reader would, wrapping included."""


def made(id: str) -> Env:
    return gem.make(id, **offline_parameters(id))


def act(env: Env) -> str:
    try:
        return env.oracle_action()
    except NotImplementedError:
        return env.sample_random_action()


def facts(step: Step) -> Any:
    return float(step[1]), step[2], step[3], step[4].get("success"), step[4].get("format_error")


def losses(id: str, seeds: int, counts: Counter[str]) -> list[str]:
    """Play an id plain and wrapped; return where it differs, and count what was compared."""
    env = made(id)
    differing = []
    played = False
    for seed in range(seeds):
        env.reset(seed=seed)
        actions: list[str] = []
        plain: list[Any] = []
        while len(actions) < MOST_STEPS and not (plain and (plain[-1][1] or plain[-1][2])):
            actions.append(act(env))
            plain.append(facts(env.step(actions[-1])))
        if isinstance(env.unwrapped, SingleTurnEnv) and not plain[0][3]:
            continue
        played = True
        wrapped = [wrappings(action) for action in actions]
        for name in wrapped[0]:
            env.reset(seed=seed)
            for place, (action, expected) in enumerate(zip(actions, plain, strict=True)):
                told = facts(env.step(wrapped[place].get(name, action)))
                counts["steps"] += 1
                if told != expected:
                    differing.append(f"{id}, seed {seed}, {name}: {action!r:.80} {told}")
                    break
            counts["episodes"] += 1
    env.close()
    if not played:
        raise NoAnswersError("it records no right answer")
    counts["ids"] += 1
    return differing


@pytest.mark.parametrize("id", SAMPLE)
def test_a_wrapped_answer_earns_what_the_plain_one_earns(id: str) -> None:
    assert not losses(id, 1, Counter())


@pytest.mark.slow
@pytest.mark.nightly
def test_wrapped_answers_earn_what_plain_ones_earn_in_every_id() -> None:
    counts: Counter[str] = Counter()
    without: dict[str, list[str]] = {}
    differing = []
    for id in gem.list_envs():
        if id in LETTERS:
            without.setdefault("its answer is a whole letter", []).append(id)
            continue
        try:
            differing += losses(id, 3, counts)
        except (NoAnswersError, MissingExtraError) as error:
            without.setdefault(str(error), []).append(id)
    print(f"{counts['ids']} ids, {len(AROUND) + 2} wrappings, {counts['episodes']} episodes,")
    print(f"{counts['steps']} steps; {len(differing)} episodes differ")
    for reason, ids in without.items():
        print(f"left out, {reason}: {', '.join(ids)}")
    assert not differing, "\n".join(differing[:40])
    assert counts["ids"] >= 190


def test_no_environment_has_a_way_of_its_own_to_find_boxes() -> None:
    folder = Path(gem.__file__).parent / "envs"
    # The command in a regular expression, not in a text.
    finding = re.compile(r"\\\\(?:\(\?:)?f?box(?:ed)?[^\n]*(?:\\\{|\[\^)")
    for path in folder.rglob("*.py"):
        assert not finding.search(path.read_text(encoding="utf-8")), path


@pytest.mark.parametrize("character", INVISIBLE, ids=lambda c: f"U+{ord(c):04X}")
def test_invisible_characters_do_not_count(character: str) -> None:
    for text in (f"{character}Paris", f"Pa{character}ris", f"Paris{character}"):
        assert visible(text) == unwrapped(text) == "Paris"
        assert "Paris" in readings(text)


def test_characters_that_are_drawn_are_kept() -> None:
    for text in ("é", "東京", "naïve", "٣", "\u0600٣", "a\u0301", "🙂", "x\u00a0y"):
        assert visible(text) == text


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        (r"\text{up}", "up"),
        (r"\text{ \textbf{ **up** } }.", "up"),
        (r"$\mathrm{up}$", "up"),
        (r"\operatorname*{up}", "up"),
        (r"\text{a} and \text{b}", r"\text{a} and \text{b}"),
        (r"\frac{1}{2}", r"\frac{1}{2}"),
        (r"\text{a}^{2}", r"\text{a}^{2}"),
        (r"\text{\{1}", r"\{1"),
        (r"\text{}", r"\text{}"),
        ("1, 2...", "1, 2..."),
        ("It is so..", "It is so"),
        ("5'", "5'"),
        ('"', '"'),
        ("$", "$"),
        ("**", "**"),
        ("", ""),
    ],
)
def test_only_what_is_around_the_whole_answer_is_taken_away(text: str, inside: str) -> None:
    assert unwrapped(text) == inside


def test_the_text_as_it_is_written_is_the_first_reading() -> None:
    assert readings('"a"') == ('"a"', "a")
    assert readings(r"\text{move\_left}") == (
        r"\text{move\_left}",
        r"move\_left",
        "move_left",
    )
    assert readings("5") == ("5",)


def test_a_megabyte_of_layers_is_read_at_once() -> None:
    for layer in ("\\text{", "**", "$", '"', "\u200b", "."):
        readings(layer * 1_000_000)
    readings("\\text{" * 200_000 + "}" * 200_000)

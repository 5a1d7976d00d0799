"""Answer formats: what the prompt asks for is what is read."""

from __future__ import annotations

import pickle
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gem.grading.braces import boxed_moves, boxed_texts
from gem.grading.formats import (
    ANSWER_TAG,
    ANSWER_TAG_BOXED,
    BOXED,
    FENCED_CODE,
    FORMATS,
    LAST_NUMBER,
    THINK_ANSWER_TAG,
    THINK_BOXED,
    AnswerFormat,
)
from gem_math.grading import grade

every_format = pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
MARKING = {name: form for name, form in FORMATS.items() if form is not LAST_NUMBER}
every_marking_format = pytest.mark.parametrize("form", MARKING.values(), ids=MARKING)
MEGABYTE = 1_000_000


@every_marking_format
@given(answer=st.text(st.characters(exclude_characters="\\{}<>`", codec="utf-8")))
@settings(max_examples=50)
def test_what_is_wrapped_is_extracted(form: AnswerFormat, answer: str) -> None:
    assert form.extract(f"Thinking. {form.wrap(answer)} Done.") == answer.strip()


@every_marking_format
def test_latex_is_extracted_as_it_was_wrapped(form: AnswerFormat) -> None:
    answer = r"\left\{\frac{1}{2}, \sqrt{3}\right\}"
    assert form.extract(form.wrap(answer)) == answer


@every_marking_format
def test_nothing_is_extracted_where_nothing_is_marked(form: AnswerFormat) -> None:
    for reply in ("", "5", "The answer is 5.", "boxed{5}", "<answer>", "</answer>5<answer>", "```"):
        assert form.extract(reply) is None


@every_format
@given(st.text())
@settings(max_examples=50)
def test_any_reply_is_read_without_an_error(form: AnswerFormat, reply: str) -> None:
    assert form.extract(reply) is None or isinstance(form.extract(reply), str)


@every_format
@pytest.mark.parametrize(
    "part",
    ["\\boxed{", "{", "}", "\\", "<answer>", "</answer>", "```\n", "```", "`", " ", "</think> "],
)
def test_a_megabyte_of_anything_is_read_at_once(form: AnswerFormat, part: str) -> None:
    # Quadratic work would take hours here.
    form.extract(part * (MEGABYTE // len(part)))
    form.extract("\\boxed{<answer>```\n" + part * (MEGABYTE // len(part)))


@every_format
def test_the_instruction_is_about_the_markers_that_are_read(form: AnswerFormat) -> None:
    for marker in ("\\boxed{", "<answer>", "</answer>", "```", "</think>"):
        if marker in form.template:
            assert marker in form.instruction
    if form is not FENCED_CODE:
        assert ("\\boxed{" in form.instruction) == ("\\boxed{" in form.template)


@every_format
def test_formats_can_be_pickled(form: AnswerFormat) -> None:
    assert pickle.loads(pickle.dumps(form)) == form


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\boxed {x}", "x"),
        (r"\boxed{ 5 }", "5"),
        (r"\fbox{7}", "7"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        # An escaped brace is no brace.
        (r"\boxed{[0,1\}}", r"[0,1\}"),
        (r"\boxed{}", ""),
        # A box with nothing in it is talk about boxes.
        (r"\boxed{6}\boxed{}", "6"),
        (r"\boxed{6} or \boxed{ }", "6"),
        (r"\boxed{192} (I was asked to use \boxed{})", "192"),
        (r"\boxed{192}, in the form \boxed{...} as asked", "192"),
        (r"\boxed{1} or \boxed{2} in \boxed{\dots}", "1, 2"),
        (r"\boxed{} in \boxed{...}", "..."),
        (r"\boxed{6} \boxed{} \boxed{7", None),
        (r"\boxed{}\boxed{6}", "6"),
        ("\\boxed{a\nb}", "a\nb"),
        # The last one counts, even when it is left open.
        (r"\boxed{1} \boxed{2", None),
        (r"\boxed{\frac{1}{2}", None),
        (r"\boxed 5", None),
    ],
)
def test_the_last_box_is_the_answer(reply: str, answer: str | None) -> None:
    assert BOXED.extract(reply) == answer


@pytest.mark.parametrize(
    ("reply", "program"),
    [
        ("```python\nprint(1)\n```", "print(1)"),
        ("```\na\n```\ntext\n```py\nb\n```", "b"),
        ("```python \na\n```", "a"),
        ("```c++\nint x;\n```", "int x;"),
        ("```print(1)```", None),
        ("```python\nprint(1)", None),
        ("```python\ndef f():\n    return 1\n```", "def f():\n    return 1"),
    ],
)
def test_the_last_fenced_block_is_the_program(reply: str, program: str | None) -> None:
    assert FENCED_CODE.extract(reply) == program


@pytest.mark.parametrize(
    ("form", "reply", "answer"),
    [
        (ANSWER_TAG, "<answer>a</answer><answer> b </answer>", "b"),
        (ANSWER_TAG, "<answer>a</answer><answer>b", "a"),
        (ANSWER_TAG, "a</answer>", None),
        (ANSWER_TAG, "<answer>a</answer> inside <answer> </answer>", "a"),
        (ANSWER_TAG, "<answer></answer> <answer>...</answer>", "..."),
        (THINK_BOXED, r"x \boxed{1} </think> \boxed{2}", "2"),
        (THINK_BOXED, r"\boxed{2}", None),
        (THINK_BOXED, r"</think></think> \boxed{2}", None),
        (THINK_BOXED, r"\boxed{1}</think> so 2", None),
        (THINK_ANSWER_TAG, "</think> <answer>2</answer>", "2"),
        (THINK_ANSWER_TAG, r"</think> <answer>it is \boxed{2}</answer>", "2"),
        (THINK_ANSWER_TAG, r"</think> <answer>it is \boxed{2</answer>", None),
        (THINK_ANSWER_TAG, "</think>\n<answer>2</answer>", None),
        (ANSWER_TAG_BOXED, r"<answer>so \boxed{2}</answer>", "2"),
        (ANSWER_TAG_BOXED, r"\boxed{1} <answer>2</answer>", None),
    ],
)
def test_tags_and_thinking_are_told_apart(
    form: AnswerFormat, reply: str, answer: str | None
) -> None:
    assert form.extract(reply) == answer


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("7 * 7 = 49", "49"),
        ("The answer is 49.", "49"),
        ("8 - 5 = -3", "-3"),
        ("8 - 5", "5"),
        ("8-5", "5"),
        ("(8)-5", "5"),
        ("it is −3.", "-3"),
        ("$1,234.50 in all", "1,234.50"),
        ("1, 2", "2"),
        ("12,34", "34"),
        ("about .5", ".5"),
        ("3/4", "3/4"),
        ("10/5 = 2", "2"),
        (r"\boxed{7}", "7"),
        ("x=6", "6"),
        ("5kg", "5"),
        ("5 of x2", "5"),
        ("٣", None),
        ("none", None),
        ("", None),
    ],
)
def test_the_last_number_is_the_answer(reply: str, answer: str | None) -> None:
    assert LAST_NUMBER.extract(reply) == answer


@given(st.decimals(allow_nan=False, allow_infinity=False, places=3) | st.integers())
def test_a_number_is_read_as_it_was_wrapped(number: object) -> None:
    for text in (f"{number:f}" if not isinstance(number, int) else str(number), f"{number:,f}"):
        assert LAST_NUMBER.extract(f"so 2 and {LAST_NUMBER.wrap(text)}. Done") == text


@pytest.mark.parametrize("part", ["1", "1,", "-1", ".1", "1,000", "1/", "-"])
def test_a_megabyte_of_numbers_is_read_at_once(part: str) -> None:
    LAST_NUMBER.extract(part * (MEGABYTE // len(part)))


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("\\boxed{-2} and \\boxed{1}", "-2, 1"),
        ("$\\boxed{-2}$, $\\boxed{1}$ or $\\boxed{3}$.", "-2, 1, 3"),
        ("\\(\\boxed{1}\\) \\text{ and } \\(\\boxed{2}\\)", "1, 2"),
        ("\\boxed{x = 1} \\quad \\boxed{x = 2}", "x = 1, x = 2"),
        ("\\boxed{5}, \\boxed{5}", "5"),
        ("\\boxed{3}. So it is \\boxed{4}", "4"),
        ("\\boxed{3}, no, \\boxed{4}", "4"),
        ("\\boxed{3} \\boxed{4}", "3, 4"),
        ("\\boxed{1}. Or: \\boxed{2} and \\boxed{3}", "2, 3"),
        ("\\boxed{\\boxed{5}}", "5"),
        ("\\boxed{1} and \\boxed{2", None),
    ],
)
def test_boxes_that_are_joined_are_one_answer(reply: str, answer: str | None) -> None:
    assert BOXED.extract(reply) == answer


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\boxed{A} then \boxed{B}", ["A", "B"]),
        (r"\boxed{f{x}{y}}", ["f{x}{y}"]),
        (r"\boxed{a\boxed{b}}", [r"a\boxed{b}", "b"]),
        (r"\boxed{open", []),
        (r"}} \boxed{A} {", ["A"]),
        (r"{\boxed{A}", ["A"]),
        (r"\boxed{\{1,2\}}", [r"\{1,2\}"]),
        (r"\\boxed{1}", ["1"]),
        (r"\boxed{a \\}", [r"a \\"]),
    ],
)
def test_boxes_are_balanced(text: str, expected: list[str]) -> None:
    assert boxed_texts(text) == expected


@given(st.text("{}\\boxed a", max_size=60))
def test_the_braces_in_a_box_match(text: str) -> None:
    for content in boxed_texts(text):
        assert f"\\boxed{{{content}}}" in text
        bare = re.sub(r"\\\\(?!boxed\s*\{)|\\[{}]", "", content)
        assert bare.count("{") == bare.count("}")


@pytest.mark.parametrize("more", ["", "{}"])
def test_only_the_last_short_boxes_are_read_for_moves(more: str) -> None:
    boxes = [f"\\boxed{{{number}}}" for number in range(60)]
    long = f"\\boxed{{{'7' * 1001}}}"
    found = list(boxed_moves(" ".join([*boxes, long, more])))
    assert found == [str(number) for number in range(59, 10, -1)]


def test_several_boxes_are_no_hedge() -> None:
    assert not grade(BOXED.extract("\\boxed{1} or \\boxed{2}"), "2").correct
    assert grade(BOXED.extract("\\boxed{-2} and \\boxed{1}"), "1,-2").correct


def test_a_megabyte_of_joined_boxes_is_one_long_answer() -> None:
    numbers = [str(number) for number in range(MEGABYTE // 14)]
    reply = ",".join(f"\\boxed{{{number}}}" for number in numbers)
    assert BOXED.extract(reply) == ", ".join(numbers)

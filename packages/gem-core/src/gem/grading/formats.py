"""Answer formats: each has the instruction for the prompt and extracts the answer from a reply."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from gem.fences import fenced_blocks
from gem.grading.braces import Box, find_boxes

# What a box holds in a sentence about boxes.
_NOTHING = re.compile(r"(?:[\s$.…]|\\[lc]?dots(?![a-zA-Z])|\\text\s*\{\s*\})*")
# Text between boxes that are parts of one answer.
_JOINT = re.compile(
    r"(?:\s|\$|\*|\\[()\[\]])*(?:(?:[,;/|&]|"
    r"(?:\\(?:text|mbox|textrm)\s*\{[^{}]{0,40}?)?\b(?:and|or)\b(?:\s+(?:else|perhaps|maybe)\b)?(?:\s*\})?|"
    r"\b(?:alternatively|otherwise|maybe|perhaps)\b|"
    r"\\(?:q?quad|lor|vee|land|wedge|mid)(?![a-zA-Z])|\\\\|\\[,;: ])(?:\s|\$|\*|\\[()\[\]])*)+"
    # A name for the value in the next box, such as `x =`.
    r"(?:[a-zA-Z](?:_\w|_\{\w{1,3}\})?\s*=\s*)?"
)
# Between boxes side by side. A box on a new line is apart: it repeats or corrects the one before.
_BESIDE = re.compile(r"(?:[^\S\n]|\$|\\[()\[\]])*")
_MAX_JOINT = 200
# A sign belongs to a number unless something is subtracted: `8-5` ends with 5.
_NUMBER = re.compile(
    r"(?:(?<![\w)\]}])[-−])?(?<![A-Za-z_])"
    r"(?:[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?|(?<![0-9])\.[0-9]+)(?:/[0-9]+)?"
)


@dataclass(frozen=True)
class AnswerFormat:
    """How an answer is marked in a reply.

    `extract(f"... {wrap(answer)} ...") == answer` for every answer that the format can mark; an
    answer with unbalanced braces, for instance, cannot be boxed.
    """

    name: str
    """The format's identifier, for parameters and messages."""
    instruction: str
    """One sentence for the prompt that tells the policy how to mark its answer."""
    reader: Callable[[str], str | None]
    template: str
    """A reply with `{}` in place of the answer."""
    any_word: bool = True
    """Whether every text of letters and digits can be an answer."""

    def extract(self, reply: str) -> str | None:
        """Return the marked answer without surrounding whitespace, None if none is marked.

        Takes time linear in the length of the reply, whatever its content.
        """
        answer = self.reader(reply)
        return None if answer is None else answer.strip()

    def wrap(self, answer: object) -> str:
        """Return the shortest reply with this answer."""
        return self.template.replace("{}", str(answer), 1)


def _boxed(reply: str) -> str | None:
    r"""Return the content of the last `\boxed{...}` that holds something.

    An empty one behind it, or one with dots, is talk about boxes. None if there is no box, or if
    the last one is never closed. Boxes beside it, or joined to it by commas, `and`, `or` and the
    like, are parts of the same answer.
    """
    boxes = find_boxes(reply)
    if not boxes:
        return None
    last = content = _content(reply, boxes[-1])
    while boxes and content is not None and _NOTHING.fullmatch(content):
        boxes.pop()
        content = _content(reply, boxes[-1]) if boxes else None
    if content is None:
        return last
    contents = {content: None}
    begin = boxes.pop().begin
    for box in reversed(boxes):
        if box.end is None or box.end >= begin:
            break
        content = reply[box.start : box.end]
        joint = reply[box.end + 1 : begin]
        if _NOTHING.fullmatch(content) or len(joint) > _MAX_JOINT:
            break
        if not (_JOINT.fullmatch(joint) or _BESIDE.fullmatch(joint)):
            break
        # Equal boxes count once.
        contents[content] = None
        begin = box.begin
    return ", ".join(reversed(contents))


def _content(reply: str, box: Box) -> str | None:
    return None if box.end is None else reply[box.start : box.end]


def _fenced(reply: str) -> str | None:
    """Return the last closed block of Python; else of no language; else of any."""
    blocks = [block for block in fenced_blocks(reply) if block.closed]
    python = [block for block in blocks if block.python]
    unnamed = [block for block in blocks if not block.language]
    return (python or unnamed or blocks)[-1].content if blocks else None


def _tagged(reply: str) -> str | None:
    """Return the content of the last `<answer>...</answer>` that holds something.

    If none does, the last one's.
    """
    last, end = None, len(reply)
    while True:
        end = reply.rfind("</answer>", 0, end)
        start = reply.rfind("<answer>", 0, max(end, 0))
        if start < 0:
            return last
        content = reply[start + len("<answer>") : end]
        if not _NOTHING.fullmatch(content):
            return content
        last, end = content if last is None else last, start


def _boxed_after_thinking(reply: str) -> str | None:
    """Return the boxed answer after the one and only `</think>`."""
    _, *answers = reply.split("</think>")
    return _boxed(answers[0]) if len(answers) == 1 else None


def _tagged_after_thinking(reply: str) -> str | None:
    """Return the content of the tag after `</think>`, or of the box in it if there is one."""
    if "</think> <answer>" not in reply:
        return None
    content = _tagged(reply)
    return _boxed(content) if content is not None and find_boxes(content) else content


def _boxed_in_tag(reply: str) -> str | None:
    """Return the boxed answer in the last `<answer>` tag."""
    content = _tagged(reply)
    return None if content is None else _boxed(content)


def _last_number(reply: str) -> str | None:
    """Return the last number of the reply, its minus in ASCII."""
    numbers = _NUMBER.findall(reply)
    return numbers[-1].replace("−", "-") if numbers else None


BOXED = AnswerFormat(
    "boxed", "After thinking, give your final answer inside \\boxed{}.", _boxed, "\\boxed{{}}"
)
r"""The last `\boxed{...}` that holds something is the answer; none if the last box is not closed.

Boxes side by side, or joined by commas, `and`, `or` and the like, are one answer, a list:
`\boxed{1} or \boxed{2}` is `1, 2`.
"""

FENCED_CODE = AnswerFormat(
    "fenced_code",
    "After thinking, give your complete program in one fenced code block that begins with "
    "```python on a line of its own.",
    _fenced,
    "```python\n{}\n```",
)
"""The last fenced block of Python is the answer; if there is none, the last block without a
language, or else with another one (`gem.fences`)."""

ANSWER_TAG = AnswerFormat(
    "answer_tag",
    "Think first, inside <think> </think>, then give only your final answer inside "
    "<answer> </answer>.",
    _tagged,
    "<answer>{}</answer>",
)
"""The last `<answer>` tag is the answer; `extract` does not require thinking before it."""

THINK_BOXED = AnswerFormat(
    "think_boxed",
    "Think first and end your thinking with one </think>, then give your final answer inside "
    "\\boxed{}.",
    _boxed_after_thinking,
    "</think> \\boxed{{}}",
)
"""A box after exactly one `</think>`, as the R1 models write it.

For models whose chat template knows thinking, rollouts need `thinking="text"`: otherwise they read
the thinking off before this format looks at it. The same is true of `THINK_ANSWER_TAG`.
"""

THINK_ANSWER_TAG = AnswerFormat(
    "think_answer_tag",
    "Think first, inside <think> </think>, then write one space and give your final answer inside "
    "<answer> </answer>.",
    _tagged_after_thinking,
    "</think> <answer>{}</answer>",
)
"""A tag right after the thinking; a box inside the tag is removed."""

ANSWER_TAG_BOXED = AnswerFormat(
    "answer_tag_boxed",
    "Think first, inside <think> </think>, then give your final answer as "
    "<answer> \\boxed{} </answer>.",
    _boxed_in_tag,
    "<answer> \\boxed{{}} </answer>",
)
"""A box inside the last `<answer>` tag, as Open-Reasoner-Zero asks for it."""

LAST_NUMBER = AnswerFormat(
    "last_number", "Reply with the final number.", _last_number, "{}", any_word=False
)
"""The last number of the reply is the answer: decimals, fractions such as `3/4`, and `1,000` too.

For models that do not keep to a form yet, such as small pretrained ones. Only numbers can be
answers.
"""

FORMATS = {
    form.name: form
    for form in (
        BOXED,
        FENCED_CODE,
        ANSWER_TAG,
        THINK_BOXED,
        THINK_ANSWER_TAG,
        ANSWER_TAG_BOXED,
        LAST_NUMBER,
    )
}
"""Every format by its name."""

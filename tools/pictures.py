"""The pictures of docs/concepts.md, drawn from an episode that is played and from `gem.advantage`.

python tools/pictures.py docs/images            # draw them
python tools/pictures.py docs/images --check    # exit status 1 if one is not current
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import pages

import gem
from gem import Budget, ChatFormat, Sample, Task, TurnTable, play_batch
from gem.advantage import grpo, rebn, reinforce, returns
from gem.trajectory import Trajectory

CONTEXTS = ("chat", "concat")
BATCH = {
    "task A, episode 1": [0.0, 0.0, 1.0],
    "task A, episode 2": [0.0, -0.1],
    "task B, episode 1": [1.0],
    "task B, episode 2": [0.0, 0.0, 0.0, 0.0],
}
"""Rewards of each turn: won in the third turn, a format error, won at once, out of turns."""
GROUPS = [0, 0, 1, 1]
GAMMA = 0.9
SEED = 1
"""Of an episode of three turns."""
STYLE = """\
    .obs { fill: #4a90d9; } .act { fill: #e08933; } .up { fill: #3a9d5d; } .down { fill: #c8504b; }
    .line { stroke: #888; } .void { fill: #8883; stroke: #888; stroke-dasharray: 4 3; }
    .text { fill: #333; } .label { fill: #777; }
    @media (prefers-color-scheme: dark) { .text { fill: #ddd; } .label { fill: #aaa; } }"""


def svg(title: str, width: int, height: int, parts: Sequence[str]) -> str:
    """Return a picture for light and dark pages."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            'font-family="system-ui, sans-serif" font-size="14">',
            f"  <title>{escape(title)}</title>",
            f"  <style>\n{STYLE}\n  </style>",
            *(f"  {part}" for part in parts),
            "</svg>\n",
        ]
    )


def text(x: float, y: float, words: str, css: str = "text", **attributes: str) -> str:
    """Return words at a place."""
    more = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in attributes.items())
    return f'<text class="{css}" x="{x:g}" y="{y:g}"{more}>{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, css: str) -> str:
    """Return a rectangle."""
    return (
        f'<rect class="{css}" x="{x:.4g}" y="{y:.4g}" width="{width:.4g}" height="{height:.4g}" '
        'rx="1.5"/>'
    )


def episode(context: str) -> Trajectory:
    """Play one game with the oracle's words, as tokens of the tiny model."""
    from transformers import AutoTokenizer

    from gem_cpu import tiny_model

    chat = ChatFormat(AutoTokenizer.from_pretrained(tiny_model.ensure()))
    env = gem.make("game:GuessTheNumber-v0-easy", prompt="short", hint="range")

    def oracle(requests: Sequence[object]) -> list[Sample]:
        ids = chat.encode_text(env.oracle_action()) + sorted(chat.stop_ids)[:1]
        return [Sample(ids, logprobs=None, stop_reason="stop") for _ in requests]

    task = Task(
        "game:GuessTheNumber-v0-easy", seed=SEED, params={"prompt": "short", "hint": "range"}
    )
    budget = Budget(turn_tokens=32, response_tokens=512, prompt_tokens=512)
    [played] = play_batch(
        [task], oracle, chat, budget=budget, context=context, make_env=lambda _: env
    )
    if played.failure:
        raise RuntimeError(str(played.failure))
    return played


def rows() -> str:
    """Draw the training rows of one episode, a small box a token, in two contexts."""
    parts, y = [], 26
    size, left = 7.0, 14.0
    for context in CONTEXTS:
        played = episode(context)
        made = played.training_rows()
        count = f"{len(made)} training row{'s' if len(made) > 1 else ''}"
        parts.append(
            text(
                left, y, f"context {context}: {len(played.turns)} turns, {count}", font_weight="600"
            )
        )
        y += 14
        for row in made:
            mask = [0] * len(row.prompt_ids) + list(row.mask)
            for place, sampled in enumerate(mask):
                parts.append(box(left + place * size, y, size - 1, 18, "act" if sampled else "obs"))
            y += 26
        y += 22
    longest = max(len(row.ids) for context in CONTEXTS for row in episode(context).training_rows())
    width = round(left * 2 + longest * size)
    parts += [
        box(left, y - 6, size * 2, 14, "obs"),
        text(left + 22, y + 6, "token of an observation: mask 0, read only", "label"),
        box(left + 330, y - 6, size * 2, 14, "act"),
        text(left + 352, y + 6, "sampled token: mask 1, trained on", "label"),
    ]
    return svg("One episode as rows of tokens", max(width, 640), y + 20, parts)


def _bars(
    panels: Mapping[str, Sequence[Sequence[float]]], void: Mapping[str, int] | None = None
) -> tuple[list[str], int, int]:
    """Return bars of numbers per turn: a column of panels, a row of episodes in each."""
    parts: list[str] = []
    wide, left, step, y = 250, 150, 34, 40
    largest = max(abs(value) for episodes in panels.values() for one in episodes for value in one)
    for number, name in enumerate(BATCH):
        parts.append(text(10, y + 50 + number * 84, name))
    for column, (title, episodes) in enumerate(panels.items()):
        x = left + column * wide
        parts.append(text(x, 22, title, font_weight="600"))
        for number, values in enumerate(episodes):
            middle = y + 45 + number * 84
            if (void or {}).get(title) == number:
                parts.append(box(x - 4, middle - 24, step * 4, 48, "void"))
                parts.append(text(x + 6, middle + 5, "void: left out", "label"))
                continue
            parts.append(f'<path class="line" d="M{x - 4} {middle} h{step * 4}" stroke-width="1"/>')
            for turn, value in enumerate(values):
                height = abs(value) / largest * 26
                top = middle - height if value > 0 else middle
                css = "up" if value > 0 else "down"
                parts.append(box(x + turn * step, top, 22, height, css))
                where = top - 4 if value > 0 else middle + height + 13
                parts.append(
                    text(
                        x + turn * step + 11,
                        where,
                        f"{value:.2f}",
                        "label",
                        font_size="11",
                        text_anchor="middle",
                    )
                )
    return parts, left + len(panels) * wide, y + len(BATCH) * 84


def advantages() -> str:
    """Draw what three estimators make of the same batch."""
    table = TurnTable.build(list(BATCH.values()), groups=GROUPS)
    panels = {
        "REINFORCE: the return": table.split(reinforce(table, gamma=GAMMA)),
        "ReBN: over the batch": table.split(rebn(table, gamma=GAMMA)),
        "GRPO: over the task": table.split(grpo(table)),
    }
    parts, width, height = _bars(panels)
    parts.append(text(10, height + 16, "one bar a turn; discount 0.9 per turn", "label"))
    return svg("Advantages of one batch", width, height + 30, parts)


def void() -> str:
    """Draw ReBN of a batch in which an episode failed: as a reward of 0, and left out."""
    failed = 3
    valid = [number != failed for number in range(len(BATCH))]
    rewards = list(BATCH.values())
    wrong = TurnTable.build(rewards, groups=GROUPS)
    right = TurnTable.build(rewards, groups=GROUPS, valid=valid)
    titles = ("if it counted as reward 0", "as GEM-core does it")
    panels = {
        titles[0]: wrong.split(rebn(wrong, gamma=GAMMA)),
        titles[1]: right.split(rebn(right, gamma=GAMMA)),
    }
    parts, width, height = _bars(panels, void={titles[1]: failed})
    means = []
    for table in (wrong, right):
        values = [
            value
            for one, ok in zip(table.split(returns(table, GAMMA)), valid, strict=True)
            for value in one
            if ok or table is wrong
        ]
        means.append(sum(values) / len(values))
    words = f"ReBN when task B, episode 2 crashed; mean return {means[0]:.2f} and {means[1]:.2f}"
    parts.append(text(10, height + 16, words, "label"))
    return svg("A failure is not a zero", width, height + 30, parts)


PICTURES = {"rows.svg": rows, "advantages.svg": advantages, "void.svg": void}


def write(folder: Path, check: bool) -> Mapping[str, str]:
    """Draw or check all pictures; return what is wrong, by file."""
    return {
        name: pages.NOT_CURRENT
        for name, draw in PICTURES.items()
        if not pages.put(folder / name, draw(), check=check)
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Draw or check the pictures; return the exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    return pages.command("python tools/pictures.py", __doc__ or "", write, arguments)


if __name__ == "__main__":
    sys.exit(main())

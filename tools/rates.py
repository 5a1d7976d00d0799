"""Choose learning rates by runs, and draw what each came to, for baselines.py and regimes.py."""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TypeAlias

from gem_bench.plot import COLORS


def arguments() -> tuple[Path, str | None]:
    """Return the folder of the runs, and `rates` if rates are to be chosen."""
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", type=Path, help="folder of the runs")
    parser.add_argument("command", nargs="?", choices=["rates"], help="choose the learning rates")
    args = parser.parse_args()
    return args.runs, args.command


ByRate: TypeAlias = Mapping[float, Sequence[float]]
"""What each seed came to, by learning rate: the mean of success over the whole run."""


def best(by_rate: ByRate) -> float:
    """Return the learning rate with the highest mean over seeds."""
    return max(by_rate, key=lambda rate: statistics.fmean(by_rate[rate]))


def over_rates(panels: Mapping[str, Mapping[str, ByRate]], estimators: Mapping[str, str]) -> str:
    """Return a figure of means over seeds by learning rate, a panel for each experiment.

    Args:
        panels: By experiment, then estimator.
        estimators: What each is called, in the order of the legend.
    """
    wide, high, columns = 230, 170, 4
    out = []
    for index, label in enumerate(estimators.values()):
        out.append(f'<line class="g{index} mean" x1="{130 * index}" x2="{130 * index + 22}"')
        out[-1] += ' y1="10" y2="10"/>'
        out.append(text("name", 130 * index + 30, 15, label))
    for number, (title, lines) in enumerate(panels.items()):
        x0, y0 = number % columns * (wide + 60) + 34, number // columns * (high + 50) + 60
        out.append(text("name", x0, y0 - 10, title))
        rates = sorted({rate for by_rate in lines.values() for rate in by_rate})
        for tick in (0.0, 0.5, 1.0):
            y = y0 + high * (1 - tick)
            out.append(f'<line class="grid" x1="{x0}" x2="{x0 + wide}" y1="{y}" y2="{y}"/>')
            out.append(text("tick", x0 - 6, y + 4, f"{tick:g}", "end"))
        step = wide / max(1, len(rates) - 1)
        for place, rate in enumerate(rates):
            out.append(text("tick", x0 + place * step, y0 + high + 16, f"{rate:g}", "middle"))
        for index, name in enumerate(estimators):
            points = [
                (x0 + rates.index(rate) * step, y0 + high * (1 - statistics.fmean(values)))
                for rate, values in sorted(lines.get(name, {}).items())
            ]
            joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            out.append(f'<polyline class="g{index} mean" points="{joined}"/>')
            out += [
                f'<circle class="g{index} dot" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in points
            ]
    deep = math.ceil(len(panels) / columns)
    return picture(
        "Success over learning rates, mean over the run",
        columns * (wide + 60),
        deep * (high + 50) + 50,
        out,
    )


def text(kind: str, x: float, y: float, words: str, anchor: str = "start") -> str:
    """Return an SVG text."""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="{kind}" {place}>{escape(words)}</text>'


def picture(title: str, width: float, height: float, parts: Sequence[str]) -> str:
    """Return an SVG for light and dark pages."""
    light, dark = (
        "".join(f".g{i}{{--c:{pair[mode]}}}" for i, pair in enumerate(COLORS)) for mode in (0, 1)
    )
    style = (
        ".paper{fill:#fff}.name{fill:#1c2430;font-weight:600}.tick{fill:#5b6675;font-size:12px}"
        ".grid{stroke:#e3e7ed}.zero{stroke:#5b6675;stroke-width:1.6}.dot{fill:var(--c)}"
        ".whisker{stroke:var(--c);stroke-width:2}.mean{fill:none;stroke:var(--c);stroke-width:2.2}"
        f"{light}@media(prefers-color-scheme:dark){{.paper{{fill:#0f141b}}.name{{fill:#e6ebf2}}"
        f".tick{{fill:#9aa6b5}}.zero{{stroke:#9aa6b5}}.grid{{stroke:#26303d}}{dark}}}"
    )
    size = (
        f'width="{width + 28}" height="{height + 28}" viewBox="-14 -14 {width + 28} {height + 28}"'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-size="13" '
        f'font-family="system-ui, sans-serif"><title>{escape(title)}</title><style>{style}</style>'
        f'<rect class="paper" x="-14" y="-14" width="{width + 28}" height="{height + 28}"/>'
        f"{''.join(parts)}</svg>\n"
    )

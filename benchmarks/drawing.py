"""Plots of the benchmarks: lines over numbers that double, as SVG for light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from gem_bench.plot import COLORS, DASHES

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _BOTTOM = 720, 380, 56, 16, 52
_LINE = 18
"""Height of a line of the legend."""


def draw(title: str, across: str, lines: Mapping[str, Sequence[tuple[int, float]]]) -> str:
    """Return an SVG plot; both axes are logarithmic.

    Args:
        title: What is shown upwards.
        across: What is shown from left to right.
        lines: Points of each line by its name; all above 0.
    """
    xs = sorted({x for points in lines.values() for x, _ in points})
    low, high = math.log2(xs[0]), math.log2(xs[-1])
    values = [y for points in lines.values() for _, y in points]
    least, most = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    top = 40 + _LINE * len(lines)

    def px(x: float) -> float:
        return _LEFT + (math.log2(x) - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    def py(y: float) -> float:
        part = (math.log10(y) - least) / (most - least)
        return _HEIGHT - _BOTTOM - part * (_HEIGHT - _BOTTOM - top)

    def text(x: float, y: float, words: str, anchor: str = "start", kind: str = "tick") -> str:
        return f'<text class="{kind}" x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{words}</text>'

    out = [text(0, 14, title, kind="name")]
    for y in (10.0**power for power in range(least, most + 1)):
        out.append(text(_LEFT - 8, py(y) + 4, f"{y:,.12g}", "end"))
        line = f'x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{py(y):.1f}" y2="{py(y):.1f}"'
        out.append(f'<line class="grid" {line}/>')
    out += [text(px(x), _HEIGHT - _BOTTOM + 18, f"{x:,}", "middle") for x in xs]
    out.append(text((_LEFT + _WIDTH) / 2, _HEIGHT - 12, across, "middle"))
    style = []
    for index, (name, points) in enumerate(lines.items()):
        at = f"{' '.join(f'{px(x):.1f},{py(y):.1f}' for x, y in points)}"
        y = 38 + _LINE * index
        out.append(f'<line class="g{index}" x1="0" x2="26" y1="{y - 4}" y2="{y - 4}"/>')
        out += [text(34, y, name), f'<polyline class="g{index}" points="{at}"/>']
        rule = f"fill:none;stroke-width:2.6;stroke-dasharray:{DASHES[index]};stroke:"
        dark = f"@media(prefers-color-scheme:dark){{.g{index}{{stroke:{COLORS[index][1]}}}}}"
        style.append(f".g{index}{{{rule}{COLORS[index][0]}}}{dark}")
    common = (
        ".paper{fill:#fff}.name{fill:#1c2430;font-weight:600}.tick{fill:#5b6675}.grid{stroke:#e3e7ed}"
        "@media(prefers-color-scheme:dark){.paper{fill:#0f141b}.name{fill:#e6ebf2}"
        ".tick{fill:#9aa6b5}.grid{stroke:#26303d}}"
    )
    box = f'width="{_WIDTH + 28}" height="{_HEIGHT + 28}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {box} viewBox="-14 -14 {_WIDTH + 28} '
        f'{_HEIGHT + 28}" role="img" font-family="system-ui, sans-serif" font-size="12.5">'
        f"<title>{title} over {across}</title>"
        f"<style>{common}{''.join(style)}</style>"
        f'<rect class="paper" x="-14" y="-14" {box}/>{"".join(out)}</svg>\n'
    )

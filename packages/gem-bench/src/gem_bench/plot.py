"""Draws learning curves as one static SVG plot, for light and dark pages.

Thick lines are smoothed by a trailing mean over a number of iterations that the plot states. In a
group of several runs each thin line is a run, the thick line their mean and the band its 95 %
interval (Student's t over runs), at each point of the runs that reach it. A group of one run shows
the run as recorded and smoothed, without a band: one run has no variation between runs.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from gem.errors import ConfigurationError
from gem_bench.series import (
    METRICS,
    TRAIN,
    X_AXES,
    Group,
    check_recorded,
    differences,
    labels,
    landmarks,
    smooth,
)
from gem_bench.stats import is_rate, of_metric

COLORS = (
    ("#2563c9", "#6ea8ff"),
    ("#d1580b", "#ff9d5c"),
    ("#16866a", "#4fd1aa"),
    ("#8a4bc4", "#c79bf2"),
    ("#b3261e", "#ff8f87"),
    ("#7a6a00", "#dcc640"),
    ("#3d4652", "#c3ccd8"),
    ("#c2317f", "#ff93c9"),
)
"""Light and dark variant for each group; colour-blind readers can distinguish them."""
DASHES = ("none", "9 7", "3 6", "14 5 3 5", "1 6", "6 3", "18 6", "10 4 2 4 2 4")
"""Dash pattern for each group, so that both curves are visible where they coincide."""
_POINTS = 120
"""Number of x positions at which runs are averaged if their iterations differ in tokens or time."""


_WIDTH, _HEIGHT, _GAP, _MARGIN = 460, 300, 40, 14
_LEGEND_ROW, _LEGEND_GAP = 22, 22
_LEFT, _TOP, _BOTTOM = 44, 30, 44
_COLUMNS = 4
_CAPTION = 20
"""Space inside a panel for tick labels, name and axis name."""


def dashes(group: int) -> str:
    """Return the dash pattern of a group: none is drawn like another of 64."""
    return DASHES[(group + group // len(COLORS)) % len(DASHES)]


@dataclass(frozen=True)
class Line:
    """One curve without gaps, `x` ascending."""

    x: list[float]
    y: list[float]


@dataclass(frozen=True)
class Drawing:
    """The curves and band of one group in one panel."""

    runs: list[Line]
    mean: Line
    low: list[float]
    """The band's lower edge at the first points of the mean, as far as two runs reach."""
    high: list[float]

    @property
    def uneven(self) -> bool:
        """Whether some runs end earlier than others."""
        return len({run.x[-1] for run in self.runs}) > 1


def plot(
    groups: Sequence[Group],
    *,
    metrics: Sequence[str],
    x: str = "iteration",
    window: int = 20,
    panels: str | None = None,
    splits: Sequence[str] = (TRAIN,),
) -> str:
    """Return an SVG plot with a panel per metric, or per metric and value of a setting.

    Args:
        groups: As read by `load_runs`.
        metrics: Names of metrics.
        x: One of `X_AXES`.
        window: Iterations of the trailing mean.
        panels: A setting, such as `env.id`: small multiples, one for each of its values, in which
            what differs otherwise has the same line everywhere.
        splits: A line for each: `train`, or `eval:<name>`, which is drawn as recorded.

    Raises:
        ConfigurationError: No run recorded a split, or a metric in any of them, or none of a panel
            did; or the setting does not differ.
    """
    for metric in metrics:
        check_recorded(groups, splits, metric)
    names, multiples = _multiples(groups, panels)
    lines = names if len(splits) == 1 else [f"{n}, {_split(s)}" for n in names for s in splits]
    titles = [METRICS.get(metric, metric) for metric in metrics]
    drawn, uneven = [], False
    for value, members in multiples:
        for metric, title in zip(metrics, titles, strict=True):
            drawings = [
                drawing(m, metric, x, window, split) if m else None
                for m in members
                for split in splits
            ]
            if not any(drawings):
                raise ConfigurationError(
                    f"no run of the panel {value!r} recorded {metric!r} of {' or '.join(splits)}: "
                    "leave out these runs or this metric"
                )
            uneven = uneven or any(d is not None and d.uneven for d in drawings)
            name = title if value is None else value if len(metrics) == 1 else f"{value}: {title}"
            marks = landmarks(members) if metric == "success_rate" else []
            drawn.append(_panel(drawings, metric, x, name, marks))
    columns = len(metrics) if panels is None else min(len(drawn), _COLUMNS)
    inner = columns * (_WIDTH + _GAP) - _GAP
    legend, top = _legend(lines, inner)
    placed = []
    for index, panel in enumerate(drawn):
        row, column = divmod(index, columns)
        place = f"{column * (_WIDTH + _GAP)} {top + row * (_HEIGHT + _GAP)}"
        placed.append(f'<g transform="translate({place})">{panel}</g>')
    bottom = top + math.ceil(len(drawn) / columns) * (_HEIGHT + _GAP) - _GAP + _CAPTION
    caption = _text(
        "tick", 0, bottom, _caption(groups, titles if panels else [], window, splits, uneven)
    )
    width, height = inner + 2 * _MARGIN, bottom + 2 * _MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" role="img" '
        f'viewBox="{-_MARGIN} {-_MARGIN} {width} {height}" font-family="system-ui, sans-serif" '
        f'font-size="13"><title>{escape(_title(groups, titles, x))}</title>'
        f"<style>{_style(len(lines))}</style>"
        f'<rect class="paper" x="{-_MARGIN}" y="{-_MARGIN}" width="{width}" height="{height}"/>'
        f"{legend}{''.join(placed)}{caption}</svg>\n"
    )


def _multiples(
    groups: Sequence[Group], setting: str | None
) -> tuple[list[str], list[tuple[str | None, list[Group | None]]]]:
    """Return the labels of the lines, and each panel: its name, and a group or None by line."""
    if setting is None:
        return [_counted(group.label, [group]) for group in groups], [(None, list(groups))]
    if len({json.dumps(group.settings.get(setting)) for group in groups}) < 2:
        differing = ", ".join(differences([group.settings for group in groups]))
        raise ConfigurationError(
            f"no panels by {setting!r}: it is the same in all runs; these differ: {differing}"
        )
    panels: dict[str, list[Group]] = defaultdict(list)
    for group in groups:
        value = group.settings.get(setting)
        short = setting.rpartition(".")[2]
        panels[value if isinstance(value, str) else f"{short} {value}"].append(group)
    inside = {
        key: None for each in panels.values() for key in differences([g.settings for g in each])
    }
    names = labels(
        [
            (
                g.trainer if g.settings else g.label,
                {k: g.settings.get(k) for k in inside if k != "env.seed"},
            )
            for g in groups
        ]
    )
    lines: dict[str, list[Group]] = defaultdict(list)
    for name, group in zip(names, groups, strict=True):
        lines[name].append(group)
    return [_counted(name, members) for name, members in lines.items()], [
        (value, [next((g for g in each if g in members), None) for members in lines.values()])
        for value, each in panels.items()
    ]


def _counted(label: str, groups: Sequence[Group]) -> str:
    counts = sorted({len(group.runs) for group in groups})
    if counts == [1]:
        return label
    return f"{label} ({' to '.join(map(str, dict.fromkeys([counts[0], counts[-1]])))} seeds)"


def _split(name: str) -> str:
    return "sampled" if name == TRAIN else name.partition(":")[2]


def drawing(group: Group, metric: str, x: str, window: int, split: str = TRAIN) -> Drawing | None:
    """Return what to draw for a group, or None if no run of it recorded the metric."""
    window = window if split == TRAIN else 1
    curves = [run.curves[split] for run in group.runs if split in run.curves]
    raw = [line for c in curves if (line := _line(c.x(x), c.column(metric))).x]
    if not raw:
        return None
    smoothed = [Line(line.x, [v for v in smooth(line.y, window) if v is not None]) for line in raw]
    if len(raw) == 1:
        return Drawing(raw, smoothed[0], [], [])
    begin, end = max(line.x[0] for line in raw), max(line.x[-1] for line in raw)
    if x == "iteration":
        grid = sorted({v for line in raw for v in line.x if v >= begin})
    else:
        grid = [min(begin + (end - begin) * i / (_POINTS - 1), end) for i in range(_POINTS)]
    over_runs = of_metric(metric)
    estimates = [
        over_runs([interpolate(line, at) for line in smoothed if line.x[-1] >= at]) for at in grid
    ]
    return Drawing(
        smoothed,
        Line(grid, [e.mean for e in estimates]),
        [e.low for e in estimates if e.low is not None],
        [e.high for e in estimates if e.high is not None],
    )


def interpolate(line: Line, x: float) -> float:
    """Return the line's value at `x`; outside the line, the value at the nearer end."""
    after = bisect_right(line.x, x)
    if after == 0:
        return line.y[0]
    if after == len(line.x):
        return line.y[-1]
    x0, x1 = line.x[after - 1], line.x[after]
    share = (x - x0) / (x1 - x0)
    return line.y[after - 1] * (1 - share) + line.y[after] * share


def ticks(low: float, high: float) -> list[float]:
    """Return at most seven round numbers that cover the range."""
    # A range below a thousandth of the values counts as constant.
    if high - low <= 1e-3 * max(abs(low), abs(high)):
        room = abs(low) / 2 or 1.0
        low, high = low - room, high + room
    rough = (high - low) / 6
    power = 10 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, last + 1)]


def tick_label(value: float, step: float) -> str:
    """Format a tick with as many digits as its step needs; shorten thousands and millions."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if abs(step) >= size / 10 and abs(value) >= size:
            return f"{value / size:g}{unit}"
    digits = max(0, -math.floor(math.log10(step) + 1e-9)) if step < 1 else 0
    digits += not math.isclose(step * 10**digits, round(step * 10**digits))
    return f"{value:.{digits}f}"


def _line(x: list[float], y: Sequence[float | None]) -> Line:
    points = [(a, b) for a, b in zip(x, y, strict=True) if b is not None]
    return Line([a for a, _ in points], [b for _, b in points])


def _panel(
    drawings: Sequence[Drawing | None],
    metric: str,
    x: str,
    name: str,
    marks: Sequence[tuple[str, float]],
) -> str:
    shown = [d for d in drawings if d is not None]
    lines = [line for d in shown for line in [d.mean, *d.runs]]
    values = [y for line in lines for y in line.y] + [v for d in shown for v in d.low + d.high]
    if is_rate(metric):
        values += [0.0, 1.0]
    ys = ticks(min(values), max(values))
    end = max(line.x[-1] for line in lines) or 1.0
    marked = [v for v in ticks(0.0, end) if v <= end * 1.001]

    def px(v: float) -> float:
        return _LEFT + v / end * (_WIDTH - _LEFT)

    def py(v: float) -> float:
        return _HEIGHT - _BOTTOM - (v - ys[0]) / (ys[-1] - ys[0]) * (_HEIGHT - _BOTTOM - _TOP)

    def path(x: Sequence[float], y: Sequence[float]) -> str:
        return " ".join(f"{px(a):.1f},{py(b):.1f}" for a, b in zip(x, y, strict=True))

    out = [_text("name", 0, 14, name)]
    for y in ys:
        out.append(_text("tick", _LEFT - 8, py(y) + 4, tick_label(y, ys[1] - ys[0]), "end"))
        out.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH}" y1="{py(y):.1f}" y2="{py(y):.1f}"/>'
        )
    for v in marked:
        label = tick_label(v, marked[1] - marked[0])
        out.append(_text("tick", px(v), _HEIGHT - _BOTTOM + 18, label, "middle"))
    out.append(_text("tick", (_LEFT + _WIDTH) / 2, _HEIGHT - 4, X_AXES[x], "middle"))
    for index, d in enumerate(drawings):
        if d is not None and d.low:
            xs = d.mean.x[: len(d.low)]
            outline = f"{path(xs, d.high)} {path(xs[::-1], d.low[::-1])}"
            out.append(f'<polygon class="band g{index}" points="{outline}"/>')
    for index, d in enumerate(drawings):
        if d is not None:
            thin = f'<polyline class="run g{index}" points="'
            out += [f'{thin}{path(run.x, run.y)}"/>' for run in d.runs]
    for index, d in enumerate(drawings):
        if d is not None:
            out.append(f'<polyline class="mean g{index}" points="{path(d.mean.x, d.mean.y)}"/>')
    for label, y in marks:
        place = f'x1="{_LEFT}" x2="{_WIDTH}" y1="{py(y):.1f}" y2="{py(y):.1f}"'
        out.append(f'<line class="landmark" {place}/>')
        out.append(_text("tick", _WIDTH - 2, py(y) - 4, f"{label} {y:g}", "end"))
    return "".join(out)


def _text(kind: str, x: float, y: float, text: str, anchor: str = "start") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="{kind}" {place}>{escape(text)}</text>'


def _legend(labels: Sequence[str], width: int) -> tuple[str, int]:
    """Return the legend, in as many rows as needed, and the y position of the panels."""
    out, x, y = [], 0, 0
    for index, label in enumerate(labels):
        wide = 62 + int(7.4 * len(label))
        if x and x + wide > width:
            x, y = 0, y + _LEGEND_ROW
        line = f'<line class="mean g{index}" x1="{x}" x2="{x + 22}" y1="{y + 10}" y2="{y + 10}"/>'
        out += [line, _text("name", x + 30, y + 14, label)]
        x += wide
    return "".join(out), y + _LEGEND_ROW + _LEGEND_GAP


def _caption(
    groups: Sequence[Group],
    titles: Sequence[str],
    window: int,
    splits: Sequence[str],
    uneven: bool,
) -> str:
    parts = [" and ".join(titles)] if titles else []
    if window > 1 and TRAIN in splits:
        others = ", evaluations as recorded" if len(splits) > 1 else ""
        parts.append(f"trailing mean over {window} iterations{others}")
    else:
        parts.append("as recorded")
    if any(len(group.runs) > 1 for group in groups):
        parts.append("bands: 95 % interval over seeds")
    if uneven:
        parts.append("runs differ in length: mean and band are of the runs that reach a point")
    text = "; ".join(parts)
    return text[0].upper() + text[1:]


def _style(groups: int) -> str:
    light = "".join(
        f".g{i}{{--c:{COLORS[i % len(COLORS)][0]};--d:{dashes(i)}}}" for i in range(groups)
    )
    dark = "".join(f".g{i}{{--c:{COLORS[i % len(COLORS)][1]}}}" for i in range(groups))
    return (
        ".paper{fill:#fff}.name{fill:#1c2430;font-weight:600}.tick{fill:#5b6675;font-size:12px}"
        ".landmark{stroke:#5b6675;stroke-dasharray:2 4}.grid{stroke:#e3e7ed}"
        ".mean{fill:none;stroke:var(--c);stroke-width:2.6;"
        "stroke-dasharray:var(--d);stroke-linejoin:round;stroke-linecap:round}"
        ".run{fill:none;stroke:var(--c);stroke-width:1;opacity:.35}"
        f".band{{fill:var(--c);opacity:.14}}{light}"
        "@media(prefers-color-scheme:dark){.paper{fill:#0f141b}.name{fill:#e6ebf2}"
        f".tick{{fill:#9aa6b5}}.landmark{{stroke:#9aa6b5}}.grid{{stroke:#26303d}}{dark}}}"
    )


def _title(groups: Sequence[Group], titles: Sequence[str], x: str) -> str:
    return f"{' and '.join(titles)} over {X_AXES[x]}: {', '.join(g.label for g in groups)}"

"""Counters of a server, written in the text format of Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

_HELP = {
    "gem_serve_sessions_opened_total": "Sessions opened.",
    "gem_serve_sessions_ended_total": "Sessions ended, by what ended them.",
    "gem_serve_refusals_total": "Connections, requests and messages refused, by code.",
    "gem_serve_failures_total": "Calls in which an environment failed, by cause.",
    "gem_serve_sessions": "Open sessions.",
    "gem_serve_environments": "Environments that count against the limit.",
    "gem_serve_environments_left": "Of these, those whose session ended during a call.",
    "gem_serve_environments_most": "The limit of environments.",
    "gem_serve_draining": "1 if no session begins any more.",
}
_SECONDS = "gem_serve_call_seconds"
_BUCKETS = (0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 600.0)

Labels = tuple[tuple[str, str], ...]


class Metrics:
    """Counts; all methods are called in the server's event loop."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, Labels]] = Counter()
        self._buckets: dict[Labels, list[int]] = defaultdict(lambda: [0] * (len(_BUCKETS) + 1))
        self._seconds: defaultdict[Labels, float] = defaultdict(float)

    def count(self, name: str, **labels: str) -> None:
        """Add one to the counter `gem_serve_<name>_total`."""
        self._counts[f"gem_serve_{name}_total", tuple(labels.items())] += 1

    def time(self, seconds: float, **labels: str) -> None:
        """Add a call's duration to the histogram of calls."""
        key = tuple(labels.items())
        self._buckets[key][bisect_left(_BUCKETS, seconds)] += 1
        self._seconds[key] += seconds

    def text(self, gauges: Mapping[str, float]) -> str:
        """Return all numbers.

        Args:
            gauges: The present values of `gem_serve_<name>`.
        """
        lines: list[str] = []
        by_name: defaultdict[str, list[str]] = defaultdict(list)
        for (name, labels), count in self._counts.items():
            by_name[name].append(_line(name, labels, count))
        for name, value in gauges.items():
            by_name[f"gem_serve_{name}"].append(_line(f"gem_serve_{name}", (), value))
        for name, samples in sorted(by_name.items()):
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# HELP {name} {_HELP[name]}", f"# TYPE {name} {kind}", *samples]
        lines += [f"# HELP {_SECONDS} Seconds in an environment.", f"# TYPE {_SECONDS} histogram"]
        for labels, buckets in self._buckets.items():
            lines += self._histogram(labels, buckets)
        return "\n".join(lines) + "\n"

    def _histogram(self, labels: Labels, buckets: Iterable[int]) -> Iterable[str]:
        total = 0
        for limit, count in zip([*map(str, _BUCKETS), "+Inf"], buckets, strict=True):
            total += count
            yield _line(f"{_SECONDS}_bucket", (*labels, ("le", limit)), total)
        yield _line(f"{_SECONDS}_sum", labels, self._seconds[labels])
        yield _line(f"{_SECONDS}_count", labels, total)


def _line(name: str, labels: Labels, value: float) -> str:
    shown = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
    return f"{name}{{{shown}}} {value}" if shown else f"{name} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')

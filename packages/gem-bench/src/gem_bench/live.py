"""The live page: the report of runs while they are written.

- `Live`: follows the records, and says what changed since a page was last told.
- `serve`: an HTTP server with two addresses, `/` and `/data`; it sends no files.

The page, its curves and its episodes are those of `gem_bench.report`.
"""

from __future__ import annotations

import secrets
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from gem.errors import ConfigurationError
from gem_bench import sections
from gem_bench.following import Follower, Numbered
from gem_bench.report import (
    MOST_TOKENS,
    Vocabularies,
    as_json,
    curves_data,
    fill_page,
    run_splits,
    shown_episode,
)
from gem_bench.series import METRICS, X_AXES, Group, group_runs
from gem_bench.state import State
from gem_bench.stats import rate_over_runs
from gem_train.record import METRICS as METRICS_FILE
from gem_train.record import RUN

MOST_RUNS = 64
"""Most runs of a page: so many can be told apart by colour and dashes."""
_EVERY_MS = 2_000
"""Time between two questions of a page."""
_LEAST_S = 0.5
"""Least time between two looks at the records, however many pages ask."""
_LOCAL = ("localhost", "127.0.0.1", "[::1]", "::1")


@dataclass
class _Followed:
    """A run, and what pages were told of it."""

    run: Follower
    changed: int = 0
    """Revision in which it last changed."""
    last: int = 0
    """Number of its last episode in that revision."""


class Live:
    """The runs of a page; may be used from several threads."""

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        window: int = 20,
        episodes: int = 48,
        tokenizer: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Follow runs.

        Args:
            paths: Run folders, which may appear later, or folders of run folders.
            window: Initial smoothing of the curves.
            episodes: How many of the last episodes of each run are shown.
            tokenizer: Folder with `tokenizer.json`; by default that of each run's model.
            clock: Seconds, for the least time between two looks.
        """
        self._paths = list(paths)
        self._window = window
        self._most = episodes
        self._vocabularies = Vocabularies(tokenizer)
        self._clock = clock
        self._looked: float | None = None
        self._lock = threading.Lock()
        self._secret = secrets.token_hex(4)
        self._revision = 0
        self._runs: dict[Path, _Followed] = {}
        self._added: dict[tuple[Path, int], int] = {}
        """Revision in which each shown episode was read."""
        self._left_out = 0

    def page(self) -> str:
        """Return the page with all that is there."""
        with self._lock:
            self._look()
            update = self._changes("", 0)
            parts = update["parts"]
            data = {
                **curves_data(self._groups()),
                "window": self._window,
                "axes": X_AXES,
                "metrics": METRICS,
                "vocabularies": update["vocabularies"],
                "episodes": update["episodes"],
                "live": {
                    "layout": update["layout"],
                    "revision": update["revision"],
                    "every": _EVERY_MS,
                },
            }
        return fill_page(
            {
                "title": escape(", ".join(path.name or str(path) for path in self._paths)),
                "kind": "live",
                "training": "",
                "picture": "",
                "live": '<p class="live" id="live" role="status">Live data need JavaScript.</p>',
                "connect": "; connect-src 'self'",
                "summary": parts["summary"],
                "cards": parts["cards"],
                "table": parts["table"],
                "parity": parts["parity-table"],
                "settings": parts["settings"],
            },
            data,
        )

    def changes(self, layout: str, since: int) -> dict[str, Any]:
        """Return what a page has to take in.

        Args:
            layout: What the page was told of the order of groups and runs.
            since: The revision that it was told. With another layout everything is new.
        """
        with self._lock:
            self._look()
            return self._changes(layout, since)

    def _look(self) -> None:
        """Read what was written, unless that was done a moment ago."""
        now = self._clock()
        if self._looked is not None and now - self._looked < _LEAST_S:
            return
        self._looked = now
        folders = [folder for path in self._paths for folder in runs_in(path)]
        self._left_out = max(0, len(set(folders)) - MOST_RUNS)
        wanted = list(dict.fromkeys(folders))[:MOST_RUNS]
        self._runs = {
            folder: self._runs.get(folder) or _Followed(Follower(folder, episodes=self._most))
            for folder in wanted
        }
        self._revision += 1
        for folder, each in self._runs.items():
            if each.run.poll():
                each.changed = self._revision
            for episode in each.run.episodes:
                self._added.setdefault((folder, episode.number), self._revision)
        there = {(f, e.number) for f, each in self._runs.items() for e in each.run.episodes}
        self._added = {key: at for key, at in self._added.items() if key in there}

    def _groups(self) -> list[Group]:
        return group_runs([each.run.record for each in self._runs.values() if each.run.metrics])

    def _changes(self, layout: str, since: int) -> dict[str, Any]:
        groups = self._groups()
        places = [
            (g, r, run, self._runs[run.folder])
            for g, group in enumerate(groups)
            for r, run in enumerate(group.runs)
        ]
        now = self._layout(groups)
        if layout != now:
            since = 0
        self._vocabularies.forget()
        shown = {run.folder: _short_enough(followed.run) for _, _, run, followed in places}
        episodes = [
            shown_episode(each.record, g, r, self._vocabularies, run) | {"number": each.number}
            for g, r, run, followed in places
            for each in shown[run.folder]
            if self._added[run.folder, each.number] > since
        ]
        states = {folder: State.of(each.run) for folder, each in self._runs.items()}
        update: dict[str, Any] = {
            "layout": now,
            "revision": self._revision,
            "going": not states or not all(state.ended for state in states.values()),
            "runs": [
                {"group": g, "run": r, "splits": run_splits(run)}
                for g, r, run, followed in places
                if followed.changed > since
            ],
            "first": {
                f"{g}.{r}": shown[run.folder][0].number
                for g, r, run, _ in places
                if shown[run.folder]
            },
            "episodes": episodes,
            "vocabularies": self._vocabularies.used(),
            "parts": self._parts(groups, states, whole=layout != now),
        }
        if layout != now:
            update |= curves_data(groups)
        return update

    def _layout(self, groups: Sequence[Group]) -> str:
        """Return a text that differs where groups, runs or settings do."""
        described = [(g.label, [str(r.folder) for r in g.runs], str(g.settings)) for g in groups]
        return f"{self._secret}-{hash(str(described)) & 0xFFFFFFFF:08x}"

    def _parts(
        self, groups: Sequence[Group], states: Mapping[Path, State], *, whole: bool
    ) -> dict[str, str]:
        """Return the HTML of what changes with every look, and with `whole` of the rest."""
        rows, members = _rows(groups, states)
        problems = [problem for each in self._runs.values() for problem in each.run.problems]
        if self._left_out:
            problems.append(f"{self._left_out} more runs are left out; name fewer folders")
        notes = [f"{state.run}: {note}" for state in states.values() for note in state.notes()]
        parts = {
            "cards": "".join(
                _card(index, group, [states[run.folder] for run in group.runs])
                for index, group in enumerate(groups)
            ),
            "table": sections.numbers_table(rows, [*problems, *notes], dots=True, groups=members),
        }
        if whole:
            parts["summary"] = sections.summary(groups) if groups else "Nothing is recorded yet."
            parts["parity-table"] = sections.parity(groups)
            parts["settings"] = sections.settings(groups)
        return parts


def _short_enough(run: Follower) -> list[Numbered]:
    """Return the last episodes of a run, fewer if they are long, but at least one."""
    found: list[Numbered] = []
    tokens = 0
    for each in reversed(run.episodes):
        turns = each.record.trajectory.turns
        tokens += sum(len(turn.context_ids) + len(turn.response_ids) for turn in turns)
        if found and tokens > MOST_TOKENS:
            break
        found.append(each)
    return found[::-1]


def runs_in(path: Path) -> list[Path]:
    """Return the run folders at a path: itself, those in it, or itself for a run to come."""
    if _is_run(path):
        return [path]
    try:
        inside = sorted(each for each in path.iterdir() if _is_run(each))
    except OSError:
        inside = []
    return inside or [path]


def _is_run(path: Path) -> bool:
    return (path / RUN).exists() or (path / METRICS_FILE).exists()


def _rows(
    groups: Sequence[Group], states: Mapping[Path, State]
) -> tuple[list[list[str]], list[int | None]]:
    """Return a table with a row for each run, heading first, and the group of each."""
    found: dict[Path, int | None] = {
        run.folder: index for index, group in enumerate(groups) for run in group.runs
    }
    found |= {folder: None for folder in states if folder not in found}
    facts = {folder: states[folder].facts() for folder in found}
    heading = ["", *next(iter(facts.values()), {})]
    rows = [[states[folder].run, *facts[folder].values()] for folder in found]
    return [heading, *rows], list(found.values())


def _card(index: int, group: Group, states: Sequence[State]) -> str:
    known = [state.success for state in states if state.success is not None]
    state = states[0]
    shown = state.facts()
    facts = [
        ", ".join(dict.fromkeys(each.status for each in states)),
        f"iteration {shown['iteration']}",
        f"ETA {shown['ETA']}" if state.left_s is not None else "",
        f"{sum(sum(each.failed.values()) for each in states):,} failed",
        f"{len(states)} runs" if len(states) > 1 else "",
    ]
    estimate = rate_over_runs(known) if known else None
    return sections.card(index, group.label, estimate, "success, last 10 iterations", facts)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], live: Live) -> None:
        self.live = live
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a browser that closed its connection; show anything else."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """Answers `/` and `/data`; nothing of a request names a file."""

    server: _Server
    protocol_version = "HTTP/1.1"
    server_version = "gem-bench"
    sys_version = ""
    timeout = 30

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if not self._is_asked_for():
            self._send(HTTPStatus.FORBIDDEN, "text/plain", "this host name is not served\n")
        elif parts.path == "/":
            self._send(HTTPStatus.OK, "text/html", self.server.live.page())
        elif parts.path == "/data":
            query = parse_qs(parts.query)
            since = query.get("since", ["0"])[-1]
            update = self.server.live.changes(
                query.get("layout", [""])[-1], int(since[:18]) if since.isdecimal() else 0
            )
            self._send(HTTPStatus.OK, "application/json", as_json(update))
        else:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", "there is only / and /data\n")

    def do_HEAD(self) -> None:
        self.do_GET()

    def _is_asked_for(self) -> bool:
        """Whether the request names this machine: another site's page could not read it."""
        if str(self.server.server_address[0]) not in _LOCAL:
            return True
        host = self.headers.get("Host", "")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        return name.lower() in _LOCAL

    def _send(self, status: HTTPStatus, kind: str, text: str) -> None:
        # An episode's texts may have half a surrogate pair, which UTF-8 lacks.
        body = text.encode("utf-8", "replace")
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Frame-Options", "DENY")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: a page asks every two seconds."""


def serve(
    live: Live,
    *,
    host: str = "127.0.0.1",
    port: int = 8765,
    ready: Callable[[str, ThreadingHTTPServer], object],
) -> None:
    """Serve the page until interrupted.

    Args:
        live: The runs.
        host: Address to listen at; others than loopback let everybody who reaches it read the
            episodes.
        port: 0 takes any that is free.
        ready: Called with the page's address and the server, once it listens.

    Raises:
        ConfigurationError: The address cannot be used.
    """
    try:
        server = _Server((host, port), live)
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen at {host}, port {port}: {error}; choose another --port"
        ) from error
    with server:
        ready(f"http://{host}:{server.server_address[1]}/", server)
        server.serve_forever()

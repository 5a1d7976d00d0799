"""WikiGame: get from one page to another by following links."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from functools import lru_cache

from gem.envs.games.base import MAX_TURNS, Game, Outcome, boxed
from gem.envs.games.wiki_backends import GraphBackend, Kiwix, MediaWiki, Page, Server
from gem.errors import ConfigurationError, DataError
from gem.grading.wrapping import readings
from gem.parameters import choice, flag, integer

STEP_REWARD = -0.05
DEAD_END_REWARD = -0.1
WRONG_REWARD = -0.2
PREVIOUS = "<PREV_PAGE>"
# As `_parse` returns it.
_PREVIOUS = "<PREV PAGE>"

_SERVERS = ("mw", "kiwix")
_BACKENDS = ("graph", *_SERVERS)
_MEDIAWIKI_URL = "https://en.wikipedia.org/w/api.php"
_KIWIX_URL = "http://localhost:8080"
_UNITS = ("characters", "words", "sentences")
_MAX_CLICKS = 5
_ATTEMPTS = 10
_LONGEST_ECHO = 80
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")

_RULES = {
    "noregrets": "You cannot go back, and a page without links ends the game.",
    "oneback": (
        f"You may go back to the previous page with {boxed(PREVIOUS)}, but not twice in a row. A "
        "page without links takes you back by itself, which costs another turn."
    ),
    "freenav": f"You may go back to the previous page with {boxed(PREVIOUS)} at any time.",
    "eidetic": (
        "You may also go to any title that you have seen in this game, and back to the previous "
        f"page with {boxed(PREVIOUS)}."
    ),
}


class WikiGame(Game[str]):
    r"""Start and target page; every turn follows one link of the current page.

    Rewards: 1.0 at the target; -0.05 for any other step, 0.0 when it is the last one; -0.2 for a
    title that cannot be followed and for a text without a box, neither of which ends the game.

    Pages come from a backend: `graph`, a link graph in a file, one of which is bundled; `mw`, a
    wiki's MediaWiki API; `kiwix`, a `kiwix-serve` process. On `graph` the least number of clicks
    from start to target is at most `max_turns`, found by breadth-first search at the reset; it is
    the same in every variant, since going back makes no way shorter. The oracle knows the file as
    one knows a map and takes a shortest way. On `mw` and `kiwix` nobody knows the whole map: there
    is no oracle and no such promise, and an episode repeats only as long as the wiki stays as it
    is.

    Attributes:
        target: The page to find.
        trail: Pages from the start to the current one, those gone back from left out.
        came_back: Whether the last move went back.
        seen: Titles shown so far in this episode, in the variant `eidetic` only.
    """

    request = "Enter the title of the next page."
    action_name = "title"
    expected = "the title of a linked page"
    format_error_reward = WRONG_REWARD

    def __init__(
        self,
        max_turns: int = 10,
        page_summary_length: tuple[int, str] = (100, "characters"),
        variant: str = "noregrets",
        backend: str = "graph",
        *,
        min_clicks: int = 1,
        graph_file: str | None = None,
        url: str | None = None,
        zimfile: str | None = None,
        query_delay_ms: int = 25,
        max_query_attempts: int = 5,
        query_use_cache: bool = False,
        format_error_ends: bool = False,
        seed: int | None = None,
    ) -> None:
        r"""Set the parameters; nothing is read or asked before the first `reset`.

        Args:
            max_turns: Clicks allowed.
            page_summary_length: How much of a page is shown: a number from 0 to 10,000 and
                "characters", "words" or "sentences".
            variant: Whether going back is possible: "noregrets" (never), "oneback" (not twice in a
                row), "freenav" (always), "eidetic" (to any title seen).
            backend: "graph", "mw" or "kiwix".
            min_clicks: Least number of clicks between start and target, 1 to 5 and at most
                `max_turns`; `graph` only.
            graph_file: Link graph to use instead of the bundled one: JSON lines with `title`,
                `summary` and `links`.
            url: Address of the server: of `api.php` for `mw` (default: English Wikipedia), of
                `kiwix-serve` for `kiwix` (default: port 8080 of this machine).
            zimfile: Name of the ZIM file that `kiwix` serves.
            query_delay_ms: Pause before every question to a server, in milliseconds, 0 to 1,000.
            max_query_attempts: How often a question is asked when the server fails, 1 to 20.
            query_use_cache: Whether answers are kept for the lifetime of the environment.
            format_error_ends: Whether an action without a readable `\boxed{...}` ends the
                episode; otherwise it costs a turn. Its reward is -0.2 either way.
            seed: Seed of the first `reset` that is not given one.

        Raises:
            ConfigurationError: A value is not allowed, or belongs to another backend.
        """
        super().__init__(format_error_ends=format_error_ends, seed=seed)
        self.max_turns = integer("max_turns", max_turns, 1, MAX_TURNS)
        self.summary_length, self.summary_unit = _checked_length(page_summary_length)
        self.variant = choice("variant", variant, tuple(_RULES))
        kind = choice("backend", backend, _BACKENDS)
        self.min_clicks = integer("min_clicks", min_clicks, 1, min(_MAX_CLICKS, self.max_turns))
        asking = (
            integer("query_delay_ms", query_delay_ms, 0, 1000),
            integer("max_query_attempts", max_query_attempts, 1, 20),
            flag("query_use_cache", query_use_cache),
        )
        attempts = max_query_attempts
        for name, value, owners in (
            ("graph_file", graph_file, ("graph",)),
            ("min_clicks", min_clicks if min_clicks != 1 else None, ("graph",)),
            ("url", url, _SERVERS),
            ("zimfile", zimfile, ("kiwix",)),
            ("query_delay_ms", query_delay_ms if query_delay_ms != 25 else None, _SERVERS),
            ("max_query_attempts", attempts if attempts != 5 else None, _SERVERS),
            ("query_use_cache", query_use_cache or None, _SERVERS),
        ):
            if value is not None and kind not in owners:
                raise ConfigurationError(
                    f"{name}={value!r} needs backend {' or '.join(map(repr, owners))}, "
                    f"got backend={backend!r}"
                )
        self.backend: GraphBackend | Server
        if kind == "graph":
            self.backend = GraphBackend(graph_file)
        elif kind == "mw":
            self.backend = MediaWiki(_checked_url(url or _MEDIAWIKI_URL), *asking)
        elif not zimfile:
            raise ConfigurationError(
                f"backend='kiwix' needs zimfile, the name of the ZIM file, got zimfile={zimfile!r}"
            )
        else:
            self.backend = Kiwix(_checked_url(url or _KIWIX_URL), zimfile, *asking)

    def _start(self) -> None:
        if isinstance(self.backend, GraphBackend):
            start, self.target = self._drawn_on_graph(self.backend)
        else:
            start, self.target = self._drawn_online(self.backend)
        self.trail = [start]
        self.came_back = False
        self.seen: dict[str, None] = {}
        self._arrived()

    def _drawn_on_graph(self, backend: GraphBackend) -> tuple[Page, Page]:
        graph = backend.graph
        # One target is enough as a rule; the others are tried where few pages lead to it.
        for target in self.rng.sample(graph.titles, len(graph.titles)):
            clicks = graph.clicks_to(target)
            near = [t for t, n in clicks.items() if self.min_clicks <= n <= self.max_turns]
            if near:
                return graph.pages[self.rng.choice(near)], graph.pages[target]
        raise DataError(
            f"{backend.graph_file or 'the bundled link graph'} has no two pages that are "
            f"{self.min_clicks} to {self.max_turns} clicks apart"
        )

    def _drawn_online(self, backend: Server) -> tuple[Page, Page]:
        target = backend.random_page(self.rng)
        for _ in range(_ATTEMPTS):
            start = backend.random_page(self.rng)
            if start.title != target.title:
                return start, target
        raise DataError(f"no second page with links in {_ATTEMPTS} attempts")

    def _arrived(self) -> None:
        """Remember and draw what the current page shows."""
        page = self.trail[-1]
        self.example = boxed(page.links[0] if page.links else PREVIOUS)
        if self.variant == "eidetic":
            self.seen.update(dict.fromkeys((page.title, *page.links)))
        self._drawn = (
            f"Current page: {page.title}\n"
            f"Summary: {self._summary(page)}\n"
            f"Target page: {self.target.title}\n"
            f"Links: {_listed(page.links)}"
        )

    def _summary(self, page: Page) -> str:
        return shortened(page.summary, self.summary_length, self.summary_unit)

    def _instructions(self) -> str:
        return (
            "You are playing the Wiki Game.\n"
            "You have to get from the start page to the target page by following links, within "
            f"{self.max_turns} turns.\n"
            f"{_RULES[self.variant]}\n"
            f"Start page: {self.trail[0].title}\n"
            f"Target page: {self.target.title}\n"
            f"Summary of the target page: {self._summary(self.target)}\n"
            "After thinking, give the title of the page to go to inside \\boxed{...}, exactly as "
            "it is listed."
        )

    def _parse(self, content: str) -> str | None:
        return " ".join(content.replace("_", " ").split()) or None

    def _play(self, move: str) -> Outcome:
        for reading in readings(move):
            if reading.upper() == _PREVIOUS or self._followable(reading) is not None:
                move = reading
                break
        said = f"At turn {self.turn}, you chose {_echo(move)}"
        if move.upper() == _PREVIOUS:
            return self._go_back()
        title = self._followable(move)
        if title is None:
            return Outcome(f"{said}, {self._complaint(move)}", WRONG_REWARD, valid=False)
        page = self.backend.page(title)
        if page is None:
            return Outcome(f"{said}, which does not exist.", WRONG_REWARD, valid=False)
        self.trail.append(page)
        self.came_back = False
        self._arrived()
        if page.title == self.target.title:
            return self._won(f"reached the target page {page.title}")
        if not page.links and self.variant == "noregrets":
            return Outcome(f"{said}, which has no links: the game is over.", lost=True)
        if not page.links and self.variant == "oneback":
            self.turn += 1
            self._leave()
            return Outcome(
                f"{said}, which has no links. You are back on {self.trail[-1].title}, "
                "which cost another turn.",
                DEAD_END_REWARD,
            )
        return Outcome(f"{said}. You are on {page.title}.", STEP_REWARD)

    def _obstacle(self) -> str:
        """Return why the player may not go back, empty when it may."""
        if self.variant == "noregrets":
            return "which is not possible in this game"
        if len(self.trail) < 2:
            return "but there is no previous page"
        twice = self.variant == "oneback" and self.came_back
        return "which is not possible twice in a row" if twice else ""

    def _go_back(self) -> Outcome:
        obstacle = self._obstacle()
        if obstacle:
            said = f"At turn {self.turn}, you wanted to go back, {obstacle}."
            return Outcome(said, WRONG_REWARD, valid=False)
        self._leave()
        return Outcome(
            f"At turn {self.turn}, you went back to {self.trail[-1].title}.", STEP_REWARD
        )

    def _leave(self) -> None:
        self.trail.pop()
        self.came_back = True
        self._arrived()

    def _choices(self) -> Sequence[str]:
        """Return the titles that may be followed."""
        return self.trail[-1].links if self.variant != "eidetic" else tuple(self.seen)

    def _followable(self, move: str) -> str | None:
        """Return the title that is meant, None if there is no such choice; case is ignored."""
        choices = self._choices()
        if move in choices:
            return move
        folded = move.casefold()
        return next((title for title in choices if _folded(title) == folded), None)

    def _complaint(self, move: str) -> str:
        what = "which is not a link of this page"
        if self.variant == "eidetic":
            what = "which is not a title that you have seen"
        near = get_close_matches(move, self._choices(), n=3) if len(move) <= _LONGEST_ECHO else []
        return f"{what}. Did you mean {' or '.join(map(boxed, near))}?" if near else f"{what}."

    def _final_reward(self, outcome: Outcome) -> float:
        # The last turn's step is not charged for: it is a lost game, which pays 0.
        return -outcome.reward if outcome.valid else 0.0

    def _state(self) -> str:
        return f"way so far: {' > '.join(page.title for page in self.trail)}"

    def _random_move(self) -> str:
        links = self.trail[-1].links
        return self.action_rng.choice(links) if links else PREVIOUS

    def _oracle_move(self) -> str:
        if not isinstance(self.backend, GraphBackend):
            raise NotImplementedError("WikiGame has an oracle on backend='graph' only")
        clicks = self.backend.graph.clicks_to(self.target.title)
        leading = [title for title in self._choices() if title in clicks]
        if not leading:
            return self._random_move() if self._obstacle() else PREVIOUS
        return min(leading, key=lambda title: (clicks[title], title))


@lru_cache(maxsize=4096)
def _listed(links: tuple[str, ...]) -> str:
    return ", ".join(map(boxed, links)) or "none"


@lru_cache(maxsize=4096)
def shortened(text: str, length: int, unit: str) -> str:
    """Return the first characters, words or sentences of a text, `...` where it is cut."""
    if unit == "characters":
        kept = text[:length].rstrip()
    else:
        parts = text.split() if unit == "words" else _SENTENCE_END.split(text)
        kept = " ".join(parts[:length])
        text = " ".join(parts)
    return kept if len(kept) >= len(text.rstrip()) else f"{kept}..."


def _folded(title: str) -> str:
    return " ".join(title.replace("_", " ").split()).casefold()


def _echo(move: str) -> str:
    # Half a surrogate pair is text that no observation may have.
    move = move.encode("utf-8", "replace").decode("utf-8")
    return move if len(move) <= _LONGEST_ECHO else f"{move[:_LONGEST_ECHO]}..."


def _checked_length(value: object) -> tuple[int, str]:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise ConfigurationError(
            f"page_summary_length must be a number and one of {', '.join(_UNITS)}, got {value!r}"
        )
    return (
        integer("page_summary_length[0]", value[0], 0, 10_000),
        choice("page_summary_length[1]", value[1], _UNITS),
    )


def _checked_url(url: object) -> str:
    if not isinstance(url, str) or not re.match(r"https?://[^\s/]", url):
        raise ConfigurationError(f"url must begin with http:// or https://, got {url!r}")
    return url

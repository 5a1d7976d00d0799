"""`gem eval match`: players against each other with swapped seats, and their ratings."""

from __future__ import annotations

import argparse
import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from gem import version
from gem.__main__ import at_least
from gem.errors import ConfigurationError
from gem_bench.stats import Estimate, mean_over_tasks, over_tasks
from gem_eval import __version__
from gem_eval.judges import judges
from gem_eval.matches import Result, Side, play_matches
from gem_eval.models import (
    LOCAL,
    OF_LOCAL,
    OF_SERVERS,
    OPENAI,
    RUN,
    add_options,
    choose,
    given_options,
    model_options,
)
from gem_eval.ratings import PRIOR, RESAMPLES, Rating, Score, rate
from gem_eval.runner import Limits
from gem_eval.tables import FORMATS, Table, as_json, interval
from gem_eval.tasks import parse_tasks

_BOTH = "both"
_MODELS = (OPENAI, LOCAL, RUN)


@dataclass(frozen=True)
class Row:
    """What a player has against another, from one seat or both."""

    player: str
    against: str
    seat: str
    """Name of the agent, or `both`."""
    matches: int
    won: int
    drawn: int
    lost: int
    score: Estimate
    """Mean of 1 for a win, 0.5 for a draw and 0 for a loss."""
    total: Estimate
    """Mean return."""
    illegal: int
    """Matches in which the player made an illegal or unreadable move."""
    forfeits: int
    """Matches that the player lost because its context or budget was full."""


def main(argv: Sequence[str]) -> int:
    """Run the command; return 0.

    Raises:
        GemError: It cannot be run; the message says why.
    """
    args = _parser().parse_args(argv)
    [part, *others] = parse_tasks([args.game], episodes=args.episodes, seed=args.seed)
    if others:
        raise ConfigurationError(f"{args.game} is more than one game")
    if len(set(args.players)) < len(args.players):
        raise ConfigurationError("a player is named twice")
    _check_options(args)
    sides = {name: _side(name, args) for name in args.players}
    settings = {
        "tasks": part.tasks.uri,
        "judge": judges([part]),
        "players": {n: "" if isinstance(s, str) else dict(s.settings) for n, s in sides.items()},
    }
    models = {n: dict(s.about) for n, s in sides.items() if not isinstance(s, str)}
    versions = {"gem-core": version.__version__, "gem-eval": __version__}
    folder = args.out or Path("evals", re.sub(r"[^\w.-]+", "-", f"match-{args.game}"))
    results = play_matches(
        folder,
        part,
        sides,
        about={"settings": settings, "models": models, "versions": versions},
        resume=args.resume,
        limits=Limits(args.concurrency, args.max_failed, args.retries, args.step_timeout_s),
    )
    if not results:
        raise ConfigurationError(f"{folder} has no valid match")
    void = len(part.tasks) * len(sides) * (len(sides) - 1) - len(results)
    print(shown(part.name, results, args.players, void, args.prior, args.format))
    return 0


def shown(
    name: str, results: Sequence[Result], players: Sequence[str], void: int, prior: float, how: str
) -> str:
    """Return the tables of matches, or all of their numbers.

    Args:
        name: Of the game.
        results: The valid matches.
        players: In the order of the rows.
        void: Matches that failed.
        prior: See `gem_eval.ratings.rate`.
        how: One of `gem_eval.tables.FORMATS`.
    """
    first, _ = results[0].seats
    pairs = [row for pair in itertools.combinations(players, 2) for row in rows(results, *pair)]
    opening = over_tasks(_by_task(results, lambda each: each.points(first)))
    ratings = rate([_score(each) for each in results], prior=prior)
    if how == "json":
        data = {
            "game": name,
            "void": void,
            "pairs": [asdict(row) for row in pairs],
            "first_seat": {"agent": first, "score": asdict(opening)},
            "prior_draws": prior,
            "ratings": [asdict(each) for each in ratings],
        }
        return as_json(Table(name, [], [], data))
    remarks = [
        "score: win 1, draw 0.5, loss 0; intervals: 95 %, over tasks",
        f"{first} (moves first or is named first), whoever plays it, scores {interval(opening)}",
    ]
    if void:
        remarks.append(f"{void} matches failed and do not count")
    head = ["player", "against", "seat", "matches", "won", "drawn", "lost", "score", "return"]
    lines = [[*head, "illegal", "forfeits"], *map(_cells, pairs)]
    tables = [Table(name, lines, remarks, {}), _of_ratings(ratings, prior)]
    return "\n\n".join(map(FORMATS[how], tables))


def rows(results: Sequence[Result], player: str, against: str) -> list[Row]:
    """Return what a player has against another from each seat and from both; none unplayed."""
    found = []
    both = [each for each in results if set(each.seats.values()) == {player, against}]
    for seat in [*results[0].seats, _BOTH]:
        chosen = [each for each in both if seat == _BOTH or each.seats[seat] == player]
        if not chosen:
            continue
        agents = {id(each): _agent_of(each, player) for each in chosen}
        points = [each.points(agents[id(each)]) for each in chosen]
        found.append(
            Row(
                player,
                against,
                seat,
                len(chosen),
                points.count(1.0),
                points.count(0.5),
                points.count(0.0),
                over_tasks(_by_task(chosen, lambda each: each.points(_agent_of(each, player)))),
                mean_over_tasks(
                    _by_task(chosen, lambda each: each.rewards[_agent_of(each, player)])
                ),
                sum(bool((each.illegal or {}).get(agents[id(each)])) for each in chosen),
                sum(each.forfeit == agents[id(each)] for each in chosen),
            )
        )
    return found


def _of_ratings(ratings: Sequence[Rating], prior: float) -> Table:
    lines = [["player", "matches", "rating", "95 %"]]
    for each in ratings:
        ends = "-" if each.low is None else f"[{each.low:+.0f}, {each.high:+.0f}]"
        lines.append([each.player, f"{each.matches}", f"{each.elo:+.0f}", ends])
    remarks = [
        "Bradley-Terry on Elo's scale, mean 0; a draw is half a win of each; intervals: "
        f"{RESAMPLES} bootstrap samples of tasks; {prior:g} virtual draws for each pair",
        *(
            f"{each.player} {'lost' if each.bound == 'at least' else 'won'} no point: its rating "
            f"is {each.bound} this, how far depends on the virtual draws"
            for each in ratings
            if each.bound in ("at least", "at most")
        ),
    ]
    if undecided := [each.player for each in ratings if each.bound == "prior"]:
        remarks.append(
            f"{', '.join(undecided)}: a group of players lost no point to the others: how far "
            "ratings are apart depends on the virtual draws"
        )
    return Table("ratings", lines, remarks, {})


def _cells(row: Row) -> list[str]:
    counts = [row.matches, row.won, row.drawn, row.lost]
    cells = [row.player, row.against, row.seat, *map(str, counts)]
    return [*cells, interval(row.score), interval(row.total), f"{row.illegal}", f"{row.forfeits}"]


def _by_task(results: Sequence[Result], value: Callable[[Result], float]) -> list[list[float]]:
    tasks: dict[int, list[float]] = defaultdict(list)
    for each in results:
        tasks[each.seed].append(value(each))
    return list(tasks.values())


def _agent_of(result: Result, player: str) -> str:
    return next(agent for agent, name in result.seats.items() if name == player)


def _score(result: Result) -> Score:
    agent, other = result.seats
    return Score(result.seed, result.seats[agent], result.seats[other], result.points(agent))


def _side(name: str, args: argparse.Namespace) -> Side:
    """Return a player: a model, or else a name that the game must know."""
    if not name.startswith(_MODELS):
        return name
    served = name.startswith(OPENAI)
    model, at, url = name.partition("@") if served else (name, "", "")
    # What another player needs has no meaning here; what none needs is refused by `choose`.
    kinds = {each.startswith(OPENAI) for each in args.players if each.startswith(_MODELS)}
    foreign = () if len(kinds) == 1 else OF_LOCAL if served else OF_SERVERS
    given = {
        **vars(args),
        **{name: model_options()[name] for name in foreign},
        "model": model,
        "samples": 1,
        **({"url": url} if at else {}),
    }
    return choose(argparse.Namespace(**given))


def _check_options(args: argparse.Namespace) -> None:
    """Refuse options of models if no player is one."""
    if any(each.startswith(_MODELS) for each in args.players):
        return
    for option in given_options(args, model_options()):
        raise ConfigurationError(f"{option} would have no effect: no player is a model")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gem eval match",
        description="Let players play a game of two against each other: every pair, every task "
        "from both seats.",
        epilog="gem eval match 'multi:TicTacToe-v0?n=64' random oracle openai:qwen3@http://host/v1",
    )
    add = parser.add_argument
    add("game", metavar="GAME", help="id of a game of two agents, or a task URI")
    about = (
        "random, oracle, a script of the game, openai:NAME or openai:NAME@URL of a server, "
        "hf:MODEL, or run:FOLDER of a training run"
    )
    add("players", nargs="+", metavar="PLAYER", help=about)
    add("--out", type=Path, metavar="DIR", help="folder of the record (evals/match-<game>)")
    add("--resume", action="store_true", help="play what the record lacks")
    add("--format", choices=sorted(FORMATS), default="text", help="of what is printed")
    about = "tasks, if the URI has no n (32)"
    add("--episodes", type=at_least(int, 1), metavar="N", help=about)
    about = "first seed, if the URI has none (0)"
    add("--seed", type=at_least(int, 0), metavar="S", help=about)
    about = "virtual draws of each pair, for the ratings; above 0 (1)"
    add("--prior", type=at_least(float, 1e-6), default=PRIOR, metavar="N", help=about)
    add_options(parser)
    group = parser.add_argument_group("how it is run; may differ when it is continued")
    add = group.add_argument
    about = "most matches, and calls to a server, at a time (16)"
    add("--concurrency", type=at_least(int, 1), default=16, metavar="N", help=about)
    about = "further attempts of a match whose game failed (1)"
    add("--retries", type=at_least(int, 0), default=1, metavar="N", help=about)
    about = "limit of one reset or step of the game (600)"
    add("--step-timeout-s", type=at_least(float, 0.001), default=600.0, metavar="S", help=about)
    about = "largest share of failed matches; above it there is no result (0.1)"
    add("--max-failed", type=at_least(float, 0), default=0.1, metavar="SHARE", help=about)
    return parser

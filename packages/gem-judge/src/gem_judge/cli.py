"""The command `judge`: check a judge against labels, write labels, serve the judge by rules."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

from gem.errors import ConfigurationError
from gem_judge.asking import UncheckedJudge
from gem_judge.calibration import (
    MOST_MISLED,
    MOST_PADDED,
    Agreement,
    Misled,
    agreement,
    misled,
    read_labelled,
)
from gem_judge.named import judges_in
from gem_judge.server import RulesServer


def check(arguments: argparse.Namespace) -> int:
    """Print how far a judge agrees with its calibration file, and whether it can be misled.

    Returns:
        1 if a limit is missed.
    """
    known = judges_in(arguments.file, cached=False)
    name = arguments.judge or (next(iter(known)) if len(known) == 1 else "")
    if name not in known:
        raise ConfigurationError(
            f"--judge: {arguments.file} has the judges {', '.join(sorted(known)) or '(none)'}; "
            f"got {arguments.judge!r}"
        )
    settings = known[name]
    if settings.calibration is None:
        raise ConfigurationError(f"judge.{name}.calibration: names no file to check the judge with")
    labelled = read_labelled(settings.calibration)
    judge = UncheckedJudge(replace(settings, cache=arguments.cache), name)
    try:
        judge.check()
        found, tricks = agreement(labelled, judge), misled(labelled, judge)
    finally:
        judge.close()
    least = settings.least_kappa
    lines = [*_agreed(found, least), *_tricked(tricks)]
    for label, value, limit, fine in lines:
        print(f"{label:<24} {value:<24} {limit:<22} {'ok' if fine else 'FAILED'}".rstrip())
    passed = all(fine for *_, fine in lines)
    if arguments.json:
        report = {"judge": name, "settings": asdict(settings), "passed": passed}
        report |= {"agreement": asdict(found), "misled": asdict(tricks)}
        Path(arguments.json).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0 if passed else 1


Line = tuple[str, str, str, bool]


def _agreed(found: Agreement, least: float) -> list[Line]:
    interval = f"{found.kappa:.2f} ({found.low:.2f} to {found.high:.2f})"
    return [
        ("labelled answers", f"{found.items} ({found.decisions} decisions)", "", True),
        ("agreement", f"{found.agreement:.1%}", f"constant {found.constant:.1%}", True),
        ("kappa (95 %)", interval, f"least {least:g}", found.kappa >= least),
        ("votes differ", f"{found.disagreement:.1%}", "", True),
        ("no verdict", f"{found.unjudged}", "", True),
    ]


def _tricked(found: Misled) -> list[Line]:
    worst = f"{found.worthless:.1%}" + (f", most {found.worst}" if found.worst else "")
    lines = [
        ("worthless rewarded", worst, f"most {MOST_MISLED:.0%}", found.worthless <= MOST_MISLED)
    ]
    if found.padding is not None:
        fine = found.padding <= MOST_PADDED
        lines.append(("padding changes", f"{found.padding:.1%}", f"most {MOST_PADDED:.0%}", fine))
    if found.order is not None:
        lines.append(("order changes", f"{found.order:.1%}", "counts as the same", True))
    return lines


def labels(arguments: argparse.Namespace) -> int:
    """Write labelled answers to the tasks of an environment `judge:`."""
    from gem_judge.envs import labelled_answers

    lines = [json.dumps(each) for each in labelled_answers(arguments.id, arguments.n)]
    Path(arguments.out).write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{arguments.out}: {len(lines)} labelled answers")
    return 0


def serve(arguments: argparse.Namespace) -> int:
    """Serve the judge by rules until a signal ends the program."""
    server = RulesServer(arguments.host, arguments.port, arguments.delay_s)
    print(f"judge by rules: {server.url}", flush=True)
    try:
        server.serve_forever()
    finally:
        server.server_close()
    return 0


def main(argv: list[str]) -> int:
    """Run `judge check`, `judge labels` or `judge serve`; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m gem judge", description=__doc__)
    actions = parser.add_subparsers(required=True, metavar="ACTION")

    one = actions.add_parser("check", help="compare a judge with its calibration file")
    one.set_defaults(run=check)
    one.add_argument("file", metavar="FILE", help="RunSpec, or another file with [judge.<name>]")
    one.add_argument("--judge", default="", metavar="NAME", help="needed if there are several")
    one.add_argument("--cache", metavar="FILE", help="keep votes there; by default nowhere")
    one.add_argument("--json", metavar="FILE", help="also write the report to FILE")

    one = actions.add_parser("labels", help="write a calibration file of a judge: environment")
    one.set_defaults(run=labels)
    one.add_argument("id", metavar="ID", help="judge:Reply-v0 or judge:Better-v0")
    one.add_argument("out", metavar="FILE", help="JSON lines")
    one.add_argument("-n", type=int, default=200, help="labelled answers (default: 200)")

    one = actions.add_parser("serve", help="serve a judge by rules, to try a run with")
    one.set_defaults(run=serve)
    one.add_argument("--host", default="127.0.0.1", help="default: this machine only")
    one.add_argument("--port", type=int, default=8000)
    about = "wait before each answer"
    one.add_argument("--delay-s", type=float, default=0.0, metavar="S", help=about)

    arguments = parser.parse_args(argv)
    status: int = arguments.run(arguments)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

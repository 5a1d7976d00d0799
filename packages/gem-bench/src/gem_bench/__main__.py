"""The command line: `gem-bench compile | fit | run | watch | compare | plot | report | ...`."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gem.__main__ import show_any_text
from gem.errors import GemError
from gem.tables import flatten
from gem_bench import __version__
from gem_bench.runspec import load_hardware, load_spec
from gem_bench.trackers import NAMES as TRACKERS
from gem_train.experiment.hardware import Hardware
from gem_train.experiment.runspec import RunSpec

if TYPE_CHECKING:
    from gem_bench.run import Outcome


def main(argv: Sequence[str] | None = None, *, forks: bool = False) -> int:
    """Run the command line.

    Args:
        argv: Arguments; None takes those of this process.
        forks: Of `gem-bench run`, see `gem_bench.run.run`.

    Returns:
        0 for success; 1 if a run failed or does not fit, its audit found something or it does not
        conform; 2 if the request is impossible, with a message on standard error; 124 after a
        timeout; 130 after an interrupt.
    """
    show_any_text()
    args = _parser().parse_args(argv)
    args.forks = forks
    command: Callable[[argparse.Namespace], int] = args.call
    try:
        return command(args)
    except GemError as error:
        print(f"gem-bench: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of the pipe closed it: do not fail again when Python flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _compile(args: argparse.Namespace) -> int:
    from gem_bench import dividing
    from gem_bench.adapters import compile_launch
    from gem_bench.models import is_made, resolved
    from gem_bench.parity import command_text, parity_text, untold_text

    if args.to is None:
        return _divide(args)
    spec, hardware = _spec(args), _hardware(args)
    run_dir = args.out or Path("runs", f"{spec.name}-{args.to}")
    known = {"run_dir": run_dir, "hardware": hardware, "python": args.python}
    if is_made(spec.policy.model):  # say what is wrong before a model is made
        compile_launch(args.to, spec, **known, unchecked=True)
    spec = resolved(spec)
    launch, missing = dividing.compiled(args.to, spec, **known)
    if missing is not None:
        print(f"note: this command cannot run here: {missing}", file=sys.stderr)
    if args.json:
        print(launch.to_json())
        return 0
    print(command_text(launch))
    for name in launch.files:
        print(f"\nneeds the file {run_dir / name} (`gem-bench run` writes it)")
    print(f"\n{parity_text(flatten(spec.settings()), launch.parity)}")
    if launch.untold:
        print("\n" + "\n".join(untold_text(launch.untold)))
    if launch.passes is not None:
        print("\n" + "\n".join(dividing.table({args.to: launch.passes})))
    return 0


def _divide(args: argparse.Namespace) -> int:
    import json

    from gem_bench import dividing
    from gem_bench.models import resolved

    for option, value in (("--native", args.native), ("--python", args.python)):
        if value:
            raise GemError(f"{option} is of one trainer: give it with --to")
    spec, hardware = _spec(args), load_hardware(args.hardware, "", ())
    found = dividing.divide(resolved(spec), hardware, args.out or Path("runs", spec.name))
    if args.json:
        print(json.dumps(dividing.to_mapping(found)))
    else:
        print("\n".join(dividing.table(found)))
    return 0


def _fit(args: argparse.Namespace) -> int:
    import json

    from gem_bench import fit
    from gem_bench.models import resolved
    from gem_bench.shape import Shape, find_config

    spec, hardware = _spec(args), _hardware(args)
    nothing = fit.not_estimated(args.to, hardware)
    if nothing is not None:
        print(json.dumps({"fits": None, "why": nothing}) if args.json else nothing)
        return 0
    spec = resolved(spec)
    shape = Shape.of(find_config(spec.policy.model, args.model_config))
    found = fit.estimate(args.to, spec, hardware, shape)
    steps = list(fit.advise(args.to, spec, hardware, shape))
    strange = fit.unknown(args.to, spec, hardware)
    if args.json:
        print(json.dumps({**fit.to_mapping(found, steps), "unknown": strange}))
    else:
        print("\n".join([*fit.table(found), *fit.verdict(found, steps)]))
    if strange:
        print(f"gem-bench: {fit.unknown_text(args.to, strange)}", file=sys.stderr)
    return (2 if strange else 1) if found.shortage else 0


def _run(args: argparse.Namespace) -> int:
    from gem_bench.fit import check
    from gem_bench.run import run
    from gem_bench.trackers.beside import Beside
    from gem_train.packed import VARIABLE

    hardware = _hardware(args)
    loggers = Beside(args.log, args.out)

    def fits(spec: RunSpec) -> None:
        if args.no_fit_check or hardware.cpu:
            return
        why = check(args.to, spec, hardware)
        if why is not None:
            with contextlib.suppress(OSError):  # as at the end
                print(f"gem-bench: {why}", file=sys.stderr, flush=True)

    with loggers:
        outcome = run(
            _spec(args),
            trainer=args.to,
            run_dir=args.out,
            hardware=hardware,
            python=args.python,
            overwrite=args.overwrite,
            resume=args.resume,
            timeout_s=args.timeout,
            environment={} if args.record is None else {VARIABLE: args.record},
            warned=fits,
            begun=loggers.start,
            forks=args.forks,
        )
    return _ended(args.to, outcome)


def _start(args: argparse.Namespace) -> int:
    from gem_bench.start import as_text, measure

    for path in args.specs:
        found = measure(load_spec(path, args.set), episodes=args.episodes)
        print(as_text(found), flush=True)
    return 0


def _watch(args: argparse.Namespace) -> int:
    from gem_bench.run import STATUSES
    from gem_bench.watch import watch

    states = watch(
        args.runs,
        sys.stdout,
        sys.stderr,
        once=args.once,
        as_json=args.json,
        interval_s=args.interval,
    )
    statuses = {state.status for state in states}
    if args.once or statuses == {"finished"}:
        return 0
    return STATUSES[statuses.pop()] if len(statuses) == 1 else 1


def _log(args: argparse.Namespace) -> int:
    from gem_bench.trackers.beside import ended
    from gem_bench.trackers.follow import log

    found = log(
        args.run,
        args.to,
        project=args.project,
        name=args.name,
        once=args.once,
        interval_s=args.interval,
        say=lambda text: print(f"gem-bench log: {text}", file=sys.stderr, flush=True),
        ended=ended() if args.until_eof else lambda: False,
    )
    where = (
        f"{found.points:,} points sent"
        if found.place is None
        else f"{found.place}: {found.points:,} points sent"
    )
    with contextlib.suppress(OSError):  # the terminal or pipe may be closed
        print(f"{args.to}: {where}", file=sys.stderr, flush=True)
    return 0


def _serve(args: argparse.Namespace) -> int:
    from gem_bench.live import Live, serve

    live = Live(args.runs, window=args.window, episodes=args.episodes, tokenizer=args.tokenizer)
    with contextlib.suppress(KeyboardInterrupt):
        serve(
            live,
            host=args.host,
            port=args.port,
            ready=lambda address, _: print(f"{address}  (Ctrl-C ends it)", flush=True),
        )
    return 0


def _sweep(args: argparse.Namespace) -> int:
    from gem_bench.run import STATUSES
    from gem_bench.sweep import Changes, read, sweep

    planned = read(args.files, Changes(args.to, args.seeds, tuple(args.set)))
    if args.list:
        print("\n".join(run.name for run in planned))
        return 0
    where = ["--hardware", args.hardware]
    statuses = sweep(
        planned,
        out=args.out,
        hardware=load_hardware(args.hardware, "", ()),
        arguments=where if args.timeout is None else [*where, "--timeout", str(args.timeout)],
        jobs=args.jobs,
        say=lambda line: print(f"sweep: {line}", file=sys.stderr, flush=True),
        every_s=args.every,
    )
    ended = list(statuses.values())
    print(", ".join(f"{ended.count(each)} {each}" for each in STATUSES if each in ended))
    return STATUSES["interrupted"] if "interrupted" in ended else int(set(ended) != {"finished"})


def _ended(trainer: str, outcome: Outcome) -> int:
    """Say how a run ended; return its exit status."""
    from gem_bench.run import STATUSES

    with contextlib.suppress(OSError):  # the terminal or pipe may be closed
        print(f"{trainer}: {outcome.status}: {outcome.message}", file=sys.stderr, flush=True)
    return STATUSES[outcome.status]


def _compare(args: argparse.Namespace) -> int:
    from gem_bench.compare import RENDERERS, compare
    from gem_bench.series import load_runs

    print(RENDERERS[args.format](compare(load_runs(args.runs), window=args.window)))
    return 0


def _table(args: argparse.Namespace) -> int:
    from gem_bench.series import load_runs
    from gem_bench.table import RENDERERS, tabulate

    found = tabulate(
        load_runs(args.runs),
        rows=args.rows,
        columns=args.columns,
        metric=args.metric,
        split=args.split,
        window=args.window,
    )
    text = RENDERERS[args.format](found)
    if args.out is not None:
        return _write(args.out, text + "\n")
    print(text)
    return 0


def _plot(args: argparse.Namespace) -> int:
    from gem_bench.plot import plot
    from gem_bench.series import load_runs

    svg = plot(
        load_runs(args.runs),
        metrics=args.metrics,
        x=args.x,
        window=args.window,
        panels=args.panels,
        splits=args.splits,
    )
    return _write(args.out, svg)


def _report(args: argparse.Namespace) -> int:
    from gem_bench.report import report
    from gem_bench.series import load_runs

    html = report(
        load_runs(args.runs), window=args.window, episodes=args.episodes, tokenizer=args.tokenizer
    )
    return _write(args.out, html)


def _export(args: argparse.Namespace) -> int:
    from gem_bench.export import export

    number = export(
        args.runs,
        args.to,
        args.out,
        rows=args.rows,
        split=args.split,
        overwrite=args.overwrite,
    )
    print(f"{args.out}: {number:,} {args.rows}s")
    return 0


def _audit(args: argparse.Namespace) -> int:
    from itertools import islice

    from gem_bench.audit import audit, judge, lines
    from gem_train.record import read_run

    replay = audit(read_run(args.run), lora_init=args.lora_init, device=args.device)
    audits = list(islice(replay, args.iterations))
    for line in lines(audits):
        print(line)
    findings = judge(audits)
    for finding in findings:
        print(finding)
    return 1 if findings else 0


def _conformance(args: argparse.Namespace) -> int:
    from gem_bench.conformance import common_spec, compare_levels, table
    from gem_bench.conformance_run import EXPERIMENT, run_both
    from gem_train.record import read_run

    folders = list(args.paths)
    if args.to is None:
        for option, usual in args.of_runs_made.items():
            if getattr(args, option) != usual:
                name = "cpu" if getattr(args, option) == "cpu" else option
                raise GemError(f"conformance: --{name} is of runs that are made: give it with --to")
    else:
        if len(folders) > 1:
            raise GemError(f"conformance --to {args.to}: give one RunSpec, or none")
        args.spec = folders.pop() if folders else EXPERIMENT
        for name, folder, outcome in run_both(
            _spec(args),
            trainer=args.to,
            out=args.out or Path("runs", f"conformance-{args.to}"),
            hardware=_hardware(args),
            python=args.python,
            overwrite=args.overwrite,
            timeout_s=args.timeout,
        ):
            status = _ended(name, outcome)
            if status:
                return status
            folders.append(folder)
    if len(folders) != 2:
        raise GemError("conformance: give two run folders, or a trainer with --to")
    reference, other = map(read_run, folders)
    levels = compare_levels(reference, other, common_spec(reference, other).algorithm)
    print(table(levels))
    for each in other.meta.get("parity", []):
        if each["status"] == "unmatched":
            print(f"{other.meta['trainer']} does not match {each['name']}: {each['how']}")
    return 1 if any(level.findings for level in levels) else 0


def _write(path: Path, text: str) -> int:
    from gem_bench.report import save

    print(save(path, text))
    return 0


def _spec(args: argparse.Namespace) -> RunSpec:
    spec = load_spec(args.spec, args.set)
    return spec if args.seed is None else replace(spec, seed=args.seed)


def _hardware(args: argparse.Namespace) -> Hardware:
    return load_hardware(args.hardware, args.to, args.native)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gem-bench", description="One experiment, many trainers: run, record, compare."
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    about = "print a trainer's native command and its parity, or how all trainers divide a batch"
    p = _command(commands, "compile", _compile, about)
    p.add_argument("spec", type=Path, help="RunSpec, a TOML file")
    _trainer_arguments(
        p,
        required=False,
        to="the trainer; without it, compare passes, padding and optimiser steps of all trainers",
    )
    p.add_argument("--out", type=Path, help="run folder (default: runs/<name>-<trainer>)")
    p.add_argument("--json", action="store_true", help="print it as JSON")

    p = _command(commands, "fit", _fit, "estimate the memory that a run needs on each GPU")
    p.add_argument("spec", type=Path, help="RunSpec, a TOML file")
    _trainer_arguments(p, required=True, python=False)
    p.add_argument(
        "--model-config", type=Path, metavar="FILE", help="config.json of a model that is not here"
    )
    p.add_argument("--json", action="store_true", help="print the bytes as JSON")

    p = _command(commands, "run", _run, "run an experiment with a trainer's own launcher")
    p.add_argument("spec", type=Path, help="RunSpec, a TOML file")
    _trainer_arguments(p, required=True)
    p.add_argument("--out", type=Path, required=True, help="run folder")
    p.add_argument(
        "--record",
        type=_record,
        help="episodes in the record: all, metrics (none) or sample:<n> of every batch (default: "
        "all of a batch below 100 MB, else sample:16)",
    )
    p.add_argument(
        "--log",
        action="append",
        choices=TRACKERS,
        default=[],
        help="send the metrics to a tracker while the run goes on; can be repeated",
    )
    p.add_argument(
        "--no-fit-check", action="store_true", help="start also what does not fit on the GPUs"
    )
    _limit_arguments(p).add_argument(
        "--resume", action="store_true", help="go on with the run in the folder where it ended"
    )

    p = _command(commands, "watch", _watch, "show runs in the terminal while they are written")
    p.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run folders")
    p.add_argument("--once", action="store_true", help="show what is there and end")
    p.add_argument("--json", action="store_true", help="print a JSON object for each change")
    p.add_argument(
        "--interval",
        type=_seconds,
        default=2.0,
        metavar="SECONDS",
        help="between two looks (default: %(default)s)",
    )

    p = _command(commands, "serve", _serve, "show runs on a live page in the browser")
    _runs_arguments(p)
    p.add_argument("--host", default="127.0.0.1", help="address (default: %(default)s)")
    p.add_argument("--port", type=_integer(0), default=8765, help="0 is any (default: %(default)s)")
    p.add_argument(
        "--episodes",
        type=_integer(1),
        default=48,
        help="last episodes of a run that are shown (default: %(default)s)",
    )
    p.add_argument(
        "--tokenizer", type=Path, help="folder with tokenizer.json (default: the model's)"
    )

    p = _command(commands, "log", _log, "send a run's metrics to an experiment tracker")
    p.add_argument("run", type=Path, metavar="RUN", help="run folder")
    p.add_argument("--to", required=True, choices=TRACKERS, help="the tracker")
    p.add_argument(
        "--project", default="gem", help="the tracker's project or experiment (default: gem)"
    )
    p.add_argument("--name", help="the tracker's name of the run (default: the folder's)")
    p.add_argument("--once", action="store_true", help="send what is recorded and end")
    p.add_argument(
        "--interval",
        type=_seconds,
        default=5.0,
        metavar="SECONDS",
        help="between two looks (default: %(default)s)",
    )
    p.add_argument(
        "--until-eof", action="store_true", help="end when standard input is closed, too"
    )

    p = _command(commands, "start", _start, "make the model, print its success before training")
    p.add_argument("specs", type=Path, nargs="+", metavar="SPEC", help="RunSpecs, TOML files")
    p.add_argument(
        "--episodes", type=_integer(2), default=256, help="to play (default: %(default)s)"
    )
    _set_argument(p)

    p = _command(commands, "sweep", _sweep, "run a set of experiments, several at a time")
    p.add_argument("files", type=Path, nargs="+", metavar="SWEEP", help="sweep files, TOML")
    p.add_argument("--out", type=Path, required=True, help="folder of all runs")
    p.add_argument(
        "--jobs", type=_integer(1), default=2, help="most runs at a time (default: %(default)s)"
    )
    p.add_argument("--to", type=_words, metavar="TRAINER,...", help="only runs of these trainers")
    p.add_argument("--seeds", type=_seeds, metavar="SEED,...", help="instead of the files' seeds")
    _set_argument(p)
    _hardware_argument(p)
    p.add_argument("--timeout", type=_seconds, metavar="SECONDS", help="end a run after that")
    p.add_argument(
        "--every",
        type=_seconds,
        default=60.0,
        metavar="SECONDS",
        help="between two lines about a run (default: %(default)s)",
    )
    p.add_argument("--list", action="store_true", help="print the runs' names, run nothing")

    p = _command(commands, "compare", _compare, "compare runs in a table")
    _runs_arguments(p)
    p.add_argument("--format", choices=("text", "markdown", "json"), default="text")

    p = _command(commands, "table", _table, "tabulate runs: environments times algorithms")
    _runs_arguments(p)
    p.add_argument("--rows", default="name", metavar="KEY", help="setting (default: %(default)s)")
    p.add_argument(
        "--columns",
        default="algorithm.advantage",
        metavar="KEY",
        help="setting (default: %(default)s)",
    )
    p.add_argument("--metric", default="success_rate", help="(default: %(default)s)")
    p.add_argument("--split", default="train", help="or eval:<name> (default: %(default)s)")
    p.add_argument("--format", choices=("text", "markdown", "json"), default="text")
    p.add_argument("--out", type=Path, help="file to write instead of printing")

    p = _command(commands, "plot", _plot, "draw learning curves as an SVG picture")
    _runs_arguments(p)
    p.add_argument("--out", type=Path, required=True, help="the SVG file")
    p.add_argument(
        "--metrics",
        type=lambda text: text.split(","),
        default=["success_rate", "turns_mean"],
        help="comma-separated metrics, a panel each (default: success_rate,turns_mean)",
    )
    p.add_argument(
        "--panels", metavar="KEY", help="a panel for each value of this setting, such as env.id"
    )
    p.add_argument(
        "--splits",
        type=_words,
        default=("train",),
        metavar="SPLIT,...",
        help="a line for each: train, eval:<name> (default: train)",
    )
    p.add_argument("--x", choices=("iteration", "tokens", "time"), default="iteration")

    p = _command(commands, "report", _report, "write curves, tables and episodes as one HTML file")
    _runs_arguments(p)
    p.add_argument("--out", type=Path, required=True, help="the HTML file")
    p.add_argument(
        "--episodes",
        type=_integer(0),
        default=96,
        help="most episodes of a run that are put into the report (default: %(default)s)",
    )
    p.add_argument(
        "--tokenizer", type=Path, help="folder with tokenizer.json (default: the model's)"
    )

    p = _command(commands, "export", _export, "write episodes as Parquet or as a HF dataset")
    p.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run folders")
    p.add_argument("--to", required=True, choices=("parquet", "hf"), help="file, or folder")
    p.add_argument("--out", type=Path, required=True, help="the file or folder")
    p.add_argument(
        "--rows", choices=("turn", "episode"), default="turn", help="(default: %(default)s)"
    )
    p.add_argument("--split", help="only train, or eval:<name> (default: all)")
    p.add_argument("--overwrite", action="store_true", help="replace what is there")

    p = _command(
        commands, "audit", _audit, "replay a run's episodes through the reference, find differences"
    )
    p.add_argument("run", type=Path, metavar="RUN", help="run folder")
    p.add_argument(
        "--iterations",
        type=_integer(1),
        default=20,
        help="how many to replay (default: %(default)s)",
    )
    p.add_argument("--lora-init", metavar="FOLDER", help="adapter that the run began with")
    p.add_argument("--device", default="cpu", help="cpu, cuda or cuda:<n> (default: %(default)s)")

    p = _command(
        commands,
        "conformance",
        _conformance,
        "compare two runs token by token, or run a trainer and the reference and compare them",
    )
    p.add_argument(
        "paths",
        type=Path,
        nargs="*",
        metavar="PATH",
        help="two run folders, the reference's first; with --to a RunSpec (default: a small one)",
    )
    _trainer_arguments(p, required=False)
    p.add_argument(
        "--out", type=Path, help="folder of both runs (default: runs/conformance-<trainer>)"
    )
    _limit_arguments(p)
    made = ("out", "seed", "set", "hardware", "native", "python", "timeout", "overwrite")
    p.set_defaults(of_runs_made={option: p.get_default(option) for option in made})
    return parser


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    call: Callable[[argparse.Namespace], int],
    help: str,
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=help, description=help[0].upper() + help[1:] + ".")
    parser.set_defaults(call=call)
    return parser


def _trainer_arguments(
    parser: argparse.ArgumentParser,
    *,
    required: bool,
    to: str = "reference, verl, ...",
    python: bool = True,
) -> None:
    parser.add_argument("--to", required=required, metavar="TRAINER", help=to)
    parser.add_argument("--seed", type=_integer(0), help="replaces the spec's `seed`")
    _set_argument(parser)
    _hardware_argument(parser)
    parser.add_argument(
        "--native",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of the trainer, given to it as it is; can be repeated",
    )
    if python:
        about = "Python of the trainer's environment (default: .venvs/<trainer>, else this one)"
        parser.add_argument("--python", type=Path, help=about)


def _set_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a setting, such as algorithm.gamma=0.9; can be repeated",
    )


def _hardware_argument(parser: argparse.ArgumentParser) -> None:
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--hardware",
        default="1xh100",
        metavar="FILE",
        help="GPUs of the run: a TOML file, 1xh100, 8xh100, 2x8xh100 or cpu (default: %(default)s)",
    )
    where.add_argument(
        "--cpu",
        action="store_const",
        const="cpu",
        dest="hardware",
        help="run without a GPU: --hardware cpu",
    )


def _limit_arguments(parser: argparse.ArgumentParser) -> argparse._MutuallyExclusiveGroup:
    """Add arguments; return the group of those that say what happens to a run in the folder."""
    parser.add_argument("--timeout", type=_seconds, metavar="SECONDS", help="end a run after that")
    earlier = parser.add_mutually_exclusive_group()
    earlier.add_argument(
        "--overwrite", action="store_true", help="replace a run that is in the folder"
    )
    return earlier


def _runs_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run folders")
    parser.add_argument(
        "--window",
        type=_integer(1),
        default=20,
        help="iterations that results are averaged over (default: %(default)s)",
    )


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _seeds(text: str) -> tuple[int, ...]:
    return tuple(map(_integer(0), text.split(",")))


def _record(text: str) -> str:
    from gem_train.packed import check_record

    try:
        check_record(text)
    except GemError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {text!r}")
    return value


def _integer(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"must be an integer from {least} on, got {text!r}")
        return int(text)

    return parse


if __name__ == "__main__":
    sys.exit(main())

"""`gem eval`: plays an evaluation, or reads what one has recorded, and prints the table."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from gem import version
from gem.__main__ import at_least
from gem.errors import ConfigurationError, UnfinishedError
from gem.executors.named import NAMES, check_name
from gem.registry import spec
from gem_bench.report import save
from gem_eval import __version__, export, junit, match_command, pages, regrade
from gem_eval.comparison import compare, judge
from gem_eval.episode import Played
from gem_eval.judges import judges
from gem_eval.models import OPENAI, add_options, choose
from gem_eval.native import with_native_tools
from gem_eval.numbers import read_summary
from gem_eval.progress import Progress
from gem_eval.runner import Limits, TooManyFailedError, evaluate, holds_already, holds_run
from gem_eval.spending import Prices, Spending, SpentError
from gem_eval.tables import FORMATS, of_comparison, of_gate, of_summary
from gem_eval.tasks import parse_tasks
from gem_train.record import EpisodeRecord

JUNIT = "junit"
NATIVE = "native"
MAX_FAILED = 0.1
_EPISODES = 500
_EXAMPLES = """examples:
  gem eval suite:smoke --model oracle
  gem eval suite:smoke --model openai:qwen3 --url http://localhost:8000/v1 --out evals/qwen3
  gem eval game:Sudoku-v0-easy eval:MATH500 --model openai:qwen3 --url http://localhost:8000/v1
  gem eval 'gem:game:Wordle-v0?n=64&seed=1000' --model openai:qwen3 --url ... --samples 4
  gem eval report evals/qwen3 --format markdown
  gem eval report evals/qwen3 --out report.html
  gem eval compare evals/qwen3 evals/qwen3-tuned
  gem eval gate evals/qwen3-tuned --against evals/qwen3 --max-drop 0.02
  gem eval regrade evals/qwen3
  gem eval match 'multi:TicTacToe-v0?n=64' random oracle openai:qwen3@http://localhost:8000/v1
  gem eval export evals/qwen3 --only success --format parquet
"""


def main(argv: Sequence[str]) -> int:
    """Run the command; return 0, 1 if there is no result, or a gate's `Verdict`.

    Raises:
        GemError: It cannot be run; the message says why.
        KeyboardInterrupt: It was interrupted; the record can be continued.
    """
    if argv and argv[0] in _READERS:
        return _READERS[argv[0]](argv[1:])
    args = _parser().parse_args(argv)
    parts = parse_tasks(args.tasks, episodes=args.episodes, seed=args.seed)
    for part in parts:
        spec(part.tasks.env_id)  # a typo is said before the folder is looked at
    check_name(args.executor)
    folder = args.out or default_folder(args.model, args.tasks)
    if holds_run(folder) and not args.resume:
        raise ConfigurationError(holds_already(folder))
    model = choose(args)
    settings = {
        "tasks": [part.tasks.uri for part in parts],
        "samples": args.samples,
        "turns": args.turns,
        "judge": judges(parts),
        **model.settings,
    }
    if args.tools == NATIVE:
        if model.about.get("tier") not in ("messages", "text"):
            raise ConfigurationError(
                "--tools native needs a model that a server is asked for by messages: "
                "--model openai:NAME with --tier text or messages"
            )
        settings["tools"] = args.tools
        parts = [with_native_tools(part) for part in parts]
    about = {
        "trainer": args.model,
        "settings": settings,
        "model": model.about,
        "versions": {"gem-core": version.__version__, "gem-eval": __version__},
        "parts": [part.split for part in parts],
    }
    prices = Prices.parse(args.price) if args.price is not None else None
    spending = Spending(prices, args.max_cost, args.max_tokens_total)
    progress = Progress(sum(len(part.tasks) for part in parts) * args.samples, spending)

    def watch(played: Played) -> None:
        spending.add([*played.notes, *played.lost])
        progress.played(played.trajectory)

    def spent(notes: Mapping[str, Any]) -> None:
        spending.add([*notes.get("calls", []), *notes.get("lost", [])])

    def earlier(record: EpisodeRecord) -> None:
        spent(record.notes)
        progress.earlier(record.trajectory)

    try:
        evaluate(
            folder,
            parts,
            model.plays,
            about=about,
            samples=args.samples,
            turns=args.turns,
            resume=args.resume,
            limits=Limits(
                args.concurrency, args.max_failed, args.retries, args.step_timeout_s, args.executor
            ),
            watch=watch,
            around=model.around,
            earlier=earlier,
            replaced=spent,
        )
    except (TooManyFailedError, SpentError, UnfinishedError) as error:
        progress.end()
        _say(f"error: {error}\n{folder} has the others; --resume plays what is missing")
        return 1
    except KeyboardInterrupt:
        progress.end()
        _say(f"{folder} has what was played; --resume plays the rest")
        raise
    progress.end()
    print(FORMATS[args.format](of_summary(read_summary(folder))))
    if prices is not None:
        _say(f"cost: {spending.shown()}")
    _say(f"every episode: {folder}")
    return 0


def default_folder(model: str, tasks: Sequence[str]) -> Path:
    """Return the folder of a record that no option names: of this model and these tasks."""
    asked = "+".join(tasks)
    name = f"{model.removeprefix(OPENAI)}-{asked}"
    plain = re.sub(r"[^\w.+-]+", "-", name).strip("-")
    if len(plain) > _LONGEST_NAME or plain != name.replace(":", "-"):
        # Different tasks have different folders, also where the readable name is the same.
        plain = f"{plain[:_LONGEST_NAME]}-{blake2b(asked.encode(), digest_size=4).hexdigest()}"
    return Path("evals", plain)


_LONGEST_NAME = 80


def _report(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="gem eval report", description="Print recorded results.")
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    _add_format(parser, JUNIT)
    _add_max_failed(parser)
    about = "split environments by a parameter or an entry of the info (item.level, turns, end)"
    parser.add_argument("--by", metavar="NAME", help=about)
    about = "write a page of HTML instead, with episodes to read"
    parser.add_argument("--out", type=Path, metavar="FILE", help=about)
    about = "most episodes of an evaluation on the page (500)"
    parser.add_argument("--episodes", type=at_least(int, 0), metavar="N", help=about)
    about = "folder with tokenizer.json, for episodes with tokens (the model's)"
    parser.add_argument("--tokenizer", type=Path, metavar="DIR", help=about)
    parser.set_defaults(format=None, max_failed=None, episodes=None)
    args = parser.parse_args(argv)
    if args.out is not None:
        _refuse(args, ("format", "max_failed"), "changes what is printed; with --out nothing is")
    else:
        _refuse(args, ("episodes", "tokenizer"), "is of the page of --out FILE")
    if args.format != JUNIT:
        _refuse(args, ("max_failed",), f"is of --format {JUNIT}")
    summaries = [read_summary(folder, args.by) for folder in args.folders]
    if args.out is not None:
        most = _EPISODES if args.episodes is None else args.episodes
        page = pages.report(summaries, episodes=most, tokenizer=args.tokenizer)
        print(save(args.out, page))
        return 0
    if args.format == JUNIT:
        most_failed = MAX_FAILED if args.max_failed is None else args.max_failed
        print(junit.of_report(summaries, most_failed))
        return 0
    show = FORMATS[args.format or "text"]
    print("\n\n".join(show(of_summary(summary)) for summary in summaries))
    return 0


def _compare(argv: Sequence[str]) -> int:
    about = "Compare two evaluations task by task: what the second has more than the first."
    parser = argparse.ArgumentParser(prog="gem eval compare", description=about)
    parser.add_argument("first", type=Path, metavar="FIRST")
    parser.add_argument("second", type=Path, metavar="SECOND")
    _add_format(parser)
    args = parser.parse_args(argv)
    table = of_comparison(args.first, args.second, compare(args.first, args.second))
    print(FORMATS[args.format](table))
    return 0


def _gate(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="gem eval gate",
        description="Decide whether an evaluation is good enough.",
        epilog="exit status: 0 passed, 1 worse, 2 usage, 3 no verdict (too few tasks, or void)",
    )
    add = parser.add_argument
    add("folder", type=Path, metavar="FOLDER")
    about = "overall success that it must have"
    add("--min", type=at_least(float, 0), metavar="RATE", help=about)
    about = "an evaluation of the same tasks that it must not fall behind"
    add("--against", type=Path, metavar="FOLDER", help=about)
    about = "by how much it may fall behind (0)"
    add("--max-drop", type=at_least(float, 0), metavar="RATE", help=about)
    _add_max_failed(parser)
    _add_format(parser, JUNIT)
    args = parser.parse_args(argv)
    if args.against is None:
        _refuse(args, ("max_drop",), "is of --against FOLDER")
    verdict, reason = judge(
        args.folder,
        least=args.min,
        against=args.against,
        max_drop=args.max_drop or 0.0,
        max_failed=args.max_failed,
    )
    if args.format == "text":
        print(f"{verdict.name.lower()}: {reason}")
    elif args.format == JUNIT:
        folders = [args.folder, *([args.against] if args.against else [])]
        print(junit.of_gate([*map(read_summary, folders)], args.max_failed, verdict, reason))
    else:
        change = (args.against, compare(args.against, args.folder)) if args.against else None
        table = of_gate(verdict, reason, read_summary(args.folder), change)
        print(FORMATS[args.format](table))
    return verdict.value


_READERS = {
    "report": _report,
    "compare": _compare,
    "gate": _gate,
    "regrade": regrade.main,
    "export": export.main,
    "match": match_command.main,
}


def _refuse(args: argparse.Namespace, names: Sequence[str], why: str) -> None:
    """Refuse options that are given and would have no effect."""
    for name in names:
        if getattr(args, name) is not None:
            raise ConfigurationError(f"--{name.replace('_', '-')} {why}")


def _add_format(parser: argparse.ArgumentParser, *others: str) -> None:
    choices = sorted([*FORMATS, *others])
    parser.add_argument("--format", choices=choices, default="text", help="of what is printed")


def _add_max_failed(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-failed",
        type=at_least(float, 0),
        default=MAX_FAILED,
        metavar="SHARE",
        help="largest share of an environment's episodes that may be void (0.1)",
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gem eval",
        description="Evaluate a model, or the environment's own policies as floor and ceiling.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("tasks", nargs="+", metavar="TASKS", help="environment ids, task URIs, suite:smoke")
    about = (
        "oracle, random, noop, openai:NAME of a server, hf:MODEL, or run:FOLDER of a training run"
    )
    add("--model", required=True, help=about)
    add("--out", type=Path, metavar="DIR", help="folder of the record (evals/<model>-<tasks>)")
    add(
        "--resume",
        action="store_true",
        help="play what the record lacks, also of more samples or tasks",
    )
    _add_format(parser)

    group = parser.add_argument_group("what is played")
    add = group.add_argument
    about = "tasks of each environment whose URI has no n (32)"
    add("--episodes", type=at_least(int, 1), metavar="N", help=about)
    add("--samples", type=at_least(int, 1), default=1, metavar="K", help="episodes a task (1)")
    about = "first seed of environments whose URI has none (0)"
    add("--seed", type=at_least(int, 0), metavar="S", help=about)
    about = "most turns, besides the environment's own limit"
    add("--turns", type=at_least(int, 1), metavar="N", help=about)

    add_options(parser)
    about = "how tools are described and called: by text, or through the server's API (text)"
    parser.add_argument("--tools", choices=("text", NATIVE), default="text", help=about)

    group = parser.add_argument_group("how it is run; may differ when it is continued")
    add = group.add_argument
    about = "most episodes, and calls to the server, at a time (16)"
    add("--concurrency", type=at_least(int, 1), default=16, metavar="N", help=about)
    add("--executor", default="thread", help=f"where environments run: {NAMES} (thread)")
    about = "further attempts of an episode whose environment failed (1)"
    add("--retries", type=at_least(int, 0), default=1, metavar="N", help=about)
    about = "limit of one reset or step of an environment (600)"
    add("--step-timeout-s", type=at_least(float, 0.001), default=600.0, metavar="S", help=about)
    about = "largest share of failed episodes; above it there is no result (0.1)"
    add("--max-failed", type=at_least(float, 0), default=0.1, metavar="SHARE", help=about)
    about = "of a million tokens: in=0.4,out=1.6 or in=0.4,cached=0.1,out=1.6"
    add("--price", metavar="PRICES", help=about)
    about = "end when so much is spent, with what was spent before --resume; needs --price"
    add("--max-cost", type=at_least(float, 0), metavar="COST", help=about)
    about = "end when prompts and replies have so many tokens, with those before --resume"
    add("--max-tokens-total", type=at_least(int, 1), metavar="N", help=about)
    return parser


def _say(text: str) -> None:
    print(text, file=sys.stderr)

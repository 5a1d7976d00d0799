"""Math grading: agreement with pairs of answers that others have labelled, ours and math-verify.

python benchmarks/labels.py [CLONE...] [--disagreements FILE]

Without clones: the pairs of tests/math/data/math_graders.jsonl, all of them and those whose label
contradicts no rule of docs/math-answers.md.

Each CLONE is a clone (with or without a work tree) of one of these repositories, whose tests or
outputs hold labelled pairs; nothing of them is kept:

    github.com/huggingface/Math-Verify        github.com/huggingface/lighteval
    github.com/QwenLM/Qwen2.5-Math            github.com/hendrycks/math
    github.com/NVIDIA/NeMo-Skills             github.com/MARIO-Math-Reasoning/MARIO_EVAL

Ours is given what stands in the box, as an environment gives it, or the formula itself; a pair
whose answer has to be found in prose is left out. Math-verify reads what its own tests give it:
whole texts of Math-Verify and lighteval, which is its home advantage; elsewhere the answer between
dollar signs. "ours alone" does not ask math-verify. FN: labelled equal, ours
says different; FP: the other way.
"""

from __future__ import annotations

import argparse
import ast
import json
import logging
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from gem.grading.formats import BOXED
from gem_math.grading import grade


class Pair(NamedTuple):
    """Two answers and whether somebody holds them to be equal."""

    source: str
    gold: str
    prediction: str | None
    equal: bool


class Result(NamedTuple):
    """A pair as both graders see it."""

    pair: Pair
    gold: str
    prediction: str | None
    ours: bool
    reason: str
    theirs: bool


# Where the pairs are


def literal(node: ast.AST) -> object:
    """Return the value of an expression of constants; an `ast.AST` if it is none."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        pass
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        sides = literal(node.left), literal(node.right)
        if all(isinstance(side, (int, float)) for side in sides):
            return sides[0] / sides[1]
    return node


def parametrized(source: str) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the name of a test function and the arguments of each of its parametrized cases."""
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef):
            continue
        for decorator in function.decorator_list:
            if not isinstance(decorator, ast.Call) or len(decorator.args) < 2:
                continue
            names = literal(decorator.args[0])
            if not isinstance(names, str) or not isinstance(decorator.args[1], ast.List):
                continue
            columns = [name.strip() for name in names.split(",")]
            for case in decorator.args[1].elts:
                values = [case] if len(columns) == 1 else getattr(case, "elts", [])
                if len(values) == len(columns):
                    yield function.name, dict(zip(columns, map(literal, values), strict=True))


def extractive(name: str, source: str) -> Iterator[Pair]:
    """Pairs of Math-Verify's and lighteval's tests."""
    for function, case in parametrized(source):
        label = case.get("expected", case.get("result"))
        gold, prediction = case.get("gold"), case.get("pred")
        if "abc" in function or not isinstance(label, int):
            continue
        # What is asked for by a switch is not a label of the pair.
        if case.get("allow_set_relation_comp") is True or case.get("strict") is False:
            continue
        if isinstance(gold, str) and isinstance(prediction, str):
            yield Pair(name, gold, prediction, bool(label))


def outputs(name: str, source: str) -> Iterator[Pair]:
    """Pairs of a model's graded outputs."""
    for line in source.splitlines():
        row = json.loads(line)
        for reply, score in zip(row["code"], row["score"], strict=True):
            yield Pair(name, row["gt"], reply, bool(score))


def unit_tests(name: str, source: str) -> Iterator[Pair]:
    """Pairs that methods assign to `test_in` and `test_out` before they assert."""
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef) and function.name.startswith("test_"):
            yield from assertions(name, function.body, {})


def assertions(name: str, body: list[ast.stmt], values: dict[str, object]) -> Iterator[Pair]:
    for statement in body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            values[statement.targets[0].id] = literal(statement.value)
        elif isinstance(statement, ast.For):
            for case in values["test_pairs"]:  # type: ignore[attr-defined]
                yield from assertions(name, statement.body, dict(zip(IN_OUT, case, strict=True)))
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            asserted = getattr(statement.value.func, "attr", "")
            if asserted in ("assertTrue", "assertFalse"):
                prediction, gold = (str(values[key]) for key in IN_OUT)
                yield Pair(name, gold, prediction, asserted == "assertTrue")


IN_OUT = ("test_in", "test_out")


def examples(name: str, source: str) -> Iterator[Pair]:
    """Pairs of NeMo-Skills' tests."""
    for function, case in parametrized(source):
        pair = case.get("output_pair")
        if isinstance(pair, ast.Tuple):
            pair = tuple(literal(each) for each in pair.elts)
        if isinstance(pair, tuple) and not any(isinstance(each, ast.AST) for each in pair):
            gold, prediction = (None if each is None else str(each) for each in pair)
            yield Pair(name, str(gold), prediction, "incorrect" not in function)


Reader = Callable[[str, str], Iterator[Pair]]
SOURCES: list[tuple[str, str, Reader]] = [
    ("Math-Verify", "tests/test_*.py", extractive),
    ("lighteval", "tests/unit/metrics/test_extractive_match.py", extractive),
    ("Qwen2.5-Math outputs", "evaluation/data/eval_rm_maj_example/math_cot_100.jsonl", outputs),
    ("hendrycks/math", "modeling/math_equivalence_test.py", unit_tests),
    ("NeMo-Skills", "tests/test_math_equal.py", examples),
    ("MARIO_EVAL", "math_evaluation/tests/test_is_equiv.py", unit_tests),
]
# Files of the same name in more than one repository are told apart by a file of one of them.
MARKS = {"Math-Verify": "src/math_verify/parser.py"}


def git(clone: Path, *arguments: str) -> str:
    run = subprocess.run(["git", "-C", str(clone), *arguments], capture_output=True, text=True)
    return run.stdout if run.returncode == 0 else ""


def pairs_of(clone: Path) -> list[Pair]:
    """Return the labelled pairs of the newest commit of a clone."""
    found: list[Pair] = []
    files = git(clone, "ls-tree", "-r", "--name-only", "HEAD").splitlines()
    for name, pattern, reader in SOURCES:
        if MARKS.get(name, pattern.replace("*", "")) not in files:
            continue
        for path in files:
            if Path(path).match(pattern) and path.count("/") == pattern.count("/"):
                found += reader(name, git(clone, "show", f"HEAD:{path}"))
    if not found:
        raise SystemExit(f"{clone} is no clone of a repository with labelled pairs")
    return found


STORED = Path(__file__).parents[1] / "tests/math/data/math_graders.jsonl"
_ALGEBRA = ("Khan/KAS", "Doenet/math-expressions")
GROUPS = ("graders of answers", "algebra systems", "without a rule")


def stored() -> Iterator[Pair]:
    """Pairs of the tests' data; one that contradicts no rule is yielded for a group more."""
    for line in STORED.read_text().splitlines():
        row = json.loads(line)
        group = GROUPS[row["source"] in _ALGEBRA]
        for name in (group, *(() if "rule" in row else GROUPS[2:])):
            yield Pair(name, row["gold"], row["prediction"], row["equal"])


# What the graders are given

_WRAPPED = re.compile(r"\s*(?:\$\$(.*)\$\$|\$(.*)\$|\\\[(.*)\\\]|\\\((.*)\\\))[\s.]*", re.DOTALL)
_FORMULA = re.compile(r"\$\$?[^$]*\$\$?|\\\(.*?\\\)|\\\[.*?\\\]", re.DOTALL)
_WORD = re.compile(r"[^\W\d_]{2,}")
# A number behind words, or beside letters that no formula is written with.
_SENTENCE = re.compile(r"^\s*[^\W\d_]{2,}\s*[\s:']|[\u0590-\u1dff\u3000-\u9fff]")
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")


def boxes(text: str) -> str | None:
    """Return what the boxes of a gold hold, as a list; None if there is prose between them.

    A box that is repeated counts once.
    """
    starts = [found.start() for found in _BOX.finditer(text)]
    parts = [text[a:b] for a, b in zip(starts, [*starts[1:], len(text)], strict=True)]
    found = dict.fromkeys(content for part in parts if (content := BOXED.extract(part)))
    between = [part.partition(BOXED.extract(part) or "")[2] for part in parts[:-1]]
    if len(found) > 1 and any(len(_WORD.findall(words)) > 2 for words in between):
        return None
    return ", ".join(found)


def bare(text: str) -> str | None:
    """Return an answer that is not boxed without dollar signs; None if it stands in prose."""
    while (found := _WRAPPED.fullmatch(text)) is not None:
        inner = next(group for group in found.groups() if group is not None)
        if "$" in inner.replace("\\$", "") or "\\(" in inner or "\\[" in inner:
            break
        text = inner
        break
    formulas = _FORMULA.findall(text)
    outside = _FORMULA.sub(" ", text)
    if formulas:
        # Between formulas only `and` and the like, behind them a unit.
        words = _WORD.findall(outside)
        begins = text.lstrip().startswith(("$", "\\"))
        return text if begins and len(words) <= len(formulas) else None
    sentence = any(map(str.isdigit, text)) and _SENTENCE.search(outside) is not None
    return None if sentence or "\n\n" in text else text


def answer(text: str, is_gold: bool) -> str | None:
    """Return what our grader is given for a text of the tests; None if that is left out."""
    if not _BOX.search(text):
        return bare(text)
    return boxes(text) if is_gold else BOXED.extract(text)


def math_verify(gold: str, prediction: str, whole: bool) -> bool:
    from math_verify import parse, verify

    texts = [text if whole or "$" in text else f"${text}$" for text in (gold, prediction)]
    parsed = [parse(text, parsing_timeout=20) for text in texts]
    return bool(verify(*parsed, timeout_seconds=20))


def graded(pair: Pair) -> Result | None:
    """Return the verdicts of both; None if the answer has to be found in prose."""
    gold = answer(pair.gold, True)
    prediction = None if pair.prediction is None else answer(pair.prediction, False)
    if not gold or (prediction is None and pair.prediction is not None):
        return None
    return compared(pair, gold, prediction)


def compared(pair: Pair, gold: str, prediction: str | None) -> Result:
    """Return the verdicts of both on two answers."""
    verdict = grade(prediction, gold, timeout_s=20)
    whole = pair.source in ("Math-Verify", "lighteval")
    theirs = False
    if pair.prediction is not None:
        if whole:
            theirs = math_verify(pair.gold, pair.prediction, True)
        else:
            theirs = math_verify(gold, str(prediction), False)
    return Result(pair, gold, prediction, verdict.correct, verdict.reason, theirs)


# What is printed


def row(name: str, results: list[Result], left_out: int) -> str:
    equal = sum(result.pair.equal for result in results)
    ours = sum(result.ours == result.pair.equal for result in results)
    theirs = sum(result.theirs == result.pair.equal for result in results)
    missed = sum(result.pair.equal and not result.ours for result in results)
    wrong = sum(result.ours and not result.pair.equal for result in results)
    alone = sum((each.ours and each.reason != "symbolic") == each.pair.equal for each in results)
    shares = "".join(f"{n:8,}{n / len(results):7.1%}" for n in (ours, alone, theirs))
    return f"{name:22}{len(results):7,}{equal:8,}{shares}{missed:6}{wrong:5}{left_out:10}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("clones", nargs="*", type=Path, help="folders of clones")
    parser.add_argument("--disagreements", type=Path, help="file for what ours or theirs misjudge")
    arguments = parser.parse_args()
    logging.getLogger().setLevel(logging.CRITICAL)
    logging.disable(logging.CRITICAL)
    began = time.perf_counter()
    pairs = [pair for clone in arguments.clones for pair in pairs_of(clone)] or list(stored())
    seen: dict[tuple[str, str | None], Result | None] = {}
    results: list[Result] = []
    left_out: dict[str, int] = {}
    for pair in pairs:
        result = graded(pair) if arguments.clones else compared(pair, pair.gold, pair.prediction)
        if result is None:
            left_out[pair.source] = left_out.get(pair.source, 0) + 1
        else:
            results.append(result)
            seen.setdefault((result.gold, result.prediction), result)
    titles = "".join(f"{title:>15}" for title in ("ours", "ours alone", "math-verify"))
    print(f"{'':22}{'pairs':>7}{'equal':>8}{titles}{'FN':>6}{'FP':>5}{'left out':>10}")
    for name in (*(name for name, _, _ in SOURCES), *GROUPS):
        those = [result for result in results if result.pair.source == name]
        if those:
            print(row(name, those, left_out.get(name, 0)))
    if arguments.clones:
        print(row("all", results, sum(left_out.values())))
    print(row("unique", [each for each in seen.values() if each is not None], 0))
    print(f"{time.perf_counter() - began:.0f} s")
    if arguments.disagreements:
        lines = [
            json.dumps(
                {
                    "equal": result.pair.equal,
                    "ours": result.ours,
                    "reason": result.reason,
                    "math_verify": result.theirs,
                    "gold": result.gold,
                    "prediction": result.prediction,
                    "source": result.pair.source,
                },
                ensure_ascii=False,
            )
            for result in seen.values()
            if result is not None and {result.ours, result.theirs} != {result.pair.equal}
        ]
        arguments.disagreements.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

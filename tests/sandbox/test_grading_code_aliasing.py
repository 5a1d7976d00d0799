"""Containers that test and program share: judged as in one process, or refused."""

from __future__ import annotations

import random
from typing import Any

import pytest

from gem_sandbox import Limits, resolve
from gem_sandbox.grading.replay import failures
from gem_sandbox.grading.statements import Statement

LIMITS = Limits(cpu_s=60.0, memory_mb=1024)
KEEPS = "refused: it changes a container that the program holds, too"
PARTS = "refused: it changes a container that shares parts with another one"
STORE = """
class Store:
    def __init__(self, items): self.items = items
    def get(self): return self.items
    def add(self, item): self.items.append(item)
    def clear(self):
        self.items.append(0)
        raise ValueError
"""


def judged(program: str, *tests: str) -> list[str]:
    return list(failures([Statement(test) for test in tests], resolve("bwrap"), program, LIMITS))


def python(program: str, test: str) -> bool:
    scope: dict[str, Any] = {}
    try:
        exec(program, scope)
        exec(test, scope)
    except Exception:
        return False
    return True


@pytest.mark.parametrize(
    ("program", "test", "verdict"),
    [
        ("def f(x): return x", "x = [1]\ny = f(x)\ny.append(2)\nassert x == [1, 2]", ""),
        ("def f(x): return x", "x = {1: 2}\ny = f(x=x)\ny[3] = 4\nassert x == {1: 2, 3: 4}", ""),
        ("def f(x): return x", "x = [1]\nassert f(x) is x", ""),
        ("def f(x): return list(x)", "x = [1]\ny = f(x)\ny.append(2)\nassert x == [1]", ""),
        ("def f(x): x.sort(); return x", "x = [2, 1]\nf(x)\nx.append(0)\nassert f(x)[0] == 0", ""),
        (STORE, "x = [1]\ns = Store(x)\ns.add(2)\nassert x == [1, 2]", ""),
        (STORE, "s = Store([])\nx = s.get()\ns.add(2)\nassert x == [2]", ""),
        (STORE, "x = [1]\ns = Store(x)\ntry:\n    s.clear()\nexcept ValueError:\n    pass\n"
         "assert x == [1, 0]", ""),
        (STORE, "s = Store([float('nan')])\nx = s.get()\nassert s.get()[0] != x[0] or s.get()", ""),
        ("import numpy as np\nL = [np.ones(2)]\ndef f(): return L",
         "x = f()\nassert len(f()) == len(x) == 1", ""),
        ("def f(x):\n  def g(i): return 0 if i >= len(x) else x[i] + g(i + 1)\n  return g(0)",
         "x = [1]\nassert f(x) == 1\nx.append(2)\nassert f(x) == 3", ""),
        ("def f(x):\n  x.append(1)\n  raise ValueError",
         "x = [1]\ntry:\n    f(x)\nexcept ValueError:\n    pass\nassert x == [1]", "wrong output"),
        # A program that should have made a copy is not paid.
        (STORE, "x = [1]\ns = Store(x)\nx.append(2)\nassert s.get() == [1]", KEEPS),
        (STORE, "s = Store([1])\nx = s.get()\nx.append(2)\nassert s.get() == [1]", KEEPS),
        (STORE, "x = [1]\ns = Store(x)\nx.append(2)\nassert s.get() == [1, 2]", KEEPS),
        ("def f(x): return x[:]", "x = [[1]]\ny = f(x)\ny[0] += [2]\nassert x == [[1, 2]]", PARTS),
        ("def f(x): return x[:]", "x = [[1]]\ny = f(x)\ny[0].append(2)\nassert x == [[1]]", PARTS),
        ("def f(x): return x[0]", "x = [[1]]\ny = f(x)\ny.append(2)\nassert x == [[1, 2]]", PARTS),
    ],
)  # fmt: skip
def test_a_container_of_both_is_judged_as_in_python_or_refused(
    program: str, test: str, verdict: str
) -> None:
    assert judged(program, test) == [verdict]


PROGRAM = """
class Store:
    def __init__(self, items): self.items = items
    def get(self): return self.items
    def copy(self): return list(self.items)
    def add(self, item): self.items.append(item)
    def turn(self): self.items.reverse(); return self.items
seen = []
def same(x): return x
def copied(x): return list(x)
def both(x): return [x, x]
def first(x): return x[0] if x and isinstance(x[0], list) else []
def grown(x): x.append(0); return len(x)
def kept(x): seen.append(x); return len(seen)
def last(): return seen[-1] if seen else []
"""
STEPS = [
    *("{a} = same({b})", "{a} = copied({b})", "{a} = both({b})", "{a} = first({b})", "grown({a})"),
    *("kept({a})", "{a} = last()", "s = Store({a})", "{a} = s.get()", "{a} = s.copy()"),
    *("s.add({n})", "{a} = s.turn()", "{a}.append({n})", "{a} = [{n}]", "{a} = {b}", "{a}.sort()"),
    *("{a} = {b}[:]", "{a}[:1] = [{n}]", "assert len({a}) == len(copied({a}))"),
]


def script(dice: random.Random) -> str:
    lines = ["a, b, s = [3, 1], [2], Store([5])"]
    for _ in range(dice.randint(2, 7)):
        names = {"a": dice.choice("ab"), "b": dice.choice("ab"), "n": dice.randint(0, 9)}
        lines.append(dice.choice(STEPS).format(**names))
    return "\n".join([*lines, "x = s.copy()"])


def test_random_scripts_are_judged_as_in_python_or_refused() -> None:
    dice = random.Random(0)
    right, wrong = [], []
    while len(right) < 40:
        text = script(dice)
        scope: dict[str, Any] = {}
        exec(PROGRAM, scope)
        try:
            exec(text, scope)
        except Exception:
            # Sorted lists and numbers, for instance.
            continue
        values = [scope["a"], scope["b"], scope["x"]]
        right.append(f"{text}\nassert [a, b, x] == {values}")
        for each in values:
            each.append(7)
        wrong.append(f"{text}\nassert [a, b, x] == {values}")
    assert all(python(PROGRAM, test) for test in right)
    found = judged(PROGRAM, *right)
    assert {verdict.partition(":")[0] for verdict in found} == {"", "refused"}
    assert found.count("") > 15
    for test, verdict in zip(right, found, strict=True):
        assert verdict in ("", KEEPS, PARTS), (test, verdict)
    for test, verdict in zip(wrong, judged(PROGRAM, *wrong), strict=True):
        assert verdict != "" and not python(PROGRAM, test), test

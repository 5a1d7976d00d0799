"""The words known in mathematical answers: functions, constants, Greek letters, units."""

from __future__ import annotations

import re


def words(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


# Functions and their inverses: `\sin^{-1}` is the inverse function, not a power.
INVERSES = {
    name: f"arc{name}" for name in words("sin cos tan cot sec csc sinh cosh tanh coth sech csch")
}
FUNCTIONS = (
    frozenset(INVERSES)
    | frozenset(INVERSES.values())
    | words("""
    ln log lg exp sqrt abs floor ceil root binom logbase max min gcd lcm
""")
)
CONSTANTS = {"pi": "pi", "infty": "infinity", "infinity": "infinity", "inf": "infinity"}
ALIASES = {
    "tg": "tan",
    "ctg": "cot",
    "arctg": "arctan",
    "Abs": "abs",
    "arcctg": "arccot",
    **{f"a{name}": inverse for name, inverse in INVERSES.items()},
    **{f"ar{name}": inverse for name, inverse in INVERSES.items() if name.endswith("h")},
}
GREEK = words("""
    alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta kappa lambda mu nu xi rho
    sigma tau phi varphi chi psi omega Gamma Delta Theta Lambda Xi Sigma Phi Psi Omega
""")
# Two shapes of one letter.
VARIANTS = {"varepsilon": "epsilon", "vartheta": "theta", "varphi": "phi"}
_NOTATION = FUNCTIONS | GREEK | ALIASES.keys() | CONSTANTS.keys()
# Letters of variables that are commonly multiplied without a sign, such as `xyz`.
VARIABLES = ("abcd", "klmn", "pqrst", "uvwxyz")
_MAX_LETTERS = 12
UNITS = {
    name: unit
    for unit, names in {
        "m": "m meter meters metre metres",
        "cm": "cm centimeter centimeters centimetre centimetres",
        "mm": "mm millimeter millimeters",
        "km": "km kilometer kilometers kilometre kilometres",
        "in": "in inch inches",
        "ft": "ft foot feet",
        "yd": "yd yard yards",
        "mi": "mi mile miles",
        "g": "g gram grams",
        "kg": "kg kilogram kilograms",
        "mg": "mg milligram milligrams",
        "lb": "lb lbs pound pounds",
        "oz": "oz ounce ounces",
        "s": "s sec secs second seconds",
        "min": "min mins minute minutes",
        "h": "h hr hrs hour hours",
        "year": "year years yr yrs",
        "L": "L liter liters litre litres",
        "mL": "mL ml milliliter milliliters",
        "dollar": "dollar dollars usd bucks",
        "cent": "cent cents",
        "euro": "euro euros eur",
        "degree": "degree degrees deg",
        "rad": "rad radian radians",
        "Hz": "Hz hertz",
        "unit": "unit units",
        "%": "percent pct percentage",
        "day": "day days",
        "week": "week weeks",
        "month": "month months",
    }.items()
    for name in names.split()
}
# Chinese and Japanese units, as `_canonical_unit` of `gem_math.cleaning` writes them.
WIDE_UNITS = {
    name: unit
    for unit, names in {
        "m": "米", "cm": "厘米", "mm": "毫米", "km": "千米 公里", "kg": "千克 公斤", "g": "克",
        "m2": "平方米", "cm2": "平方厘米", "km2": "平方千米", "m3": "立方米", "cm3": "立方厘米",
        "L": "升", "mL": "毫升", "h": "小时 時間", "min": "分钟", "s": "秒", "day": "天",
        "year": "年 岁", "degree": "度", "yuan": "元", "yen": "円", "people": "人",
        "unit": "个 個 只 本 条 种 次 块 张 道 题 件 棵 辆 名 位 組 组 通り",
    }.items()
    for name in names.split()
}  # fmt: skip
SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
# Words after a number that do not change it. Plural nouns need no list.
REST = frozenset({"left", "old", "later", "remaining", "total", "altogether", "overall"})
_COUNTED = REST | words("""
    acre amp ampere bit byte cal calorie cattle celsius children cup deer dice dime fahrenheit
    fathom feet fish furlong gal gallon gb geese gpa hectare hp inr joule kb kcal kelvin khz
    kids kilowatt kj kmh knot kpa kph kw kwh lumen mb men mg mhz mice mol mole mph mps newton
    nickel ohm oxen pa pascal pence penny people person persons peso pint pixel ppm psi quart
    rev revolution rpm rupee sheep shilling sqft tablespoon tb tbsp teaspoon teeth ton tonne
    tsp turn volt watt women won yen yuan
""")
_NO_PLURALS = words("""
    always as besides does downwards equals has likewise nevertheless opposites regardless sometimes
    tens towards upwards yes
""")
_CHANGING = re.compile(
    r"""
    (?:zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|hundred|thousand
    |[a-z]+illion|(?:thir|four|fif|six|seven|eigh|nine)teen
    |(?:twen|thir|for|fif|six|seven|eigh|nine)ty)(?:s|es|ths?)?
    |(?:half|halve|quarter|third|fifth|eighth|ninth|twelfth|(?:twen|thir|for|fif|six|seven|eigh|nine)
    tieth)s?
    |once|twice|thrice|dozens?|scores?|gross(?:es)?
    |negatives?|minus|plus|squared?|cubed?|doubled?|doubles|tripled?|triples|halved|inverses?
    |reciprocals?|factorials?|below|above|under|over|without|infinite|infinity|infinitely|remainders?
    |no|non|not|none|nope|never|nor|neither|either|or|wrong|false|incorrect|versus|vs|rather
    |instead|maybe|perhaps|possibly|probably|alternatively|else|except|unless|unlike
    |binary|octal|hex|hexadecimal|ternary|base
    """,
    re.VERBOSE,
)


def changes_number(word: str) -> bool:
    """Return whether a word changes the number before it (`dozen`), or doubts it (`maybe`).

    Args:
        word: In lower case.
    """
    return _CHANGING.fullmatch(word) is not None


def is_counted(word: str) -> bool:
    """Return whether a word, not a known unit, names things that are counted or measured.

    Args:
        word: In lower case; if several words are joined, the last one decides.
    """
    if word in _COUNTED:
        return True
    return word.endswith("s") and not word.endswith(("ss", "us", "is")) and word not in _NO_PLURALS


def is_notation(word: str) -> bool:
    return word in _NOTATION or is_product(word)


def is_product(letters: str) -> bool:
    """Return whether letters written together are variables rather than a word."""
    if len(letters) <= 2:
        return True
    return len(letters) <= _MAX_LETTERS and any(set(letters) <= set(each) for each in VARIABLES)

"""The names that answers are written with: functions, Greek letters, units."""

from __future__ import annotations

FUNCTIONS = frozenset(
    {
        "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh",
        "tanh", "ln", "log", "lg", "exp", "sqrt", "abs", "floor", "ceil", "root", "binom",
        "logbase", "max", "min", "gcd", "lcm",
    }
)  # fmt: skip
CONSTANTS = {"pi": "pi", "infty": "infinity", "infinity": "infinity", "inf": "infinity"}
ALIASES = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "tg": "tan", "ctg": "cot"}
GREEK = frozenset(
    {
        "alpha", "beta", "gamma", "delta", "epsilon", "varepsilon", "zeta", "eta", "theta",
        "vartheta", "kappa", "lambda", "mu", "nu", "xi", "rho", "sigma", "tau", "phi", "varphi",
        "chi", "psi", "omega", "Gamma", "Delta", "Theta", "Lambda", "Xi", "Sigma", "Phi", "Psi",
        "Omega",
    }
)  # fmt: skip
# Letters of variables that are commonly multiplied without a sign between them.
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
SCALES = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}


def is_notation(word: str) -> bool:
    return (
        word in FUNCTIONS
        or word in ALIASES
        or word in CONSTANTS
        or word in GREEK
        or is_product(word)
    )


def is_product(letters: str) -> bool:
    """Return whether letters written together are variables rather than a word."""
    if len(letters) <= 2:
        return True
    return len(letters) <= _MAX_LETTERS and any(set(letters) <= set(each) for each in VARIABLES)

"""Parses cleaned mathematical answers, LaTeX or plain, into the trees of `gem_math.tree`."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

from gem_math.cleaning import expanded
from gem_math.relations import conjunction, disjunction, equal, inequality, labelled, name_of
from gem_math.tree import (
    FIXED,
    MAX_HEIGHT,
    Node,
    TooComplexError,
    UnreadableError,
    integer,
    size,
    symbols,
)
from gem_math.vocabulary import (
    ALIASES,
    CONSTANTS,
    FUNCTIONS,
    GREEK,
    INVERSES,
    VARIANTS,
    is_product,
)

MAX_LENGTH = 2000
_MAX_DEPTH = 40
_MAX_EXPONENT = 400
# Most tokens of one answer; those parsed again after `back_to` count again.
_MAX_TOKENS = 3000
_MAX_PERIODIC = 60
_MAX_PERIOD = 12

_TOKEN = re.compile(
    r"\s*(?:"
    r"(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
    r"|(?P<command>\\[a-zA-Z]+|\\[{}|])"
    r"|(?P<name>[a-zA-Z]+)"
    r"|(?P<sign>\*\*|<=|>=|!=|==|[-+*/^_!=<>()\[\]{},;:|%&'])"
    r")"
)
_GROUPED = re.compile(r"\s*([1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?)(?!\d)")
_REPEATING = re.compile(r"\s*(\d*)\.(\d*)\\overline\s*\{(\d+)\}")
_MIXED = re.compile(
    r"\s*(?:\\[dtc]?frac\s*(?:\{\s*\d+\s*\}\s*\{\s*\d+\s*\}|\d\s*\d)|\d+\s*/\s*\d+)"
)
_MEMBER = re.compile(r"\s*([a-zA-Z])\s*\\in(?![a-z])")
_ELLIPSIS = re.compile(r"\s*\\ldots(?![a-zA-Z])")
_SUBSCRIPT = re.compile(
    r"\s*_\s*(?:\{\s*\\?([a-zA-Z0-9, ]{1,20})\s*\}|\\([a-zA-Z]+)|([a-zA-Z0-9]))"
)
_COLUMNS = re.compile(r"\s*\{[\slcr]+\}")
_INDEX = re.compile(r"\d{1,3}(?![\d.])")
# A name left of an equals sign: `f(x)`, `f_1(x)`, `f^{-1}(x)`, `AB`, `Area`.
_NAMED = re.compile(
    r"\s*(?:[a-zA-Z]\s*(?:_\s*(?:\{[^{}]{1,20}\}|[a-zA-Z0-9])\s*)?"
    r"(?:\^\s*(?:\{\s*\(?-?\w{1,3}\)?\s*\}|-?\d)\s*)?'{0,3}\s*"
    r"\(\s*[a-zA-Z0-9]+(?:\s*,\s*[a-zA-Z0-9]+)*\s*\)|[A-Z]{2,4}|[a-zA-Z]{3,12})"
    r"\s*(?==(?!=)|\\approx(?![a-zA-Z]))"
)
# The letter of a choice before its content: `(B) 5`, `B. 5`.
_CHOICE = re.compile(r"(?:\(([A-J])\)|([A-J])[.)])\s+(?!and\b|or\b)(?=-?[^\s*/^=<>,;:!+|)'-])")
_CHOICES = frozenset("(ABCDEFGHIJ")
# What says that a parameter is any integer: `k \in \mathbb{Z}`, `where n is an integer`.
_FAMILY = re.compile(
    r"[\s,;(]{0,4}(?:\b(?:for|where|with)\s+)?(?:\b(?:all|any|every|each|some)\s+)?"
    r"(?:\bintegers?\s+([a-zA-Z])|\b([a-zA-Z])\s*\\in\s*(?:\\mathbb\s*\{?\s*Z\s*\}?|\\?Z)"
    r"|\b([a-zA-Z])\s+(?:is\s+)?(?:an\s+|any\s+)?integer)\s*\)?$"
)

_RELATIONS = {
    "=": "=", "==": "=", "<": "<", ">": ">", "<=": "<=", ">=": ">=", "!=": "!=",
    "\\le": "<=", "\\leq": "<=", "\\leqq": "<=", "\\leqslant": "<=", "\\ge": ">=",
    "\\geq": ">=", "\\geqq": ">=", "\\geqslant": ">=", "\\lt": "<", "\\gt": ">",
    "\\ne": "!=", "\\neq": "!=", "\\approx": "~",
}  # fmt: skip
_SIGNS = {"+": 1, "-": -1, "\\pm": 1, "\\mp": -1}
_PRODUCTS = frozenset({"*", "\\cdot", "\\times", "\\ast"})
_QUOTIENTS = frozenset({"/", "\\div"})
_OR = frozenset({"or", "\\lor", "\\vee"})
_AND = frozenset({"and", "\\land", "\\wedge"})
_JOINTS = _OR | _AND | {",", ";"}
_FRACTIONS = frozenset({"\\frac", "\\dfrac", "\\tfrac", "\\cfrac"})
_BINOMIALS = frozenset({"\\binom", "\\dbinom", "\\tbinom"})
# Openers with their closer and the function that they stand for.
_ENCLOSING = {
    "|": ("|", "abs"),
    "\\lvert": ("\\rvert", "abs"),
    "\\vert": ("\\vert", "abs"),
    "\\lfloor": ("\\rfloor", "floor"),
    "\\lceil": ("\\rceil", "ceil"),
}
# Commands that continue a product.
_FACTORS = {
    *_FRACTIONS,
    *(f"\\{name}" for name in FUNCTIONS | GREEK | ALIASES.keys()),
    *("\\pi", "\\infty", "\\lfloor", "\\lceil", "\\lvert"),
}


def read(cleaned: str) -> Node:
    """Return the tree of an answer that `gem_math.cleaning.clean` returned.

    Raises:
        UnreadableError: The grammar does not cover the answer.
        TooComplexError: The answer is too long or nested too deeply.
    """
    if len(cleaned) > MAX_LENGTH:
        raise TooComplexError("too long")
    choice = _CHOICE.match(cleaned) if cleaned[:1] in _CHOICES else None
    text = cleaned[choice.end() :] if choice else cleaned
    family = member = None
    if "\\in" in text or "integer" in text:
        family = _FAMILY.search(text)
        text = text[: family.start()] if family else text
        member = _MEMBER.match(text)
        text = text[member.end() :] if member else text
    whole = text
    text, unit = expanded(text)
    node = _node(text)
    if len(unit) == 1 and unit.isalpha() and symbols(node) and whole.rstrip().endswith(f" {unit}"):
        # Beside variables, a letter is one too: the h of `R^2 h`.
        node, unit = _node(f"{text} {unit}"), ""
    if family:
        parameter = family[1] or family[2] or family[3]
        if unit or parameter not in symbols(node):
            raise UnreadableError(cleaned)
        node = Node("family", (node, parameter))
    if unit:
        node = Node("measure", (node, unit))
    if member:
        node = Node("named", (member[1], node))
    return Node("choice", (choice[1] or choice[2], node)) if choice else node


def _node(text: str) -> Node:
    reader = _Reader(text)
    try:
        node = reader.read()
    except RecursionError:
        raise TooComplexError("nested too deeply") from None
    if reader.tokens > MAX_HEIGHT // 2:
        size(node)
    return node


class _Reader:
    """A recursive descent parser; `self.token` is the current token, '' at the end."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.end = 0
        self.brackets = 0
        self.depth = 0
        self.tokens = 0
        self.sign = 1
        self.signs_seen = False
        self.goes_on = "\\ldots" in text
        self.advance()

    def read(self) -> Node:
        node = self.items()
        if self.token:
            raise UnreadableError(self.text)
        return node

    # Tokens

    def advance(self) -> None:
        self.tokens += 1
        if self.tokens > _MAX_TOKENS:
            raise TooComplexError("too many tokens")
        self.start = self.end
        # A comma separates items in brackets; elsewhere it may group digits.
        found = None if self.brackets else _GROUPED.match(self.text, self.end)
        if found:
            self.kind, self.token = "number", found[1].replace(",", "")
            self.end = found.end()
            return
        found = _TOKEN.match(self.text, self.end)
        if found is None:
            if self.text[self.end :].strip():
                raise UnreadableError(self.text)
            self.kind = self.token = ""
            return
        self.kind = found.lastgroup or ""
        self.token = found[self.kind]
        self.end = found.end()

    def back_to(self, position: int) -> None:
        self.end = position
        self.advance()

    def take(self, token: str) -> bool:
        if self.token != token:
            return False
        self.advance()
        return True

    def need(self, token: str) -> None:
        if not self.take(token):
            raise UnreadableError(self.text)

    def nested(self, inner: Callable[[], Node]) -> Node:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise TooComplexError("nested too deeply")
        node = inner()
        self.depth -= 1
        return node

    # Lists and relations

    def items(self, closers: str = "") -> Node:
        """Parse one item, or a list of items that commas, `and` and `or` separate."""
        items = self.item()
        joints = set()
        while self.token in _JOINTS or (self.token == "\\row" and not closers):
            joints.add(self.token)
            self.advance()
            if self.token in ("and", "or"):
                self.advance()
            items += self.item()
            if len(items) > MAX_LENGTH // 4:
                raise TooComplexError("too many items")
        if len(items) == 1:
            return items[0]
        union = disjunction(items) if joints & _OR else None
        if union is not None:
            return union
        if joints <= _AND and len(items) == 2:
            return conjunction(*items) or Node("list", tuple(items))
        return Node("list", labelled(items))

    def item(self) -> list[Node]:
        """Parse one item; return two, with the upper and the lower signs, if it contains ±."""
        position, before = self.start, (self.sign, self.signs_seen)
        self.sign, self.signs_seen = 1, False
        items = [self.relation()]
        if self.signs_seen:
            self.back_to(position)
            self.sign = -1
            items.append(self.relation())
        self.sign, self.signs_seen = before
        return items

    def relation(self) -> Node:
        if not self.take("\\approx"):
            self.take("=")
        named = _NAMED.match(self.text, self.start)
        name = ""
        if named is not None and self.kind == "name":
            name = "".join(named[0].split()).replace("{", "").replace("}", "")
            self.end = named.end()
            self.advance()
            self.advance()
        sides = [self.union()]
        signs = self.further(sides)
        if name:
            return equal(name, sides, ["=", *signs])
        if not signs:
            if self.token == ":":
                while self.take(":"):
                    sides.append(self.union())
                return Node("ratio", tuple(sides))
            return sides[0]
        if all(sign in ("=", "~") for sign in signs):
            name = name_of(sides[0])
            return equal(name, sides[1:] if name else sides, signs if name else ["", *signs])
        if signs == ["!="]:
            return Node("unequal", (sides[0], sides[1]))
        return inequality(sides, signs)

    def further(self, sides: list[Node]) -> list[str]:
        """Parse the relation signs and sides that follow into `sides`; return the signs."""
        signs = []
        while self.token in _RELATIONS:
            signs.append(_RELATIONS[self.token])
            self.advance()
            sides.append(self.union())
        return signs

    def union(self) -> Node:
        parts = [self.sum()]
        while self.token in ("\\cup", "U") and parts[-1].kind in ("interval", "set", "list"):
            self.advance()
            parts.append(self.sum())
        return parts[0] if len(parts) == 1 else Node("union", tuple(parts))

    # Expressions

    def sum(self) -> Node:
        node = self.nested(self.product)
        while self.token in _SIGNS:
            node = Node("add", (node, self.signed_product()))
        return node

    def signed_product(self) -> Node:
        sign = _SIGNS[self.token]
        if self.token in ("\\pm", "\\mp"):
            self.signs_seen = True
            sign *= self.sign
        self.advance()
        node = self.nested(self.product)
        return node if sign > 0 else Node("negate", (node,))

    def product(self) -> Node:
        if self.token in _SIGNS:
            return self.signed_product()
        node = self.factor()
        while True:
            if self.token in _PRODUCTS or self.token in _QUOTIENTS:
                kind = "multiply" if self.token in _PRODUCTS else "divide"
                self.advance()
                node = Node(kind, (node, self.signed(self.factor)))
            elif self.begins_factor():
                bracket = self.token == "["
                factor = self.factor()
                if bracket and factor.kind in ("interval", "tuple"):
                    raise UnreadableError(self.text)
                node = Node("multiply", (node, factor))
            else:
                return node

    def signed(self, inner: Callable[[], Node]) -> Node:
        """Parse any number of signs, then what `inner` parses."""
        if self.token in ("+", "-"):
            negative = self.token == "-"
            self.advance()
            node = self.nested(lambda: self.signed(inner))
            return Node("negate", (node,)) if negative else node
        return inner()

    def begins_factor(self) -> bool:
        """Return whether the current token continues a product without a sign."""
        if self.kind == "name":
            return self.token not in ("and", "or", "U")
        if self.kind == "command":
            return self.token in _FACTORS
        return self.token in ("(", "{", "[")

    def factor(self) -> Node:
        node = self.primary()
        while True:
            if self.token in ("^", "**"):
                # `exponent` must advance itself: where it ends decides the next token.
                node = Node("power", (node, self.exponent()))
            elif self.take("!"):
                node = Node("factorial", (node,))
            elif self.take("\\deg"):
                node = Node("degrees", (node,))
            elif self.take("%"):
                node = Node("measure", (node, "%"))
            else:
                return node

    def exponent(self) -> Node:
        latex = self.token == "^"
        self.advance()
        if latex and self.token == "{":
            return self.group()
        return self.nested(lambda: self.signed(self.tower))

    def tower(self) -> Node:
        """Parse an exponent, which may have exponents of its own."""
        node = self.primary()
        if self.token in ("^", "**"):
            return Node("power", (node, self.exponent()))
        return node

    def group(self) -> Node:
        """Parse a LaTeX argument in braces."""
        outside, self.brackets = self.brackets, 0
        self.need("{")
        node = self.nested(self.sum)
        self.brackets = outside
        self.need("}")
        return node

    def argument(self) -> Node:
        """Parse a LaTeX argument: a group, one character or one command."""
        if self.token == "{":
            return self.group()
        if self.kind in ("number", "name") and self.text.endswith(self.token, 0, self.end):
            first = self.token[0]
            self.end += 1 - len(self.token)
            if self.kind == "name":
                return self.symbol(first, indexed=False)
            if first.isdigit():
                self.advance()
                return _integer(first)
            raise UnreadableError(self.text)
        return self.primary()

    def primary(self) -> Node:
        if self.kind == "number":
            return self.number()
        if self.kind == "name":
            return self.name(self.token)
        if self.kind == "command":
            return self.command(self.token)
        if self.token in ("(", "["):
            return self.nested(self.bracketed)
        if self.token == "{":
            return self.nested(self.braced)
        if self.token == "|":
            return self.nested(self.enclosed)
        raise UnreadableError(self.text)

    def number(self) -> Node:
        repeating = _REPEATING.match(self.text, self.start)
        if repeating:
            whole, fixed, period = repeating.groups()
            self.end = repeating.end()
            self.advance()
            scale = 10 ** len(fixed)
            tail = Fraction(int(period), (10 ** len(period) - 1) * scale)
            return Node("number", (Fraction(int(f"{whole or 0}{fixed}"), scale) + tail, 0))
        text, digits = self.token, 0
        if text.isdigit():
            value = Fraction(int(text))
        else:
            mantissa, _, exponent = text.lower().partition("e")
            if abs(int(exponent or 0)) > _MAX_EXPONENT:
                raise TooComplexError("exponent too large")
            value = Fraction(mantissa) * Fraction(10) ** int(exponent or 0)
            digits = len(mantissa.replace(".", "").lstrip("0")) if "." in mantissa else 0
        base = _SUBSCRIPT.match(self.text, self.end)
        if base:
            self.end = base.end()
            self.advance()
            return Node("symbol", (f"{text}_{(base[1] or base[2] or base[3]).strip()}",))
        ellipsis = _ELLIPSIS.match(self.text, self.end) if self.goes_on else None
        if ellipsis:
            value = _periodic(text)
            self.end = ellipsis.end()
            self.advance()
            return Node("number", (value, 0))
        position = self.end
        if text.isdigit() and _MIXED.match(self.text, position):
            self.advance()
            fraction = self.nested(self.simple_fraction)
            above, below = (part.args[0] for part in fraction.args)
            if not below:
                raise UnreadableError(self.text)
            if not value or not 0 < above < below:
                # `1\frac{3}{2}` is no mixed number: at best a sum that is left to add up.
                return Node("add", (_integer(text), fraction))
            return Node("number", (value + above / below, 0))
        self.advance()
        if self.kind == "number":
            raise UnreadableError(self.text)
        return Node("number", (value, digits))

    def simple_fraction(self) -> Node:
        if self.kind == "command":
            return self.command(self.token)
        above = self.base()
        self.need("/")
        return Node("divide", (above, self.base()))

    def name(self, name: str) -> Node:
        known = self.known(name, latex=False)
        if known is not None:
            return known
        if len(name) == 1:
            return self.symbol(name)
        start = self.end - len(name)
        before, after = self.text[:start].rstrip()[-1:], self.text[self.end :].lstrip()[:1]
        # Letters that make up a whole item are a word, not a product.
        if not is_product(name) or (before in ("", ",", ";") and after in ("", ",", ";")):
            raise UnreadableError(self.text)
        self.end = start + 1
        return self.symbol(name[0])

    def known(self, name: str, latex: bool) -> Node | None:
        """Parse what begins with a function, constant or Greek letter; None for other names."""
        name = ALIASES.get(name, name)
        if name in FUNCTIONS:
            self.advance()
            return self.function(name, latex)
        if name in CONSTANTS or name in GREEK:
            return self.symbol(CONSTANTS.get(name) or VARIANTS.get(name, name))
        return None

    def symbol(self, name: str, indexed: bool = True) -> Node:
        subscript = _SUBSCRIPT.match(self.text, self.end)
        indexed = indexed and not subscript and name not in FIXED
        index = _INDEX.match(self.text, self.end) if indexed else None
        if index:
            # `x1` is the x_1 of plain text.
            name = f"{name}_{index[0]}"
            self.end = index.end()
        if subscript:
            name = f"{name}_{(subscript[1] or subscript[2] or subscript[3]).strip()}"
            self.end = subscript.end()
        self.advance()
        while self.take("'"):
            name += "'"
        return Node("symbol", (name,))

    def function(self, name: str, latex: bool) -> Node:
        """Parse a function call after its name.

        The argument of `\\sqrt` in LaTeX is one character unless it is in braces.
        """
        power = None
        if name == "log" and self.token == "_":
            self.advance()
            base = self.argument() if self.token == "{" or self.kind != "number" else self.base()
            return Node("call", ("logbase", base, self.operand()))
        if self.token == "^":
            power = self.exponent()
            if name in INVERSES and integer(power) == -1:
                name, power = INVERSES[name], None
        if name == "sqrt" and self.take("["):
            self.brackets += 1
            degree = self.sum()
            self.brackets -= 1
            self.need("]")
            node = Node("call", ("root", self.argument(), degree))
        elif name == "sqrt":
            node = Node("call", (name, self.argument() if latex else self.primary()))
        else:
            node = Node("call", (name, *self.operands(name)))
        return node if power is None else Node("power", (node, power))

    def base(self) -> Node:
        text = self.token
        self.advance()
        return _integer(text)

    def operands(self, name: str) -> tuple[Node, ...]:
        if name in ("max", "min", "gcd", "lcm", "binom") and self.token == "(":
            self.brackets += 1
            self.advance()
            found = [self.nested(self.sum)]
            while self.take(","):
                found.append(self.nested(self.sum))
            self.brackets -= 1
            self.need(")")
            return tuple(found)
        return (self.operand(),)

    def operand(self) -> Node:
        """Parse the argument of a function, with or without brackets: `sin 2x` is sin(2x)."""
        if self.token == "{" and self.text[self.end :].lstrip()[:1] != "(":
            # As it is printed: \\log{x}^3 is the logarithm of a power.
            return self.factor()
        if self.token in ("(", "{", "["):
            node = self.primary()
            return Node("degrees", (node,)) if self.take("\\deg") else node
        if self.token in ("-", "+"):
            return self.signed(self.factor)
        node = self.factor()
        while self.begins_factor() and self.token.lstrip("\\") not in FUNCTIONS:
            if self.token == "(":
                break
            node = Node("multiply", (node, self.factor()))
        return node

    def command(self, command: str) -> Node:
        if command in _FRACTIONS or command in _BINOMIALS:
            self.advance()
            pair = self.argument(), self.argument()
            return Node("divide", pair) if command in _FRACTIONS else Node("call", ("binom", *pair))
        known = self.known(command[1:], latex=True)
        if known is not None:
            return known
        if command == "\\{":
            return self.nested(self.braced)
        if command in ("\\emptyset", "\\varnothing"):
            self.advance()
            return Node("set", ())
        if command == "\\begin":
            return self.nested(self.matrix)
        if command in _ENCLOSING:
            return self.nested(self.enclosed)
        if command == "\\langle":
            return self.nested(self.vector)
        raise UnreadableError(self.text)

    # Brackets

    def vector(self) -> Node:
        self.brackets += 1
        self.advance()
        items = self.listed(self.one)
        self.brackets -= 1
        self.need("\\rangle")
        if len(items) == 1:
            raise UnreadableError(self.text)
        return Node("interval", (*items, "()")) if len(items) == 2 else Node("tuple", tuple(items))

    def enclosed(self) -> Node:
        closer, function = _ENCLOSING[self.token]
        self.brackets += 1
        self.advance()
        node = self.sum()
        self.brackets -= 1
        self.need(closer)
        return Node("call", (function, node))

    def bracketed(self) -> Node:
        opener = self.token
        self.brackets += 1
        self.advance()
        items = self.listed(self.one)
        closer = self.token
        if closer not in (")", "]"):
            raise UnreadableError(self.text)
        self.brackets -= 1
        self.advance()
        if len(items) == 2:
            return Node("interval", (*items, opener + closer))
        if opener + closer not in ("()", "[]"):
            raise UnreadableError(self.text)
        return items[0] if len(items) == 1 else Node("tuple", tuple(items))

    def braced(self) -> Node:
        opener = self.token
        closer = opener.replace("{", "}")
        self.brackets += 1
        self.advance()
        position, seen = self.start, self.signs_seen
        # Each member of a set has its own ±; in braces around one item, ± is the outer item's.
        alone = opener == "{"
        items = [] if self.token == closer else self.listed(self.one if alone else self.item)
        if alone and len(items) > 1 and self.signs_seen:
            self.back_to(position)
            self.signs_seen = seen
            items = self.listed(self.item)
        self.brackets -= 1
        self.need(closer)
        if opener == "{" and items:
            # LaTeX does not print braces without backslashes: this may be a set or a tuple.
            return items[0] if len(items) == 1 else Node("list", labelled(items))
        return Node("set", labelled(items))

    def one(self) -> list[Node]:
        return [self.relation()]

    def listed(self, item: Callable[[], list[Node]]) -> list[Node]:
        items = item()
        while self.token in (",", ";"):
            self.advance()
            items += item()
        return items

    def matrix(self) -> Node:
        kind = self.environment()
        columns = _COLUMNS.match(self.text, self.end) if kind == "array" else None
        if columns:
            self.end = columns.end()
        elif kind not in ("pmatrix", "bmatrix", "matrix", "Bmatrix", "smallmatrix"):
            raise UnreadableError(self.text)
        self.brackets += 1
        self.advance()
        rows = [[self.sum()]]
        while self.token != "\\end":
            if self.take("&"):
                rows[-1].append(self.sum())
            else:
                self.need("\\row")
                if self.token != "\\end":
                    rows.append([self.sum()])
        self.brackets -= 1
        if self.environment() != kind or len({len(row) for row in rows}) != 1:
            raise UnreadableError(self.text)
        self.advance()
        return Node("matrix", tuple(map(tuple, rows)))

    def environment(self) -> str:
        """Return the name in braces after the current token; move past it."""
        found = re.compile(r"\s*\{([a-zA-Z]+)\}").match(self.text, self.end)
        if found is None:
            raise UnreadableError(self.text)
        self.end = found.end()
        return found[1]


def _periodic(text: str) -> Fraction:
    """Return the value of a decimal whose digits repeat, such as the 0.1666 of `0.1666...`.

    Raises:
        UnreadableError: The digits do not say how the decimal goes on.
    """
    whole, _, digits = text.partition(".")
    if not digits.isdigit() or len(digits) > _MAX_PERIODIC:
        raise UnreadableError(text)
    n = len(digits)
    readings = []
    for period in range(1, min(_MAX_PERIOD, n // 2) + 1):
        start = n - period
        while start and digits[start - 1] == digits[start - 1 + period]:
            start -= 1
        if n - start >= (2 * period if period > 1 else 3):
            readings.append((start + period, period))
    if not readings:
        raise UnreadableError(text)
    # What needs the fewest digits to be said.
    end, period = min(readings)
    fixed, repeated = digits[: end - period], digits[end - period : end]
    tail = Fraction(int(repeated), (10**period - 1) * 10 ** len(fixed))
    return Fraction(int(f"{whole or 0}{fixed}"), 10 ** len(fixed)) + tail


def _integer(digits: str) -> Node:
    return Node("number", (Fraction(digits), 0))

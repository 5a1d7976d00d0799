"""Equations, chains and inequalities: builds their trees from the sides and signs between them."""

from __future__ import annotations

from gem_math.tree import FIXED, Node, UnreadableError, Work, integer, unsigned
from gem_math.values import rational

# Letters that stand for unknowns rather than for given numbers.
_UNKNOWNS = frozenset("xyztuvw")


def equal(name: str, sides: list[Node], signs: list[str]) -> Node:
    """Return a named value, an equation or a chain; `signs[i]` stands left of `sides[i]`.

    An approximation (after ≈) and all to its right are dropped, unless the approximation
    contradicts the side left of it.
    """
    if any(sign not in ("", "=", "~") for sign in signs):
        raise UnreadableError(" ".join(signs))
    for i, sign in enumerate(signs):
        if i and sign == "~" and not _contradict(sides[i - 1], sides[i]):
            sides = sides[:i]
            break
    if len(sides) == 1:
        return Node("named", (name, sides[0])) if name else sides[0]
    if len(sides) == 2 and not name:
        return Node("equation", tuple(sides))
    return Node("chain", (name, *sides))


def inequality(sides: list[Node], signs: list[str]) -> Node:
    """Return the symbol of an inequality as a name of its interval, or of the union of two."""
    if all(sign[0] == ">" for sign in signs):
        sides = sides[::-1]
        signs = [sign.replace(">", "<") for sign in signs[::-1]]
    if len(sides) > 3 or not all(sign[0] == "<" for sign in signs):
        raise UnreadableError(" ".join(signs))
    infinity = Node("symbol", ("infinity",))
    if len(sides) == 2:
        if any(_is_absolute(side) for side in sides):
            return _absolute(sides, signs[0], infinity)
        if _is_unknown(sides[0], sides[1]):
            sides, signs = [_negated(infinity), *sides], ["<", *signs]
        else:
            sides, signs = [*sides, infinity], [*signs, "<"]
    low, middle, high = sides
    if middle.kind == "negate":
        # -x < 1 means x > -1.
        low, middle, high = map(_negated, (high, middle, low))
        signs = signs[::-1]
    if middle.kind != "symbol" or middle.args[0] in FIXED:
        raise UnreadableError(" ".join(signs))
    brackets = ("[" if signs[0] == "<=" else "(") + ("]" if signs[1] == "<=" else ")")
    return Node("named", (middle.args[0], _open(low, high, brackets)))


def _open(low: Node, high: Node, brackets: str) -> Node:
    """Return an interval of an inequality: if it is open, it is not the pair (low, high)."""
    return Node("interval", (low, high, "<>" if brackets == "()" else brackets))


def _is_unknown(left: Node, right: Node) -> bool:
    """Return whether the left side is the unknown: of x and a, it is x."""
    names = [
        unsigned(side).args[0] if unsigned(side).kind == "symbol" else "" for side in (left, right)
    ]
    if all(names):
        return names[0][0] in _UNKNOWNS or names[1][0] not in _UNKNOWNS
    return bool(names[0])


def disjunction(items: list[Node]) -> Node | None:
    """Return the union of intervals, such as `x<1 or x>5`; None if there are other items."""
    names, intervals = {_bare(item)[0] for item in items}, [_bare(item)[1] for item in items]
    if len(names) > 1 or any(interval.kind != "interval" for interval in intervals):
        return None
    return _called(names.pop(), Node("union", tuple(intervals)))


def conjunction(first: Node, second: Node) -> Node | None:
    """Return the interval of `x>1 and x<5`; None if the two have no part in common, or no values.

    Of `x<1 and x>5` both are meant.
    """
    (name, first), (other, second) = _bare(first), _bare(second)
    if name != other or first.kind != "interval" or second.kind != "interval":
        return None
    infinity = Node("symbol", ("infinity",))
    for left, right in ((first, second), (second, first)):
        low, high = left.args[0], right.args[1]
        ends = [rational(end, Work()) for end in (low, high)]
        if left.args[1] == infinity and right.args[0] == _negated(infinity) and None not in ends:
            if ends[0] >= ends[1]:  # type: ignore[operator]
                return None
            brackets = (left.args[2][0] + right.args[2][1]).replace("<", "(").replace(">", ")")
            return _called(name, _open(low, high, brackets))
    return None


def _bare(node: Node) -> tuple[str, Node]:
    """Return a node's name, '' if it has none, and the node without it."""
    return node.args if node.kind == "named" else ("", node)


def _called(name: str, node: Node) -> Node:
    return Node("named", (name, node)) if name else node


def _is_absolute(node: Node) -> bool:
    """Return whether a side is |x|. The solution of |x-2|<3 is not written down yet."""
    inner = node.args[1] if node.kind == "call" and node.args[0] == "abs" else None
    return inner is not None and inner.kind == "symbol" and inner.args[0] not in FIXED


def _absolute(sides: list[Node], sign: str, infinity: Node) -> Node:
    """Return the interval of |x|<5, or the union of |x|>5; the smaller side stands left."""
    bounded = _is_absolute(sides[0])
    bound = sides[1] if bounded else sides[0]
    closed = sign == "<="
    if bound.kind == "negate" or _is_absolute(bound) or (bounded and integer(bound) == 0):
        raise UnreadableError(sign)
    name = sides[0 if bounded else 1].args[1].args[0]
    if bounded:
        return _called(name, _open(_negated(bound), bound, "[]" if closed else "()"))
    low = _open(_negated(infinity), _negated(bound), "(]" if closed else "()")
    high = _open(bound, infinity, "[)" if closed else "()")
    return _called(name, Node("union", (low, high)))


def labelled(items: list[Node]) -> tuple[Node, ...]:
    """Return the items of a list; `x: 3, y: 7` is x=3, y=7 if the names are different."""
    names = [item.args[0] for item in items if item.kind == "ratio" and len(item.args) == 2]
    distinct = len(set(names)) == len(items) > 1
    if not distinct or not all(name.kind == "symbol" and name_of(name) for name in names):
        return tuple(items)
    return tuple(Node("named", (name_of(item.args[0]), item.args[1])) for item in items)


def name_of(node: Node) -> str:
    """Return a left side as a name, such as x, (x, y), |AB|, AB/CD; '' if it is not a name."""
    if node.kind == "symbol":
        return str(node.args[0]) if node.args[0] not in FIXED else ""
    if node.kind in ("tuple", "interval"):
        names = [name_of(each) for each in node.args if isinstance(each, Node)]
        round_brackets = node.kind == "tuple" or node.args[-1] == "()"
        return f"({','.join(names)})" if all(names) and round_brackets else ""
    return _length(node)


def _length(node: Node) -> str:
    """Return the name of a length between points, or of a ratio of lengths; '' for all else."""
    if node.kind == "symbol":
        return str(node.args[0]) if node.args[0][0].isupper() else ""
    parts = [_length(each) for each in node.args if isinstance(each, Node)]
    if node.kind == "call" and node.args[0] == "abs" and all(parts):
        return f"|{parts[0]}|"
    if node.kind in ("multiply", "divide") and all(parts):
        return ("/" if node.kind == "divide" else "").join(parts)
    return ""


def _contradict(exact: Node, rounded: Node) -> bool:
    """Return whether `rounded` is not a rounding of `exact` (both integers).

    6 ≈ 5 contradicts, 123 ≈ 100 does not.
    """
    value, shown = integer(exact), integer(rounded)
    if value is None or shown is None:
        return False
    digits = str(abs(shown))
    place = 10 ** (len(digits) - len(digits.rstrip("0"))) if shown else 1
    return 2 * abs(value - shown) > (place if place > 1 else 0)


def _negated(node: Node) -> Node:
    return node.args[0] if node.kind == "negate" else Node("negate", (node,))

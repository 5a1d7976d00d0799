"""Malformed and oversized programs: none may bring the sandbox down."""

from __future__ import annotations

from gem_sandbox.attacks.base import SMALL, Attack

ODD = [
    Attack("hold NUL bytes", "limits", "print(1)\n\0 = '\0'", SMALL),
    Attack("hold lone surrogates", "limits", "print('\ud800')\nraise ValueError('\udfff')", SMALL),
    Attack("be ten megabytes long", "limits", f"text = '{'x' * 10**7}'\nprint(len(text))", SMALL),
    Attack("be nested without end", "limits", "(" * 10**6, SMALL),
    Attack("never be whole", "limits", "if True:\n  '''", SMALL),
]

"""Geometry3K from a copy of the user's: geometry problems with a diagram and four choices.

Source: Lu et al., Inter-GPS: Interpretable Geometry Problem Solving with Formal Language and
Symbolic Reasoning, ACL 2021. The data set has a folder for each problem in `train`, `val` or
`test`, with `data.json` and `img_diagram.png`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gem.envs.games.base import boxed
from gem.errors import ConfigurationError, DataError
from gem.json_lines import parse
from gem.parameters import choice
from gem_vision.tasks.base import Question

_DATA, _DIAGRAM = "data.json", "img_diagram.png"
_FIELDS = {"problem_text": str, "choices": list, "answer": str}


class Geometry3K(Question):
    """A problem of Geometry3K, drawn anew at every reset; the answer is one of four letters.

    Attributes:
        folder: Folder of the problem.
    """

    expected = "A, B, C or D"
    words = ("A", "B", "C", "D")

    def __init__(self, address: str, split: str = "test", *, seed: int | None = None) -> None:
        """Find the problems; nothing is downloaded.

        Args:
            address: Folder of the data set, which holds `train`, `val` and `test`.
            split: One of these.
            seed: Seed of the first `reset` that is not given one.

        Raises:
            ConfigurationError: There is no such folder, or no problem in it.
        """
        super().__init__(seed=seed)
        place = Path(address).expanduser() / choice("split", split, ("train", "val", "test"))
        self._problems = sorted(
            (path.parent.name for path in place.glob(f"*/{_DATA}")), key=lambda n: (len(n), n)
        )
        if not self._problems:
            raise ConfigurationError(
                f"geometry3k:{address}: {place} has no problems; it must be a copy of Geometry3K, "
                f"with folders such as {place / '2401'} that hold {_DATA} and {_DIAGRAM}"
            )
        self._place = place

    def _start(self) -> None:
        self.folder = self._place / self.rng.choice(self._problems)
        data = self._read()
        self.answer = data["answer"].strip()
        if self.answer not in self.words or len(data["choices"]) != len(self.words):
            raise DataError(
                f"{self.folder / _DATA}: expected four choices and one of {', '.join(self.words)} "
                f"as answer, got {len(data['choices'])} and {data['answer']!r}"
            )
        listed = [f"{a}. {b}" for a, b in zip(self.words, data["choices"], strict=True)]
        self.question = "\n".join([data["problem_text"], *listed])
        self.example = boxed("A")
        try:
            self.picture = (self.folder / _DIAGRAM).read_bytes()
        except OSError as error:
            raise DataError(f"{self.folder / _DIAGRAM} cannot be read: {error}") from None

    def _read(self) -> dict[str, Any]:
        path = self.folder / _DATA
        try:
            data: dict[str, Any] = parse(path.read_bytes(), str(path))
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error}") from None
        for field, kind in _FIELDS.items():
            if not isinstance(data, dict) or not isinstance(data.get(field), kind):
                raise DataError(f"{path}: {field} must be a {kind.__name__}")
        return data

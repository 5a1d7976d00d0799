"""What an adapter does about imports: of the trainer's modules, and of its own.

- `after_import`: runs a function right after a module is imported, without importing it now. For
  trainers without a plugin point: an adapter must replace a part of the trainer in every process
  that uses this part, without making other processes import the trainer.
- `lazy`: a package's names whose modules need the trainer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypeAlias

Then: TypeAlias = Callable[[ModuleType], object]


def after_import(name: str, then: Then) -> None:
    """Call `then(module)` now if module `name` is imported, else right after its import.

    If `then` raises, the import fails, and so does the next one. Functions for the same module are
    called in order.
    """
    module = sys.modules.get(name)
    if module is not None:
        then(module)
        return
    watcher = next((f for f in sys.meta_path if isinstance(f, _Watcher)), None)
    if watcher is None:
        watcher = _Watcher()
        sys.meta_path.insert(0, watcher)
    watcher.waiting.setdefault(name, []).append(then)


def lazy(package: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package that imports modules when they are asked for.

    Trainers take seconds to import: what compiles a command or checks versions goes without.

    Args:
        package: Its name.
        places: The module in the package of each name.
    """

    def get(name: str) -> Any:
        if name in places:
            return getattr(import_module(f"{package}.{places[name]}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get


class _Watcher(MetaPathFinder):
    """Meta path finder that wraps the loaders of awaited modules; the other finders find them."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[Then]] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self.waiting:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Following(spec.loader, self.waiting)
                return spec
        return None


class _Following(Loader):
    """Executes a module with its own loader, then calls the functions registered for it.

    All else (source, code, resources) is delegated to the module's own loader, for `python -m`,
    `inspect` and `importlib.resources`.
    """

    def __init__(self, loader: Loader, waiting: dict[str, list[Then]]) -> None:
        self._loader = loader
        self._waiting = waiting

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        for then in self._waiting.get(module.__name__, []):
            then(module)
        # Only now: if one of them raises, the next import of the module must not go without.
        self._waiting.pop(module.__name__, None)

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # not set yet, in an unpickled or copied object
            raise AttributeError(name)
        return getattr(self._loader, name)

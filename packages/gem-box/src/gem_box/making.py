"""`make_harbor`, the environments `harbor:DIR?NAME=VALUE&...`."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from gem.errors import ConfigurationError
from gem.parameters import require_known
from gem.tables import json_or_text
from gem_box.env import HarborEnv
from gem_box.images import HOST
from gem_box.provided_env import ProvidedEnv
from gem_box.sample import SAMPLE, sample_folder


def make_harbor(address: str, **options: Any) -> HarborEnv:
    """Return the environment of a folder with tasks.

    Args:
        address: The folder, then perhaps parameters: `DIR?max_turns=5&image=host`. `sample` has the
            tasks of this package, in this machine's own system.
        **options: Parameters of `HarborEnv`; with `box` those of `ProvidedEnv`.

    Raises:
        ConfigurationError: As of `HarborEnv`; or a parameter is given twice.
        UnknownParameterError: There is no such parameter.
    """
    folder, _, query = address.partition("?")
    given: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in given or name in options:
            raise ConfigurationError(f"harbor:{address} has the parameter {name!r} twice")
        given[name] = json_or_text(value)
    given |= options
    kind = ProvidedEnv if given.get("box") is not None else HarborEnv
    given = {name: value for name, value in given.items() if (name, value) != ("box", None)}
    require_known(f"harbor:{folder}", kind, given, "folder")
    if folder == SAMPLE and not Path(folder).exists():
        folder = str(sample_folder())
        if kind is HarborEnv:
            given.setdefault("image", HOST)
    return kind(folder, **given)


_, *_parameters = inspect.signature(HarborEnv).parameters.values()
_parameters.append(inspect.Parameter("box", inspect.Parameter.KEYWORD_ONLY, default=None))
make_harbor.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [next(iter(inspect.signature(make_harbor).parameters.values())), *_parameters]
)

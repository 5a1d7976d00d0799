"""Resolves `policy.model` of a RunSpec to a folder or hub name that every trainer can load."""

from __future__ import annotations

import contextlib
import importlib
import itertools
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from gem.errors import ConfigurationError, DataError, MissingExtraError
from gem.json_lines import read_json
from gem.multi import of_one_seat
from gem.rollout.prompting import Prompting
from gem_train.experiment.runspec import RunSpec

SMALL_MODELS = {
    "tiny": "gem_cpu.tiny_model",
    "tiny-tools": "gem_cpu.tiny_tools",
    "tiny-vl": "gem_cpu.tiny_vl",
    "smollm2": "gem_cpu.smollm2",
}


SMALL = "small"
SMOLLM2 = "smollm2"


def is_made(model: str) -> bool:
    """Whether gem-cpu makes this `policy.model`, which may take a while."""
    return model.partition("?")[0] in (*SMALL_MODELS, SMALL)


def resolve_model(model: str, name: str = "policy.model") -> str:
    """Return a folder or hub name for `policy.model`.

    Args:
        model: `tiny`, `tiny-tools` (part of gem-cpu), `tiny-vl` or `smollm2` (made by gem-cpu, then
            cached), the path of a folder, or a name on the model hub, which is returned unchanged.
        name: Of the setting, for messages.

    Raises:
        ConfigurationError: The path is not a folder, or the folder has no model or no chat
            template.
        MissingExtraError: A model of gem-cpu is requested and gem-cpu is not installed.
    """
    if model in SMALL_MODELS:
        return str(_maker(SMALL_MODELS[model], name, model).ensure())
    folder = Path(model).expanduser()
    if folder.is_dir():
        _check(folder, name)
        return str(folder.absolute())
    # A hub name is `name` or `owner/name`; anything else must be a path.
    if model.startswith((".", "/", "~")) or model.count("/") > 1:
        raise ConfigurationError(
            f"{name}: no folder {model!r}; give the folder of a model, a hub name, "
            f"{', '.join(map(repr, [*SMALL_MODELS, SMALL]))}"
        )
    return model


def resolved(spec: RunSpec) -> RunSpec:
    """Return a spec whose `policy.model` is a folder or hub name, see `resolve_model`.

    `smollm2?form=ENV` has also learned the form of answers (`gem_cpu.smollm2.Form`). `small`, also
    with settings (`small?competent=0.3`, `gem_cpu.small.Cloning`), is made by gem-cpu for the
    environment of the spec; of a game that the policy plays against itself for its seats,
    against random players.

    Raises:
        ConfigurationError: As `resolve_model`, or no small model can be made of the environment.
        MissingExtraError: A model of gem-cpu is requested and gem-cpu is not installed.
    """
    policy = spec.policy
    kind, _, settings = policy.model.partition("?")
    prompting = Prompting(**{each.name: getattr(policy, each.name) for each in fields(Prompting)})
    if kind == SMOLLM2 and settings:
        maker = _maker(SMALL_MODELS[kind], "policy.model", policy.model)
        folder = maker.ensure_form(maker.Form.parse(settings), prompting, spec.budget)
        return replace(spec, policy=replace(policy, model=str(folder)))
    if kind != SMALL:
        return replace(spec, policy=replace(policy, model=resolve_model(policy.model)))
    [env, *others] = spec.env
    if others:
        raise ConfigurationError(
            f"policy.model: {SMALL!r} clones a player of one environment, and the experiment has "
            f"{len(spec.env)}; name a model, such as the folder of one that was made before"
        )
    maker = _maker("gem_cpu.small", "policy.model", policy.model)
    params = of_one_seat(env.id, env.params)
    folder = maker.ensure(env.id, params, prompting, spec.budget, maker.Cloning.parse(settings))
    return replace(spec, policy=replace(policy, model=str(folder)))


def load_pretrained(kind: Any, model: str, name: str = "policy.model", **options: Any) -> Any:
    """Return `kind.from_pretrained(model, **options)`, a tokenizer or model of transformers.

    Raises:
        ConfigurationError: The model cannot be loaded; the message names the setting `name`.
    """
    try:
        return kind.from_pretrained(model, **options)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{name}: cannot load {model!r}: {error}") from error


@contextlib.contextmanager
def recomputing(*models: Any) -> Iterator[None]:
    """Meanwhile compute activations again in backward passes, in models that were told to.

    transformers does so in training mode only. Only the layers are put into it, not their parts, so
    that there is no dropout.
    """
    modules = itertools.chain.from_iterable(model.modules() for model in models)
    layers = [each for each in modules if getattr(each, "gradient_checkpointing", False) is True]
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False


def _maker(module: str, name: str, model: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"{name} {model!r} is made by gem-cpu, and {error.name!r} is not installed: "
            "pip install gem-cpu torch transformers"
        ) from error


def _check(folder: Path, name: str) -> None:
    if not (folder / "config.json").exists():
        raise ConfigurationError(f"{name}: {folder} holds no model (no config.json)")
    if (folder / "chat_template.jinja").exists() or (folder / "chat_template.json").exists():
        return
    try:
        config = read_json(folder / "tokenizer_config.json", dict[str, Any], DataError)
    except DataError as error:
        raise ConfigurationError(f"{name}: {folder} has no tokenizer: {error}") from error
    if not config.get("chat_template"):
        raise ConfigurationError(
            f"{name}: the tokenizer in {folder} has no chat template, so it cannot say where "
            "a turn begins and ends; use an instruction-tuned model or add chat_template.jinja"
        )

"""Low-rank adapters of an experiment (`policy.lora_rank`), by PEFT and as the reference has them.

`W x` becomes `W x + (alpha / rank) B A x` in every attention and MLP projection. Projections of the
same input share A, which PEFT does not do by itself, unless the adapter that they begin with has
another one for each.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gem.errors import ConfigurationError
from gem.json_lines import read_json
from gem_train.experiment.runspec import PolicyPart

SHARING = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names of projections that have the same input."""
PROJECTIONS = [*SHARING[0], *SHARING[1], "o_proj", "down_proj"]

BEGINNING = "adapter"
"""Folder, in the record's, of the adapter that a run began with."""


def lora_config(policy: PolicyPart) -> Any:
    """Return the `peft_config` of an experiment; None if all weights are trained."""
    if not policy.lora_rank:
        return None
    from peft import LoraConfig

    alpha: Any = policy.lora_alpha  # PEFT says int, and only divides by the rank
    return LoraConfig(r=policy.lora_rank, lora_alpha=alpha, target_modules=PROJECTIONS)


def begin(model: Any, folder: str | None) -> None:
    """Let projections of the same input have one A, and begin with an adapter.

    Args:
        model: A `PeftModel` that `lora_config` describes.
        folder: Of the adapter, in PEFT's format; None begins with PEFT's random one. Projections
            that have different factors A there keep them.

    Raises:
        ConfigurationError: The adapter cannot be read, or is of other projections, of another rank
            or of another scale.
    """
    import peft

    given: dict[str, Any] = {}
    if folder is not None:
        _check_scale(model.peft_config[model.active_adapter], Path(folder))
        try:
            given = peft.load_peft_weights(folder, device="cpu")
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"policy.lora_init: cannot load {folder}: {error}") from error
    for path, parent in list(model.named_modules()):
        for names in SHARING:
            there = [name for name in names if hasattr(parent, name)]
            layers = [getattr(parent, name) for name in there]
            factors = [given.get(f"{path}.{name}.lora_A.weight") for name in there]
            for layer, factor in zip(layers[1:], factors[1:], strict=True):
                if factor is None or factors[0] is None or factor.equal(factors[0]):
                    layer.lora_A = layers[0].lora_A
    if folder is None:
        return
    try:
        peft.set_peft_model_state_dict(model, given)
    except RuntimeError as error:
        raise ConfigurationError(f"policy.lora_init: cannot load {folder}: {error}") from error
    found = peft.get_peft_model_state_dict(model)
    equal = (name in given and factor.cpu().equal(given[name]) for name, factor in found.items())
    if len(given) != len(found) or not all(equal):
        raise ConfigurationError(
            f"policy.lora_init: the adapter in {folder} is not of these projections and this rank"
        )


def _check_scale(config: Any, folder: Path) -> None:
    """Refuse an adapter whose weights mean something else at the scale of a `LoraConfig`."""
    path = folder / "adapter_config.json"
    found = read_json(path, dict[str, Any], ConfigurationError) if path.exists() else {}
    for name in ("r", "lora_alpha", "use_rslora", "use_dora", "rank_pattern", "alpha_pattern"):
        wanted = getattr(config, name)
        if found.get(name, wanted) != wanted:
            raise ConfigurationError(
                f"policy.lora_init: {name} is {found[name]} in {path}, but the experiment's is "
                f"{wanted} (policy.lora_rank, policy.lora_alpha)"
            )

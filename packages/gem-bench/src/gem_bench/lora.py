"""Low-rank adapters (LoRA, arXiv 2106.09685) for the reference trainer.

`W x` becomes `W x + (alpha / rank) B A x` in every attention and MLP projection; embeddings,
output head and norms are unchanged. Projections of the same input (query, key and value; gate and
up) share A, as Qwen3's do on SkyRL's Tinker server, unless the adapter that they begin with has
another one for each. A is initialised randomly, B with zeros.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from gem.errors import ConfigurationError
from gem.json_lines import read_json
from gem_train.experiment.runspec import PolicyPart

GROUPS = (
    ("q_proj", "k_proj", "v_proj"),
    ("o_proj",),
    ("gate_proj", "up_proj"),
    ("down_proj",),
)
"""Names of projections; those of one group have the same input."""

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
_PREFIX = "base_model.model."


class Adapted(nn.Module):
    """A linear layer with an adapter."""

    def __init__(self, base: nn.Linear, a: nn.Parameter, scale: float) -> None:
        super().__init__()
        self.base = base
        self.lora_a = a
        """`[rank, in]`, may be shared."""
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, a.shape[0]))
        """`[out, rank]`"""
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        """Apply layer and adapter."""
        low = nn.functional.linear(x, self.lora_a)
        out: Tensor = self.base(x) + self.scale * nn.functional.linear(low, self.lora_b)
        return out


def add_adapters(model: nn.Module, policy: PolicyPart, seed: int) -> None:
    """Freeze a model and insert adapters.

    Args:
        model: A model in fp32.
        policy: Rank, alpha and, unless they are random, the initial adapters: a folder with
            `adapter_model.safetensors` in PEFT's format. If it also has `adapter_config.json`, rank
            and alpha there must be the policy's.
        seed: Seed of random adapters, which are uniform within `1 / sqrt(in)`.

    Raises:
        ConfigurationError: The model has no such projections, or the folder's adapters do not fit.
    """
    generator = torch.Generator().manual_seed(seed)
    given = None if policy.lora_init is None else _read(Path(policy.lora_init), policy)
    model.requires_grad_(False)
    found = False
    for path, parent in list(model.named_modules()):
        for group in GROUPS:
            layers = {name: getattr(parent, name, None) for name in group}
            linear = {n: layer for n, layer in layers.items() if isinstance(layer, nn.Linear)}
            if not linear:
                continue
            found = True
            first = next(iter(linear.values()))
            size = first.in_features
            bound = size**-0.5
            start = torch.rand(policy.lora_rank, size, generator=generator) * 2 * bound - bound
            a = nn.Parameter(start)
            for name, layer in linear.items():
                adapted = Adapted(layer, a, policy.lora_alpha / policy.lora_rank)
                if given is not None:
                    _load(adapted, given, f"{path}.{name}", first=layer is first)
                setattr(parent, name, adapted)
    if not found:
        raise ConfigurationError(
            "policy.lora_rank: the model has none of the projections "
            f"{', '.join(name for group in GROUPS for name in group)}"
        )
    if given:
        raise ConfigurationError(f"policy.lora_init: nothing in the model for {min(given)}")


def merge(model: nn.Module) -> None:
    """Merge the adapters into the weights, in place."""
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, Adapted):
                with torch.no_grad():
                    layer.base.weight += layer.scale * layer.lora_b @ layer.lora_a
                setattr(parent, name, layer.base)


def _read(folder: Path, policy: PolicyPart) -> dict[str, Tensor]:
    path = folder / CONFIG
    config = read_json(path, dict[str, Any], ConfigurationError) if path.exists() else {}
    for entry, setting, wanted in (
        ("r", "policy.lora_rank", policy.lora_rank),
        ("lora_alpha", "policy.lora_alpha", policy.lora_alpha),
        ("use_rslora", "the reference trainer's", False),
        ("alpha_pattern", "the reference trainer's", {}),  # alphas of single layers
    ):
        if config.get(entry, wanted) != wanted:
            raise ConfigurationError(
                f"policy.lora_init: {entry} is {config[entry]} in {path}, but {setting} is {wanted}"
            )
    try:
        return {k.removeprefix(_PREFIX): v for k, v in load_file(folder / WEIGHTS).items()}
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"policy.lora_init: cannot read {folder / WEIGHTS}: {error}"
        ) from error


def _load(adapted: Adapted, given: dict[str, Tensor], name: str, *, first: bool) -> None:
    """Move the factors of one layer from `given` into the layer.

    The first of a group has the group's A; another has it, too, or one of its own.
    """
    a, b = adapted.lora_a, adapted.lora_b
    found = {key: given.pop(f"{name}.{key}.weight", None) for key in ("lora_A", "lora_B")}
    for factor, (key, value) in zip((a, b), found.items(), strict=True):
        if value is None or value.shape != factor.shape:
            shape = None if value is None else tuple(value.shape)
            raise ConfigurationError(
                f"policy.lora_init: {name}.{key} must have the shape {tuple(factor.shape)}, "
                f"found {shape}"
            )
        if factor is a and not first and not torch.equal(a.data, value.to(a)):
            adapted.lora_a = nn.Parameter(value.to(a))
        else:
            factor.data.copy_(value)

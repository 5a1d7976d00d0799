"""Low-rank adapters of the reference trainer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from gem.errors import ConfigurationError
from gem_bench.lora import CONFIG, WEIGHTS, Adapted, add_adapters, merge
from gem_train.experiment.runspec import PolicyPart

RANK, ALPHA = 2, 6.0


class Block(nn.Module):
    """Projections as the models name them."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj = nn.Linear(4, 6), nn.Linear(4, 3)
        self.v_proj, self.o_proj = nn.Linear(4, 3), nn.Linear(6, 4)
        self.norm = nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.q_proj(x) + self.k_proj(x).sum() + self.v_proj(x).sum()
        return self.o_proj(q) + self.norm(x)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block, self.lm_head = Block(), nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lm_head(self.block(x))


def policy(init: Path | None = None) -> PolicyPart:
    return PolicyPart(
        model="m",
        **dict.fromkeys(("prompt_tokens", "response_tokens", "turn_tokens"), 1),
        lora_rank=RANK,
        lora_alpha=ALPHA,
        lora_init=None if init is None else str(init),
    )


def adapted(seed: int = 0, init: Path | None = None) -> Model:
    torch.manual_seed(0)
    model = Model()
    add_adapters(model, policy(init), seed)
    return model


X = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


def exported(model: Model, folder: Path) -> dict[str, torch.Tensor]:
    """The adapters as PEFT would save them."""
    folder.mkdir(exist_ok=True)
    tensors = {}
    for name, module in model.named_modules():
        if isinstance(module, Adapted):
            key = f"base_model.model.{name}"
            tensors[f"{key}.lora_A.weight"] = module.lora_a.detach().clone()
            tensors[f"{key}.lora_B.weight"] = torch.randn_like(module.lora_b)
    save_file(tensors, folder / WEIGHTS)
    return tensors


def test_a_new_adapter_changes_nothing_until_it_is_trained() -> None:
    torch.manual_seed(0)
    plain = Model()
    model = adapted()
    assert torch.equal(model(X), plain(X))
    model(X).sum().backward()
    trained = {name for name, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    assert trained == {f"block.{name}_proj.lora_b" for name in "qkvo"}


def test_only_adapters_are_trained() -> None:
    trained = {
        name.rpartition(".")[2] for name, p in adapted().named_parameters() if p.requires_grad
    }
    assert trained == {"lora_a", "lora_b"}


def test_projections_of_the_same_input_share_a_factor() -> None:
    block = adapted().block
    assert block.q_proj.lora_a is block.k_proj.lora_a is block.v_proj.lora_a
    assert block.o_proj.lora_a is not block.q_proj.lora_a
    assert len(list(adapted().parameters())) == len(set(adapted().parameters()))


def test_an_adapter_adds_its_scaled_product(tmp_path: Path) -> None:
    tensors = exported(adapted(), tmp_path)
    model = adapted(seed=9, init=tmp_path)
    q = model.block.q_proj
    prefix = "base_model.model.block.q_proj"
    product = tensors[f"{prefix}.lora_B.weight"] @ tensors[f"{prefix}.lora_A.weight"]
    torch.testing.assert_close(q(X), q.base(X) + ALPHA / RANK * X @ product.T)


def test_merging_keeps_the_function_and_removes_the_adapters(tmp_path: Path) -> None:
    exported(adapted(), tmp_path)
    model = adapted(init=tmp_path)
    before = model(X)
    merge(model)
    assert not any(isinstance(module, Adapted) for module in model.modules())
    torch.testing.assert_close(model(X), before)


def test_random_adapters_depend_on_the_seed() -> None:
    first, again, other = (adapted(seed).block.q_proj.lora_a for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert float(first.detach().abs().max()) <= 4**-0.5


def test_factors_that_a_given_adapter_does_not_share_stay_apart(tmp_path: Path) -> None:
    tensors = exported(adapted(), tmp_path)
    tensors["base_model.model.block.k_proj.lora_A.weight"] += 1
    save_file(tensors, tmp_path / WEIGHTS)
    block = adapted(init=tmp_path).block
    for name in "qkv":
        found = getattr(block, f"{name}_proj").lora_a
        assert torch.equal(found, tensors[f"base_model.model.block.{name}_proj.lora_A.weight"])
        assert found.requires_grad
    assert block.q_proj.lora_a is block.v_proj.lora_a is not block.k_proj.lora_a


@pytest.mark.parametrize("change", ["missing", "shape", "more"])
def test_adapters_of_another_model_are_refused(change: str, tmp_path: Path) -> None:
    tensors = exported(adapted(), tmp_path)
    key = "base_model.model.block.o_proj.lora_B.weight"
    value = tensors.pop(key)
    if change == "shape":
        tensors[key] = value[:-1].contiguous()
    elif change == "more":
        tensors |= {key: value, "base_model.model.block.x_proj.lora_B.weight": value.clone()}
    save_file(tensors, tmp_path / WEIGHTS)
    with pytest.raises(ConfigurationError, match=r"policy\.lora_init: .*block\.(o|x)_proj"):
        adapted(init=tmp_path)


@pytest.mark.parametrize(
    ("entry", "value", "said"),
    [
        ("lora_alpha", 32, rf"lora_alpha is 32 in .*{CONFIG}, but policy.lora_alpha is 6.0"),
        ("r", 4, rf"r is 4 in .*{CONFIG}, but policy.lora_rank is 2"),
        ("use_rslora", True, rf"use_rslora is True in .*{CONFIG}, but .* is False"),
        ("alpha_pattern", {"q_proj": 32}, rf"alpha_pattern is .*q_proj.* in .*{CONFIG}, but "),
    ],
)
def test_adapters_of_another_scale_are_refused(
    entry: str, value: object, said: str, tmp_path: Path
) -> None:
    exported(adapted(), tmp_path)
    config = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": 6,
        "use_rslora": False,
        "alpha_pattern": {},
    }
    (tmp_path / CONFIG).write_text(json.dumps(config))
    adapted(init=tmp_path)
    (tmp_path / CONFIG).write_text(json.dumps({**config, entry: value}))
    with pytest.raises(ConfigurationError, match=rf"policy\.lora_init: {said}"):
        adapted(init=tmp_path)


def test_a_damaged_description_of_adapters_is_named(tmp_path: Path) -> None:
    exported(adapted(), tmp_path)
    (tmp_path / CONFIG).write_text("{")
    with pytest.raises(ConfigurationError, match=f"{CONFIG} is damaged"):
        adapted(init=tmp_path)


def test_a_folder_without_adapters_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot read"):
        adapted(init=tmp_path)


def test_a_model_without_projections_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="none of the projections"):
        add_adapters(nn.Sequential(nn.Linear(2, 2)), policy(), 0)

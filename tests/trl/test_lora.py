"""Low-rank adapters of an experiment: PEFT's, shared as the reference shares them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from transformers import AutoModelForCausalLM

from gem.errors import ConfigurationError
from gem_train.experiment.runspec import PolicyPart
from gem_trl import GemGRPOTrainer, GemSettings, task_dataset
from gem_trl.lora import begin, lora_config

IDS = torch.tensor([[1, 2, 3, 4]])


def policy(rank: int) -> PolicyPart:
    return PolicyPart(model="m", prompt_tokens=1, response_tokens=1, turn_tokens=1, lora_rank=rank)


def adapted(model: Path, rank: int = 2) -> Any:
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    return peft.get_peft_model(base, lora_config(policy(rank)))


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS).logits


@pytest.fixture
def trained(model: Path, tmp_path: Path) -> tuple[Any, Path]:
    """A model whose adapter does something, and the folder where it is saved."""
    made = adapted(model)
    begin(made, None)
    generator = torch.Generator().manual_seed(0)
    for name, weight in made.named_parameters():
        if "lora_B" in name:
            weight.data.normal_(generator=generator)
    made.save_pretrained(tmp_path / "adapter")
    return made, tmp_path / "adapter"


def test_without_a_rank_all_weights_are_trained() -> None:
    assert lora_config(policy(0)) is None


def test_projections_of_the_same_input_share_a_factor(model: Path) -> None:
    made = adapted(model)
    begin(made, None)
    block = made.get_base_model().model.layers[0]
    q, k, v, o = (getattr(block.self_attn, f"{name}_proj") for name in "qkvo")
    assert q.lora_A.default is k.lora_A.default is v.lora_A.default
    assert block.mlp.gate_proj.lora_A.default is block.mlp.up_proj.lora_A.default
    assert o.lora_A.default is not q.lora_A.default
    # Optimiser and norm of the gradient see a factor once: A of four inputs, B of seven outputs.
    trained = [weight for weight in made.parameters() if weight.requires_grad]
    assert len(trained) == len(made.get_base_model().model.layers) * (4 + 7)


def test_a_random_adapter_changes_nothing_until_it_is_trained(model: Path) -> None:
    made = adapted(model)
    begin(made, None)
    with made.disable_adapter():
        without = logits(made)
    assert torch.equal(logits(made), without)


def test_a_run_begins_with_the_adapter_of_a_folder(model: Path, trained: tuple[Any, Path]) -> None:
    made = adapted(model)
    begin(made, str(trained[1]))
    assert torch.equal(logits(made), logits(trained[0]))


def test_factors_that_a_given_adapter_does_not_share_stay_apart(
    model: Path, trained: tuple[Any, Path]
) -> None:
    other = adapted(model)  # of projections with a factor each
    other.save_pretrained(trained[1])
    made = adapted(model)
    begin(made, str(trained[1]))
    ours, theirs = map(peft.get_peft_model_state_dict, (made, other))
    assert all(factor.equal(theirs[name]) for name, factor in ours.items())
    weights = [weight for weight in made.parameters() if weight.requires_grad]
    assert len(weights) == len(ours) == len(theirs)


@pytest.mark.parametrize("change", ["fewer", "rank", "alpha", "rslora", "nothing there"])
def test_adapters_that_do_not_fit_are_refused(
    change: str, model: Path, trained: tuple[Any, Path], tmp_path: Path
) -> None:
    folder = trained[1]
    if change == "fewer":
        base = AutoModelForCausalLM.from_pretrained(model)
        config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"])
        peft.get_peft_model(base, config).save_pretrained(folder)
    elif change == "rank":
        other = adapted(model, rank=3)
        other.save_pretrained(folder)
    elif change in ("alpha", "rslora"):
        config = lora_config(policy(2))
        other = {"alpha": {"lora_alpha": 8}, "rslora": {"use_rslora": True}}[change]
        replace(config, **other).save_pretrained(folder)
    else:
        folder = tmp_path / "none"
    with pytest.raises(ConfigurationError, match=r"policy\.lora_init: .*(adapter|none)"):
        begin(adapted(model), str(folder))


def test_a_script_s_own_peft_config_is_trl_s(model: Path, make_args: Callable[..., Any]) -> None:
    """Only adapters are trained, and each projection keeps factors of its own."""
    trainer = GemGRPOTrainer(
        str(model),
        make_args(max_steps=1),
        train_dataset=task_dataset("gem:test:Scripted-v0?n=64"),
        gem=GemSettings(prompt_tokens=128, response_tokens=512, turns=3),
        peft_config=peft.LoraConfig(r=2, target_modules=["q_proj", "k_proj"]),
    )
    before = {name: weight.clone() for name, weight in trainer.model.named_parameters()}
    trainer.train()
    after = dict(trainer.model.named_parameters())
    changed = {name for name, weight in before.items() if not torch.equal(weight, after[name])}
    assert all("lora_B" in name for name in changed) and changed
    assert sum("lora_A" in name for name in before) == sum("lora_B" in name for name in before)

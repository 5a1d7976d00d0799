"""The policy's output layer stays tied to its embeddings, which SkyRL by itself would part."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed

from gem_cpu.tiny_model import ensure

# Of PyTorch's own loading of a divided model.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`_get_pg_default_device`"),
    pytest.mark.filterwarnings("ignore:Multiple backends are registered"),
]


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """One process that is a group of its own."""
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", rank=0, world_size=1, store=store)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def divided(apply: Any) -> Any:
    """SkyRL's FSDP model of one rank, with a replacement of its `apply_fsdp2`."""
    from skyrl.backends.skyrl_train.distributed import fsdp_strategy
    from skyrl.train.config.config import FSDPConfig, MixedPrecisionConfig, OptimizerConfig
    from transformers import AutoModelForCausalLM

    from gem_train.seams import replaced

    precision = MixedPrecisionConfig(param_dtype="fp32")
    strategy = fsdp_strategy.FSDPStrategy(
        fsdp_config=FSDPConfig(mixed_precision=precision),
        optimizer_config=OptimizerConfig(lr=0.1),
    )
    strategy.device_mesh = fsdp_strategy.create_device_mesh(world_size=1, fsdp_size=-1)
    loaded = AutoModelForCausalLM.from_pretrained(ensure(), dtype=torch.float32)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    with replaced(fsdp_strategy, "apply_fsdp2", apply(fsdp_strategy.apply_fsdp2)):
        return strategy._fsdp_init_train_model(loaded, None, None)


def trained_apart(made: Any) -> float:
    """Take a step; return how far output layer and embeddings are from each other then."""
    model, optimizer, _ = made
    ids = torch.arange(3, 11)[None]
    loss = torch.nn.functional.cross_entropy(model(ids).logits[0, :-1], ids[0, 1:])
    loss.backward()
    optimizer.step()
    state = {name: value.full_tensor() for name, value in model.state_dict().items()}
    return float((state["lm_head.weight"] - state["model.embed_tokens.weight"]).abs().max())


def test_the_weights_that_are_tied_are_trained_as_one(alone: None) -> None:
    from gem_skyrl.worker import tied

    assert trained_apart(divided(tied)) == 0.0


def test_skyrl_itself_parts_them(alone: None) -> None:
    """When this fails, SkyRL no longer does, and `gem_skyrl.worker` can go."""
    assert trained_apart(divided(lambda apply: apply)) > 0.05

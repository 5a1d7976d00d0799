"""Hardware: what a run is given to run on. It decides speed and memory, never what is learned.

An adapter compiles it beside the RunSpec; values that are None are the adapter's choice. Keys of
the trainer that neither of the two can say are `native`, and go to it as they are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gem.errors import ConfigurationError, DataError
from gem.executors.named import check_name
from gem.json_lines import read_json
from gem.tables import build, setting
from gem_train.experiment.runspec import RunSpec


@dataclass(frozen=True)
class EnginePart:
    """Engines that sample."""

    tensor_parallel: int = setting("GPUs that share the weights of an engine", 1, least=1)
    engines: int | None = setting(
        "number of engines; by default as many as the GPUs allow", None, least=1
    )
    memory_share: float | None = setting(
        "share of a GPU's memory for an engine's weights and KV cache", None, above=0, below=1
    )


@dataclass(frozen=True)
class LearnerPart:
    """The processes that compute gradients; all GPUs hold a part of the weights."""

    tensor_parallel: int = setting("GPUs that share each matrix", 1, least=1)
    sequence_parallel: int = setting("GPUs that share the tokens of a row", 1, least=1)
    pass_tokens: int | None = setting("most tokens of a GPU's forward pass", None, least=1)
    checkpointing: bool = setting("compute activations again in the backward pass", True)
    offload: bool = setting("keep the optimiser's state in main memory between updates", False)
    attention: str | None = setting(
        "implementation of attention; by default flash attention in bf16 where it is installed, "
        "else sdpa",
        None,
        choices=("sdpa", "flash_attention_2"),
    )


@dataclass(frozen=True)
class Hardware:
    """GPUs of a run and how they are used; the default is one GPU of 80 GB."""

    device: str = setting("`cpu` lets processes stand for GPUs", "gpu", choices=("gpu", "cpu"))
    nodes: int = setting("number of machines", 1, least=1)
    gpus_per_node: int = setting("GPUs of a machine", 1, least=1)
    gpu_memory_gb: float = setting("memory of a GPU", 80.0, above=0)
    engine: EnginePart = field(default_factory=EnginePart)
    learner: LearnerPart = field(default_factory=LearnerPart)
    executor: str | None = setting(
        "where environments run: `thread` (default), `process:8`, `ray:64`, `remote:<address>`",
        None,
        check=check_name,
    )
    checkpoint_every: int | None = setting("iterations between checkpoints", None, least=1)
    logger: str | None = setting(
        "where the trainer logs, besides the record", None, choices=("wandb",)
    )
    native: Mapping[str, Any] = setting("table of a trainer's own settings, by trainer", {})

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any]) -> Hardware:
        """Make it from parsed TOML or JSON.

        Raises:
            ConfigurationError: A key is unknown or of a wrong type or range, GPUs do not divide as
                asked for, or `native` holds something other than tables.
        """
        made = build(cls, data)
        for part, size, gpus in (
            ("engine.tensor_parallel", made.engine.tensor_parallel, made.gpus_per_node),
            ("learner.tensor_parallel", made.learner.tensor_parallel, made.gpus_per_node),
            (
                "learner.sequence_parallel",
                made.learner.sequence_parallel,
                made.gpus // made.learner.tensor_parallel,
            ),
        ):
            if gpus % size:
                raise ConfigurationError(f"{part}: {gpus} GPUs do not divide into groups of {size}")
        engines, size = made.engine.engines or 1, made.engine.tensor_parallel
        if engines * size > made.gpus:
            raise ConfigurationError(
                f"engine.engines: {engines} engines on {size} GPUs each need {engines * size} "
                f"GPUs, there are {made.gpus}"
            )
        for trainer, table in made.native.items():
            if not isinstance(table, Mapping):
                raise ConfigurationError(
                    f"native.{trainer} must be a table of the trainer's settings, got {table!r}"
                )
        return made

    def to_mapping(self) -> dict[str, Any]:
        """Return a JSON-ready mapping that `from_mapping` reads back."""
        return asdict(self)

    @property
    def cpu(self) -> bool:
        """Whether there is no GPU."""
        return self.device == "cpu"

    @property
    def gpus(self) -> int:
        """GPUs of all nodes."""
        return self.nodes * self.gpus_per_node

    @property
    def engines(self) -> int:
        """Number of engines."""
        return self.engine.engines or self.gpus // self.engine.tensor_parallel

    @property
    def ranks(self) -> int:
        """Data-parallel ranks of the learner: rows are divided among them."""
        return self.gpus // (self.learner.tensor_parallel * self.learner.sequence_parallel)

    def with_native(self, trainer: str, settings: Mapping[str, Any]) -> Hardware:
        """Return it with further native settings of a trainer."""
        own = {**self.native.get(trainer, {}), **settings}
        return replace(self, native={**self.native, trainer: own} if own else self.native)


CPU = Hardware(device="cpu", learner=LearnerPart(checkpointing=False))
"""One process that stands for a GPU."""


def check_model(spec: RunSpec, hardware: Hardware) -> None:
    """Refuse tensor parallelism that does not divide a model's attention heads.

    Args:
        spec: The experiment; a model that is no folder is not looked at.
        hardware: What it is to run on.

    Raises:
        ConfigurationError: The message names the key.
    """
    heads = language(model_config(spec.policy.model)).get("num_attention_heads")
    for part, size in (
        ("engine", hardware.engine.tensor_parallel),
        ("learner", hardware.learner.tensor_parallel),
    ):
        if heads is not None and heads % size:
            raise ConfigurationError(
                f"{part}.tensor_parallel: {spec.policy.model} has {heads} attention heads, which "
                f"do not divide among {size} GPUs"
            )


SCALES = ("final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier")
"""Keys of a model's configuration that change logits after the last matrix."""


def logit_scales(model: str) -> list[str]:
    """Return the keys with which a model changes logits after the last matrix.

    The fused heads of some trainers compute from that matrix alone.

    Args:
        model: A folder or a name. A model that is not downloaded is taken to have none: ask again
            when the run begins.
    """
    config = language(known_config(model))
    return [key for key in SCALES if config.get(key) not in (None, 1)]


def known_config(model: str) -> dict[str, Any]:
    """Return the `config.json` of a model, in a folder or in the hub's cache; empty without one.

    Args:
        model: A folder or a name.

    Raises:
        DataError: It cannot be read.
    """
    config = model_config(model)
    if not config and find_spec("huggingface_hub") is not None:
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError

        with contextlib.suppress(HFValidationError):  # a path of another machine
            cached = try_to_load_from_cache(model, "config.json")
            if isinstance(cached, str):
                config = model_config(str(Path(cached).parent))
    return config


def sees(model: str) -> bool | None:
    """Return whether a model is shown images; None if it is not here yet.

    Args:
        model: A folder or a name.

    Raises:
        DataError: Its `config.json` cannot be read.
    """
    config = known_config(model)
    return config.get("vision_config") is not None if config else None


def model_config(model: str) -> dict[str, Any]:
    """Return the `config.json` of a model's folder; empty where there is none.

    Raises:
        DataError: It cannot be read.
    """
    config = Path(model) / "config.json"
    if not config.exists():
        return {}
    found: dict[str, Any] = read_json(config, dict[str, Any], DataError)
    return found


def language(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a `config.json` says of the language model: one that sees has a table for it."""
    return {**config, **(config.get("text_config") or {})}

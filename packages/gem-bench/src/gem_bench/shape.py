"""A model's dimensions, read from its `config.json`, and the sizes that follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gem.errors import ConfigurationError, DataError
from gem.json_lines import read_json
from gem_train.experiment.hardware import model_config

_FAMILIES = {  # whether query, key and value have biases, queries and keys norms
    "llama": (False, False),
    "mistral": (False, False),
    "qwen2": (True, False),
    "qwen3": (False, True),
    "qwen3_moe": (False, True),
}
_NEEDED = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
)


@dataclass(frozen=True)
class Shape:
    """Dimensions of a decoder as transformers builds it."""

    hidden: int
    layers: int
    heads: int
    queries: int
    """Width of all heads' queries."""
    keys: int
    """Width of all heads' keys, and of their values."""
    inner: int
    """Width of an MLP, of an expert where there are several."""
    vocabulary: int
    tied: bool
    """Whether the embedding is also the output head."""
    experts: int = 0
    active: int = 1
    """Experts, or MLPs, that a token passes."""
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    head_norm: int = 0
    """Width of the norms of queries and keys; 0 without."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Shape:
        """Read a `config.json`.

        Raises:
            ConfigurationError: The family is unknown, or a key is missing.
        """
        family = config.get("model_type")
        if family not in _FAMILIES:
            known = ", ".join(_FAMILIES)
            raise ConfigurationError(f"model_type {family!r} is none of those estimated: {known}")
        sparse = family == "qwen3_moe"
        if "num_local_experts" in config:  # the name in newer versions of transformers
            config = {"num_experts": config["num_local_experts"], **config}
        missing = [key for key in _NEEDED if key not in config]
        if sparse:
            moe = ("num_experts", "num_experts_per_tok", "moe_intermediate_size")
            missing += [key for key in moe if key not in config]
        if missing:
            raise ConfigurationError(f"the model's configuration lacks {', '.join(missing)}")
        if sparse and (config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1):
            raise ConfigurationError("layers without experts among those with are not estimated")
        always, normed = _FAMILIES[family]
        bias, heads = bool(config.get("attention_bias")), config["num_attention_heads"]
        width = config.get("head_dim") or config["hidden_size"] // heads
        return cls(
            hidden=config["hidden_size"],
            layers=config["num_hidden_layers"],
            heads=heads,
            queries=heads * width,
            keys=(config.get("num_key_value_heads") or heads) * width,
            inner=config["moe_intermediate_size" if sparse else "intermediate_size"],
            vocabulary=config["vocab_size"],
            tied=bool(config.get("tie_word_embeddings")),
            experts=config["num_experts"] if sparse else 0,
            active=config["num_experts_per_tok"] if sparse else 1,
            qkv_bias=always or bias,
            output_bias=bias and not always,
            mlp_bias=bool(config.get("mlp_bias")),
            head_norm=width if normed else 0,
        )

    @property
    def layer(self) -> int:
        """Parameters of a layer."""
        h, q, k = self.hidden, self.queries, self.keys
        attention = 2 * h * (q + k) + 2 * self.head_norm
        attention += (q + 2 * k) * self.qkv_bias + h * self.output_bias
        mlp = 3 * h * self.inner + (2 * self.inner + h) * self.mlp_bias
        return attention + mlp * (self.experts or 1) + h * self.experts + 2 * h

    @property
    def outside(self) -> int:
        """Parameters of embedding and output head."""
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def parameters(self) -> int:
        """Parameters of the model."""
        return self.outside + self.layers * self.layer + self.hidden

    @property
    def critic(self) -> int:
        """Parameters of a critic, which has one output in the place of the head."""
        return self.parameters - (0 if self.tied else self.outside // 2) + self.hidden + 1

    def adapters(self, rank: int) -> int:
        """Return the parameters of adapters on each projection of attention and MLPs."""
        h, q, k = self.hidden, self.queries, self.keys
        mlp = 3 * (h + self.inner) * (self.experts or 1)
        return rank * self.layers * (2 * (h + q) + 2 * (h + k) + mlp)

    def activations(self, arithmetic: str, split: int = 1) -> float:
        """Return the bytes that a layer's forward pass keeps for its backward pass, per token.

        Counted as in section 4.1 of arXiv 2205.05198, for this kind of layer. In numbers, with
        hidden width h, queries q, keys k and an MLP of width f:

        - each of two norms: its input, the normed input and the scaled one that projections
          read, 3h; queries and keys where they are normed, 2(q + k)
        - attention without a matrix of scores: queries, keys, values and its output, 2q + 2k
        - gate, its activation, up, and their product: 4f

        In bf16 a norm computes in fp32, and its input is kept at twice the size. With autocast
        all of the width h is fp32, and what a projection reads is kept in bf16 besides. An MLP of
        experts also keeps the tokens that each expert reads and writes.

        Args:
            arithmetic: `fp32`, `bf16`, or `autocast` from weights in fp32 to bf16.
            split: GPUs that share each matrix.
        """
        element = 4 if arithmetic == "fp32" else 2
        hidden = {"fp32": 6, "bf16": 8, "autocast": 14}[arithmetic] * self.hidden
        normed = (2 if arithmetic == "fp32" else 3) * bool(self.head_norm)
        inner = (2 + normed) * (self.queries + self.keys) + 4 * self.inner * self.active
        routed = (8 if arithmetic == "autocast" else 2) * self.hidden * self.active
        return element * (hidden + inner / split + routed * bool(self.experts))


def qwen3(hidden: int, layers: int, heads: int, inner: int, *, tied: bool) -> dict[str, Any]:
    """Return what the `config.json` of a Qwen3 says; all have 8 key heads of 128."""
    return {
        "model_type": "qwen3",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": inner,
        "vocab_size": 151_936,
        "tie_word_embeddings": tied,
    }


PUBLISHED = {
    "Qwen/Qwen3-1.7B": qwen3(2048, 28, 16, 6144, tied=True),
    "Qwen/Qwen3-4B": qwen3(2560, 36, 32, 9728, tied=True),
    "Qwen/Qwen3-8B": qwen3(4096, 36, 32, 12_288, tied=False),
    "Qwen/Qwen3-32B": qwen3(5120, 64, 64, 25_600, tied=False),
}
"""Configurations by hub name, of models that are not downloaded; those of `-Base` are the same."""


def find_config(model: str, file: Path | None = None) -> dict[str, Any]:
    """Return a model's `config.json`: of a file, the model's folder, the hub's cache, `PUBLISHED`.

    Raises:
        ConfigurationError: There is none, or it cannot be read.
    """
    if file is None and find_spec("huggingface_hub") is not None and not Path(model).is_dir():
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(model, "config.json")
        file = Path(cached) if isinstance(cached, str) else None
    try:
        known = None if file is None else read_json(file, dict[str, Any], DataError)
        config = model_config(model) if known is None else known
        config = config or PUBLISHED.get(model.removesuffix("-Base"), {})
    except DataError as error:
        raise ConfigurationError(
            f"{file or model}: no configuration of a model: {error}"
        ) from error
    if not config:
        raise ConfigurationError(
            f"policy.model: {model!r} is no folder and not downloaded, so its size is not known; "
            "--model-config FILE names its config.json"
        )
    return config

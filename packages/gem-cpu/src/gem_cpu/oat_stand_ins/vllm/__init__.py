"""Stand-in for vLLM: the part that oat uses, with `transformers` on the CPU.

The prompts of one call are one left-padded batch, with a key-value cache for the call.
Log-probabilities are the model's, before temperature and filters, as vLLM's default. Weights arrive
through the same worker extension (`worker_extension_cls`) as in vLLM.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

__version__ = "0.8.4+gem.cpu"


@dataclass
class SamplingParams:
    """How a request is sampled; vLLM's names and defaults."""

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    max_tokens: int = 16
    logprobs: int | None = None
    seed: int | None = None
    stop_token_ids: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Logprob:
    """Log-probability of a token."""

    logprob: float


@dataclass
class CompletionOutput:
    """A sampled response."""

    text: str
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]] | None
    finish_reason: str


@dataclass
class RequestOutput:
    """The responses to a prompt."""

    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]


class LLM:
    """A model that samples."""

    def __init__(
        self,
        model: str,
        dtype: str = "float32",
        seed: int = 0,
        max_model_len: int | None = None,
        worker_extension_cls: str | None = None,
        **options: Any,
    ) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        precision = getattr(torch, dtype)
        self._tokenizer: Any = AutoTokenizer.from_pretrained(model)
        self._model: Any = AutoModelForCausalLM.from_pretrained(model, dtype=precision).eval()
        self._max_model_len = max_model_len or self._model.config.max_position_embeddings
        self._random = random.Random(seed)
        self._worker = _worker(worker_extension_cls, self._model, precision)
        self.llm_engine = SimpleNamespace(reset_prefix_cache=lambda: None)

    def get_tokenizer(self) -> Any:
        """The model's tokenizer."""
        return self._tokenizer

    def collective_rpc(self, method: str, args: Sequence[Any] = ()) -> list[Any]:
        """Call a method of the worker."""
        return [getattr(self._worker, method)(*args)]

    def sleep(self, level: int = 1) -> None:
        """Nothing to free."""

    def wake_up(self) -> None:
        """Nothing to load."""

    def generate(
        self,
        prompts: Sequence[dict[str, list[int]]],
        sampling_params: SamplingParams | Sequence[SamplingParams],
        **options: Any,
    ) -> list[RequestOutput]:
        """Sample one response to each prompt.

        Args:
            prompts: `{"prompt_token_ids": ids}` each.
            sampling_params: For each prompt, or for all.

        Raises:
            ValueError: A prompt does not fit into the model's length.
        """
        ids = [list(prompt["prompt_token_ids"]) for prompt in prompts]
        if isinstance(sampling_params, SamplingParams):
            sampling_params = [sampling_params] * len(ids)
        for prompt in ids:
            if len(prompt) >= self._max_model_len:
                raise ValueError(
                    f"the prompt has {len(prompt)} tokens, max_model_len is {self._max_model_len}"
                )
        rows = [
            _Row(prompt, params, self._rng(params), self._room(prompt, params), self._stops(params))
            for prompt, params in zip(ids, sampling_params, strict=True)
        ]
        self._decode(rows)
        return [row.output(self._tokenizer) for row in rows]

    def _rng(self, params: SamplingParams) -> random.Random:
        return self._random if params.seed is None else random.Random(params.seed)

    def _room(self, prompt: Sequence[int], params: SamplingParams) -> int:
        return min(params.max_tokens, self._max_model_len - len(prompt))

    def _stops(self, params: SamplingParams) -> frozenset[int]:
        return frozenset([self._tokenizer.eos_token_id, *params.stop_token_ids])

    @torch.no_grad()
    def _decode(self, rows: Sequence[_Row]) -> None:
        from transformers import DynamicCache

        width = max(len(row.prompt) for row in rows)
        ids = torch.tensor([[0] * (width - len(row.prompt)) + row.prompt for row in rows])
        mask = torch.tensor([[0] * (width - len(r.prompt)) + [1] * len(r.prompt) for r in rows])
        cache = DynamicCache()
        while True:
            positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
            logits = self._model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            ).logits[:, -1]
            tokens = _draw(logits.float(), rows)
            if all(row.finished for row in rows):
                return
            ids = torch.tensor(tokens)[:, None]
            alive = torch.tensor([[int(not row.finished)] for row in rows])
            mask = torch.cat([mask, alive], 1)


class _Row:
    """A request while it is sampled."""

    def __init__(
        self,
        prompt: list[int],
        params: SamplingParams,
        rng: random.Random,
        room: int,
        stops: frozenset[int],
    ) -> None:
        self.prompt = prompt
        self.params = params
        self.rng = rng
        self.room = room
        self.stops = stops
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []

    @property
    def finished(self) -> bool:
        return bool(self.token_ids) and (
            self.token_ids[-1] in self.stops or len(self.token_ids) >= self.room
        )

    def output(self, tokenizer: Any) -> RequestOutput:
        stopped = self.token_ids[-1] in self.stops
        known = None
        if self.params.logprobs is not None:
            pairs = zip(self.token_ids, self.logprobs, strict=True)
            known = [{token: Logprob(logprob)} for token, logprob in pairs]
        text = tokenizer.decode(self.token_ids, skip_special_tokens=True)
        reason = "stop" if stopped else "length"
        return RequestOutput(self.prompt, [CompletionOutput(text, self.token_ids, known, reason)])


def _draw(logits: Tensor, rows: Sequence[_Row]) -> list[int]:
    """Append one token to every unfinished row; return what to feed, `[rows]`."""
    known = logits.log_softmax(-1)
    tokens = logits.argmax(-1).tolist()
    for i, row in enumerate(rows):
        if row.finished:
            continue
        params = row.params
        if params.temperature > 0 and params.top_k != 1:
            tokens[i] = _sample(logits[i], params, row.rng.random())
        row.token_ids.append(tokens[i])
        row.logprobs.append(float(known[i, tokens[i]]))
    return [int(token) for token in tokens]


def _sample(logits: Tensor, params: SamplingParams, u: float) -> int:
    """Return the token at quantile `u` of the distribution of `logits[vocab]`."""
    logits = logits.double() / params.temperature
    if 0 < params.top_k < len(logits):
        logits = logits.masked_fill(logits < logits.topk(params.top_k).values[-1], -torch.inf)
    probs, order = logits.softmax(-1).sort(descending=True)
    if params.top_p < 1:
        # Keep a token if the mass before it is below top_p, so the most likely one always stays.
        probs = probs * (probs.cumsum(0) - probs < params.top_p)
    mass = probs.cumsum(0)
    place = int(torch.searchsorted(mass, u * float(mass[-1]), right=True))
    return int(order[min(place, int((probs > 0).sum()) - 1)])


def _worker(extension: str | None, model: Any, dtype: torch.dtype) -> Any:
    """Return an instance of oat's worker extension with the vLLM worker's attributes it needs."""
    if extension is None:
        return None
    module, _, name = extension.rpartition(".")
    worker = type("Worker", (getattr(importlib.import_module(module), name),), {})()
    if not torch.distributed.is_initialized():
        store = torch.distributed.HashStore()  # type: ignore[attr-defined]
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    parameters = dict(model.named_parameters())

    def load_weights(weights: Any) -> None:
        with torch.no_grad():
            for name, tensor in weights:
                parameters[name].copy_(tensor)

    worker.model_config = SimpleNamespace(dtype=dtype, enforce_eager=True)
    worker.model_runner = SimpleNamespace(model=SimpleNamespace(load_weights=load_weights))
    return worker

"""Stand-in for vLLM: the part that oat uses, with `transformers` on the CPU.

Requests are sampled continuously: whatever there is in a step is one left-padded batch with a
key-value cache, which new requests join and finished ones leave. Log-probabilities are the
model's, before temperature and filters, as vLLM's default. Weights arrive through the same worker
extension (`worker_extension_cls`) as in vLLM.
"""

from __future__ import annotations

import importlib
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from vllm.sampling_params import SamplingParams

__version__ = "0.8.4+gem.cpu"


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

    request_id: str
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = True


class LLM:
    """A model that samples."""

    def __init__(
        self,
        model: str,
        tokenizer: str | None = None,
        dtype: str = "float32",
        seed: int = 0,
        max_model_len: int | None = None,
        worker_extension_cls: str | None = None,
        **options: Any,
    ) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        precision = getattr(torch, dtype)
        self._tokenizer: Any = AutoTokenizer.from_pretrained(tokenizer or model)
        self._model: Any = AutoModelForCausalLM.from_pretrained(model, dtype=precision).eval()
        longest = max_model_len or self._model.config.max_position_embeddings
        self.llm_engine = LLMEngine(self._model, self._tokenizer, longest, random.Random(seed))
        self._worker = _worker(worker_extension_cls, self._model, precision)

    def get_tokenizer(self) -> Any:
        """The tokenizer, by default the model's."""
        return self._tokenizer

    def collective_rpc(self, method: str, args: Sequence[Any] = ()) -> list[Any]:
        """Call a method of the worker."""
        return [getattr(self._worker, method)(*args)]

    def sleep(self, level: int = 1) -> None:
        """Nothing to free."""

    def wake_up(self) -> None:
        """Nothing to load."""


class LLMEngine:
    """Samples a token of every request in each step; requests may come and go between steps."""

    def __init__(self, model: Any, tokenizer: Any, longest: int, rng: random.Random) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._longest = longest
        self._random = rng
        self._new: list[_Row] = []
        self._running: _Batch | None = None

    def add_request(
        self, request_id: str, prompt: dict[str, list[int]], params: SamplingParams
    ) -> None:
        """Take a request, which the next step begins to sample.

        Args:
            request_id: Name of the request.
            prompt: `{"prompt_token_ids": ids}`.
            params: How it is sampled.

        Raises:
            ValueError: The prompt does not fit into the model's length.
        """
        ids = list(prompt["prompt_token_ids"])
        room = self._longest - len(ids)
        if room <= 0:
            raise ValueError(f"the prompt has {len(ids)} tokens, max_model_len is {self._longest}")
        rng = self._random if params.seed is None else random.Random(params.seed)
        stops = frozenset([self._tokenizer.eos_token_id, *params.stop_token_ids])
        self._new.append(_Row(request_id, ids, params, rng, min(params.max_tokens, room), stops))

    def has_unfinished_requests(self) -> bool:
        """Whether there is something to sample."""
        return bool(self._new) or self._running is not None

    def abort_request(self, request_ids: list[str]) -> None:
        """Forget requests."""
        self._new = [row for row in self._new if row.request_id not in request_ids]
        if self._running is not None:
            left = [row.request_id not in request_ids for row in self._running.rows]
            self._running = self._running.kept(left)

    def step(self) -> list[RequestOutput]:
        """Sample a token of every request; return those that are finished."""
        batches = [] if self._running is None else [self._running]
        if self._new:
            batches.append(_Batch.of(self._new))
            self._new = []
        for batch in batches:
            batch.advance(self._model)
        rows = [row for batch in batches for row in batch.rows]
        going = [batch.kept([not row.finished for row in batch.rows]) for batch in batches]
        self._running = _joined([batch for batch in going if batch is not None])
        return [row.output(self._tokenizer) for row in rows if row.finished]

    def reset_prefix_cache(self) -> None:
        """Nothing is kept of requests that are finished."""


@dataclass
class _Batch:
    """Requests that are sampled together, padded on the left to the same length."""

    rows: list[_Row]
    ids: Tensor
    """What is fed next, `[rows, tokens]`: the prompts, later the last token of each row."""
    mask: Tensor
    """1 for all tokens of a row, those of `ids` included, 0 for padding, `[rows, length]`."""
    cache: Any
    """Keys and values of the tokens before `ids`, `[rows, heads, length - tokens, size]`."""

    @classmethod
    def of(cls, rows: list[_Row]) -> _Batch:
        """Return a batch that the model has seen nothing of yet."""
        from transformers import DynamicCache

        width = max(len(row.prompt) for row in rows)
        ids = torch.tensor([[0] * (width - len(row.prompt)) + row.prompt for row in rows])
        mask = torch.tensor([[0] * (width - len(r.prompt)) + [1] * len(r.prompt) for r in rows])
        return cls(rows, ids, mask, DynamicCache())

    @torch.no_grad()
    def advance(self, model: Any) -> None:
        """Sample a token of every row."""
        positions = (self.mask.cumsum(1) - 1).clamp(min=0)[:, -self.ids.shape[1] :]
        logits = model(
            input_ids=self.ids,
            attention_mask=self.mask,
            position_ids=positions,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        self.ids = torch.tensor(_draw(logits.float(), self.rows))[:, None]
        self.mask = pad(self.mask, (0, 1), value=1)

    def kept(self, left: Sequence[bool]) -> _Batch | None:
        """Return the batch with some of its rows; None without any."""
        if all(left):
            return self
        places = [place for place, stays in enumerate(left) if stays]
        if not places:
            return None
        self.cache.batch_select_indices(torch.tensor(places))
        rows = [self.rows[place] for place in places]
        return _Batch(rows, self.ids[places], self.mask[places], self.cache)


def _joined(batches: Sequence[_Batch]) -> _Batch | None:
    """Make one batch of batches that have been fed all but one token; None of none."""
    from transformers import DynamicCache

    if len(batches) < 2:
        return batches[0] if batches else None
    longest = max(int(batch.mask.sum(1).max()) for batch in batches)

    def padded(values: Tensor, length: int) -> Tensor:
        """Pad or cut `values[rows, heads, tokens, size]` on the left."""
        return pad(values, (0, 0, length - values.shape[2], 0))

    layers = zip(*(batch.cache.layers for batch in batches), strict=True)
    cache = DynamicCache(
        [
            tuple(
                torch.cat([padded(getattr(each, name), longest - 1) for each in layer])
                for name in ("keys", "values")
            )
            for layer in layers
        ]
    )
    masks = [pad(batch.mask, (longest - batch.mask.shape[1], 0)) for batch in batches]
    ids = torch.cat([batch.ids for batch in batches])
    return _Batch([row for each in batches for row in each.rows], ids, torch.cat(masks), cache)


class _Row:
    """A request while it is sampled."""

    def __init__(
        self,
        request_id: str,
        prompt: list[int],
        params: SamplingParams,
        rng: random.Random,
        room: int,
        stops: frozenset[int],
    ) -> None:
        self.request_id = request_id
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
        answer = CompletionOutput(text, self.token_ids, known, reason)
        return RequestOutput(self.request_id, self.prompt, [answer])


def _draw(logits: Tensor, rows: Sequence[_Row]) -> list[int]:
    """Append one token to every row; return the tokens, `[rows]`."""
    known = logits.log_softmax(-1)
    tokens = []
    for i, row in enumerate(rows):
        params = row.params
        if params.repetition_penalty != 1:
            seen = torch.tensor(sorted({*row.prompt, *row.token_ids}))
            found, penalty = logits[i, seen], params.repetition_penalty
            logits[i, seen] = (found / penalty).where(found > 0, found * penalty)
        tokens.append(int(logits[i].argmax()))
        if params.temperature > 0 and params.top_k != 1:
            tokens[i] = _sample(logits[i], params, row.rng.random())
        row.token_ids.append(tokens[i])
        row.logprobs.append(float(known[i, tokens[i]]))
    return tokens


def _sample(logits: Tensor, params: SamplingParams, u: float) -> int:
    """Return the token at quantile `u` of the distribution of `logits[vocab]`."""
    logits = logits.double() / params.temperature
    if 0 < params.top_k < len(logits):
        logits = logits.masked_fill(logits < logits.topk(params.top_k).values[-1], -torch.inf)
    if params.min_p > 0:
        least = logits.max() + math.log(params.min_p)
        logits = logits.masked_fill(logits < least, -torch.inf)
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

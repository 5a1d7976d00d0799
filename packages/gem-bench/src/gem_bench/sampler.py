"""The reference trainer's sampler: one KV cache for a whole batch of conversations.

- `CachedSampler`: samples one turn for every request of `gem.rollout.play_batch`.
- `warp`: repetition penalty, temperature, top-k, min-p and top-p.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from gem.rollout import ChatFormat, Request, Sample
from gem_train.experiment.runspec import SamplingPart


class CachedSampler:
    """Samples a batch of conversations with one KV cache that lives as long as the episodes.

    Each call prefills only what the cache has not seen (the last sampled token and the new
    observation), left-padded, then decodes all rows in step. Columns of padding and of rows that
    have finished their turn stay in the cache but are masked, so positions and attention are
    those of an unbatched forward pass. Rows of episodes that are over are dropped from the cache.
    """

    def __init__(
        self,
        model: Any,
        chat: ChatFormat,
        sampling: SamplingPart,
        generator: torch.Generator,
        version: int | None = None,
    ) -> None:
        """Begin without any conversation.

        Args:
            model: A causal language model of transformers, in evaluation mode.
            chat: Gives the tokens that end a turn.
            sampling: See `warp`; `top_k = 1` takes the most likely token.
            generator: The only source of randomness, on the model's device.
            version: Number of iterations that have made the model.
        """
        self.model = model
        self.chat: Any = chat
        self.device = model.device
        self.stop = torch.tensor(sorted(chat.stop_ids), device=self.device)
        self.pad_id = getattr(chat.tokenizer, "pad_token_id", None) or 0
        self.sampling = sampling
        self.generator = generator
        self.version = version
        self._cache: Any = None
        self._mask = torch.zeros(0, 0, dtype=torch.long, device=self.device)
        self._episodes: list[int] = []
        self._seen: list[int] = []  # tokens of each row's prompt that the cache holds

    @torch.no_grad()
    def __call__(self, requests: list[Request]) -> list[Sample]:
        """Sample one turn for every request."""
        self._align(requests)
        logits = self._feed(requests)
        read = self._mask.sum(1).tolist()
        limit = torch.tensor([r.max_tokens for r in requests], device=self.device)
        length = torch.zeros_like(limit)
        alive = torch.ones_like(limit, dtype=torch.bool)
        sampled: list[tuple[Tensor, Tensor]] = []
        seen = self._tokens_in(requests, logits)
        for _ in range(max(r.max_tokens for r in requests)):
            token, logprob = self._draw(logits, seen)
            if seen is not None:
                seen.scatter_(1, token[:, None], True)
            sampled.append((token, logprob))
            length += alive
            alive = alive & ~torch.isin(token, self.stop) & (length < limit)
            if not alive.any():
                break
            logits = self._go_on(token, alive)
        # The last token of a turn is fed together with the next observation.
        lengths = length.tolist()
        self._seen = [len(r.prompt_ids) + n - 1 for r, n in zip(requests, lengths, strict=True)]
        tokens = torch.stack([t for t, _ in sampled], 1).tolist()
        logprobs = torch.stack([p for _, p in sampled], 1).tolist()
        stop = set(self.stop.tolist())
        return [
            Sample(t[:n], p[:n], "stop" if t[n - 1] in stop else "length", self.version, r)
            for t, p, n, r in zip(tokens, logprobs, lengths, read, strict=True)
        ]

    def _align(self, requests: list[Request]) -> None:
        """Make the cache's rows those of the requests; start anew if any prompt does."""
        row_of = {episode: row for row, episode in enumerate(self._episodes)}
        if any(r.fresh or r.episode not in row_of for r in requests):
            self._cache = DynamicCache()
            self._mask = self._mask.new_zeros(len(requests), 0)
            self._seen = [0] * len(requests)
        else:
            rows = [row_of[r.episode] for r in requests]
            if rows != list(range(len(self._episodes))):
                index = torch.tensor(rows, device=self.device)
                self._cache.batch_select_indices(index)
                self._mask = self._mask[index]
                self._seen = [self._seen[row] for row in rows]
        self._episodes = [r.episode for r in requests]

    def _feed(self, requests: Sequence[Request]) -> Tensor:
        """Feed what the cache has not seen; returns the logits after it, `[rows, vocab]`."""
        return self._forward(*self._blocks(requests))

    def _go_on(self, token: Tensor, alive: Tensor) -> Tensor:
        """Feed the token that each row has sampled, `[rows]`, where the row goes on."""
        return self._forward(token[:, None], alive[:, None].long())

    def _blocks(self, requests: Sequence[Request]) -> tuple[Tensor, Tensor]:
        """Return the tokens that the cache has not seen, left-padded, and their mask."""
        blocks = [r.prompt_ids[n:] for r, n in zip(requests, self._seen, strict=True)]
        width = max(map(len, blocks))
        ids = [[self.pad_id] * (width - len(b)) + b for b in blocks]
        mask = [[0] * (width - len(b)) + [1] * len(b) for b in blocks]
        return torch.tensor(ids, device=self.device), torch.tensor(mask, device=self.device)

    def _forward(self, ids: Tensor, mask: Tensor, **inputs: Tensor) -> Tensor:
        self._mask = torch.cat([self._mask, mask], 1)
        if "position_ids" not in inputs:
            positions = (self._mask.cumsum(1) - 1).clamp(min=0)
            inputs["position_ids"] = positions[:, -ids.shape[1] :]
        output = self.model(
            input_ids=ids,
            attention_mask=self._mask,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
            **inputs,
        )
        logits: Tensor = output.logits[:, -1].float()
        return logits

    def _tokens_in(self, requests: list[Request], logits: Tensor) -> Tensor | None:
        """Return which tokens each conversation has, `[rows, vocab]`; None if it has no effect."""
        if self.sampling.repetition_penalty == 1:
            return None
        seen = torch.zeros_like(logits, dtype=torch.bool)
        for row, request in zip(seen, requests, strict=True):
            row[request.prompt_ids] = True
        return seen

    def _draw(self, logits: Tensor, seen: Tensor | None) -> tuple[Tensor, Tensor]:
        """Draw one token a row; returns tokens and their log-probability when drawn, `[rows]`."""
        logits = warp(logits, self.sampling, seen)
        if self.sampling.top_k == 1:
            token = logits.argmax(-1)
            return token, torch.zeros_like(token, dtype=logits.dtype)
        logprobs = logits.log_softmax(-1)
        drawn = torch.multinomial(logprobs.exp(), 1, generator=self.generator)
        return drawn[:, 0], logprobs.gather(1, drawn)[:, 0]


def warp(logits: Tensor, sampling: SamplingPart, seen: Tensor | None = None) -> Tensor:
    """Apply penalty, temperature, top-k, min-p and top-p in this order to `logits[rows, vocab]`.

    Args:
        logits: The model's.
        sampling: How to sample.
        seen: Which tokens the repetition penalty is for, `[rows, vocab]`; None for none.
    """
    if seen is not None:
        penalty = sampling.repetition_penalty
        logits = logits.where(~seen, (logits / penalty).where(logits > 0, logits * penalty))
    logits = logits / sampling.temperature
    if 0 < sampling.top_k < logits.shape[-1]:
        floor = logits.topk(sampling.top_k, -1).values[:, -1:]
        logits = logits.masked_fill(logits < floor, -torch.inf)
    if sampling.min_p > 0:
        least = logits.amax(-1, keepdim=True) + math.log(sampling.min_p)
        logits = logits.masked_fill(logits < least, -torch.inf)
    if sampling.top_p < 1.0:
        ordered, index = logits.sort(-1, descending=True)
        probs = ordered.softmax(-1)
        # The mass before a token decides: the most likely token always stays.
        drop = probs.cumsum(-1) - probs >= sampling.top_p
        logits = logits.masked_fill(drop.scatter(-1, index, drop), -torch.inf)
    return logits

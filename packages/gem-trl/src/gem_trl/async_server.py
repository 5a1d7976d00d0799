"""A vLLM server as the engine of `gem_trl.async_trainer`, by the API that TRL's own worker uses."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypedDict

from gem.errors import RolloutError, UnreachableError
from gem.fetching import asked
from gem.json_lines import parse_as
from gem.rollout.play import Request, Sample
from gem_train.sampling import EngineSampler

MOST_REQUESTS = 256
"""Most requests at a time."""
_RETRIES = 5


class ServerEngine:
    """Samples rounds of turns by `POST <url>/v1/completions`, token ids in and out.

    Temperature and candidates are left at 1 and at all tokens: there vLLM's log-probabilities are
    those that TRL computes, whatever the server's `--logprobs-mode` is.
    """

    def __init__(
        self, url: str, model: str, *, stop_ids: frozenset[int], seed: int, timeout_s: float = 600.0
    ) -> None:
        """Connect to nothing yet.

        Args:
            url: Of the server, such as `http://localhost:8000`.
            model: The server's name of the model; TRL's is its folder or name on the hub.
            stop_ids: Tokens at which a turn ends.
            seed: Of the seeds of turns. Data-parallel engines draw the same ones for requests
                that have none.
            timeout_s: Time limit of one turn.
        """
        self._url = url.rstrip("/")
        self._model = model
        self._timeout_s = timeout_s
        self._engine = EngineSampler(stop_ids)
        self._seeds = random.Random(seed)

    def __call__(self, requests: Sequence[Request]) -> list[Sample]:
        """Sample a turn for each request.

        Raises:
            RolloutError: The server does not answer, or answers something else.
        """
        with ThreadPoolExecutor(min(len(requests), MOST_REQUESTS)) as threads:
            seeds = [self._seeds.getrandbits(63) for _ in requests]
            return list(threads.map(self._sample, requests, seeds))

    def _sample(self, request: Request, seed: int) -> Sample:
        wanted = {
            "model": self._model,
            "prompt": request.prompt_ids,
            "max_tokens": request.max_tokens,
            **_WHOLE,
            "stop_token_ids": self._engine.stop_ids,
            "logprobs": 0,
            "return_token_ids": True,
            "seed": seed,
        }
        try:
            ids, logprobs, reason = asked(
                f"the vLLM server {self._url}",
                f"{self._url}/v1/completions",
                _read,
                timeout_s=self._timeout_s,
                retries=_RETRIES,
                malformed="a completion with token ids and log-probabilities",
                body=json.dumps(wanted).encode(),
                headers={"Content-Type": "application/json"},
            )
        except UnreachableError as error:
            raise RolloutError(str(error)) from error
        return self._engine.sample(ids, logprobs, cut=reason == "length")


_WHOLE = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""Sampling from all tokens; vLLM takes what a request lacks from the model's generation_config."""


class _Logprobs(TypedDict):
    token_logprobs: list[float]


class _Choice(TypedDict):
    token_ids: list[int]
    logprobs: _Logprobs
    finish_reason: str


class _Answer(TypedDict):
    choices: list[_Choice]


def _read(body: bytes) -> tuple[list[int], list[float], str]:
    choice: _Choice = parse_as(body, _Answer, "the answer")["choices"][0]
    ids, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
    if len(ids) != len(logprobs):
        raise ValueError(f"{len(ids)} tokens have {len(logprobs)} log-probabilities")
    if choice["finish_reason"] not in ("stop", "length"):
        raise ValueError(f"it ended with {choice['finish_reason']!r}")
    return ids, logprobs, choice["finish_reason"]

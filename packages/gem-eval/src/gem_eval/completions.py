"""Samplers over HTTP, token ids in and out, of vLLM and of SGLang.

They ask vLLM's `/v1/completions`, with images its `/inference/v1/generate`, and SGLang's
`/generate`. Prompts are sent as ids and never encoded again by the server, replies are recorded as
the ids that it sampled: an episode has the tokens that it would have in training. A server whose
answer does not prove that it did so is refused.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from gem.errors import ConfigurationError, RolloutError
from gem.json_lines import checked
from gem.pictures import data_url
from gem.rollout import ChatFormat, Request, Sample, check_logprobs
from gem.rollout.vision import VisionChatFormat
from gem_eval.client import VLLM_IDS, first_choice, is_count, usage_note
from gem_eval.server import ContextOverflowError, Server
from gem_train.sampling import EngineSampler

Notes = list[dict[str, Any]]
"""What is known of each call, see `gem_eval.client.Reply.note`."""

_FINISHED = ("stop", "length")


class HttpSampler(EngineSampler):
    """Asks a server for the turns of one episode."""

    SAMPLING: ClassVar[Mapping[str, Any]] = {}
    """Fields that say how is sampled, all of them sent: what is left out, vLLM takes from the
    model's `generation_config.json`."""
    LOGPROBS: ClassVar[str] = "raw"
    """Of what distribution the log-probabilities are: the model's, or at the temperature."""
    engine: Server

    def __init__(
        self,
        server: Server,
        chat: ChatFormat,
        sampling: Mapping[str, Any],
        episode: tuple[int, int],
        notes: Notes,
    ) -> None:
        """Prepare for an episode.

        Args:
            server: Has the model.
            chat: The model's; its stop tokens end a turn.
            sampling: `SAMPLING` with other values, or without some; its `seed` is the evaluation's.
            episode: Seed of the task, and number of the sample.
            notes: Gets a note for every turn.
        """
        given = dict(sampling)
        seed = given.pop("seed", None)
        seeds = None if seed is None else (seed, *episode)
        super().__init__(chat.stop_ids, seeds, engine=server, params=given)
        self._chat = chat
        self._notes = notes

    async def __call__(self, request: Request) -> Sample:
        """Sample one turn.

        Raises:
            ServerError: The server does not answer.
            ConfigurationError: It refuses the request, or does not work with tokens.
        """
        try:
            sampled, note = await self.engine.ask(
                self._url(request), self._body(request), partial(self._parsed, request)
            )
        except ContextOverflowError as error:
            raise ConfigurationError(
                f"the prompt of {len(request.prompt_ids)} and reply of {request.max_tokens} tokens "
                f"exceed the server's context; lower --context-tokens: {error}"
            ) from error
        sample, found = sampled
        self._notes.append({**found, **note})
        return sample

    @abstractmethod
    def _url(self, request: Request) -> str: ...

    @abstractmethod
    def _body(self, request: Request) -> dict[str, Any]: ...

    @abstractmethod
    def _parsed(self, request: Request, data: Any) -> tuple[Sample, dict[str, Any]]:
        """Return the sample of an answer and its note, see `gem_eval.server.Server.ask`."""

    def _complete(
        self, request: Request, ids: Any, logprobs: Any, finish: Any, counts: Mapping[str, int]
    ) -> tuple[Sample, dict[str, Any]]:
        checked(ids, list[int], "token ids")
        checked(logprobs, list[float] | None, "log-probabilities")
        if finish not in _FINISHED:
            raise ValueError(f"the request ended with {finish!r}")
        if len(ids) > request.max_tokens:
            raise ValueError(f"{len(ids)} tokens, asked for {request.max_tokens}")
        if logprobs is not None and len(logprobs) != len(ids):
            raise ValueError(f"{len(ids)} tokens with {len(logprobs)} log-probabilities")
        try:
            check_logprobs(logprobs or ())
        except RolloutError as error:
            raise ValueError(str(error)) from None
        sample = self.sample(ids, logprobs, cut=finish == "length")
        own = {"prompt_tokens": len(request.prompt_ids), "reply_tokens": len(sample.token_ids)}
        return sample, {**counts, **own, "finish_reason": finish}


class VllmSampler(HttpSampler):
    """Asks vLLM; log-probabilities are raw, whatever the temperature.

    A prompt with images goes to `POST /inference/v1/generate`: `/v1/completions` ignores images
    without a word. vLLM expands the placeholders itself, so it is sent one for each image, and the
    number of prompt tokens that it read shows whether it did.
    """

    SAMPLING: ClassVar[Mapping[str, Any]] = {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "seed": 0,
        "logprobs": 0,
    }

    def _url(self, request: Request) -> str:
        if request.images:
            return f"{self.engine.url.removesuffix('/v1')}/inference/v1/generate"
        return f"{self.engine.url}/completions"

    def _body(self, request: Request) -> dict[str, Any]:
        seed = self.turn_seed()
        params = {
            **self.params,
            **({} if seed is None else {"seed": seed}),
            "max_tokens": request.max_tokens,
            "n": 1,
            "stop_token_ids": self.stop_ids,
            "skip_special_tokens": False,
        }
        if request.images:
            assert isinstance(self._chat, VisionChatFormat)  # nothing else makes such a prompt
            urls = [data_url(image.data) for image in request.images]
            return {
                "model": self.engine.model,
                "token_ids": self._chat.collapse(request.prompt_ids, request.images),
                "content_parts": [{"type": "image_url", "url": url} for url in urls],
                "sampling_params": params,
            }
        return {
            **params,
            "model": self.engine.model,
            "prompt": request.prompt_ids,
            "return_token_ids": True,
            "add_special_tokens": False,
        }

    def _parsed(self, request: Request, data: Any) -> tuple[Sample, dict[str, Any]]:
        choice = first_choice(data)
        ids, prompt = choice.get("token_ids"), choice.get("prompt_token_ids")
        if ids is None or (prompt is None and not request.images):
            raise ConfigurationError(
                f"{self.engine.url} returns no token ids: --tier tokens needs a server with "
                f"{VLLM_IDS}; --tier text plays by text"
            )
        if request.images:  # vLLM repeats no ids then
            read: int = data["usage"]["prompt_tokens"]
            same = read == len(request.prompt_ids)
        else:
            read, same = len(prompt), prompt == request.prompt_ids
        _check_echo(self.engine, same, read, request)
        logprobs = None
        if "logprobs" in self.params:
            found = choice.get("logprobs")
            if found is None:
                raise ConfigurationError(
                    f"{self.engine.url} returns no log-probabilities; --param logprobs=null asks "
                    "for none"
                )
            logprobs = (
                [each["logprob"] for each in found["content"]]
                if request.images
                else found["token_logprobs"]
            )
        finish = choice["finish_reason"]
        sample, note = self._complete(request, ids, logprobs, finish, usage_note(data))
        return replace(sample, prompt_tokens=read), note


class GenerateSampler(HttpSampler):
    """Asks SGLang's `POST /generate`, which is beside the API, not below it."""

    LOGPROBS = "tempered"

    SAMPLING: ClassVar[Mapping[str, Any]] = {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
    }

    def _url(self, request: Request) -> str:
        return f"{self.engine.url.removesuffix('/v1')}/generate"

    def _body(self, request: Request) -> dict[str, Any]:
        if request.images:
            raise ConfigurationError(
                "SGLang is not shown images by token ids; --tier text sends them in messages"
            )
        params = {
            **self.params,
            "max_new_tokens": request.max_tokens,
            "stop_token_ids": self.stop_ids,
            # Without the token that ends it a turn would not be what was sampled.
            "no_stop_trim": True,
            "skip_special_tokens": False,
        }
        return {"input_ids": request.prompt_ids, "sampling_params": params, "return_logprob": True}

    def _parsed(self, request: Request, data: Any) -> tuple[Sample, dict[str, Any]]:
        meta = data["meta_info"]
        sampled = meta.get("output_token_logprobs")
        if sampled is None:
            raise ConfigurationError(
                f"{self._url(request)} returns no output_token_logprobs, as SGLang's does; --tier "
                "text plays by text"
            )
        n = meta["prompt_tokens"]
        _check_echo(self.engine, n == len(request.prompt_ids), n, request)
        ids, logprobs = [each[1] for each in sampled], [each[0] for each in sampled]
        cached = meta.get("cached_tokens")
        counts = {"cached_tokens": cached} if is_count(cached) else {}
        return self._complete(request, ids, logprobs, meta["finish_reason"]["type"], counts)


def _check_echo(server: Server, same: bool, found: int, request: Request) -> None:
    if not same:
        raise ConfigurationError(
            f"{server.url} used another prompt ({found} tokens) than it was sent "
            f"({len(request.prompt_ids)} tokens): its replies would not be those to these tokens"
        )

"""SGLang's `/generate` as a sampler: token ids in, token ids and log-probabilities out.

It needs aiohttp, on which the adapters that use it depend.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gem.errors import RolloutError
from gem.rollout.play import Request, Sample
from gem_train.sampling import EngineSampler, NoAnswerError, answered

if TYPE_CHECKING:
    import aiohttp

UNAVAILABLE_S = 180.0
"""How long it is no failure that the router has no server (503).

SGLang's servers close connections after 5 s. If that happens while the router sends the first
requests of a rollout, it takes the server for broken and asks it nothing for 60 s.
"""


class SglangSampler(EngineSampler):
    """Asks the `/generate` of a server or router for the turns of one episode."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        params: Mapping[str, Any],
        *,
        stop_ids: frozenset[int],
        retries: int = 3,
    ) -> None:
        """Keep what all turns have in common.

        Args:
            session: Connections, and the time limit of a request.
            url: Of the server, without a path.
            params: SGLang's sampling parameters.
            stop_ids: Tokens that end a turn.
            retries: Further attempts after a request failed.
        """
        super().__init__(stop_ids)
        self._session = session
        self._url = f"{url}/generate"
        # The ids must be whole: SGLang would cut a stop string off.
        self._params = {**params, "stop_token_ids": self.stop_ids, "no_stop_trim": True}
        self._retries = retries

    async def __call__(self, request: Request) -> Sample:
        """Sample one turn.

        Raises:
            RolloutError: The server refuses the request, or does not answer it after all attempts.
        """
        body = {
            "input_ids": request.prompt_ids,
            "sampling_params": {**self._params, "max_new_tokens": request.max_tokens},
            "return_logprob": True,
        }
        name = f"SGLang at {self._url}"
        answer = await answered(lambda: self._post(body), name, self._retries)
        try:
            meta = answer["meta_info"]
            reason = meta["finish_reason"]["type"]
            tokens = meta["output_token_logprobs"]
            ids, logprobs = [t for _, t, _ in tokens], [p for p, _, _ in tokens]
            sample = self.sample(ids, logprobs, cut=reason == "length")
        except (KeyError, TypeError, ValueError) as error:
            raise RolloutError(
                f"{self._url} answered with something else than SGLang: {str(answer)[:300]}"
            ) from error
        if reason == "abort":
            raise RolloutError(f"SGLang aborted a request: {meta['finish_reason']}")
        return sample

    async def _post(self, body: dict[str, Any]) -> Any:
        import aiohttp

        try:
            async with self._session.post(self._url, json=body) as response:
                if response.status < 400:
                    return await response.json(content_type=None)
                problem = f"status {response.status}: {(await response.text())[:500]}"
        except asyncio.TimeoutError:
            raise NoAnswerError(f"no answer within {self._session.timeout.total} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise NoAnswerError(f"{type(error).__name__}: {error}") from error
        if response.status < 500:
            raise RolloutError(f"SGLang refuses a request with {problem}")
        raise NoAnswerError(problem, UNAVAILABLE_S if response.status == 503 else 0.0)

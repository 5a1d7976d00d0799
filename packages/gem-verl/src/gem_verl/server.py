"""verl's vLLM server, which also says what the engine read of a prompt with images.

verl's answer to a request does not tell how many tokens its prompt had. vLLM does: its output has
the prompt as the engine read it, with all placeholders of each image. `GemServer` adds these ids to
the answer. An image that was dropped, or expanded twice, changes them. Requests without images are
answered by verl alone.

`gem_verl.registry` puts the server into verl's registry of rollout servers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import ray
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica

from gem_train.seams import Seam, check_seams
from gem_verl import TRAINER
from gem_verl.settings import READ

SEAMS = (
    Seam(
        "generate",
        "self, prompt_ids, sampling_params, request_id, image_data, video_data, audio_data, "
        "mm_processor_kwargs, priority, kv_transfer_params",
    ),
    Seam("run_server", "self, args"),
)
"""Methods of verl's server that are extended here, with their parameters."""

check_seams(TRAINER, SEAMS, owner=vLLMHttpServer)


class GemServer(vLLMHttpServer):  # type: ignore[misc]
    """verl's server; an answer to a prompt with images has the ids that the engine read."""

    async def run_server(self, args: Any) -> None:
        """Start the engine, and follow what it answers."""
        await super().run_server(args)
        self.follow(self.engine)

    def follow(self, engine: Any) -> None:
        """Remember the prompts of those requests that `generate` asks for.

        Args:
            engine: vLLM's; its `generate` is replaced.
        """
        self._read: dict[str, list[int] | None] = {}
        answers = engine.generate

        async def followed(*args: Any, **named: Any) -> AsyncIterator[Any]:
            async with aclosing(answers(*args, **named)) as outputs:
                async for output in outputs:
                    if named.get("request_id") in self._read:
                        self._read[named["request_id"]] = list(output.prompt_token_ids)
                    yield output

        engine.generate = followed

    async def generate(
        self,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        request_id: str,
        image_data: list[Any] | None = None,
        **others: Any,
    ) -> Any:
        """Sample; see verl's server."""
        if image_data is None:
            return await super().generate(prompt_ids, sampling_params, request_id, **others)
        self._read[request_id] = None
        try:
            answer = await super().generate(
                prompt_ids, sampling_params, request_id, image_data=image_data, **others
            )
        finally:
            read = self._read.pop(request_id)
        answer.extra_fields[READ] = read
        return answer


class GemReplica(vLLMReplica):  # type: ignore[misc]
    """verl's replica of an engine, with `GemServer`."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.server_class = ray.remote(GemServer)

"""What the tests of gem-openrlhf share: OpenRLHF without a GPU, a tokenizer, a scripted engine."""

from __future__ import annotations

import asyncio
import importlib.util
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import worlds

# Everything here needs the environment that `make env-openrlhf` builds.
if importlib.util.find_spec("openrlhf") is None:
    collect_ignore_glob = ["test_*.py"]
elif os.environ.get("GEM_CPU") == "1":
    from gem_cpu import openrlhf_plugin

    openrlhf_plugin.install()


@pytest.fixture(scope="session")
def world() -> ModuleType:
    """The helpers of world.py."""
    return worlds.load(__file__)


@dataclass
class Output:
    """vLLM's `RequestOutput`, as far as it is read."""

    outputs: list[Any]


class ScriptedEngine:
    """Stands in for OpenRLHF's vLLM actor: answers with texts in order, remembers what it got.

    The real actor is exercised by test_real_runs.py.
    """

    def __init__(self, tokenizer: Any, texts: Sequence[str]) -> None:
        self.tokenizer = tokenizer
        self.texts = list(texts)
        self.requests: list[tuple[list[int], Any]] = []

    async def generate(self, prompt_token_ids: list[int], sampling_params: Any) -> Output:
        await asyncio.sleep(0)
        text = self.texts[len(self.requests) % len(self.texts)]
        self.requests.append((list(prompt_token_ids), sampling_params))
        ids = [*self.tokenizer.encode(text), self.tokenizer.eos_token_id]
        cut = len(ids) > sampling_params.max_tokens
        ids = ids[: sampling_params.max_tokens]
        known = None
        if sampling_params.logprobs is not None:
            known = [{token: SimpleNamespace(logprob=-0.5 - i)} for i, token in enumerate(ids)]
        reason = "length" if cut else "stop"
        return Output([SimpleNamespace(token_ids=ids, logprobs=known, finish_reason=reason)])


@pytest.fixture
def engine(tokenizer: Any) -> Callable[..., ScriptedEngine]:
    """Make an engine from the texts it answers with."""
    return lambda texts: ScriptedEngine(tokenizer, texts)

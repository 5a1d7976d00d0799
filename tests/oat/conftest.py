"""What tests of gem-oat share: oat without a GPU, a scripted engine."""

from __future__ import annotations

import importlib
import importlib.util
import os
import warnings
from collections.abc import Callable, Sequence
from itertools import starmap
from types import SimpleNamespace
from typing import Any

import pytest

# Everything here needs the environment that `make env-oat` builds.
if importlib.util.find_spec("oat") is None:
    collect_ignore_glob = ["test_*.py"]
elif os.environ.get("GEM_CPU") == "1":
    from gem_cpu import oat_plugin

    oat_plugin.install()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what oat's imports have to say
        importlib.import_module("oat.interface")


class ScriptedLLM:
    """Stands in for `vllm.LLM`: answers with texts in order, remembers what it got.

    What oat really talks to is exercised by test_real_runs.py.
    """

    def __init__(self, tokenizer: Any, texts: Sequence[str]) -> None:
        self.tokenizer = tokenizer
        self.texts = list(texts)
        self.prompts: list[list[int]] = []
        self.params: list[Any] = []
        self.running: dict[str, Any] = {}
        self.llm_engine: Any = self

    def add_request(self, request_id: str, prompt: Any, params: Any) -> None:
        text = self.texts[len(self.params) % len(self.texts)]
        self.prompts.append(prompt["prompt_token_ids"])
        self.params.append(params)
        ids = [*self.tokenizer.encode(text), self.tokenizer.eos_token_id]
        cut = len(ids) > params.max_tokens
        ids = ids[: params.max_tokens]
        known = [{token: SimpleNamespace(logprob=-0.5 - i)} for i, token in enumerate(ids)]
        reason = "length" if cut else "stop"
        self.running[request_id] = SimpleNamespace(
            request_id=request_id,
            finished=True,
            prompt_token_ids=prompt["prompt_token_ids"],
            outputs=[SimpleNamespace(token_ids=ids, logprobs=known, finish_reason=reason)],
        )

    def has_unfinished_requests(self) -> bool:
        return bool(self.running)

    def abort_request(self, request_ids: list[str]) -> None:
        for request in request_ids:
            self.running.pop(request, None)

    def step(self) -> list[Any]:
        """Finish all requests that `finishes` allows to."""
        done = [name for name, output in self.running.items() if self.finishes(output)]
        return [self.running.pop(name) for name in done]

    def finishes(self, output: Any) -> bool:
        """Whether this is the last step of a request."""
        return True


@pytest.fixture
def llm(tokenizer: Any) -> Callable[..., ScriptedLLM]:
    """Make an engine from the texts it answers with."""
    return lambda texts: ScriptedLLM(tokenizer, texts)


FLAGS = {
    "gem_tasks": "gem:game:GuessTheNumber-v0-easy?seed=3&prompt=short",
    "pretrain": "tiny",
    "gpus": 1,
    "rollout_batch_size": 4,
    "train_batch_size": 4,
    "max_train": 8,
    "prompt_max_length": 300,
    "max_model_len": 900,
    "generate_max_length": 16,
}


@pytest.fixture(scope="session")
def argv() -> Callable[..., list[str]]:
    """A command line that trains, with changes: `argv(max_train=8, gem_seed=None)`."""

    def make(*switches: str, **changes: Any) -> list[str]:
        flags = {k: v for k, v in {**FLAGS, **changes}.items() if v is not None}
        return [*starmap(_argument, flags.items()), "--collocate", *switches]

    return make


def _argument(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name}={value}"

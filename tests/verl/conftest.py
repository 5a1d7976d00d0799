"""What the tests of gem-verl share: verl's real configuration, a tokenizer, a scripted server."""

from __future__ import annotations

import asyncio
import copy
import functools
import importlib.util
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

# Everything here needs the environment that `make env-verl` builds.
if importlib.util.find_spec("verl") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    with warnings.catch_warnings():
        # verl warns of each of its engines that is not installed.
        warnings.simplefilter("ignore")
        import verl.trainer.ppo.v1  # noqa: F401

Compose = Callable[[Sequence[str]], Any]


@pytest.fixture(scope="session")
def compose() -> Compose:
    """verl's whole configuration with overrides, as its launcher makes it."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from verl.trainer import main_ppo

    folder = Path(main_ppo.__file__).with_name("config")

    @functools.cache
    def composed(overrides: tuple[str, ...]) -> Any:
        with initialize_config_dir(str(folder), version_base=None):
            return hydra_compose("ppo_trainer", overrides=list(overrides))

    return lambda overrides: copy.deepcopy(composed(tuple(overrides)))


@dataclass
class Answer:
    """verl's `TokenOutput`, as far as it is read."""

    token_ids: list[int]
    log_probs: list[float] | None
    stop_reason: str = "completed"
    extra_fields: dict[str, Any] = field(default_factory=dict)


class ScriptedServer:
    """Stands in for verl's server client: answers with texts in order, remembers what it got.

    The real client is exercised by test_real_runs.py.
    """

    def __init__(self, tokenizer: Any, texts: Sequence[str]) -> None:
        self.tokenizer = tokenizer
        self.texts = list(texts)
        self.requests: list[dict[str, Any]] = []
        self.version = 0

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]
    ) -> Answer:
        await asyncio.sleep(0)
        text = self.texts[len(self.requests) % len(self.texts)]
        self.requests.append(
            {"id": request_id, "prompt_ids": list(prompt_ids), "params": sampling_params}
        )
        ids = [*self.tokenizer.encode(text), self.tokenizer.eos_token_id]
        ids = ids[: sampling_params["max_tokens"]]
        self.version += 1
        return Answer(
            ids,
            [-0.5 - i for i in range(len(ids))],
            extra_fields={"min_global_steps": self.version, "max_global_steps": self.version},
        )


@pytest.fixture
def server(tokenizer: Any) -> Callable[..., ScriptedServer]:
    """Make a server from the texts it answers with."""
    return lambda texts: ScriptedServer(tokenizer, texts)

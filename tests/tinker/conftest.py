"""What the tests of gem-tinker share: a tokenizer and a service that stands in for the server.

The real service is exercised by test_real_runs.py.
"""

from __future__ import annotations

import asyncio
import importlib.util
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gem import Env, register
from gem.core import Step

# Everything here needs the environment that `make env-tinker` builds.
if importlib.util.find_spec("tinker") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    import tinker


class Scripted(Env):
    """Rewards 0.25 a turn; `"end"` ends it with reward 1, `"crash"` raises, `"slow"` takes 0.2 s.

    With the parameter `doomed`, episodes of seeds below it crash whatever is said.
    """

    def __init__(self, doomed: int = 0) -> None:
        super().__init__()
        self.doomed = doomed

    def reset(self, seed: int | None = None, **options: Any) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.fails = (seed or 0) < self.doomed
        return f"start {seed}", {}

    def step(self, action: str) -> Step:
        if action == "crash" or self.fails:
            raise OSError("sandbox gone")
        if action == "slow":
            time.sleep(0.2)
        done = action == "end"
        return f"you said {action}", 1.0 if done else 0.25, done, False, {"success": done}


register("test:Scripted-v0", Scripted)


@pytest.fixture
def scripted_env() -> type[Scripted]:
    """The class of the environment."""
    return Scripted


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits before it is tried again."""
    monkeypatch.setattr("gem_train.sampling.FIRST_DELAY_S", 0.0)


class Answer:
    """A future of the SDK: may be awaited, and is an error if it was given one."""

    def __init__(self, value: Any, known: Callable[[], object] = lambda: None) -> None:
        self.value = value
        self.known = known

    def __await__(self) -> Generator[Any, None, Any]:
        yield from asyncio.sleep(0).__await__()
        self.known()
        if isinstance(self.value, BaseException):
            raise self.value
        return self.value


class FakeSampler:
    """Answers prompts with texts in turn; log-probabilities depend on weights and position."""

    def __init__(self, service: FakeService, updates: int) -> None:
        self.service = service
        self.updates = updates

    def sample(self, *, prompt: Any, num_samples: int, sampling_params: Any) -> Awaitable[Any]:
        service = self.service
        service.samples.append((prompt.to_ints(), sampling_params, self.updates))
        if service.sample_errors:
            return Answer(service.sample_errors.pop(0))
        text = service.texts[(len(service.samples) - 1) % len(service.texts)]
        ids = [*service.tokenizer.encode(text), service.tokenizer.eos_token_id]
        ids = ids[: sampling_params.max_tokens]
        sequence = tinker.SampledSequence(
            stop_reason="stop",
            sequence_id="s",
            _tokens_list=ids,
            _logprobs_list=[logprob(self.updates)] * len(ids),
        )
        return Answer(tinker.SampleResponse(sequences=[sequence]))


class FakeTraining:
    """Counts updates; after one failed request all of its requests fail, as with the SDK's."""

    def __init__(self, service: FakeService, updates: int) -> None:
        self.service = service
        self.updates = updates
        self.poison: Exception | None = None

    def get_tokenizer(self) -> Any:
        return self.service.tokenizer

    def save_weights_and_get_sampling_client(self, record_stability_info: bool) -> Awaitable[Any]:
        updates = 0 if self.service.stale else self.updates
        return self._answer(FakeSampler(self.service, updates))

    def forward_backward(
        self, data: Sequence[Any], loss_fn: str, loss_fn_config: Any = None
    ) -> Awaitable[Any]:
        if self.service.train_errors:
            self.poison = self.service.train_errors.pop(0) or self.poison
        if self.poison is None:
            self.service.trained.append((self.updates, list(data), loss_fn, loss_fn_config))
        outputs = [
            {
                "logprobs": tinker.TensorData.from_numpy(
                    np.full(datum.model_input.length, logprob(self.updates), np.float32)
                )
            }
            for datum in data
        ]
        output = tinker.ForwardBackwardOutput("scalar", outputs, {"loss:sum": 0.5})
        return Answer(self.poison or output, lambda: self.service.order.append("gradient"))

    def optim_step(self, params: Any) -> Awaitable[Any]:
        self.service.steps.append(params)
        self.service.order.append("step")
        self.updates += 1
        return self._answer(tinker.OptimStepResponse(metrics={"grad_norm": 2.0}))

    def save_state(self, name: str, ttl_seconds: int | None = None) -> Awaitable[Any]:
        path = f"tinker://run/weights/{name}"
        self.service.states[path] = self.updates
        return self._answer(SavedState(path))

    save_weights_for_sampler = save_state

    def create_sampling_client(self, path: str, record_stability_info: bool) -> Any:
        """Return what the cookbook asks for its result at once."""
        sampler = FakeSampler(self.service, self.service.states[path])
        return SimpleNamespace(result=lambda: sampler)

    def _answer(self, value: Any) -> Awaitable[Any]:
        return Answer(self.poison or value)


@dataclass
class SavedState:
    path: str


@dataclass
class FakeService:
    """A Tinker server without a model."""

    tokenizer: Any
    texts: Sequence[str] = ("\\boxed{3}",)
    stale: bool = False
    """Samplers keep the initial weights."""
    sample_errors: list[Exception] = field(default_factory=list)
    """Raised by the next requests, one each."""
    train_errors: list[Exception | None] = field(default_factory=list)
    """Raised by the next updates, one each; None lets one pass."""
    samples: list[Any] = field(default_factory=list)
    trained: list[Any] = field(default_factory=list)
    """`(updates before, datums, loss, its settings)`"""
    steps: list[Any] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    """`gradient` when the client knows one, `step` when it asks for one."""
    states: dict[str, int] = field(default_factory=dict)
    clients: list[Any] = field(default_factory=list)
    """What training clients were made from."""

    def __enter__(self) -> FakeService:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def create_lora_training_client(self, base_model: str, **kwargs: Any) -> Awaitable[Any]:
        self.clients.append((base_model, kwargs))
        return Answer(FakeTraining(self, 0))

    def create_training_client_from_state_with_optimizer(
        self, path: str, **kwargs: Any
    ) -> Awaitable[Any]:
        self.clients.append(path)
        return Answer(FakeTraining(self, self.states[path]))


def logprob(updates: int) -> float:
    """What this policy gives every token after so many updates."""
    return -1.0 - 0.25 * updates


@pytest.fixture
def service(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> FakeService:
    """The service that the SDK's clients talk to; nothing is probed by `gem_tinker.train`."""
    from gem_tinker import train

    made = FakeService(tokenizer)

    class Client(FakeService):
        """All clients share the state of one service."""

        def __init__(self, **_: Any) -> None:
            self.__dict__ = made.__dict__

    async def probed(config: Any) -> str:
        return "hosted"

    monkeypatch.setattr(tinker, "ServiceClient", Client)
    monkeypatch.setattr(train, "probe", probed)
    return made

"""A Tinker server: what can it do, asked before anything is played, and how it is asked.

- `probe`: does it have the model and the loss, and how does it add the loss up?
- `check_init`: are the weights to begin with what the settings say?
- `reach`, `models`: is it there, does it accept the key?
- `new_adapter`, `update`, `answer`, `unanswered`: what a run asks of the SDK's training client.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError

import numpy as np
import tinker
from tinker.lib.base_url import DEFAULT_BASE_URL, resolve_base_url

from gem.errors import ConfigurationError, RolloutError, UnreachableError
from gem.fetching import fetched
from gem_tinker.settings import Config
from gem_train import sampling, settings

GRAD_NORM = "grad_norm"
"""End of the name under which servers report the norm of a gradient before clipping."""

REACH_TIMEOUT_S = 10.0

_PROMPT, _SAMPLED = 12, 4
_RATIO_TOLERANCE = 0.02


async def probe(config: Config) -> str:
    """Return how the server adds up its loss: `hosted`, `skyrl_train` or `skyrl_jax`.

    What `config.server` says is taken as it is, without a training client.

    Raises:
        ConfigurationError: The server does not serve the model, the episodes are too long for it,
            it does not know the loss, or it adds up in an unknown way.
        UnreachableError: The server does not answer.
    """
    url = await asyncio.to_thread(reach, config.base_url)
    hosted = url == DEFAULT_BASE_URL
    found = await models(config.base_url, config.request_timeout_s)
    need, room = config.prompt_tokens + config.response_tokens, found.get(config.model) or math.inf
    refusals = (
        ("server", hosted and config.server not in ("auto", "hosted"), "this is the hosted one"),
        ("model", config.model not in found, f"the server has {', '.join(sorted(found))}"),
        ("model", need > room, f"its context is {room} tokens, an episode's at most {need}"),
    )
    settings.refuse_values(vars(config), refusals)
    if config.server != "auto":
        return config.server
    # The hosted service takes no `weights` with these losses and its sum needs no proof.
    variants = [False] if hosted else [True, False]
    # As many as an update will have: servers that compile do so for every shape.
    rows = 1 if hosted else config.tasks * config.group_size // config.minibatches
    wish = f"train {config.model} with lora_rank={config.lora_rank} and loss_fn={config.loss_fn}"
    # A session of its own: what it holds on the server is given back at its end.
    with _explained(url, wish), tinker.ServiceClient(base_url=config.base_url) as service:
        client = await answer(new_adapter(service, config), config)
        steps = [await update(client, [_datum(each)] * rows, config, 0.0) for each in variants]
    norms = [norm for _, norm in steps if norm is not None]
    return "hosted" if hosted else judge(norms)


def reach(base_url: str | None) -> str:
    """Return the server's address if something listens there; the SDK would try for minutes.

    Raises:
        UnreachableError: Nothing does.
    """
    url = str(resolve_base_url(base_url))
    try:
        fetched(f"{url}/api/v1/healthz", REACH_TIMEOUT_S)
    except HTTPError:
        pass  # it listens
    except (OSError, HTTPException, ValueError) as error:
        raise UnreachableError(
            f"the Tinker server at {url} cannot be reached: {error}. Set TINKER_BASE_URL, or start "
            "one; without a GPU: python -m gem_cpu.tinker_server --model DIR -- COMMAND"
        ) from error
    return url


async def models(base_url: str | None, timeout_s: float) -> dict[str, int | None]:
    """Return the server's models with the most tokens of a context, if it says so.

    Raises:
        ConfigurationError: The SDK finds no key, or the server refuses the question.
        UnreachableError: There is no answer in time.
    """
    try:
        client = tinker.RestClient(base_url=base_url)
    except tinker.TinkerError as error:
        raise ConfigurationError(
            f"no key: {error}. (A server of your own takes any TINKER_API_KEY that begins with "
            "tml-.)"
        ) from error
    with _explained(resolve_base_url(base_url), "name its models"):
        found = await asyncio.wait_for(client.get_server_capabilities(), timeout_s)
    return {str(model.model_name): model.max_context_length for model in found.supported_models}


async def check_init(config: Config) -> None:
    """Make sure that `init`, if there is one, has weights of `model` with `lora_rank`.

    Raises:
        ConfigurationError: It has others, or the server does not know it.
        UnreachableError: The server does not answer.
    """
    if config.init is None:
        return
    client = tinker.RestClient(base_url=config.base_url)
    with _explained(resolve_base_url(config.base_url), f"say what init={config.init} is"):
        found = await answer(client.get_weights_info_by_tinker_path(config.init), config)
    model, rank = found.base_model, found.lora_rank
    refusals = (
        ("model", model != config.model, f"init has weights of {model}"),
        ("lora_rank", rank not in (None, config.lora_rank), f"init has rank {rank}"),
    )
    settings.refuse_values(vars(config), refusals)


def judge(norms: list[float]) -> str:
    """Tell how a server adds up from two gradient norms of the same datum.

    Args:
        norms: With `weights` 1 on sampled tokens, and without `weights`; empty if the server
            reports no gradient norms.

    Raises:
        ConfigurationError: It cannot be told.
    """
    if not norms:
        raise ConfigurationError(
            "server=auto: this server reports no gradient norm from which to tell how it adds up "
            "its loss; set server to skyrl_train (sum over tokens), skyrl_jax (mean over the "
            "tokens of a datum, then over datums) or hosted"
        )
    ways = {"skyrl_train": 1.0, "skyrl_jax": (_PROMPT + _SAMPLED - 1) / _SAMPLED}
    for way, expected in ways.items():
        if norms[0] > 0 and math.isclose(norms[0], expected * norms[1], rel_tol=_RATIO_TOLERANCE):
            return way
    raise ConfigurationError(
        f"server=auto: this one adds up its loss in an unknown way; gradients with and without "
        f"weights have the norms {norms[0]:g} and {norms[1]:g}"
    )


@contextmanager
def _explained(url: str, wish: str) -> Iterator[None]:
    """Say what a server did not do; raises what `probe` raises."""
    try:
        with unanswered():
            yield
    except sampling.NoAnswerError as error:
        if isinstance(error.__cause__, tinker.APIConnectionError | asyncio.TimeoutError):
            raise UnreachableError(f"no answer from the Tinker server at {url}: {error}") from error
        raise ConfigurationError(f"the Tinker server at {url} cannot {wish}: {error}") from error


def _datum(weights: bool) -> tinker.Datum:
    ids = list(range(1, _PROMPT + _SAMPLED + 1))
    mask = np.array([0.0] * (_PROMPT - 1) + [1.0] * _SAMPLED, np.float32)
    inputs = {"target_tokens": np.array(ids[1:], np.int64), "advantages": mask}
    inputs |= {"logprobs": np.zeros(len(mask), np.float32)} | ({"weights": mask} if weights else {})
    return tinker.Datum(model_input=tinker.ModelInput.from_ints(ids[:-1]), loss_fn_inputs=inputs)


@contextmanager
def unanswered(refusals: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Convert what the SDK raises, which becomes the cause of what is raised here.

    Args:
        refusals: What it raises if there is no use in asking again.

    Raises:
        NoAnswerError: The server failed a request, or did not answer in time.
        RolloutError: It refused the request.
    """
    try:
        yield
    except (tinker.TinkerError, asyncio.TimeoutError, ValueError) as error:
        # In a ValueError the SDK wraps what it has given up on.
        cause = error.__cause__ if isinstance(error, ValueError) else error
        if not isinstance(cause, tinker.TinkerError | asyncio.TimeoutError):
            raise
        if isinstance(cause, refusals):
            raise RolloutError(f"the server refuses a request: {cause}") from cause
        raise sampling.NoAnswerError(f"{type(cause).__name__}: {cause}") from cause


async def answer(future: Awaitable[Any], config: Config) -> Any:
    """Wait for the server, but at most `request_timeout_s`."""
    return await asyncio.wait_for(future, config.request_timeout_s)


def new_adapter(service: Any, config: Config) -> Any:
    """Ask a `tinker.ServiceClient` for a training client with a new adapter.

    The adapter is on attention and MLP projections; the client can be awaited.
    """
    return service.create_lora_training_client(
        config.model, rank=config.lora_rank, seed=config.lora_seed, train_unembed=False
    )


async def update(
    client: Any, datums: Sequence[tinker.Datum], config: Config, lr: float
) -> tuple[tinker.ForwardBackwardOutput, float | None]:
    """Make an update; return what the server says of the loss, and the gradient's norm.

    Args:
        client: A `tinker.TrainingClient`.
        datums: What is trained on.
        config: The loss and the optimiser.
        lr: Learning rate.

    Returns:
        The output, and the norm before clipping; None if the server reports none.
    """
    # The weight of CISPO has no lower limit.
    low = 0.0 if config.loss_fn == "cispo" else 1 - config.clip
    high = 1 + (config.clip if config.clip_high is None else config.clip_high)
    clips = {"clip_low_threshold": low, "clip_high_threshold": high}
    clipped = None if config.loss_fn == "importance_sampling" else clips
    asked = client.forward_backward(datums, config.loss_fn, clipped)
    gradient = asyncio.ensure_future(answer(asked, config))
    # The hosted service numbers requests and needs no round trip in between. SkyRL takes them as
    # they arrive: a step that overtakes its gradient would be one of zero.
    if resolve_base_url(config.base_url) != DEFAULT_BASE_URL:
        await gradient
    adam = tinker.AdamParams(
        learning_rate=lr,
        grad_clip_norm=config.grad_clip,
        **{name: getattr(config, name) for name in ("beta1", "beta2", "eps", "weight_decay")},
    )
    step = client.optim_step(adam)
    output = await gradient
    metrics = (await answer(step, config)).metrics or {}
    norms = [float(value) for name, value in metrics.items() if name.endswith(GRAD_NORM)]
    return output, norms[0] if norms else None

"""Plays one episode: `Episode`, a state machine without I/O, and `play`, its asynchronous driver.

`gem.rollout.collect` drives the same state machine synchronously.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from gem.blame import boundary
from gem.contract import scalars
from gem.core import Env, Info, Observation, Step
from gem.errors import ConfigurationError, ContractError, RolloutError
from gem.executors.asynchronous import AsyncEnv
from gem.executors.base import Executor
from gem.executors.held import STEP_TIMEOUT_S, EnvFailedError
from gem.multi import against_itself, with_opponent
from gem.parameters import integer, optional, positive
from gem.rollout.context import make_context
from gem.rollout.tokens import ChatFormat
from gem.specs import imported
from gem.tasks import Task
from gem.trajectory import EpisodeEnd, Failure, Image, StopReason, Trajectory, Turn

# In float32 a log-probability of 0 may come out this much larger, and no more.
_ROUNDING = 1e-3
_MOST_RETRIES = 1000


@dataclass(frozen=True)
class Budget:
    """Token and turn limits of an episode."""

    turn_tokens: int
    """Most tokens sampled in one turn."""
    response_tokens: int
    """Most tokens appended to a fresh prompt: with the `chat` context, everything sampled and
    observed after the first prompt."""
    prompt_tokens: int
    """Most tokens of a fresh prompt."""
    turns: int | None = None
    """Most turns, besides the environment's own limit."""
    context_tokens: int | None = None
    """Most tokens of a whole prompt and its response: what the model can read."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and value < 1:
                raise ConfigurationError(f"budget {name} must be at least 1, got {value}")

    def room(self, row: int, prompt: int) -> int:
        """Return the most tokens that may be sampled next, below 1 if none.

        Args:
            row: Tokens appended to the last fresh prompt.
            prompt: Tokens of the whole prompt.
        """
        room = min(self.turn_tokens, self.response_tokens - row)
        return room if self.context_tokens is None else min(room, self.context_tokens - prompt)


@dataclass(frozen=True)
class Request:
    """A request to a sampler for one response."""

    episode: int
    """Number of the episode within the batch; the same for all of its turns."""
    prompt_ids: list[int]
    """The whole prompt."""
    new_ids: list[int]
    """End of `prompt_ids` after this episode's previous prompt and response; all of it if
    `fresh`."""
    fresh: bool
    """The prompt starts anew: it does not extend the previous prompt and response."""
    max_tokens: int
    """Most tokens to sample."""
    images: tuple[Image, ...] = ()
    """Images of the whole prompt, in order. An engine that expands placeholders itself is sent
    them and `VisionChatFormat.collapse(prompt_ids, images)`."""


@dataclass(frozen=True)
class Sample:
    """A sampler's response to a `Request`."""

    token_ids: list[int]
    """Exactly the sampled ids, the closing token included."""
    logprobs: list[float] | None
    """Log-probability of each id under the sampling policy, or None: finite, and at most 0 but for
    rounding (0.001). They are kept as the engine reports them."""
    stop_reason: StopReason
    version: int | tuple[int, int] | None = None
    """Version of the weights that sampled, or the oldest and newest of several, if the engine
    reports it."""
    prompt_tokens: int | None = None
    """Tokens of the prompt as the engine counted them, images included. It must be there if the
    request has images: a dropped image, or one that was expanded twice, changes it."""


Sampler: TypeAlias = Callable[[Request], Awaitable[Sample]]


class Episode:
    """The state of one episode; a driver calls the environment and the sampler.

    The driver resets the environment and calls `begin`. While `request` is not None, it samples,
    passes the sample to `receive`, steps the environment with the returned text and passes the
    result to `advance`. The driver has checked what the environment returned (`gem.contract`), so
    an exception here is caused by the sampler, the chat template or the tokenizer;
    `gem.blame.cause_of` returns which.
    """

    def __init__(
        self,
        task: Task,
        chat: ChatFormat,
        *,
        context: str = "chat",
        budget: Budget,
        group: int = 0,
        index: int = 0,
    ) -> None:
        self._chat = chat
        self._context_name = context
        self._budget = budget
        self._index = index
        self.request: Request | None = None
        """The next request to the sampler; None before `begin`, between `receive` and `advance`,
        and after the end."""
        self.trajectory = Trajectory(task, group=group)

    def begin(self, observation: Observation, info: Info) -> None:
        """Start with the result of the environment's `reset`; again to start over in a new one.

        Raises:
            ConfigurationError: The chat template or context cannot show the observation.
        """
        self.trajectory = Trajectory(self.trajectory.task, group=self.trajectory.group)
        self._context = make_context(self._context_name, self._chat)
        self._row_length = 0
        if not self._accept(observation):
            return
        with boundary("template"):
            ids, fresh = self._context.start(self._observation)
        if len(ids) > self._budget.prompt_tokens or self._budget.room(0, len(ids)) < 1:
            problem = f"the first prompt of {self.trajectory.task.env_id} has {len(ids)} tokens, "
            if len(ids) > self._budget.prompt_tokens:
                problem += f"prompt_tokens allows {self._budget.prompt_tokens}"
            else:
                problem += f"context_tokens allows {self._budget.context_tokens} with the response"
            self.fail(Failure("budget", problem, attempts=1))
            return
        self._ask(ids, fresh)

    def receive(self, sample: Sample) -> str:
        """Store the sampled tokens; return the text to step the environment with.

        Thinking is no part of it; it is empty if the thinking never ends, which environments
        take for a format error.

        Raises:
            RolloutError: There is no request, or the sample does not satisfy it: it has too many
                tokens, log-probabilities that are none or an unknown `stop_reason`, or a prompt
                with images was read otherwise.
        """
        if self.request is None:
            raise RolloutError("Episode.receive: no request is open")
        with boundary("engine"):
            n, most = len(sample.token_ids), self.request.max_tokens
            if n > most:
                raise RolloutError(f"sampler returned {n} tokens of {most} allowed")
            if sample.logprobs is not None and len(sample.logprobs) != n:
                raise RolloutError(f"sampler returned {n} tokens, {len(sample.logprobs)} log-probs")
            check_logprobs(sample.logprobs or ())
            if sample.stop_reason not in ("stop", "length"):
                raise RolloutError(
                    f"sampler returned the stop_reason {sample.stop_reason!r}; expected 'stop' or "
                    "'length': a request that the engine gave up has no sample"
                )
            if self.request.images:
                _check_prompt(self.request, sample)
        if (end := self._chat.usable(sample.token_ids)) < n:
            sample = _cut(sample, end)
        self._sample, self._asked, self.request = sample, self.request, None
        with boundary("template"):
            self._reply = self._chat.read(sample.token_ids)
        return self._reply.text

    def advance(self, step: Step) -> None:
        """Store the environment's step for the last response; set the next request.

        Args:
            step: Result of `gem.contract.check_step`.

        Raises:
            ConfigurationError: The chat template or context cannot show the observation.
        """
        observation, reward, terminated, truncated, info = step
        sample, trajectory = self._sample, self.trajectory
        trajectory.turns.append(
            Turn(
                observation=self._observation,
                context_ids=self._asked.new_ids,
                fresh=self._asked.fresh,
                response_ids=list(sample.token_ids),
                logprobs=None if sample.logprobs is None else list(sample.logprobs),
                text=self._reply.text,
                reward=reward,
                terminated=terminated,
                truncated=truncated,
                stop_reason=sample.stop_reason,
                info=scalars(info),
                images=self._images,
            )
        )
        if sample.version is not None:
            sampled = sample.version if isinstance(sample.version, tuple) else (sample.version,)
            versions = (*(trajectory.policy_version or ()), *sampled)
            trajectory.policy_version = min(versions), max(versions)
        if not self._accept(observation):
            return
        self._row_length += len(sample.token_ids)
        if terminated or truncated:
            self._finish("terminated" if terminated else "truncated")
        elif self._budget.turns is not None and len(trajectory.turns) >= self._budget.turns:
            self._finish("turn_budget")
        else:
            with boundary("template"):
                ids, fresh = self._context.extend(self._reply, self._observation)
            row = 0 if fresh else self._row_length + len(ids)
            before = 0 if fresh else len(self._asked.prompt_ids) + len(sample.token_ids)
            room = self._budget.room(row, before + len(ids))
            if room < 1 or (fresh and len(ids) > self._budget.prompt_tokens):
                self._finish("token_budget", responded=True)
            else:
                self._ask(ids, fresh)

    def stop(self) -> None:
        """End the episode as truncated while its request is open: others in its match cannot go on.

        Raises:
            RolloutError: There is no request.
        """
        if self.request is None:
            raise RolloutError("Episode.stop: no request is open")
        self.request = None
        self._finish("truncated", responded=True)

    def fail(self, failure: Failure) -> None:
        """End the episode as failed; its turns must not be used."""
        self.request = None
        self.trajectory.end = "failed"
        self.trajectory.failure = failure

    def _accept(self, observation: Observation) -> bool:
        """Keep an observation; fail if the environment shows an image that cannot be read."""
        images: tuple[Image, ...] = ()
        try:
            if not isinstance(observation, str):
                with boundary("template"):
                    observation, images = self._chat.accept(observation)
        except ContractError as error:
            self.fail(Failure("environment", str(error), attempts=1))
            return False
        self._observation, self._images = observation, images
        return True

    def _ask(self, ids: list[int], fresh: bool) -> None:
        self._row_length = 0 if fresh else self._row_length + len(ids)
        before = [] if fresh else [*self._asked.prompt_ids, *self._sample.token_ids]
        prompt_ids = [*before, *ids]
        self.request = Request(
            episode=self._index,
            prompt_ids=prompt_ids,
            new_ids=ids,
            fresh=fresh,
            max_tokens=self._budget.room(self._row_length, len(prompt_ids)),
            images=self._images if fresh else (*self._asked.images, *self._images),
        )

    def _finish(self, end: EpisodeEnd, responded: bool = False) -> None:
        self.trajectory.end = end
        self.trajectory.final_observation = self._observation
        with boundary("template"):
            self.trajectory.drift = self._context.finish(None if responded else self._reply)


def _check_prompt(request: Request, sample: Sample) -> None:
    """Make sure that the engine read the images of a prompt, each once."""
    expected = len(request.prompt_ids)
    if sample.prompt_tokens != expected:
        raise RolloutError(
            f"the engine read {sample.prompt_tokens} prompt tokens, but the prompt has {expected} "
            f"with its {len(request.images)} images: an image was dropped or expanded twice; send "
            "`VisionChatFormat.collapse`d ids with all images, and return the engine's count as "
            "`Sample.prompt_tokens`"
        )


def _cut(sample: Sample, end: int) -> Sample:
    logprobs = None if sample.logprobs is None else sample.logprobs[:end]
    ids = sample.token_ids[:end]
    return replace(sample, token_ids=ids, logprobs=logprobs, stop_reason="length")


def check_logprobs(logprobs: Sequence[float]) -> None:
    """Check the log-probabilities of sampled tokens.

    Raises:
        RolloutError: One of them is not finite, or above 0 by more than rounding (0.001).
    """
    for place, value in enumerate(logprobs):
        try:
            # False for NaN, too.
            possible = -math.inf < value <= _ROUNDING
        except TypeError:
            possible = False
        if not possible:
            raise RolloutError(
                f"sampler returned the log-probability {value!r} for token {place + 1} of "
                f"{len(logprobs)}; expected a finite number of at most 0: the engine's logits are "
                "broken, or it reports something else"
            )


def check_limits(retries: int, step_timeout_s: float | None) -> None:
    """Check limits of `play`: without an attempt, an episode of no turn would count.

    Raises:
        ConfigurationError: `retries` is below 0, or the limit of a call is not above 0.
    """
    integer("retries", retries, 0, _MOST_RETRIES)
    optional(positive, "step_timeout_s", step_timeout_s)


async def play(
    task: Task,
    sampler: Sampler,
    chat: ChatFormat,
    *,
    budget: Budget,
    context: str = "chat",
    group: int = 0,
    index: int = 0,
    make_env: Callable[[Task], Env] | None = None,
    retries: int = 1,
    step_timeout_s: float | None = STEP_TIMEOUT_S,
    executor: str | Executor | None = None,
) -> Trajectory:
    """Play one episode with an asynchronous sampler.

    The environment runs in a thread or elsewhere, so that a slow one never blocks the event loop.
    If it raises, breaks its contract or exceeds `step_timeout_s`, the episode starts over with a
    new environment, up to `retries` times; then it is returned with a `Failure`.

    A seat of a game with `opponent=self` is played in a match in which the sampler plays all seats
    (`gem.rollout.match.play_seat`), in a thread of this process.

    Args:
        task: The episode to play.
        sampler: Called once per turn. The caller gets what it raises; the episode ends.
        chat: The model's chat format.
        budget: Token and turn limits.
        context: Name of a context, see `gem.rollout.context`.
        group: Stored in the trajectory (GRPO).
        index: Number of the episode, for its requests.
        make_env: Makes the environment of a task, in a thread of this process; by default the
            executor makes it.
        retries: Further attempts after an environment failed.
        step_timeout_s: Limit of one `reset`, with the making of the environment, or one `step`,
            in seconds; None for no limit. The thread of an environment that hangs cannot be ended
            and stays behind.
        executor: Where the environment runs: an executor or its name, see
            `gem.executors.named.shared_executor`.

    Raises:
        ConfigurationError: The task names an unknown environment or parameter, the chat template
            cannot show an observation, or the executor is unknown or cannot run the environment.
    """
    check_limits(retries, step_timeout_s)
    task = with_opponent(task) if make_env is None else task
    if make_env is None and against_itself(task.env_id, task.params):
        # By name: that module imports this one.
        play_seat: Callable[..., Awaitable[Trajectory]] = imported("gem.rollout.match:play_seat")
        limits = {"retries": retries, "step_timeout_s": step_timeout_s}
        shown = {"budget": budget, "context": context, "group": group, "index": index}
        return await play_seat(task, sampler, chat, **shown, **limits)
    source = task if make_env is None else partial(make_env, task)
    episode = Episode(task, chat, context=context, budget=budget, group=group, index=index)
    failed: EnvFailedError | None = None
    for _ in range(retries + 1):
        env = AsyncEnv(source, step_timeout_s, executor)
        try:
            episode.begin(*await env.reset(task.seed))
            while episode.request is not None:
                with boundary("engine"):
                    sample = await sampler(episode.request)
                episode.advance(await env.step(episode.receive(sample)))
            return episode.trajectory
        except EnvFailedError as error:
            failed = error
        finally:
            await env.aclose()
    if failed is not None:
        episode.fail(failed.failure(retries + 1))
    return episode.trajectory

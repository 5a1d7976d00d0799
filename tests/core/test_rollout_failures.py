"""Failures of rollouts: what is tried again, what is blamed, what the others do meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
from echo import BUDGET, TASK, Echo, drive, scripted, wait_until

from gem.blame import boundary, cause_of
from gem.errors import ConfigurationError, RolloutError, UnknownEnvError, UnreachableError
from gem.rollout import (
    ChatFormat,
    Request,
    Sample,
    play,
    play_batch,
)
from gem.tasks import Task
from gem.trajectory import Trajectory
from gem_train.experiment.metrics import episode_metrics

LONG = replace(BUDGET, response_tokens=1 << 20, turns=None)


class Flaky:
    """Makes environments of which the first `broken` fail at `where`."""

    def __init__(self, broken: int, where: Any) -> None:
        self.broken, self.where, self.made = broken, where, list[Echo]()

    def __call__(self, task: Task) -> Echo:
        self.made.append(Echo(fail=self.where if len(self.made) < self.broken else None))
        return self.made[-1]


@pytest.mark.parametrize("driver", ["batch", "async"])
@pytest.mark.parametrize("where", ["reset", 1, 3])
def test_a_broken_environment_is_replaced(small_tokenizer: Any, driver: str, where: Any) -> None:
    flaky = Flaky(1, where)
    trajectory = drive(driver, small_tokenizer, flaky, retries=1)
    assert trajectory.valid
    assert trajectory.rewards == [1.0, 2.0, 3.0]
    assert len(flaky.made) == 2
    wait_until(lambda: all(env.closed for env in flaky.made))


@pytest.mark.parametrize("driver", ["batch", "async"])
@pytest.mark.parametrize("where", ["reset", 2])
def test_an_environment_that_stays_broken_is_a_failure_not_a_reward(
    small_tokenizer: Any, driver: str, where: Any
) -> None:
    flaky = Flaky(99, where)
    trajectory = drive(driver, small_tokenizer, flaky, retries=2)
    assert trajectory.failure is not None
    assert (trajectory.failure.cause, trajectory.failure.attempts) == ("environment", 3)
    assert "OSError: " in trajectory.failure.message
    assert trajectory.end == "failed"
    wait_until(lambda: all(env.closed for env in flaky.made))


@pytest.mark.parametrize("driver", ["batch", "async"])
def test_the_others_go_on_when_one_episode_fails(small_tokenizer: Any, driver: str) -> None:
    tasks = [Task("x", seed) for seed in range(4)]

    def make_env(task: Task) -> Echo:
        return Echo(fail=2 if task.seed == 1 else None)

    sampler = scripted([[9]])
    chat = ChatFormat(small_tokenizer)
    if driver == "batch":
        batch = play_batch(
            tasks,
            lambda requests: [sampler(r) for r in requests],
            chat,
            budget=BUDGET,
            make_env=make_env,
        )
    else:

        async def answer(request: Request) -> Sample:
            return sampler(request)  # type: ignore[no-any-return]

        async def all_of_them() -> list[Trajectory]:
            plays = [play(t, answer, chat, budget=BUDGET, make_env=make_env) for t in tasks]
            return await asyncio.gather(*plays)

        batch = asyncio.run(all_of_them())
    assert [t.valid for t in batch] == [True, False, True, True]
    assert [t.task.seed for t in batch] == [0, 1, 2, 3]


@pytest.mark.parametrize("driver", ["batch", "async"])
def test_wrong_configuration_is_not_retried_as_a_failure(small_tokenizer: Any, driver: str) -> None:
    with pytest.raises(UnknownEnvError):
        drive(driver, small_tokenizer, Task.make)


@pytest.mark.parametrize("driver", ["batch", "async"])
def test_what_the_sampler_raises_reaches_the_caller(small_tokenizer: Any, driver: str) -> None:
    class EngineDiedError(Exception):
        pass

    made = Flaky(0, None)
    with pytest.raises(EngineDiedError):
        drive(driver, small_tokenizer, made, error=EngineDiedError())
    wait_until(lambda: all(env.closed for env in made.made))


@pytest.mark.parametrize("driver", ["batch", "async"])
@pytest.mark.parametrize("call", ["reset", "step"])
def test_what_breaks_the_contract_is_a_failure_of_the_environment(
    small_tokenizer: Any, driver: str, call: str
) -> None:
    class Broken(Echo):
        def reset(self, seed: int | None = None, **options: Any) -> Any:
            return (None, {}) if call == "reset" else super().reset(seed, **options)

        def step(self, action: str) -> Any:
            return "x", 1.0, True, True, {}

    trajectory = drive(driver, small_tokenizer, lambda task: Broken())
    assert trajectory.failure is not None
    assert trajectory.failure.cause == "environment"
    assert f"ContractError: {call}() must" in trajectory.failure.message


class Clumsy:
    """A tokenizer that fails at texts with a certain word."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode(self, text: str, **kwargs: Any) -> Any:
        if "Say something" in text:
            raise TypeError("TextEncodeInput must be Union")
        return self._tokenizer.encode(text, **kwargs)

    def decode(self, token_ids: Any, **kwargs: Any) -> Any:
        if list(token_ids) == [13]:
            raise IndexError("no such token")
        return self._tokenizer.decode(token_ids, **kwargs)


@pytest.mark.parametrize("driver", ["batch", "async"])
@pytest.mark.parametrize("error", [TypeError, IndexError])
def test_a_tokenizer_that_fails_is_not_blamed_on_the_environment(
    small_tokenizer: Any, driver: str, error: type[Exception]
) -> None:
    class Quiet(Echo):
        def reset(self, seed: int | None = None, **options: Any) -> Any:
            super().reset(seed, **options)
            return "Begin." if error is IndexError else "Say something.", {}

    made = list[Quiet]()

    def make_env(task: Task) -> Quiet:
        made.append(Quiet())
        return made[-1]

    with pytest.raises(error) as caught:
        drive(driver, Clumsy(small_tokenizer), make_env, responses=[[13]])
    assert cause_of(caught.value) == "template"
    assert len(made) == 1


@pytest.mark.parametrize("driver", ["batch", "async"])
@pytest.mark.parametrize("error", [RolloutError("no port"), ConfigurationError("no such level")])
@pytest.mark.parametrize("where", ["reset", "step"])
def test_errors_of_who_set_up_the_run_are_not_swallowed(
    small_tokenizer: Any, driver: str, error: Exception, where: str
) -> None:
    class Refusing(Echo):
        def reset(self, seed: int | None = None, **options: Any) -> Any:
            if where == "reset":
                raise error
            return super().reset(seed, **options)

        def step(self, action: str) -> Any:
            raise error

    with pytest.raises(type(error), match=str(error)):
        drive(driver, small_tokenizer, lambda task: Refusing())


class Judged(Echo):
    """Fails inside the boundary of something it relies on."""

    def __init__(self, cause: Any) -> None:
        super().__init__()
        self.cause = cause

    def step(self, action: str) -> Any:
        with boundary(self.cause):
            raise UnreachableError("nobody there")


@pytest.mark.parametrize("driver", ["batch", "async"])
@pytest.mark.parametrize("cause", ["tool", "grader", "sandbox"])
def test_a_failure_is_blamed_on_what_failed(small_tokenizer: Any, driver: str, cause: str) -> None:
    trajectory = drive(driver, small_tokenizer, lambda task: Judged(cause))
    assert trajectory.failure is not None
    assert trajectory.failure.cause == cause
    metrics = episode_metrics([trajectory])
    assert (metrics["failed_rate"], metrics[f"failed_{cause}"]) == (1, 1)
    assert metrics["failed_environment"] == 0


@pytest.mark.parametrize("driver", ["batch", "async"])
def test_a_hanging_grader_is_blamed_on_the_grader(small_tokenizer: Any, driver: str) -> None:
    release = threading.Event()

    class Slow(Echo):
        def step(self, action: str) -> Any:
            with boundary("grader"):
                release.wait(30)
            return super().step(action)

    try:
        trajectory = drive(
            driver, small_tokenizer, lambda task: Slow(), retries=0, step_timeout_s=1.0
        )
    finally:
        release.set()
    assert trajectory.failure is not None
    assert trajectory.failure.cause == "grader"
    assert "1 s while it waited for its grader" in trajectory.failure.message


@pytest.mark.parametrize("driver", ["batch", "async"])
def test_what_the_sampler_raises_says_that_the_engine_failed(
    small_tokenizer: Any, driver: str
) -> None:
    with pytest.raises(LookupError) as caught:
        drive(driver, small_tokenizer, lambda task: Echo(), error=LookupError("out of memory"))
    assert cause_of(caught.value) == "engine"


_NAN, _INF = float("nan"), float("inf")


@pytest.mark.parametrize("driver", ["batch", "async"])
@pytest.mark.parametrize("value", [_NAN, -_INF, _INF, 5.0, 0.01, None, "-0.5"])
def test_what_is_no_log_probability_never_reaches_training(
    small_tokenizer: Any, driver: str, value: Any
) -> None:
    expected = rf"log-probability {value!r} for token 2 of 3"
    with pytest.raises(RolloutError, match=expected) as caught:
        drive(driver, small_tokenizer, lambda task: Echo(), logprobs=[-0.1, value, -0.2])
    assert cause_of(caught.value) == "engine"


@pytest.mark.parametrize("driver", ["batch", "async"])
def test_log_probabilities_are_kept_as_the_engine_reports_them(
    small_tokenizer: Any, driver: str
) -> None:
    # A greedy engine reports 0, and rounding may make that a little more.
    logprobs = [0.0, 1e-6, -1e30]
    trajectory = drive(driver, small_tokenizer, lambda task: Echo(), logprobs=logprobs)
    assert [turn.logprobs for turn in trajectory.turns] == [logprobs] * 3


@pytest.mark.parametrize("driver", ["batch", "async"])
def test_a_hanging_environment_is_given_up(small_tokenizer: Any, driver: str) -> None:
    release = threading.Event()

    class Hanging(Echo):
        def step(self, action: str) -> Any:
            release.wait(30)
            return super().step(action)

    try:
        trajectory = drive(
            driver, small_tokenizer, lambda task: Hanging(), retries=0, step_timeout_s=0.05
        )
    finally:
        release.set()
    assert trajectory.failure is not None
    assert "time limit of 0.05 s" in trajectory.failure.message


def test_the_rest_of_a_batch_goes_on_without_an_environment_that_hangs(
    small_tokenizer: Any,
) -> None:
    release, closed = threading.Event(), list[int]()

    class Sometimes(Echo):
        def __init__(self, seed: int) -> None:
            super().__init__()
            self.seed = seed

        def step(self, action: str) -> Any:
            if self.seed == 1:
                release.wait(30)
            return super().step(action)

        def close(self) -> None:
            closed.append(self.seed)

    try:
        batch = play_batch(
            [Task("x", seed) for seed in range(4)],
            lambda requests: [Sample([9], None, "stop") for _ in requests],
            ChatFormat(small_tokenizer),
            budget=BUDGET,
            make_env=lambda task: Sometimes(task.seed),
            retries=0,
            step_timeout_s=1.0,
        )
        assert [t.rewards for t in batch if t.valid] == [[1.0, 2.0, 3.0]] * 3
        assert [t.valid for t in batch] == [True, False, True, True]
        assert sorted(closed) == [0, 2, 3]
    finally:
        release.set()
    wait_until(lambda: sorted(closed) == [0, 1, 2, 3])


def test_slow_environments_do_not_block_the_event_loop(small_tokenizer: Any) -> None:
    """32 episodes meet inside `step` at once: possible only if none of them blocks the loop."""
    everyone = threading.Barrier(32, timeout=60)

    class Meeting(Echo):
        def step(self, action: str) -> Any:
            everyone.wait()
            return super().step(action)

    sampler = scripted([[9]])

    async def answer(request: Request) -> Sample:
        return sampler(request)  # type: ignore[no-any-return]

    async def all_of_them() -> list[Trajectory]:
        chat = ChatFormat(small_tokenizer)
        return await asyncio.gather(
            *(
                play(TASK, answer, chat, budget=BUDGET, make_env=lambda task: Meeting())
                for _ in range(32)
            )
        )

    assert all(t.valid for t in asyncio.run(all_of_them()))


def test_an_interruption_in_a_notebook_ends_the_rounds(small_tokenizer: Any) -> None:
    rounds = 0

    def sample(requests: list[Request]) -> list[Sample]:
        nonlocal rounds
        rounds += 1
        if rounds == 2:
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
        return [Sample([9], None, "stop") for _ in requests]

    async def cell() -> None:
        play_batch(
            [TASK], sample, ChatFormat(small_tokenizer), budget=LONG, make_env=lambda task: Echo(99)
        )

    loop = asyncio.new_event_loop()
    try:
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(cell())
    finally:
        loop.close()
    assert rounds < 50


def test_a_sampler_that_breaks_its_promise_is_an_error(small_tokenizer: Any) -> None:
    for bad, message in [
        (Sample([1] * 65, None, "stop"), "65 tokens of 64 allowed"),
        (Sample([1, 2], [0.0], "stop"), "2 tokens, 1 log-probs"),
        (Sample([1], None, "abort"), "stop_reason 'abort'; expected 'stop' or 'length'"),  # type: ignore[arg-type]
    ]:
        with pytest.raises(RolloutError, match=message):
            play_batch(
                [TASK],
                lambda batch, bad=bad: [bad for _ in batch],  # type: ignore[misc]
                ChatFormat(small_tokenizer),
                budget=BUDGET,
                make_env=lambda task: Echo(),
            )
    with pytest.raises(RolloutError, match="answered 0 of 1 requests"):
        play_batch(
            [TASK],
            lambda batch: [],
            ChatFormat(small_tokenizer),
            budget=BUDGET,
            make_env=lambda task: Echo(),
        )

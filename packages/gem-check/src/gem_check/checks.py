"""Checks by playing: each plays an environment and raises `FaultError` if it breaks a promise.

Determinism, seeds, processes, threads, snapshots, bad input, network; `checker` lists and runs
them. A check's docstring is the promise that it checks.
"""

from __future__ import annotations

import contextlib
import pickle
import random
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from gem.core import Env
from gem.errors import BusyMachineError
from gem.foreign import contained
from gem.replay import difference
from gem.seeding import env_seed, stream
from gem.tasks import Task
from gem.trajectory import Trajectory
from gem_check.contract import require_step
from gem_check.playing import (
    Policy,
    answer_like,
    digest,
    facts,
    identity,
    play,
    random_policy,
    recorded,
    replay,
    shown,
    transcript,
)
from gem_check.subject import FaultError, SkipCheck, Subject, describe, require

# Late observations may be this factor, plus this many characters, longer than early ones: boards
# and lists of guesses grow a little, a history repeated in each observation grows without bound.
_GROWTH = (3, 1_000)
_THREADS = 3


def midway(subject: Subject, seed: int) -> tuple[Env, list[str]]:
    """Return an environment in the middle of an episode, and the actions to its end."""
    actions = play(subject.factory(), random_policy, subject.max_steps, seed).actions
    env = subject.factory()
    env.reset(seed=seed)
    half = len(actions) // 2
    replay(env, actions[:half])
    return env, actions[half:]


def check_startup(subject: Subject) -> str:
    """It can be made, reset, played and closed."""
    # Without sample_random_action, which the contract check reports, play empty actions.
    silent = "sample_random_action" in subject.missing
    policy: Policy = (lambda env, observation: "") if silent else random_policy
    with subject.factory() as env:
        turns = len(play(env, policy, subject.max_steps, 0).steps)
    return f"{turns} turns{' of empty actions' if silent else ''}"


def check_success(subject: Subject) -> str:
    """The last step's info says whether the episode was won."""
    ended = [episode for episode in subject.random.episodes if episode.done]
    if not ended:
        raise SkipCheck(f"no episode ends within {subject.max_steps} turns")
    for episode in ended:
        info = episode.steps[-1][4]
        require(
            info.get("success", info.get("correct")) is not None,
            "info of the last step does not tell success, which is then inferred: an episode that "
            "terminates with a positive reward counts as won; put info['success'] (bool) into it",
        )
    return "the last info tells it"


def check_observations(subject: Subject) -> str:
    """Observations stay bounded while an episode goes on, and the last one does not repeat them."""
    longest = max(subject.random.episodes, key=lambda episode: len(episode.steps))
    lengths = [len(shown(observation)) for observation in longest.observations[1:]]
    if len(lengths) >= 8:
        quarter = len(lengths) // 4
        early, late = sum(lengths[:quarter]) / quarter, sum(lengths[-quarter:]) / quarter
        require(
            late <= _GROWTH[0] * early + _GROWTH[1],
            f"observations grow from {early:.0f} to {late:.0f} characters in {len(lengths)} turns",
        )
    first = len(shown(longest.first))
    return f"reset {first}, then at most {max(lengths, default=0)} characters"


def check_replay(subject: Subject) -> str:
    """An episode, recorded like a rollout's, written and read, replays identically."""
    for seed in subject.seeds:
        episode = play(subject.factory(), random_policy, subject.max_steps, seed)
        trajectory = recorded(episode, Task("checked", seed))
        again = Trajectory.from_json(trajectory.to_json())
        require(
            again.fingerprint == trajectory.fingerprint,
            f"seed {seed}: the fingerprint is another one after writing and reading",
        )
        found = difference(again, lambda task: subject.factory())
        require(found is None, f"seed {seed}: {found}")
    return f"{len(subject.seeds)} episodes, the last one {trajectory.fingerprint.outcome[:8]}"


def check_grading(subject: Subject) -> str:
    """The same action in the same state gets the same answer every time."""
    env = subject.factory()
    for seed in subject.seeds:
        env.reset(seed=seed)
        state = env.snapshot()
        actions = [env.sample_random_action(), ""]
        with contextlib.suppress(NotImplementedError):
            actions.append(env.oracle_action())
        for action in actions:
            answers = []
            for _ in range(3):
                env.restore(state)
                answers.append(facts(env.step(action)))
            same = answers[0] == answers[1] == answers[2]
            require(same, f"seed {seed}: {action!r:.60} is answered differently each time")
    return "3 times each"


_connections: list[str] = []
_listening = threading.Event()


@cache
def _listen() -> None:
    """Install an audit hook that records connections while `_listening` is set.

    Cached, as an audit hook cannot be removed.
    """

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if not _listening.is_set():
            return
        if event == "socket.connect" and isinstance(arguments[1], tuple):
            _connections.append(f"{arguments[1][0]}:{arguments[1][1]}")
        elif event == "socket.getaddrinfo":
            _connections.append(str(arguments[0]))

    sys.addaudithook(hook)


def check_network(subject: Subject) -> str:
    """The constructor opens no connection; hosts contacted in an episode are listed."""
    _listen()
    _connections.clear()
    _listening.set()
    try:
        env = subject.factory()
        require(not _connections, f"the constructor connects to {_connections}")
        play(env, random_policy, 3, 0)
    finally:
        _listening.clear()
    if _connections:
        raise SkipCheck(f"needs the network: {', '.join(sorted(set(_connections)))}")
    return "no connection"


def check_determinism(subject: Subject) -> str:
    """Same seed and actions give the same episode, whatever is played before and beside it."""
    one, two, other = subject.factory(), subject.factory(), subject.factory()
    played = {seed: play(one, random_policy, subject.max_steps, seed) for seed in subject.seeds}

    def again(seed: int) -> None:
        expected = played[seed]
        first, _ = two.reset(seed=seed)
        other.reset(seed=seed + 1)
        same = identity(first) == identity(expected.first)
        require(same, f"seed {seed}: reset() differs after other episodes")
        for turn, (action, step) in enumerate(zip(expected.actions, expected.steps, strict=True)):
            other_step = other.step(other.sample_random_action())
            if other_step[2] or other_step[3]:
                other.reset()
            same = facts(two.step(action)) == facts(step)
            require(same, f"seed {seed}, turn {turn + 1}: same seed and actions, other step")

    # Backwards: the episodes before each are then others than those of `one`.
    for seed in reversed(subject.seeds):
        again(seed)
    longest = max(subject.seeds, key=lambda seed: len(played[seed].actions))
    two.reset(seed=longest)
    replay(two, played[longest].actions[: len(played[longest].actions) // 2])
    again(subject.seeds[0])
    return f"{len(subject.seeds)} seeds, in another order, after a part of one, interleaved"


def check_variety(subject: Subject) -> str:
    """Different seeds give different episodes under the same actions."""
    actions = subject.random.episodes[0].actions
    seen = set()
    seeds = range(len(subject.random.episodes))
    for seed in seeds:
        env = subject.factory()
        first, _ = env.reset(seed=seed)
        told: list[Any] = [identity(first)]
        for action in actions:
            step = env.step(action)
            told.append(facts(step))
            if step[2] or step[3]:
                break
        seen.add(repr(told))
    if len(seen) == 1 and env.rng.getstate() == stream(*env.episode_key).getstate():
        raise SkipCheck("it draws nothing: all episodes start alike")
    require(len(seen) > 1, f"{len(seeds)} seeds gave one and the same episode")
    return f"{len(seen)} different episodes in {len(seeds)} seeds"


def check_processes(subject: Subject) -> str:
    """A process with another hash seed plays the same episodes."""
    if subject.other is None:
        raise SkipCheck("no other process was asked")
    there = subject.other.answer()
    here = digest(transcript(subject.factory(), subject.seeds, subject.max_steps))
    require(here == there, "another process plays other episodes (hash order, time, process id?)")
    return f"transcript {here[:8]}"


def check_threads(subject: Subject) -> str:
    """Concurrent threads play the same episodes."""

    def played() -> str:
        return digest(transcript(subject.factory(), subject.seeds, subject.max_steps))

    expected = played()
    with ThreadPoolExecutor(_THREADS) as pool:
        for job in [pool.submit(played) for _ in range(_THREADS)]:
            error = job.exception()
            if isinstance(error, BusyMachineError):
                raise error
            found = describe(error) if isinstance(error, Exception) else job.result()
            require(found == expected, f"a thread beside others plays other episodes: {found}")
    return f"{_THREADS} threads, transcript {expected[:8]}"


def check_vector(subject: Subject) -> str:
    """Environment 0 plays the same episodes alone and among others, autoresets included."""
    from gem.vector import SyncVectorEnv

    steps = 30 if len(subject.seeds) >= 4 else 8

    def transcripts(n: int) -> list[list[Any]]:
        vector = SyncVectorEnv([subject.factory] * n, seed=7)
        observations, _ = vector.reset()
        kept: list[list[Any]] = [[identity(observation)] for observation in observations]
        for _ in range(steps):
            actions = [env.sample_random_action() for env in vector.envs]
            observations, rewards, terminated, truncated, infos = vector.step(actions)
            for i in range(n):
                require("failure" not in infos[i], str(infos[i].get("failure")))
                step = observations[i], rewards[i], terminated[i], truncated[i], infos[i]
                kept[i].append(facts(step))
        return kept

    alone, among = transcripts(1), transcripts(3)
    require(alone[0] == among[0], "environment 0 depends on the number of its siblings")
    second = subject.factory()
    first, _ = second.reset(seed=env_seed(7, 1))
    require(identity(first) == among[1][0], "environment 1 does not start from env_seed(seed, 1)")
    return f"1 and 3 environments, {steps} steps"


def check_snapshot(subject: Subject) -> str:
    """After snapshot, restore and spawn, this episode and the next continue bit for bit."""
    for seed in subject.seeds:
        env, rest = midway(subject, seed)
        state = env.snapshot()
        child = env.spawn(same_state=True)
        fresh = subject.factory()
        fresh.restore(state)
        expected = replay(env, rest), identity(env.reset()[0])
        for name, copy in (("spawn(same_state=True)", child), ("restore() elsewhere", fresh)):
            again = replay(copy, rest), identity(copy.reset()[0])
            require(again == expected, f"seed {seed}: {name} continues differently")
        env.restore(state)
        again = replay(env, rest), identity(env.reset()[0])
        require(again == expected, f"seed {seed}: restore() continues differently")
        child.close()
    return f"{len(subject.seeds)} seeds: restore, restore elsewhere, spawn"


def check_pickle(subject: Subject) -> str:
    """A pickled environment continues bit for bit."""
    for seed in subject.seeds:
        env, rest = midway(subject, seed)
        copy = pickle.loads(pickle.dumps(env))
        require(replay(copy, rest) == replay(env, rest), f"seed {seed}: continues differently")
        copy.close()
    return f"{len(pickle.dumps(env))} bytes"


def _bad_inputs(example: str) -> Iterator[str]:
    yield from ("", " \n\t", "\\boxed{", "\\boxed{}", "\\boxed{ }", "}{", "\\boxed{\\boxed{1}}")
    yield from ("\x00", "\\boxed{\x00}", "\ud800", "\\boxed{\udfff}", "\\boxed{٣}", "\\boxed{²}")
    yield from ("\\boxed{" + "9" * 10_000 + "}", "\\boxed{" + "a" * 100_000 + "}", "x" * 100_000)
    yield from ("\\boxed{-0}", "\\boxed{1e9}", "\\boxed{nan}", "\\boxed{" * 1_000, "\\boxed{ß}")
    yield from ("\\boxed{" + "7" * 1_000_000 + "}", "\x00" * 1_000_000)
    yield from ("\\boxed{" + "1 " * 50_000 + "}", "\\boxed{" + ", " * 50_000 + "}", "{" * 10_000)
    rng = stream(0)
    for _ in range(100):
        noise = rng.randbytes(rng.randint(1, 40))
        text = noise.decode(("utf-8", "latin-1")[rng.randrange(2)], "surrogateescape")
        yield answer_like(example, text) if rng.random() < 0.5 else text


def check_bad_input(subject: Subject) -> str:
    """Every text of a policy gets a proper step."""
    env = subject.factory()
    example = subject.random.episodes[0].actions[0]
    starts = []
    for seed in subject.seeds:
        env.reset(seed=seed)
        starts.append(env.snapshot())
    n = 0
    for n, action in enumerate(_bad_inputs(example), start=1):
        try:
            step = env.step(action)
        except BusyMachineError:
            raise
        except BaseException as error:
            what = describe(contained(error))
            raise FaultError(f"action {action!r:.60}: {what}") from None
        step = require_step(step, f"action {action!r:.60}")
        if step[2] or step[3]:
            env.restore(starts[n % len(starts)])
    return f"{n} actions"


def check_global_rng(subject: Subject) -> str:
    """Global generators are neither read nor changed."""
    import numpy as np

    before, before_np = random.getstate(), np.random.get_state(legacy=True)
    try:
        transcripts = []
        for seed in (1, 2):
            random.seed(seed)
            np.random.seed(seed)
            ours, ours_np = random.getstate(), np.random.get_state(legacy=True)
            env = subject.factory()
            transcripts.append(transcript(env, subject.seeds, subject.max_steps))
            env.snapshot()
            env.close()
            require(random.getstate() == ours, "the global generator of `random` was used")
            same = repr(np.random.get_state(legacy=True)) == repr(ours_np)
            require(same, "the global generator of numpy was used")
        require(transcripts[0] == transcripts[1], "seeding the global generators has an effect")
    finally:
        random.setstate(before)
        np.random.set_state(before_np)
    return "random, numpy"

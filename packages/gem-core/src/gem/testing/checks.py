"""The checks: each plays an environment and raises `FaultError` where it breaks a promise."""

from __future__ import annotations

import math
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gem.core import Env, Observation
from gem.errors import ResetNeededError
from gem.seeding import env_seed, stream
from gem.testing.playing import (
    Policy,
    digest,
    facts,
    oracle_policy,
    play,
    random_policy,
    replay,
    shown,
    transcript,
)

# A degenerate policy may be luckier than random play by this much, and random play must stay this
# far below certain success.
_MARGIN = 0.1
# Longest answer to any action: feedback must not echo a policy's whole text.
_MAX_OBSERVATION = 20_000
_SUBPROCESS_TIMEOUT_S = 120
_SEEDS = range(4)


class FaultError(Exception):
    """The environment breaks a promise."""


class SkipCheck(Exception):  # noqa: N818
    """The environment does not make this promise."""


@dataclass(frozen=True)
class Subject:
    """What is checked, and how much of it."""

    factory: Callable[..., Env]
    """Makes the environment; further keywords are further parameters."""
    episodes: int
    """Episodes per policy where success rates are compared."""
    max_steps: int
    """Longest episode played."""


def describe(error: Exception) -> str:
    """Return an error on one line."""
    text = " ".join(str(error).split())
    text = text if isinstance(error, FaultError) else f"{type(error).__name__}: {text}"
    return text if len(text) <= 300 else text[:297] + "..."


def require(condition: bool, message: str) -> None:
    """Raise `FaultError` unless the condition holds."""
    if not condition:
        raise FaultError(message)


def midway(subject: Subject, seed: int) -> tuple[Env, list[str]]:
    """Return an environment in the middle of an episode and actions that go on to its end."""
    actions = play(subject.factory(), random_policy, subject.max_steps, seed).actions
    env = subject.factory()
    env.reset(seed=seed)
    half = len(actions) // 2
    replay(env, actions[:half])
    return env, actions[half:]


def check_contract(subject: Subject) -> str:
    """Return types, flags, errors before the beginning and after the end."""
    env = subject.factory()
    _require_refusal(env, "before reset()")
    steps = 0
    for seed in _SEEDS:
        observation, info = env.reset(seed=seed)
        _require_observation(observation, f"reset(seed={seed})")
        require(bool(shown(observation)), f"reset(seed={seed}) returned an empty observation")
        require(isinstance(info, dict), f"reset() info is {type(info).__name__}, not dict")
        done = False
        while not done and steps < 4 * subject.max_steps:
            action = env.sample_random_action()
            require(isinstance(action, str), "sample_random_action() must return a str")
            step = env.step(action)
            steps += 1
            _require_step(step, f"seed {seed}, action {action!r}")
            for flag in ("format_error", "invalid_action"):
                wrong = bool(step[4].get(flag, False))
                require(not wrong, f"sample_random_action() gave {action!r}, info has {flag}")
            done = step[2] or step[3]
        if done:
            _require_refusal(env, "after the end")
    require(isinstance(env.render(), str), "render() must return a str")
    env.close()
    env.close()
    try:
        subject.factory(no_such_parameter=0)
    except TypeError:
        return f"{steps} steps"
    raise FaultError("the constructor must reject unknown keywords (it took no_such_parameter=0)")


def _require_refusal(env: Env, when: str) -> None:
    try:
        env.step("")
    except ResetNeededError:
        return
    except Exception as error:
        raise FaultError(f"step() {when} must raise ResetNeededError, not {error!r}") from error
    raise FaultError(f"step() {when} must raise ResetNeededError, it went on")


def _require_observation(observation: Any, where: str) -> None:
    if isinstance(observation, list):
        for part in observation:
            good = isinstance(part, dict) and part.get("type") in ("text", "image")
            require(good, f"{where}: bad observation part {part!r:.80}")
    else:
        kind = type(observation).__name__
        require(isinstance(observation, str), f"{where}: observation is {kind}, not str or list")
    require(len(shown(observation)) <= _MAX_OBSERVATION, f"{where}: observation too long")


def _require_step(step: Any, where: str) -> None:
    require(isinstance(step, tuple) and len(step) == 5, f"{where}: step() must return 5 values")
    observation, reward, terminated, truncated, info = step
    _require_observation(observation, where)
    number = isinstance(reward, int | float) and not isinstance(reward, bool)
    require(number and math.isfinite(reward), f"{where}: reward {reward!r} is no finite number")
    flags = isinstance(terminated, bool) and isinstance(truncated, bool)
    require(flags, f"{where}: terminated={terminated!r}, truncated={truncated!r} must be bool")
    require(not (terminated and truncated), f"{where}: terminated and truncated are both True")
    require(isinstance(info, dict), f"{where}: info is {type(info).__name__}, not dict")
    for key in ("suffix", "prefix"):
        require(key not in info, f"{where}: info[{key!r}] hides text from the observation")
    for key in ("success", "correct", "format_error", "invalid_action"):
        require(isinstance(info.get(key, False), bool), f"{where}: info[{key!r}] must be a bool")


def check_determinism(subject: Subject) -> str:
    """Same seed and actions, same episode: interleaved with others, whoever seeds `random`."""
    one, two, other = subject.factory(), subject.factory(), subject.factory()
    for seed in _SEEDS:
        expected = play(one, random_policy, subject.max_steps, seed)
        first, _ = two.reset(seed=seed)
        other.reset(seed=seed + 1)
        require(shown(first) == shown(expected.first), f"seed {seed}: reset() differs")
        for turn, (action, step) in enumerate(zip(expected.actions, expected.steps, strict=True)):
            other_step = other.step(other.sample_random_action())
            if other_step[2] or other_step[3]:
                other.reset()
            same = facts(two.step(action)) == facts(step)
            require(same, f"seed {seed}, turn {turn + 1}: same seed and actions, other step")
    return "4 seeds, interleaved"


def check_variety(subject: Subject) -> str:
    """Different seeds give different episodes under the same actions."""
    actions = play(subject.factory(), random_policy, subject.max_steps, 0).actions
    seen = set()
    for seed in range(subject.episodes):
        env = subject.factory()
        first, _ = env.reset(seed=seed)
        told: list[Any] = [shown(first)]
        for action in actions:
            step = env.step(action)
            told.append(facts(step))
            if step[2] or step[3]:
                break
        seen.add(repr(told))
    require(len(seen) > 1, f"{subject.episodes} seeds gave one and the same episode")
    return f"{len(seen)} different episodes in {subject.episodes} seeds"


def check_processes(subject: Subject) -> str:
    """A process with another hash seed plays the same episodes."""
    try:
        payload = pickle.dumps(subject)
    except Exception as error:
        raise SkipCheck(f"the function that makes it cannot be pickled: {error}") from None
    paths = os.pathsep.join(path for path in sys.path if path)
    seeds = {os.environ.get("PYTHONHASHSEED", ""), "101", "202"}
    child = subprocess.run(
        [sys.executable, "-c", "from gem.testing.checks import child; child()"],
        input=payload,
        capture_output=True,
        timeout=_SUBPROCESS_TIMEOUT_S,
        check=False,
        env={**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": max(seeds)},
    )
    if child.returncode != 0:
        lines = child.stderr.decode(errors="replace").strip().splitlines()
        raise FaultError(f"another process failed: {lines[-1] if lines else child.returncode}")
    here = digest(transcript(subject.factory(), _SEEDS, subject.max_steps))
    there = child.stdout.decode().strip()
    require(here == there, "another process plays other episodes (hash order, time, process id?)")
    return f"transcript {here[:8]}"


def child() -> None:
    """Play the pickled subject of standard input; print the digest of its transcript."""
    subject: Subject = pickle.load(sys.stdin.buffer)
    sys.stdout.write(digest(transcript(subject.factory(), _SEEDS, subject.max_steps)))


def check_vector(subject: Subject) -> str:
    """Environment i plays the same episodes alone and among others, autoresets included."""
    from gem.vector import SyncVectorEnv

    def transcripts(n: int) -> list[list[Any]]:
        vector = SyncVectorEnv([subject.factory] * n, seed=7)
        observations, _ = vector.reset()
        kept: list[list[Any]] = [[shown(observation)] for observation in observations]
        for _ in range(30):
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
    require(shown(first) == among[1][0], "environment 1 does not start from env_seed(seed, 1)")
    return "1 and 3 environments, 30 steps"


def check_snapshot(subject: Subject) -> str:
    """Snapshot, restore and spawn continue bit for bit, the following episode included."""
    for seed in _SEEDS:
        env, rest = midway(subject, seed)
        state = env.snapshot()
        child = env.spawn(same_state=True)
        fresh = subject.factory()
        fresh.restore(state)
        expected = replay(env, rest), shown(env.reset()[0])
        for name, copy in (("spawn(same_state=True)", child), ("restore() elsewhere", fresh)):
            again = replay(copy, rest), shown(copy.reset()[0])
            require(again == expected, f"seed {seed}: {name} continues differently")
        env.restore(state)
        again = replay(env, rest), shown(env.reset()[0])
        require(again == expected, f"seed {seed}: restore() continues differently")
    return "4 seeds: restore, restore elsewhere, spawn"


def check_pickle(subject: Subject) -> str:
    """A pickled environment continues bit for bit."""
    for seed in _SEEDS:
        env, rest = midway(subject, seed)
        copy = pickle.loads(pickle.dumps(env))
        require(replay(copy, rest) == replay(env, rest), f"seed {seed}: continues differently")
    return f"{len(pickle.dumps(env))} bytes"


def check_oracle(subject: Subject) -> str:
    """The oracle wins every start, and acts on what was observed alone."""
    env = subject.factory()
    known: dict[Any, tuple[str, int]] = {}
    turns = 0
    for seed in range(subject.episodes):
        try:
            episode = play(env, oracle_policy, subject.max_steps, seed)
        except NotImplementedError:
            raise SkipCheck("no oracle_action()") from None
        require(episode.success, f"lost seed {seed} after {len(episode.steps)} turns")
        turns = max(turns, len(episode.steps))
        history: tuple[str, ...] = (shown(episode.first),)
        for action, step in zip(episode.actions, episode.steps, strict=True):
            first_action, first_seed = known.setdefault(history, (action, seed))
            require(
                action == first_action,
                f"knows more than it observed: seeds {first_seed} and {seed} look the same up to "
                f"turn {len(history) // 2 + 1}, yet it plays {first_action!r} and {action!r}",
            )
            history = (*history, action, shown(step[0]))
    return f"won {subject.episodes} of {subject.episodes}, at most {turns} turns"


def _success_rate(subject: Subject, policy: Policy) -> float:
    env = subject.factory()
    seeds = range(subject.episodes)
    return sum(play(env, policy, subject.max_steps, s).success for s in seeds) / subject.episodes


def check_random(subject: Subject) -> str:
    """Random play leaves something to learn."""
    rate = _success_rate(subject, random_policy)
    require(rate <= 1 - _MARGIN, f"random play already wins {rate:.2f} of the episodes")
    return f"random play wins {rate:.2f}"


def check_degenerate(subject: Subject) -> str:
    """Policies that do not play win no more often than random play."""
    constant = play(subject.factory(), random_policy, 1, 12345).actions[0]
    prompt = ""

    def copy_of_prompt(env: Env, observation: Observation) -> str:
        nonlocal prompt
        prompt = prompt or shown(observation)
        return prompt

    policies: dict[str, Policy] = {
        "null": lambda env, observation: "",
        "constant": lambda env, observation: constant,
        "echo": lambda env, observation: shown(observation),
        "prompt copy": copy_of_prompt,
    }
    by_chance = _success_rate(subject, random_policy)
    rates = []
    for name, policy in policies.items():
        wins = 0
        for seed in range(subject.episodes):
            prompt = ""
            wins += play(subject.factory(), policy, subject.max_steps, seed).success
        rate = wins / subject.episodes
        require(
            rate <= by_chance + _MARGIN,
            f"the {name} policy wins {rate:.2f} of the episodes, random play {by_chance:.2f}",
        )
        rates.append(f"{name} {rate:.2f}")
    return ", ".join(rates)


def _bad_inputs() -> Iterator[str]:
    yield from ("", " \n\t", "\\boxed{", "\\boxed{}", "\\boxed{ }", "}{", "\\boxed{\\boxed{1}}")
    yield from ("\x00", "\\boxed{\x00}", "\ud800", "\\boxed{\udfff}", "\\boxed{٣}", "\\boxed{²}")
    yield from ("\\boxed{" + "9" * 10_000 + "}", "\\boxed{" + "a" * 100_000 + "}", "x" * 100_000)
    yield from ("\\boxed{-0}", "\\boxed{1e9}", "\\boxed{nan}", "\\boxed{" * 1_000, "\\boxed{ß}")
    yield from ("\\boxed{" + "1 " * 50_000 + "}", "\\boxed{" + ", " * 50_000 + "}", "{" * 10_000)
    rng = stream(0)
    for _ in range(100):
        noise = rng.randbytes(rng.randint(1, 40))
        text = noise.decode(("utf-8", "latin-1")[rng.randrange(2)], "surrogateescape")
        yield f"\\boxed{{{text}}}" if rng.random() < 0.5 else text


def check_bad_input(subject: Subject) -> str:
    """Whatever a policy says is answered with a proper step."""
    env = subject.factory()
    done = True
    n = 0
    for n, action in enumerate(_bad_inputs(), start=1):
        if done:
            env.reset(seed=n)
        try:
            step = env.step(action)
        except Exception as error:
            raise FaultError(f"action {action!r:.60}: {describe(error)}") from error
        _require_step(step, f"action {action!r:.60}")
        done = step[2] or step[3]
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
            transcripts.append(transcript(env, _SEEDS, subject.max_steps))
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


CHECKS: tuple[Callable[[Subject], str], ...] = (
    check_contract,
    check_determinism,
    check_variety,
    check_processes,
    check_vector,
    check_snapshot,
    check_pickle,
    check_oracle,
    check_random,
    check_degenerate,
    check_bad_input,
    check_global_rng,
)
"""All checks, in the order in which they are reported."""

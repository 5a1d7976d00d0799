"""Checks of rewards and success rates: the oracle wins, policies that do not try do not."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

from gem.core import Env, Observation
from gem_check.playing import (
    Episode,
    Policy,
    answer_like,
    cpu_time,
    identity,
    oracle_policy,
    random_policy,
    shown,
)
from gem_check.playing import won as is_won
from gem_check.subject import FaultError, SkipCheck, Subject, require

MAX_ORACLE_TOLERANCE = 0.1
"""How far an oracle's success rate may be below its `oracle_success`, if that is below 1."""
MIN_FLOOR_MARGIN = 0.1
"""The oracle's success rate must be at least this much above that of random play, a degenerate
policy's at most this much."""
COIN = 0.5
"""Chance of choosing the right one of two answers in the prompt: not a leak."""

# A rate that looks too high is measured again with this many times as many episodes.
_CONFIRM = 4
_TOKEN = re.compile(r"[+-]?\d+(?:[./]\d+)?|[^\W\d_]+")
_MAX_TOKENS = 48


def check_oracle(subject: Subject) -> str:
    """The oracle wins the share `oracle_success` of starts, using only what it observed."""
    score = subject.oracle
    if not score.decided:
        raise SkipCheck(f"no episode ends within {subject.max_steps} turns")
    decided = [
        (seed, episode, floor)
        for seed, (episode, floor) in enumerate(zip(score.episodes, score.floors, strict=True))
        if episode.done
    ]
    for seed, episode, floor in decided:
        lost = floor == 1 and not episode.success
        require(not lost, f"lost seed {seed} after {len(episode.steps)} turns")
    n = len(decided)
    floor = sum(floor for _, _, floor in decided) / n
    rate = score.wins / n
    tolerance = max(MAX_ORACLE_TOLERANCE, 2 * _noise(floor, n)) if floor < 1 else 0
    require(rate >= floor - tolerance, f"wins {rate:.2f} of the episodes, it says {floor:.2f}")
    _require_honesty(subject)
    turns = max(len(episode.steps) for _, episode, _ in decided)
    short = f", {len(score.episodes) - n} not ended" if n < len(score.episodes) else ""
    named = f", oracle_success {floor:.2f}" if floor < 1 else ""
    return f"won {score.wins} of {n}{short}, at most {turns} turns{named}"


def _require_honesty(subject: Subject) -> None:
    """Require that the oracle acts the same in episodes that look the same.

    Exception: a question may be recorded twice with two right answers; each must then win in both
    episodes.
    """
    known: dict[Any, tuple[str, int]] = {}
    for seed, episode in enumerate(subject.oracle.episodes):
        history: tuple[str, ...] = (identity(episode.first),)
        for action, step in zip(episode.actions, episode.steps, strict=True):
            first_action, first_seed = known.setdefault(history, (action, seed))
            same = action == first_action
            if not same and len(episode.steps) == 1:
                env = subject.factory()
                env.reset(seed=seed)
                same = is_won(env.step(first_action))
            require(
                same,
                f"knows more than it observed: seeds {first_seed} and {seed} look the same up to "
                f"turn {len(history) // 2 + 1}, yet it plays {first_action!r} and {action!r}",
            )
            history = (*history, action, identity(step[0]))


def check_random(subject: Subject) -> str:
    """Random play wins clearly less often than the oracle.

    If the oracle hardly ever wins, or not within `max_steps`, it must at least earn more. In a seat
    of a game, where draws count and chance decides, mean returns are compared, seed by seed.
    """
    score = subject.random
    if subject.game is not None:
        gain, noise = _gain(subject, random_policy)
        require(gain > noise, f"the oracle earns {gain:.2f} more than random play, +-{noise:.2f}")
        return f"the oracle earns {gain:.2f} more than random play, +-{noise:.2f}"
    ceiling = 1.0
    with contextlib.suppress(SkipCheck):
        oracle = subject.oracle
        share = sum(oracle.floors) / len(oracle.floors)
        ceiling = max(share, oracle.wins / max(1, oracle.decided))
        if not oracle.decided or ceiling <= MIN_FLOOR_MARGIN:
            best, by_chance = oracle.mean_return, score.mean_return
            require(best > by_chance, f"the oracle earns {best:.2f}, random play {by_chance:.2f}")
            return f"random play earns {by_chance:.2f}, the oracle {best:.2f}"
    if score.rate > ceiling - MIN_FLOOR_MARGIN:
        score = subject.measure(random_policy, times=_CONFIRM)
        require(
            score.rate <= ceiling - MIN_FLOOR_MARGIN,
            f"random play already wins {score.rate:.2f} of the episodes",
        )
    return f"random play wins {score.rate:.2f}"


def check_degenerate(subject: Subject) -> str:
    """Policies that do not try win no more often than random play.

    In a seat of a game, where a simple policy can be a good one, none earns more than the oracle.
    """
    rates = []
    for name, make_policy in _degenerate_policies(subject).items():
        if subject.game is not None:
            gain, noise = _gain(subject, make_policy())
            require(gain >= -noise, f"the {name} policy earns {-gain:.2f} more than the oracle")
            rates.append(f"{name} {-gain:+.2f}")
            continue
        by_chance, score = subject.random, subject.measure(make_policy())
        if score.rate > by_chance.rate + MIN_FLOOR_MARGIN:
            by_chance = subject.measure(random_policy, times=_CONFIRM)
            score = subject.measure(make_policy(), times=_CONFIRM)
            n = min(len(score.episodes), len(by_chance.episodes))
            noise = 2 * math.sqrt(2) * _noise((score.rate + by_chance.rate) / 2, n)
            require(
                score.rate <= by_chance.rate + MIN_FLOOR_MARGIN + noise,
                f"the {name} policy wins {score.rate:.2f} of the episodes, "
                f"random play {by_chance.rate:.2f}",
            )
        rates.append(f"{name} {score.rate:.2f}")
    return ", ".join(rates)


def _gain(subject: Subject, policy: Policy) -> tuple[float, float]:
    """Return how much more the oracle earns than a policy on the same seeds, and two its error."""
    for times in (1, _CONFIRM):
        try:
            scores = [subject.measure(each, times=times) for each in (oracle_policy, policy)]
        except NotImplementedError:
            raise SkipCheck("no oracle_action() to compare with") from None
        returns = [[episode.total_reward for episode in score.episodes] for score in scores]
        gains = [best - other for best, other in zip(*returns, strict=False)]
        gain = sum(gains) / len(gains)
        squares = sum((each - gain) ** 2 for each in gains)
        noise = 2 * math.sqrt(squares / max(1, len(gains) - 1) / len(gains))
        if gain > noise:
            break
    return gain, noise


def _degenerate_policies(subject: Subject) -> dict[str, Callable[[], Policy]]:
    constant = subject.random.episodes[0].actions[0]
    junk = answer_like(constant, "?")

    def prompt_copier() -> Policy:
        prompt: Observation = ""
        rng: object = None

        def copy(env: Env, observation: Observation) -> str:
            nonlocal prompt, rng
            if env.rng is not rng:
                prompt, rng = observation, env.rng
            return shown(prompt)

        return copy

    return {
        "null": lambda: lambda env, observation: "",
        "constant": lambda: lambda env, observation: constant,
        "echo": lambda: lambda env, observation: shown(observation),
        "prompt copy": prompt_copier,
        "format only": lambda: lambda env, observation: junk,
    }


def check_leak(subject: Subject) -> str:
    """Answering with numbers and words of the prompt wins no more often than chance.

    In an environment of several turns the tokens are tried one after the other. In one of a single
    turn the answer may be in the prompt, but not always at the same place.
    """
    if subject.game is not None:
        raise SkipCheck("a match has no solution; the check `secrets` is about what agents hide")
    single = all(len(episode.steps) == 1 for episode in subject.random.episodes)
    floor = max(subject.random.rate, COIN if single else 0.0) + MIN_FLOOR_MARGIN
    for times in (1, _CONFIRM):
        places, in_turn, n = _token_wins(subject, times, single)
        rate = max(places.values(), default=0) / n if single else in_turn / n
        noise = 2 * _noise(rate, n) if times > 1 else 0.0
        if rate <= floor + noise:
            return f"tokens of the prompt win {rate:.2f}"
    what = "giving tokens of the prompt"
    if single:
        place = max(places, key=lambda p: places[p])
        what = f"always giving token {place + 1 if place >= 0 else place} of the prompt"
    raise FaultError(f"{what} wins {rate:.2f} of the episodes")


def _token_wins(subject: Subject, times: int, single: bool) -> tuple[dict[int, int], int, int]:
    """Return wins by place in the prompt (negative: from its end), wins in turn, episodes."""
    env = subject.factory()
    example = subject.random.episodes[0].actions[0]
    places: dict[int, int] = {}
    in_turn = 0
    episodes = min(times * subject.episodes, times * len(subject.random.episodes))
    n = 0
    began = cpu_time()
    most = _MAX_TOKENS if len(subject.seeds) >= 4 else _MAX_TOKENS // 6
    for n in range(1, episodes + 1):
        observation, _ = env.reset(seed=n - 1)
        tokens = list(dict.fromkeys(_TOKEN.findall(shown(observation))))
        if len(tokens) > most:
            tokens = tokens[: most // 2] + tokens[-most // 2 :]
        state = env.snapshot()
        readable = []
        for place, token in enumerate(tokens):
            env.restore(state)
            step = env.step(answer_like(example, token))
            if not step[4].get("format_error", False):
                readable.append(token)
            if is_won(step) and (step[2] or step[3]):
                for at in (place, place - len(tokens)):
                    places[at] = places.get(at, 0) + 1
        if not single and readable:
            env.restore(state)
            in_turn += _won_in_turn(env, example, readable, subject.max_steps)
        if n >= 4 and cpu_time() - began > times * subject.cpu_s:
            break
    return places, in_turn, n


def _won_in_turn(env: Env, example: str, tokens: list[str], max_steps: int) -> bool:
    for turn in range(max_steps):
        step = env.step(answer_like(example, tokens[turn % len(tokens)]))
        if step[2] or step[3]:
            return is_won(step)
    return False


def played(subject: Subject) -> list[Episode]:
    """Return the episodes of random play and, if there is one, of the oracle."""
    with contextlib.suppress(SkipCheck):
        return [*subject.random.episodes, *subject.oracle.episodes]
    return subject.random.episodes


def check_rewards(subject: Subject) -> str:
    """No episode pays more than `max_return`, and no lost one as much as the best won one."""
    episodes = played(subject)
    paid = [step[1] for episode in episodes for step in episode.steps]
    limit = subject.max_return + 1e-9
    remedy = (
        f"more than max_return={subject.max_return:g}; scale the rewards, or say what an episode "
        "may pay: check_env(..., max_return=...), gem check --max-return"
    )
    largest = max(paid, key=abs)
    require(abs(largest) <= limit, f"a step pays {largest:g}, {remedy}")
    returns = [episode.total_reward for episode in episodes]
    require(max(returns) <= limit, f"an episode pays {max(returns):g}, {remedy}")
    won = [episode.total_reward for episode in episodes if episode.success]
    lost = [episode.total_reward for episode in episodes if episode.done and not episode.success]
    if won and lost:
        best, consolation = max(won), max(lost)
        require(
            consolation < best, f"a lost episode pays {consolation:g}, the best won one {best:g}"
        )
    return f"returns from {min(returns):g} to {max(returns):g}"


def check_agreement(subject: Subject) -> str:
    """The prompt names the answer format that the grader reads, and that format alone suffices."""
    env = subject.factory()
    for seed in subject.seeds:
        observation, _ = env.reset(seed=seed)
        prompt = shown(observation)
        state = env.snapshot()
        for example in _examples(prompt):
            env.restore(state)
            info = env.step(example)[4]
            require(
                not info.get("format_error", False),
                f"seed {seed}: the prompt's own example {example!r:.60} is a format error",
            )
        env.restore(state)
        try:
            action = env.oracle_action()
        except NotImplementedError:
            action = env.sample_random_action()
        form, named, bare = _form(action)
        require(
            not named or any(name in prompt.casefold() for name in named),
            f"seed {seed}: the answer is read from {form}, which the prompt does not name",
        )
        env.restore(state)
        whole = env.step(action)
        env.restore(state)
        alone = env.step(bare)
        require(
            alone[1:4] == whole[1:4],
            f"seed {seed}: {bare!r:.60} alone is not the answer that {action!r:.60} is",
        )
    return f"the answer is read from {form}"


def _examples(prompt: str) -> Iterator[str]:
    """Yield the boxed examples of a prompt, without empty boxes, dots and placeholders."""
    for content in dict.fromkeys(re.findall(r"\\boxed\{([^{}]*)\}", prompt)):
        if content.strip(" .…") and not re.fullmatch(r"<.*>|your.*", content.strip(), re.I):
            yield f"\\boxed{{{content}}}"


def _form(action: str) -> tuple[str, tuple[str, ...], str]:
    """Return an answer's format, the names that prompts have for it, and the answer alone."""
    start = action.rfind("\\boxed")
    if start >= 0:
        return "\\boxed{}", ("\\boxed",), action[start:]
    start, end = action.rfind("<answer>"), action.rfind("</answer>")
    if 0 <= start < end:
        return "<answer>", ("<answer>",), action[start : end + len("</answer>")]
    start, end = action.find("```"), action.rfind("```")
    if 0 <= start < end:
        return "a code block", ("```", "code block", "fenced"), action[start : end + 3]
    return "the whole text", (), action


def check_throughput(subject: Subject) -> str:
    """Steps per CPU second and time of a reset, for information."""
    env = subject.factory()
    steps, stepping, resetting, resets = 0, 0.0, 0.0, 0
    began = cpu_time()
    while cpu_time() - began < min(0.05, subject.cpu_s) or not steps:
        seed = resets % len(subject.random.episodes)
        actions = subject.random.episodes[seed].actions
        start = cpu_time()
        env.reset(seed=seed)
        middle = cpu_time()
        for action in actions:
            env.step(action)
        end = cpu_time()
        resetting, stepping = resetting + middle - start, stepping + end - middle
        steps, resets = steps + len(actions), resets + 1
    rate = steps / max(stepping, 1e-9)
    return f"{rate:,.0f} steps per CPU second, {1e3 * resetting / resets:.2g} ms a reset"


def _noise(rate: float, n: int) -> float:
    """Return the standard error of a rate measured in `n` episodes."""
    rate = min(max(rate, 1 / (n + 1)), n / (n + 1))
    return math.sqrt(rate * (1 - rate) / n)

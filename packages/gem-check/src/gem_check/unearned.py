"""The check `unearned`: what a policy can earn that seeks reward without success."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gem.core import Env, Step, Wrapper
from gem.wrappers import ToolEnv
from gem_check.playing import answer_like, cpu_time, won
from gem_check.scores import played
from gem_check.subject import SkipCheck, Subject, require

# Random actions tried in every turn.
_SAMPLES = 3
_EPSILON = 1e-9


def check_unearned(subject: Subject) -> str:
    """No episode that is not won pays more than a won one does on average.

    The return without success is the best of random play and of a greedy player. In every turn that
    player tries calls of every tool, random actions, the last action, an empty one and junk, and
    takes the one with the highest reward that does not win.

    The first episode is always played to its end. It starts the tools; the CPU time counts from
    there.
    """
    episodes = played(subject)
    paid = [episode.total_reward for episode in episodes if episode.success]
    if not paid:
        raise SkipCheck("no episode was won to compare with")
    success = sum(paid) / len(paid)
    lost = [episode.total_reward for episode in episodes if not episode.success]
    best, how = max(lost, default=-float("inf")), "random play"
    began: float | None = None
    searched = 0
    for seed in subject.seeds:
        if began is not None and cpu_time() - began > subject.cpu_s:
            break
        found = _collect(subject, seed)
        if found is not None and found[0] > best:
            best, how = found
        searched += 1
        began = cpu_time() if began is None else began
    require(
        best <= success + _EPSILON,
        f"an episode that is not won pays {best:g} ({how}), a won one {success:g}: "
        "a policy learns to collect that; pay less for what is not success",
    )
    if searched < len(subject.seeds):
        raise SkipCheck(
            f"{subject.cpu_s:g} s of CPU time ended the search after {searched} of "
            f"{len(subject.seeds)} episodes, in which {best:g} was paid at most without success, "
            f"{success:g} with it; raise cpu_s (--cpu-s)"
        )
    if best == -float("inf"):
        return "no episode was lost"
    return f"{best:g} at most without success, {success:g} with it"


def _collect(subject: Subject, seed: int) -> tuple[float, str] | None:
    """Play greedily; return the return without success and its actions, None if all actions win."""
    env = subject.factory()
    env.reset(seed=seed)
    example = answer_like(env.sample_random_action(), "?")
    total, counts, last = 0.0, Counter[str](), ""
    for _ in range(subject.max_steps):
        state = env.snapshot()
        best: tuple[float, bool, str] | None = None
        for action in dict.fromkeys(_candidates(env, last, example)):
            step = env.step(action)
            env.restore(state)
            over = step[2] or step[3]
            if over and won(step):
                continue
            value = float(step[1]), not over, action
            if best is None or value[:2] > best[:2]:
                best = value
        if best is None:
            # Every action wins here.
            return None
        last = best[2]
        step = env.step(last)
        total += step[1]
        counts[_kind(step)] += 1
        if step[2] or step[3]:
            break
    return total, ", ".join(f"{n} x {kind}" for kind, n in counts.items())


def _candidates(env: Env, last: str, junk: str) -> Iterator[str]:
    yield from _calls(env)
    for _ in range(_SAMPLES):
        yield env.sample_random_action()
    yield last
    yield ""
    yield junk


def _calls(env: Env) -> Iterator[str]:
    """Yield a call or two of each tool: any call earns the reward for calls."""
    while isinstance(env, Wrapper):
        for tool in env.tools if isinstance(env, ToolEnv) else ():
            named = [f"<{name}>0</{name}>" for name in tool.names]
            # A tool's instruction usually contains an example call.
            yield from [text for text in (*named, tool.instruction()) if tool.parse(text)][:2]
        if isinstance(env, ToolEnv):
            yield "<tool_call>{}</tool_call>"
        env = env.env


def _kind(step: Step) -> str:
    return f"call of {step[4]['tool_type'] or 'no tool'}" if step[4].get("use_tool") else "action"

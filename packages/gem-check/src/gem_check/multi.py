"""Checks of games of several agents, beside those of their seats: `agents` and `secrets`.

They play the game itself, all of its seats.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from gem.core import Observation
from gem.errors import ConfigurationError, ResetNeededError
from gem.fingerprint import canonical
from gem.foreign import contained
from gem.multi import MultiAgentEnv, MultiStep, check_multi_reset, check_multi_step
from gem.seeding import stream
from gem_check.playing import answer_like, shown
from gem_check.subject import FaultError, SkipCheck, Subject, describe, require

Actions: TypeAlias = dict[str, str]

# What an agent writes around its action; nobody else may see it.
_PRIVATE = "zqx-{agent}-thinks"
_RESAMPLED = 3
_STARTS = 64


def check_agents(subject: Subject) -> str:
    """As a game of several agents it keeps the contract of `MultiAgentEnv`, in all of its seats."""
    game = _game(subject)
    require(
        len(set(game.agents)) == len(game.agents) > 1,
        f"agents must be two or more different names, got {game.agents}",
    )
    _require_error(ResetNeededError, lambda: game.spawn().step({}), "before reset()")
    steps = 0
    for seed in subject.seeds:
        asked: dict[str, Observation] = {}
        played: list[Actions] = []
        told: list[Any] = []
        for asked, actions, step in _match(game, seed, subject.max_steps):
            if not played:
                _require_refusals(game.spawn(), seed, asked)
            played.append(actions)
            told.append(_facts(step))
            total = sum(step.rewards.values())
            require(
                not game.zero_sum or abs(total) < 1e-9,
                f"seed {seed}: zero_sum, yet the rewards of a step add up to {total:g}",
            )
        steps += len(played)
        if step.terminated or step.truncated:
            _require_error(ResetNeededError, partial(game.step, actions), "after the end")
        _require_same(game, seed, played, told)
        _require_end(game, seed, subject.max_steps)
    oracle = "an oracle" if _has_oracle(game, subject) else "no oracle"
    return f"{len(game.agents)} agents, {steps} steps, {oracle}"


def check_secrets(subject: Subject) -> str:
    """Agents see nothing that is hidden from them: neither others' secrets nor their words.

    At every turn, what is hidden from an agent is drawn anew, which must not change `render` for
    it, nor its oracle's draw. Then the same actions are played on: as long as `render` is the same,
    observations must be. The first observations must be the same wherever `render` is.
    """
    game = _game(subject)
    compared, hidden = 0, False
    for seed in subject.seeds:
        match = list(_match(game, seed, subject.max_steps))
        for _, _, step in match if not game.public_text else ():
            _require_own_words(game, seed, step)
        for turn in range(len(match)):
            for agent in game.agents:
                for draw in range(_RESAMPLED):
                    here = _at(game, seed, [actions for _, actions, _ in match[:turn]])
                    twin = here.spawn(same_state=True)
                    try:
                        if not twin.resample(agent, stream(seed, turn, draw)):
                            break
                    except NotImplementedError:
                        raise SkipCheck("needs resample()") from None
                    hidden = True
                    where = f"seed {seed}, turn {turn + 1}"
                    compared += _compared(here, twin, match[turn:], agent, where)
    if not hidden:
        return "nothing is hidden from any agent"
    starts = _require_first_observations(game)
    return f"{compared} observations with what is hidden drawn anew, {starts} first ones"


def _require_own_words(game: MultiAgentEnv, seed: int, step: MultiStep) -> None:
    for agent, seen in step.observations.items():
        for other in game.agents:
            require(
                other == agent or _PRIVATE.format(agent=other) not in shown(seen),
                f"seed {seed}: {agent} is shown the words of {other} around its action; "
                "if that is meant, say so: public_text = True",
            )


def _compared(
    here: MultiAgentEnv,
    twin: MultiAgentEnv,
    rest: Sequence[tuple[Mapping[str, Observation], Actions, MultiStep]],
    agent: str,
    where: str,
) -> int:
    """Play a match on in a twin; compare what the agent is shown. Return how many observations."""
    seen = [env.render(agent) for env in (here, twin)]
    require(seen[0] == seen[1], f"{where}: render({agent!r}) shows what is hidden: {seen[0]!r:.99}")
    if agent in rest[0][0]:
        moves = [_oracle(env, agent) for env in (here, twin)]
        require(
            moves[0] == moves[1], f"{where}: the oracle of {agent} knows what is hidden from it"
        )
    count = 0
    for _, actions, step in rest:
        here.step(actions)
        try:
            other = twin.step(actions)
        except (ConfigurationError, ResetNeededError):
            raise FaultError(f"{where}: who acts depends on what is hidden from {agent}") from None
        if here.render(agent) != twin.render(agent):
            # An action has found out something; from here on the next turn's draw is compared.
            break
        if agent in step.observations or agent in other.observations:
            count += 1
            told = [canonical(each.observations.get(agent, "")) for each in (step, other)]
            require(
                told[0] == told[1],
                f"{where}: {agent} sees what is hidden from it: {told[0]!r:.99} or {told[1]!r:.99}",
            )
    return count


def _require_first_observations(game: MultiAgentEnv) -> int:
    """Require that first observations show nothing that `render` does not; return how many."""
    known: dict[tuple[str, str], Any] = {}
    for seed in range(_STARTS):
        observations, _ = game.reset(seed=seed)
        for agent, seen in observations.items():
            told = canonical(seen)
            first = known.setdefault((agent, game.render(agent)), told)
            require(
                first == told,
                f"seed {seed}: {agent} is shown more at first than render() knows: "
                f"{told!r:.99} or {first!r:.99}",
            )
    return _STARTS


def _oracle(env: MultiAgentEnv, agent: str) -> str:
    try:
        return env.oracle_action(agent, stream(0))
    except NotImplementedError:
        return ""


def _game(subject: Subject) -> MultiAgentEnv:
    if subject.game is None:
        raise SkipCheck("one agent")
    # The subject's own is cached: no check may leave a match in it.
    return subject.game.spawn()


def _match(
    game: MultiAgentEnv, seed: int, max_steps: int
) -> Iterator[tuple[dict[str, Observation], Actions, MultiStep]]:
    """Play randomly; yield who was asked, their actions with words around them, and the step."""
    observations, _ = check_multi_reset(game, game.reset(seed=seed))
    for _ in range(max_steps):
        actions = {
            agent: f"{_PRIVATE.format(agent=agent)} {game.sample_random_action(agent)}"
            for agent in observations
        }
        step = check_multi_step(game, game.step(actions))
        for agent in actions:
            for flag in ("format_error", "invalid_action"):
                require(
                    not step.infos[agent].get(flag, False),
                    f"seed {seed}: a random action of {agent} has {flag}: {actions[agent]!r:.80}",
                )
        yield observations, actions, step
        observations = step.observations
        if not observations:
            return


def _at(game: MultiAgentEnv, seed: int, played: list[Actions]) -> MultiAgentEnv:
    """Return a new game in which these actions were played."""
    fresh = game.spawn()
    fresh.reset(seed=seed)
    for actions in played:
        fresh.step(actions)
    return fresh


def _facts(step: MultiStep) -> Any:
    """Return a step as values that can be compared."""
    seen = {agent: canonical(each) for agent, each in step.observations.items()}
    results = {agent: str(info.get("result")) for agent, info in step.infos.items()}
    return seen, step.rewards, step.terminated, step.truncated, results


def _require_same(game: MultiAgentEnv, seed: int, played: list[Actions], told: list[Any]) -> None:
    """Require the same match again, and from copies in its middle."""
    half = len(played) // 2
    middle = _at(game, seed, played[:half])
    copies = {
        "the same seed and actions": _at(game, seed, played[:half]),
        "a snapshot": game.spawn(),
        "spawn(same_state=True)": middle.spawn(same_state=True),
        "pickle": pickle.loads(pickle.dumps(middle)),
    }
    copies["a snapshot"].restore(middle.snapshot())
    for name, copy in copies.items():
        again = [_facts(copy.step(actions)) for actions in played[half:]]
        require(again == told[half:], f"seed {seed}: {name} gives another match")


def _require_refusals(game: MultiAgentEnv, seed: int, asked: Mapping[str, Observation]) -> None:
    """Require that actions of others than those who were asked are errors that change nothing."""
    game.reset(seed=seed)
    actions = {agent: game.sample_random_action(agent) for agent in asked}
    wrong = {"of nobody": {}, "of an unknown agent": {**actions, "nobody at all": ""}}
    for other in set(game.agents) - set(asked):
        wrong[f"of {other}, who was not asked,"] = {**actions, other: next(iter(actions.values()))}
    if len(asked) > 1:
        wrong["of some of those who were asked"] = dict([next(iter(actions.items()))])
    before = game.snapshot()
    for what, given in wrong.items():
        _require_error(ConfigurationError, partial(game.step, given), f"actions {what}")
    require(game.snapshot() == before, "a refused step changes the match")


def _require_error(kind: type[Exception], call: Callable[[], Any], when: str) -> None:
    try:
        call()
    except kind:
        return
    except BaseException as error:
        what = describe(contained(error))
        raise FaultError(f"step() {when} must raise {kind.__name__}, not {what}") from None
    raise FaultError(f"step() {when} must raise {kind.__name__}, it went on")


def _require_end(game: MultiAgentEnv, seed: int, max_steps: int) -> None:
    """Require that agents that only write junk come to an end, or `max_steps`, without errors."""
    observations, _ = game.reset(seed=seed)
    example = game.sample_random_action(next(iter(observations)))
    for turn in range(max_steps):
        junk = ("", answer_like(example, "?"), "\\boxed{" * 9, answer_like(example, "9" * 999))
        try:
            step = game.step(dict.fromkeys(observations, junk[turn % len(junk)]))
            check_multi_step(game, step)
        except BaseException as error:
            what = describe(contained(error))
            raise FaultError(f"seed {seed}, an illegal move: {what}") from None
        observations = step.observations
        if not observations:
            return


def _has_oracle(game: MultiAgentEnv, subject: Subject) -> bool:
    """Play the oracle in all seats; its actions must be legal. False if there is none."""
    for seed in subject.seeds:
        observations, _ = game.reset(seed=seed)
        for _ in range(subject.max_steps):
            try:
                actions = {agent: game.oracle_action(agent) for agent in observations}
            except NotImplementedError:
                return False
            step = game.step(actions)
            for agent in actions:
                illegal = step.infos[agent].get("invalid_action", False)
                require(not illegal, f"seed {seed}: the oracle of {agent} plays {actions[agent]!r}")
            observations = step.observations
            if not observations:
                break
    return True

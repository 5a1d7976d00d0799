"""Retail as a conversation of two agents: the one who serves, and the user, who may be a policy."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import ClassVar, NamedTuple

from gem.core import Info, Observation, Step
from gem.errors import ConfigurationError
from gem.multi import MultiAgentEnv, MultiStep, Opponent, require_asked
from gem.parameters import flag
from gem_tau.llm_user import scenario
from gem_tau.oracle import MESSAGES, next_action, proposal, random_call
from gem_tau.retail import CONSENT, ENDS, Retail
from gem_tau.retail_gen import RetailGen
from gem_tau.scripted import GREETING, STOP, Scene, ScriptedUser

AGENT, USER = "agent", "user"
_FLAGS = {"success": False, "format_error": False, "invalid_action": False}
_REPLIES = ("Yes, please go ahead.", "No.", "I do not know.", "What do you need?")


class Relay:
    """The user whose words are given from outside."""

    said = ""

    def opening(self, scene: Scene) -> str:
        """Return what was given."""
        return self.said

    def reply(self, scene: Scene, message: str) -> str:
        """Return what was given."""
        return self.said


class Heard(NamedTuple):
    """What the scripted agent has understood of the user."""

    identified: bool
    confirmed: tuple[int, ...]


def _scripted(game: MultiAgentEnv, agent: str, observation: Observation, rng: Random) -> str:
    return game.best_response(agent, "scripted")


class RetailSeats(MultiAgentEnv):
    """TAU-bench retail with the user as a second agent: both share the reward.

    The user is told its scenario and speaks first; then the agent calls tools or writes messages,
    see `Retail`, and the user is asked after each message. It ends the conversation with
    `###STOP###`. Both see each other's messages whole, never the agent's calls. Both get 1.0 at the
    end if the agent has done what is right, else 0.0.

    `opponent="scripted"`, the default, plays either seat: the scripted user of `Retail`, and an
    agent that asks who the user is, asks for consent to each recorded write, and makes it if the
    user consents.
    """

    agents = (AGENT, USER)
    public_text = True
    opponents: ClassVar[Mapping[str, Opponent]] = {"scripted": _scripted}
    default_opponent = "scripted"

    def __init__(
        self,
        *,
        generated: bool = False,
        split: str = "base",
        semantics: str = "fixed",
        max_turns: int = 30,
        max_errors: int | None = 10,
        seed: int | None = None,
    ) -> None:
        """Store the parameters; see `Retail`.

        Args:
            generated: Tasks of `RetailGen` instead of the benchmark's.
            split: Of the benchmark's tasks: `base` (all), `train`, `test` or `clean`.
            semantics: `fixed` or `upstream`.
            max_turns: The agent's turns after which the match is truncated.
            max_errors: Refused or unreadable calls after which it is truncated; None for no limit.
            seed: Seed of the first `reset` that is not given one.

        Raises:
            ConfigurationError: A value is not allowed.
        """
        super().__init__(seed=seed)
        if flag("generated", generated) and split != "base":
            raise ConfigurationError(
                f"split={split!r} is of the benchmark's tasks: give generated=False, or leave "
                "split out"
            )
        limits = {"semantics": semantics, "max_turns": max_turns, "max_errors": max_errors}
        self.retail: Retail = (
            RetailGen(**limits)  # type: ignore[arg-type]
            if generated
            else Retail(split=split, **limits)  # type: ignore[arg-type]
        )
        self._relay = self.retail.user = Relay()
        self.asked: tuple[str, ...] = ()

    def reset(self, seed: int | None = None) -> tuple[dict[str, Observation], dict[str, Info]]:
        """Begin a conversation; the user is asked first."""
        self.begin_episode(seed)
        self._relay.said = ""
        self.retail.seek(*self.episode_key)
        self.retail.reset()
        # What the scripted user would say, whoever plays it.
        self._script = ScriptedUser()
        self._answer = self._script.opening(self.retail.scene)
        self._message: str | None = None
        self.asked = (USER,)
        first = f"{scenario(self.retail.task)}\n\n# Agent\n\n{GREETING}"
        return {USER: first}, {agent: {} for agent in self.agents}

    def step(self, actions: Mapping[str, str]) -> MultiStep:
        """Let the agent or the user act; see `MultiAgentEnv.step`."""
        require_asked(self, self.asked, actions)
        [(who, text)] = actions.items()
        text = text.encode("utf-8", "replace").decode("utf-8")
        if who == AGENT:
            if "<tool_call>" in text:
                return self._told(self.retail.step(text))
            return self._ask_user(text)
        self._relay.said = text
        if self._message is not None or any(end in text for end in ENDS):
            return self._told(self.retail.step(self._message or ""))
        self.retail.heard = text
        return self._next(AGENT, self.retail.first_observation())

    def _ask_user(self, message: str) -> MultiStep:
        scene = self.retail.scene
        said = self.retail.credited(message)
        missing = [each for each in scene.missing if each not in said]
        self._answer = self._script.reply(scene._replace(missing=missing), message)
        self._message = message
        return self._next(USER, message or "(no message)")

    def _next(self, who: str, observation: Observation) -> MultiStep:
        self.asked = (who,)
        infos: dict[str, Info] = {agent: dict(_FLAGS) for agent in self.agents}
        return MultiStep({who: observation}, dict.fromkeys(self.agents, 0.0), False, False, infos)

    def _told(self, step: Step) -> MultiStep:
        """Return the agent's step as one of the match."""
        observation, reward, terminated, truncated, info = step
        infos: dict[str, Info] = {AGENT: info, USER: {**_FLAGS, "success": info["success"]}}
        rewards = dict.fromkeys(self.agents, reward)
        if terminated or truncated:
            self.asked = ()
            infos[AGENT] |= {"result": observation}
            infos[USER]["result"] = "The conversation is over."
            return MultiStep({}, rewards, terminated, truncated, infos)
        self.asked = (AGENT,)
        return MultiStep({AGENT: observation}, rewards, False, False, infos)

    def sample_random_action(self, agent: str, rng: Random | None = None) -> str:
        """Return a random call or message of the agent, or a message of the user."""
        _ = self.episode_key
        rng = rng or self.action_rng
        if agent == USER:
            return rng.choice((*_REPLIES, STOP, self._answer))
        name = rng.choice([*self.retail.tool_names, ""])
        return random_call(name, self.retail.gold.user_id, rng) if name else rng.choice(MESSAGES)

    def oracle_action(self, agent: str, rng: Random | None = None) -> str:
        """Return what the scripted user says.

        Raises:
            NotImplementedError: For the agent: what it knows does not decide what is right.
        """
        _ = self.episode_key
        if agent == USER:
            return self._answer
        raise NotImplementedError("RetailSeats has no oracle of the agent against any user")

    def best_response(self, agent: str, opponent: str) -> str:
        """Return the scripted action; that of the agent knows the recorded calls."""
        _ = self.episode_key
        if agent == USER:
            return self._answer
        scene, heard = self.retail.scene, self.retail.heard
        confirmed: tuple[int, ...] = ()
        if scene.pending and CONSENT.search(heard):
            place = scene.pending[0]
            if self._message == proposal(scene.gold.writes[place]):
                confirmed = (place,)
        known = Heard(scene.task.identified or self.retail.user_turns > 0, confirmed)
        return next_action(scene, known, self.retail.identified, self.retail.tried)

    def resample(self, agent: str, rng: Random) -> bool:
        """Give the user another task, which the agent knows by the user's words alone."""
        if agent == USER:
            return False
        self.retail.redraw(rng)
        return True

    def render(self, agent: str) -> str:
        """Return what the agent has heard last, or the user's scenario and what it heard last."""
        _ = self.episode_key
        turn = f"turn {self.retail.turn} of {self.retail.max_turns}"
        if agent == AGENT:
            return f"RetailSeats, agent, {turn}\nuser: {self.retail.heard}"
        return (
            f"RetailSeats, user\n{scenario(self.retail.task)}\nagent: {self._message or GREETING}"
        )

    def _forget(self) -> None:
        self.asked = ()

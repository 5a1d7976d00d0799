"""Any environment as a conversation: only the user is told the task, only the agent can act."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar

import gem
from gem.contract import shown
from gem.core import Env, Info, Observation
from gem.errors import ConfigurationError
from gem.grading.braces import boxed_texts
from gem.multi import MultiAgentEnv, MultiStep, Opponent, require_asked
from gem.parameters import integer, text
from gem_tau.scripted import STOP

AGENT, USER = "agent", "user"
_ACTION = re.compile(r"<action>(.*?)</action>", re.DOTALL)
_TAG = re.compile(r"</?action>")
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
_MORE, _ALL = "What else should I know?", "That is all that I know."
_FLAGS = {"success": False, "format_error": False, "invalid_action": False}

_AGENT_RULES = """You help a user with a task that you know only from what the user tells you.

Each of your turns is either one action or one message to the user, never both.
An action is <action>...</action>; you are shown its result, the user is not. {form}\
Everything else is a message to the user."""
_BOXED = r"If the action is an answer, write it as <action>\boxed{answer}</action>. "

_USER_RULES = """You are the user in a conversation with an assistant, who shall do the task below \
for you. The assistant knows of it only what you say. Write what the user says next, nothing else.

- Speak in the first person and in your own words, one short message at a time.
- Begin with what you want. Give details when you are asked for them; numbers, names and texts \
that the task gives exactly as they are.
- What the task does not say, you do not know. Do not solve the task, and do not judge a result.
- The assistant acts between <action> and </action>, where you see nothing. Never write these marks.
- Write {stop} when the assistant is done or can do no more for you.

# Task

{task}

# Assistant

Hi! How can I help you today?"""
_FAULTS = {
    "silent": "it is empty",
    "acts": "it has the marks of an action, which only the assistant may write",
    "solves": "it says what the task does not say",
}


def _scripted(game: MultiAgentEnv, agent: str, observation: Observation, rng: Random) -> str:
    return game.best_response(agent, "scripted")


class UserTask(MultiAgentEnv):
    r"""Any environment of one agent as a conversation with a user, who alone is told the task.

    The user is told the environment's first observation and speaks first. In each turn the agent
    writes one action, `<action>...</action>`, and is shown what the environment answers, or it
    writes a message, and is shown what the user says. Both get the environment's rewards. The
    match ends when the environment's episode does, or when the user writes `###STOP###`.

    `opponent="scripted"`, the default, plays the user with the task's own paragraphs (the sentences
    of a single one): the first, then one more for each message. With a model's address as
    `opponent`, the model plays it (`gem.seat`); a server that fails voids the episode. What a user
    does wrong is told apart: it says nothing; it writes an action; or it says the answer of a task
    that one action solves, before the agent has acted or anybody has named it. Such a message is
    not passed on, and the user is asked again. After `retries` in a row the match is truncated, and
    the agent keeps its rewards.

    The agent's last info has `user_turns`, `user_faults` (messages that were not passed on), and
    whether the user ended the match, by its word (`user_ended`) or by its faults (`user_failed`).

    Attributes:
        inner: The environment that the agent acts in.
        faults: How often each kind of fault occurred: `silent`, `acts`, `solves`.
    """

    agents = (AGENT, USER)
    public_text = True
    opponents: ClassVar[Mapping[str, Opponent]] = {"scripted": _scripted}
    default_opponent = "scripted"

    def __init__(
        self,
        task: str = "game:GuessTheNumber-v0",
        params: Mapping[str, Any] | None = None,
        *,
        form: str | None = None,
        max_turns: int = 30,
        retries: int = 2,
        seed: int | None = None,
    ) -> None:
        r"""Make the environment.

        Args:
            task: Id of an environment whose observations are texts.
            params: Parameters of that environment.
            form: What the agent is told about the form of actions. None: how to box an answer if
                the task's first observation has `\boxed`, else nothing.
            max_turns: The agent's turns after which the match is truncated.
            retries: Faulty messages in a row after which the user is asked again.
            seed: Seed of the first `reset` that is not given one.

        Raises:
            ConfigurationError: A value is not allowed, or the task cannot be made.
        """
        super().__init__(seed=seed)
        if params is not None and not isinstance(params, Mapping):
            raise ConfigurationError(f"params must be a table of parameters, got {params!r}")
        self.inner: Env = gem.make(text("task", task), **params or {})
        self.replayable = self.inner.replayable
        self.form = form if form is None else text("form", form)
        self.max_turns = integer("max_turns", max_turns, 1, 1000)
        self.retries = integer("retries", retries, 0, 10)
        self.asked: tuple[str, ...] = ()

    def reset(self, seed: int | None = None) -> tuple[dict[str, Observation], dict[str, Info]]:
        """Begin a conversation; the user is asked first."""
        self.begin_episode(seed)
        self.inner.seek(*self.episode_key)
        task, _ = self.inner.reset()
        if not isinstance(task, str):
            raise ConfigurationError(
                f"{self.inner!r} shows images, which a user cannot tell an agent"
            )
        self.task = task
        self.turn = self.user_turns = 0
        self.acted = self.ended = self.failed = False
        self.faults: Counter[str] = Counter()
        self._in_a_row = 0
        self._said: list[str] = []
        self._shown: Observation = ""
        self._answer, *self._untold = _pieces(task)
        self._solution = self._solving_answer()
        self.asked = (USER,)
        first = _USER_RULES.format(stop=STOP, task=task)
        self._heard = first
        return {USER: first}, {agent: {} for agent in self.agents}

    def step(self, actions: Mapping[str, str]) -> MultiStep:
        """Let the agent or the user act; see `MultiAgentEnv.step`."""
        require_asked(self, self.asked, actions)
        [(who, words)] = actions.items()
        words = words.encode("utf-8", "replace").decode("utf-8")
        return self._user(words) if who == USER else self._agent(words)

    def _user(self, words: str) -> MultiStep:
        fault = self._fault(words)
        if fault:
            self.faults[fault] += 1
            self._in_a_row += 1
            if self._in_a_row > self.retries:
                self.failed = True
                return self._over(truncated=True)
            return self._ask_user(f"(Not sent: {_FAULTS[fault]}. Write what the user says next.)")
        self._in_a_row = 0
        if STOP in words:
            self.ended = True
            return self._over(terminated=True)
        self.user_turns += 1
        self._said.append(words)
        first = self.user_turns == 1
        return self._next(AGENT, f"{self._rules()}\n\n# User\n\n{words}" if first else words)

    def _fault(self, words: str) -> str:
        """Return what is wrong with a message of the user, or ""."""
        if not words.strip():
            return "silent"
        if _TAG.search(words):
            return "acts"
        known = [self.task, *self._said]
        if self._solution and not self.acted and _says(words, self._solution):
            return "" if any(_says(each, self._solution) for each in known) else "solves"
        return ""

    def _agent(self, words: str) -> MultiStep:
        self.turn += 1
        written, tags = _ACTION.search(words), len(_TAG.findall(words))
        if written and tags == 2:
            self.acted = True
            action = written[1].strip()
            observation, reward, terminated, truncated, info = self.inner.step(action)
            if terminated or truncated:
                return self._over(observation, reward, terminated, truncated, info)
            step = self._next(AGENT, observation, reward, info)
        elif tags:
            told = "An action is <action>...</action>, one in a turn."
            step = self._next(AGENT, told, 0.0, {**_FLAGS, "format_error": True})
        else:
            self._said.append(words)
            self._answer = self._untold.pop(0) if self._untold else _ALL
            step = self._ask_user(words or "(no message)")
        if self.turn < self.max_turns:
            return step
        result = step.observations.get(AGENT, "")
        return self._over(result, step.rewards[AGENT], False, True, step.infos[AGENT])

    def _ask_user(self, message: str) -> MultiStep:
        self._heard = message
        return self._next(USER, message)

    def _next(
        self, who: str, observation: Observation, reward: float = 0.0, info: Info | None = None
    ) -> MultiStep:
        self.asked = (who,)
        if who == AGENT:
            self._shown = observation
        infos: dict[str, Info] = {AGENT: info or dict(_FLAGS), USER: dict(_FLAGS)}
        rewards = dict.fromkeys(self.agents, reward)
        return MultiStep({who: observation}, rewards, False, False, infos)

    def _over(
        self,
        result: Observation = "",
        reward: float = 0.0,
        terminated: bool = False,
        truncated: bool = False,
        info: Info | None = None,
    ) -> MultiStep:
        self.asked = ()
        told: Info = {
            "user_turns": self.user_turns,
            "user_faults": self.faults.total(),
            "user_ended": self.ended,
            "user_failed": self.failed,
        }
        own: Info = {**(info or _FLAGS), **told, "result": result}
        theirs: Info = {**_FLAGS, "success": own.get("success", False)}
        infos = {AGENT: own, USER: {**theirs, "result": "The conversation is over."}}
        rewards = dict.fromkeys(self.agents, reward)
        return MultiStep({}, rewards, terminated, truncated, infos)

    def _rules(self) -> str:
        boxed = _BOXED if r"\boxed" in self.task else ""
        form = boxed if self.form is None else f"{self.form} "
        return _AGENT_RULES.format(form=form)

    def _solving_answer(self) -> str:
        """Return the answer that solves the task in one action, as text, or "" if there is none.

        Of a task that asks a model or starts a box, nothing is known: a try would cost an episode.
        """
        if not self.inner.replayable:
            return ""
        try:
            twin = self.inner.spawn(same_state=True)
        except NotImplementedError:
            return ""
        with twin:
            try:
                action = twin.oracle_action()
            except NotImplementedError:
                return ""
            _, _, terminated, _, info = twin.step(action)
        return (
            (boxed_texts(action) or [action])[-1].strip() if terminated and info["success"] else ""
        )

    def sample_random_action(self, agent: str, rng: Random | None = None) -> str:
        """Return a random action or message of the agent, or a message of the user."""
        _ = self.episode_key
        rng = rng or self.action_rng
        if agent == USER:
            return rng.choice((*_pieces(self.task), STOP))
        return rng.choice((_MORE, f"<action>{self.inner.sample_random_action()}</action>"))

    def oracle_action(self, agent: str, rng: Random | None = None) -> str:
        """Return what the scripted user says, or the action of an agent that has asked for all.

        The agent acts as the task's oracle as soon as the scripted user has nothing more to say,
        whoever plays the user.
        """
        _ = self.episode_key
        if agent == USER:
            return self._answer
        return _MORE if self._untold else f"<action>{self.inner.oracle_action()}</action>"

    def resample(self, agent: str, rng: Random) -> bool:
        """Give the user another task, as long as it has not told all of it."""
        if agent == USER or not self._untold:
            return False
        self.inner.reset(seed=rng.randrange(1 << 30))
        return True

    def render(self, agent: str) -> str:
        """Return what the agent was shown last, or the user's task and what it heard last."""
        _ = self.episode_key
        if agent == AGENT:
            return f"UserTask, agent, turn {self.turn} of {self.max_turns}\n{shown(self._shown)}"
        return f"UserTask, user\n{self.task}\nagent: {self._heard}"

    def close(self) -> None:
        """Close the environment that the agent acts in."""
        self.inner.close()

    def _forget(self) -> None:
        self.asked = ()


def _pieces(task: str) -> list[str]:
    """Return the paragraphs of a task; of a single one the sentences."""
    pieces = [piece.strip() for piece in re.split(r"\n\s*\n", task) if piece.strip()]
    if len(pieces) == 1:
        pieces = _SENTENCE.split(pieces[0])
    return pieces or [""]


def _says(words: str, answer: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", words, re.IGNORECASE) is not None

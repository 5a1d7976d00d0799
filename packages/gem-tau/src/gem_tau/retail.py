"""The environment of the retail domain: a turn is a tool call or a message to the user."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from random import Random
from typing import Any, ClassVar, Protocol, TypedDict

from gem.contract import refusal
from gem.core import Env, Info, Step, known_options
from gem.errors import ConfigurationError
from gem.parameters import choice, flag, integer, optional
from gem.parameters import text as named
from gem.sources import permuted
from gem.tools.base import json_call
from gem_tau.data import NL_ASSERTION, Call, Task, text
from gem_tau.llm_user import LlmUser
from gem_tau.oracle import MESSAGES, next_action, random_arguments, tool_call
from gem_tau.outcome import TOOLS, TRANSFER, Gold, chosen, gold, is_clean, mentions, same_write
from gem_tau.records import BadCallError, Records, RefusedError
from gem_tau.scripted import CONFIRMS, Scene, ScriptedUser
from gem_tau.tools import Tool, call

ENDS = ("###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###")
"""What a user says to end the conversation."""
_SPLITS = ("base", "train", "test", "clean")
_FORM = """# How to act

Each of your turns is either one tool call or one message to the user, never both.
A tool call is <tool_call>{"name": "...", "arguments": {...}}</tool_call>; everything else is a \
message to the user. Transferring the user ends the conversation.

# Tools
"""
CONSENT = re.compile(r"\b(?:yes|go ahead|sure|correct|proceed|please do|i confirm)\b", re.I)


class User(Protocol):
    """Whoever talks to the agent."""

    def opening(self, scene: Scene) -> str:
        """Return the first message."""

    def reply(self, scene: Scene, message: str) -> str:
        """Return the answer to a message."""


class RetailOptions(TypedDict, total=False):
    """Parameters of `Retail`."""

    data: str | None
    split: str
    user: str
    reward: str
    semantics: str
    max_turns: int
    max_errors: int | None
    grace: int
    url: str | None
    model: str | None
    temperature: float
    timeout_s: float
    api_key_env: str
    eval: bool
    seed: int | None


class Retail(Env):
    """TAU-bench retail: customer service with tools, a policy and a user.

    In every turn the agent writes one tool call, `<tool_call>{"name": ..., "arguments":
    {...}}</tool_call>`, and is shown its result, or it writes a message, and is shown the user's
    answer. The episode terminates when the user ends it or the agent transfers the user to a human;
    then the reward is 1.0 if the database is as the task's recorded calls leave it and the agent
    has said all that it must say, else 0.0. A conversation that reaches a limit is truncated and
    earns 0.0.

    Tasks, database and policy are those of tau2-bench (December 2025, MIT, Sierra Research);
    docs/tau.md lists their known defects and what is comparable with published results.

    A call whose arguments are missing, unknown or of a wrong type is an `invalid_action`; one that
    the tool refuses is not.

    The last info has `success`, `db_match`, `communicated` (share of what must be said), `writes`
    (successful), `illegal_writes` (refused), `user_turns`, `policy_violations` (writes before the
    user was identified, on another user's records, or without the user's consent in the turn
    before), `clean` (whether the task has no known defect), `do_nothing` (whether an agent that
    does nothing wins it: the share of such tasks is the floor beneath a score), and `unjudged`
    (sentences about the conversation that the task's authors give to a judge, which are not judged
    here).
    """

    domain: ClassVar[str] = "retail"
    """Whose tools, policy and tasks."""

    def __init__(
        self,
        *,
        data: str | None = None,
        split: str = "base",
        user: str = "scripted",
        reward: str = "v2",
        semantics: str = "fixed",
        max_turns: int = 30,
        max_errors: int | None = 10,
        grace: int = 0,
        url: str | None = None,
        model: str | None = None,
        temperature: float = 0.0,
        timeout_s: float = 60.0,
        api_key_env: str = "OPENAI_API_KEY",
        eval: bool = False,
        seed: int | None = None,
    ) -> None:
        """Store the parameters.

        Args:
            data: A `tasks.json` of tau2-bench; None for the bundled one.
            split: `base` (all tasks), `train`, `test`, or `clean`: those without known defects.
            user: `scripted`, deterministic and without a model, or `llm`, a model at `url`.
            reward: `v1` and `v2` as TAU-bench and tau2-bench; `v3`, with `data` of tau2-bench 1.0
                or later, does not judge its assertions either and counts what must be said instead.
            semantics: `fixed`, or `upstream`: modifying several items gives all of them the price
                and options of the last one, so that their order matters.
            max_turns: Agent turns after which the episode is truncated.
            max_errors: Refused or unreadable calls after which it is truncated; None for no limit.
            grace: How often the agent gets one more turn when the user ends the conversation right
                after the agent asked for confirmation; 0 as in published results.
            url: Address of the user's chat endpoint, such as `http://127.0.0.1:8000/v1`.
            model: Name of the user's model there.
            temperature: Of the user's model.
            timeout_s: Time limit of one attempt to get the user's answer.
            api_key_env: Environment variable that holds the endpoint's key, if it needs one.
            eval: Walk the tasks in order instead of a permutation.
            seed: Seed of the first `reset` that is not given one.

        Raises:
            ConfigurationError: A value is not allowed.
            DataError: `data` cannot be read.
        """
        super().__init__(seed=seed)
        self.data = optional(named, "data", data)
        self.split = choice("split", split, _SPLITS)
        self.reward = choice("reward", reward, ("v1", "v2", "v3"))
        self.semantics = choice("semantics", semantics, ("fixed", "upstream"))
        self.max_turns = integer("max_turns", max_turns, 1, 10**6)
        self.max_errors = optional(integer, "max_errors", max_errors, 1, 10**6)
        self.grace = integer("grace", grace, 0, 100)
        self.eval = flag("eval", eval)
        # The bundled tasks are read at the first reset only.
        judged = data is not None and any(NL_ASSERTION in each.basis for each in self._tasks())
        if self.reward == "v3" and not judged:
            raise ConfigurationError(
                "reward 'v3' needs data=<tasks.json of tau2-bench 1.0 or later>, whose tasks have "
                f"NL_ASSERTION in their reward_basis; got data={data!r}"
            )
        scripted = choice("user", user, ("scripted", "llm")) == "scripted"
        for name, value, default in (
            ("url", url, None),
            ("model", model, None),
            ("temperature", temperature, 0.0),
            ("timeout_s", timeout_s, 60.0),
            ("api_key_env", api_key_env, "OPENAI_API_KEY"),
        ):
            if scripted and value != default:
                raise ConfigurationError(
                    f"{name}={value!r} is for the user 'llm', got user={user!r}: give user='llm', "
                    f"or leave {name} out"
                )
        self.replayable = scripted
        self.user: User = (
            ScriptedUser()
            if scripted
            else LlmUser(url or "", model or "", temperature, timeout_s, api_key_env)
        )
        names = [name for name in TOOLS[self.domain] if judged or name != "get_item_details"]
        self.tool_names: tuple[str, ...] = tuple(names)
        self._over = True

    def reset(self, seed: int | None = None, **options: Any) -> tuple[str, Info]:
        """Begin a conversation.

        Successive resets without a seed walk a permutation of all tasks that depends on the seed
        given last; with `eval=True` they walk them in order.

        Args:
            seed: See `Env.reset`; chooses the task.
            **options: `idx` chooses the task of this place in the split.

        Returns:
            Policy, form of an action, tools and the user's first message; info has the task's
            `index` and `task` (its id).

        Raises:
            ConfigurationError: There is no task `idx`.
            UnknownParameterError: An option other than `idx` was given.
            UnreachableError: The user's model does not answer.
        """
        idx = known_options(self, options, "idx").get("idx")
        super().reset(seed=seed)
        self._choose(idx)
        self.records = Records(self.semantics, self.domain)
        self.turn = self.errors = self.writes = self.illegal_writes = 0
        self.user_turns = self.policy_violations = 0
        self.identified = ""
        self.said: set[str] = set()
        self.done: set[int] = set()
        self.tried: set[str] = set()
        self._graces = self.grace
        self._closing = self._invalid = False
        self._over = True
        if isinstance(self.user, ScriptedUser):
            self.user = ScriptedUser()
        self.heard = self.user.opening(self.scene)
        self._over = False
        info = {"index": self.index, "task": self.task.id}
        return self.first_observation(), info

    def first_observation(self) -> str:
        """Return policy, form of an action, tools, and the user's last words."""
        return f"{self._instructions()}\n\n# User\n\n{self.heard}"

    def redraw(self, rng: Random) -> None:
        """Give the user another task."""
        self.index = rng.randrange(len(self._tasks()))

    def _instructions(self) -> str:
        """Return policy, form of an action and tools."""
        return prompt(self.domain, self.tool_names)

    def _choose(self, idx: Any) -> None:
        """Set `index`, the place of the episode's task."""
        size = len(self._tasks())
        if idx is not None:
            self.index = integer("idx", idx, 0, size - 1)
            return
        base, episode = self.episode_key
        epoch, place = divmod(episode, size)
        self.index = (base + episode) % size if self.eval else permuted(place, size, base, epoch)

    def _tasks(self) -> Sequence[Task]:
        return chosen(self.data, self.split, self.domain)

    @property
    def task(self) -> Task:
        """The task of this episode."""
        return self._tasks()[self.index]

    @property
    def gold(self) -> Gold:
        """The outcome of its recorded calls."""
        return gold(self.task, self.semantics)

    @property
    def scene(self) -> Scene:
        """What the user may know of the episode."""
        task = self.task
        missing = [each for each in task.communicate if each not in self.said]
        return Scene(task, self.gold, self.done, missing)

    def schemas(self) -> list[dict[str, Any]]:
        """Return the tools as JSON schemas, in the form that chat APIs take."""
        return [TOOLS[self.domain][name].schema for name in self.tool_names]

    def step(self, action: str) -> Step:
        """Play one turn: a tool call or a message to the user; see `Env.step`.

        Raises:
            UnreachableError: The user's model does not answer; the episode cannot be graded then.
        """
        if self._over or not isinstance(action, str):
            raise refusal(type(self).__name__, self._over, action)
        self._invalid = False
        called = json_call(action)
        if called is not None:
            wanted, error = Call(called[0].name, called[0].arguments), called[0].error
            observation, ended = self._called(wanted, error)
        elif "<tool_call>" in action:
            error = 'A call is {"name": ..., "arguments": {...}} and ends with </tool_call>.'
            observation, ended = self._called(Call("", {}), error)
        else:
            error = None
            observation, ended = self._heard(action)
        self.turn += 1
        ended = ended or (self._closing and called is not None)
        spent = self.max_errors is not None and self.errors >= self.max_errors
        truncated = not ended and (spent or self.turn >= self.max_turns)
        self._over = ended or truncated
        info = self._info(ended, self._over)
        info["format_error"] = error is not None
        info["invalid_action"] = self._invalid
        return observation, float(info["success"]), ended, truncated, info

    def _called(self, wanted: Call, error: str | None) -> tuple[str, bool]:
        """Execute a call; return what the agent is shown and whether the conversation ends."""
        tool = TOOLS[self.domain].get(wanted.name)
        writes = tool is not None and tool.writes
        if error is None:
            self.tried.add(wanted.key)
            if writes and self._violates(wanted):
                self.policy_violations += 1
            try:
                result = call(self.records, wanted, offered(self.domain, self.tool_names))
            except RefusedError as refused:
                error = str(refused)
                self._invalid = isinstance(refused, BadCallError)
        if error is not None:
            self.errors += 1
            self.illegal_writes += writes
            return f"Error: {error}", False
        if writes:
            self.writes += 1
            for place in self.scene.pending:
                if same_write(wanted, self.gold.writes[place]):
                    self.done.add(place)
                    break
        elif wanted.name.startswith("find_user"):
            self.identified = result
        elif self.domain == "airline" and wanted.name == "get_user_details":
            self.identified = wanted.arguments["user_id"]
        return result, wanted.name == TRANSFER

    def _violates(self, wanted: Call) -> bool:
        """Whether a write breaks the policy that can be checked without a judge."""
        given = wanted.arguments
        owner = given.get("user_id")
        for name, table in (("order_id", "orders"), ("reservation_id", "reservations")):
            if name in given:
                with suppress(RefusedError):
                    owner = self.records.read(table, str(given[name]))["user_id"]
        agreed = bool(CONSENT.search(self.heard))
        return not self.identified or owner != self.identified or not agreed

    def _heard(self, message: str) -> tuple[str, bool]:
        """Pass a message to the user; return the answer and whether the conversation ends."""
        scene = self.scene
        said = self.credited(message)
        if self._closing:
            self.said |= said
            return self.heard, True
        heard = self.user.reply(
            scene._replace(missing=[each for each in scene.missing if each not in said]), message
        )
        # Changed after the answer: a server that fails leaves the episode as it was.
        self.said |= said
        self.heard = heard
        self.user_turns += 1
        ends = any(end in heard for end in ENDS)
        if ends and self._graces and CONFIRMS.search(message):
            self._graces -= 1
            self._closing = True
            return heard, False
        return heard, ends

    def credited(self, message: str) -> set[str]:
        """Return what a message to the user says of what the agent still has to say."""
        return mentions(message, self.scene.missing)

    def _info(self, ended: bool, over: bool) -> Info:
        info: Info = {
            "success": False,
            "task": self.task.id,
            "clean": is_clean(self.task),
            "do_nothing": self._right(not self.gold.changes, not self.task.communicate),
            "writes": self.writes,
            "illegal_writes": self.illegal_writes,
            "user_turns": self.user_turns,
            "policy_violations": self.policy_violations,
            "unjudged": len(self.task.assertions),
        }
        if over:
            wanted = self.task.communicate
            told = sum(each in self.said for each in wanted)
            info["db_match"] = self.records.changes == self.gold.changes
            info["communicated"] = told / len(wanted) if wanted else 1.0
            info["success"] = ended and self._right(info["db_match"], told == len(wanted))
        return info

    def _right(self, db_match: bool, communicated: bool) -> bool:
        """Whether an episode that ended succeeds by the rule `reward`."""
        basis = self.task.basis if self.reward == "v2" else ()
        if not basis:
            return db_match and communicated
        return (db_match or "DB" not in basis) and (communicated or "COMMUNICATE" not in basis)

    def render(self) -> str:
        """Return the task, the turn and the changed records."""
        _ = self.episode_key
        changed = ", ".join(key for _, key in self.records.changes) or "none"
        return (
            f"{type(self).__name__} task {self.task.id}, turn {self.turn} of {self.max_turns}\n"
            f"changed records: {changed}\nuser: {self.heard}"
        )

    def sample_random_action(self) -> str:
        """Return a random call with arguments of the database, or a random message."""
        _ = self.episode_key
        rng = self.action_rng
        name = rng.choice([*self.tool_names, ""])
        if not name:
            return rng.choice(MESSAGES)
        return tool_call(Call(name, self._random_arguments(name, rng)))

    def _random_arguments(self, name: str, rng: Random) -> dict[str, Any]:
        return random_arguments(name, self.gold.user_id, rng)

    def oracle_action(self) -> str:
        """Return the next action of an agent that identifies, reads, asks and then writes.

        Raises:
            NotImplementedError: The user is a model.
        """
        _ = self.episode_key
        if not isinstance(self.user, ScriptedUser):
            raise NotImplementedError("tau:Retail has an oracle for user='scripted' only")
        return next_action(self.scene, self.user, self.identified, self.tried)

    def _forget(self) -> None:
        self._over = True


@lru_cache(maxsize=64)
def offered(domain: str, names: tuple[str, ...]) -> Mapping[str, Tool]:
    """Return tools of a domain by name."""
    return {name: TOOLS[domain][name] for name in names}


@lru_cache(maxsize=8)
def prompt(domain: str, names: tuple[str, ...]) -> str:
    """Return policy, form of an action and tools."""
    tools = "\n".join(json.dumps(TOOLS[domain][name].schema) for name in names)
    return f"{text(f'{domain}_policy.md')}\n\n{_FORM}\n{tools}"

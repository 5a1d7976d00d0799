"""`VerifiersEnv`, a task of verifiers as an environment: `gem.make("verifiers:NAME")`."""

from __future__ import annotations

from concurrent.futures import Future, wait
from typing import Any

from gem.blame import Cause, boundary
from gem.core import Info, Observation, known_options
from gem.errors import ConfigurationError, UnknownParameterError
from gem.parameters import integer, optional, positive, text
from gem_serve.asked import AskedEnv
from gem_serve.conversation import AgentProgramError
from gem_serve.inverted import Session
from gem_verifiers.served import Served, served

_TIMEOUT_S = 300.0
_CLOSE_S = 30.0
_LIMITS = ("max_turns", "max_input_tokens", "max_output_tokens", "max_total_tokens")


class VerifiersEnv(AskedEnv):
    """An environment of verifiers (v1): the policy is the model of one of its agents.

    The seed chooses the task. The first observation has the system prompt, the tools and the
    prompt; a later one what came after the policy's reply. The reward, verifiers' weighted sum,
    comes with the last step, whose info has `stop`, and `reward.<name>` and `metric.<name>` of the
    trace. A limit of verifiers ends an episode as `truncated`.

    An episode is void if verifiers records an error, such as of a judge that is down, or if a wall
    clock ended it; also if the agent rewrites its history, calls the model in parallel or shows
    images.
    """

    def __init__(
        self,
        address: str,
        *,
        seat: str | None = None,
        harness: str = "gem_env",
        max_turns: int | None = None,
        tasks: int = 1000,
        timeout_s: float = _TIMEOUT_S,
        seed: int | None = None,
        **settings: Any,
    ) -> None:
        """Load the taskset and start its servers, unless another environment has.

        Args:
            address: The taskset's id: an importable module, as for `vf-eval`.
            seat: The agent that the policy plays; only where there are several.
            harness: Program of that agent: `gem_env`, a chat loop in this process; `own`, the
                taskset's; or another one that verifiers knows.
            max_turns: Most replies of the policy, None for no limit.
            tasks: Most tasks to read; a taskset may be endless.
            timeout_s: Longest time, in seconds, in which the agent neither asks nor ends.
            seed: Base seed of the first `reset` without one.
            **settings: Of verifiers' configuration, by dotted names such as
                `{"taskset.split": "train", "user.model": "m"}`.

        Raises:
            UnknownParameterError: A setting has no dot in its name.
            ConfigurationError: verifiers refuses a setting, or the environment cannot be played
                here: several agents without models, a container.
        """
        super().__init__(f"verifiers:{address}", positive("timeout_s", timeout_s), seed=seed)
        plain = [name for name in settings if "." not in name]
        if plain:
            raise UnknownParameterError(
                f"verifiers:{address} has no parameter {', '.join(map(repr, plain))}; it has "
                "harness, max_turns, seat, seed, tasks, timeout_s, and verifiers' settings by "
                "dotted names such as taskset.split"
            )
        text("the taskset after verifiers:", address)
        seat = optional(text, "seat", seat)
        config: dict[str, Any] = {"taskset": {"id": address}}
        for name, value in settings.items():
            _put(config, name, value)
        chosen = text("harness", harness)
        turns = optional(integer, "max_turns", max_turns, 1, 10**9)
        most = integer("tasks", tasks, 1, 10**7)
        self._served: Served = served(config, seat or "", most, chosen, turns)
        self._given = {
            "address": address,
            "seat": seat,
            "harness": chosen,
            "max_turns": turns,
            "tasks": most,
            "timeout_s": self._timeout_s,
            **settings,
        }
        self._episode_of: Future[Any] | None = None

    def reset(self, seed: int | None = None, **options: Any) -> tuple[Observation, Info]:
        """Begin an episode, and wait for the agent's first request.

        Args:
            seed: Chooses the task.
            **options: `idx`, the position of the task in the taskset instead.

        Raises:
            ConfigurationError: There is no such task.
            AgentProgramError: The agent broke before it asked.
        """
        given = known_options(self, options, "idx")
        self.close()
        super().reset(seed=seed)
        tasks = self._served.tasks
        row = self.rng.randrange(len(tasks))
        row = integer("idx", given.get("idx", row), 0, len(tasks) - 1)
        session = Session()

        def minted(trace: Any) -> None:
            if trace.agent.name == self._served.seat:
                session.also(trace.id)

        self._episode_of = self._served.run(tasks[row], minted)
        self._episode_of.add_done_callback(session.end)
        observation = self._first(session)
        name = tasks[row].data.name
        return observation, {"idx": row, **({"name": name} if name else {})}

    def close(self) -> None:
        """End the episode that runs; the taskset's servers stay for other environments."""
        super().close()
        episode, self._episode_of = self._episode_of, None
        if episode is not None and not episode.done():
            episode.cancel()
            wait([episode], _CLOSE_S)

    def _outcome(self, result: Any) -> tuple[float, bool, Info]:
        return _outcome(result.result(), self._served.seat)

    def _parameters(self) -> dict[str, Any]:
        return self._given


def _outcome(episode: Any, seat: str) -> tuple[float, bool, Info]:
    """Return the reward of a seat, whether a limit ended the episode, and the info.

    Raises:
        AgentProgramError: verifiers recorded an error; the cause is the grader if it scored then.
    """
    traces = [trace for trace in episode.traces if trace.agent.name == seat]
    # Looked at first: a trace with an error may have a reward of 0.
    if not episode.ok or episode.is_timeout or any(t.is_timeout for t in episode.traces):
        errors = [*episode.errors, *(e for trace in episode.traces for e in trace.errors)]
        said = "; ".join(f"{error.type}: {error.message}" for error in errors)
        scoring = any(trace.timing.scoring.start for trace in episode.traces)
        cause: Cause = "grader" if scoring else "environment"
        with boundary(cause):
            raise AgentProgramError(f"verifiers: {said or 'a time limit ended the episode'}")
    if len(traces) != 1:
        raise AgentProgramError(f"the agent {seat!r} played {len(traces)} times, not once")
    [trace] = traces
    info: Info = {"stop": trace.stop_condition}
    info |= {f"reward.{name}": r.value for name, r in trace.rewards.items() if r is not None}
    info |= {f"metric.{name}": m for name, m in trace.metrics.items() if m is not None}
    if "metric.success" in info:
        # A share is no success, nor its opposite: the contract refuses it.
        success = info["metric.success"]
        info["success"] = bool(success) if success in (0, 1) else success
    return float(trace.reward), trace.stop_condition in _LIMITS, info


def _put(config: dict[str, Any], name: str, value: Any) -> None:
    """Put a value into nested mappings by its dotted name."""
    *above, last = name.split(".")
    for part in above:
        config = config.setdefault(part, {})
        if not isinstance(config, dict):
            raise ConfigurationError(f"the setting {name!r} contradicts another one")
    config[last] = value

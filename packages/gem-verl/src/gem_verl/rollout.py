"""verl's agent-loop hook: episodes are played by `gem.rollout`, verl's servers are the sampler.

- `gem`: a training row for every growing sequence of tokens (with the `chat` context: one per
  episode).
- `gem_turns`: a training row for every turn.

Rewards are dense: that of each turn lies on its last sampled token. An episode that failed becomes
one row without any token to train on; it is never silently missing. If this code itself fails, the
row also carries the reward NaN, at which the estimators and trainers of this package stop the run.
"""

from __future__ import annotations

import functools
import json
import logging
import math
import time
from typing import Any
from uuid import uuid4

import torch
from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import (
    AgentLoopBase,
    AgentLoopMetrics,
    AgentLoopOutput,
    register,
)

from gem.errors import ConfigurationError, RolloutError
from gem.rollout import ChatFormat, Request, Sample, play
from gem.seeding import stream
from gem.training.tasksets import decode_task
from gem.trajectory import TrainingRow, Trajectory, TurnSpan
from gem_verl.settings import GEM_MODES, Settings, rows_per_turn

logger = logging.getLogger(__name__)

SCALARS = ("acc", "episode_return", "turns", "sampled_tokens", "format_error")
"""Numbers of an episode that verl's validation averages (`val-*/<data source>/<name>/...`)."""


class GemAgentLoopOutput(AgentLoopOutput):  # type: ignore[misc]
    """A row with a reward for every token; verl's own class knows one per row."""

    token_rewards: list[float]
    """Reward of each response token, `[response]`."""
    final: bool
    """The last row of its episode."""

    def as_dict(self) -> dict[str, Any]:
        """Return the row as verl stores it, with dense `rm_scores`."""
        row: dict[str, Any] = super().as_dict()
        row["rm_scores"] = torch.tensor(row.pop("token_rewards"), dtype=torch.float32)
        if not row.pop("final"):
            # verl copies what belongs to the episode to all of its rows; one transcript is enough.
            extra = dict(row["extra_fields"])
            info = dict(extra["reward_extra_info"])
            info.pop("trajectory", None)
            row["extra_fields"] = extra | {"reward_extra_info": info}
        return row


@register("gem")
class GemAgentLoop(AgentLoopBase):  # type: ignore[misc]
    """Plays one episode of the row's task."""

    agent = "gem"

    async def run(
        self, sampling_params: dict[str, Any], **kwargs: Any
    ) -> GemAgentLoopOutput | list[GemAgentLoopOutput]:
        """Play an episode and return its training rows.

        Args:
            sampling_params: verl's, for training or for validation.
            **kwargs: Columns of `GemDataset`, and `uid`, `session_id`, `global_steps`.
        """
        try:
            outputs = await self._play(sampling_params, kwargs)
        except Exception as error:
            # verl only logs what is raised here and goes on with fewer rows.
            logger.exception("the agent loop %r failed", self.agent)
            outputs = [self._void(kwargs, f"{type(error).__name__}: {error}", broken=True)]
        return outputs if len(outputs) > 1 else outputs[0]

    async def _play(
        self, sampling_params: dict[str, Any], kwargs: dict[str, Any]
    ) -> list[GemAgentLoopOutput]:
        settings = Settings.from_config(self.config)
        own = self.config.trainer.v1.trainer_mode in GEM_MODES
        if rows_per_turn(self.config, self.agent) and not own:
            raise ConfigurationError(
                f"agent loop {self.agent!r} with context {settings.context!r} makes a row per "
                "turn, which needs trainer.v1.trainer_mode=gem_sync"
            )
        task, temperature = decode_task(kwargs["gem_task"])
        params = dict(sampling_params)
        if temperature is not None:
            params["temperature"] = temperature
        template = OmegaConf.to_container(OmegaConf.create(dict(self.apply_chat_template_kwargs)))
        chat = _chat_format(self.tokenizer, settings.system_prompt, json.dumps(template))
        sampler = _Sampler(self.server_manager, params, chat)
        if settings.seed is not None:
            sampler.seed = (settings.seed, int(kwargs["global_steps"]), task.seed)
            sampler.seed += (int(kwargs["session_id"]),)
        trajectory = await play(
            task,
            sampler,
            chat,
            context=settings.context,
            budget=settings.budget(self.config),
            group=int(kwargs["index"]),
            retries=settings.retries,
            step_timeout_s=settings.step_timeout_s,
        )
        if trajectory.failure is not None:
            logger.warning("episode of %s is void: %s", task, trajectory.failure)
            return [self._void(kwargs, str(trajectory.failure), trajectory)]
        trajectory.policy_version = sampler.versions(len(trajectory.turns))
        rows = trajectory.training_rows()
        if self.agent == "gem_turns":
            rows = [part for row in rows for part in split_turns(row)]
        return [
            self._output(trajectory, rows, i, sampler.seconds, kwargs) for i in range(len(rows))
        ]

    def _output(
        self,
        trajectory: Trajectory,
        rows: list[TrainingRow],
        index: int,
        seconds: float,
        kwargs: dict[str, Any],
    ) -> GemAgentLoopOutput:
        row = rows[index]
        response, mask, logprobs = row.response_ids, row.mask, row.logprobs
        rewards = row.token_rewards(trajectory.rewards)
        if not response:
            # verl's rows hold at least one response token; nothing is trained on this one.
            response, mask, logprobs = [self.tokenizer.eos_token_id], [0], [0.0]
            rewards = [row.reward_left(trajectory.rewards)]
        versions = trajectory.policy_version or self._version(kwargs)
        return GemAgentLoopOutput(
            prompt_ids=row.prompt_ids,
            response_ids=response,
            response_mask=mask,
            **self._logprobs(logprobs),
            reward_score=trajectory.total_reward,
            token_rewards=rewards,
            final=index == len(rows) - 1,
            num_turns=len(trajectory.turns),
            metrics=AgentLoopMetrics(generate_sequences=seconds),
            extra_fields={
                "min_global_steps": versions[0],
                "max_global_steps": versions[1],
                "turn_scores": [trajectory.rewards[span.turn] for span in row.spans],
                "tool_rewards": [],
                "gem": {
                    "spans": [(span.turn, span.start, span.end) for span in row.spans],
                    "failed": None,
                    "broken": False,
                },
                "reward_extra_info": self._info(trajectory),
            },
        )

    def _void(
        self,
        kwargs: dict[str, Any],
        reason: str,
        trajectory: Trajectory | None = None,
        *,
        broken: bool = False,
    ) -> GemAgentLoopOutput:
        """Return a row of valid shape that takes no part in anything."""
        token = self.tokenizer.eos_token_id
        oldest, newest = self._version(kwargs)
        return GemAgentLoopOutput(
            prompt_ids=[token],
            response_ids=[token],
            response_mask=[0],
            **self._logprobs([0.0]),
            reward_score=math.nan if broken else 0.0,
            token_rewards=[math.nan if broken else 0.0],
            final=True,
            num_turns=0,
            metrics=AgentLoopMetrics(generate_sequences=0.0),
            extra_fields={
                "min_global_steps": oldest,
                "max_global_steps": newest,
                "turn_scores": [],
                "tool_rewards": [],
                "gem": {"spans": [], "failed": reason, "broken": broken},
                "reward_extra_info": self._info(trajectory),
            },
        )

    def _logprobs(self, logprobs: list[float] | None) -> dict[str, list[float]]:
        # All rows of a batch must have the same fields: with log-probs, or without.
        if not self.rollout_config.calculate_log_probs:
            return {}
        if logprobs is None:
            raise RolloutError("the server returned no log-probabilities")
        return {"response_logprobs": logprobs}

    @staticmethod
    def _version(kwargs: dict[str, Any]) -> tuple[int, int]:
        """Version of the weights at the start of the step: training step k uses version k - 1."""
        version = max(int(kwargs["global_steps"]) - 1, 0)
        return version, version

    def _info(self, trajectory: Trajectory | None) -> dict[str, Any]:
        """Return the numbers for validation; None, which verl leaves out, if there are none."""
        info: dict[str, Any] = dict.fromkeys(SCALARS)
        if trajectory is not None and trajectory.valid:
            info |= {
                "acc": float(trajectory.success),
                "episode_return": trajectory.total_reward,
                "turns": float(len(trajectory.turns)),
                "sampled_tokens": float(trajectory.sampled_tokens),
                "format_error": float(any(t.info.get("format_error") for t in trajectory.turns)),
            }
        if self.config.trainer.v1.trainer_mode in GEM_MODES:
            # Text is skipped by verl's metrics, and read by our trainers.
            info["trajectory"] = None if trajectory is None else trajectory.to_json()
        return info


@register("gem_turns")
class GemTurnsAgentLoop(GemAgentLoop):
    """Plays one episode; every turn becomes a row of its own."""

    agent = "gem_turns"


def split_turns(row: TrainingRow) -> list[TrainingRow]:
    """Cut a row into one row per turn; what came before a turn becomes its prompt."""
    parts = []
    for span in row.spans:
        cut = slice(span.start, span.end)
        parts.append(
            TrainingRow(
                prompt_ids=row.prompt_ids + row.response_ids[: span.start],
                response_ids=row.response_ids[cut],
                mask=row.mask[cut],
                logprobs=None if row.logprobs is None else row.logprobs[cut],
                spans=[TurnSpan(span.turn, 0, span.end - span.start)],
            )
        )
    return parts


class _Sampler:
    """verl's server client as a sampler of one episode."""

    def __init__(self, server: Any, params: dict[str, Any], chat: ChatFormat) -> None:
        self._server = server
        self._params = params
        self._stop_ids = chat.stop_ids
        # One id for all turns: verl keeps an episode on the server that has its prefix cached.
        self._request_id = uuid4().hex
        self._versions: list[tuple[int, int] | None] = []
        self.seed: tuple[int, ...] | None = None
        """Integers that decide the randomness of this episode; None leaves it to the server."""
        self.seconds = 0.0
        """Time spent waiting for the server."""

    async def __call__(self, request: Request) -> Sample:
        """Sample one turn."""
        params = dict(self._params, max_tokens=request.max_tokens)
        # Base models end a text with another token than the chat template ends a message with.
        params["stop_token_ids"] = sorted(self._stop_ids)
        if self.seed is not None:
            params["seed"] = stream(*self.seed, len(self._versions)).getrandbits(31)
        began = time.monotonic()
        output = await self._server.generate(
            request_id=self._request_id, prompt_ids=request.prompt_ids, sampling_params=params
        )
        self.seconds += time.monotonic() - began
        if output.stop_reason in ("abort", "aborted"):
            raise RolloutError("the server aborted a request")
        ids = [int(i) for i in output.token_ids]
        # verl says "completed" for a finished turn and for one that was cut.
        cut = len(ids) >= request.max_tokens and ids[-1] not in self._stop_ids
        oldest = output.extra_fields.get("min_global_steps")
        newest = output.extra_fields.get("max_global_steps")
        self._versions.append(None if oldest is None else (int(oldest), int(newest)))
        return Sample(
            token_ids=ids,
            logprobs=None if output.log_probs is None else [float(p) for p in output.log_probs],
            stop_reason="length" if cut else "stop",
        )

    def versions(self, turns: int) -> tuple[int, int] | None:
        """Oldest and newest weights that sampled the last `turns` turns, if the server tells."""
        known = [v for v in self._versions[len(self._versions) - turns :] if v is not None]
        return (min(v[0] for v in known), max(v[1] for v in known)) if known else None


@functools.lru_cache(maxsize=8)
def _chat_format(tokenizer: Any, system_prompt: str | None, template_kwargs: str) -> ChatFormat:
    # verl makes a new loop for every episode; examining the template once is enough.
    return ChatFormat(
        tokenizer, system_prompt=system_prompt, template_kwargs=json.loads(template_kwargs)
    )

"""verl's agent-loop hook: episodes are played by `gem.rollout`, verl's servers are the sampler.

- `gem`: a training row for every growing sequence of tokens (with the `chat` context: one per
  episode).
- `gem_turns`: a training row for every turn.

With `seat=all` it is a match, with the rows of all agents one after the other.

Rewards are dense: that of each turn lies on its last sampled token. An episode that failed, or has
no turn, becomes one row without any token to train on; it is never silently missing. If this code
itself fails, the row also carries the reward NaN, at which the estimators and trainers of this
package stop the run. On verl's own trainers, which would count it as 0, a failed episode of a
validation set has NaN in all its numbers.

For the trainers of this package the last row of an episode has its numbers in `extra_fields`
(`gem_train.packed.PackedTrajectory.head`) and, in a field of its own, the whole episode, which they
read only to record it.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar
from uuid import uuid4

import torch
from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import (
    AgentLoopBase,
    AgentLoopMetrics,
    AgentLoopOutput,
    register,
)

from gem.errors import RolloutError
from gem.rollout import ChatFormat, Request, Sample
from gem.rollout.vision import VisionChatFormat, can_show, opened
from gem.trajectory import TrainingRow, Trajectory
from gem_train.experiment.metrics import episode_metrics
from gem_train.experiment.tasksets import DatasetRow, decode_task
from gem_train.packed import PackedTrajectory
from gem_train.rows import split_turns
from gem_train.sampling import EngineSampler, tokens_read
from gem_verl.settings import GEM_MODES, READ, Settings, check_rows

logger = logging.getLogger(__name__)

EPISODE = "gem_episode"
"""Name of the field with the packed episode."""

VOID_TOKENS = 128
"""Length of a void row, as of verl's own padding rows: context parallelism cuts rows into parts."""

_EXAMINED: set[str] = set()
"""Images of which the processor makes as many tokens as rows have."""
_MOST_EXAMINED = 100_000

SCALARS = {
    "acc": "success_rate",
    "episode_return": "return_mean",
    "turns": "turns_mean",
    "sampled_tokens": "tokens_per_episode",
    "format_error": "format_error_rate",
}
"""Numbers of an episode that verl's validation averages (`val-*/<data source>/<name>/...`), and
their names in `gem_train.experiment.metrics`."""


class GemAgentLoopOutput(AgentLoopOutput):  # type: ignore[misc]
    """A row with a reward for every token; verl's own class knows one per row."""

    token_rewards: list[float]
    """Reward of each response token, `[response]`."""
    episode: bytes | None = None
    """The last row's: the packed episode, if it is recorded; else empty. None for verl's own
    trainers."""

    def as_dict(self) -> dict[str, Any]:
        """Return the row as verl stores it, with dense `rm_scores`."""
        row: dict[str, Any] = super().as_dict()
        row["rm_scores"] = torch.tensor(row.pop("token_rewards"), dtype=torch.float32)
        episode = row.pop("episode", None)
        return row if episode is None else row | {EPISODE: episode}


@register("gem")
class GemAgentLoop(AgentLoopBase):  # type: ignore[misc]
    """Plays one episode of the row's task."""

    agent = "gem"
    _known: ClassVar[tuple[Any, str, Settings]] = (None, "", Settings())
    """The configuration that was read last, the agent that it suits, and its settings."""

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
            outputs = self._rows(kwargs, None, error=f"{type(error).__name__}: {error}")
        return outputs if len(outputs) > 1 else outputs[0]

    @property
    def _settings(self) -> Settings:
        # verl makes a new loop for every episode, and reading takes as long as a few turns.
        config, agent, settings = GemAgentLoop._known
        if config is not self.config or agent != self.agent:
            check_rows(self.config, self.agent)
            settings = Settings.from_config(self.config)
            GemAgentLoop._known = self.config, self.agent, settings
        return settings

    @property
    def _sees(self) -> bool:
        """Whether policies can be shown images: not in rows of single turns."""
        return can_show(self.processor) and self._settings.one_row and self.agent == "gem"

    def _check_images(self, trajectory: Trajectory, chat: ChatFormat) -> None:
        """Make sure that verl makes of each row's images what the row has of them.

        verl gives the images and the text of a row to the model's processor again, and keeps what
        it makes of the images.

        Raises:
            RolloutError: The processor gives an image another number of tokens; or the text spells
                more placeholders than the row has images, at which the processor stops.
        """
        if not isinstance(chat, VisionChatFormat):
            return
        for row in trajectory.training_rows():
            for image in row.images:
                if image.digest not in _EXAMINED:
                    chat.inputs([image])
                    if len(_EXAMINED) == _MOST_EXAMINED:
                        _EXAMINED.clear()
                    _EXAMINED.add(image.digest)
            text = self.tokenizer.decode(
                chat.collapse(row.ids, row.images), skip_special_tokens=True
            )
            spelled = text.count(chat.spell([chat.image_id]))
            if spelled > len(row.images):
                raise RolloutError(
                    f"an episode of {trajectory.task} has {len(row.images)} images, and its text "
                    f"spells the placeholder of an image {spelled} times: verl's processor would "
                    "stop at it"
                )

    async def _play(
        self, sampling_params: dict[str, Any], kwargs: dict[str, Any]
    ) -> list[GemAgentLoopOutput]:
        settings = self._settings
        task, sampling = decode_task(kwargs["gem_task"])
        if sampling is not None:
            sampling_params = sampling_params | sampling.engine
        else:
            own = ("min_p", "repetition_penalty")
            sampling_params = sampling_params | {name: getattr(settings, name) for name in own}
        data = OmegaConf.to_container(OmegaConf.create(dict(self.apply_chat_template_kwargs)))
        template = {**data, **(settings.template_kwargs or {})}
        # The tokenizer of a model that sees shows no images.
        shower = self.processor if self._sees else self.tokenizer
        chat = replace(settings, template_kwargs=template).shared_chat_format(shower)
        numbers = int(kwargs["global_steps"]), task.seed, int(kwargs["session_id"])
        index = int(kwargs["index"])  # a task may have several rows
        seed = None if settings.seed is None else (settings.seed, *numbers, index)
        # One id for all turns: verl keeps an episode on the server that has its prefix cached.
        engine = partial(self.server_manager.generate, request_id=uuid4().hex)
        sampler = _Sampler(chat, seed, engine=engine, params=sampling_params)
        limits = self.rollout_config
        budget = settings.limits(limits.prompt_length, limits.response_length)
        played = await settings.play_all(task, sampler, chat, budget, group=index)
        for each in played:
            self._check_images(each, chat)
        about = {"metrics": episode_metrics(played), "seconds": sampler.seconds}
        return [row for each in played for row in self._rows(kwargs, each, **about)]

    def _rows(
        self, kwargs: dict[str, Any], trajectory: Trajectory | None, **about: Any
    ) -> list[GemAgentLoopOutput]:
        """Return the rows of an episode; one that has none becomes a row all the same.

        Args:
            kwargs: See `run`.
            trajectory: The episode; None if the agent loop failed.
            **about: See `_output`.
        """
        parts = [] if trajectory is None else trajectory.training_rows()
        if self.agent == "gem_turns":
            parts = [part for row in parts for part in split_turns(row)]
        rows = [self._output(kwargs, trajectory, row, **about) for row in (*parts,) or (None,)]
        if trajectory is not None and rows[-1].episode is not None:
            packed, settings = PackedTrajectory.of(trajectory), self._settings
            rows[-1].extra_fields["gem"]["episode"] = packed.head
            whole = settings.record_dir is not None and settings.record != "metrics"
            rows[-1].episode = packed.data if whole else b""
        return rows

    def _output(
        self,
        kwargs: dict[str, Any],
        trajectory: Trajectory | None,
        row: TrainingRow | None = None,
        *,
        metrics: dict[str, float] | None = None,
        error: str | None = None,
        seconds: float = 0.0,
    ) -> GemAgentLoopOutput:
        """Return a row as verl stores it.

        Args:
            kwargs: See `run`.
            trajectory: The row's episode; None if the agent loop failed.
            row: The tokens; None if there are none: a row of valid shape that takes no part in
                anything.
            metrics: Of the episode, or of the match that it is a part of.
            error: Why the agent loop failed.
            seconds: Time that the episode waited for the server.
        """
        rewards = [] if trajectory is None or row is None else trajectory.rewards
        ours = self.config.trainer.v1.trainer_mode in GEM_MODES
        # verl would take what is missing for 0; GEM's trainers leave it out.
        failed = not ours and (trajectory is None or not trajectory.valid)
        lost = error or (failed and DatasetRow.decode(kwargs["gem_task"]).evaluation)
        eos = self.tokenizer.eos_token_id
        row = row or TrainingRow([eos] * (VOID_TOKENS - 1), [], [], [], [])
        response, mask, logprobs = row.response_ids, row.mask, row.logprobs
        token_rewards = row.token_rewards(rewards)
        if not response:
            # verl's rows hold at least one response token; nothing is trained on this one.
            response, mask, logprobs = [eos], [0], [0.0]
            token_rewards = [math.nan if lost else row.reward_left(rewards)]
        if not self.rollout_config.calculate_log_probs:
            logprobs = None  # All rows of a batch must have the same fields.
        elif logprobs is None:
            raise RolloutError("the server returned no log-probabilities")
        # Training step k begins with the weights of version k - 1.
        version = max(int(kwargs["global_steps"]) - 1, 0)
        known = None if trajectory is None else trajectory.policy_version
        oldest, newest = known or (version, version)
        shown = {"multi_modal_data": {"images": [opened(each) for each in row.images]}}
        return GemAgentLoopOutput(
            **(shown if row.images else {}),
            prompt_ids=row.prompt_ids,
            response_ids=response,
            response_mask=mask,
            response_logprobs=logprobs,
            reward_score=math.nan if lost else sum(rewards),
            token_rewards=token_rewards,
            num_turns=len(rewards),
            metrics=AgentLoopMetrics(generate_sequences=seconds),
            episode=b"" if ours else None,
            extra_fields={
                "reward_extra_info": {
                    k: math.nan if failed else (metrics or {}).get(v) for k, v in SCALARS.items()
                },
                "min_global_steps": oldest,
                "max_global_steps": newest,
                "turn_scores": [rewards[span.turn] for span in row.spans],
                "tool_rewards": [],
                "gem": {
                    "spans": [(span.turn, span.start, span.end) for span in row.spans],
                    "error": error,
                },
            },
        )


@register("gem_turns")
class GemTurnsAgentLoop(GemAgentLoop):
    """Plays one episode; every turn becomes a row of its own."""

    agent = "gem_turns"


class _Sampler(EngineSampler):
    """`generate` of verl's server client as a sampler of one episode."""

    seconds = 0.0
    """Time spent waiting for the server."""

    def __init__(self, chat: ChatFormat, *args: Any, **named: Any) -> None:
        super().__init__(chat.stop_ids, *args, **named)
        self.chat = chat

    def _asked(self, request: Request) -> dict[str, Any]:
        """Return a prompt as verl's servers take it: with one placeholder for each image."""
        if not request.images:
            return {"prompt_ids": request.prompt_ids}
        assert isinstance(self.chat, VisionChatFormat)
        return {
            "prompt_ids": self.chat.collapse(request.prompt_ids, request.images),
            "image_data": [opened(image) for image in request.images],
        }

    async def __call__(self, request: Request) -> Sample:
        """Sample one turn."""
        own = {"stop_token_ids": self.stop_ids, "max_tokens": request.max_tokens}
        params = self.params | own
        seed = self.turn_seed()
        if seed is not None:
            params["seed"] = seed
        began = time.monotonic()
        output = await self.engine(**self._asked(request), sampling_params=params)
        self.seconds += time.monotonic() - began
        if output.stop_reason in ("abort", "aborted"):
            raise RolloutError("the server aborted a request")
        oldest, newest = (output.extra_fields.get(f"{end}_global_steps") for end in ("min", "max"))
        version = None if None in (oldest, newest) else (int(oldest), int(newest))
        # verl says "completed" for a finished turn and for one that was cut.
        cut = len(output.token_ids) >= request.max_tokens
        sample = self.sample(output.token_ids, output.log_probs, cut=cut, version=version)
        read = output.extra_fields.get(READ)
        return sample if read is None else replace(sample, prompt_tokens=tokens_read(request, read))

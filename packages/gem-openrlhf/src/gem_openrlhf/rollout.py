"""OpenRLHF's agent hook: episodes are played by `gem.rollout`, its vLLM actor is the sampler.

One episode is one training row, with exactly the tokens that were sampled. OpenRLHF has no place
for what else is known of an episode, so with the worker hook the whole episode travels in the place
of the row's label, which OpenRLHF passes through, and `gem_openrlhf.advantage` takes it out again.
"""

from __future__ import annotations

import math
from collections import Counter
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from openrlhf.utils.agent import AgentExecutorBase

from gem.errors import ConfigurationError, RolloutError
from gem.rollout import ChatFormat, Request, Sample
from gem.trajectory import Trajectory
from gem_openrlhf.images import Eyes, blank, model_inputs
from gem_openrlhf.record import keep_evaluated
from gem_openrlhf.settings import Settings
from gem_openrlhf.worker import installed, require_hook
from gem_train.experiment.tasksets import DatasetRow
from gem_train.packed import PackedTrajectory
from gem_train.sampling import EngineSampler, tokens_read

PREFIX = "gem/"
FAILED = f"{PREFIX}failed"
"""Key of the log that counts failed episodes."""


@dataclass(frozen=True)
class Played:
    """What stands in the place of a row's label after the rollout."""

    label: str
    """The dataset's."""
    trajectory: PackedTrajectory


class GemAgentExecutor(AgentExecutorBase):  # type: ignore[misc]
    """Plays the task in a row's label; agent files subclass it and set `settings`."""

    settings = Settings()

    def __init__(self) -> None:
        """Called by OpenRLHF once in each vLLM actor."""
        self._chat: ChatFormat | None = None
        self._eyes: Eyes | None = None
        self._shown = False
        """Whether an episode has shown images."""
        self._plays: Counter[str] = Counter()

    async def execute(
        self,
        prompt: str,
        label: str,
        sampling_params: Any,
        max_length: int,
        hf_tokenizer: Any,
        llm_engine: Any,
        images: Any = None,
    ) -> dict[str, Any]:
        """Play one episode; see OpenRLHF's `AgentExecutorBase`.

        Raises:
            ConfigurationError: The settings need the worker hook, which is not active; or the row
                is not one of `make_dataset`, or has images; or images cannot be shown.
            RolloutError: The engine gave no answer; or an episode failed and nothing downstream
                could leave it out (OpenRLHF's own estimators, `max_failed_fraction=0`).
        """
        # Not when the actor is made: OpenRLHF waits forever for an actor that cannot be made.
        require_hook(self.settings)
        if images:
            raise ConfigurationError(
                "the row has images, but images come from environments; leave out --data.image_key"
            )
        settings, row = self.settings, DatasetRow.decode(label)
        if self._chat is None:
            # OpenRLHF unpickles a tokenizer (of a model that sees: a processor) for every prompt;
            # they are all the same.
            self._chat = settings.chat_format(hf_tokenizer)
        seed, params = self._seed(label, row), self._params(sampling_params, row)
        if self._chat.shows_images and (self._eyes is None or self._eyes.engine is not llm_engine):
            self._eyes = Eyes(llm_engine)
        sampler = _Sampler(self._chat, self._eyes, seed, engine=llm_engine, params=params)
        budget = settings.budget(max_length, sampling_params.max_tokens)
        trajectory = await settings.play(row.task, sampler, self._chat, budget)
        if row.evaluation is None:
            settings.check_left_out(trajectory, "OpenRLHF")
        elif settings.record_dir is not None:
            keep_evaluated(settings.record_dir, row.evaluation, trajectory)
        self._shown = self._shown or any(turn.images for turn in trajectory.turns)
        answer = self._row(trajectory, row, self._chat, shown=self._shown)
        if sampling_params.logprobs is None:
            answer["rollout_log_probs"] = None
        elif answer["rollout_log_probs"] is None:
            raise RolloutError("the engine returned no log-probabilities")
        kept = Played(label, PackedTrajectory.of(trajectory)) if installed() else label
        return {"prompt": prompt, "label": kept, **answer}

    def _seed(self, label: str, row: DatasetRow) -> tuple[int, ...] | None:
        """Return integers that decide the randomness of an episode; None leaves it to the engine.

        They are those of the row and of its play: the same in every engine, and in a run that goes
        on from a checkpoint.
        """
        play, self._plays[label] = self._plays[label], self._plays[label] + 1
        seed = self.settings.seed
        return None if seed is None else (seed, row.task.seed, row.number, play)

    def _params(self, params: Any, row: DatasetRow) -> Any:
        """Return sampling parameters of this episode's own: OpenRLHF's are shared."""
        own = copy(params)
        own.min_tokens = 0  # OpenRLHF's 1 keeps a turn from ending at once
        own.top_k = self.settings.top_k
        own.min_p = self.settings.min_p
        own.repetition_penalty = self.settings.repetition_penalty
        if row.sampling is not None:
            for name, value in {**row.sampling.engine, "repetition_penalty": 1.0}.items():
                setattr(own, name, value)
        if own.logprobs is None:
            own.logprobs = 0  # that of the sampled token, for comparison with the trainer's
        return own

    @staticmethod
    def _row(
        trajectory: Trajectory, row: DatasetRow, chat: ChatFormat, *, shown: bool = False
    ) -> dict[str, Any]:
        """Return what OpenRLHF makes a training row of, with log-probs if they are known."""
        success = float(trajectory.valid and trajectory.success)
        inputs = None
        if trajectory.valid:
            tokens = trajectory.training_rows()[0]
            start = len(tokens.prompt_ids)
            ids = tokens.ids
            ranges = [(start + span.start, start + span.end) for span in tokens.spans]
            logprobs = None if tokens.logprobs is None else [0.0] * start + tokens.logprobs
            reward = trajectory.total_reward
            inputs = model_inputs(chat, tokens.images)
        else:
            # OpenRLHF's rows hold at least one sampled token, here one that stands for no image;
            # this one's advantage will be 0. An evaluation has no mean of which this episode is no
            # part.
            stop_id = min(i for i in chat.stop_ids if chat.usable([i]))
            before = [stop_id]
            if shown:
                # The other rows have images, so this one must.
                before, inputs = blank(chat)
            end = len(before)
            ids, ranges, logprobs = [*before, stop_id], [(end, end + 1)], [0.0] * (end + 1)
            reward = 0.0 if row.evaluation is None else math.nan
        cut = bool(trajectory.turns) and trajectory.turns[-1].stop_reason == "length"
        return {
            "images": None,
            "mm_train_inputs": inputs,
            "reward": reward,
            "scores": success,
            "observation_tokens": ids,
            "action_ranges": ranges,
            "rollout_log_probs": logprobs,
            "truncated": cut or trajectory.end == "token_budget",
            # Every row must have the same keys.
            "extra_logs": {
                f"{PREFIX}success": success,
                f"{PREFIX}turns": float(len(trajectory.turns)),
                f"{PREFIX}sampled_tokens": float(trajectory.sampled_tokens),
                FAILED: float(not trajectory.valid),
            },
        }


class _Sampler(EngineSampler):
    """OpenRLHF's vLLM actor as a sampler of one episode."""

    def __init__(
        self, chat: ChatFormat, eyes: Eyes | None, seed: tuple[int, ...] | None, **how: Any
    ) -> None:
        super().__init__(chat.stop_ids, seed, **how)
        self._chat, self._eyes = chat, eyes

    async def __call__(self, request: Request) -> Sample:
        """Sample one turn."""
        params = copy(self.params)
        params.max_tokens = request.max_tokens
        params.stop_token_ids = self.stop_ids
        params.seed = self.turn_seed()
        if self._eyes is None or not request.images:
            return self.vllm_sample(await self.engine.generate(request.prompt_ids, params))
        answer = await self._eyes.generate(request, self._chat, params)
        sample = self.vllm_sample(answer)
        return replace(sample, prompt_tokens=tokens_read(request, answer.prompt_token_ids))

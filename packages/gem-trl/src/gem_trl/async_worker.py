"""Plays GEM's episodes for TRL's async trainer, and gives every turn its advantage.

TRL's trainer takes samples from a queue, each with one advantage. A turn is a sample: the
conversation up to its end, of which only the turn's tokens are trained on. TRL forwards what the
samples of an episode share once. An episode whose turns all have the same advantage is one sample.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

from gem.errors import ConfigurationError, GemError, RolloutError
from gem.rollout.collect import Rounds
from gem.rollout.play import Budget, Request, Sample, Sampler
from gem.rollout.tokens import ChatFormat
from gem.trajectory import Trajectory
from gem_train.experiment.estimate import turn_advantages
from gem_train.experiment.tasksets import DatasetRow
from gem_train.recording import RunRecording
from gem_train.settings import check_episodes
from gem_trl.rewards import RewardFunctions, messages
from gem_trl.rollout import training_row
from gem_trl.settings import GemSettings

Engine: TypeAlias = Callable[[Sequence[Request]], list[Sample]]
"""Samples a turn for each request, with log-probabilities at the trainer's temperature before any
candidate is left out, and the version of the weights (TRL's `model_version`) if it knows it. It is
called from another thread than the trainer's."""

_POLL_S = 0.05
"""How often the worker looks whether the trainer has room for another batch, in seconds."""
_JOIN_S = 60.0
"""How long the end of training waits for a round that is being sampled, in seconds."""


class GemRolloutWorker:
    """TRL's `rollout_worker` that plays whole batches of episodes.

    It implements `trl.experimental.async_grpo.async_grpo_trainer.RolloutWorkerProtocol`. A thread
    plays a batch, computes its advantages and pushes its samples. It begins the next one when
    fewer than `waiting` samples are left in the queue.
    """

    def __init__(
        self,
        rows: Sequence[Mapping[str, Any]],
        engine: Engine,
        chat: ChatFormat,
        budget: Budget,
        gem: GemSettings,
        recording: RunRecording,
        *,
        tasks: int,
        group_size: int,
        waiting: int,
        rewards: RewardFunctions | None = None,
    ) -> None:
        """Prepare for training; nothing is played before `start`.

        Args:
            rows: Of `gem_trl.task_dataset`, played in their order, again and again.
            engine: Samples turns.
            chat: Token layout of a conversation.
            budget: Limits of an episode.
            gem: How episodes are played, and what becomes of their rewards.
            recording: Gets each batch as an iteration.
            tasks: Number of tasks of a batch.
            group_size: Episodes of a task.
            waiting: Number of samples in the queue below which the next batch is begun.
            rewards: Functions whose rewards are added to the episodes'.
        """
        self.rollout_buffer: queue.Queue[RolloutSample] = queue.Queue()
        self.metrics_queue: queue.Queue[dict[str, float]] = queue.Queue()
        self._rows = rows
        self._engine = engine
        self._chat = chat
        self._budget = budget
        self._gem = gem
        self._recording = recording
        self._tasks, self._group_size, self._waiting = tasks, group_size, waiting
        self._rewards = rewards or RewardFunctions(None)
        self._version = 0
        self._groups = 0
        self.batches = 0
        """Batches that have been played and pushed."""
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        self._beat = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="gem-rollouts", daemon=True)

    # TRL's RolloutWorkerProtocol

    def start(self) -> None:
        """Begin to play; TRL calls it after the first weights have been sent."""
        self._beat = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """End after the round that is being sampled."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)

    def update_model_version(self, model_version: int) -> None:
        """Take note of the number of TRL's weight updates."""
        self._version = model_version

    def check_health(self, stale_after_s: float) -> None:
        """Raise if playing has failed or hangs; TRL calls it while it waits for samples.

        Args:
            stale_after_s: Longest time without a round of turns in seconds.

        Raises:
            RolloutError: No round has ended for so long, or playing ended.
            GemError: What ended the playing, such as too many failed episodes.
        """
        self.check()
        silent = time.monotonic() - self._beat
        if silent > stale_after_s:
            raise RolloutError(
                f"no round of turns has ended for {silent:.0f} s; check the environments and the "
                "engine, or raise AsyncGRPOConfig.heartbeat_stale_after_s"
            )

    def check(self) -> None:
        """Raise what has ended the playing, if something has.

        Raises:
            GemError: An error of GEM's is raised as it is.
            RolloutError: Another one is its cause.
        """
        error = self._error
        if isinstance(error, GemError):
            raise error
        if error is not None:
            raise RolloutError(
                f"playing episodes failed: {type(error).__name__}: {error}"
            ) from error

    # Episodes

    def _run(self) -> None:
        try:
            rows = self._ordered()
            while self._room():
                self._push(self._play([next(rows) for _ in range(self._tasks)]))
        except BaseException as error:  # SystemExit of an environment, too
            # What a round was cut off by, when training has ended, is no failure.
            if not self._stopping.is_set():
                self._error = error

    def _ordered(self) -> Iterator[Mapping[str, Any]]:
        while True:
            yield from self._rows

    def _room(self) -> bool:
        """Wait until the trainer has use for another batch; return False if training ends."""
        while self.rollout_buffer.qsize() >= self._waiting:
            self._beat = time.monotonic()
            if self._stopping.wait(_POLL_S):
                break
        return not self._stopping.is_set()

    def _play(self, rows: Sequence[Mapping[str, Any]]) -> list[Trajectory]:
        began = time.perf_counter()
        players, further = [], []
        for row in rows:
            self._groups += 1
            decoded = DatasetRow.decode(row["prompt"])
            if decoded.sampling is not None:
                raise ConfigurationError(
                    f"the row of {decoded.task} asks for a sampling of its own: in training it is "
                    "AsyncGRPOConfig's"
                )
            further += [{k: row[k] for k in row if k != "prompt"}] * self._group_size
            players += [partial(self._episode, decoded, self._groups)] * self._group_size
        episodes = self._rewards.score(
            Rounds(self._sampled).play(players),
            self._chat,
            system_prompt=self._gem.system_prompt,
            columns=further,
            log_metric=lambda name, value: self.metrics_queue.put({name: value}),
        )
        check_episodes(episodes, self._gem.max_failed_fraction)
        self._seconds = time.perf_counter() - began
        return episodes

    async def _episode(self, row: DatasetRow, group: int, sampler: Sampler) -> Trajectory:
        return await self._gem.play(row.task, sampler, self._chat, self._budget, group=group)

    def _sampled(self, requests: list[Request]) -> list[Sample]:
        if self._stopping.is_set():
            raise RolloutError("training has ended")
        before = self._version
        samples = self._engine(requests)
        self._beat = time.monotonic()
        # What does not know its weights had one of those that were there meanwhile.
        meanwhile = (before, self._version)
        return [
            each if each.version is not None else replace(each, version=meanwhile)
            for each in samples
        ]

    def _push(self, episodes: Sequence[Trajectory]) -> None:
        """Compute the advantages of a batch, record it, and hand its samples to the trainer."""
        advantages, _ = turn_advantages(
            self._gem.advantage, episodes, self._gem, gamma=self._gem.gamma
        )
        kept = self._gem.in_loss(episodes)
        samples = [
            sample
            for episode, turns, trained in zip(episodes, advantages, kept, strict=True)
            if trained
            for sample in samples_of(episode, turns, self._chat, self._gem.system_prompt)
        ]
        metrics = {"rollout_s": self._seconds, **self._rewards.metrics(episodes)}
        found = self._recording.keep_batch(episodes, advantages, metrics=metrics)
        versions = [version for e in episodes for version in e.policy_version or ()]
        age = {"policy_version_min": float(min(versions))} if versions else {}
        self._recording.write_iteration(self.batches, metrics={**age, "samples": len(samples)})
        self.metrics_queue.put({f"gem/{name}": value for name, value in found.items()})
        for sample in samples:
            self.rollout_buffer.put(sample)
        self.batches += 1


def samples_of(
    episode: Trajectory,
    advantages: Sequence[float],
    chat: ChatFormat,
    system_prompt: str | None = None,
) -> list[RolloutSample]:
    """Return an episode as TRL's samples: one for each turn, or one if all advantages are equal.

    Args:
        episode: A valid one, with one training row.
        advantages: Of its turns.
        chat: Decodes what the policy said.
        system_prompt: Text of the system message.

    Raises:
        RolloutError: The engine did not report the log-probability of each token.
    """
    row = training_row(episode)
    if row is None or episode.policy_version is None:
        return []  # nothing was sampled
    if row.logprobs is None or not all(map(math.isfinite, row.logprobs)):
        raise RolloutError("the engine must report the log-probability of every sampled token")
    first = len(row.prompt_ids)
    ids = np.array(row.ids, dtype=np.int64)
    logprobs = np.array([0.0] * first + row.logprobs, dtype=np.float32)
    sampled = np.array([0] * first + row.mask, dtype=np.int64)
    spans = [(span.turn, span.start, span.end) for span in row.spans if span.end > span.start]
    if len({advantages[turn] for turn, _, _ in spans}) == 1:
        spans = [(spans[0][0], 0, spans[-1][2])]
    prompt, completion = messages(episode, chat, system_prompt)
    samples = []
    for number, (turn, start, end) in enumerate(spans, 1):
        stop = first + end
        trained = sampled[:stop].copy()
        trained[: first + start] = 0
        samples.append(
            RolloutSample(
                prompt=prompt,
                completion=completion,
                input_ids=ids[:stop],
                completion_mask=trained,
                old_log_probs=logprobs[:stop],
                advantage=float(advantages[turn]),
                # The oldest: TRL drops what has become too old.
                model_version=episode.policy_version[0],
                group_id=episode.group,
                # TRL averages over the samples that have one: one an episode.
                metrics={"reward": episode.total_reward} if number == len(spans) else {},
                enqueued_at=time.time(),
            )
        )
    return samples

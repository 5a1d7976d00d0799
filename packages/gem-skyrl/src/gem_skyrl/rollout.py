"""SkyRL's generator hook: episodes are played by `gem.rollout`, its vLLM servers are the sampler.

A generator lives in the trainer's process. Its output has columns with an entry for each training
row; SkyRL passes on those that it does not know, so that a whole episode travels in one of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from skyrl.backends.skyrl_train.inference_servers.remote_inference_client import (
    RemoteGenerateClient,
)
from skyrl.train.generators.base import GeneratorInput, GeneratorInterface, GeneratorOutput
from skyrl.train.generators.utils import build_vllm_cache_salt

from gem.errors import RolloutError
from gem.rollout import Budget, ChatFormat, Request, Sample, together
from gem.trajectory import TrainingRow, Trajectory
from gem_skyrl.dataset import read
from gem_skyrl.settings import SAMPLING, Settings
from gem_train.experiment.tasksets import DatasetRow
from gem_train.packed import PackedTrajectory
from gem_train.sampling import EngineSampler

EPISODES = "gem_episodes"
"""Column of the generator's output: the packed episode in its last row, else None."""


@dataclass
class Engines:
    """SkyRL's vLLM servers behind their router, and how often they were given weights."""

    client: Any
    """SkyRL's; the trainer's process has the one that counts."""
    model: str
    """Name of the policy in requests."""
    resumed: int = 0
    """Updates of the checkpoint that the run goes on from."""

    def __post_init__(self) -> None:
        self._requests = RemoteGenerateClient(self.client.proxy_url)
        self._sessions = itertools.count()

    @property
    def version(self) -> int:
        """Number of updates that the engines' weights have had."""
        # The weights that a run begins with are given to them, too.
        return self.resumed + max(0, int(self.client.weight_version) - 1)

    def session(self) -> str:
        """Return a name for the requests of an episode, which one engine answers."""
        return f"gem-{next(self._sessions)}"

    async def generate(
        self, prompt_ids: Sequence[int], params: Mapping[str, Any], session: str
    ) -> Any:
        """Ask for one completion."""
        return await self._requests.generate(
            prompt_token_ids=list(prompt_ids),
            sampling_params=dict(params),
            session_id=session,
            model=self.model,
            # Without it a prefix cache would hold values that older weights have computed.
            cache_salt=build_vllm_cache_salt(int(self.client.weight_version), self.model),
        )


class EpisodeSampler(EngineSampler):
    """The engines as the sampler of one episode."""

    def __init__(
        self,
        stop_ids: frozenset[int],
        seed: Sequence[int] | None,
        engines: Engines,
        params: Mapping[str, Any],
    ) -> None:
        """Prepare for an episode.

        Args:
            stop_ids: Tokens at which a turn ends.
            seed: Integers that decide the randomness of the episode.
            engines: SkyRL's.
            params: vLLM's sampling parameters of every turn.
        """
        super().__init__(stop_ids, seed, engine=engines, params=params)
        self._session = engines.session()

    async def __call__(self, request: Request) -> Sample:
        """Sample one turn.

        Raises:
            RolloutError: The engine gave no whole answer.
        """
        params = {
            **self.params,
            "max_tokens": request.max_tokens,
            "stop_token_ids": self.stop_ids,
            "logprobs": 1,
        }
        if (seed := self.turn_seed()) is not None:
            params["seed"] = seed
        before = self.engine.version
        answer = await self.engine.generate(request.prompt_ids, params, self._session)
        if answer.stop_reason not in ("stop", "length"):
            raise RolloutError(f"the engine ended a request with {answer.stop_reason!r}")
        ids, logprobs = answer.response_ids, answer.response_logprobs
        if logprobs is None or len(logprobs) != len(ids):
            raise RolloutError("the engine returned no log-probabilities of some tokens")
        # A request goes on with new weights where they come while it runs (asynchronous training).
        version = (before, self.engine.version)
        return self.sample(ids, logprobs, cut=answer.stop_reason == "length", version=version)


class GemGenerator(GeneratorInterface):  # type: ignore[misc]
    """Plays an episode of every prompt of a batch."""

    def __init__(
        self,
        engines: Engines,
        chat: ChatFormat,
        settings: Settings,
        budget: Budget,
        *,
        several: bool,
    ) -> None:
        """Prepare for a run.

        Args:
            engines: SkyRL's.
            chat: Token layout of a conversation.
            settings: The adapter's.
            budget: Limits of an episode.
            several: Whether an episode may have several rows
                (`generator.step_wise_trajectories`).
        """
        self.engines, self.chat, self.settings, self.budget = engines, chat, settings, budget
        self.several = several

    async def generate(self, input_batch: GeneratorInput) -> GeneratorOutput:
        """Play a batch; see SkyRL's `GeneratorInterface`."""
        names, step = input_batch["trajectory_ids"], input_batch["batch_metadata"].global_step
        rows = [read(extras) for extras in input_batch["env_extras"]]
        keys = [(step, name.repetition_id) for name in names]
        episodes = await self.play(rows, keys, input_batch["sampling_params"] or {})
        return columns(episodes, min(self.chat.stop_ids), names, several=self.several)

    async def play(
        self,
        rows: Sequence[DatasetRow],
        keys: Sequence[tuple[int, int]],
        sampling: Mapping[str, Any],
    ) -> list[Trajectory]:
        """Play an episode of each row, all at the same time.

        Args:
            rows: Tasks.
            keys: Integers of each that tell its randomness from that of other plays of the task.
            sampling: SkyRL's sampling parameters.
        """
        settings, plays = self.settings, []
        for row, key in zip(rows, keys, strict=True):
            params = {name: sampling[name] for name in SAMPLING if name in sampling}
            if row.sampling is not None:
                params |= row.sampling.engine
            seed = None
            if settings.seed is not None:
                seed = (settings.seed, row.task.seed, row.number, *key)
            sampler = EpisodeSampler(self.chat.stop_ids, seed, self.engines, params)
            plays.append(settings.play(row.task, sampler, self.chat, self.budget, group=row.number))
        return await together(plays)


def trained_rows(episode: Trajectory | PackedTrajectory) -> list[Any]:
    """Return the training rows of an episode; one that failed has none."""
    rows = episode.training_rows() if episode.valid else []
    return [row for row in rows if len(row.response_ids)]


def columns(
    episodes: Sequence[Trajectory], stop_id: int, names: Sequence[Any], *, several: bool
) -> GeneratorOutput:
    """Return episodes as SkyRL wants them, with at least one row each.

    Args:
        episodes: One for each prompt of the batch, in its order.
        stop_id: The one token of the row of an episode without any.
        names: SkyRL's name of each.
        several: Whether an episode may have several rows.

    Raises:
        RolloutError: An episode has several rows where it may not.
    """
    lines: list[dict[str, Any]] = []
    for episode, name in zip(episodes, names, strict=True):
        rows = trained_rows(episode)
        if len(rows) > 1 and not several:
            raise RolloutError(
                f"the episode of {episode.task} has {len(rows)} training rows: set "
                "generator.step_wise_trajectories=true"
            )
        made = [_line(row, episode) for row in rows] or [_empty(stop_id)]
        stop = episode.turns[-1].stop_reason if episode.turns else "stop"
        for number, each in enumerate(made, 1):
            last = number == len(made)
            more: dict[str, Any] = {EPISODES: PackedTrajectory.of(episode) if last else None}
            more |= {"is_last_step": last} if several else {}
            lines.append({**each, "stop_reasons": stop, "trajectory_ids": name, **more})
    found: GeneratorOutput = {key: [each[key] for each in lines] for key in lines[0]}
    if None in found["rollout_logprobs"]:
        # SkyRL has them of all rows or of none; a 0 would be a probability of 1.
        found["rollout_logprobs"] = None
    return {**found, "rollout_metrics": {}}


def _line(row: TrainingRow, episode: Trajectory) -> dict[str, Any]:
    ids = row.response_ids
    return {
        "prompt_token_ids": list(row.prompt_ids),
        "response_ids": list(ids),
        "loss_masks": list(row.mask),
        # One reward for each token: of a single number SkyRL would filter groups.
        "rewards": list(row.token_rewards(episode.rewards)),
        "rollout_logprobs": None if row.logprobs is None else list(row.logprobs),
    }


def _empty(stop_id: int) -> dict[str, Any]:
    """Return a row for an episode that has none: SkyRL wants one, this trains nothing."""
    return {
        "prompt_token_ids": [stop_id],
        "response_ids": [stop_id],
        "loss_masks": [0],
        "rewards": [0.0],
        "rollout_logprobs": [0.0],
    }

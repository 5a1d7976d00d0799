"""fake-trainer's rollout hook: episodes are played by `gem.rollout`, its engine is the sampler.

No token is encoded twice: what the engine sampled is what is trained on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fake_trainer import Engine

from gem.rollout import ChatFormat, Request, Sample, together
from gem.trajectory import TrainingRow, Trajectory
from gem_template.settings import Settings
from gem_train.experiment.tasksets import DatasetRow
from gem_train.sampling import EngineSampler


class EpisodeSampler(EngineSampler):
    """The trainer's engine as the sampler of one episode."""

    def __init__(
        self,
        engine: Engine,
        config: Mapping[str, Any],
        row: DatasetRow,
        stop_ids: frozenset[int],
        seed: Sequence[int] | None,
    ) -> None:
        """Prepare for an episode of a task.

        Args:
            engine: The trainer's.
            config: The trainer's configuration.
            row: The task; may have a sampling of its own.
            stop_ids: Tokens at which a turn ends.
            seed: Integers that decide the randomness of the episode.
        """
        super().__init__(stop_ids, seed)
        self._engine, self._top_k = engine, config["top_k"]
        self._temperature = config["temperature"]
        if row.sampling is not None:
            # Greedy: the engine divides by the temperature, so that it must not be 0.
            self._temperature = row.sampling.temperature or 1.0
            self._top_k = row.sampling.top_k if row.sampling.temperature else 1

    async def __call__(self, request: Request) -> Sample:
        """Sample one turn."""
        output = await self._engine.generate(
            request.prompt_ids,
            max_tokens=request.max_tokens,
            stop_token_ids=self.stop_ids,
            temperature=self._temperature,
            top_k=self._top_k,
            seed=self.turn_seed(),
        )
        cut = output.finish_reason == "length"
        return self.sample(output.token_ids, output.logprobs, cut=cut)


async def play_rows(
    texts: Sequence[str],
    engine: Engine,
    chat: ChatFormat,
    config: Mapping[str, Any],
    settings: Settings,
) -> list[Trajectory]:
    """Play an episode of each row of the dataset, all at the same time.

    Args:
        texts: Rows of the dataset; rows of the same number are a group.
        engine: The trainer's.
        chat: Token layout of a conversation.
        config: The trainer's configuration.
        settings: The adapter's.

    Returns:
        The episodes in the order of the texts; failed ones say why.
    """
    budget = settings.limits(config["prompt_tokens"], config["response_tokens"])
    plays = []
    for number, text in enumerate(texts):
        row = DatasetRow.decode(text)
        seed = None if settings.seed is None else (settings.seed, row.task.seed, number)
        sampler = EpisodeSampler(engine, config, row, chat.stop_ids, seed)
        plays.append(settings.play(row.task, sampler, chat, budget, group=row.number))
    return await together(plays)


def trainer_row(row: TrainingRow) -> dict[str, Any]:
    """Return a training row as fake-trainer wants it; its rewards are in the advantages."""
    return {
        "ids": row.ids,
        "prompt_length": len(row.prompt_ids),
        "mask": row.mask,
        "reward": 0.0,
    }

"""oat's actor: its vLLM samples step by step, `gem.rollout` plays."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from oat.algorithms.ppo import PPOActor
from vllm.sampling_params import RequestOutputKind, SamplingParams

from gem_oat import compat, status_files, stepped
from gem_oat.settings import Args
from gem_train.experiment.tasksets import DatasetRow
from gem_train.packed import PackedTrajectory

compat.install()


class Actor(PPOActor):  # type: ignore[misc]
    """Plays the tasks that a learner sends, all at the same time."""

    args: Args

    def init(self, actor_id: int, save_path: str) -> None:
        """Load the engine; called by oat's learner."""
        if self.args.tokenizer:
            # oat gives it to its learner only.
            self.vllm_args["tokenizer"] = self.args.tokenizer
        with status_files.reported(f"actor {actor_id}"):
            super().init(actor_id, save_path)
            self._chat = self.args.gem.chat_format(self.tokenizer)

    def init_process_group(self, *args: Any, **kwargs: Any) -> None:
        """Join the group that weights are sent in; called by oat's learner, which waits there."""
        with status_files.reported(f"actor {self.actor_id}"):
            super().init_process_group(*args, **kwargs)

    def update_weight(self, *args: Any, **kwargs: Any) -> Any:
        """Receive a parameter; called by oat's learner.

        The learner would wait for an engine that cannot receive, and never see why.
        """
        with status_files.reported(f"actor {self.actor_id}"):
            return super().update_weight(*args, **kwargs)

    def step(
        self, prompts: Sequence[str], formatted_prompts: Any = None, references: Sequence[str] = ()
    ) -> Any:
        """Play training episodes.

        Args:
            prompts: Tasks, from `gem_train.experiment.tasksets.DatasetRow.encode`.
            formatted_prompts: Not used.
            references: The number of the iteration, for each task.

        Returns:
            A handle of oat's for `--num_samples` trajectories of each task, in order; of a match
            for those of all agents.
        """
        return self._play(prompts, (0, int(references[0])), self.args.num_samples)

    def play_evaluation(self, tasks: Sequence[str], number: int, updates: int) -> Any:
        """Play evaluation episodes.

        Args:
            tasks: From `gem_train.experiment.tasksets.DatasetRow.encode`, with its sampling if that
                is to take the place of `--eval_temperature` and the like.
            number: Of the evaluation among all.
            updates: Iterations that the policy has been trained for.

        Returns:
            A handle of oat's for one trajectory of each task, in order.
        """
        return self._play(tasks, (1 + number, updates), evaluation=True)

    def _play(
        self, tasks: Sequence[str], key: tuple[int, int], copies: int = 1, evaluation: bool = False
    ) -> Any:
        """Play `copies` episodes of each task at the same time; `key` is a part of their seeds."""
        args, prefix = self.args, "eval_" if evaluation else ""
        gem, budget = args.gem, args.budget(evaluation=evaluation)
        names = ("temperature", "top_p", "top_k")
        sampling = {name: getattr(args, prefix + name) for name in names}
        if not evaluation:
            sampling |= {"min_p": gem.min_p, "repetition_penalty": gem.repetition_penalty}
        sampling |= {"logprobs": 1, "output_kind": RequestOutputKind.FINAL_ONLY}
        engine, stop_ids = stepped.SteppedEngine(self.llm.llm_engine), self._chat.stop_ids

        async def one(row: DatasetRow, copy: int) -> list[PackedTrajectory]:
            own = {} if row.sampling is None else row.sampling.engine
            params = partial(SamplingParams, **sampling | own)
            # An evaluation may have several rows of a task.
            number = row.number if evaluation else copy
            seed = None if gem.seed is None else (gem.seed, *key, row.task.seed, number)
            sampler = stepped.SteppedSampler(stop_ids, seed, engine=engine, params=params)
            played = await gem.play_all(row.task, sampler, self._chat, budget, group=row.number)
            return [PackedTrajectory.of(each) for each in played]

        with status_files.reported(f"actor {self.actor_id}"):
            rows = map(DatasetRow.decode, tasks)
            played = engine.run([one(row, copy) for row in rows for copy in range(copies)])
            return self.ipc_client.serialize_ipc([t for each in asyncio.run(played) for t in each])

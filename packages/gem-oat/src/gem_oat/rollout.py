"""oat's actor: its vLLM samples, `gem.rollout` plays."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import vllm
from oat.algorithms.ppo import PPOActor

from gem.rollout import Budget, ChatFormat
from gem.tasks import Task
from gem.training.rounds import Rounds, RoundsSampler
from gem.training.tasksets import decode_task
from gem.training.words import reported
from gem.trajectory import Trajectory
from gem_oat import compat
from gem_oat.settings import Args

compat.install()


class Actor(PPOActor):  # type: ignore[misc]
    """Plays the tasks that a learner sends; all of its episodes share every call of the engine."""

    args: Args

    def init(self, actor_id: int, save_path: str) -> None:
        """Load the engine; called by oat's learner."""
        with reported(f"actor {actor_id}"):
            super().init(actor_id, save_path)
            self._chat = ChatFormat(self.tokenizer, system_prompt=self.args.gem.system_prompt)

    def init_process_group(self, *args: Any, **kwargs: Any) -> None:
        """Join the group that weights are sent in; called by oat's learner, which waits there."""
        with reported(f"actor {self.actor_id}"):
            super().init_process_group(*args, **kwargs)

    def update_weight(self, *args: Any, **kwargs: Any) -> Any:
        """Receive a parameter; called by oat's learner.

        The learner would wait for an engine that cannot receive, and never see why.
        """
        with reported(f"actor {self.actor_id}"):
            return super().update_weight(*args, **kwargs)

    def step(
        self,
        prompts: Sequence[str],
        formatted_prompts: Sequence[str] | None = None,
        references: Sequence[str] | None = None,
    ) -> Any:
        """Play training episodes.

        Args:
            prompts: Tasks, from `gem.training.tasksets.encode_task`.
            formatted_prompts: Not used.
            references: The number of each task within the run.

        Returns:
            A handle of oat's for `--num_samples` trajectories of each task, in order.
        """
        args = self.args
        size = args.rollout_batch_size
        with reported(f"actor {self.actor_id}"):
            numbers = [int(number) for number in references or []]
            jobs = [
                (decode_task(text)[0], copy, number % size)
                for text, number in zip(prompts, numbers, strict=True)
                for copy in range(args.num_samples)
            ]
            iteration = min(numbers, default=0) // size
            return self._play(jobs, args.sampling(), args.budget(), (0, iteration))

    def play_evaluation(
        self, tasks: Sequence[str], temperature: float | None, number: int, updates: int
    ) -> Any:
        """Play evaluation episodes.

        Args:
            tasks: From `gem.training.tasksets.encode_task`.
            temperature: Instead of `--eval_temperature`.
            number: Of the evaluation among all.
            updates: Iterations that the policy has been trained for.

        Returns:
            A handle of oat's for one trajectory of each task, in order.
        """
        with reported(f"actor {self.actor_id}"):
            jobs = [(decode_task(text)[0], 0, group) for group, text in enumerate(tasks)]
            sampling = self.args.sampling(evaluation=True)
            if temperature is not None:
                sampling["temperature"] = temperature
            budget = self.args.budget(evaluation=True)
            return self._play(jobs, sampling, budget, (1 + number, updates))

    def _play(
        self,
        jobs: Iterable[tuple[Task, int, int]],
        sampling: dict[str, Any],
        budget: Budget,
        key: tuple[int, int],
    ) -> Any:
        """Play episodes at the same time; `jobs` are tasks, each with its copy and group."""
        gem, rounds = self.args.gem, Rounds(self._generate)
        params = partial(vllm.SamplingParams, logprobs=1, **sampling)

        async def one(task: Task, copy: int, group: int) -> Trajectory:
            seed = None if gem.seed is None else (gem.seed, *key, task.seed, copy)
            sampler = RoundsSampler(rounds, params, self._chat.stop_ids, seed)
            return await gem.play(task, sampler, self._chat, budget, group=group)

        episodes = asyncio.run(rounds.run([one(*job) for job in jobs]))
        return self.ipc_client.serialize_ipc(episodes)

    def _generate(self, prompts: list[list[int]], params: list[Any]) -> Sequence[Any]:
        texts = [{"prompt_token_ids": ids} for ids in prompts]
        outputs: Sequence[Any] = self.llm.generate(texts, sampling_params=params, use_tqdm=False)
        return outputs

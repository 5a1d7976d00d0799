"""oat's actor: its vLLM samples step by step, `gem.rollout` plays."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from oat.algorithms.ppo import PPOActor
from vllm.sampling_params import RequestOutputKind, SamplingParams

from gem.packed import PackedTrajectory
from gem.training import status_files, stepped, tasksets
from gem_oat import compat
from gem_oat.settings import Args

compat.install()


class Actor(PPOActor):  # type: ignore[misc]
    """Plays the tasks that a learner sends, all at the same time."""

    args: Args

    def init(self, actor_id: int, save_path: str) -> None:
        """Load the engine; called by oat's learner."""
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
            prompts: Tasks, from `gem.training.tasksets.encode_task`.
            formatted_prompts: Not used.
            references: The number of each task within the run.

        Returns:
            A handle of oat's for `--num_samples` trajectories of each task, in order.
        """
        size = self.args.rollout_batch_size
        numbers = [int(number) for number in references]
        jobs = [
            (text, copy, number % size)
            for text, number in zip(prompts, numbers, strict=True)
            for copy in range(self.args.num_samples)
        ]
        return self._play(jobs, (0, min(numbers, default=0) // size))

    def play_evaluation(self, tasks: Sequence[str], number: int, updates: int) -> Any:
        """Play evaluation episodes.

        Args:
            tasks: From `gem.training.tasksets.encode_task`, with a temperature if it is to take
                the place of `--eval_temperature`.
            number: Of the evaluation among all.
            updates: Iterations that the policy has been trained for.

        Returns:
            A handle of oat's for one trajectory of each task, in order.
        """
        jobs = [(text, 0, group) for group, text in enumerate(tasks)]
        return self._play(jobs, (1 + number, updates), evaluation=True)

    def _play(
        self, jobs: Iterable[tuple[str, int, int]], key: tuple[int, int], evaluation: bool = False
    ) -> Any:
        """Play episodes at the same time; `jobs` are tasks, each with its copy and group."""
        gem, budget = self.args.gem, self.args.budget(evaluation=evaluation)
        sampling = self.args.sampling(evaluation=evaluation)
        sampling |= {"logprobs": 1, "output_kind": RequestOutputKind.FINAL_ONLY}
        engine = stepped.SteppedEngine(self.llm.llm_engine)

        async def one(text: str, copy: int, group: int) -> PackedTrajectory:
            task, temperature = tasksets.decode_task(text)
            own = {} if temperature is None else {"temperature": temperature}
            params = partial(SamplingParams, **sampling | own)
            seed = None if gem.seed is None else (gem.seed, *key, task.seed, copy)
            sampler = stepped.SteppedSampler(engine, params, self._chat.stop_ids, seed)
            played = await gem.play(task, sampler, self._chat, budget, group=group)
            return PackedTrajectory.of(played)

        with status_files.reported(f"actor {self.actor_id}"):
            episodes = asyncio.run(engine.run([one(*job) for job in jobs]))
            return self.ipc_client.serialize_ipc(episodes)

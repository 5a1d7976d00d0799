"""oat's actor: its vLLM samples, `gem.rollout` plays."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import vllm
from oat.algorithms.ppo import PPOActor

from gem.errors import RolloutError
from gem.rollout import Budget, ChatFormat, Request, Sample, play
from gem.seeding import stream
from gem.tasks import Task
from gem.training.tasksets import decode_task
from gem.trajectory import Trajectory
from gem_oat import compat
from gem_oat.rounds import Rounds
from gem_oat.settings import Args
from gem_oat.supervise import reported

logger = logging.getLogger(__name__)

compat.install()


class Actor(PPOActor):  # type: ignore[misc]
    """Plays the tasks that a learner sends; all of its episodes share every call of the engine."""

    args: Args

    def init(self, actor_id: int, save_path: str) -> None:
        """Load the engine; called by oat's learner."""
        with reported(f"actor {actor_id}"):
            super().init(actor_id, save_path)
            self._chat = ChatFormat(self.tokenizer, system_prompt=self.args.gem_system_prompt)

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
        with reported(f"actor {self.actor_id}"):
            jobs, groups = [], []
            for text, number in zip(prompts, references or [], strict=True):
                task, _ = decode_task(text)
                group = int(number) % args.rollout_batch_size
                jobs += [(task, copy) for copy in range(args.num_samples)]
                groups += [group] * args.num_samples
            params = self._params(args.temperature, args.top_p, args.top_k)
            iteration = int((references or ["0"])[0]) // args.rollout_batch_size
            episodes = self._play(jobs, groups, params, args.budget(), (0, iteration))
        return self.ipc_client.serialize_ipc(episodes)

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
        args = self.args
        with reported(f"actor {self.actor_id}"):
            heat = args.eval_temperature if temperature is None else temperature
            params = self._params(heat, args.eval_top_p, args.eval_top_k)
            jobs = [(decode_task(text)[0], 0) for text in tasks]
            budget = args.budget(evaluation=True)
            key = (1 + number, updates)
            episodes = self._play(jobs, range(len(jobs)), params, budget, key)
        return self.ipc_client.serialize_ipc(episodes)

    def _params(self, temperature: float, top_p: float, top_k: int) -> dict[str, Any]:
        return {
            "temperature": temperature,
            "top_p": top_p,
            "top_k": top_k,
            "logprobs": 1,
            # Base models end a text with another token than the chat template ends a message.
            "stop_token_ids": sorted(self._chat.stop_ids),
        }

    def _play(
        self,
        jobs: Sequence[tuple[Task, int]],
        groups: Sequence[int],
        params: dict[str, Any],
        budget: Budget,
        key: tuple[int, int],
    ) -> list[Trajectory]:
        """Play episodes side by side; `jobs` are tasks with the number of their copy."""
        seed = self.args.gem_seed

        def randomness(task: Task, copy: int) -> tuple[int, ...] | None:
            return None if seed is None else (seed, *key, task.seed, copy)

        async def run() -> list[Trajectory]:
            rounds = Rounds(self._generate)

            async def one(job: tuple[Task, int], group: int) -> Trajectory:
                sampler = _Sampler(rounds, params, self._chat.stop_ids, randomness(*job))
                with rounds.episode():
                    return await play(
                        job[0],
                        sampler,
                        self._chat,
                        budget=budget,
                        context=self.args.gem_context,
                        group=group,
                        retries=self.args.gem_retries,
                        step_timeout_s=self.args.gem_step_timeout_s,
                    )

            async with rounds.serving():
                return await together([one(j, g) for j, g in zip(jobs, groups, strict=True)])

        episodes = asyncio.run(run())
        for trajectory in episodes:
            if trajectory.failure is not None:
                logger.warning("episode of %s is void: %s", trajectory.task, trajectory.failure)
        return episodes

    def _generate(self, prompts: list[list[int]], params: list[Any]) -> Sequence[Any]:
        texts = [{"prompt_token_ids": ids} for ids in prompts]
        outputs: Sequence[Any] = self.llm.generate(texts, sampling_params=params, use_tqdm=False)
        return outputs


async def together(coroutines: Sequence[Any]) -> list[Any]:
    """Run coroutines side by side; the first exception ends all of them."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


class _Sampler:
    """The engine as a sampler of one episode."""

    def __init__(
        self,
        rounds: Rounds,
        params: dict[str, Any],
        stop_ids: frozenset[int],
        seed: tuple[int, ...] | None,
    ) -> None:
        self._rounds = rounds
        self._params = params
        self._stop_ids = stop_ids
        self._seed = seed
        self._turns = 0

    async def __call__(self, request: Request) -> Sample:
        """Sample one turn."""
        seed = None if self._seed is None else stream(*self._seed, self._turns).getrandbits(31)
        self._turns += 1
        params = vllm.SamplingParams(**self._params, max_tokens=request.max_tokens, seed=seed)
        answer = await self._rounds.sample(request.prompt_ids, params)
        output = answer.outputs[0]
        if output.finish_reason not in ("stop", "length"):
            raise RolloutError(f"the engine ended a request with {output.finish_reason!r}")
        if list(answer.prompt_token_ids) != request.prompt_ids:
            raise RolloutError("the engine sampled from another prompt than it was given")
        ids = [int(i) for i in output.token_ids]
        known = zip(ids, output.logprobs, strict=True)
        logprobs = [float(each[token].logprob) for token, each in known]
        cut = output.finish_reason == "length" and ids[-1] not in self._stop_ids
        return Sample(ids, logprobs, "length" if cut else "stop")

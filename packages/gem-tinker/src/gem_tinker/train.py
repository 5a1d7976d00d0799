"""The direct loop: play, compute advantages, train, on nothing but the tinker SDK.

    export TINKER_API_KEY=...                    # or TINKER_BASE_URL=http://... for your own server
    python -m gem_tinker.train model=Qwen/Qwen3-8B train=gem:game:GuessTheNumber-v0 \\
        turn_tokens=512 record_dir=runs/guess

`gem_tinker.settings.Config` has all keys. With `record_dir` the run leaves a record
(`gem_train.record`), saves checkpoints, and goes on from the last one when it is started again.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import tinker

from gem.errors import RolloutError, exit_status
from gem.tasks import Task
from gem.trajectory import Trajectory
from gem_tinker import TRAINER, check_tinker
from gem_tinker.advantage import Objective, Row, batch_rows, to_datums, trained_rows
from gem_tinker.rollout import Sampling, play_batch
from gem_tinker.server import answer, check_init, new_adapter, probe, unanswered, update
from gem_tinker.settings import FREE, Config, read
from gem_train import batches, sampling, settings
from gem_train.checkpoints import Checkpoint, Checkpoints
from gem_train.ending import to_the_end
from gem_train.experiment.agreement import Agreement
from gem_train.experiment.filtering import filtered
from gem_train.experiment.metrics import show, update_metrics
from gem_train.recording import Report, RunRecording


async def train(config: Config, report: Report = lambda *_: None) -> None:
    """Run an experiment, from its last checkpoint if it has one.

    Args:
        config: The experiment.
        report: Called with iteration, split and metrics of each batch and evaluation.

    Raises:
        ConfigurationError: The server cannot do what is asked for, the model has no usable chat
            template, or the record is of another experiment (keys other than `FREE`) or version.
        RolloutError: Too many episodes failed, sampling is impossible, or training failed more
            than `restarts` times.
    """
    check_tinker()
    objective = Objective(config.loss_aggregation, await probe(config), config.response_tokens)
    about = TRAINER.about(config=asdict(config))
    folder = config.record_dir
    checkpoints = Checkpoints(folder)
    if checkpoints.last is None:
        await check_init(config)
    with tinker.ServiceClient(base_url=config.base_url) as service:

        async def attempt() -> None:
            # What the last client trained after its checkpoint is lost, and recorded again.
            recording = RunRecording(folder, about, report=report, free=FREE, **config.recorded)
            with unanswered():
                await Run(config, objective, service, recording, checkpoints).train()

        # A training client that failed once fails for ever: each attempt has one of its own.
        await sampling.answered(attempt, "the training client", config.restarts)


@dataclass
class Run:
    """One training client's part of a run."""

    config: Config
    objective: Objective
    service: Any
    """A `tinker.ServiceClient`."""
    recording: RunRecording
    checkpoints: Checkpoints

    async def train(self) -> None:
        """Train to the end."""
        await self._open()
        config, tasks, last = self.config, self.config.train_tasks(), self.checkpoints.last
        drawn = Sampling(config.temperature, config.top_p, config.top_k)
        for iteration in range(last.iteration if last else 0, config.iterations):
            began = time.perf_counter()
            sampler = await self._sampler()
            synced = time.perf_counter()
            if iteration % config.eval_every == 0:
                await self._evaluate(iteration, sampler)
            episodes, trained, times = await self._batch(iteration, sampler, tasks, drawn)
            rows, per_turn = batch_rows(episodes, config, trained)
            prepared = time.perf_counter()
            metrics = await self._update(rows, iteration)
            ended = time.perf_counter()
            metrics |= {"sync_s": synced - began, "update_s": ended - prepared}
            metrics |= {"step_s": ended - began, **times}
            self.recording.keep_batch(episodes, per_turn, partial(trained_rows, rows, episodes))
            self.recording.write_iteration(iteration, metrics=metrics)
            done = iteration + 1
            if config.save_every and (done % config.save_every == 0 or done == config.iterations):
                saved = await answer(self.client.save_state(f"iteration-{done:06d}"), config)
                self.checkpoints.add(Checkpoint(done, saved.path))
        if config.eval:
            await self._evaluate(config.iterations, await self._sampler())

    async def _open(self) -> None:
        """Make the training client: from the last checkpoint, else a new one."""
        config, last, service = self.config, self.checkpoints.last, self.service
        if last is not None:
            made = service.create_training_client_from_state_with_optimizer(last.state)
        elif config.init is not None:
            made = service.create_training_client_from_state(config.init)
        else:
            made = new_adapter(service, config)
        self.client = await answer(made, config)
        tokenizer = await asyncio.to_thread(self.client.get_tokenizer)
        self.chat = config.chat_format(tokenizer)

    async def _sampler(self) -> Any:
        """Return a sampling client with the current weights."""
        made = self.client.save_weights_and_get_sampling_client(record_stability_info=False)
        return await answer(made, self.config)

    async def _batch(
        self, iteration: int, sampler: Any, tasks: Sequence[Task], drawn: Sampling
    ) -> tuple[list[Trajectory], list[bool], dict[str, float]]:
        """Play the batch of an iteration, and further ones as `extra_batches` says.

        Returns:
            All episodes that were played, whether each is trained on, and metrics.

        Raises:
            RolloutError: Too many episodes failed, or there is nothing to train on.
        """
        config, episodes, seconds = self.config, [], 0.0
        for number in range(1 + (config.extra_batches or 0)):
            begin = (number * config.iterations + iteration) * config.tasks
            more, times = await self._play(
                iteration,
                sampler,
                tasks[begin : begin + config.tasks],
                drawn,
                config.group_size,
                number,
            )
            episodes += more
            seconds += times["rollout_s"]
            if config.extra_batches is None:
                return episodes, [True] * len(episodes), times
            found = filtered(episodes, config.tasks, config)
            if found.groups == config.tasks:
                break
        found.check()
        return episodes, found.trained, {"rollout_s": seconds, **found.metrics}

    async def _play(
        self,
        iteration: int,
        sampler: Any,
        tasks: Sequence[Task],
        drawn: Sampling,
        group_size: int,
        number: int = 0,
    ) -> tuple[list[Trajectory], dict[str, float]]:
        """Return the episodes, and the seconds that they took as a metric.

        `drawn` says how turns are sampled; the seed and the version are those of the iteration.
        `number` is 0, or that of an extra batch.
        """
        config, began = self.config, time.perf_counter()
        key = (iteration, number) if number else (iteration,)
        seed = None if config.seed is None else (config.seed, *key)
        drawn = replace(drawn, seed=seed, version=iteration)
        first = number * config.tasks
        episodes = await play_batch(sampler, self.chat, config, tasks, drawn, group_size, first)
        times = {"rollout_s": time.perf_counter() - began}
        settings.check_episodes(episodes, config.max_failed_fraction)
        return episodes, times

    async def _evaluate(self, iteration: int, sampler: Any) -> None:
        for source in self.config.sources():
            how = source.sampling or self.config
            drawn = Sampling(how.temperature, how.top_p, how.top_k)
            # Episodes of a task differ in their places, which their seeds are made of.
            episodes, times = await self._play(iteration, sampler, source.plays, drawn, 1)
            self.recording.write_evaluation(iteration, source.name, episodes, metrics=times)

    async def _update(self, rows: Sequence[Row], iteration: int) -> dict[str, float]:
        """Train on the batch of an iteration; return means over its updates."""
        parts = [part for part in batches.minibatches(rows, self.config.minibatches) if part]
        steps = [
            await self._step(part, self.config.learning_rate(iteration, number))
            for number, part in enumerate(parts * self.config.epochs)
        ]
        # Later updates are of other weights than those that sampled.
        agreement = steps[0][1]
        metrics = update_metrics([step for step, _ in steps]) | agreement.metrics()
        stale, limit = agreement.largest, self.config.logprob_tolerance
        if limit is not None and not stale <= limit:
            raise RolloutError(
                f"sampler and trainer disagree by {stale:g} on a token's log-probability, more "
                f"than logprob_tolerance={limit:g}: the sampler has other weights"
            )
        return metrics

    async def _step(self, rows: Sequence[Row], lr: float) -> tuple[dict[str, float], Agreement]:
        """Make an update; return what the server says of it, where it says it."""
        config, datums = self.config, to_datums(rows, self.objective)
        output, norm = await update(self.client, datums, config, lr)
        outputs = output.loss_fn_outputs
        masks = [np.asarray(row.tokens.mask) == 1 for row in rows]
        found = [each["logprobs"].to_numpy() for each in outputs]
        columns = (
            [each[row.columns] for row, each in zip(rows, found, strict=True)],
            [np.asarray(row.tokens.logprobs) for row in rows],
            [row.advantages for row in rows],
        )
        trainer, sampler, advantages = (
            np.concatenate([each[mask] for each, mask in zip(column, masks, strict=True)])
            for column in columns
        )
        outside = config.clips(np.exp(trainer - sampler), advantages)
        metrics = {"lr": lr, "clip_fraction": float(outside.mean())}
        if "elementwise_loss" in outputs[0]:
            sums = [each["elementwise_loss"].to_numpy().sum(dtype=np.float64) for each in outputs]
            factors = self.objective.server_factors([row.sampled for row in rows])
            metrics["loss"] = float(np.dot(factors, sums))
        elif "loss:sum" in output.metrics:
            metrics["loss"] = output.metrics["loss:sum"]
        metrics |= {} if norm is None else {"grad_norm": norm}
        return metrics, Agreement.of(trainer, sampler)


def main(argv: Sequence[str] | None = None) -> int:
    """Train from the command line; exit status 2 and a message if it is impossible."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    return exit_status(lambda: _run(read(arguments)))


def _run(config: Config) -> None:
    """Train, to the end."""
    last = Checkpoints(config.record_dir).last
    recorded = last.iteration if last else 0

    def report(iteration: int, split: str, metrics: Mapping[str, float]) -> None:
        nonlocal recorded
        show(iteration, split, metrics)
        recorded = iteration + 1 if split == "train" else recorded

    # Around the event loop: what calls `sys.exit()` in one task ends the loop, not the others.
    with to_the_end(lambda: recorded, lambda: config.iterations):
        asyncio.run(train(config, report))


if __name__ == "__main__":
    sys.exit(main())

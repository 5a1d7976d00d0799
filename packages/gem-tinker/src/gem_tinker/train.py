"""The direct loop: play, compute advantages, train, on nothing but the tinker SDK.

    export TINKER_API_KEY=...                    # or TINKER_BASE_URL=http://... for your own server
    python -m gem_tinker.train model=Qwen/Qwen3-8B train=gem:game:GuessTheNumber-v0 \\
        turn_tokens=512 record_dir=runs/guess

`gem_tinker.settings.Config` has all keys. With `record_dir` the run leaves a record
(`gem.training.record`), saves checkpoints, and goes on from the last one when it is started again.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np
import tinker

from gem.errors import ConfigurationError, GemError, RolloutError
from gem.rollout import ChatFormat
from gem.tasks import Task
from gem.training.batches import minibatches
from gem.training.metrics import progress
from gem.training.recording import RunRecording
from gem.training.settings import check_episodes
from gem.trajectory import Trajectory
from gem_tinker import __version__, check_tinker
from gem_tinker.advantage import Objective, Row, batch_rows, to_datums, trained_rows
from gem_tinker.answers import answer
from gem_tinker.checkpoints import Checkpoint, Checkpoints
from gem_tinker.probe import grad_norm, probe
from gem_tinker.rollout import Sampling, play_batch
from gem_tinker.settings import Config, read

logger = logging.getLogger(__name__)

T = TypeVar("T")
Report = Callable[[int, str, dict[str, float]], None]


async def train(config: Config, report: Report = lambda *_: None) -> None:
    """Run an experiment, from its last checkpoint if it has one.

    Args:
        config: The experiment.
        report: Called with iteration, split and metrics after each batch.

    Raises:
        ConfigurationError: The server cannot do what is asked for, or the model has no usable
            chat template.
        RolloutError: Too many episodes failed, sampling is impossible, or training failed more
            than `restarts` times.
    """
    check_tinker()
    objective = Objective(config.loss_aggregation, await probe(config))
    versions = {"tinker": tinker.__version__, "gem-tinker": __version__}
    about = {"trainer": "tinker", "versions": versions, "config": asdict(config)}
    checkpoints = Checkpoints(config.record_dir)
    with tinker.ServiceClient(base_url=config.base_url) as service:
        for attempt in range(config.restarts + 1):
            # What the last client trained after its checkpoint is lost, and recorded again.
            recording = RunRecording(config.record_dir, about)
            run = Run(config, objective, service, recording, checkpoints, report)
            try:
                await run.open()
                await run.train()
                return
            except (tinker.TinkerError, asyncio.TimeoutError) as error:
                # A training client that failed once fails for ever.
                last = checkpoints.last.iteration if checkpoints.last else 0
                reason = f"{type(error).__name__}: {error}"
                if attempt == config.restarts:
                    raise RolloutError(f"training failed {attempt + 1} times: {reason}") from error
                logger.warning("training failed, going on from iteration %d: %s", last, reason)


@dataclass
class Run:
    """One training client's part of a run."""

    config: Config
    objective: Objective
    service: Any
    """A `tinker.ServiceClient`."""
    recording: RunRecording
    checkpoints: Checkpoints
    report: Report
    first: int = 0
    """The iteration this client begins with."""

    async def open(self) -> None:
        """Make the training client: from the last checkpoint, else a new one."""
        config, last, service = self.config, self.checkpoints.last, self.service
        if last is not None:
            self.first = last.iteration
            made = service.create_training_client_from_state_with_optimizer(last.state)
        elif config.init is not None:
            made = service.create_training_client_from_state(config.init)
        else:
            made = service.create_lora_training_client(
                config.model, rank=config.lora_rank, seed=config.lora_seed, train_unembed=False
            )
        self.client = await self._answer(made)
        tokenizer = await asyncio.to_thread(self.client.get_tokenizer)
        self.chat = ChatFormat(tokenizer, system_prompt=config.system_prompt)

    async def train(self) -> None:
        """Train to the end."""
        config, tasks = self.config, self.config.train_tasks()
        for iteration in range(self.first, config.iterations):
            began = time.perf_counter()
            sampler = await self._sampler()
            synced = time.perf_counter()
            if iteration % config.eval_every == 0:
                await self._evaluate(iteration, sampler)
            batch = tasks[iteration * config.tasks : (iteration + 1) * config.tasks]
            sampling = self._sampling(iteration, config.temperature, config.top_p, config.top_k)
            episodes, times = await self._play(sampler, batch, sampling, config.group_size)
            rows, per_turn = batch_rows(episodes, config.advantage, config.gamma)
            prepared = time.perf_counter()
            metrics = await self._update(rows)
            ended = time.perf_counter()
            metrics |= {"lr": config.lr, "sync_s": synced - began, "update_s": ended - prepared}
            metrics["step_s"] = ended - began
            shown = functools.partial(trained_rows, rows, episodes)
            self.recording.keep_batch(episodes, per_turn, shown, metrics=times)
            recorded = self.recording.write_iteration(iteration, metrics=metrics)
            self.report(iteration, "train", recorded)
            done = iteration + 1
            if config.save_every and (done % config.save_every == 0 or done == config.iterations):
                await self._save(done)
        if config.eval:
            await self._evaluate(config.iterations, await self._sampler())

    async def _sampler(self) -> Any:
        """Return a sampling client with the current weights."""
        return await self._answer(
            self.client.save_weights_and_get_sampling_client(record_stability_info=False)
        )

    def _sampling(
        self, iteration: int, temperature: float, top_p: float = 1.0, top_k: int = -1
    ) -> Sampling:
        seed = None if self.config.seed is None else (self.config.seed, iteration)
        return Sampling(temperature, top_p, top_k, seed, version=iteration)

    async def _play(
        self, sampler: Any, tasks: Sequence[Task], sampling: Sampling, group_size: int = 1
    ) -> tuple[list[Trajectory], dict[str, float]]:
        """Return the episodes, and the seconds that they took as a metric."""
        config, began = self.config, time.perf_counter()
        episodes = await play_batch(sampler, self.chat, config, tasks, sampling, group_size)
        times = {"rollout_s": time.perf_counter() - began}
        check_episodes(episodes, config.max_failed_fraction)
        return episodes, times

    async def _evaluate(self, iteration: int, sampler: Any) -> None:
        write = self.recording.write_evaluation
        for source in self.config.sources():
            temperature = 1.0 if source.temperature is None else source.temperature
            sampling = self._sampling(iteration, temperature)
            episodes, times = await self._play(sampler, source.tasks, sampling)
            metrics = write(iteration, source.name, episodes, metrics=times)
            self.report(iteration, f"eval:{source.name}", metrics)

    async def _update(self, rows: Sequence[Row]) -> dict[str, float]:
        """Train on a batch; return means over its updates."""
        parts = [part for part in minibatches(rows, self.config.minibatches) if part]
        steps = [await self._step(part) for part in parts * self.config.epochs]
        names = set.intersection(*(set(step) for step in steps))
        metrics = {name: float(np.mean([step[name] for step in steps])) for name in names}
        # Only the first update sees the weights that sampled.
        stale = metrics["logprob_difference_max"] = steps[0]["logprob_difference_max"]
        limit = self.config.logprob_tolerance
        if limit is not None and not stale <= limit:
            raise RolloutError(
                f"sampler and trainer disagree by {stale:g} on a token's log-probability, more "
                f"than logprob_tolerance={limit:g}: the sampler has other weights"
            )
        return metrics

    async def _step(self, rows: Sequence[Row]) -> dict[str, float]:
        config = self.config
        datums = to_datums(rows, self.objective)
        low, high = 1 - config.clip, 1 + config.clip
        clips = {"clip_low_threshold": low, "clip_high_threshold": high}
        clipped = None if config.loss_fn == "importance_sampling" else clips
        # Both are sent before either is waited for: the server needs no round trip in between.
        gradient = self.client.forward_backward(datums, config.loss_fn, clipped)
        adam = tinker.AdamParams(
            learning_rate=config.lr,
            beta1=config.beta1,
            beta2=config.beta2,
            eps=config.eps,
            weight_decay=config.weight_decay,
            grad_clip_norm=config.grad_clip,
        )
        step = self.client.optim_step(adam)
        output = await self._answer(gradient)
        norm = grad_norm((await self._answer(step)).metrics)
        metrics = self._loss_metrics([row for row in rows if row.sampled], output)
        return metrics if norm is None else metrics | {"grad_norm": norm}

    def _loss_metrics(self, rows: Sequence[Row], output: Any) -> dict[str, float]:
        """Read what the server says of an update, where it says it."""
        differences, loss = [], 0.0
        factors = self.objective.server_factors([row.sampled for row in rows])
        losses = "elementwise_loss" in output.loss_fn_outputs[0]
        for row, factor, found in zip(rows, factors, output.loss_fn_outputs, strict=True):
            sampled = np.flatnonzero(row.tokens.mask)
            old = np.asarray(row.tokens.logprobs)[sampled]
            differences.append(found["logprobs"].to_numpy()[row.columns][sampled] - old)
            if losses:
                loss += factor * float(found["elementwise_loss"].to_numpy().sum(dtype=np.float64))
        difference = np.concatenate(differences)
        metrics = {
            "logprob_difference_max": float(np.abs(difference).max()),
            "clip_fraction": float(np.mean(np.abs(np.exp(difference) - 1) > self.config.clip)),
        }
        if losses:
            metrics["loss"] = loss
        elif "loss:sum" in output.metrics:
            metrics["loss"] = output.metrics["loss:sum"]
        return metrics

    async def _save(self, iteration: int) -> None:
        saved = await self._answer(self.client.save_state(f"iteration-{iteration:06d}"))
        self.checkpoints.add(Checkpoint(iteration, saved.path))

    async def _answer(self, future: Awaitable[T]) -> T:
        return await answer(future, self.config.request_timeout_s)


def show(iteration: int, split: str, metrics: dict[str, float]) -> None:
    """Print a line about a batch."""
    print(progress(iteration, split, metrics), flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Train from the command line; exit status 2 and a message if it is impossible."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        config = read(arguments)
        asyncio.run(train(config, show))
    except GemError as error:
        kind = "" if isinstance(error, ConfigurationError) else f"{type(error).__name__}: "
        sys.stderr.write(f"{kind}{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

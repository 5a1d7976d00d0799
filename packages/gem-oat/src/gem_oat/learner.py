"""oat's learner: advantages of GEM, whole-episode rows, losses that do not depend on ranks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch.distributed as dist
from oat.algorithms.ppo_multiturn import PPOMultiTurnLearner
from torch.utils.data import DataLoader, Subset

from gem_oat import TRAINER, advantage, compat, data, status_files
from gem_oat.settings import Args, shown
from gem_oat.update import Updater
from gem_train import batches, recording
from gem_train.checkpoints import Checkpoint, Checkpoints
from gem_train.ending import to_the_end
from gem_train.experiment.agreement import Agreement
from gem_train.experiment.estimate import turn_advantages
from gem_train.experiment.metrics import update_metrics
from gem_train.experiment.tasksets import DatasetRow, Source
from gem_train.packed import PackedTrajectory
from gem_train.rows import placed_rows

compat.install()


class Learner(PPOMultiTurnLearner):  # type: ignore[misc]
    """Trains on the episodes that its actor played.

    oat's loop stays: collect, `process_feedback_data`, `learn`, synchronise, evaluate.
    """

    args: Args

    def run(self) -> None:
        """Train to the end; called by Launchpad.

        Raises:
            UnfinishedError: Fewer iterations are recorded than were asked for, or something called
                `sys.exit()`.
        """
        with status_files.reported(f"learner {self._rank}"), to_the_end(self._done, self._wanted):
            super().run()

    def _done(self) -> int:
        return self.recording.iterations if hasattr(self, "recording") else 0

    def _wanted(self) -> int:
        recorded = self.args.gem.record_dir is not None and self.strategy.is_rank_0()
        return self.args.iterations if recorded else 0

    def _init(self, args: Args, actors: list[Any]) -> None:
        super()._init(args, actors)
        self.collector: Any = data.Collector(args, actors, self.collector.ipc_client)
        self.updater = Updater(self)
        self.sources = args.sources()
        self.evaluated: tuple[int, dict[str, float]] = (-1, {})
        folder = args.gem.record_dir if self.strategy.is_rank_0() else None
        about = TRAINER.about(config=shown(args))
        self.recording = recording.RunRecording(folder, about, **args.gem.recorded)
        self.skipped, self.due = 0, range(0)
        if args.gem.resume:
            # After the last iteration there is nothing to go on with.
            self.due = range(args.save_steps, args.iterations, args.save_steps)
            self._resume()

    def _resume(self) -> None:
        """Go on from the last whole checkpoint below `--save_path`, if there is one."""
        self.saved = Path(self.args.save_path, "checkpoints")
        engines = {"policy": self.model.model, "critic": self.critic}
        self.engines = {name: engine for name, engine in engines.items() if engine is not None}
        self.checkpoints = Checkpoints(str(self.saved) if self.strategy.is_rank_0() else None)
        last = _all_gather(self.checkpoints.last)[0]
        self.strategy.print(f"last checkpoint in {self.saved}: {last}")
        if last is None:
            return
        for name, engine in self.engines.items():
            self.strategy.load_ckpt(engine, str(self.saved / name), last.state)
        self.sync_params_to_actors()
        left = Subset(self.share, range(last.iteration, len(self.share)))
        self.prompts_dataloader = DataLoader(left, batch_size=None)
        self.skipped = last.iteration

    def _checkpoint(self) -> None:
        """Save the engines; the list of checkpoints has only what all ranks have saved."""
        args, tag = self.args, f"step_{self.steps:05}"
        for name, engine in self.engines.items():
            kept = {"max_num": max(args.max_save_num, 2), "max_mem": args.max_save_mem}
            self.strategy.save_ckpt(engine, str(self.saved / name), tag, **kept)
        if self.strategy.is_rank_0():
            self.checkpoints.add(Checkpoint(self.steps, tag))

    def prepare_data(self, strategy: Any, tokenizer: Any) -> None:
        """Set the dataset; called by oat."""
        tasks, size = self.args.train_tasks(), self.args.rollout_batch_size
        self.prompts_dataset = self.eval_prompts_dataset = tasks
        self.share = data.Batches(tasks, size, dist.get_world_size(), dist.get_rank())
        self.prompts_dataloader = DataLoader(self.share, batch_size=None)
        self.eval_prompts_dataloader = None

    def process_feedback_data(self, data_list: Sequence[PackedTrajectory]) -> None:
        """Make rows of the episodes of this rank, and give them their advantages."""
        args, gem, began = self.args, self.args.gem, time.perf_counter()
        # oat counts from 1 in a resumed run, too.
        self.steps += self.skipped
        self.skipped = 0
        rollout_s = self.actor_info["actor/rollout_s"]
        self.began = began - rollout_s
        self.query_step += args.episodes // dist.get_world_size()
        self.rows = placed_rows(data_list, advantage.Row)
        if self.critic is not None:
            self.updater.values(self.rows)
        per_turn = advantage.give_advantages(
            data_list,
            self.rows,
            partial(turn_advantages, gem.advantage, shaping=gem, gamma=args.gamma, lam=args.lam),
            max_failed_fraction=gem.max_failed_fraction,
            gather=_all_gather,
            rank=dist.get_rank(),
        )
        times = {"rollout_s": rollout_s, "advantage_s": time.perf_counter() - began}
        if gem.record_dir is not None:
            rows = advantage.trained_rows(data_list, self.rows) if recording.rows_wanted() else []
            columns = zip(*_all_gather((list(data_list), per_turn, rows)), strict=True)
            episodes, advantages, shown_rows = (list(chain(*column)) for column in columns)
            self.recording.keep_batch(episodes, advantages, lambda: shown_rows, metrics=times)

    def learn(self, learning_round: int) -> dict[str, float]:
        """Train on the rows; return oat's training metrics, the same on all ranks."""
        args, began = self.args, time.perf_counter()
        self.model.train()
        if self.critic is not None:
            # Gradient checkpoints are made in this mode only.
            self.critic.train()
        steps, parts = [], batches.minibatches(self.rows, args.minibatches)
        agreement = Agreement()
        if args.num_ppo_epochs * args.minibatches > 1:
            self.updater.remember(self.rows)
        for number, rows in enumerate(parts * args.num_ppo_epochs):
            # `steps` counts the batches, this one included.
            warm = self.steps > self.args.gem.critic_warmup
            step = self.updater.policy_step(rows) if warm else {}
            if step and number < len(parts):
                agreement += self.updater.agreement
            if self.critic is not None:
                step |= self.updater.critic_step(rows)
            if step:
                steps.append(step)
        self.rows = []
        self.policy_sgd_step += len(steps)
        self.global_step += 1
        metrics = update_metrics(steps) | agreement.metrics()
        metrics["update_s"] = self.gradient_update_elapse = time.perf_counter() - began
        return {f"train/{name}": value for name, value in metrics.items()}

    def eval_and_log(
        self, train_info: dict[str, float], eval: bool = False, save: bool = False
    ) -> None:
        """Record the iteration, then evaluate, save and log as oat does."""
        final = eval and save
        if train_info and not final:
            values = {name.removeprefix("train/"): value for name, value in train_info.items()}
            step_s = time.perf_counter() - self.began
            values |= {"sync_s": self.weight_sync_elapse, "step_s": step_s}
            self.recording.write_iteration(self.steps - 1, metrics=values)
        super().eval_and_log(train_info, eval=eval, save=save)
        if final:
            status_files.done()
        elif self.steps in self.due:
            self._checkpoint()

    def evaluate(self, dataloader: Any, steps: int) -> dict[str, float]:
        """Play the evaluation episodes on all actors; return the metrics on every rank."""
        updates = min(steps, self.args.iterations)
        # What a resumed run would evaluate first was evaluated before the checkpoint.
        if self.skipped or not self.sources or updates == self.evaluated[0]:
            return self.evaluated[1]
        self._pre_evaluate()
        metrics: dict[str, float] = {}
        if self.strategy.is_rank_0():
            for number, source in enumerate(self.sources):
                episodes = self._play(source, number, updates)
                found = self.recording.write_evaluation(updates, source.name, episodes)
                metrics |= {f"eval/{source.name}/{name}": v for name, v in found.items()}
        # On the CPU: an evaluation may take longer than NCCL waits.
        dist.barrier(group=self._same_actor_group)
        metrics = _all_gather(metrics)[0]
        self._post_evaluate()
        self.evaluated = (updates, metrics)
        return metrics

    def _play(self, source: Source, number: int, updates: int) -> list[PackedTrajectory]:
        rows = [DatasetRow(task, source.sampling, n) for n, task in enumerate(source.plays)]
        texts, n = [row.encode() for row in rows], len(self.actors)
        cuts = [texts[len(texts) * i // n : len(texts) * (i + 1) // n] for i in range(n)]
        futures = [
            actor.futures.play_evaluation(cut, number, updates)
            for actor, cut in zip(self.actors, cuts, strict=True)
            if cut
        ]
        read = self.collector.ipc_client.deserialize_ipc
        return [trajectory for future in futures for trajectory in read(future.result())]


def _all_gather(mine: Any) -> list[Any]:
    """Hand an object to all ranks; return those of all ranks, in their order."""
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, mine)
    return parts

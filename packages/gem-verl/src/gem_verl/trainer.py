"""verl's trainer hook: modes `gem_sync` and `gem_colocate_async`.

Both are verl's own trainers with some methods extended, `SEAMS`. They let estimators know the rows
of each episode, its rewards and the critic's values; train the critic where turns begin; leave
failed episodes out of verl's statistics and stop when too many fail; stop when a process that the
rollout needs is dead; log `gem/*` metrics; and write a record
(`gem_train.record`) where `gem.record_dir` says.

This is the only module that touches TransferQueue.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import ray
import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl.trainer.ppo.v1.trainer_base import PPOTrainer, register_trainer
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.debug import marked_timer

from gem.errors import RolloutError
from gem.trajectory import Failure, TurnSpan
from gem_train.checkpoints import read_state, save_state
from gem_train.experiment.agreement import Agreement
from gem_train.packed import PackedTrajectory
from gem_train.processes import claim
from gem_train.ray import call_while_alive
from gem_train.record import TrainedRow
from gem_train.recording import Names, RunRecording
from gem_train.rows import EpisodeTurns, RowTurns
from gem_train.seams import Seam, check_seams
from gem_train.settings import MayFail, check_episodes, failure_reasons
from gem_verl import TRAINER
from gem_verl.advantage import ESTIMATORS, Batch, given
from gem_verl.rollout import EPISODE
from gem_verl.settings import check_config, keeps_state

SEAMS = (
    Seam("fit", "self, agent_loop_manager"),
    Seam("_build_replay_buffer", "self"),
    Seam("_save_checkpoint", "self"),
    Seam("_balance_batch", "self, batch, metrics, logging_prefix, keep_minibatch"),
    Seam("_compute_advantage", "self, batch, metrics"),
    Seam("_update_critic", "self, batch, metrics"),
    Seam("_compute_metrics", "self, batch, metrics, timing_raw, global_steps, epoch"),
    Seam(
        "_val_metrics_update",
        "self, data_sources, sample_uids, reward_extra_infos_dict, sample_turns, "
        "expected_acc_counts",
    ),
)
"""Methods of verl's trainers that are extended here, with their parameters."""

RECORDED: Names = {
    "loss": "actor/loss",
    "grad_norm": "actor/grad_norm",
    "entropy": "actor/entropy",
    "lr_next": "actor/lr",
    "kl": "actor/kl_loss",
    "clip_fraction": "actor/pg_clipfrac",
    "tis_fraction": (
        "rollout_corr/rollout_is_oob_ratio",
        "rollout_corr/rollout_is_ratio_fraction_high",
    ),
    "rejected_fraction": "rollout_corr/rollout_rs_masked_fraction",
    "value_loss": "critic/vf_loss",
    "value_grad_norm": "critic/grad_norm",
    "rollout_s": "timing_s/gen",
    "sync_s": "timing_s/update_weights",
    "step_s": "timing_s/step",
}
"""Names in the record, and in verl's metrics."""
PER_TOKEN = ("entropy", "kl")
"""Those that verl adds up as it adds up the loss: means over tokens with `token-mean` only."""

_UPDATE_TIMES = ("old_log_prob", "ref", "values", "adv", "update_critic", "update_actor")


def claim_sockets(job_id: str, folder: str = "/tmp") -> TextIO:
    """Make sure that no other run of this machine uses the same sockets for its weights.

    verl sends weights to vLLM through sockets that it names by the number of the Ray job. Every new
    Ray cluster begins with the same number, and verl removes a socket that is in the way: two runs
    at a time would load each other's weights, or wait for ever. See `gem_train.processes.claim`.
    """
    reason = (
        f"another verl run on this machine, in a Ray cluster of its own, has Ray job {job_id}, "
        "too, and verl would mix up the weights of the two; start one Ray cluster for both (ray "
        "start --head, RAY_ADDRESS=auto), or one run after the other"
    )
    return claim(Path(folder) / f"gem-verl-{job_id}.lock", reason)


class _GemTrainer(PPOTrainer):  # type: ignore[misc]
    """What both modes add to verl's trainers."""

    _agreement = Agreement()
    """Of the engine with the weights before the update of this batch."""

    def __init__(self, config: Any) -> None:
        settings = self._settings = check_config(config)
        if config.actor_rollout_ref.rollout.name == "vllm" and os.environ.get("GEM_CPU") != "1":
            self._sockets = claim_sockets(ray.get_runtime_context().get_job_id())
        about = TRAINER.about(config=OmegaConf.to_container(config, resolve=True))
        names = dict(RECORDED)
        if config.actor_rollout_ref.actor.loss_agg_mode != "token-mean":
            names = {name: names[name] for name in names if name not in PER_TOKEN}
        self._recording = RunRecording(settings.record_dir, about, names, **settings.recorded)
        self._batch = Batch([])
        self._trajectories: list[PackedTrajectory] = []
        """Without tokens, which stay in TransferQueue."""
        self._lost: list[Failure] = []
        self._checkpoint_due = False
        super().__init__(config)

    def fit(self, agent_loop_manager: Any) -> None:
        """Train, as long as agent loops, rollout servers and the queue live; verl would wait."""
        trainer = self.config.trainer
        if self.global_steps and trainer.resume_mode == "auto" and not trainer.val_only:
            trainer.val_before_train = False  # what was due before the checkpoint has been done
        if self.global_steps and keeps_state(self.config):
            chosen = trainer.resume_mode == "resume_path"
            folder = Path(trainer.resume_from_path).parent if chosen else trainer.default_local_dir
            self._batch.state.update(read_state(self._state(folder)))
        actors = list(agent_loop_manager.agent_loop_workers)
        for replica in self.llm_server_manager.get_replicas():
            actors.extend(replica.servers)
        with contextlib.suppress(ValueError):  # a queue without a controller of this name
            actors.append(ray.get_actor("TransferQueueController", namespace="transfer_queue"))
        steps = 0 if trainer.val_only else self.total_training_steps
        with self._recording.to_the_end(lambda: steps):
            call_while_alive(partial(super().fit, agent_loop_manager), actors, engine="engine")

    def _state(self, folder: str | Path) -> Path:
        """Return the file with the estimator's state, beside the checkpoint of this step."""
        return Path(folder, f"estimator_{self.global_steps}.json")

    def _build_replay_buffer(self) -> Any:
        buffer = super()._build_replay_buffer()
        buffer.poll_interval = self._settings.poll_interval_s
        sample = buffer.sample

        def sample_and_keep(*args: Any, **named: Any) -> Any:
            found = sample(*args, **named)
            if found[0].partition_id == "val":
                self._keep_evaluated(found[0])
            return found

        buffer.sample = sample_and_keep
        return buffer

    def _keep_evaluated(self, batch: Any) -> None:
        """Take the episodes of a validation batch before verl removes them from TransferQueue."""
        data = _read(batch, "extra_fields", "data_source", EPISODE)
        columns = (_column(data[name]) for name in ("data_source", "extra_fields", EPISODE))
        for name, known, whole in zip(*columns, strict=True):
            if head := known["gem"].get("episode"):
                self._recording.keep_evaluated(name, [PackedTrajectory.from_bytes(whole or head)])

    def _balance_batch(self, batch: Any, metrics: dict[str, Any], *args: Any, **named: Any) -> Any:
        """Find out which rows belong together; verl fills up the batch and divides it by ranks."""
        data = _read(batch, "extra_fields", "index")
        state = self._batch.state
        self._batch, self._trajectories = grouped(
            batch.keys, _column(data["extra_fields"]), _column(data["index"])
        )
        self._batch.shaping, self._batch.state = self._settings, state
        played = len({key.rsplit("_", 1)[0] for key in batch.keys})
        rows = self._rows()
        # The same order in every run: ranks get the same rows and make the same sums.
        batch.reorder([row.place for row in rows])
        keys = list(batch.keys)
        batch = super()._balance_batch(batch, metrics, *args, **named)
        places = {key: place for place, key in enumerate(batch.keys)}
        for key, row in zip(keys, rows, strict=True):
            row.place = places[key]
            if not row.spans:
                # verl leaves rows with this tag out of its statistics.
                batch.tags[row.place]["is_padding"] = True
        self._check_complete(played)
        return batch

    def _rows(self) -> list[RowTurns]:
        """Rows of all episodes, in the order of the episodes."""
        return [row for episode in self._batch.episodes for row in episode.rows]

    def _check_complete(self, played: int) -> None:
        """Stop if some of the episodes or matches that were played are missing, or many failed."""
        config = self.config
        missing = max(config.data.train_batch_size * config.actor_rollout_ref.rollout.n - played, 0)
        lost = Failure("engine", "never arrived; verl's log has the reason", attempts=1)
        self._lost = [lost] * missing
        check_episodes(self._trajectories, self._settings.max_failed_fraction, self._lost)
        check_estimated(config.algorithm.adv_estimator, self._trajectories, self._lost)

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Let the estimators of this package see episodes and values."""
        # Later, the response mask lacks tokens that verl rejects.
        self._agreement = self._agreed(batch)
        fields = ["values"] if self.use_critic else []
        fields += ["rm_scores"] if self.config.algorithm.use_kl_in_reward else []
        if fields:
            data = _read(batch, *fields).to_padded_tensor()
            self._batch.values, self._batch.scores = data.get("values"), data.get("rm_scores")
        with given(self._batch):
            return super()._compute_advantage(batch, metrics)

    def _agreed(self, batch: Any) -> Agreement:
        """Return how far verl's log-probabilities are from the engine's, before the update.

        It is of no token where they are of different distributions, or where verl takes the
        engine's for its own.
        """
        sampling, own = self.config.actor_rollout_ref.rollout, self._settings
        correction = self.config.algorithm.get("rollout_correction") or {}
        if sampling.logprobs_mode == "processed_logprobs":
            whole = sampling.top_p == 1 and sampling.top_k <= 0
            whole = whole and not own.min_p and own.repetition_penalty == 1
        else:
            whole = sampling.temperature == 1
        if not whole or correction.get("bypass_mode"):
            return Agreement()
        fields = ("old_log_probs", "rollout_log_probs", "response_mask")
        data = _read(batch, *fields)
        columns = [[row.cpu() for row in data[name].unbind()] for name in fields]
        rows = list(zip(*columns, strict=True))
        places = [row.place for row in self._rows() if row.spans]
        return sum((Agreement.of(*rows[place]) for place in places), Agreement())

    def _update_critic(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Train the critic of `gem_gae` where turns begin; its other outputs mean nothing."""
        if self.config.algorithm.adv_estimator != "gem_gae":
            return super()._update_critic(batch, metrics)
        fields = ["response_mask", "loss_mask"]
        masks = _read(batch, *fields)
        # The response mask lacks tokens that verl rejects for the policy.
        trained = masks["loss_mask"].unbind()
        starts = [torch.zeros_like(mask) for mask in trained]
        for row in self._rows():
            for span in row.spans:
                if span.end > span.start:
                    starts[row.place][span.start] = trained[row.place][span.start]
        nested = torch.nested.as_nested_tensor(starts, layout=torch.jagged)
        _write(batch, TensorDict(dict.fromkeys(fields, nested), batch_size=len(starts)))
        try:
            return super()._update_critic(batch, metrics)
        finally:
            _write(batch, masks)

    def _save_checkpoint(self) -> None:
        """Leave it to `_compute_metrics`: what led to a checkpoint is recorded before."""
        self._checkpoint_due = True

    def _compute_metrics(
        self, batch: Any, metrics: dict[str, Any], timing_raw: Any, global_steps: int, epoch: int
    ) -> None:
        super()._compute_metrics(batch, metrics, timing_raw, global_steps, epoch)
        values = self._recording.keep_batch(
            self._whole(batch),
            self._batch.advantages,
            partial(self._trained_rows, batch),
            lost=self._lost,
            metrics=self._agreement.metrics(),
        )
        metrics.update({f"gem/{name}": value for name, value in values.items()})
        update_s = sum(timing_raw.get(name, 0.0) for name in _UPDATE_TIMES)
        # Step k of verl trains on what k - 1 updates have made.
        self._recording.write_iteration(global_steps - 1, metrics, metrics={"update_s": update_s})
        self._recording.write_evaluated(self.global_steps)
        if self._checkpoint_due:
            if keeps_state(self.config):
                folder = self.config.trainer.default_local_dir
                save_state(self._state(folder), self._batch.state)
            with marked_timer("timing_s/save_checkpoint", metrics):
                super()._save_checkpoint()
            self._checkpoint_due = False

    def _whole(self, batch: Any) -> list[PackedTrajectory]:
        """Return the episodes of a batch; those that are recorded with their tokens.

        Raises:
            RolloutError: The batch is not in the order in which the episodes were found.
        """
        episodes, which = list(self._trajectories), self._recording.kept(self._trajectories)
        keys = [batch.keys[self._batch.episodes[i].rows[-1].place] for i in which]
        if keys:
            found = _column(_read(batch, EPISODE, keys=keys)[EPISODE])
            for i, whole in zip(which, found, strict=True):
                packed = PackedTrajectory.from_bytes(whole)
                if packed.head != episodes[i].head:
                    raise RolloutError(f"TransferQueue has another episode of {episodes[i].task}")
                episodes[i] = packed
        return episodes

    def _trained_rows(self, batch: Any) -> list[list[TrainedRow]]:
        """Read back what was trained on.

        Where verl rejects tokens, its response mask lacks them; means of the loss count them.
        """
        correction = self.config.algorithm.get("rollout_correction") or {}
        mask = "loss_mask" if correction.get("rollout_rs") else "response_mask"
        fields = ("prompts", "responses", mask, "rm_scores", "advantages")
        data = _read(batch, *fields)
        columns = [[row.tolist() for row in data[name].unbind()] for name in fields]
        rows = [TrainedRow(*entries) for entries in zip(*columns, strict=True)]
        episodes = self._batch.episodes
        return [[rows[row.place] for row in each.rows if row.spans] for each in episodes]

    def _val_metrics_update(
        self,
        names: list[str],
        uids: Any,
        infos: dict[str, list[Any]],
        turns: Any,
        expected_acc_counts: dict[tuple[str, str], int] | None = None,
    ) -> Any:
        """Record each validation set under its name and stop if too many of its episodes failed.

        Those after an iteration are recorded after it (`_compute_metrics`), as elsewhere. Failed
        episodes are in none of verl's means, where verl would count them as 0.
        """
        if any(math.isnan(reward) for reward in infos["reward"]):
            raise RolloutError("an agent loop failed during validation; its error is in the log")
        kept = self._recording.evaluated.values()
        if sum(len({t.match or id(t) for t in each}) for each in kept) != len(names):
            raise RolloutError("verl's validation has other episodes than agent loops played")
        self._recording.check_evaluated(self._settings.max_failed_fraction)
        if not self._batch.episodes:
            self._recording.write_evaluated(self.global_steps)
        expected = dict(expected_acc_counts or {})
        for name, uid, won in zip(names, uids, infos["acc"], strict=True):
            if won is None and (name, uid) in expected:
                expected[name, uid] -= 1
        # Of several rows verl knows the last one's reward.
        whole = infos | {"reward": infos["episode_return"]}
        return super()._val_metrics_update(names, uids, whole, turns, expected)


for _base in (PPOTrainerSync, PPOTrainerColocateAsync):
    check_seams(TRAINER, SEAMS, owner=_base)


@register_trainer("gem_sync")
class GemTrainerSync(_GemTrainer, PPOTrainerSync):  # type: ignore[misc]
    """`trainer.v1.trainer_mode=gem_sync`."""

    # verl branches on the name of the mode: this one must be treated as its own.
    trainer_mode = property(lambda self: "sync", lambda self, value: None)


@register_trainer("gem_colocate_async")
class GemTrainerColocateAsync(_GemTrainer, PPOTrainerColocateAsync):  # type: ignore[misc]
    """`trainer.v1.trainer_mode=gem_colocate_async`."""

    trainer_mode = property(lambda self: "colocate_async", lambda self, value: None)


def check_estimated(
    estimator: str, episodes: Sequence[MayFail], lost: Sequence[Failure] = ()
) -> None:
    """Stop at a failed episode that verl's own estimator would take for one of reward 0.

    Args:
        estimator: verl's `algorithm.adv_estimator`.
        episodes: The batch.
        lost: Failures of episodes that never arrived.

    Raises:
        RolloutError: An episode failed, and the estimator is not one of this package.
    """
    failures = [*(each.failure for each in episodes if each.failure is not None), *lost]
    if failures and estimator not in ESTIMATORS:
        raise RolloutError(
            f"{len(failures)} of {len(episodes) + len(lost)} episodes failed, and verl's own "
            f"estimator {estimator} takes a failed episode for one of reward 0; set "
            f"algorithm.adv_estimator to one of {', '.join(ESTIMATORS)}. "
            f"{failure_reasons(failures)}"
        )


def grouped(
    keys: list[str], extra_fields: list[Any], index: list[Any]
) -> tuple[Batch, list[PackedTrajectory]]:
    """Collect rows into episodes, in an order that does not depend on which arrived first.

    Args:
        keys: `<prompt id>_<session>_<number within the episode>` of each row.
        extra_fields: Those of our agent loops.
        index: Row of the dataset.

    Returns:
        The episodes by row of the dataset and session, and their trajectories without tokens.

    Raises:
        RolloutError: An agent loop broke.
    """

    def order(place: int) -> tuple[int, int, str, int]:
        uid, session, number = keys[place].rsplit("_", 2)
        return int(index[place]), int(session), uid, int(number)

    batch, trajectories = Batch([]), []
    groups: dict[str, int] = {}
    played = sorted(range(len(keys)), key=order)
    for (_, _, uid), places in itertools.groupby(played, lambda place: order(place)[:3]):
        rows = []
        group = groups.setdefault(uid, len(groups))
        for place in places:
            known = extra_fields[place]["gem"]
            if known["error"]:
                raise RolloutError(f"an agent loop failed: {known['error']}")
            rows.append(RowTurns(place, [TurnSpan(*span) for span in known["spans"]]))
            if "episode" not in known:
                continue
            # The last row of an episode has its numbers.
            trajectory = PackedTrajectory.from_bytes(known["episode"])
            batch.episodes.append(EpisodeTurns.of(trajectory, group, rows))
            trajectories.append(trajectory)
            rows = []
    return batch, trajectories


def _read(batch: Any, *fields: str, keys: Sequence[str] | None = None) -> Any:
    rows = batch.keys if keys is None else keys
    return tq.kv_batch_get(keys=rows, partition_id=batch.partition_id, select_fields=list(fields))


def _write(batch: Any, values: Any) -> None:
    tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=values)


def _column(values: Any) -> list[Any]:
    """Return a non-tensor column as a plain list, whichever of its types TransferQueue chose."""
    plain = values.tolist() if hasattr(values, "tolist") else list(values)
    return [getattr(value, "data", value) for value in plain]

"""`GemEnvManager`: named in ROLL's YAML as `custom_envs.<tag>.env_manager_cls`.

ROLL makes one for every slot of its batch and runs each in a thread of an environment worker. It
plays an episode after the other with exactly the sampled tokens; a row of the batch is an episode.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import ray
import torch
from omegaconf import OmegaConf
from roll.distributed.scheduler.protocol import DataProto
from roll.distributed.scheduler.router import RouterManager
from roll.pipeline.agentic.env_manager.base_env_manager import BaseEnvManager
from tensordict import TensorDict

from gem.errors import ConfigurationError
from gem.rollout import Request, Sample
from gem.trajectory import Trajectory
from gem_roll import rows
from gem_roll.settings import GemSettings
from gem_train.packed import PackedTrajectory
from gem_train.sampling import EngineSampler


class GemEnvManager(BaseEnvManager):  # type: ignore[misc]
    """Plays the episodes of one slot: `env_type` with `env_config` as parameters."""

    def __init__(
        self, *, worker_config: Any, pipeline_config: Any, env_config: Any, **its: Any
    ) -> None:
        """Prepare for the slot's episodes.

        Args:
            worker_config: Of the environment workers, training's or evaluation's.
            pipeline_config: ROLL's `AgenticConfig`.
            env_config: The environment's table in `custom_envs`, and which slot this is.
            **its: What else ROLL gives, such as tokenizer and queue.

        Raises:
            ConfigurationError: The settings are wrong, or the chat template cannot be used.
        """
        super().__init__()
        self.worker_config, self.env_config, self.mode = worker_config, env_config, its["mode"]
        self._settings = GemSettings.of(env_config["tag"], env_config)
        self._budget = self._settings.budget(pipeline_config)
        self._length = pipeline_config.sequence_length
        self._pad_id = its["tokenizer"].pad_token_id
        self._queue = its["output_queue"]
        self._chat = self._settings.chat_format(its["tokenizer"])
        self._client = client_with_stops(its["generate_scheduler"], self._chat.stop_ids)
        self._generating = worker_config.generating_args.to_dict()
        if self._settings.temperature is not None:
            self._generating["temperature"] = self._settings.temperature
        self._engine = EngineSampler(self._chat.stop_ids)

    def run_rollout_loop(self, data: Any) -> None:
        """Play episodes until ROLL has none left to hand out.

        Args:
            data: Not used: ROLL's random seed of a run.
        """
        self.running = True
        slot, group = self.env_config["env_id"], self.env_config["group_id"]
        episode, start_step = None, self.current_step
        while self.running:
            episode = ray.get(self._queue.get_episode_id.remote(group, slot))
            if episode is None:
                break
            # Of the weights that the episode begins with.
            start_step = self.current_step
            try:
                trajectory = self._play(episode)
            except asyncio.CancelledError:
                break
            row = self._row(trajectory, f"{self.env_config['tag']}_{group}_{episode}")
            ray.get(self._queue.put.remote(group, episode, start_step, row, slot))
        ray.get(self._queue.put.remote(group, episode, start_step, None, slot))

    def _play(self, episode: int) -> Trajectory:
        """Play an episode: `episode` counts those that the slot was ever given."""
        config, worker = self.env_config, self.worker_config
        # An evaluation has the same tasks every time, training goes on to the next.
        turn = episode if self.mode == "train" else episode % worker.max_traj_per_env
        at, groups = worker.tags.index(config["tag"]), worker.num_groups_partition
        number = turn * groups[at] + config["group_id"] - sum(groups[:at])
        params = OmegaConf.to_container(config["config"])
        task = self._settings.task(number, config["env_type"], params)
        number = turn * worker.num_env_groups + config["group_id"]
        played = self._settings.play(task, self._sample, self._chat, self._budget, group=number)
        return asyncio.run(played)

    async def _sample(self, request: Request) -> Sample:
        """Sample one turn; blocks the thread, which has nothing else to do.

        Raises:
            CancelledError: The run is over: the episode is given up.
        """
        ids = torch.tensor([request.prompt_ids])
        mask = torch.ones_like(ids)
        tensors = {"input_ids": ids, "attention_mask": mask, "position_ids": mask.cumsum(-1) - 1}
        batch = TensorDict(tensors, batch_size=1)
        while True:
            config = {**self._generating, "max_new_tokens": request.max_tokens}
            asked = DataProto(batch, meta_info={"generation_config": config})
            # The slot's number keeps an episode on one engine, with its cache of the prompt.
            slot = self.env_config["env_id"]
            answer = self._client.generate_request_sync(req=asked, request_id=None, uid=slot)
            # ROLL aborts requests when it suspends the engine, and expects them again.
            if answer is not None and "abort" not in answer.meta_info["finish_reasons"]:
                break
            if not self.running:
                raise asyncio.CancelledError
        [ids], [reason] = (answer.meta_info[key] for key in ("output_token_ids", "finish_reasons"))
        [logprobs] = answer.meta_info["output_logprobs"] or [None]
        return self._engine.sample(ids, logprobs, cut=reason == "length")

    def _row(self, trajectory: Trajectory, group: str) -> Any:
        config, valid = self.env_config, trajectory.valid
        tensors = rows.columns(trajectory, self._length, self._pad_id, min(self._chat.stop_ids))
        others = {
            rows.EPISODE: PackedTrajectory.of(trajectory).data,
            rows.SLOT: config["env_id"],
            "group_ids": config["group_id"],
            "tags": config["tag"],
            "traj_group_id": group,
            "traj_id": f"{group}_{config['env_id']}",
            "episode_scores": trajectory.total_reward if valid else 0.0,
            "step_scores": trajectory.rewards if valid else [],
        }
        name = f"env/{config['tag']}"
        metrics = {f"{name}/failed": float(not valid)}
        if valid:
            metrics[f"{name}/success"] = float(trajectory.success)
        objects = {name: np.fromiter([value], object) for name, value in others.items()}
        return DataProto(TensorDict(tensors, batch_size=1), objects, meta_info={"metrics": metrics})


def client_with_stops(generate_scheduler: Any, stop_ids: frozenset[int]) -> Any:
    """Return a client of ROLL's router that ends turns at the chat template's tokens.

    ROLL ends them at two tokens, by default the tokenizer's `eos` and `pad`: a base model's `eos`
    is another token than the one that closes a message.

    Raises:
        ConfigurationError: There are more of them.
    """
    if len(stop_ids) > 2:
        raise ConfigurationError(f"ROLL ends turns at two tokens at most, got {sorted(stop_ids)}")
    client = RouterManager.create_client_sync(generate_scheduler)
    client.eos_token_id, client.pad_token_id = min(stop_ids), max(stop_ids)
    return client

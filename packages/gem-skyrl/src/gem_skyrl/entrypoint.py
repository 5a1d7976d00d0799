"""`trainer.override_entrypoint=gem_skyrl.entrypoint`: SkyRL's launcher calls `main`."""

# SkyRL reads the types of fields as they are: no `from __future__ import annotations`.

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from skyrl.backends.skyrl_train.inference_servers.utils import resolve_policy_model_name
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.entrypoints.main_base import BasePPOExp
from skyrl.train.utils.utils import initialize_ray, validate_cfg

from gem_skyrl.dataset import TaskDataset
from gem_skyrl.record import RECORDED, GemTracking
from gem_skyrl.resume import clear_published
from gem_skyrl.rollout import Engines, GemGenerator
from gem_skyrl.seams import SEAMS
from gem_skyrl.settings import check_tasks, read
from gem_skyrl.trainer import GemAsyncTrainer, GemTrainer
from gem_skyrl.version import TRAINER
from gem_train.recording import RunRecording
from gem_train.seams import check_seams

SWITCH = "trainer.override_entrypoint="
"""What switches GEM on; SkyRL's launcher reads it, its configuration has no such key."""


@dataclass
class Config(SkyRLTrainConfig):  # type: ignore[misc]
    """SkyRL's configuration with the table of the adapter's settings (`gem_skyrl.settings`)."""

    gem: dict[str, Any] = field(default_factory=dict)


class GemExperiment(BasePPOExp):  # type: ignore[misc]
    """SkyRL's experiment with GEM's dataset, generator, trainer and tracker."""

    def __init__(self, cfg: Any) -> None:
        """Check the configuration before anything is loaded.

        Raises:
            ConfigurationError: The configuration is wrong; the message names the key.
        """
        self.settings = read(cfg)
        super().__init__(cfg)

    def get_train_dataset(self) -> TaskDataset:
        """Return the tasks of `data.train_data`."""
        found = TaskDataset(self.cfg.data.train_data)
        check_tasks(self.cfg, len(found))
        return found

    def get_eval_dataset(self) -> TaskDataset | None:
        """Return the tasks of `data.val_data`, where there are evaluations."""
        if self.cfg.trainer.eval_interval <= 0:
            return None
        return TaskDataset(self.cfg.data.val_data)

    def get_tracker(self) -> GemTracking:
        """Return SkyRL's tracker with the record of the run."""
        trainer = self.cfg.trainer
        found = GemTracking(
            project_name=trainer.project_name,
            experiment_name=trainer.run_name,
            backend=trainer.logger,
            config=self.cfg,
            tags=trainer.tags,
        )
        settings = self.settings
        found.recording = RunRecording(
            settings.record_dir, TRAINER.about(), RECORDED, **settings.recorded
        )
        return found

    def get_generator(self, cfg: Any, tokenizer: Any, inference_engine_client: Any) -> GemGenerator:
        """Return the generator that plays episodes."""
        settings = self.settings
        return GemGenerator(
            Engines(inference_engine_client, resolve_policy_model_name(cfg)),
            settings.chat_format(tokenizer),
            settings,
            settings.limits(cfg.trainer.max_prompt_length, settings.response_tokens),
            several=bool(cfg.generator.step_wise_trajectories),
        )

    def get_trainer(
        self,
        cfg: Any,
        tracker: Any,
        tokenizer: Any,
        train_dataset: Any,
        eval_dataset: Any,
        inference_engine_client: Any,
        generator: Any,
        colocate_pg: Any,
    ) -> Any:
        """Return SkyRL's trainer of the loop that is asked for, with turn-level advantages."""
        kind = GemAsyncTrainer if cfg.trainer.fully_async.enabled else GemTrainer
        found = kind(
            cfg=cfg,
            tracker=tracker,
            tokenizer=tokenizer,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            inference_engine_client=inference_engine_client,
            generator=generator,
            colocate_pg=colocate_pg,
        )
        found.gem, found.recording = self.settings, tracker.recording
        tracker.timings = lambda: found.all_timings
        return found


def parse(argv: Sequence[str]) -> Config:
    """Return the configuration of a command line, checked by GEM and by SkyRL.

    Args:
        argv: Words `key.path=value`.

    Raises:
        ConfigurationError: GEM's settings, or SkyRL's beside them, are wrong.
        ValueError: SkyRL refuses a key or a value; in places it raises an `AssertionError`.
    """
    config: Config = Config.from_cli_overrides(
        [word for word in argv if not word.startswith(SWITCH)]
    )
    # SkyRL would ask for a critic where its own `gae`, which GEM refuses, is chosen.
    read(config)
    validate_cfg(config)
    return config


@ray.remote(num_cpus=1)  # type: ignore[untyped-decorator]
def run(config: Any) -> None:
    """Train; not on the head node, as SkyRL's own entry point does it."""
    GemExperiment(config).run()


def main() -> None:
    """Run SkyRL with GEM; its launcher calls this.

    Raises:
        ConfigurationError: The configuration is wrong; the message names the key.
        UnsupportedVersionError: SkyRL is of an unsupported version, or not what it was.
    """
    TRAINER.check()
    check_seams(TRAINER, SEAMS)
    config = parse(sys.argv[1:])
    clear_published(config.generator.inference_engine)
    initialize_ray(config)
    ray.get(run.remote(config))

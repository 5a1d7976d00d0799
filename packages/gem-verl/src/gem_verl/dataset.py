"""verl's dataset hook: seeded tasks of an environment instead of a parquet file.

    data.custom_cls.path=pkg://gem_verl.dataset data.custom_cls.name=GemDataset
    data.train_files='"gem:game:GuessTheNumber-v0?n=4096&seed=0"' data.shuffle=False

The text is a `gem.tasks.TaskSet` URI; a list of URIs is played one after the other. With
`data.shuffle=False` iteration k trains on the tasks `k * train_batch_size` and following. For
validation, `#name=<metric name>&temperature=<t>` may follow a URI: the name takes the place of the
environment id in verl's metrics, the temperature that of `val_kwargs.temperature`; then also
`&top_p=<p>`, `&top_k=<k>`, which are else those of `val_kwargs`, and `&min_p=<p>`. With
`&samples=<n>` each task is played n times.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from omegaconf import OmegaConf
from torch.utils.data import Dataset

from gem.errors import ConfigurationError
from gem.multi import all_seats
from gem_train.experiment.mixtures import samples
from gem_train.experiment.tasksets import DatasetRow, Source, check_names, task_at
from gem_train.preflight import check, check_sees
from gem_verl.settings import GEM_MODES, Settings, check_config

logger = logging.getLogger(__name__)


def _listed(files: Any) -> list[Any]:
    return [files] if isinstance(files, str) else list(files or ())


def _check_trained(sources: Sequence[Source]) -> None:
    if any(source.sampling is not None for source in sources):
        raise ConfigurationError(
            "data.train_files: a temperature is for validation; leave it out and set "
            "actor_rollout_ref.rollout.temperature, which all of training has"
        )


def _check_apart(config: Any, same: bool) -> None:
    """Refuse validation files that are the training files, on verl's own trainers.

    There a failed episode is NaN in validation, and only the files tell the two datasets apart.
    """
    mode = config._get_root().trainer.v1.trainer_mode
    if same and mode not in GEM_MODES:
        raise ConfigurationError(
            f"data.val_files: with trainer_mode={mode} they must differ from data.train_files; "
            "give a URI a #name, or set trainer.v1.trainer_mode=gem_sync"
        )


def _check_sees(processor: Any, model: str, shown: Sequence[str], settings: Settings) -> None:
    """Make sure that policies can be shown images.

    Args:
        processor: The model's as verl has loaded it; None if it does not see.
        model: Its folder or name.
        shown: Environments that show images.
        settings: How policies are prompted.

    Raises:
        ConfigurationError: The model does not see; or its processor cannot be loaded or used.
        UnsupportedVersionError: verl is not what `gem_verl.positions` repairs.
    """
    check_sees(model, shown)
    # A learner that cannot load it only warns, and would train on wrong positions.
    import_module("gem_verl.positions")
    if processor is None:
        raise ConfigurationError(
            f"{shown[0]} shows images, and verl has no processor of the model {model!r}: it does "
            "not see, or the processor cannot be loaded, for instance without torchvision; verl's "
            "warning says why"
        )
    settings.chat_format(processor)


class GemDataset(Dataset[dict[str, Any]]):
    """One row per task, in order."""

    def __init__(
        self,
        data_files: str | Sequence[str],
        tokenizer: Any = None,
        processor: Any = None,
        config: Any = None,
        max_samples: int = -1,
    ) -> None:
        """Check the run's configuration and begin one episode of each source.

        verl builds the datasets before anything expensive, so that what cannot work ends here.

        Args:
            data_files: One URI or several.
            tokenizer: Unused: prompts are rendered where episodes are played.
            processor: The model's, if it sees.
            config: verl's `data` table, a part of the whole configuration.
            max_samples: Number of rows to keep; -1 keeps all.

        Raises:
            ConfigurationError: Two validation sets have the same name; see also `Source.parse` and
                `gem_verl.settings.check_config`.
            UnknownEnvError: No such environment.
            UnknownParameterError: The environment has no such parameter.
            MissingExtraError, UnreachableError: Something that it needs is not there.
        """
        files = [data_files] if isinstance(data_files, str) else list(data_files)
        usual = {}
        if OmegaConf.is_config(config):
            verls = config._get_root().actor_rollout_ref.rollout.val_kwargs
            usual = {"top_p": verls.top_p, "top_k": verls.top_k or -1}  # 0 is all, too
        self.sources = [Source.parse(str(text), usual) for text in files]
        self._validates = False
        if OmegaConf.is_config(config):
            self._validates = files == _listed(config.val_files)
            if self._validates:
                check_names([source.name for source in self.sources], "data.val_files")
            if files == _listed(config.train_files):
                _check_trained(self.sources)
                _check_apart(config, self._validates)
        tasks = [task for source in self.sources for task in samples(source.tasks)]
        shown = check(tasks, images=True)
        total = sum(len(source.tasks) * source.samples for source in self.sources)
        self._n = total if max_samples < 0 else min(total, max_samples)
        if OmegaConf.is_config(config):
            root = config._get_root()
            seats = any(all_seats(task.params) for task in tasks)
            settings = check_config(root, seats, shown[0] if shown else None)
            if shown:
                _check_sees(processor, str(root.actor_rollout_ref.model.path), shown, settings)
            if config.shuffle:
                logger.warning("tasks come in random order; data.shuffle=False keeps their order")

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < self._n:
            raise IndexError(f"row {index} of {self._n}")
        source, task = task_at(self.sources, index)
        return {
            "raw_prompt": [{"role": "user", "content": task.env_id}],
            "index": index,
            "data_source": source.name,
            "reward_model": {"style": "env", "ground_truth": ""},
            "gem_task": DatasetRow(
                task, source.sampling, index, evaluation=source.name if self._validates else None
            ).encode(),
        }

"""The model that a training run has made: the last one in the folder of its record.

- The reference trainer's checkpoints are loaded as it would itself.
- Folders that transformers or PEFT can load, wherever they are in the run's: TRL's checkpoints,
  the models that OpenRLHF, oat and RL2 save, verl's where they were merged.
- Checkpoints of verl, DeepSpeed and PyTorch's own format are shards, which only tools of their
  trainers read: they are refused, with what makes a model of them.
"""

from __future__ import annotations

import pickle
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gem.errors import ConfigurationError, RecordError
from gem_bench.models import resolve_model
from gem_train.experiment.runspec import RunSpec
from gem_train.record import read_run

_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")
_UNREADABLE = (
    *(OSError, EOFError, KeyError, TypeError, RuntimeError, ValueError),
    pickle.UnpicklingError,
)
_CONVERSIONS = {
    "verl": "python -m verl.model_merger merge --backend fsdp --local_dir "
    "{folder}/checkpoints/global_step_N/actor --target_dir {folder}/merged makes one",
    "openrlhf": "a run that ends by itself leaves one in {folder}/model; checkpoints are "
    "DeepSpeed's, whose zero_to_fp32.py makes weights of them",
    "skyrl": "trainer.hf_save_interval=N makes one every N iterations, in {folder}/exports",
    "oat": "checkpoints are DeepSpeed's, whose zero_to_fp32.py makes weights of them",
    "tinker": "its server has the weights: --model openai:NAME",
}


@dataclass(frozen=True)
class Trained:
    """A model, and what has been trained of it."""

    model: str
    """Folder or hub name that transformers load."""
    adapter: Path | None = None
    """Folder of a PEFT adapter that is to be merged."""
    checkpoint: Path | None = None
    """Of the reference trainer: the weights that it trained."""
    spec: RunSpec | None = None
    """The experiment, if the record has one."""

    @property
    def name(self) -> str:
        """What was trained last."""
        return str(self.adapter or self.checkpoint or self.model)

    def apply(self, model: Any) -> None:
        """Give a model the weights of the checkpoint, adapters merged.

        Raises:
            RecordError: It cannot be read, or is of another model.
        """
        if self.checkpoint is None or self.spec is None:
            return
        import torch

        from gem_bench.lora import add_adapters, merge

        try:
            state = torch.load(self.checkpoint, map_location="cpu", weights_only=True)
            trained = state["policy"]["weights"]
            if self.spec.policy.lora_rank:
                # What they begin with is replaced.
                policy = replace(self.spec.policy, lora_init=None)
                add_adapters(model, policy, self.spec.seed)
            _, unknown = model.load_state_dict(trained, strict=False)
        except _UNREADABLE as error:
            raise RecordError(f"cannot read the checkpoint {self.checkpoint}: {error}") from error
        if unknown:
            raise RecordError(f"{self.checkpoint}: {self.model} has no {unknown[0]}")
        merge(model)


def find_trained(folder: Path) -> Trained:
    """Return the last model of a run.

    Raises:
        ConfigurationError: It has none that transformers can load; the message says what makes one.
        RecordError: The folder holds no run, or one that cannot be read.
    """
    meta = read_run(folder).meta
    spec = RunSpec.from_mapping(meta["spec"]) if "spec" in meta else None
    trainer = str(meta.get("trainer", "unknown"))
    if trainer == "reference" and spec is not None:
        saved = sorted((folder / "checkpoints").glob("iteration-*.pt"))
        if not saved:
            raise ConfigurationError(
                f"{folder} has no checkpoint: the reference trainer saves them with "
                "--checkpoint-every"
            )
        base = resolve_model(str(meta.get("model") or spec.policy.model), "--model")
        return Trained(base, checkpoint=saved[-1], spec=spec)
    models = {path.parent for pattern in _WEIGHTS for path in folder.rglob(pattern)}
    found = [path for path in models if (path / "config.json").exists()]
    adapters = {path.parent for path in folder.rglob("adapter_model.safetensors")}
    policies = [path for path in {*found, *adapters} if _is_policy(path.relative_to(folder))]
    last = max(filter(_whole, policies), key=lambda path: _order(path, folder), default=None)
    if last is None:
        hint = _CONVERSIONS.get(trainer, "its trainer may make one").format(folder=folder)
        raise ConfigurationError(
            f"{folder}: this run of {trainer} has no model that transformers load; {hint}"
        )
    if last in adapters:
        base = str(meta.get("model") or (spec and spec.policy.model) or "")
        if not base:
            raise ConfigurationError(f"{folder}: run.json does not say what {last} adapts")
        return Trained(resolve_model(base, "--model"), adapter=last, spec=spec)
    return Trained(str(last.absolute()), spec=spec)


def _whole(path: Path) -> bool:
    """Whether a checkpoint is complete: transformers' Trainer writes `trainer_state.json` last."""
    return not path.name.startswith("checkpoint-") or (path / "trainer_state.json").exists()


def _is_policy(path: Path) -> bool:
    """Whether a folder may have a trained policy: TRL keeps what a run began with in `adapter`."""
    return path.parts[:1] != ("adapter",) and not any("critic" in part for part in path.parts)


def _order(path: Path, run: Path) -> tuple[bool, int, float]:
    """Order models: what a run saves at its end has no number, checkpoints are in their order."""
    numbers = re.findall(r"\d+", str(path.relative_to(run)))
    return not numbers, int(numbers[-1]) if numbers else 0, path.stat().st_mtime

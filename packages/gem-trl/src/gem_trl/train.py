"""`python -m gem_trl.train SPEC --record DIR [key=value ...]`: run an experiment in TRL.

    python -m gem_trl.train guess.toml --record runs/guess use_vllm=true gradient_checkpointing=true
    accelerate launch --num_processes 8 -m gem_trl.train guess.toml --record runs/guess

SPEC is a RunSpec as TOML or JSON; the keys are fields of GRPOConfig that it does not decide, for
the hardware. The run leaves a record (`gem_train.record`) and checkpoints, and goes on from the
last whole one when it is started again.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from gem.errors import ConfigurationError, RecordError, exit_status
from gem.json_lines import read_json
from gem.tables import json_or_text
from gem_train.checkpoints import save_state
from gem_train.experiment.runspec import RunSpec
from gem_train.processes import free_port
from gem_train.record import Recorder
from gem_train.recording import begin
from gem_trl import TRAINER, check_trl, lora
from gem_trl.experiment import CHECKPOINTS, check_spec, gem_settings, grpo_config


def train(spec: RunSpec, folder: Path, given: Mapping[str, Any]) -> None:
    """Run an experiment, from its last checkpoint if it has one.

    Args:
        spec: The experiment.
        folder: Of the record.
        given: See `gem_trl.experiment.grpo_config`.

    Raises:
        ConfigurationError: TRL cannot do it, or the folder holds another run or the checkpoints of
            another number of processes.
        RecordError: The record cannot be written.
        RolloutError: Too many episodes of a batch failed.
        UnsupportedVersionError: TRL is of an unsupported version.
    """
    check_trl()
    check_spec(spec, folder)
    from gem_trl.dataset import eval_datasets, task_dataset
    from gem_trl.trainer import GemGRPOTrainer

    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if "WORLD_SIZE" not in os.environ:
        # TRL and accelerate would take 29500, as another run beside this one does.
        os.environ.setdefault("MASTER_PORT", str(free_port()))
    args = grpo_config(spec, folder, processes, given)
    main, about = os.environ.get("RANK", "0") == "0", TRAINER.about(spec=spec.to_mapping())
    if main:
        begin(Recorder(folder), about)
    last = last_checkpoint(folder / CHECKPOINTS, processes)
    if main:
        save_state(folder / CHECKPOINTS / PROCESSES, {"processes": processes})
    # What was due at a checkpoint has been evaluated before it was saved.
    args.eval_on_start = args.eval_on_start and last is None
    trainer = GemGRPOTrainer(
        model=spec.policy.model,
        args=args,
        train_dataset=task_dataset(spec.task_set.uri),
        eval_dataset=eval_datasets(*(source.text for source in spec.evaluations)) or None,
        gem=gem_settings(spec, folder),
        peft_config=lora.lora_config(spec.policy),
    )
    if main:
        # Before the first iteration the trainer, which knows no spec, has begun the record anew.
        begin(Recorder(folder), about)
    if spec.policy.lora_rank:
        lora.begin(trainer.model, spec.policy.lora_init)
        if last is None and trainer.accelerator.is_main_process:
            trainer.model.save_pretrained(folder / lora.BEGINNING)
    trainer.train(resume_from_checkpoint=last)


PROCESSES = "processes.json"
"""Beside the checkpoints: how many processes save them."""


class _State(TypedDict):
    global_step: int


def last_checkpoint(saved: Path, processes: int) -> str | None:
    """Return the last whole checkpoint in a folder; None if there is none.

    Args:
        saved: The folder.
        processes: Number of processes that train; each saves its random numbers.

    Raises:
        ConfigurationError: The folder has a checkpoint of another number of processes.
        RecordError: The file that says how many there were is damaged.
    """
    known = saved / PROCESSES
    earlier = read_json(known, dict[str, int])["processes"] if known.exists() else processes
    whole: list[tuple[int, str]] = []
    for path in saved.glob("checkpoint-*"):
        try:
            # What the Trainer writes last.
            state = read_json(path / "trainer_state.json", _State)
        except RecordError:
            state = {}
        if state and earlier != processes:
            raise ConfigurationError(
                f"{path} is of a run with {earlier} processes, and this one has {processes}: start "
                f"it with {earlier}, or begin a run in another folder"
            )
        if state and len(list(path.glob("rng_state*.pth"))) == processes:
            whole.append((state["global_step"], str(path)))
        else:
            print(f"{path} is half-written and is left out", file=sys.stderr)
    return max(whole, default=(0, None))[1]


def main(argv: Sequence[str] | None = None) -> int:
    """Train from the command line; exit status 2 and a message if it is impossible."""
    parser = argparse.ArgumentParser(
        prog="python -m gem_trl.train", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("spec", type=Path, help="RunSpec, .toml or .json")
    parser.add_argument("--record", type=Path, required=True, help="folder of the record")
    parser.add_argument("given", nargs="*", metavar="key=value", help="field of GRPOConfig")
    args = parser.parse_intermixed_args(argv)
    return exit_status(lambda: train(RunSpec.read(args.spec), args.record, fields(args.given)))


def fields(texts: Iterable[str]) -> dict[str, Any]:
    """Return the fields of GRPOConfig that `key=value` arguments name; values are JSON or text.

    Raises:
        ConfigurationError: An argument has no `=`.
    """
    given = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign:
            raise ConfigurationError(f"{text}: write it as {text}=value, for instance {text}=true")
        given[key] = json_or_text(value)
    return given


if __name__ == "__main__":
    sys.exit(main())

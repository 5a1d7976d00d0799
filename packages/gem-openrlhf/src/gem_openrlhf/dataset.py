"""OpenRLHF's dataset: seeded tasks as rows of a JSON Lines file, played in their order if asked.

A row has the columns `input` (a name, different in every row: OpenRLHF recognises evaluation rows
by it), `label` (the task) and `datasource` (the name in evaluation metrics).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from gem.tasks import Task
from gem.training.tasksets import decode_task, encode_task, parse_sources
from gem_openrlhf.settings import check_dataset, load_settings


@dataclass(frozen=True)
class Row:
    """A row's label."""

    task: Task
    temperature: float | None = None
    """Sampling temperature instead of OpenRLHF's."""
    evaluation: str | None = None
    """Name of the evaluation that the row belongs to; None in training."""

    def encode(self) -> str:
        """Return the column `label`, from which OpenRLHF's workers rebuild the row."""
        label = json.loads(encode_task(self.task, self.temperature))
        return json.dumps(label if self.evaluation is None else {**label, "eval": self.evaluation})

    @classmethod
    def decode(cls, label: str) -> Row:
        """Rebuild a row.

        Raises:
            ConfigurationError: The label is something else.
        """
        task, temperature = decode_task(label)
        return cls(task, temperature, json.loads(label).get("eval"))


def rows(texts: Sequence[str], *, evaluation: bool) -> Iterator[dict[str, str]]:
    """Yield the rows of a dataset file.

    Args:
        texts: `gem.training.tasksets.Source` URIs, played one after the other.
        evaluation: Whether the file is for `--eval.dataset`.

    Raises:
        ConfigurationError: A URI is malformed, or two evaluations have the same name.
        UnknownEnvError: No such environment.
        UnknownParameterError: The environment has no such parameter.
    """
    sources = parse_sources(texts, "dataset", unique=evaluation)
    for source in sources:
        source.tasks[0].make().close()
    for number, source in enumerate(sources):
        for task in source.tasks:
            row = Row(task, source.temperature, source.name if evaluation else None)
            yield {
                "input": f"{number}: {source.name}, seed {task.seed}",
                "label": row.encode(),
                "datasource": source.name,
            }


def write(texts: Sequence[str], *, evaluation: bool) -> str:
    """Return the text of a dataset file; see `rows`."""
    return "".join(json.dumps(row) + "\n" for row in rows(texts, evaluation=evaluation))


def install(module: ModuleType) -> None:
    """Let OpenRLHF's datasets be checked, and `gem.task_order="file"` be honoured."""
    original = module.prepare_datasets

    def prepare_datasets(strategy: Any, tokenizer: Any) -> tuple[Any, Any, int]:
        train, evaluation, steps = original(strategy, tokenizer)
        settings = load_settings(strategy.args.train.agent_func_path)
        if settings is None:
            return train, evaluation, steps
        check_dataset(strategy.args, len(train.dataset))
        if settings.task_order == "file":
            workers = strategy.args.data.dataloader_num_workers
            train = strategy.setup_dataloader(
                train.dataset, 1, True, False, train.dataset.collate_fn, num_workers=workers
            )
        return train, evaluation, steps

    module.prepare_datasets = prepare_datasets  # type: ignore[attr-defined]

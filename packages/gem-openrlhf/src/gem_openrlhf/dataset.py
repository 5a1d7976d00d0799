"""OpenRLHF's dataset: seeded tasks as rows of a JSON Lines file, played in their order if asked.

A row has the columns `input` (a name, different in every row: OpenRLHF recognises evaluation rows
by it), `label` (the task) and `datasource` (the name in evaluation metrics).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from gem_openrlhf.record import ITERATIONS
from gem_openrlhf.resume import clear_leftovers
from gem_openrlhf.settings import check_dataset, load_settings
from gem_train.experiment.tasksets import DatasetRow


def line(row: DatasetRow) -> dict[str, str]:
    """Return OpenRLHF's columns of a row; `--data.label_key` is `label`."""
    return {
        "input": f"{row.number}: {row.name}, seed {row.task.seed}",
        "label": row.encode(),
        "datasource": row.name,
    }


def install(module: ModuleType) -> None:
    """Let OpenRLHF's datasets be checked, and `gem.task_order="file"` be honoured."""
    original = module.prepare_datasets

    def prepare_datasets(strategy: Any, tokenizer: Any) -> tuple[Any, Any, int]:
        train, evaluation, steps = original(strategy, tokenizer)
        settings = load_settings(strategy.args.train.agent_func_path)
        if settings is None:
            return train, evaluation, steps
        args, tasks = strategy.args, len(train.dataset)
        check_dataset(args, tasks)
        # Of tasks that are left out because their episodes are alike, nobody knows how many.
        if not args.algo.dynamic_filtering_enable:
            iterations = tasks // args.rollout.batch_size * args.train.num_episodes
            setattr(args, ITERATIONS, iterations)
        # OpenRLHF loads models only when it knows the number of steps, which this returns.
        clear_leftovers(strategy.args, settings)
        if settings.task_order == "file":
            workers = strategy.args.data.dataloader_num_workers
            train = strategy.setup_dataloader(
                train.dataset, 1, True, False, train.dataset.collate_fn, num_workers=workers
            )
        return train, evaluation, steps

    module.prepare_datasets = prepare_datasets  # type: ignore[attr-defined]

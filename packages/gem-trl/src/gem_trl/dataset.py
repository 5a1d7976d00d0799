"""TRL's datasets: seeded tasks as prompts, which the rollout decodes."""

from __future__ import annotations

from collections.abc import Iterable

from datasets import Dataset

from gem_train.experiment.mixtures import samples
from gem_train.experiment.tasksets import Source, dataset_rows, parse_sources
from gem_train.preflight import check


def task_dataset(*uris: str) -> Dataset:
    """Return tasks to train on, one a row; an episode of each environment is begun.

    Args:
        uris: `gem:<env id>?n=..&seed=..&<parameter>=..`, played one after the other if GRPOConfig's
            `shuffle_dataset` is False.

    Raises:
        ConfigurationError: A URI is malformed, the environment has no such parameter, or it shows
            images, which TRL's policies are not shown.
        UnknownEnvError: No such environment.
        GemError: Something that the environment needs is missing.
    """
    return _dataset(uris, evaluation=False)


def eval_datasets(*uris: str) -> dict[str, Dataset]:
    """Return datasets to evaluate on by name, for the trainer's `eval_dataset`.

    Args:
        uris: As for `task_dataset`; `#name=..&temperature=..` may follow: the name in the metrics,
            and a sampling temperature instead of the training's, 0 being greedy; further settings
            are in `gem_train.experiment.tasksets.EvalSampling`, and `samples`.

    Raises:
        ConfigurationError: As `task_dataset`, or two evaluations have the same name.
        UnknownEnvError: No such environment.
    """
    sources = parse_sources(uris, "eval_datasets")
    return {source.name: _dataset([source.text], evaluation=True) for source in sources}


def _dataset(uris: Iterable[str], *, evaluation: bool) -> Dataset:
    uris = list(uris)
    rows = dataset_rows(uris, evaluation=evaluation)
    # TRL makes the trainer, and loads its model, after the datasets.
    check(task for uri in uris for task in samples(Source.parse(uri).tasks))
    # Plain text: TRL would render a conversation with the model's chat template.
    return Dataset.from_dict({"prompt": [row.encode() for row in rows]})

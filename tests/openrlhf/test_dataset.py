"""Dataset files: made from task set URIs, and read by OpenRLHF itself."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gem.errors import ConfigurationError
from gem_openrlhf import dataset
from gem_openrlhf.make_dataset import main
from gem_train.experiment.tasksets import DatasetRow, EvalSampling, dataset_text

# Of the data loader that OpenRLHF makes.
pytestmark = [
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
    pytest.mark.filterwarnings("ignore:'pin_memory' argument"),
]

URI = "gem:game:GuessTheNumber-v0-easy?n=12&seed=100&prompt=short"


def test_evaluation_rows_can_be_told_apart() -> None:
    uris = [f"{URI}#name=a&temperature=0", f"{URI}#name=b"]
    text = dataset_text(dataset.line, uris, evaluation=True)
    found = [json.loads(line) for line in text.splitlines()]
    assert len({row["input"] for row in found}) == 24  # OpenRLHF finds the name by the input
    assert [row["datasource"] for row in found] == ["a"] * 12 + ["b"] * 12
    assert DatasetRow.decode(found[0]["label"]).sampling == EvalSampling(temperature=0.0)
    assert DatasetRow.decode(found[12]["label"]).evaluation == "b"


@pytest.mark.parametrize("uri", ["game:X", "gem:game:Guess-v0?n=3", "gem:game:Sudoku-v0?oops=1"])
def test_what_cannot_be_played_is_not_written(
    uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "train.jsonl"), uri]) == 2
    assert capsys.readouterr().err
    assert not (tmp_path / "train.jsonl").exists()


class Strategy:
    """What OpenRLHF's `prepare_datasets` uses of its strategy, with its own data loader."""

    def __init__(self, args: Any) -> None:
        from openrlhf.utils.deepspeed.deepspeed import DeepspeedStrategy

        self.args = args
        self.seed = 0
        self.setup_dataloader = DeepspeedStrategy.setup_dataloader.__get__(self)

    def is_rank_0(self) -> bool:
        return False

    def print(self, *args: Any) -> None:
        pass


def seeds_as_openrlhf_plays(world: Any, folder: Path, n: int, **settings: Any) -> list[int]:
    from openrlhf.trainer import ppo_trainer

    file = folder / "train.jsonl"
    assert main([str(file), URI.replace("n=12", f"n={n}")]) == 0
    agent = world.agent_file(folder, **settings)
    argv = ["--train.agent_func_path", str(agent), "--data.prompt_dataset", str(file)]
    argv += ["--data.label_key", "label", "--rollout.batch_size", "4", "--train.batch_size", "4"]
    argv += ["--algo.advantage.estimator", "reinforce", "--actor.num_gpus_per_node", "1"]
    args = world.parse(argv)
    module = SimpleNamespace(prepare_datasets=ppo_trainer.prepare_datasets, __name__="ppo_trainer")
    dataset.install(module)  # type: ignore[arg-type]
    train, _, steps = module.prepare_datasets(Strategy(args), None)
    assert steps == 3
    return [DatasetRow.decode(label).task.seed for _, _, labels, _ in train for label in labels]


def test_openrlhf_plays_the_file_in_its_order_if_asked(world: Any, tmp_path: Path) -> None:
    in_order = list(range(100, 112))
    assert seeds_as_openrlhf_plays(world, tmp_path, 12, task_order="file") == in_order
    shuffled = seeds_as_openrlhf_plays(world, tmp_path, 12)
    assert sorted(shuffled) == in_order
    assert shuffled != in_order


def test_a_dataset_with_a_smaller_last_batch_is_refused(world: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="10 tasks are no multiple of.* 4; make 8"):
        seeds_as_openrlhf_plays(world, tmp_path, 10)


def test_the_file_is_json_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "deep" / "train.jsonl"
    assert main([str(file), URI]) == 0
    lines = file.read_text().splitlines()
    assert {frozenset(json.loads(line)) for line in lines} == {
        frozenset({"input", "label", "datasource"})
    }
    assert "12 tasks" in capsys.readouterr().out

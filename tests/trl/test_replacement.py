"""A package that replaces TRL's trainer, as Unsloth does.

Unsloth copies the source of TRL's class, changes methods in it by text, runs the result as a module
of its own, and puts a subclass in the place of `trl.GRPOTrainer`.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import trl
import trl.trainer
from trl.trainer import grpo_trainer

import gem_trl.replacement
import gem_trl.trainer
from gem.advantage import TurnTable, rebn
from gem.errors import UnsupportedVersionError
from gem_train.record import read_run
from gem_trl.replacement import METHODS, check_class

Make = Callable[..., Any]
GENERATED = "Generated.UnslothGRPOTrainer"
HARMLESS = ("def get_high_entropy_mask(", "def get_high_entropy_mask_as_before(")
PER_ROW = (
    '        advantages = inputs["advantages"]\n',
    '        advantages = inputs["advantages"].mean(1)\n',
)
NO_ROLLOUT = ("if self.rollout_func is not None:", "if self.rollout_func is not None and False:")
FORGETFUL = ("self.rollout_func = rollout_func", "self.rollout_func = None")


def generated(folder: Path, *change: str) -> type:
    """Return a subclass of a copy of TRL's trainer in which one text is another."""
    own = sys.modules[grpo_trainer.__name__]
    source = Path(inspect.getsourcefile(own) or "").read_text(encoding="utf-8")
    source = source[source.index("class GRPOTrainer(") :].replace("class GRPOTrainer(", "class _G(")
    assert source.count(change[0]) >= 1
    names = dict(vars(own), __name__=GENERATED)
    source = (
        source.replace(*change)
        + """
class UnslothGRPOTrainer(_G):
    def __init__(self, model, reward_funcs=None, args=None, train_dataset=None, eval_dataset=None,
                 processing_class=None, rollout_func=None, **kwargs):
        super().__init__(model, reward_funcs, args, train_dataset, eval_dataset,
                         processing_class, rollout_func=rollout_func, **kwargs)
"""
    )
    path = folder / "UnslothGRPOTrainer.py"
    path.write_text(source, encoding="utf-8")
    exec(compile(source, str(path), "exec", dont_inherit=True), names)
    found = names["UnslothGRPOTrainer"]
    assert isinstance(found, type)
    return found


def replace(monkeypatch: pytest.MonkeyPatch, trainer: type) -> None:
    for module in (trl, trl.trainer, grpo_trainer):
        monkeypatch.setattr(module, "GRPOTrainer", trainer)


def imported_after(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return gem_trl.trainer as it is when it is imported now."""
    monkeypatch.setattr(gem_trl, "trainer", gem_trl.trainer)
    monkeypatch.setattr(gem_trl, "GemGRPOTrainer", None, raising=False)
    monkeypatch.delitem(sys.modules, "gem_trl.trainer")
    module = importlib.import_module("gem_trl.trainer")
    monkeypatch.setattr(gem_trl, "GemGRPOTrainer", module.GemGRPOTrainer)
    return module


def check_training(make_trainer: Make, folder: Path) -> Any:
    """Train, and compare the advantages with those of the rewards."""
    trainer = make_trainer(
        script=lambda turn, seed: "end" if turn == seed % 3 else "on",
        gamma=0.9,
        record_dir=str(folder),
        args={"max_steps": 1},
    )
    trainer.train()
    episodes = list(read_run(folder).episodes())
    table = TurnTable.build([e.trajectory.rewards for e in episodes], groups=[0] * 8)
    expected = table.split(rebn(table, 0.9))
    assert [e.advantages for e in episodes] == [pytest.approx(a) for a in expected]
    assert any(len(set(e.advantages)) > 1 for e in episodes)
    assert read_run(folder).metrics[0]["grad_norm"] > 0
    return trainer


def test_trls_own_class_is_what_is_needed() -> None:
    check_class(grpo_trainer.GRPOTrainer)
    assert all(hasattr(grpo_trainer.GRPOTrainer, name) for name in METHODS)


def test_a_trl_without_a_method_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    others = {**METHODS, "_compute_gem": "computes what is needed"}
    monkeypatch.setattr(gem_trl.replacement, "METHODS", others)
    with pytest.raises(UnsupportedVersionError, match="_compute_gem, which computes .* has none"):
        check_class(grpo_trainer.GRPOTrainer)


def test_a_replacement_that_keeps_the_seams_trains_on_gems_advantages(
    make_trainer: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    replacement = generated(tmp_path, *HARMLESS)
    replace(monkeypatch, replacement)
    imported_after(monkeypatch)
    trainer = check_training(make_trainer, tmp_path / "run")
    assert isinstance(trainer, replacement)


def test_after_gem_trl_a_replacement_has_no_effect_and_is_said(
    make_trainer: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    replacement = generated(tmp_path, *PER_ROW)
    replace(monkeypatch, replacement)
    with pytest.warns(UserWarning, match=f"has become {GENERATED}.UnslothGRPOTrainer since"):
        trainer = check_training(make_trainer, tmp_path / "run")
    assert not isinstance(trainer, replacement)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (PER_ROW, r"GRPOTrainer\._compute_loss as trl .*weighs each token.*Generated.*_compute_l"),
        (NO_ROLLOUT, r"GRPOTrainer\._generate as trl .*calls the rollout.*Generated.*_generate"),
        (FORGETFUL, r"GRPOTrainer a rollout_func, and Generated\..*__init__ drops it"),
    ],
)
def test_one_that_drops_what_gem_needs_is_refused_by_name(
    change: tuple[str, str],
    said: str,
    make_trainer: Make,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    replace(monkeypatch, generated(tmp_path, *change))
    imported_after(monkeypatch)
    with pytest.raises(UnsupportedVersionError, match=f"(?s){said}.*import gem_trl.trainer first"):
        make_trainer()


def test_a_method_that_is_changed_in_place_is_refused(
    make_trainer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a wrapper that says that it is what it wraps."""
    import functools

    original = grpo_trainer.GRPOTrainer._prepare_inputs

    @functools.wraps(original)
    def wrapped(self: Any, generation_batch: Any) -> Any:
        return original(self, generation_batch)

    monkeypatch.setattr(grpo_trainer.GRPOTrainer, "_prepare_inputs", wrapped)
    with pytest.raises(UnsupportedVersionError, match="_prepare_inputs.*it is .*test_replacement"):
        make_trainer()

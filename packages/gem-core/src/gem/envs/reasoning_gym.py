"""ReasoningGym: procedurally generated puzzles with their own scoring."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gem.core import Observation
from gem.envs import reasoning_gym_worker as worker
from gem.envs.datasets import Grade, SingleTurnEnv, SingleTurnOptions
from gem.errors import ConfigurationError
from gem.grading.formats import BOXED
from gem.grading.wrapping import readings
from gem.parameters import extending, flag, integer, optional, positive, text

if TYPE_CHECKING:
    from typing_extensions import Unpack

_MAX_SEED = 2**32
_DATASET_SEED = 42
# Seeds of the library between two data sets.
_APART = 1_000_000
# More than the longest answer that any generator has.
_MAX_ANSWER = 20_000


class ReasoningGymEnv(SingleTurnEnv):
    """Puzzles of one generator of the package reasoning-gym (extra `reasoning-gym`).

    The reward is the generator's score of the answer in the last box where that answer solves the
    task: 1, or less for another notation or more moves than needed. A wrong answer earns nothing,
    although most generators give it a share (`partial_credit=True` pays it). `correct` says whether
    the score is 1.

    The stream of items has no end: item i is item `i % size` of the data set that the generator
    makes with the seed `first + i // size * size`. Here `first` is 42 for the `dataset_seed` 42,
    and a million more for each next one, because most generators make item i from the sum of seed
    and i. Seeds choose among the first `size`; resets without a seed go through these first, in an
    order of their own, and then through the next ones.

    Generators and their scoring run in processes of their own, a few for all environments, because
    some of them seed global generators, depend on hash order, or evaluate the answer as code. An
    answer whose scoring needs more CPU time than `timeout_s` scores 0. What an answer must be
    before the library scores it, and which generators ask for more than the library does, is in
    docs/datasets.md.
    """

    _endless = True

    @extending(SingleTurnEnv, answer_format=BOXED)
    def __init__(
        self,
        name: str,
        *,
        size: int = 500,
        dataset_seed: int | None = None,
        level: int | None = None,
        config: Mapping[str, Any] | None = None,
        timeout_s: float = 15.0,
        partial_credit: bool = False,
        **options: Unpack[SingleTurnOptions],
    ) -> None:
        """Store the parameters; see `SingleTurnEnv` for those not listed.

        Args:
            name: Name of the generator.
            size: Items of one data set; at most 1,000,000 unless `dataset_seed` is 42. Most
                generators make an item when it is asked for, so that a large size costs nothing.
            dataset_seed: Which data set comes first, from 0 to 2**32 - 1; None is 42. Only 42 is
                the seed that the library is given.
            level: Difficulty: every attribute of the generator's curriculum at this level, or at
                its highest one; from 0. None leaves the generator's defaults.
            config: Further fields of the generator's configuration.
            timeout_s: CPU time in seconds that scoring one answer may use.
            partial_credit: Pay the library's scores below 1 for wrong answers as well.
            eval: Items in order.
            seed: Seed of the first `reset` that is not given one: it chooses among the items.
                Without a `dataset_seed` it warns, for the original's `seed` is our `dataset_seed`.

        Raises:
            ConfigurationError: A value is not allowed.
        """
        seed = options.get("seed")
        if seed is not None and dataset_seed is None:
            warnings.warn(
                f"rg:{name}: seed={seed!r} chooses where in the data set of dataset_seed="
                f"{_DATASET_SEED} the episodes begin; reasoning-gym's seed, which makes the data "
                f"set, is dataset_seed: give it (dataset_seed={_DATASET_SEED} for this one)",
                UserWarning,
                stacklevel=3,
            )
        super().__init__(**options)
        self.name = text("name", name)
        self.size = integer("size", size, 1, 10**9)
        chosen = _DATASET_SEED if dataset_seed is None else dataset_seed
        self.dataset_seed = integer("dataset_seed", chosen, 0, _MAX_SEED - 1)
        if self.dataset_seed != _DATASET_SEED and self.size > _APART:
            raise ConfigurationError(
                f"size must be at most {_APART} with dataset_seed={self.dataset_seed}, got "
                f"{self.size}: a larger data set would have the items of the next dataset_seed"
            )
        self.level = optional(integer, "level", level, 0, 1000)
        self.timeout_s = positive("timeout_s", timeout_s)
        self.partial_credit = flag("partial_credit", partial_credit)
        try:
            self._config = json.dumps(dict(config or {}), sort_keys=True)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"config must map names to plain values, got {config!r:.200} ({error})"
            ) from None

    def _size(self) -> int:
        return self.size

    def _item(self) -> dict[str, Any]:
        """Return what tells the other process which item is meant."""
        block, place = divmod(self.index, self.size)
        first = _DATASET_SEED + (self.dataset_seed - _DATASET_SEED) * _APART % 2**31
        return {
            "name": self.name,
            "level": self.level,
            "config": self._config,
            "size": self.size,
            "seed": (first + block * self.size) % _MAX_SEED,
            "place": place,
        }

    def _observe(self) -> Observation:
        return self._asked(worker.item(self._item())["question"])

    def _about(self) -> dict[str, Any]:
        about: dict[str, Any] = worker.item(self._item())["about"]
        return about

    def _grade(self, answer: str) -> Grade:
        if len(answer) > _MAX_ANSWER:
            return Grade(False, 0.0, f"longer than {_MAX_ANSWER} characters")
        best: Grade | None = None
        for reading in readings(answer):
            score, solved, reason = worker.score(self._item(), reading, self.timeout_s)
            paid = score if solved or self.partial_credit else 0.0
            if best is None or paid > best.score:
                best = Grade(score == 1.0, paid, reason)
            # Of a text whose scoring does not end, a part would hardly be scored sooner.
            if best.correct or reason in ("timeout", "crash"):
                break
        assert best is not None
        return best

    def _random_answer(self) -> str:
        return str(self.action_rng.randrange(1000))

    def _recorded_answer(self) -> str:
        answer = worker.item(self._item())["answer"]
        read = self.answer_format.extract(self.answer_format.wrap(answer)) if answer else None
        if read is None or not self._grade(read).correct:
            raise NotImplementedError(f"{self.name}, item {self.index}: no answer is recorded")
        return str(answer)

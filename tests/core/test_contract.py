"""What an environment may return: the same answer in rollouts, vectors and the check itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gem.contract import check_reset, check_step
from gem.core import Env
from gem.errors import ContractError
from gem.vector import SyncVectorEnv


@pytest.mark.parametrize(
    "step",
    [
        ("go on", 1, False, False, {}),
        ("go on", np.float32(0.5), np.bool_(True), np.bool_(False), {"success": np.bool_(True)}),
        ("go on", np.array(2.0), np.array(False), True, {"success": None, "correct": 0.0}),
        ["ünïcode \U0001f600", np.int64(3), False, True, {"success": 1}],
        ([{"type": "text", "text": "see"}, {"type": "image", "image": b""}], 0.0, True, False, {}),
    ],
)
def test_numbers_and_flags_of_a_step_become_pythons_own(step: Any) -> None:
    observation, reward, terminated, truncated, info = check_step(step)
    assert observation == step[0]
    assert (type(reward), type(terminated), type(truncated)) == (float, bool, bool)
    assert (reward, terminated, truncated) == (step[1], step[2], step[3])
    assert info == step[4]


BROKEN_STEPS = {
    "four values": (("x", 0.0, False, {}), "got tuple"),
    "nothing": (None, "got NoneType None"),
    "no reward": (("x", None, False, False, {}), "a number as reward, got NoneType"),
    "text as reward": (("x", "1.0", False, False, {}), "a number as reward, got str '1.0'"),
    "many rewards": (("x", np.ones(2), False, False, {}), "a number as reward"),
    "NaN": (("x", float("nan"), False, False, {}), "finite reward, got nan"),
    "infinity": (("x", np.float32("inf"), False, False, {}), "finite reward, got inf"),
    "text as flag": (("x", 0.0, "False", False, {}), "terminated=str 'False'"),
    "number as flag": (("x", 0.0, False, 0, {}), "truncated=int 0"),
    "both ends": (("x", 0.0, True, np.bool_(True), {}), "terminated and truncated at once"),
    "no info": (("x", 0.0, False, False, None), "a dict as info, got NoneType"),
    "text as success": (("x", 0.0, True, False, {"success": "no"}), "info['success'], got str"),
    "no success either way": (("x", 0.0, True, False, {"success": float("nan")}), "got float nan"),
    "a share as success": (("x", 0.3, True, False, {"correct": 0.3}), "info['correct'], got float"),
    "no observation": ((None, 0.0, False, False, {}), "text as observation"),
    "bytes": ((b"x", 0.0, False, False, {}), "text as observation"),
    "a part of its own": (([{"type": "sound"}], 0.0, False, False, {}), "the part dict"),
    "an empty part": (([{"type": "text"}], 0.0, False, False, {}), "the part dict"),
    "a part that is no text": (([{"type": "text", "text": 3}], 0.0, False, False, {}), "int 3"),
    "half a character": (("\ud800", 0.0, False, False, {}), "not valid Unicode"),
}


@pytest.mark.parametrize("case", BROKEN_STEPS)
def test_a_step_that_breaks_the_contract_is_named(case: str) -> None:
    step, message = BROKEN_STEPS[case]
    with pytest.raises(ContractError, match=r"step\(\)") as caught:
        check_step(step)
    assert message in str(caught.value)


@pytest.mark.parametrize("result", ["x", ("x",), (None, {}), ("x", []), ("\udfff", {})])
def test_a_reset_that_breaks_the_contract_is_named(result: Any) -> None:
    with pytest.raises(ContractError, match=r"reset\(\)"):
        check_reset(result)


def test_what_an_environment_changes_later_stays_as_it_was_returned() -> None:
    part, info = {"type": "text", "text": "first"}, {"lives": 3}
    steps = [check_step(([part], 0.0, False, False, info)), check_reset(([part], info))]
    part["text"], info["lives"] = "second", 2
    for observation, *_, kept in steps:
        assert observation == [{"type": "text", "text": "first"}]
        assert kept == {"lives": 3}


class Returning(Env):
    """Returns from `step` what it is told to."""

    def __init__(self, step: Any) -> None:
        super().__init__()
        self.returned = step

    def reset(self, seed: int | None = None, **options: Any) -> Any:
        super().reset(seed)
        return "begin", {}

    def step(self, action: str) -> Any:
        return self.returned


@pytest.mark.parametrize("case", BROKEN_STEPS)
def test_a_vector_refuses_what_a_rollout_refuses(case: str) -> None:
    step, message = BROKEN_STEPS[case]
    vector = SyncVectorEnv([Returning(step), Returning(("x", 1.0, False, False, {}))])
    vector.reset()
    _, rewards, terminated, truncated, infos = vector.step(["a", "b"])
    assert rewards.tolist() == [0.0, 1.0]
    assert (terminated.tolist(), truncated.tolist()) == ([False, False], [True, False])
    assert infos[0]["failure"].cause == "environment"
    assert message in infos[0]["failure"].message

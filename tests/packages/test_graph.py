"""Which tests a change can break."""

from __future__ import annotations

import pytest
from graph import HEAVY, ROOT, affected

GUESS = "packages/gem-core/src/gem/envs/games/guess_the_number.py"


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("path", "runs", "spares"),
    [
        (GUESS, "tests/core/test_games_guess_the_number.py", "tests/math/test_grading_math.py"),
        (GUESS, "tests/core/test_games.py", "tests/core/test_multi.py"),
        ("packages/gem-tau/src/gem_tau/retail.py", "tests/tau", "tests/serve"),
        ("packages/gem-judge/src/gem_judge/envs.py", "tests/judge", "tests/serve"),
        # Imported by its name in a text alone.
        (
            "packages/gem-core/src/gem/tools/search_cli.py",
            "tests/core/test_cli.py",
            "tests/tau/test_tau.py",
        ),
        ("packages/gem-tau/src/gem_tau/data/retail_policy.md", "tests/tau", "tests/core"),
        ("tests/shared/pairs.py", "tests/conformance/test_pairs.py", "tests/core/test_core.py"),
        ("docs/tools.md", "tests/docs", "tests/core/test_core.py"),
    ],
)
def test_a_change_selects_the_tests_that_can_see_it(path: str, runs: str, spares: str) -> None:
    assert (ROOT / path).exists()
    found = affected([path])
    assert runs in found
    assert not [each for each in found if each.startswith(spares)]


def test_a_module_that_is_gone_selects_its_package_s_tests() -> None:
    assert affected(["packages/gem-core/src/gem/gone.py"]) == ["tests/core"]


def test_what_everything_imports_selects_almost_all() -> None:
    assert len(affected(["packages/gem-core/src/gem/errors.py"])) > 100


def test_nothing_selects_nothing_and_no_trainer_s_environment_is_asked_for() -> None:
    assert affected([]) == []
    found = affected(["packages/gem-train/src/gem_train/table.py"])
    assert found and not [each for each in found if each.split("/")[1] in HEAVY]

"""What the checker says: about ids as registered, about all that is missing, and in which words."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import gem
from gem.core import Step
from gem.envs.games.guess_the_number import GuessTheNumber
from gem.errors import ConfigurationError, ResetNeededError
from gem_check import CheckReport, check_env
from gem_check.offline import replacements
from gem_check.suite import check_many, to_json


def result(report: CheckReport, name: str) -> Any:
    return next(r for r in report.results if r.name == name)


def check_one(id: str, **options: Any) -> CheckReport:
    [outcome] = check_many([id], episodes=4, cpu_s=0.01, **options)
    assert outcome.report is not None, outcome.not_run
    return outcome.report


@pytest.fixture
def ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for ids of a test's own."""
    gem.list_envs()
    monkeypatch.setattr("gem.registry._registry", dict(gem.registry._registry))
    monkeypatch.setattr("gem.registry._registered_by_hand", set(gem.registry._registered_by_hand))


def test_ids_of_others_are_checked_as_registered(ids: None) -> None:
    gem.register("mine:D", "gem_math.env:MathEnv", source="/nope.jsonl")
    report = check_one("mine:D", only=["contract"])
    assert not report.passed
    assert "/nope.jsonl" in result(report, "startup").detail
    assert report.replaced == ()


def test_a_parameter_called_source_is_its_owners(ids: None) -> None:
    class Quiz(GuessTheNumber):
        def __init__(self, source: str = "wiki", executor: str = "mine", **more: Any) -> None:
            if (source, executor) != ("wiki", "mine"):
                raise ValueError(f"source must be wiki, got {source}")
            super().__init__(1, 10, 4, **more)

    gem.register("mine:Quiz", Quiz)
    assert check_one("mine:Quiz", only=["oracle"]).passed


def test_what_is_replaced_in_a_built_in_id_is_named() -> None:
    [outcome] = outcomes = list(check_many(["code:Taco8k"], episodes=4, only=["contract"]))
    report = outcome.report
    assert report is not None
    replaced = (
        "source='sample' instead of 'hub:axon-rl/TACO-8k'",
        "runner='subprocess' instead of the default",
    )
    assert report.replaced == replaced
    assert report.head == f"code:Taco8k (with {', '.join(replaced)}): ok"
    assert json.loads(to_json(outcomes))["reports"][0]["replaced"] == list(replaced)


def test_parameters_that_are_given_are_not_replaced() -> None:
    assert [one.name for one in replacements("code:Taco8k", ["source"])] == ["runner"]
    rows = [{"problem": f"{n} + {n} = ?", "answer": str(2 * n)} for n in range(20)]
    report = check_one("math:GSM8K", params={"source": rows}, only=["oracle"])
    assert report.passed
    assert report.replaced == ()


def test_a_built_in_id_that_was_registered_anew_is_its_owners(ids: None) -> None:
    del gem.registry._registry["math:GSM8K"]
    gem.register("math:GSM8K", "gem_math.env:MathEnv", source="/nope.jsonl", sample="gsm8k")
    assert replacements("math:GSM8K") == []


class Bare(gem.Env):
    """Has nothing but reset and step."""

    def __init__(self, *, seed: int | None = None) -> None:
        super().__init__(seed=seed)
        self.turn = 0

    def reset(self, seed: int | None = None, **options: Any) -> Any:
        super().reset(seed=seed)
        self.turn = 0
        return "Say a or b.", {}

    def step(self, action: str) -> Step:
        self.turn += 1
        return "No.", 0.0, self.turn >= 3, False, {"success": False}


def test_one_run_names_everything_that_is_missing() -> None:
    report = check_env(Bare)
    assert result(report, "startup").status == "passed"
    assert result(report, "contract").detail.splitlines() == [
        "step() before reset() must raise ResetNeededError, it went on",
        "step() after the end must raise ResetNeededError, it went on",
        "Bare has no sample_random_action()",
        "Bare has no render()",
    ]
    others = {r.status: r.detail for r in report.results[2:] if r.name != "oracle"}
    assert others == {"skipped": "needs sample_random_action(): not implemented"}
    # In the table each fault has a line of its own.
    assert "\n" + " " * 24 + "Bare has no render()\n" in str(report)


def test_an_environment_without_snapshots_is_told_once_and_checked_otherwise() -> None:
    class Holds(GuessTheNumber):
        """Holds something that cannot be copied."""

        def __init__(self, **parameters: Any) -> None:
            super().__init__(1, 10, 4, **parameters)
            self.hook = lambda: None

    report = check_env(Holds, episodes=8, cpu_s=0.05)
    status = {r.name: r.status for r in report.results}
    assert [name for name in status if status[name] == "failed"] == ["snapshot", "pickle"]
    needs = [r.name for r in report.results if r.detail.startswith("needs snapshot(): ")]
    rewinds = ["grading", "agreement", "unearned", "guesses", "leak", "bad_input", "global_rng"]
    assert needs == rewinds
    assert status["oracle"] == status["vector"] == "passed"


def test_an_environment_that_cannot_be_played_is_told_what_else_it_lacks() -> None:
    class Stumbles(Bare):
        def step(self, action: str) -> Step:
            raise ZeroDivisionError("in step")

    report = check_env(Stumbles)
    assert result(report, "startup").detail == "ZeroDivisionError: in step"
    assert "Stumbles has no render()" in result(report, "contract").detail
    assert {r.status for r in report.results[2:]} == {"skipped"}
    assert "startup" in result(report, "oracle").detail


def test_success_that_is_not_told_is_a_warning_with_the_remedy() -> None:
    class Silent(GuessTheNumber):
        def step(self, action: str) -> Step:
            *rest, info = super().step(action)
            del info["success"]
            return (*rest, info)  # type: ignore[return-value]

    class Correct(GuessTheNumber):
        def step(self, action: str) -> Step:
            *rest, info = super().step(action)
            info["correct"] = info.pop("success")
            return (*rest, info)  # type: ignore[return-value]

    report = check_env(Silent, only=["success"], min_number=1, max_number=10, max_turns=4)
    assert report.passed
    assert report.head == "Silent: ok, 1 warning"
    assert "put info['success'] (bool) into it" in result(report, "success").detail
    assert "  success      warning  " in report.table("warning")
    assert check_env("game:GuessTheNumber-v0", only=["success"]).warnings == []
    # What trajectories and metrics call a success is what the checker calls one.
    options = {"min_number": 1, "max_number": 10, "max_turns": 4}
    assert check_env(Correct, only=["success", "oracle"], **options).warnings == []
    for env in (Silent, Correct):
        oracle = result(check_env(env, only=["oracle"], **options), "oracle")
        assert oracle.detail.startswith("won 32 of 32")


def test_a_positive_reward_at_a_limit_is_no_success_where_none_is_told() -> None:
    class Consoled(Bare):
        def step(self, action: str) -> Step:
            _, _, over, _, _ = super().step(action)
            return "No.", 0.5, False, over, {}

        def sample_random_action(self) -> str:
            return "a"

    report = check_env(Consoled, only=["random"])
    assert result(report, "random").detail == "random play wins 0.00"


class Paid(GuessTheNumber):
    """Pays 5 for a win."""

    def step(self, action: str) -> Step:
        observation, reward, *rest = super().step(action)
        return (observation, 5 * reward, *rest)  # type: ignore[return-value]


def test_a_reward_above_the_limit_comes_with_limit_and_remedy() -> None:
    options = {"only": ["rewards"], "min_number": 1, "max_number": 10, "max_turns": 4}
    detail = result(check_env(Paid, **options), "rewards").detail
    assert detail.startswith("a step pays 5, more than max_return=1; scale the rewards")
    assert "check_env(..., max_return=...), gem check --max-return" in detail
    assert check_env(Paid, max_return=5, **options).passed


@pytest.mark.parametrize(
    ("reward", "pays", "cpu_s"),
    [
        (0.3, "1.5 (5 x call of search, 4 x action)", 1.0),
        # On any machine, however slow.
        (0.3, "1.5 (5 x call of search, 4 x action)", 0.0),
        (0.0, "", 9.0),
    ],
)
def test_tools_that_pay_for_calls_are_warned_of(reward: float, pays: str, cpu_s: float) -> None:
    pytest.importorskip("bm25s")
    tools = [{"name": "search", "index": "sample"}]
    wrapper = {"name": "tool_env", "tools": tools, "tool_reward": reward, "max_tool_uses": 5}
    report = check_env(
        "game:GuessTheNumber-v0-easy", only=["unearned"], wrappers=[wrapper], cpu_s=cpu_s
    )
    found = result(report, "unearned")
    assert found.shown == ("warning" if pays else "passed")
    assert pays in found.detail
    assert "1 with it" in found.detail or "a won one 1:" in found.detail


def test_a_search_for_rewards_that_is_cut_short_does_not_pass() -> None:
    report = check_env("game:GuessTheNumber-v0-easy", only=["unearned"], cpu_s=0.0)
    found = result(report, "unearned")
    assert found.status == "skipped"
    assert found.detail.startswith("0 s of CPU time ended the search after 1 of 4 episodes")


def test_turns_that_pay_without_end_are_warned_of() -> None:
    class Flatters(GuessTheNumber):
        """Pays for every valid guess, whether or not it is the number."""

        def _play(self, move: int) -> Any:
            outcome = super()._play(move)
            return outcome if outcome.won else outcome._replace(reward=0.5)

        def oracle_action(self) -> str:
            return f"\\boxed{{{self.target}}}"

    report = check_env(
        Flatters, only=["unearned"], max_return=9.0, min_number=1, max_number=10, max_turns=4
    )
    [warning] = report.warnings
    assert re_number(warning.detail, "pays ") == 2.0
    assert report.passed


def re_number(text: str, after: str) -> float:
    return float(text.partition(after)[2].split()[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cpu_s": -1}, "cpu_s must be a number of seconds, 0 or more, got -1"),
        ({"cpu_s": float("nan")}, "cpu_s"),
        ({"max_return": 0}, "max_return must be a number above 0, got 0"),
        ({"episodes": 0}, "episodes must be an integer from 1 to .*, got 0"),
        ({"max_steps": -3}, "max_steps must be an integer from 1 to .*, got -3"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check_env("game:GuessTheNumber-v0", **options)


def test_a_class_of_the_main_module_is_not_checked_in_another_process(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            from gem.envs.games.guess_the_number import GuessTheNumber
            from gem_check import check_env

            class Mine(GuessTheNumber):
                pass

            print(check_env(Mine, episodes=4, cpu_s=0.01, only=["processes"]).table())
            """
        )
    )
    told = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=120
    )
    assert "processes    skipped  another process cannot import what makes it" in told.stdout


def test_a_step_after_the_end_is_still_refused_where_the_contract_is_kept() -> None:
    class Strict(Bare):
        def __init__(self, *, seed: int | None = None) -> None:
            super().__init__(seed=seed)
            self.turn = 3

        def step(self, action: str) -> Step:
            if self.turn >= 3:
                raise ResetNeededError("call reset()")
            return super().step(action)

        def render(self) -> str:
            return f"turn {self.turn}"

        def sample_random_action(self) -> str:
            return self.action_rng.choice("ab")

    assert result(check_env(Strict, only=["contract"]), "contract").status == "passed"

"""The environment checker: passes what is sound and catches each kind of fault."""

from __future__ import annotations

import json
import os
import random
import re
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from checker_faults import (
    BadExample,
    Blurred,
    Boastful,
    BothFlags,
    Calls,
    Clairvoyant,
    Consoles,
    Forgetful,
    Fragile,
    FromSource,
    Historian,
    IllegalSampler,
    Impossible,
    Largest,
    Modest,
    MoodyGrader,
    NumpyReward,
    Overpays,
    Parrot,
    PartialSnapshot,
    Pointless,
    Question,
    SameSecret,
    SamplesFromTheEpisode,
    Secretive,
    SeedsGlobalNumpy,
    Spoiler,
    StepsAfterTheEnd,
    StepsBeforeReset,
    Suffix,
    SwallowsKeywords,
    TakesAnything,
    ThreadLocal,
    Trivial,
    Unpicklable,
    Unwinnable,
    UsesGlobalRandom,
)

import gem
from gem.core import Step
from gem.envs.games.guess_the_number import GuessTheNumber
from gem.errors import (
    BusyMachineError,
    ConfigurationError,
    MissingExtraError,
    UnknownEnvError,
    UnknownParameterError,
    UnreachableError,
)
from gem_check import CheckReport, check_env
from gem_check.checker import CHECKS
from gem_check.other_process import OtherProcess
from gem_check.suite import check_many, to_json

NAMES = [check.name for check in CHECKS]
# One id of each game: the variants differ in size, and `python -m gem check --all` has them all.
GAMES = [id for id in gem.list_envs("game:") if id.endswith("-v0")]


def failures(report: CheckReport) -> dict[str, str]:
    return {r.name: r.detail for r in report.results if r.status == "failed"}


def make_guess(**parameters: Any) -> GuessTheNumber:
    return GuessTheNumber(min_number=1, max_number=10, max_turns=4, **parameters)


@pytest.fixture(scope="module")
def other() -> Iterator[OtherProcess]:
    """One other process for all that is checked, as `gem check` has one."""
    with OtherProcess() as process:
        yield process


@pytest.mark.parametrize("env_id", GAMES)
def test_built_in_games_pass_every_check(env_id: str, other: OtherProcess) -> None:
    report = check_env(env_id, episodes=8, cpu_s=0.05, other=other)
    assert [r.name for r in report.results] == NAMES
    assert failures(report) == {}


@pytest.mark.parametrize(
    "params",
    [{"hint": "range"}, {"prompt": "short"}, {"soft_reward": True}, {"format_error_ends": False}],
)
def test_parameters_do_not_change_that(params: dict[str, Any], other: OtherProcess) -> None:
    assert check_env("game:GuessTheNumber-v0", episodes=16, other=other, **params).passed


@pytest.mark.parametrize(
    ("env", "check", "message"),
    [
        (StepsBeforeReset, "contract", r"before reset\(\) must raise.*AttributeError"),
        (StepsAfterTheEnd, "contract", "after the end must raise.*went on"),
        (BothFlags, "contract", "terminated and truncated at once"),
        (NumpyReward, "contract", "must return a number as reward, got ndarray"),
        (Suffix, "contract", "hides text"),
        (IllegalSampler, "contract", "invalid_action"),
        (SwallowsKeywords, "contract", "unknown keywords"),
        (Forgetful, "determinism", "same seed and actions"),
        (Blurred, "determinism", r"reset\(\) differs"),
        (SamplesFromTheEpisode, "determinism", "same seed and actions"),
        (SameSecret, "variety", "one and the same"),
        (Forgetful, "vector", "number of its siblings"),
        (PartialSnapshot, "snapshot", "continues differently"),
        (Unpicklable, "snapshot", "NotImplementedError"),
        (Unpicklable, "pickle", "pickle"),
        (Impossible, "oracle", "lost seed"),
        (Clairvoyant, "oracle", "knows more than it observed"),
        (Trivial, "random", "already wins 1.00"),
        (Spoiler, "degenerate", "(echo|prompt copy) policy wins 1.00"),
        (Fragile, "bad_input", "ValueError"),
        (Parrot, "bad_input", "too long"),
        (ThreadLocal, "threads", "plays other episodes"),
        (MoodyGrader, "grading", "differently each time"),
        (Forgetful, "replay", "expected"),
        (Calls, "network", "constructor connects to.*127.0.0.1:9"),
        (Overpays, "rewards", "a step pays 2"),
        (Consoles, "rewards", "a lost episode pays 1"),
        (Secretive, "agreement", "which the prompt does not name"),
        (BadExample, "agreement", "own example.*one.*format error"),
        (TakesAnything, "degenerate", "format only policy wins 1.00"),
        (Pointless, "random", "the oracle earns 0.00, random play 0.00"),
        (Boastful, "oracle", "wins 0.* it says 0.90"),
        (UsesGlobalRandom, "global_rng", "generator of `random`"),
        (SeedsGlobalNumpy, "global_rng", "generator of numpy"),
    ],
)
def test_each_fault_is_caught_by_its_check(
    env: type[GuessTheNumber], check: str, message: str
) -> None:
    report = check_env(env, only=[check], min_number=1, max_number=10, max_turns=4)
    assert not report.passed
    assert re.search(message, failures(report)[check])


class Counting(GuessTheNumber):
    """Depends on how many episodes this object has played."""

    played = 0

    def _start(self) -> None:
        super()._start()
        self.played += 1
        self.target = (self.target + self.played) % 10 + 1


class Leftover(GuessTheNumber):
    """Depends on whether the episode before was left midway."""

    left = False

    def _start(self) -> None:
        super()._start()
        self.target = (self.target + 5) % 10 if self.left else self.target

    def step(self, action: str) -> Step:
        step = super().step(action)
        self.left = not (step[2] or step[3])
        return step


@pytest.mark.parametrize("env", [Counting, Leftover])
def test_an_episode_that_depends_on_those_before_it_is_caught(env: type[GuessTheNumber]) -> None:
    options = {"min_number": 1, "max_number": 10, "max_turns": 6}
    report = check_env(env, only=["determinism"], **options)
    assert not report.passed
    assert "same seed and actions" in failures(report)["determinism"]


def result(report: CheckReport, name: str) -> Any:
    return next(r for r in report.results if r.name == name)


def test_observations_must_not_repeat_the_whole_history() -> None:
    options = {"only": ["observations"], "min_number": 1, "max_number": 100, "max_turns": 60}
    assert "observations grow from" in failures(check_env(Historian, **options))["observations"]
    assert check_env(GuessTheNumber, **options).passed


def test_an_oracle_that_names_its_share_of_wins_may_lose() -> None:
    report = check_env(Modest, min_number=1, max_number=10, max_turns=4)
    assert failures(report) == {}
    assert "oracle_success 0.30" in result(report, "oracle").detail


def test_where_nobody_can_win_the_oracle_must_earn_more() -> None:
    options = {"only": ["random", "oracle"], "min_number": 1, "max_number": 10, "max_turns": 4}
    report = check_env(Unwinnable, **options)
    assert failures(report) == {}
    assert re.fullmatch("random play earns 0.*, the oracle 1.00", result(report, "random").detail)
    # It cannot be told from the beginning of a game that takes longer than is played here.
    report = check_env("game:GuessTheNumber-v0", only=["oracle"], max_steps=1, max_number=1000)
    assert result(report, "oracle").detail == "no episode ends within 1 turns"


def test_the_answer_may_be_in_a_prompt_but_not_always_at_one_place() -> None:
    detail = failures(check_env(Question, cpu_s=0.2, only=["leak"]))["leak"]
    assert re.fullmatch("always giving token (13|-1) of the prompt wins 1.00 of .*", detail)
    assert failures(check_env(Largest, cpu_s=0.2)) == {}


def test_an_answer_need_not_be_in_the_prompts_form_alone_to_count() -> None:
    class OnlyBare(Largest):
        def step(self, action: str) -> Step:
            return super().step(action if not action.startswith("\\boxed") else "")

        def sample_random_action(self) -> str:
            return f"I say {super().sample_random_action()}"

    assert (
        "alone is not the answer" in failures(check_env(OnlyBare, only=["agreement"]))["agreement"]
    )


def test_slow_environments_play_fewer_episodes_but_at_least_four() -> None:
    class Slow(GuessTheNumber):
        def _start(self) -> None:
            super()._start()
            began = time.process_time()
            while time.process_time() - began < 0.005:
                pass

    options = {"only": ["oracle"], "min_number": 1, "max_number": 10, "max_turns": 4}
    report = check_env(Slow, episodes=100, cpu_s=0.001, **options)
    assert result(report, "oracle").detail.startswith("won 4 of 4")


def test_where_a_step_takes_seconds_checks_of_many_steps_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gem_check.subject._VERY_SLOW_S", 0.0)
    report = check_env(GuessTheNumber, min_number=1, max_number=10, max_turns=4)
    skipped = {r.name for r in report.results if r.detail == "a step takes seconds"}
    assert {"leak", "degenerate", "bad_input"} <= skipped
    assert report.head.endswith(f": ok, {len(skipped)} checks skipped because a step takes seconds")
    assert {"startup", "contract", "processes", "oracle", "replay"}.isdisjoint(skipped)
    assert report.passed


@pytest.fixture
def module_of_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "faulty_envs.py").write_text(
        textwrap.dedent(
            """
            import os

            from gem.envs.games.guess_the_number import GuessTheNumber


            class HashOrder(GuessTheNumber):
                def _start(self):
                    super()._start()
                    self.target = 1 + hash(f"{self.target}") % 10


            class ProcessId(GuessTheNumber):
                def _start(self):
                    super()._start()
                    here = os.getpid() == int(os.environ["TEST_PROCESS"])
                    self.target = 1 + (self.target + here) % 10


            class Dies(GuessTheNumber):
                def _start(self):
                    super()._start()
                    if os.getpid() != int(os.environ["TEST_PROCESS"]):
                        os._exit(7)


            class Spins(GuessTheNumber):
                def _start(self):
                    super()._start()
                    while os.getpid() != int(os.environ["TEST_PROCESS"]):
                        pass


            class Prints(GuessTheNumber):
                def _start(self):
                    super()._start()
                    print("{}", flush=True)


            class Sound(GuessTheNumber):
                pass
            """
        )
    )
    monkeypatch.syspath_prepend(tmp_path)
    import faulty_envs

    yield faulty_envs
    sys.modules.pop("faulty_envs")


def test_another_process_must_play_the_same_episodes(
    module_of_faults: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_PROCESS", str(os.getpid()))
    with OtherProcess() as other:

        def outcome(name: str) -> Any:
            env = getattr(module_of_faults, name)
            return result(check_env(env, only=["processes"], other=other), "processes")

        assert outcome("Sound").status == "passed"
        for name in ("HashOrder", "ProcessId"):
            assert outcome(name).status == "failed"
            assert "other episodes" in outcome(name).detail
        assert "died with status 7" in outcome("Dies").detail
        # One that died, or that prints, spoils nothing for the others.
        assert outcome("Prints").status == "passed"
        assert outcome("Sound").status == "passed"


def test_the_limit_of_another_process_is_one_of_cpu_time(
    module_of_faults: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_PROCESS", str(os.getpid()))
    monkeypatch.setattr("gem_check.other_process._CPU_S", 0.5)
    found = result(check_env(module_of_faults.Spins, only=["processes"]), "processes")
    assert (found.status, found.detail) == (
        "failed",
        "another process is not done after 0.5 s of CPU time",
    )


def test_on_a_machine_that_is_too_busy_a_check_is_skipped(
    module_of_faults: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*args: Any, **options: Any) -> None:
        raise BusyMachineError("too much else runs on this machine")

    monkeypatch.setattr("gem_check.other_process.WorkerPool.call", busy)
    report = check_env(module_of_faults.Sound, only=["processes"])
    found = result(report, "processes")
    assert (found.status, found.detail) == ("skipped", "too much else runs on this machine")
    monkeypatch.setattr("gem_check.checks.recorded", busy)
    assert result(check_env(GuessTheNumber, only=["replay"]), "replay").status == "skipped"


def test_what_cannot_be_checked_is_skipped_with_a_reason() -> None:
    class Sibling(GuessTheNumber):
        def oracle_action(self) -> str:
            raise NotImplementedError

    class OneStart(Sibling):
        def _start(self) -> None:
            self.low = self.min_number = 1
            self.high = self.max_number = 10
            self.max_turns = 4
            self.target = 3
            self.guesses = []
            self.example = "\\boxed{1}"

    report = check_env(lambda **p: OneStart(1, 10, 4, **p), episodes=4)
    skipped = {r.name: r.detail for r in report.results if r.status == "skipped"}
    assert list(skipped) == ["variety", "processes", "oracle", "guesses", "agents", "secrets"]
    assert skipped["variety"] == "it draws nothing: all episodes start alike"
    assert "cannot be pickled" in skipped["processes"]
    assert skipped["oracle"] == "no oracle_action()"


def test_a_fault_anywhere_is_reported_never_raised() -> None:
    class Broken(GuessTheNumber):
        def _start(self) -> None:
            raise ZeroDivisionError("in reset")

    report = check_env(Broken)
    assert not report.passed
    assert failures(report) == {"startup": "ZeroDivisionError: in reset"}

    def cannot_be_made() -> GuessTheNumber:
        raise OSError("no disk")

    report = check_env(cannot_be_made)
    assert failures(report) == {"startup": "OSError: no disk"}


class Holding(GuessTheNumber):
    """Holds something from its reset on."""

    held: ClassVar[list[int]] = []
    most: ClassVar[int] = 0

    def reset(self, seed: int | None = None, **options: Any) -> Any:
        if id(self) not in self.held:
            self.held.append(id(self))
        Holding.most = max(Holding.most, len(self.held))
        return super().reset(seed, **options)

    def close(self) -> None:
        if id(self) in self.held:
            self.held.remove(id(self))


def test_environments_are_closed_after_each_check() -> None:
    assert check_env(Holding, episodes=4, cpu_s=0.1).results
    assert Holding.held == []
    assert Holding.most <= 16


def test_misuse_of_the_checker_is_raised() -> None:
    with pytest.raises(UnknownEnvError):
        check_env("game:Nothing-v0")
    with pytest.raises(UnknownParameterError):
        check_env("game:Wordle-v0", size=3)
    with pytest.raises(ConfigurationError, match="max_turns"):
        check_env("game:Wordle-v0", max_turns=0)
    with pytest.raises(ConfigurationError, match="only must name checks.*'luck'"):
        check_env("game:Wordle-v0", only=["luck"])


def test_the_callers_global_generators_survive_a_check() -> None:
    random.seed(11)
    np.random.seed(11)
    expected = random.random(), np.random.rand()
    random.seed(11)
    np.random.seed(11)
    check_env(make_guess, episodes=4, only=["global_rng"])
    check_env(UsesGlobalRandom, episodes=1, only=["global_rng"])
    random.seed(11)
    np.random.seed(11)
    check_env("game:GuessTheNumber-v0-easy", episodes=4)
    assert (random.random(), np.random.rand()) == expected


def test_a_report_is_a_table_and_json() -> None:
    report = check_env(BothFlags, episodes=4)
    table = str(report).splitlines()
    assert table[0].startswith("BothFlags: ")
    assert "checks failed" in table[0]
    assert len(table) == 1 + len(NAMES)
    data = json.loads(report.to_json())
    assert data["target"] == "BothFlags"
    assert data["verdict"] == "fail"
    assert [r["name"] for r in data["results"]] == NAMES
    assert {r["verdict"] for r in data["results"]} <= {"pass", "fail", "skip"}
    contract = data["results"][1]
    assert contract["check_id"] == "runtime.state_contract"
    assert (contract["level"], contract["lane"], contract["severity"]) == (2, "local", "fail")


def test_every_check_has_an_id_of_its_own() -> None:
    ids = [check.id for check in CHECKS]
    assert len(set(ids)) == len(ids)
    assert all(id.split(".")[0] in ("runtime", "semantic", "gem") for id in ids)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids of environments that cannot run here, beside one that can and one that is broken."""
    gem.list_envs()
    monkeypatch.setattr("gem.registry._registry", dict(gem.registry._registry))

    def lacks_an_extra(*, seed: int | None = None) -> GuessTheNumber:
        raise MissingExtraError("pip install 'gem-core[math]'")

    class Offline(GuessTheNumber):
        def reset(self, seed: int | None = None, **options: Any) -> Any:
            raise UnreachableError("hub.example does not answer")

    gem.register("test:Extra-v0", lacks_an_extra)
    gem.register("test:Offline-v0", Offline)
    gem.register("test:Source-v0", FromSource)
    gem.register("test:Missing-v0", "no_such_module:Env")
    gem.register("test:Faulty-v0", BothFlags, min_number=1, max_number=10, max_turns=4)


def test_what_cannot_run_here_is_named_with_the_reason(registered: None) -> None:
    ids = [f"test:{name}-v0" for name in ("Extra", "Faulty", "Missing", "Offline", "Source")]
    outcomes = {o.env: o for o in check_many(ids, episodes=4, cpu_s=0.01)}
    assert list(outcomes) == ids
    assert outcomes["test:Extra-v0"].not_run == "MissingExtraError: pip install 'gem-core[math]'"
    assert "hub.example does not answer" in outcomes["test:Offline-v0"].not_run
    # Only built-in ids have a sample; whoever wants one for another id says so.
    assert outcomes["test:Source-v0"].not_run == "UnreachableError: no hub"
    [sampled] = check_many(["test:Source-v0"], params={"source": "sample"}, episodes=4)
    assert sampled.report is not None
    assert sampled.report.passed
    missing = outcomes["test:Missing-v0"].report
    assert missing is not None
    assert "no_such_module" in failures(missing)["startup"]
    document = json.loads(to_json(list(outcomes.values())))
    assert document["verdict"] == "fail"
    assert document["policy_version"] == "severity-v2"
    assert document["bounds"] == {"max_oracle_tolerance": 0.1, "min_floor_margin": 0.1}
    idle = [r["target"] for r in document["not_run"]]
    assert idle == ["test:Extra-v0", "test:Offline-v0", "test:Source-v0"]
    verdicts = {r["target"]: r["verdict"] for r in document["reports"]}
    assert verdicts == {
        "test:Faulty-v0": "fail",
        "test:Missing-v0": "fail",
    }


def test_several_jobs_report_the_same_in_the_same_order() -> None:
    ids = ["game:Wordle-v0-easy", "game:GuessTheNumber-v0-easy", "game:Mastermind-v0-easy"]
    # What is compared must not depend on how long it takes.
    only = ["contract", "rewards", "processes", "oracle", "random", "degenerate"]

    def told(jobs: int) -> Any:
        outcomes = check_many(ids, jobs=jobs, episodes=4, cpu_s=10, only=only)
        reports = [outcome.report for outcome in outcomes]
        return [
            [(r.name, r.status, r.detail) for r in report.results]
            for report in reports
            if report is not None
        ]

    assert told(2) == told(1)


@pytest.mark.parametrize(
    ("answers", "fault"),
    [((["1", "-1"], ["-1", "1"]), ""), ((["1"], ["-1"]), "knows more than it observed")],
)
def test_a_question_asked_twice_may_have_two_right_answers(answers: Any, fault: str) -> None:
    rows = [{"problem": "Name a root of x^2 = 1.", "answer": answer} for answer in answers]
    report = check_env("math:GSM8K", source=rows, only=("oracle",), episodes=8)
    assert fault in failures(report).get("oracle", "")
    assert report.passed == (not fault)

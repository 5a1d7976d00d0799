"""What the adapters of all trainers share: sources, settings, failures."""

from __future__ import annotations

from collections import UserList
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from gem.errors import ConfigurationError, RolloutError
from gem.rollout import Budget
from gem.tables import assignments, setting
from gem.tasks import Task, TaskSet
from gem.trajectory import Failure
from gem_train.experiment.tasksets import EvalSampling, Source, decode_task, encode_task, task_at
from gem_train.settings import (
    DatasetSettings,
    Refusal,
    Settings,
    check_episodes,
    check_estimator,
    check_failures,
    check_group_size,
    refuse_values,
)
from gem_train.testing.golden import golden_batch

GAME = "game:GuessTheNumber-v0"


@dataclass(frozen=True)
class Extended(Settings):
    """An adapter with a key of its own."""

    poll_interval_s: float = setting("how often it looks", 0.1, above=0)


@pytest.mark.parametrize(
    "sampling",
    [
        None,
        EvalSampling(temperature=0.0),
        EvalSampling(temperature=0.7, top_p=0.9, top_k=20, min_p=0.05),
    ],
)
@pytest.mark.parametrize("samples", [1, 3])
def test_a_source_reads_back_what_it_writes(sampling: EvalSampling | None, samples: int) -> None:
    source = Source(TaskSet(GAME, 4, 1, {"hint": "range"}), "a & b = c", sampling, samples)
    assert Source.parse(source.text) == source


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("temperature=cold", "temperature must be"),
        ("temperature=-1", "temperature must be"),
        ("temperature=nan", "temperature must be"),
        ("temperature=inf", "temperature must be"),
        ("temperature=1&top_p=2", "top_p must be"),
        ("temperature=1&top_k=0.5", "top_k must be"),
        ("temperature=1&size=3", "unknown key 'size'"),
        ("top_p=0.5", "top_p needs a temperature, too"),
        ("samples=0", "samples above 0"),
        ("samples=many", "samples above 0"),
        ("name=", "needs a name"),
        ("samples=2&samples=2", "names 'samples' twice"),
        ("name=a&temperature=1&name=b", "names 'name' twice"),
    ],
)
def test_a_source_with_other_options_is_refused(options: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Source.parse(f"gem:{GAME}?n=2#{options}")


def test_a_source_plays_each_task_several_times() -> None:
    sources = [Source.parse(f"gem:{GAME}?n=2&seed=5#samples=3"), Source.parse(f"gem:{GAME}?n=1")]
    seeds = [5, 5, 5, 6, 6, 6, 0]
    assert [task.seed for source in sources for task in source.plays] == seeds
    assert [task_at(sources, row)[1].seed for row in range(7)] == seeds
    with pytest.raises(IndexError):
        task_at(sources, 7)


def test_a_task_survives_its_column() -> None:
    task = Task(GAME, 7, {"tools": ["python"], "max_number": 10})
    how = EvalSampling(temperature=0.5, top_k=3)
    assert decode_task(encode_task(task, how)) == (task, how)
    assert decode_task(encode_task(task)) == (task, None)


@pytest.mark.parametrize("text", ["", "7", "{}", '{"env_id": "x"}', "[1]"])
def test_a_column_that_is_no_task_is_named(text: str) -> None:
    with pytest.raises(ConfigurationError, match="not a task of a GEM dataset"):
        decode_task(text)


def test_settings_of_an_adapter_include_its_own() -> None:
    settings = Extended.from_mapping({"turn_tokens": 8, "poll_interval_s": 1})
    assert settings == Extended(turn_tokens=8, poll_interval_s=1)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"turn_token": 4}, "unknown key 'gem.turn_token'; did you mean gem.turn_tokens"),
        ({"xyz": 4}, "unknown key 'gem.xyz'; known: advantage_clip, context, "),
        ({"turn_tokens": 0}, "gem.turn_tokens must be at least 1, got 0"),
        ({"turns": 1.5}, "gem.turns must be of type int, got 1.5"),
        ({"context": None}, "gem.context must be of type str, got None"),
        ({"context": "window:0"}, "gem.context: unknown context 'window:0'; known: chat"),
        ({"step_timeout_s": float("nan")}, "gem.step_timeout_s must be finite, got nan"),
        ({"step_timeout_s": float("inf")}, "gem.step_timeout_s must be finite, got inf"),
        ({"retries": True}, "gem.retries must be of type int, got True"),
        ({"step_timeout_s": 0}, "gem.step_timeout_s must be above 0, got 0"),
        ({"poll_interval_s": -1}, "gem.poll_interval_s must be above 0, got -1"),
        ({"max_failed_fraction": 2}, "gem.max_failed_fraction must be at most 1, got 2"),
    ],
)
def test_wrong_settings_are_named(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Extended.from_mapping(table)


def test_the_first_value_that_is_refused_is_named_and_no_other_is_examined() -> None:
    def examined() -> Iterator[Refusal]:
        yield "size", False, "is fine"
        yield "parts", True, "do not divide"
        raise AssertionError

    with pytest.raises(ConfigurationError, match="^--parts: do not divide, got '3'$"):
        refuse_values({"size": 4, "parts": "3"}, examined(), "--")
    refuse_values({"size": 4}, [("size", False, "is fine")])


@pytest.mark.parametrize(("failed", "limit"), [(10, 0.1), (29, 0.29), (57, 0.57)])
def test_a_share_of_failed_episodes_is_counted(failed: int, limit: float) -> None:
    valid = [True] * (100 - failed) + [False] * failed
    assert check_failures(valid, limit) == failed
    with pytest.raises(RolloutError, match=f"{failed + 1} of 100 episodes"):
        check_failures([False, *valid[1:]], limit)


@pytest.mark.parametrize("valid", [[True] * 8 + [False], [False], []])
def test_a_batch_that_lost_too_much_stops_the_run(valid: list[bool]) -> None:
    with pytest.raises(RolloutError, match=f"of {len(valid)} episodes .* sandbox 1 .disk full"):
        check_failures(valid, 0.1, [Failure("sandbox", "disk full", 2), None])


def test_one_failure_too_many_stops_a_batch_that_is_not_complete() -> None:
    lost = [Failure("sandbox", "disk full", 2)]
    check_episodes([], 0.1, lost, of=10)
    with pytest.raises(RolloutError, match=r"2 of 10 episodes .* sandbox 2 .disk full"):
        check_episodes([], 0.1, lost * 2, of=10)


def test_the_limits_of_an_episode_are_the_smallest_of_all() -> None:
    assert Settings(turns=3).limits(8, 16) == Budget(16, 16, 8, 3)
    assert Settings(turn_tokens=4).limits(8, 16, 6) == Budget(4, 16, 8, None)
    assert Settings(turn_tokens=40).limits(8, 16, 6) == Budget(6, 16, 8, None)


@pytest.mark.parametrize(
    "given", [{"advantage": "best"}, {"prompt_tokens": 0}, {"task_order": "any"}, {"retries": -1}]
)
def test_settings_made_in_python_are_checked_too(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=rf"gem\.{next(iter(given))}(:| must be) "):
        DatasetSettings(**given)


def test_messages_begin_with_the_prefix_that_is_asked_for() -> None:
    with pytest.raises(ConfigurationError, match="^--gem_turns must be at least 1"):
        Settings.from_mapping({"turns": 0}, "--gem_")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"template_kwargs": "off"}, "gem.template_kwargs must be a table, got 'off'"),
        ({"template_kwargs": {"a": object()}}, "gem.template_kwargs.a must be a text, number"),
        ({"thinking": "hide"}, "gem.thinking must be one of keep, drop, text, got 'hide'"),
    ],
)
def test_what_a_chat_template_cannot_be_told_is_refused(
    given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Settings.from_mapping(given)


def test_sequences_of_a_trainers_own_configuration_become_lists() -> None:
    given = {"template_kwargs": {"tools": UserList(["a", {"b": (1, 2)}]), "text": "ab"}}
    told = Settings.from_mapping(given).template_kwargs
    assert told == {"tools": ["a", {"b": [1, 2]}], "text": "ab"}
    assert told is not None and type(told["tools"]) is list


def test_the_chat_format_is_told_what_the_settings_say(make_tokenizer: Any) -> None:
    tokenizer = make_tokenizer(["guess"], 259)
    told = "{%- if level %}{{- level + '|' }}{%- endif %}"
    cut = tokenizer.chat_template.replace("m.content", "m.content.split('</think>')[-1]")
    tokenizer.chat_template = told + cut
    settings = Settings(
        system_prompt="Be brief.", template_kwargs={"level": "low"}, thinking="drop"
    )
    chat = settings.chat_format(tokenizer)
    assert chat.spell(chat.prompt("x")).startswith("low|<|im_start|>system\nBe brief.<|im_end|>")
    assert chat.drops_thinking


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        ({}, []),
        ({"thinking": "text"}, []),
        ({"context": "concat"}, ["gem.context"]),
        ({"thinking": "drop"}, ["gem.thinking"]),
        ({"context": "window:2", "thinking": "drop"}, ["gem.context", "gem.thinking"]),
    ],
)
def test_what_makes_several_rows_of_an_episode_is_known(
    given: dict[str, Any], refused: list[str]
) -> None:
    settings = Settings(**given)
    assert [name for name, found, _ in settings.several_rows("no", "gem.") if found] == refused
    assert settings.one_row == (not refused)


def test_arguments_are_json_where_they_are_json() -> None:
    given = ["turns=4", "poll_interval_s=1e-3", "seed=null", 'other=[1, "a"]', "another=a=b"]
    assert assignments(Extended, given) == {
        "turns": 4,
        "poll_interval_s": 1e-3,
        "seed": None,
        "other": [1, "a"],
        "another": "a=b",
    }


def test_the_value_of_a_text_stays_text() -> None:
    assert assignments(Extended, ["context=null", "system_prompt=42"]) == {
        "context": "null",
        "system_prompt": "42",
    }
    assert assignments(Extended, ["system_prompt=null"]) == {"system_prompt": None}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["turns"], "arguments are key=value, got 'turns'"),
        (["turns=2", "turns=3"], "turns is given twice"),
    ],
)
def test_malformed_arguments_are_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        assignments(Extended, arguments)


def test_a_trainer_must_suit_the_estimator() -> None:
    check_estimator("rebn", "adv.estimator", "reinforce")
    check_estimator("gae", "adv.estimator", "gae")
    with pytest.raises(ConfigurationError, match="needs adv.estimator=gae, which creates the"):
        check_estimator("gae", "adv.estimator", "reinforce")
    with pytest.raises(ConfigurationError, match="creates no critic .*; got gae"):
        check_estimator("grpo", "adv.estimator", "gae")
    check_group_size("rebn", "samples", 1)
    check_group_size("grpo", "samples", 2)
    with pytest.raises(ConfigurationError, match="samples must be at least 2, got 1"):
        check_group_size("rloo", "samples", 1)


def test_failed_and_lost_episodes_count_alike() -> None:
    batch = [t for t in golden_batch() if t.valid]
    check_episodes(batch * 4, 0.5, [Failure("engine", "gone", 1)], batch="evaluation 'a'")
    with pytest.raises(
        RolloutError, match="1 of .* episodes of evaluation 'a' failed; .* engine 1"
    ):
        check_episodes(batch, 0.0, [Failure("engine", "gone", 1)], batch="evaluation 'a'")


def test_a_failure_that_nobody_would_leave_out_is_not_accepted() -> None:
    lost = next(t for t in golden_batch() if t.failure is not None)
    accepts = DatasetSettings(advantage="rebn")
    accepts.check_left_out(lost, "RL2")
    with pytest.raises(RolloutError, match="is void: .*; RL2's own estimators"):
        DatasetSettings().check_left_out(lost, "RL2")
    strict = DatasetSettings(advantage="rebn", max_failed_fraction=0.0)
    with pytest.raises(RolloutError, match="is void: .*; gem.max_failed_fraction is 0"):
        strict.check_left_out(lost, "RL2")
    for trajectory in golden_batch():
        if trajectory.valid:
            DatasetSettings().check_left_out(trajectory, "RL2")
            strict.check_left_out(trajectory, "RL2")

"""oat's actor plays GEM's episodes: exact tokens, seeds, failures, environments in threads."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gem
from gem.core import Env
from gem.errors import RolloutError
from gem.rollout import ChatFormat
from gem.tasks import Task
from gem.trajectory import Trajectory
from gem_oat.rollout import Actor
from gem_oat.settings import parse
from gem_train.experiment.tasksets import DatasetRow, EvalSampling

Argv = Callable[..., list[str]]


@pytest.fixture
def actor(tokenizer: Any, argv: Argv) -> Callable[..., Any]:
    """An actor as it is after `init`, with an engine of the test's: `actor(llm, **flags)`."""

    def make(llm: Any, **flags: Any) -> Any:
        made = object.__new__(Actor)
        made.args = parse(argv(**flags))
        made.actor_id = 0
        made.llm = llm
        made._chat = ChatFormat(tokenizer)
        # Objects cross processes in test_real_runs.py.
        made.ipc_client = SimpleNamespace(serialize_ipc=lambda episodes: episodes)
        return made

    return make


@pytest.mark.skipif(os.environ.get("GEM_CPU") != "1", reason="needs the stand-in for vLLM")
def test_the_tokenizer_that_is_named_writes_the_turns(
    argv: Argv, model: Path, tokenizer: Any, tmp_path: Path
) -> None:
    other = copy.deepcopy(tokenizer)
    other.chat_template = tokenizer.chat_template.replace("<|im_start|>", "<|im_start|>the ")
    other.save_pretrained(tmp_path)

    def prompt(**flags: Any) -> str:
        made = Actor(None, {"model": str(model)}, parse(argv(pretrain=model, **flags)))
        made.init(0, str(tmp_path))
        made.ipc_client = SimpleNamespace(serialize_ipc=lambda episodes: episodes)
        [played] = made.step(tasks(1), None, ["0"])
        [row] = played.unpack().training_rows()
        return str(tokenizer.decode(row.prompt_ids))

    assert prompt().startswith("<|im_start|>user")
    assert prompt(tokenizer=tmp_path).startswith("<|im_start|>the user")


def tasks(
    n: int,
    env: str = "game:GuessTheNumber-v0-easy",
    sampling: EvalSampling | None = None,
    **params: Any,
) -> list[str]:
    short = {"prompt": "short", **params}
    return [DatasetRow(Task(env, seed, short), sampling, seed).encode() for seed in range(n)]


def test_an_iteration_has_every_task_as_often_as_num_samples(
    actor: Any, llm: Any, tokenizer: Any
) -> None:
    engine = llm(["<1>", "<2>", "<3>"])
    playing = actor(engine, num_samples=2, train_batch_size=8)
    found: list[Trajectory] = playing.step(tasks(4, hint="range"), None, ["2"] * 4)
    assert [t.task.seed for t in found] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [t.group for t in found] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert all(t.valid for t in found)


def test_rows_hold_exactly_what_was_sampled(actor: Any, llm: Any, tokenizer: Any) -> None:
    found = actor(llm(["<9>"])).step(tasks(2), None, ["0"] * 2)
    for trajectory in [packed.unpack() for packed in found]:
        for turn in trajectory.turns:
            assert turn.response_ids == [*tokenizer.encode("<9>"), tokenizer.eos_token_id]
            assert turn.logprobs == [-0.5 - i for i in range(len(turn.response_ids))]
        [row] = trajectory.training_rows()
        ids = row.prompt_ids + row.response_ids
        assert tokenizer.decode(ids).count("<|im_start|>assistant") == len(trajectory.turns)


def test_seeds_depend_on_run_iteration_task_copy_and_turn(actor: Any, llm: Any) -> None:
    def seeds(iteration: int, **flags: Any) -> list[int | None]:
        engine = llm(["<1>"])
        actor(engine, **{"gem_seed": 5, **flags}).step(tasks(2), None, [str(iteration)] * 2)
        return sorted(p.seed for p in engine.params) if flags.get("gem_seed", 5) else engine.params

    assert seeds(0) == seeds(0)
    assert len(set(seeds(0))) == len(seeds(0))
    assert not set(seeds(0)) & set(seeds(1))
    assert not set(seeds(0)) & set(seeds(0, gem_seed=6))
    engine = llm(["<1>"])
    actor(engine).step(tasks(2), None, ["0"] * 2)
    assert {p.seed for p in engine.params} == {None}


def test_flags_reach_the_engine(actor: Any, llm: Any, tokenizer: Any) -> None:
    engine = llm(["<1>"])
    own = {"gem_min_p": 0.2, "gem_repetition_penalty": 1.2}
    playing = actor(engine, temperature=0.7, top_p=0.5, top_k=9, tis_c="None", **own)
    playing.step(tasks(1), None, ["0"])
    params = engine.params[0]
    assert (params.temperature, params.top_p, params.top_k) == (0.7, 0.5, 9)
    assert (params.min_p, params.repetition_penalty) == (0.2, 1.2)
    assert (params.max_tokens, params.logprobs) == (16, 1)
    assert tokenizer.eos_token_id in params.stop_token_ids


def test_an_evaluation_has_its_own_sampling_and_lengths(actor: Any, llm: Any) -> None:
    engine = llm(["<1>"])
    own = {"gem_min_p": 0.2, "gem_repetition_penalty": 1.2, "tis_c": "None"}
    playing = actor(engine, eval_generate_max_length=5, eval_temperature=0.3, **own)
    playing.play_evaluation(tasks(3, sampling=EvalSampling(temperature=0.0, top_k=4)), 0, 4)
    playing.play_evaluation(tasks(3), 1, 4)
    assert {(p.temperature, p.top_k) for p in engine.params} == {(0.0, 4), (0.3, -1)}
    assert {(p.min_p, p.repetition_penalty) for p in engine.params} == {(0.0, 1.0)}
    assert {p.max_tokens for p in engine.params} == {5}


class Breaking(Env):
    """Raises, hangs until the test is over, or waits until another of its kind steps, too."""

    over: threading.Event
    meeting: threading.Barrier

    def __init__(self, how: str = "raise", only: int | None = None) -> None:
        self.how, self.only = how, only

    def reset(self, seed: int | None = None, **options: Any) -> Any:
        self.seed = seed
        return "begin", {}

    def step(self, action: str) -> Any:
        if self.only is None or self.seed == self.only:
            if self.how == "raise":
                raise OSError("the sandbox is gone")
            if self.how == "hang":
                self.over.wait(60)
            if self.how == "meet":
                self.meeting.wait()
        return "on", 1.0, True, False, {"success": True}

    def sample_random_action(self) -> str:
        return "x"


gem.register("test:OatBreaking", Breaking)


@pytest.fixture(autouse=True)
def own_meeting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the environments of one test wait for; no two tests share it."""
    monkeypatch.setattr(Breaking, "over", threading.Event(), raising=False)
    monkeypatch.setattr(Breaking, "meeting", threading.Barrier(2, timeout=60), raising=False)
    yield
    Breaking.over.set()


def breaking(n: int, **params: Any) -> list[str]:
    rows = [DatasetRow(Task("test:OatBreaking", seed, params)) for seed in range(n)]
    return [row.encode() for row in rows]


@pytest.mark.parametrize("how", ["raise", "hang"])
def test_a_broken_environment_fails_its_own_episode_only(how: str, actor: Any, llm: Any) -> None:
    playing = actor(llm(["x"]), gem_step_timeout_s=0.5)
    found = playing.step(breaking(4, how=how, only=2), None, ["0"] * 4)
    assert [t.valid for t in found] == [True, True, False, True]
    assert found[2].failure.attempts == 2


def test_a_prompt_that_is_too_long_is_a_failed_episode(actor: Any, llm: Any) -> None:
    [found] = actor(llm(["x"]), prompt_max_length=3).step(tasks(1), None, ["0"])
    assert found.failure.cause == "budget"


def test_environments_step_side_by_side(actor: Any, llm: Any) -> None:
    found = actor(llm(["x"]), rollout_batch_size=16, train_batch_size=16, max_train=16).step(
        breaking(16, how="meet"), None, ["0"] * 16
    )
    assert all(t.valid for t in found)


class Turns(Env):
    """As many turns as the seed says; the first prompt is that number."""

    def reset(self, seed: int | None = None, **options: Any) -> Any:
        self.left = int(seed or 0)
        return f"<{seed}>", {}

    def step(self, action: str) -> Any:
        self.left -= 1
        return "on", 1.0, self.left == 0, False, {"success": True}

    def sample_random_action(self) -> str:
        return "x"


gem.register("test:OatTurns", Turns)


def test_the_next_turn_is_sampled_while_another_episodes_turn_still_is(
    actor: Any, llm: Any, tokenizer: Any
) -> None:
    engine = llm(["x"])
    [one] = tokenizer.encode("1")

    def finishes(output: Any) -> bool:
        # That of the episode of one turn ends after all others have been asked for.
        return one not in output.prompt_token_ids or len(engine.prompts) == 1 + 3

    engine.finishes = finishes
    jobs = [DatasetRow(Task("test:OatTurns", turns, {})).encode() for turns in (1, 3)]
    found = actor(engine).step(jobs, None, ["0"] * 2)
    assert [len(packed.unpack().turns) for packed in found] == [1, 3]


def test_an_engine_that_raises_stops_the_actor(
    actor: Any, llm: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = llm(["x"])
    engine.step = lambda: (_ for _ in ()).throw(RuntimeError("engine is dead"))
    with pytest.raises(RuntimeError, match="engine is dead"):
        actor(engine).step(tasks(2), None, ["0"] * 2)
    assert "engine is dead" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda output: output.prompt_token_ids.pop(0), "another prompt"),
        (lambda output: setattr(output.outputs[0], "finish_reason", "abort"), "'abort'"),
    ],
)
def test_an_answer_to_another_question_or_none_is_an_error(
    change: Callable[[Any], Any], message: str, actor: Any, llm: Any
) -> None:
    engine = llm(["x"])

    def finishes(output: Any) -> bool:
        output.prompt_token_ids = list(output.prompt_token_ids)
        change(output)
        return True

    engine.finishes = finishes
    with pytest.raises(RolloutError, match=message):
        actor(engine).step(tasks(1), None, ["0"])

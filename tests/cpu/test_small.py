"""Small models: whom they clone, that they are made once, and what cannot be cloned."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gem import make
from gem.errors import ConfigurationError
from gem.rollout import Budget
from gem.rollout.prompting import Prompting
from gem.seeding import stream
from gem.tasks import Task
from gem_train.experiment.runspec import RunSpec

pytest.importorskip("torch", reason="makes a model")
pytest.importorskip("transformers", reason="makes a model")

from gem_bench.models import resolved
from gem_cpu import small
from gem_cpu.cloning import EOS
from gem_cpu.small import Cloning, Player, cloned_tasks, ensure

ENV = "game:FifteenPuzzle-v0-easy"
QUICK = Cloning(episodes=16, careful_steps=2, steps=1, batch=4, hidden=32, layers=1)
TOKENS = ("turn_tokens", "response_tokens", "prompt_tokens")
BUDGET = Budget(turn_tokens=12, response_tokens=640, prompt_tokens=256)


def made(cache: Path, cloning: Cloning = QUICK, params: Mapping[str, Any] | None = None) -> Path:
    return ensure(ENV, params or {}, Prompting(), BUDGET, cloning, cache=cache, progress=False)


def test_the_model_is_made_once_for_all_that_decides_it(tmp_path: Path) -> None:
    folder = made(tmp_path)
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert made(tmp_path) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    assert made(tmp_path, replace(QUICK, competent=0.5)) != folder
    assert made(tmp_path, params={"max_turns": 5}) != folder


def test_its_vocabulary_is_that_of_the_environment(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(made(tmp_path))
    with make(ENV) as env:
        observation, _ = env.reset(seed=1)
    # Bytes of the text to a token: a tokenizer of other texts has shorter ones.
    assert len(str(observation)) / len(tokenizer.encode(str(observation))) > 2.5
    assert len(tokenizer) == QUICK.vocabulary


def test_the_player_is_the_oracle_in_the_asked_share_of_turns() -> None:
    with make(ENV, num_rows=3) as env:
        env.reset(seed=3)
        best = env.oracle_action()
        rng, player = stream(0), Player(QUICK)
        assert {player.action(env, 1.0, rng) for _ in range(50)} == {best}
        played = [player.action(env, 0.5, rng) for _ in range(2000)]
        random = [player.action(env, 0.0, rng) for _ in range(2000)]
    chance = random.count(best) / 2000
    assert played.count(best) / 2000 == pytest.approx(0.5 + 0.5 * chance, abs=0.06)


def test_a_wrong_mode_gives_one_wrong_answer_to_each_right_one() -> None:
    player, rng = Player(replace(QUICK, wrong="mode")), stream(0)
    with make("math:ASDiv2K", source="sample") as env:
        for seed in range(12):
            env.reset(seed=seed)
            said = {player.action(env, 0.0, rng) for _ in range(20)}
            [answer] = said
            *_, last = re.findall(r"\d+", env.oracle_action())
            head, _, tail = env.oracle_action().rpartition(last)
            assert answer == f"{head}{int(last) + 1}{tail}"
            assert env.step(answer)[1] == 0.0
    with make(ENV, num_rows=3) as env:
        env.reset(seed=3)
        said = {player.action(env, 0.0, rng) for _ in range(50)}
        assert len(said) == 1
        assert said != {env.oracle_action()}


def test_filler_stands_before_the_action_and_changes_nothing() -> None:
    player, rng = Player(replace(QUICK, filler=5)), stream(0)
    with make("math:ASDiv2K", source="sample") as env:
        env.reset(seed=1)
        said = {player.action(env, 1.0, rng) for _ in range(20)}
        assert len(said) == 20
        for text in said:
            *letters, _ = text.removesuffix(env.oracle_action()).split(" ")
            assert [len(letter) for letter in letters] == [1] * 5
        assert env.step(said.pop())[1] == 1.0


def test_an_environment_with_images_is_cloned_by_a_model_that_sees(tmp_path: Path) -> None:
    from transformers import AutoConfig

    pytest.importorskip("gem_vision", reason="needs the extra images")
    env, quick = "image:Colour-v0-easy", replace(QUICK, hidden=64, episodes=8)
    budget = Budget(turn_tokens=24, response_tokens=320, prompt_tokens=256)
    control = {"wrappers": [{"name": "series", "most": 2}, "without_images"]}
    made = [
        ensure(env, params, Prompting(), budget, quick, cache=tmp_path, progress=False)
        for params in ({}, {"wrappers": control["wrappers"][:1]}, control)
    ]
    assert AutoConfig.from_pretrained(made[0]).vision_config is not None
    assert (made[0] / "preprocessor_config.json").exists()
    # The control begins with the same model.
    assert made[0] != made[1] == made[2]
    rows = small.cloned_rows(
        cloned_tasks(env, control, quick), _seeing_chat(made[2]), "chat", budget, Player(quick), 1.0
    )
    assert [len(row.images) for row in rows] == [2] * 8


def test_a_model_that_sees_has_whole_heads(tmp_path: Path) -> None:
    pytest.importorskip("gem_vision", reason="needs the extra images")
    odd = replace(QUICK, hidden=72)
    with pytest.raises(ConfigurationError, match="small\\?hidden must be a multiple of 32"):
        ensure("image:Colour-v0", {}, Prompting(), BUDGET, odd, cache=tmp_path, progress=False)


def _seeing_chat(folder: Path) -> Any:
    from gem_bench.seeing import load_tokenizer

    return Prompting().chat_format(load_tokenizer(str(folder)))


def test_questions_of_training_can_be_left_out_of_cloning() -> None:
    split = {"name": "questions", "first": 0.5}
    scaled = {"name": "scale_reward", "offset": 1.0}
    params = {"wrappers": [split, "record_episode_statistics", scaled, "outcome_reward"]}

    def asked(tasks: list[Task]) -> set[str]:
        texts = set()
        for task in tasks:
            with task.make() as env:
                texts.add(str(env.reset(seed=task.seed)[0]))
        return texts

    tasks = cloned_tasks(ENV, params, replace(QUICK, episodes=40, last=0.5))
    # The part is innermost: it holds for each of several questions in a row.
    cloned_part, whole = tasks[0].params["wrappers"]
    assert whole == {"name": "record_episode_statistics"}
    assert cloned_part == {"name": "questions", "first": 0.0, "last": 0.5}
    one = {"wrappers": "record_episode_statistics"}
    [first, *_] = cloned_tasks(ENV, one, replace(QUICK, first=0.0))
    assert [each["name"] for each in first.params["wrappers"]] == ["questions", whole["name"]]
    assert cloned_tasks(ENV, params, QUICK)[0].params == {"wrappers": [split, whole]}
    assert cloned_tasks(ENV, {}, QUICK)[0].params == {}
    cloned = asked(tasks)
    trained = asked([Task(ENV, seed, params) for seed in range(40)])
    assert len(cloned) > 3 and len(trained) > 3
    assert not cloned & trained


def test_episodes_of_the_oracle_succeed_and_are_cloned_whole(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    chat = Prompting().chat_format(AutoTokenizer.from_pretrained(made(tmp_path)))
    tasks = [Task(ENV, seed) for seed in range(6)]
    rows = small.cloned_rows(tasks, chat, "chat", BUDGET, Player(QUICK), 1.0)
    assert len(rows) == 6
    for seed, row in enumerate(rows):
        said = [i for i, m in zip(row.response_ids, row.mask, strict=True) if m]
        actions = chat.decode(said).split("}")[:-1]
        assert said.count(EOS) == len(actions)
        with make(ENV) as env:
            env.reset(seed=seed)
            last = [env.step(action + "}") for action in actions][-1]
        assert last[1:3] == (1.0, True)


def test_a_spec_asks_for_it_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEM_CACHE", str(tmp_path))
    given = {key: value for key, value in vars(QUICK).items() if value is not None}
    quick = "&".join(f"{key}={value}" for key, value in given.items())
    asked = RunSpec.from_mapping(
        {
            "name": "x",
            "env": {"id": ENV},
            "policy": {
                "model": f"small?{quick}",
                **{k: getattr(BUDGET, k) for k in TOKENS},
            },
            "algorithm": {"advantage": "rebn"},
            "optimizer": {"lr": 1e-3},
            "training": {"iterations": 1, "tasks": 1},
        }
    )
    spec = resolved(asked)
    assert Path(spec.policy.model).parent == tmp_path / "models"
    assert replace(spec, policy=asked.policy) == asked


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ("competent=2", "small?competent must be at most 1"),
        ("vocabulary=500", "must be a multiple of 64"),
        ("skill=1", "unknown key 'small?skill'"),
        ("wrong=often", "small?wrong must be one of"),
        ("filler=-1", "small?filler must be at least 0"),
        ("last=1.5", "small?last must be at most 1"),
        ("careful", "did you mean small?careful_steps?"),
    ],
)
def test_wrong_settings_are_named(settings: str, problem: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Cloning.parse(settings)
    assert problem in str(caught.value)


def test_what_has_no_oracle_or_no_room_is_refused(tmp_path: Path) -> None:
    tight = replace(BUDGET, prompt_tokens=16)
    with pytest.raises(ConfigurationError, match="prompt_tokens allows 16"):
        ensure(ENV, {}, Prompting(), tight, QUICK, cache=tmp_path, progress=False)
    short = replace(BUDGET, turn_tokens=2)
    with pytest.raises(ConfigurationError, match="does not fit into the 2 that turn_tokens"):
        ensure(ENV, {}, Prompting(), short, QUICK, cache=tmp_path, progress=False)

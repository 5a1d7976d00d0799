"""The wrapper `questions`: parts of an environment's questions that have none in common."""

from __future__ import annotations

from typing import Any

import pytest

import gem
from gem.contract import succeeded
from gem.errors import ConfigurationError
from gem.tasks import Task
from gem.wrappers import ScaleReward
from gem.wrappers.questions import place

ENV = "game:FifteenPuzzle-v0-easy"


def part(**split: Any) -> list[dict[str, Any]]:
    return [{"name": "questions", **split}]


def asked(env: gem.Env, seeds: range) -> set[str]:
    return {str(env.reset(seed=seed)[0]) for seed in seeds}


def test_parts_share_no_question_and_together_have_all() -> None:
    whole = asked(gem.make(ENV), range(300))
    low = asked(gem.make(ENV, wrappers=part(last=0.4)), range(300))
    high = asked(gem.make(ENV, wrappers=part(first=0.4)), range(300))
    assert not low & high
    assert low | high == whole


def test_a_seed_names_one_episode_and_without_one_the_next_begins() -> None:
    env, again = (gem.make(ENV, wrappers=part(first=0.7)) for _ in range(2))
    first = [env.reset(seed=5)[0], *(env.reset()[0] for _ in range(4))]
    assert [again.reset(seed=5)[0], *(again.reset()[0] for _ in range(4))] == first
    env.reset(seed=5)
    key = env.episode_key
    again.seek(*key)
    assert again.reset()[0] == first[0]
    assert again.episode_key == key


def test_a_task_has_the_same_question_wherever_it_is_played() -> None:
    task = Task(ENV, 11, {"wrappers": part(last=0.3)})
    with task.make() as env, Task.from_dict(task.to_dict()).make() as other:
        assert env.reset(seed=task.seed) == other.reset(seed=task.seed)


def test_a_seed_whose_own_question_belongs_to_the_part_is_left_alone() -> None:
    plain, kept = gem.make(ENV), gem.make(ENV, wrappers=part(last=0.5))
    same = sum(plain.reset(seed=s)[0] == kept.reset(seed=s)[0] for s in range(200))
    assert 60 < same < 140


@pytest.mark.parametrize(
    "split", [{"first": 0.5, "last": 0.5}, {"last": 1.1}, {"first": -0.1}, {"first": "x"}]
)
def test_a_part_that_is_none_is_refused(split: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="first"):
        gem.make(ENV, wrappers=part(**{"first": 0.0, **split}))


def test_a_part_in_which_nothing_is_asked_is_named() -> None:
    env = gem.make("game:TowerofHanoi-v0-easy", wrappers=part(last=1e-9))
    with pytest.raises(ConfigurationError, match="1,000 episodes in a row .* take a larger part"):
        env.reset(seed=0)


def test_rewards_are_shifted_after_they_are_scaled() -> None:
    wrapper = {"name": "scale_reward", "factor": 2, "offset": -1}
    env = gem.make("math:ASDiv2K", source="sample", wrappers=[wrapper])
    env.reset(seed=0)
    assert env.step("no answer")[1] == -1.0
    env.reset(seed=0)
    assert env.step(env.oracle_action())[1] == 1.0
    with pytest.raises(ConfigurationError, match="offset"):
        gem.make("math:ASDiv2K", source="sample", wrappers=[{**wrapper, "offset": float("nan")}])


def test_rows_in_order_are_those_of_the_part_and_each_comes_once() -> None:
    def in_order(**split: Any) -> gem.Env:
        return gem.make("math:GSM8K", source="sample", eval=True, wrappers=part(**split))

    low, high = in_order(last=0.3), in_order(first=0.3)
    rows = [low.reset(seed=seed)[1]["index"] for seed in range(40)]
    count = len(set(rows))
    others = {high.reset(seed=seed)[1]["index"] for seed in range(40 - count)}
    assert sorted({*rows[:count], *others}) == list(range(40))
    assert rows[:count] == sorted(rows[:count])
    assert rows == [rows[i % count] for i in range(40)]
    low.reset(seed=1)
    assert [low.reset()[1]["index"] for _ in range(3)] == rows[2:5]
    key = low.episode_key
    again = in_order(last=0.3)
    again.seek(*key)
    assert again.reset()[1]["index"] == rows[4]
    assert low.spawn(same_state=True).reset()[1]["index"] == rows[5]
    assert low.unwrapped.reset(seed=3)[1]["index"] == 3


def test_parts_of_parts_are_parts() -> None:
    two = [*part(last=0.6), *part(first=0.3)]
    env = gem.make("math:GSM8K", source="sample", eval=True, wrappers=two)
    shown = {env.reset(seed=seed)[1]["index"] for seed in range(40)}
    one = gem.make("math:GSM8K", source="sample", eval=True, wrappers=part(first=0.3, last=0.6))
    assert shown == {one.reset(seed=seed)[1]["index"] for seed in range(40)}


class Unsaid(gem.Env):
    """Leaves it to the reward whether an episode succeeded."""

    def step(self, action: str) -> Any:
        return "", float(action == "yes"), action != "later", action == "later", {}


@pytest.mark.parametrize("offset", [-1.0, 0.0, 1.0])
def test_a_shifted_reward_does_not_change_what_counts_as_success(offset: float) -> None:
    for action in ("yes", "no", "later"):
        plain, shifted = Unsaid(), ScaleReward(Unsaid(), offset=offset)
        for env in (plain, shifted):
            env.reset(seed=0)
        _, reward, terminated, _, info = plain.step(action)
        expected = succeeded(reward, terminated, info)
        _, reward, terminated, _, info = shifted.step(action)
        assert succeeded(reward, terminated, info) is expected


def test_questions_with_the_same_text_are_told_apart_by_their_pictures() -> None:
    pytest.importorskip("gem_vision", reason="needs the extra images")
    env = gem.make("image:Colour-v0-easy")
    shown = [env.reset(seed=seed)[0] for seed in range(40)]
    assert len({observation[0]["text"] for observation in shown}) < 5
    assert len({place(observation) for observation in shown}) > 35
    image = pytest.importorskip("PIL.Image")
    # An image of Pillow says where it is in memory.
    pixels = [[{"type": "image", "image": image.new("L", (2, 2), shade)}] for shade in (3, 3, 4)]
    assert place(pixels[0]) == place(pixels[1]) != place(pixels[2])


def test_a_control_is_shown_the_texts_alone() -> None:
    pytest.importorskip("gem_vision", reason="needs the extra images")
    params = {"size": 3, "modality": "both"}
    seen, blind = (
        gem.make("game:Maze-v0", wrappers=wrappers, **params)
        for wrappers in ([], ["without_images"])
    )
    shown, told = seen.reset(seed=1)[0], blind.reset(seed=1)[0]
    assert [part for part in shown if part["type"] == "text"] == told
    assert len(told) < len(shown)
    action = seen.oracle_action()
    assert seen.step(action)[1:] == blind.step(action)[1:]
    words = gem.make("game:Maze-v0", wrappers=["without_images"], size=3)
    assert isinstance(words.reset(seed=1)[0], str)

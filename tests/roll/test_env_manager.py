"""`GemEnvManager` in ROLL's own classes, with a queue and an engine that follow a script."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gem.errors import ConfigurationError
from gem.trajectory import Trajectory
from gem_train.packed import PackedTrajectory

LENGTH = 600


class Remote:
    """A method of a Ray actor that is called at once."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.remote = call


class Queue:
    """ROLL's queue: hands out episodes, takes rows."""

    def __init__(self, episodes: Sequence[int | None]) -> None:
        self.waiting: Iterator[int | None] = iter(episodes)
        self.rows: list[tuple[Any, ...]] = []
        self.get_episode_id = Remote(lambda group, slot: next(self.waiting))
        self.put = Remote(lambda *row: self.rows.append(row))


class Engine:
    """ROLL's router client: says the same in every turn, aborts as often as it is told."""

    def __init__(self, ids: list[int], aborts: int = 0) -> None:
        self.ids, self.aborts = ids, aborts
        self.asked: list[Any] = []
        self.eos_token_id = self.pad_token_id = -1

    def generate_request_sync(self, req: Any, request_id: Any, uid: int) -> Any:
        self.asked.append(req)
        if self.aborts:
            self.aborts -= 1
            return SimpleNamespace(meta_info={"finish_reasons": ["abort"]})
        n = min(len(self.ids), req.meta_info["generation_config"]["max_new_tokens"])
        said = {"output_token_ids": [self.ids[:n]], "output_logprobs": [[-0.5] * n]}
        reason = "stop" if n == len(self.ids) else "length"
        return SimpleNamespace(meta_info={**said, "finish_reasons": [reason]})


@pytest.fixture
def world(
    home: Path, imported: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> SimpleNamespace:
    """Makes managers: `world.manager(...)`; `world.engine` and `world.queue` are theirs."""
    module = imported("gem_roll.env_manager")
    monkeypatch.setattr(module.ray, "get", lambda value: value)
    ids = [*tokenizer.encode("\\boxed{5}", add_special_tokens=False), tokenizer.eos_token_id]
    made = SimpleNamespace(engine=Engine(ids), queue=Queue([0, None]))
    monkeypatch.setattr(module.RouterManager, "create_client_sync", lambda _: made.engine)
    generating = SimpleNamespace(
        max_new_tokens=64, to_dict=lambda: {"temperature": 0.75, "max_new_tokens": 64}
    )

    def manager(mode: str = "train", tag: str = "b", **changed: Any) -> Any:
        omegaconf = imported("omegaconf")
        gem = {"prompt_tokens": 300, "first_seed": 100, **changed.pop("gem", {})}
        environment = {
            "tag": tag, "env_id": 7, "group_id": 3, "env_type": "game:GuessTheNumber-v0-easy",
            "config": {"prompt": "short", "format_error_ends": False, "max_turns": 3},
            "gem": gem, **changed,
        }  # fmt: skip
        worker = SimpleNamespace(
            tags=["a", "b"], num_groups_partition=[2, 4], num_env_groups=6, max_traj_per_env=1,
            generating_args=generating,
        )  # fmt: skip
        found = module.GemEnvManager(
            worker_config=worker,
            pipeline_config=SimpleNamespace(
                sequence_length=LENGTH, actor_infer=SimpleNamespace(generating_args=generating)
            ),
            env_config=omegaconf.DictConfig(environment),
            tokenizer=tokenizer, processor=None, generate_scheduler=None,
            output_queue=made.queue, thread_lock=None, mode=mode, extra_data_provider=None,
        )  # fmt: skip
        found.update_step(4)
        return found

    made.manager = manager
    made.tokenizer = tokenizer
    return made


def episode(row: Any) -> Trajectory:
    return PackedTrajectory.from_bytes(row.non_tensor_batch["gem_episode"][0]).unpack()


def test_an_episode_becomes_a_row_with_exactly_its_tokens(world: Any) -> None:
    world.manager().run_rollout_loop(None)
    (group, number, step, row, slot), last = world.queue.rows
    assert (group, number, step, slot) == (3, 0, 4, 7)
    assert last[3] is None
    played = episode(row)
    assert played.valid and len(played.turns) == 3
    [tokens] = played.training_rows()
    n = len(tokens.ids)
    assert row.batch["input_ids"].shape == (1, LENGTH)
    assert row.batch["input_ids"][0, :n].tolist() == tokens.ids
    assert row.batch["attention_mask"][0].sum() == n
    first = len(tokens.prompt_ids)
    assert row.batch["response_mask"][0, first:n].long().tolist() == tokens.mask
    assert not row.batch["response_mask"][0, :first].any()
    assert row.batch["infer_logprobs"][0, first - 1 : n - 1].tolist() == tokens.logprobs
    assert row.batch["scores"].sum() == pytest.approx(played.total_reward)
    # The engine was asked for the whole prompt, without padding.
    asked = world.engine.asked[1].batch["input_ids"][0].tolist()
    assert asked == tokens.ids[: tokens.states[1][1] + 1]


def test_turns_end_at_the_tokens_of_the_chat_template(world: Any, tokenizer: Any) -> None:
    found = world.manager()
    assert {world.engine.eos_token_id, world.engine.pad_token_id} == set(found._chat.stop_ids)
    assert tokenizer.eos_token_id in found._chat.stop_ids


def test_more_than_two_such_tokens_are_refused(world: Any, imported: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"two tokens at most, got \[1, 2, 3\]"):
        imported("gem_roll.env_manager").client_with_stops(None, frozenset({1, 2, 3}))


@pytest.mark.parametrize(
    ("mode", "number", "tag", "group", "seed", "unique"),
    [
        ("train", 0, "b", 3, 101, 3),
        ("train", 2, "b", 3, 100 + 2 * 4 + 1, 2 * 6 + 3),
        ("train", 2, "a", 1, 100 + 2 * 2 + 1, 2 * 6 + 1),
        # An evaluation has the same tasks every time.
        ("val", 2, "b", 3, 101, 3),
    ],
)
def test_tasks_are_numbered_by_batch_and_group(
    world: Any, mode: str, number: int, tag: str, group: int, seed: int, unique: int
) -> None:
    world.queue.waiting = iter([number, None])
    world.manager(mode=mode, tag=tag, group_id=group).run_rollout_loop(None)
    played = episode(world.queue.rows[0][3])
    assert (played.task.seed, played.group) == (seed, unique)
    assert played.task.params == {"prompt": "short", "format_error_ends": False, "max_turns": 3}


def test_an_aborted_request_is_made_again(world: Any) -> None:
    world.engine.aborts = 2
    world.manager().run_rollout_loop(None)
    assert episode(world.queue.rows[0][3]).valid
    assert len(world.engine.asked) == 5


def test_a_run_that_is_over_gives_the_episode_up(world: Any) -> None:
    found = world.manager()
    world.engine.generate_request_sync = lambda **_: found.stop()
    found.run_rollout_loop(None)
    [(*_, row, _)] = world.queue.rows
    assert row is None


def test_sampling_is_rolls_but_for_an_evaluations_temperature(world: Any) -> None:
    world.manager().run_rollout_loop(None)
    world.queue.waiting, turns = iter([0, None]), len(world.engine.asked)
    world.manager(mode="val", gem={"temperature": 0.0, "turn_tokens": 5}).run_rollout_loop(None)
    asked = [each.meta_info["generation_config"] for each in world.engine.asked]
    first, second = asked[0], asked[turns]
    assert (first["temperature"], first["max_new_tokens"]) == (0.75, 64)
    assert (second["temperature"], second["max_new_tokens"]) == (0.0, 5)


def test_a_failed_episode_is_a_row_of_which_nothing_is_trained_on(world: Any) -> None:
    world.manager(gem={"prompt_tokens": 3, "response_tokens": 9}).run_rollout_loop(None)
    row = world.queue.rows[0][3]
    assert episode(row).failure is not None
    assert not row.batch["response_mask"].any()
    assert row.batch["attention_mask"].sum() == 2
    assert row.meta_info["metrics"] == {"env/b/failed": 1.0}
    assert row.non_tensor_batch["episode_scores"][0] == 0.0

"""The trainers' view of a batch: which rows make an episode, in which order."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from gem.errors import ConfigurationError, RecordError, RolloutError
from gem.trajectory import Failure, Trajectory
from gem_train.checkpoints import save_state
from gem_train.packed import PackedTrajectory
from gem_train.recording import RunRecording
from gem_train.testing.golden import golden_batch, golden_turn_rows
from gem_verl.rollout import EPISODE
from gem_verl.settings import Settings
from gem_verl.trainer import GemTrainerSync, check_estimated, grouped

Line = tuple[str, dict[str, Any], int]
"""Key, extra fields and index of a row."""


def lines(uid: str, session: int, index: int, trajectory: Trajectory) -> list[Line]:
    """The rows of an episode as our agent loops store them."""
    rows = trajectory.training_rows()
    spans = [[(s.turn, s.start, s.end) for s in row.spans] for row in rows] or [[]]
    found = []
    for number, of_row in enumerate(spans):
        known: dict[str, Any] = {"spans": of_row, "error": None}
        extra = {"gem": known, "reward_extra_info": {}, "whole": b""}
        if number == len(spans) - 1:
            packed = PackedTrajectory.of(trajectory)
            known["episode"], extra["whole"] = packed.head, packed.data
        found.append((f"{uid}_{session}_{number}", extra, index))
    return found


@pytest.fixture
def batch() -> list[Line]:
    """Two episodes of one task and one of another, the latter failed."""
    one, two = [t for t in golden_turn_rows() if t.valid][:2]
    [failed] = [t for t in golden_batch() if not t.valid]
    return [
        *lines("task_b", 1, 3, two),
        *lines("task_a", 0, 8, failed),
        *lines("task_b", 0, 3, replace(one, group=3)),
    ]


def test_rows_become_episodes_in_an_order_that_does_not_depend_on_their_arrival(
    batch: list[Line],
) -> None:
    seen = []
    for arrived in (batch, batch[::-1], [*batch[3:], *batch[:3]]):
        found, trajectories = grouped(*map(list, zip(*arrived, strict=True)))
        keys = [[arrived[row.place][0] for row in episode.rows] for episode in found.episodes]
        spans = [[row.spans for row in episode.rows] for episode in found.episodes]
        seen.append((keys, spans, trajectories, [e.group for e in found.episodes]))
        assert [e.rewards for e in found.episodes] == [*(t.rewards for t in trajectories[:2]), []]
    keys, spans, trajectories, groups = seen[0]
    assert [key.rsplit("_", 1)[0] for key, *_ in keys] == ["task_b_0", "task_b_1", "task_a_0"]
    assert keys == [sorted(each) for each in keys]
    whole = [t for t in golden_turn_rows() if t.valid][:2]
    rows = [row for t in whole for row in t.training_rows()]
    assert [s for s in itertools.chain(*spans) if s] == [row.spans for row in rows]
    assert groups == [0, 0, 1]
    assert [t.valid for t in trajectories] == [True, True, False]
    assert seen[1:] == seen[:1] * 2


def test_a_match_becomes_an_episode_for_each_agent(batch: list[Line]) -> None:
    agents = [
        replace(t, agent=f"a{n}", match="m")
        for n, t in enumerate([t for t in golden_turn_rows() if t.valid][:2])
    ]
    idle = replace(agents[0], turns=[], agent="a2")
    rows = [line for agent in (*agents, idle) for line in lines("task_c", 0, 9, agent)]
    match = [(f"task_c_0_{n}", extra, index) for n, (_, extra, index) in enumerate(rows)]
    found, trajectories = grouped(*map(list, zip(*[*match, *batch], strict=True)))
    assert [e.agent for e in found.episodes] == [None, None, None, "a0", "a1", "a2"]
    assert [e.group for e in found.episodes[3:]] == [2, 2, 2]
    assert [t.rewards for t in trajectories[3:]] == [t.rewards for t in (*agents, idle)]
    for episode, agent in zip(found.episodes[3:], agents, strict=False):
        assert [row.spans for row in episode.rows] == [r.spans for r in agent.training_rows()]
    assert [row.spans for row in found.episodes[-1].rows] == [[]]


def test_the_matches_of_a_validation_are_counted(
    batch: list[Line], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PPOTrainer, "_val_metrics_update", lambda *_: None)
    made = trainer(batch)
    made._settings = Settings(max_failed_fraction=1.0)
    seats = [replace(t, match="m", agent=a) for t in made._trajectories[:1] for a in ("x", "y")]
    made._recording.keep_evaluated("game", seats)
    made._recording.keep_evaluated("other", made._trajectories[1:])
    infos = {name: [0.0] * 3 for name in ("reward", "acc", "episode_return")}
    made._val_metrics_update(["game", "other", "other"], ["a", "b", "c"], infos, [])
    with pytest.raises(RolloutError, match="other episodes"):
        made._val_metrics_update(["game", "game", "other", "other"], [], infos, [])


def test_failed_episodes_are_in_no_mean_of_a_validation(batch: list[Line]) -> None:
    made = trainer(batch)
    made._settings = Settings(max_failed_fraction=1.0)
    made._recording.keep_evaluated("game", made._trajectories)
    infos: dict[str, list[Any]] = {
        # verl knows the rewards of an episode's last row.
        "reward": [1.0, 0.5, 0.0],
        "acc": [1.0, 1.0, None],
        "episode_return": [1.0, 2.0, None],
    }
    counts = {("game", uid): 1 for uid in "abc"}
    found = made._val_metrics_update(["game"] * 3, list("abc"), infos, [], counts)
    assert found["val-core/game/acc/mean@1"] == 1.0
    assert found["val-aux/game/reward/mean@1"] == 1.5


def test_baselines_of_roles_are_saved_with_a_checkpoint_and_read_again(
    batch: list[Line], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("gem_verl.trainer.tq", queue(batch))
    monkeypatch.setattr("gem_verl.trainer.call_while_alive", lambda *_, **__: None)
    for name in ("_compute_metrics", "_save_checkpoint"):
        monkeypatch.setattr(PPOTrainer, name, lambda *_: None)
    told = {"resume_mode": "auto", "val_only": False, "default_local_dir": str(tmp_path / "c")}
    estimator = SimpleNamespace(adv_estimator="gem_rae")

    def begun(step: int, **own: str) -> Any:
        made = trainer(batch)
        made.config = SimpleNamespace(trainer=SimpleNamespace(**told | own), algorithm=estimator)
        made.llm_server_manager = SimpleNamespace(get_replicas=list)
        made.global_steps = made.total_training_steps = step
        return made

    monkeypatch.setattr("gem_verl.trainer.ray.get_actor", lambda *_, **__: None)
    # None at all, too: every episode before the checkpoint may have failed.
    for state in ({}, {"first": 0.1, "second": -1 / 3}):
        made = begun(3)
        made._batch.state = state
        made._lost, made._checkpoint_due = [], True
        made._compute_metrics(SimpleNamespace(keys=[], partition_id="train"), {}, {}, 3, 0)
        resumed = begun(3)
        resumed.fit(SimpleNamespace(agent_loop_workers=[]))
        assert resumed._batch.state == state
    # Of another run's checkpoint: not what this run has saved at the same step.
    tmp_path.joinpath("d").mkdir()
    save_state(tmp_path / "d" / "estimator_3.json", {"other": 0.5})
    given = {"resume_mode": "resume_path", "resume_from_path": f"{tmp_path}/d/global_step_3"}
    resumed = begun(3, **given)
    resumed.fit(SimpleNamespace(agent_loop_workers=[]))
    assert resumed._batch.state == {"other": 0.5}
    with pytest.raises(RecordError, match=r"c/estimator_4\.json: the estimator's state"):
        begun(4).fit(SimpleNamespace(agent_loop_workers=[]))


def test_a_broken_agent_loop_stops_the_run(batch: list[Line]) -> None:
    known = {"spans": [], "error": "ConnectionError: engine died"}
    broken: Line = ("task_c_0_0", {"gem": known, "reward_extra_info": {}}, 9)
    with pytest.raises(RolloutError, match="agent loop failed: ConnectionError"):
        grouped(*map(list, zip(*[*batch, broken], strict=True)))


class Queue:
    """Stands in for TransferQueue, which test_real_runs.py has; remembers which rows were read."""

    def __init__(self, rows: dict[str, dict[str, Any]]) -> None:
        self.rows = rows
        self.read: list[list[str]] = []

    def kv_batch_get(self, keys: list[str], partition_id: str, select_fields: list[str]) -> Any:
        self.read.append(list(keys))
        return {name: [self.rows[key][name] for key in keys] for name in select_fields}


def trainer(batch: list[Line], **recording: Any) -> Any:
    """A trainer that has found out which rows belong together."""
    made: Any = object.__new__(GemTrainerSync)
    made.config = SimpleNamespace(algorithm=SimpleNamespace(adv_estimator="gem_rebn"))
    made._batch, made._trajectories = grouped(*map(list, zip(*batch, strict=True)))
    made._recording = RunRecording(None if not recording else "record", {}, **recording)
    return made


def queue(batch: list[Line]) -> Queue:
    """The rows of a batch as they are stored."""
    return Queue(
        {
            key: {EPISODE: extra.get("whole"), "extra_fields": extra, "data_source": "same"}
            for key, extra, _ in batch
        }
    )


@pytest.mark.parametrize(
    ("record", "read"), [("all", [3]), ("sample:1", [1]), ("metrics", []), (None, [])]
)
def test_only_episodes_that_are_recorded_are_fetched(
    batch: list[Line],
    record: str | None,
    read: list[int],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    stored = queue(batch)
    monkeypatch.setattr("gem_verl.trainer.tq", stored)
    made = trainer(batch, **({} if record is None else {"record": record}))
    meta = SimpleNamespace(keys=[key for key, *_ in batch], partition_id="train")
    episodes = made._whole(meta)
    assert [len(keys) for keys in stored.read] == read
    decoded = [episode.unpack() for episode in episodes if episode.data != episode.head]
    assert len(decoded) == sum(read)
    assert [t.rewards for t in decoded] == [t.rewards for t in episodes[: len(decoded)]]
    assert [e.rewards for e in episodes] == [e.rewards for e in made._trajectories]


def test_another_order_of_the_rows_is_noticed(
    batch: list[Line], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gem_verl.trainer.tq", queue(batch))
    keys = [key for key, *_ in batch]
    meta = SimpleNamespace(keys=[*keys[1:], keys[0]], partition_id="train")
    with pytest.raises((RolloutError, ConfigurationError), match="another episode|not a packed"):
        trainer(batch, record="all")._whole(meta)


def test_validation_episodes_are_taken_before_verl_removes_them(
    batch: list[Line], monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = queue(batch)
    monkeypatch.setattr("gem_verl.trainer.tq", stored)
    made = trainer(batch)
    made._keep_evaluated(SimpleNamespace(keys=list(stored.rows), partition_id="val"))
    [(name, episodes)] = made._recording.evaluated.items()
    assert name == "same"
    assert sorted(e.valid for e in episodes) == [False, True, True]
    assert all(episode.unpack().turns for episode in episodes)


def test_an_iteration_and_then_its_evaluation_are_recorded_before_its_checkpoint_is_written(
    batch: list[Line], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """verl asks for it earlier: a run killed between the two would lose an iteration."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gem_verl.trainer.tq", queue(batch))
    recorded: list[int] = []

    def save(self: Any) -> None:
        recorded.append(len(Path("record/metrics.jsonl").read_text().splitlines()))

    monkeypatch.setattr(PPOTrainer, "_compute_metrics", lambda *_: None)
    monkeypatch.setattr(PPOTrainer, "_save_checkpoint", save)
    made = trainer(batch, record="metrics")
    made._batch.advantages = [[0.0] * len(e.rewards) for e in made._batch.episodes]
    made._lost, made._checkpoint_due = [], False
    made._settings = Settings(max_failed_fraction=1.0)
    monkeypatch.setattr(PPOTrainer, "_val_metrics_update", lambda *_: None)
    meta = SimpleNamespace(keys=[key for key, *_ in batch], partition_id="train")
    for step in (1, 2, 3):
        made.global_steps = step
        if step == 2:
            made._save_checkpoint()
            made._recording.keep_evaluated("same", made._trajectories)
            infos = {name: [0.0] * 3 for name in ("reward", "acc", "episode_return")}
            made._val_metrics_update(["same"] * 3, ["a", "b", "c"], infos, [])
            assert recorded == []
        metrics: dict[str, Any] = {}
        made._compute_metrics(meta, metrics, {}, step, 0)
        assert ("timing_s/save_checkpoint" in metrics) == (step == 2)
    assert recorded == [3]
    lines = [json.loads(line) for line in Path("record/metrics.jsonl").read_text().splitlines()]
    assert [(line["iteration"], line["split"]) for line in lines] == [
        *((0, "train"), (1, "train"), (2, "eval:same"), (2, "train"))
    ]


class Ended(NamedTuple):
    """An episode, of which only its failure is looked at."""

    failure: Failure | None = None


def test_verls_own_estimator_takes_a_failed_episode_for_one_of_reward_0(compose: Any) -> None:
    """Why a run with one ends there. Three episodes of a group won, and one is void."""
    from verl.protocol import DataProto
    from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

    mask = torch.tensor([[1, 1, 1]] * 3 + [[0, 0, 0]])
    rewards = torch.tensor([[0.0, 0.0, 1.0]] * 3 + [[0.0, 0.0, 0.0]])

    def advantages(estimator: str, rows: int) -> list[float]:
        tensors = {"response_mask": mask[:rows], "token_level_rewards": rewards[:rows]}
        data = DataProto.from_dict(
            tensors={**tensors, "token_level_scores": rewards[:rows].clone()},
            non_tensors={"uid": np.array(["a"] * rows, dtype=object)},
        )
        keys = [f"a_{row}_0" for row in range(rows)]
        config = compose([f"algorithm.adv_estimator={estimator}"]).algorithm
        found = compute_advantage_for_multi_trajectories(
            data, keys, adv_estimator=estimator, config=config
        )
        return [round(float(row[0]), 3) for row in found.batch["advantages"][:3]]

    assert advantages("grpo", 3) == [0, 0, 0]
    assert min(advantages("grpo", 4)) > 0.4
    failed = [Ended(), Ended(), Ended(), Ended(Failure("sandbox", "gone", attempts=2))]
    for estimator in ("grpo", "rloo", "reinforce_plus_plus_baseline"):
        check_estimated(estimator, failed[:3])
        with pytest.raises(RolloutError, match=rf"1 of 4 .* {estimator} .*gem_grpo.*sandbox 1 \("):
            check_estimated(estimator, failed)
    lost = [Failure("engine", "never arrived", attempts=1)]
    with pytest.raises(RolloutError, match="1 of 4 episodes failed"):
        check_estimated("grpo", failed[:3], lost)
    check_estimated("gem_grpo", failed)


@pytest.mark.parametrize(
    ("sampling", "correction", "tokens"),
    [
        ({}, None, 3),
        ({"temperature": 0.7}, None, 3),
        ({"temperature": 0.7, "logprobs_mode": "raw_logprobs"}, None, 0),
        ({"top_p": 0.9}, None, 0),
        ({"top_k": 5}, None, 0),
        ({}, {"bypass_mode": True}, 0),
    ],
)
def test_the_distance_from_the_engine_is_that_of_sampled_tokens_before_the_update(
    sampling: dict[str, Any],
    correction: dict[str, Any] | None,
    tokens: int,
    batch: list[Line],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Unless the distributions differ, or verl takes the engine's for its own."""
    made = trainer(batch)
    made._settings = Settings()
    usual = {"top_p": 1.0, "top_k": -1, "temperature": 1.0, "logprobs_mode": "processed_logprobs"}
    algorithm = {"rollout_correction": correction} if correction else {}
    made.config = OmegaConf.create(
        {"actor_rollout_ref": {"rollout": usual | sampling}, "algorithm": algorithm}
    )
    # The first row has three sampled tokens; those that verl fills up with are far away.
    padding = {"old_log_probs": [9.0, 9.0], "rollout_log_probs": [0.0, 0.0]}
    stored = {key: {**padding, "response_mask": [0, 0]} for key, *_ in batch}
    first = made._batch.episodes[0].rows[0]
    stored[batch[first.place][0]] = {
        "old_log_probs": [-1.0, -1.25, 7.0, -3.0],
        "rollout_log_probs": [-1.0, -1.0, -7.0, -2.0],
        "response_mask": [1, 1, 0, 1],
    }

    def get(keys: list[str], partition_id: str, select_fields: list[str]) -> Any:
        return {
            name: torch.nested.as_nested_tensor(
                [torch.tensor(stored[key][name]) for key in keys], layout=torch.jagged
            )
            for name in select_fields
        }

    monkeypatch.setattr("gem_verl.trainer.tq", SimpleNamespace(kv_batch_get=get))
    found = made._agreed(SimpleNamespace(keys=[key for key, *_ in batch], partition_id="train"))
    assert found.tokens == tokens
    if tokens:
        assert found.metrics() == {
            "logprob_difference_max": 1.0,
            "logprob_difference_mean": pytest.approx(1.25 / 3),
            "sampler_kl": pytest.approx((np.expm1(-0.25) + 0.25 + np.expm1(-1) + 1) / 3),
            "mismatched_tokens": 1.0,
        }

"""Agent loops: real episodes, a scripted server in place of the engine."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import math
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import DictConfigWrap, _agent_loop_registry
from verl.trainer.ppo.metric_utils import process_validation_metrics
from verl.utils.import_utils import load_class_from_fqn
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from gem import Env, register
from gem.core import Step
from gem.tasks import Task
from gem.trajectory import Trajectory
from gem_train.experiment.tasksets import DatasetRow, EvalSampling, encode_task
from gem_train.packed import PackedTrajectory
from gem_verl.rollout import EPISODE, VOID_TOKENS, GemAgentLoopOutput


class Scripted(Env):
    """Rewards 0.25 a turn; `"end"` ends it with reward 1, `"crash"` raises, `"wait"` blocks."""

    gate: threading.Event

    def reset(self, seed: int | None = None, **options: Any) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return f"start {seed}", {}

    def step(self, action: str) -> Step:
        if action == "crash":
            raise OSError("sandbox gone")
        if action == "wait":
            self.gate.wait(60)
        done = action == "end"
        return f"you said {action}", 1.0 if done else 0.25, done, False, {"success": done}


register("test:Scripted-v0", Scripted)


@pytest.fixture(autouse=True)
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """What the environments of one test wait for; no two tests share it."""
    event = threading.Event()
    monkeypatch.setattr(Scripted, "gate", event, raising=False)
    yield event
    event.set()


BASE = [
    "actor_rollout_ref.rollout.name=vllm",
    "actor_rollout_ref.rollout.agent.default_agent_loop=gem",
    "algorithm.adv_estimator=gem_rebn",
    "trainer.v1.trainer_mode=gem_sync",
    "+gem.record_dir=record",
    "data.max_prompt_length=100",
    "data.max_response_length=400",
]


class World:
    """One agent-loop worker."""

    def __init__(self, compose: Any, tokenizer: Any, overrides: Sequence[str] = ()) -> None:
        self.config = compose([*BASE, *overrides])
        OmegaConf.resolve(self.config)
        self.tokenizer = tokenizer

    async def run(
        self, server: Any, agent: str = "gem", **columns: Any
    ) -> list[GemAgentLoopOutput]:
        cls = load_class_from_fqn(_agent_loop_registry[agent]["_target_"])
        loop = cls(
            trainer_config=DictConfigWrap(self.config),
            server_manager=server,
            tokenizer=self.tokenizer,
            processor=None,
            dataset_cls=None,
            data_config=DictConfigWrap(self.config.data),
        )
        row = {
            "gem_task": encode_task(Task("test:Scripted-v0", 7)),
            "index": 3,
            "session_id": 0,
            "global_steps": 5,
        }
        params = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "logprobs": True}
        output = await loop.run(params, **(row | columns))
        return output if isinstance(output, list) else [output]

    def play(self, server: Any, agent: str = "gem", **columns: Any) -> list[GemAgentLoopOutput]:
        return asyncio.run(self.run(server, agent, **columns))


@pytest.fixture
def world(compose: Any, tokenizer: Any) -> World:
    return World(compose, tokenizer)


def transcript(output: GemAgentLoopOutput) -> Trajectory:
    return PackedTrajectory.from_bytes(output.as_dict()[EPISODE]).unpack()


def test_an_episode_is_one_row_with_each_turns_reward_on_its_last_token(
    world: World, server: Any, tokenizer: Any
) -> None:
    [row] = world.play(server(["a", "bc", "end"]))
    assert len(row.response_ids) == len(row.response_mask) == len(row.token_rewards)
    runs = "".join(map(str, row.response_mask)).split("0")
    assert [len(run) for run in runs if run] == [2, 3, 4]
    ends = [i for i, token in enumerate(row.response_ids) if row.token_rewards[i]]
    assert [row.token_rewards[i] for i in ends] == [0.25, 0.25, 1.0]
    assert all(row.response_ids[i] == tokenizer.eos_token_id for i in ends)
    assert all(row.response_mask[i] == 1 for i in ends)
    assert row.reward_score == 1.5
    assert row.num_turns == 3
    assert row.extra_fields["reward_extra_info"]["acc"] == 1.0


def test_every_prompt_extends_the_tokens_before_it(world: World, server: Any) -> None:
    s = server(["a", "bc", "end"])
    [row] = world.play(s)
    whole = row.prompt_ids + row.response_ids
    for request in s.requests:
        assert request["prompt_ids"] == whole[: len(request["prompt_ids"])]


def test_all_turns_of_an_episode_go_to_one_server(world: World, server: Any) -> None:
    s = server(["a", "end"])
    world.play(s)
    world.play(s)
    first, second, *others = [request["id"] for request in s.requests]
    assert first == second
    assert first not in others


def test_log_probabilities_stay_with_their_tokens(world: World, server: Any) -> None:
    [row] = world.play(server(["a", "end"]))
    pairs = zip(row.response_mask, row.response_logprobs, strict=True)
    assert [p for m, p in pairs if m] == [-0.5, -1.5, -0.5, -1.5, -2.5, -3.5]
    assert {p for m, p in zip(row.response_mask, row.response_logprobs, strict=True) if not m} == {
        0
    }


def test_the_oldest_and_newest_weights_are_reported(world: World, server: Any) -> None:
    [row] = world.play(server(["a", "b", "end"]))
    assert row.extra_fields["min_global_steps"] == 1
    assert row.extra_fields["max_global_steps"] == 3


def test_a_turn_cut_by_its_limit_is_closed_and_flagged(
    compose: Any, tokenizer: Any, server: Any
) -> None:
    world = World(compose, tokenizer, ["+gem.turn_tokens=3", "+gem.turns=2"])
    s = server(["long answer", "end"])
    [row] = world.play(s)
    assert [request["params"]["max_tokens"] for request in s.requests] == [3, 3]
    trajectory = transcript(row)
    assert [turn.stop_reason for turn in trajectory.turns] == ["length", "length"]
    closing = row.response_ids[3]
    assert closing == tokenizer.eos_token_id
    assert row.response_mask[3] == 0


def test_budgets_come_from_verls_own_lengths(compose: Any, tokenizer: Any, server: Any) -> None:
    def first(*overrides: str) -> int:
        s = server(["end"])
        World(compose, tokenizer, overrides).play(s)
        return s.requests[0]["params"]["max_tokens"]

    assert first("data.max_response_length=200") == 200
    assert first("data.max_response_length=200", "+gem.turn_tokens=16") == 16
    [row] = World(compose, tokenizer, ["data.max_prompt_length=2"]).play(server(["end"]))
    assert "prompt_tokens allows 2" in str(transcript(row).failure)


def test_the_server_is_told_where_messages_end(world: World, server: Any, tokenizer: Any) -> None:
    s = server(["end"])
    world.play(s)
    assert s.requests[0]["params"]["stop_token_ids"] == [tokenizer.eos_token_id]


def test_gem_turns_makes_a_row_of_every_turn(world: World, server: Any) -> None:
    [whole] = world.play(server(["a", "bc", "end"]))
    rows = world.play(server(["a", "bc", "end"]), "gem_turns")
    assert [sum(row.response_mask) for row in rows] == [2, 3, 4]
    assert [row.token_rewards[-1] for row in rows] == [0.25, 0.25, 1.0]
    tokens = whole.prompt_ids + whole.response_ids
    for row in rows:
        full = row.prompt_ids + row.response_ids
        assert full == tokens[: len(full)]
    assert [bool(row.episode) for row in rows] == [False, False, True]


def test_a_context_with_a_prompt_per_turn_makes_a_row_per_turn(
    compose: Any, tokenizer: Any, server: Any
) -> None:
    world = World(compose, tokenizer, ["+gem.context=concat"])
    assert len(world.play(server(["a", "b", "end"]))) == 3


def test_rows_per_turn_are_refused_where_episodes_would_be_torn_apart(
    compose: Any, tokenizer: Any, server: Any
) -> None:
    world = World(compose, tokenizer, ["trainer.v1.trainer_mode=sync"])
    [row] = world.play(server(["end"]), "gem_turns")
    assert math.isnan(row.token_rewards[0])
    assert "gem_sync" in row.extra_fields["gem"]["error"]


def test_a_crashing_environment_voids_its_episode(world: World, server: Any) -> None:
    s = server(["a", "crash"])
    [row] = world.play(s)
    assert len(s.requests) == 4  # two attempts
    assert row.response_mask == [0]
    assert row.token_rewards == [0.0]
    assert "sandbox gone" in str(transcript(row).failure)
    assert row.extra_fields["reward_extra_info"]["acc"] is None
    assert not transcript(row).valid


@pytest.mark.parametrize("mode", ["sync", "gem_sync"])
@pytest.mark.parametrize("evaluation", ["easy", None])
def test_verls_validation_never_counts_a_failed_episode_as_zero(
    compose: Any, tokenizer: Any, server: Any, mode: str, evaluation: str | None
) -> None:
    world = World(compose, tokenizer, [f"trainer.v1.trainer_mode={mode}", "gem.record_dir=null"])
    row = DatasetRow(Task("test:Scripted-v0", 7), evaluation=evaluation).encode()
    [good] = world.play(server(["end"]), gem_task=row)
    [bad] = world.play(server(["a", "crash"]), gem_task=row)
    infos = [each.extra_fields["reward_extra_info"] for each in (good, bad)]
    # In training a reward that is not finite is a broken agent loop.
    assert math.isnan(bad.token_rewards[0]) == (mode == "sync" and evaluation is not None)
    if mode == "sync":
        values = {name: [info[name] for info in infos] for name in infos[0]}
        found = process_validation_metrics(
            ["easy"] * 2,
            ["a", "b"],
            values,
            expected_acc_counts={("easy", "a"): 1, ("easy", "b"): 1},
        )
        assert math.isnan(found["easy"]["acc"]["mean@1"])
        assert math.isnan(found["easy"]["episode_return"]["mean@1"])
    else:
        assert infos[1]["acc"] is None


def test_an_error_of_the_server_is_never_a_missing_row(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    class Dead:
        async def generate(self, **kwargs: Any) -> Any:
            raise ConnectionError("engine died")

    with caplog.at_level(logging.ERROR):
        [row] = world.play(Dead())
    assert row.extra_fields["gem"]["error"] == "ConnectionError: engine died"
    assert math.isnan(row.reward_score)
    assert "engine died" in caplog.text


def test_rows_of_all_kinds_have_the_same_fields(world: World, server: Any) -> None:
    rows = [
        *world.play(server(["a", "end"])),
        *world.play(server(["crash"])),
        *world.play(server(["a", "end"]), "gem_turns"),
    ]
    dicts = [row.as_dict() for row in rows]
    assert len({frozenset(d) for d in dicts}) == 1
    assert len({frozenset(d["extra_fields"]) for d in dicts}) == 1
    stored = list_of_dict_to_tensordict(dicts)  # what verl does with them
    assert len(stored) == len(rows)
    for d in dicts:
        assert d["rm_scores"].dtype == d["rollout_log_probs"].dtype == torch.float32
        assert d["rm_scores"].shape == d["responses"].shape == d["response_mask"].shape


def test_only_the_last_row_of_an_episode_carries_it(world: World, server: Any) -> None:
    rows = world.play(server(["a", "b", "end"]), "gem_turns")
    assert [bool(row.as_dict()[EPISODE]) for row in rows] == [False, False, True]
    heads = [row.extra_fields["gem"].get("episode") for row in rows]
    assert heads[:2] == [None, None]
    numbers = PackedTrajectory.from_bytes(heads[2])
    assert numbers.rewards == transcript(rows[-1]).rewards == [0.25, 0.25, 1.0]
    assert [row.extra_fields["reward_extra_info"]["acc"] for row in rows] == [1.0] * 3


@pytest.mark.parametrize("override", ["gem.record_dir=null", "+gem.record=metrics"])
def test_only_numbers_travel_where_no_episode_is_recorded(
    compose: Any, tokenizer: Any, server: Any, override: str
) -> None:
    world = World(compose, tokenizer, [override])
    [row] = world.play(server(["a", "end"]))
    assert row.as_dict()[EPISODE] == b""
    numbers = PackedTrajectory.from_bytes(row.extra_fields["gem"]["episode"])
    assert (numbers.rewards, numbers.success) == ([0.25, 1.0], True)


def test_a_void_row_is_as_long_as_verls_padding(world: World, server: Any) -> None:
    from verl.trainer.ppo.padding_utils import SYNTHETIC_PADDING_SEQ_LEN

    [row] = world.play(server(["crash"]))
    assert len(row.prompt_ids) + len(row.response_ids) == VOID_TOKENS
    assert VOID_TOKENS == SYNTHETIC_PADDING_SEQ_LEN


def test_a_blocking_environment_does_not_block_other_episodes(
    world: World, server: Any, gate: threading.Event
) -> None:
    async def both() -> list[str]:
        finished = []

        async def play(name: str, texts: list[str]) -> None:
            await world.run(server(texts))
            finished.append(name)
            gate.set()  # lets the blocked one go on

        await asyncio.gather(play("slow", ["wait", "end"]), play("fast", ["a", "b", "end"]))
        return finished

    assert asyncio.run(both()) == ["fast", "slow"]


def test_a_seed_decides_every_turn_on_its_own(compose: Any, tokenizer: Any, server: Any) -> None:
    world = World(compose, tokenizer, ["+gem.seed=1"])

    def seeds(**columns: Any) -> list[int]:
        s = server(["a", "end"])
        world.play(s, **columns)
        return [request["params"]["seed"] for request in s.requests]

    first = seeds()
    assert first == seeds()
    # With #samples=<n> a task has several rows.
    others = seeds(session_id=1), seeds(global_steps=6), seeds(index=4)
    assert len({*first, *(seed for other in others for seed in other)}) == 8


def test_a_validation_row_can_bring_its_own_sampling(world: World, server: Any) -> None:
    s, how = server(["end"]), EvalSampling(temperature=0.5, top_p=0.9, top_k=3, min_p=0.1)
    world.play(s, gem_task=encode_task(Task("test:Scripted-v0", 7), how))
    assert s.requests[0]["params"].items() >= how.engine.items()
    world.play(s, gem_task=encode_task(Task("test:Scripted-v0", 7)))
    own = {"temperature": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
    assert s.requests[1]["params"].items() >= own.items()


def test_a_system_prompt_is_shown(compose: Any, tokenizer: Any, server: Any) -> None:
    world = World(compose, tokenizer, ['+gem.system_prompt="be brief"'])
    [row] = world.play(server(["end"]))
    assert "be brief" in tokenizer.decode(row.prompt_ids)


THINKS = (
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' }}"
    "{{- m.content.split('</think>')[-1] + '<|im_end|>\n' }}{%- endfor %}"
    "{{- '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking %}{{- '<think>' }}{%- endif %}"
)


def test_thinking_is_read_off_and_leaves_later_prompts(
    compose: Any, tokenizer: Any, server: Any
) -> None:
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = THINKS
    told = ["+gem.thinking=drop", "+data.apply_chat_template_kwargs.enable_thinking=false"]
    told += ["+gem.template_kwargs={enable_thinking:true}"]  # wins
    first, last = World(compose, tokenizer, told).play(server(["b</think>a", "d</think>end"]))
    texts = [tokenizer.decode(row.prompt_ids) for row in (first, last)]
    assert all(text.endswith("assistant\n<think>") for text in texts)
    assert "assistant\na<|im_end|>" in texts[1] and "b" not in texts[1].partition("7")[2]
    assert "you said a" in texts[1]
    assert last.extra_fields["turn_scores"] == [1.0]


def test_the_stock_trainer_gets_no_transcripts(compose: Any, tokenizer: Any, server: Any) -> None:
    world = World(compose, tokenizer, ["trainer.v1.trainer_mode=sync", "gem.record_dir=null"])
    [row] = world.play(server(["end"]))
    assert EPISODE not in row.as_dict()
    json.dumps(row.extra_fields)  # plain data only


KUHN = encode_task(Task("multi:KuhnPoker-v0", 1, {"seat": "all"}))


@pytest.fixture
def table(compose: Any, tokenizer: Any) -> World:
    """A worker with room for the rules of a card game."""
    return World(compose, tokenizer, ["data.max_prompt_length=4000"])


def test_a_match_is_the_rows_of_all_agents(table: World, server: Any) -> None:
    says = server([r"\boxed{check}", r"\boxed{bet}", r"\boxed{fold}"])
    rows = table.play(says, gem_task=KUHN)
    played = [transcript(row) for row in rows]
    assert [t.agent for t in played] == ["first", "second"]
    assert [len(t.turns) for t in played] == [2, 1]
    assert len({t.match for t in played}) == 1
    assert {t.group for t in played} == {3}
    assert sum(row.reward_score for row in rows) == 0 != rows[0].reward_score
    for row, trajectory in zip(rows, played, strict=True):
        [expected] = trajectory.training_rows()
        assert row.response_ids == expected.response_ids
        assert row.response_mask == expected.mask
        # verl's validation takes those of the last row for those of the request.
        assert row.extra_fields["reward_extra_info"]["episode_return"] == 0
    assert len({request["id"] for request in says.requests}) == 1


def test_an_agent_without_any_turn_is_a_row_that_trains_nothing(table: World, server: Any) -> None:
    first, second = table.play(server(["nonsense"]), gem_task=KUHN)
    assert sum(first.response_mask) > 0
    assert (sum(second.response_mask), len(second.prompt_ids)) == (0, VOID_TOKENS - 1)
    assert transcript(second).valid
    assert not transcript(second).turns
    assert second.extra_fields["gem"]["spans"] == []


def test_a_match_that_fails_is_void_for_all(compose: Any, tokenizer: Any, server: Any) -> None:
    world = World(compose, tokenizer, ["data.max_prompt_length=2"])
    rows = world.play(server([]), gem_task=KUHN)
    assert [str(transcript(row).failure).split(":")[0] for row in rows] == ["budget", "budget"]
    assert not any(any(row.response_mask) for row in rows)

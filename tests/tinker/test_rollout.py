"""Tinker's sampler behind `gem.rollout`."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Any

import httpx
import pytest
import tinker

from gem import register
from gem.core import Step
from gem.errors import RolloutError
from gem.rollout import ChatFormat
from gem.tasks import TaskSet
from gem.trajectory import Trajectory
from gem_tinker import rollout
from gem_tinker.rollout import Sampling
from gem_tinker.settings import Config, read


def config(*arguments: str) -> Config:
    words = ["model=m", "train=gem:test:Scripted-v0", "turn_tokens=12", "turns=3", *arguments]
    last = dict(word.partition("=")[::2] for word in words)
    return read([f"{key}={value}" for key, value in last.items()])


async def sampler(service: Any) -> Any:
    client = await service.create_lora_training_client("m")
    return await client.save_weights_and_get_sampling_client(record_stability_info=False)


def played(
    service: Any, *arguments: str, n: int = 1, sampling: Sampling | None = None
) -> list[Trajectory]:
    async def play() -> list[Trajectory]:
        return await rollout.play_batch(
            await sampler(service),
            ChatFormat(service.tokenizer),
            config(*arguments),
            TaskSet("test:Scripted-v0", n),
            sampling or Sampling(seed=(1, 2), version=5),
        )

    return asyncio.run(play())


def test_an_episode_keeps_the_sampled_tokens_and_their_logprobs(service: Any) -> None:
    service.texts = ("a", "bc", "end")
    [episode] = played(service)
    assert episode.rewards == [0.25, 0.25, 1.0]
    assert [turn.text for turn in episode.turns] == ["a", "bc", "end"]
    end = service.tokenizer.eos_token_id
    for turn in episode.turns:
        assert turn.response_ids == [*service.tokenizer.encode(turn.text), end]
        assert turn.logprobs == [-1.0] * len(turn.response_ids)
    assert episode.policy_version == (5, 5)


def test_a_prompt_extends_everything_before_it(service: Any) -> None:
    service.texts = ("a", "b", "end")
    [episode] = played(service)
    prompts = [prompt for prompt, _, _ in service.samples]
    for turn, earlier, later in zip(episode.turns, prompts, prompts[1:], strict=False):
        before = [*earlier, *turn.response_ids]
        assert later[: len(before)] == before
    assert len(episode.training_rows()) == 1


def test_turns_end_at_the_template_s_token_and_have_a_limit(service: Any) -> None:
    service.texts = ("abcdefghijklmnop",)
    [episode] = played(service)
    assert [turn.stop_reason for turn in episode.turns] == ["length"] * 3
    _, params, _ = service.samples[0]
    assert params.stop == [service.tokenizer.eos_token_id]
    assert params.max_tokens == 12


def test_a_turn_may_have_the_whole_response_unless_it_is_limited(service: Any) -> None:
    service.texts = ("abcdefghijklmnop",)
    played(service, "turn_tokens=null", "response_tokens=9")
    played(service, "turn_tokens=4", "response_tokens=9")
    assert [params.max_tokens for _, params, _ in service.samples] == [9, 4]


def test_seeds_differ_between_turns_and_episodes_and_come_back(service: Any) -> None:
    service.texts = ("a",)
    played(service, n=3)
    seeds = [params.seed for _, params, _ in service.samples]
    assert len(set(seeds)) == len(seeds) == 9
    service.samples.clear()
    played(service, n=3)
    assert sorted(seeds) == sorted(params.seed for _, params, _ in service.samples)
    service.samples.clear()
    played(service, n=3, sampling=Sampling(seed=(1, 3)))
    assert not set(seeds) & {params.seed for _, params, _ in service.samples}


def test_the_episodes_of_a_task_are_a_group_and_are_sampled_differently(service: Any) -> None:
    service.texts = ("end",)

    async def play() -> list[Trajectory]:
        tasks, chat = TaskSet("test:Scripted-v0", 2), ChatFormat(service.tokenizer)
        client, sampling = await sampler(service), Sampling(seed=(1,))
        return await rollout.play_batch(client, chat, config(), tasks, sampling, group_size=3)

    episodes = asyncio.run(play())
    assert [(e.task.seed, e.group) for e in episodes] == [
        *([(0, 0)] * 3),
        *([(1, 1)] * 3),
    ]
    assert len({params.seed for _, params, _ in service.samples}) == 6


def test_one_candidate_is_greedy_decoding(service: Any) -> None:
    service.texts = ("end",)
    played(service, sampling=Sampling(top_k=1))
    _, params, _ = service.samples[0]
    assert (params.temperature, params.top_k) == (0.0, -1)


def test_a_request_that_fails_is_repeated_with_the_same_seed(service: Any) -> None:
    service.texts = ("end",)
    service.sample_errors = [tinker.TinkerError("busy"), tinker.TinkerError("busy")]
    [episode] = played(service)
    assert episode.valid
    seeds = {params.seed for _, params, _ in service.samples}
    assert len(service.samples) == 3
    assert len(seeds) == 1


def test_a_server_that_keeps_failing_stops_the_rollout(service: Any) -> None:
    service.sample_errors = [tinker.TinkerError("disk full")] * 9
    with pytest.raises(RolloutError, match="4 failures.*disk full"):
        played(service)


def test_a_server_that_refuses_is_not_asked_again(service: Any) -> None:
    answer = httpx.Response(400, request=httpx.Request("POST", "http://server"))
    refusal = tinker.BadRequestError("prompt too long", response=answer, body=None)
    service.sample_errors = [refusal]
    with pytest.raises(RolloutError, match="refuses a request: prompt too long"):
        played(service)
    assert len(service.samples) == 1


def test_a_server_that_does_not_answer_is_not_waited_for_for_ever(service: Any) -> None:
    class Deaf:
        def sample(self, **_: Any) -> Any:
            return asyncio.sleep(60)

    async def ask() -> None:
        impatient = config("request_timeout_s=0.01", "sample_retries=1")
        chat = ChatFormat(service.tokenizer)
        sample = rollout.EpisodeSampler(Deaf(), Sampling(), chat, impatient)
        await sample(rollout.Request(0, [1], [1], True, 4))

    with pytest.raises(RolloutError, match="2 failures.*TimeoutError"):
        asyncio.run(ask())


def test_a_crashing_environment_is_a_failure_and_no_reward(service: Any) -> None:
    service.texts = ("crash",)
    [episode] = played(service)
    assert not episode.valid
    assert episode.failure is not None
    assert "sandbox gone" in episode.failure.message
    assert episode.failure.attempts == 2


def test_a_hanging_environment_is_a_failure(service: Any) -> None:
    service.texts = ("slow",)
    [episode] = played(service, "step_timeout_s=0.05", "retries=0")
    assert episode.failure is not None
    assert "time limit of 0.05 s" in episode.failure.message


def test_a_prompt_that_is_too_long_is_a_failure(service: Any) -> None:
    [episode] = played(service, "prompt_tokens=3")
    assert episode.failure is not None
    assert episode.failure.cause == "budget"
    assert service.samples == []


def test_a_slow_environment_holds_up_neither_the_sampler_nor_the_others(
    service: Any, scripted_env: Any
) -> None:
    """The step of one episode ends only when another is sampled for its second turn."""
    sampled_again = threading.Event()
    ended_in_time = []

    class Waits(scripted_env):  # type: ignore[misc]
        def step(self, action: str) -> Step:
            if self.episode_key[0] == 0 and not ended_in_time:
                ended_in_time.append(sampled_again.wait(20))
            return super().step(action)

    class Watching:
        def __init__(self, client: Any) -> None:
            self.client = client
            self.asked = 0

        def sample(self, **request: Any) -> Any:
            self.asked += 1
            if self.asked > 4:
                sampled_again.set()
            return self.client.sample(**request)

    register("test:Waits-v0", Waits)
    service.texts = ("go",)

    async def play() -> None:
        await rollout.play_batch(
            Watching(await sampler(service)),
            ChatFormat(service.tokenizer),
            replace(config(), turns=2),
            TaskSet("test:Waits-v0", 4),
            Sampling(),
        )

    asyncio.run(play())
    assert ended_in_time == [True]

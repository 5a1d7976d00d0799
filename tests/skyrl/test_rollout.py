"""SkyRL's generator hook: what the engines are asked, and what SkyRL gets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from gem.errors import RolloutError
from gem.rollout import ChatFormat
from gem.tasks import Task
from gem_train.experiment.tasksets import DatasetRow, EvalSampling
from gem_train.testing.golden import golden_batch, golden_turn_rows

GAME = "game:GuessTheNumber-v0-easy"
SAMPLING = {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.0, "max_tokens": 99, "stop": 1}


class ScriptedClient:
    """Stands in for SkyRL's clients: answers with one text, remembers what it was asked.

    The real ones are exercised by test_real_runs.py.
    """

    proxy_url = "http://127.0.0.1:9"

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self.weight_version = tokenizer, 1
        self.asked: list[dict[str, Any]] = []
        self.during: Callable[[], None] = lambda: None
        self.reason: str | None = None
        self.logprobs = True

    async def generate(self, **asked: Any) -> Any:
        await asyncio.sleep(0)
        self.asked.append(asked)
        self.during()
        ids = [*self.tokenizer.encode("\\boxed{7}"), self.tokenizer.eos_token_id]
        most = asked["sampling_params"]["max_tokens"]
        return SimpleNamespace(
            response_ids=ids[:most],
            response_logprobs=[-0.5] * len(ids[:most]) if self.logprobs else None,
            stop_reason=self.reason or ("length" if len(ids) > most else "stop"),
        )


@pytest.fixture
def client(tokenizer: Any) -> ScriptedClient:
    return ScriptedClient(tokenizer)


@pytest.fixture
def generator(client: ScriptedClient, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    from gem_skyrl import rollout
    from gem_skyrl.settings import Settings

    monkeypatch.setattr(rollout, "RemoteGenerateClient", lambda url: client)
    settings = Settings(seed=3, turn_tokens=16, turns=2)
    engines = rollout.Engines(client, "policy")
    budget = settings.limits(300, 900)
    return rollout.GemGenerator(engines, ChatFormat(tokenizer), settings, budget, several=False)


def generate(generator: Any, rows: Sequence[DatasetRow], samples: int = 1, step: int = 1) -> Any:
    from skyrl.train.generators.base import TrajectoryID

    from gem_skyrl.dataset import line

    asked = [(row, i) for row in rows for i in range(samples)]
    return asyncio.run(
        generator.generate(
            {
                "env_extras": [line(row) for row, _ in asked],
                "trajectory_ids": [TrajectoryID(str(row.number), i) for row, i in asked],
                "sampling_params": SAMPLING,
                "batch_metadata": SimpleNamespace(global_step=step),
            }
        )
    )


def rows(n: int, **params: Any) -> list[DatasetRow]:
    tasks = [Task(GAME, seed, {"prompt": "short"}) for seed in range(n)]
    return [DatasetRow(task, number=i, **params) for i, task in enumerate(tasks)]


def test_skyrl_accepts_what_it_gets(generator: Any, client: ScriptedClient) -> None:
    from skyrl.train.utils.trainer_utils import validate_generator_output

    found = generate(generator, rows(3), samples=2)
    validate_generator_output(6, found)
    episodes = [
        each.trajectory if hasattr(each, "trajectory") else each for each in found["gem_episodes"]
    ]
    assert [episode.group for episode in episodes] == [0, 0, 1, 1, 2, 2]
    for i, episode in enumerate(episodes):
        [row] = episode.training_rows()
        assert found["response_ids"][i] == list(row.response_ids)
        assert sum(found["rewards"][i]) == pytest.approx(sum(episode.rewards))
        sampled = [p for p, m in zip(found["rollout_logprobs"][i], row.mask, strict=True) if m]
        assert sampled == [-0.5] * len(sampled)


def test_log_probabilities_are_there_of_all_rows_or_of_none(
    generator: Any, client: ScriptedClient
) -> None:
    """A made-up one would be a weight in the loss."""
    from gem_skyrl.rollout import columns

    found = generate(generator, rows(2))
    episodes = [each.unpack() for each in found["gem_episodes"]]
    assert columns(episodes, 0, found["trajectory_ids"], several=False)["rollout_logprobs"]
    episodes[1].turns[0] = replace(episodes[1].turns[0], logprobs=None)
    again = columns(episodes, 0, found["trajectory_ids"], several=False)
    assert again["rollout_logprobs"] is None


def test_the_engines_are_asked_as_skyrl_is_told(generator: Any, client: ScriptedClient) -> None:
    generate(generator, rows(1))
    first = client.asked[0]
    params = first["sampling_params"]
    assert {k: params[k] for k in ("temperature", "top_p", "top_k", "max_tokens")} == {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 5,
        "max_tokens": 16,
    }
    assert params["stop_token_ids"] == sorted(generator.chat.stop_ids)
    assert "stop" not in params and first["model"] == "policy"


def test_an_evaluation_has_its_own_temperature(generator: Any, client: ScriptedClient) -> None:
    generate(generator, rows(1, sampling=EvalSampling(temperature=0.0), evaluation="greedy"))
    assert {asked["sampling_params"]["temperature"] for asked in client.asked} == {0.0}


def test_every_turn_has_a_seed_of_its_own_and_the_same_again(
    generator: Any, client: ScriptedClient
) -> None:
    def seeds(step: int) -> list[int]:
        client.asked.clear()
        generate(generator, rows(2), samples=2, step=step)
        return sorted(asked["sampling_params"]["seed"] for asked in client.asked)

    first = seeds(1)
    assert len(set(first)) == len(first) > 4
    assert seeds(1) == first
    assert not set(seeds(2)) & set(first)


def test_an_episode_is_asked_of_one_engine(generator: Any, client: ScriptedClient) -> None:
    generate(generator, rows(2))
    sessions = [asked["session_id"] for asked in client.asked]
    assert len(set(sessions)) == 2 < len(sessions)


def test_other_weights_find_no_values_of_older_ones(generator: Any, client: ScriptedClient) -> None:
    generate(generator, rows(1))
    client.weight_version += 1
    generate(generator, rows(1))
    salts = [asked["cache_salt"] for asked in client.asked]
    assert salts[0] != salts[-1] and len(set(salts)) == 2


def test_the_version_of_the_weights_is_recorded(generator: Any, client: ScriptedClient) -> None:
    def version() -> Any:
        [episode] = generate(generator, rows(1))["gem_episodes"]
        return episode.policy_version

    assert version() == (0, 0)
    client.weight_version = 4
    generator.engines.resumed = 10
    assert version() == (13, 13)
    client.during = lambda: setattr(client, "weight_version", 5)
    assert version() == (13, 14)


@pytest.mark.parametrize(
    ("reason", "logprobs", "said"),
    [("abort", True, "ended a request with 'abort'"), (None, False, "no log-probabilities")],
)
def test_an_answer_that_is_not_whole_ends_the_run(
    reason: str | None, logprobs: bool, said: str, generator: Any, client: ScriptedClient
) -> None:
    client.reason, client.logprobs = reason, logprobs
    with pytest.raises(RolloutError, match=said):
        generate(generator, rows(1))


def test_a_failed_episode_is_one_token_that_is_not_trained_on() -> None:
    from gem_skyrl.rollout import columns

    batch = golden_batch()
    assert not batch[7].valid
    found = columns(batch, 2, list(range(len(batch))), several=False)
    names = ("prompt_token_ids", "response_ids", "loss_masks", "rewards")
    assert [found[name][7] for name in names] == [[2], [2], [0], [0.0]]
    assert not found["gem_episodes"][7].valid


def test_an_episode_of_several_rows_is_in_its_last_one() -> None:
    from gem_skyrl.rollout import columns, trained_rows

    batch = golden_turn_rows()
    found = columns(batch, 2, list(range(len(batch))), several=True)
    counts = [max(1, len(trained_rows(each))) for each in batch]
    last = [i == n for n in counts for i in range(1, n + 1)]
    assert found["is_last_step"] == last
    assert [each is not None for each in found["gem_episodes"]] == last
    with pytest.raises(RolloutError, match="set generator.step_wise_trajectories=true"):
        columns(batch, 2, list(range(len(batch))), several=False)

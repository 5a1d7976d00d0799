"""Episodes of games as pictures, from the environment to training rows."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("PIL.Image")

from seeing import read_by_engine

import gem
from gem.replay import difference
from gem.rollout import Budget, Request, Sample, play_batch
from gem.rollout.vision import VisionChatFormat, opened
from gem.tasks import Task
from gem.trajectory import Trajectory
from gem_cpu import tiny_processor
from gem_vision.drawing import tokens

BUDGET = Budget(turn_tokens=16, response_tokens=4000, prompt_tokens=2000)


@pytest.mark.parametrize("modality", ["image", "both"])
def test_a_game_is_played_as_pictures(make_tokenizer: Any, modality: str) -> None:
    words = make_tokenizer(["you see the board: \\boxed{up} left"], 300)
    seeing = tiny_processor.make(words)
    chat = VisionChatFormat(seeing)
    end = words.convert_tokens_to_ids("<|im_end|>")
    requests: list[Request] = []

    def sampler(batch: list[Request]) -> list[Sample]:
        requests.extend(batch)
        samples = []
        for request in batch:
            sent = chat.collapse(request.prompt_ids, request.images)
            read = read_by_engine(seeing, sent, [image.data for image in request.images])
            ids = [*chat.encode_text("\\boxed{up}"), end]
            samples.append(Sample(ids, [-0.1] * len(ids), "stop", prompt_tokens=len(read)))
        return samples

    params = {"modality": modality, "max_turns": 3}
    tasks = [Task("game:Sokoban-v0-easy", seed, params) for seed in (0, 0, 1)]
    played = play_batch(tasks, sampler, chat, budget=BUDGET)
    for trajectory in played:
        [row] = trajectory.training_rows()
        assert len(row.images) == len(trajectory.turns) == 3
        assert {image.tokens for image in row.images} == {tokens(*opened(row.images[0]).size)}
        assert sum(i.tokens for i in row.images) == row.ids.count(seeing.image_token_id)
        # What was recorded can be replayed: pictures are compared by their hashes.
        assert difference(Trajectory.from_json(trajectory.to_json())) is None
    # Episodes of one seed have one picture in memory.
    assert played[0].turns[0].images[0] is played[1].turns[0].images[0]
    assert played[0].turns[0].images != played[2].turns[0].images
    env = gem.make("game:Sokoban-v0-easy", **params)
    observation, _ = env.reset(seed=0)
    [picture] = [part["image"] for part in observation if part["type"] == "image"]
    assert played[0].turns[0].images[0].data == picture
    assert all(trajectory.drift == [] for trajectory in played)


class Torn(gem.Env):
    """Shows a damaged file in one turn."""

    def __init__(self, at: int, kept: int) -> None:
        super().__init__()
        self.at, self.kept = at, kept

    def reset(self, seed: int | None = None, **options: Any) -> Any:
        super().reset(seed=seed)
        self.turn = 0
        return self._shown(), {}

    def step(self, action: str) -> Any:
        self.turn += 1
        return self._shown(), 1.0, self.turn == 2, False, {}

    def _shown(self) -> Any:
        picture = gem.make("image:Clock-v0").reset(seed=0)[0][1]["image"]
        kept = self.kept if self.turn == self.at else None
        return [{"type": "image", "image": picture[:kept]}]


@pytest.mark.parametrize(("at", "kept"), [(0, 60), (1, 60), (0, -40)])
def test_an_image_that_cannot_be_read_voids_its_episode_and_no_other(
    make_tokenizer: Any, at: int, kept: int
) -> None:
    words = make_tokenizer(["you see the board"], 300)
    chat = VisionChatFormat(tiny_processor.make(words))
    end = words.convert_tokens_to_ids("<|im_end|>")

    def sampler(batch: list[Request]) -> list[Sample]:
        return [
            Sample([end], None, "stop", prompt_tokens=len(request.prompt_ids)) for request in batch
        ]

    tasks = [Task("test:Torn", seed, {"at": at if seed else 5, "kept": kept}) for seed in range(2)]
    whole, torn = play_batch(
        tasks, sampler, chat, budget=BUDGET, make_env=lambda task: Torn(**task.params)
    )
    assert whole.valid and whole.total_reward == 2.0
    assert torn.failure is not None and torn.failure.cause == "environment"
    assert "cannot read an image" in torn.failure.message

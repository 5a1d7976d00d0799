"""Images: what OpenRLHF's engine and models are given, and mistakes that are noticed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("gem_vision", reason="needs the extra images")

from seeing import read_by_engine
from sight import png
from vllm import SamplingParams

from gem.errors import ConfigurationError, RolloutError
from gem.rollout import Budget, Request, Sample, play_batch
from gem.rollout.vision import VisionChatFormat, opened
from gem.tasks import Task
from gem.trajectory import Failure, Trajectory
from gem_cpu import tiny_processor
from gem_openrlhf import worker
from gem_openrlhf.images import Eyes, check_inputs
from gem_openrlhf.launch import adapter
from gem_openrlhf.rollout import GemAgentExecutor
from gem_openrlhf.settings import Settings
from gem_train.experiment.hardware import CPU, Hardware
from gem_train.experiment.runspec import RunSpec
from gem_train.experiment.tasksets import DatasetRow

SOKOBAN = "game:Sokoban-v0-easy"
PARAMS = {"modality": "image", "max_turns": 3}
ROW = DatasetRow(Task(SOKOBAN, 1, PARAMS))
SAID = "\\boxed{up}"


@pytest.fixture(scope="module")
def processor(make_tokenizer: Any) -> Any:
    made = tiny_processor.make(make_tokenizer([f"you see the board: {SAID} left"], 300))
    # As OpenRLHF does.
    made.eos_token_id = made.tokenizer.eos_token_id
    return made


class Llm:
    """vLLM's engine, as far as weights and the encoder's cache go."""

    def __init__(self) -> None:
        self.log: list[str] = []

    async def collective_rpc(self, method: str, args: tuple[Any, ...] = ()) -> None:
        self.log.append(method)

    async def reset_encoder_cache(self) -> None:
        self.log.append("reset")


class Actor:
    """OpenRLHF's actor: as vLLM, it expands one placeholder for each image it is sent."""

    def __init__(self, processor: Any) -> None:
        self.processor, self.llm = processor, Llm()
        self.requests: list[tuple[list[int], list[Any]]] = []

    def read(self, ids: list[int], images: list[Any]) -> list[int]:
        return read_by_engine(self.processor, ids, [png(image) for image in images])

    async def generate(
        self, ids: list[int], params: Any, multi_modal_data: dict[str, Any] | None = None
    ) -> Any:
        images = (multi_modal_data or {}).get("image", [])
        self.requests.append((ids, images))
        self.llm.log.append("generate")
        words = self.processor.tokenizer
        said = [*words.encode(SAID), words.eos_token_id]
        output = SimpleNamespace(
            token_ids=said,
            logprobs=[{token: SimpleNamespace(logprob=-0.5 - i)} for i, token in enumerate(said)],
            finish_reason="stop",
        )
        return SimpleNamespace(outputs=[output], prompt_token_ids=self.read(ids, images))


class Forgets(Actor):
    """Drops the last image."""

    def read(self, ids: list[int], images: list[Any]) -> list[int]:
        return super().read(ids, images[:-1])


class Turns(Actor):
    """Reads as many tokens, in another order."""

    def read(self, ids: list[int], images: list[Any]) -> list[int]:
        return super().read(ids, images)[::-1]


def executor() -> GemAgentExecutor:
    class AgentExecutor(GemAgentExecutor):
        settings = Settings(prompt_tokens=1000, turn_tokens=16)

    return AgentExecutor()


def play(actor: Actor, agent: GemAgentExecutor | None = None) -> dict[str, Any]:
    params = SamplingParams(max_tokens=16, logprobs=1)
    agent = agent or executor()
    label, words = ROW.encode(), actor.processor
    return asyncio.run(agent.execute("a name", label, params, 5000, words, actor))


def test_the_engine_is_sent_one_placeholder_and_the_picture_for_each_image(
    processor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(worker._state, "installed", True)
    actor = Actor(processor)
    answer = play(actor)
    [row] = answer["label"].trajectory.training_rows()
    pad = processor.image_token_id
    assert [(ids.count(pad), len(images)) for ids, images in actor.requests] == [
        (1, 1),
        (2, 2),
        (3, 3),
    ]
    shown = [opened(image) for image in row.images]
    assert [list(i.getdata()) for i in actor.requests[-1][1]] == [list(i.getdata()) for i in shown]
    ids = answer["observation_tokens"]
    assert ids == row.ids.tolist()
    assert ids.count(pad) == sum(image.tokens for image in row.images) > 3
    said = [processor.tokenizer.decode(ids[a:b]) for a, b in answer["action_ranges"]]
    assert said == [f"{SAID}<|im_end|>"] * 3
    sampled = {i for a, b in answer["action_ranges"] for i in range(a, b)}
    assert {i for i, p in enumerate(answer["rollout_log_probs"]) if p} == sampled


def test_a_row_has_the_pixels_of_its_images_in_order(
    processor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(worker._state, "installed", True)
    answer = play(Actor(processor))
    [row] = answer["label"].trajectory.training_rows()
    images = [opened(image) for image in row.images]
    expected = processor.image_processor(images=images, return_tensors="pt")
    assert set(answer["mm_train_inputs"]) == {"pixel_values", "image_grid_thw"}
    for name, value in answer["mm_train_inputs"].items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=0)


def test_a_dropped_image_stops_the_run(processor: Any) -> None:
    with pytest.raises(RolloutError, match="an image was dropped or expanded twice"):
        play(Forgets(processor))


def test_an_image_expanded_twice_stops_the_run(
    processor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(VisionChatFormat, "collapse", lambda self, ids, images: list(ids))
    with pytest.raises(RolloutError, match="an image was dropped or expanded twice"):
        play(Actor(processor))


def test_other_tokens_of_the_same_number_stop_the_run(processor: Any) -> None:
    with pytest.raises(
        RolloutError, match="the engine read token .* at place 0 of a prompt with 1 ima"
    ):
        play(Turns(processor))


def test_vllm_forgets_what_it_saw_by_older_weights(processor: Any) -> None:
    actor, agent = Actor(processor), executor()
    play(actor, agent)
    assert set(actor.llm.log) == {"generate"}
    actor.llm.log.clear()
    for method in ("init_process_group", "update_weight", "update_weight"):
        asyncio.run(actor.llm.collective_rpc(method, args=("a weight",)))
    play(actor, agent)
    play(actor, agent)
    sent, then = actor.llm.log[:3], actor.llm.log[3:]
    assert sent == ["init_process_group", "update_weight", "update_weight"]
    assert then == ["reset", *["generate"] * 6]
    asyncio.run(actor.llm.collective_rpc("update_weight_cuda_ipc"))
    play(actor, agent)
    assert actor.llm.log[10:] == ["update_weight_cuda_ipc", "reset", *["generate"] * 3]


def test_weights_arrive_by_the_methods_that_are_watched() -> None:
    """If OpenRLHF loads weights by another method, `Eyes` must know its name."""
    import inspect

    from openrlhf.trainer.ray import vllm_engine, vllm_worker_wrap

    source = inspect.getsource(vllm_worker_wrap)
    loading = [part for part in source.split("    def ")[1:] if "load_weights" in part]
    assert {part.partition("(")[0] for part in loading} == {
        "update_weight",
        "update_weight_cuda_ipc",
    }
    assert inspect.getsource(vllm_engine).count("llm.collective_rpc(") == 3


def test_an_engine_that_cannot_forget_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="reset_encoder_cache"):
        Eyes(SimpleNamespace(llm=SimpleNamespace()))


@pytest.fixture(scope="module")
def chat(processor: Any) -> VisionChatFormat:
    return VisionChatFormat(processor)


@pytest.fixture(scope="module")
def batch(chat: VisionChatFormat) -> list[Trajectory]:
    """Four episodes of three turns with an image in each, the last of them failed."""

    def sampler(requests: Sequence[Request]) -> list[Sample]:
        ids = [*chat.encode_text(SAID), chat.tokenizer.eos_token_id]
        known = [-0.5] * len(ids)
        return [Sample(ids, known, "stop", prompt_tokens=len(r.prompt_ids)) for r in requests]

    tasks = [Task(SOKOBAN, seed, PARAMS) for seed in range(4)]
    budget = Budget(turn_tokens=16, response_tokens=1000, prompt_tokens=1000)
    played = play_batch(tasks, sampler, chat, budget=budget)
    assert [len(each.turns) for each in played] == [3] * 4
    played[-1].end, played[-1].failure = "failed", Failure("environment", "gone", attempts=1)
    return played


Made = Callable[..., tuple[Any, list[Any]]]


@pytest.fixture
def made(world: Any, batch: list[Trajectory], chat: Any, tmp_path: Path) -> Made:
    """OpenRLHF's maker, and the batch as it holds it."""

    def make(*flags: str, shown: bool = False) -> tuple[Any, list[Any]]:
        agent = world.agent_file(tmp_path, advantage="rebn", max_failed_fraction=0.5)
        maker = world.maker(agent, *flags)
        return maker, world.experiences(maker, batch, rows=2, chat=chat, shown=shown)

    return make


def test_openrlhf_trains_on_the_images_of_its_rows(
    made: Made, world: Any, batch: list[Trajectory], chat: VisionChatFormat
) -> None:
    from openrlhf.utils.vlm_utils import merge_mm_train_inputs

    maker, held = made()
    done = maker.compute_advantages_and_returns(held)
    ids = world.by_episode(done, "sequences")
    for row, trajectory in zip(ids, batch, strict=True):
        expected = trajectory.training_rows()[0].ids if trajectory.valid else [2, 2]
        assert row[: len(expected)] == expected
    # What a forward pass of two rows is given: their images, one after the other.
    first = [image for t in batch[:2] for image in t.training_rows()[0].images]
    inputs = merge_mm_train_inputs(done[0].mm_train_inputs, "cpu")
    for name, value in chat.inputs(first, return_tensors="pt").items():
        torch.testing.assert_close(inputs[name], value, rtol=0, atol=0)


def test_the_row_of_a_failed_episode_has_no_token_that_stands_for_an_image(
    made: Made, world: Any, chat: VisionChatFormat
) -> None:
    _, held = made()
    assert chat.usable(world.by_episode(held, "sequences")[-1][:2]) == 2
    assert held[-1].mm_train_inputs[-1] is None


def dropped(inputs: dict[str, Any]) -> dict[str, Any] | None:
    grid = inputs["image_grid_thw"][:-1]
    return {"image_grid_thw": grid, "pixel_values": inputs["pixel_values"][: grid.prod(1).sum()]}


def of_none(inputs: dict[str, Any]) -> dict[str, Any] | None:
    return None


def without_pixels(inputs: dict[str, Any]) -> dict[str, Any] | None:
    return {**inputs, "pixel_values": inputs["pixel_values"][:-1]}


def larger(inputs: dict[str, Any]) -> dict[str, Any] | None:
    grid = inputs["image_grid_thw"].clone()
    grid[0, 1] *= 2
    grid[1, 1] //= 2
    return {**inputs, "image_grid_thw": grid}


@pytest.mark.parametrize("defect", [dropped, of_none, without_pixels, larger])
def test_other_images_in_a_row_stop_the_run(made: Made, defect: Any) -> None:
    maker, held = made()
    held[0].mm_train_inputs[1] = defect(held[0].mm_train_inputs[1])
    with pytest.raises(RolloutError, match=r"seed=1.*an image was dropped, or is another one"):
        maker.compute_advantages_and_returns(held)


def test_images_in_a_row_of_text_stop_the_run(batch: list[Trajectory]) -> None:
    given = {"image_grid_thw": torch.ones(1, 3), "pixel_values": torch.ones(1, 2)}
    with pytest.raises(RolloutError, match="a row: OpenRLHF has images of"):
        check_inputs(given, [], "a row")
    check_inputs(None, [], "a row")


@pytest.mark.parametrize("flag", ["ds.packing_samples", "train.partial_rollout_enable"])
def test_flags_that_do_not_work_with_images_are_refused(made: Made, flag: str) -> None:
    maker, held = made(f"--{flag}", "--train.async_enable", "--vllm.num_engines", "1")
    with pytest.raises(ConfigurationError, match=f"--{flag} does not work with images"):
        maker.compute_advantages_and_returns(held)


def test_the_ranks_need_images_in_every_row(
    made: Made, batch: list[Trajectory], world: Any, chat: VisionChatFormat
) -> None:
    two = ("--actor.num_gpus_per_node", "2")
    maker, held = made(*two)
    with pytest.raises(ConfigurationError, match="1 of 4 rows have no images.*2 ranks"):
        maker.compute_advantages_and_returns(held)
    maker, held = made(*two, "--actor.freeze_visual_encoder")
    maker.compute_advantages_and_returns(held)
    # A failed episode has a white one, and counts for nothing.
    maker, held = made(*two, shown=True)
    done = maker.compute_advantages_and_returns(held)
    failed = world.by_episode(done, "sequences")[-1]
    pads = int(done[-1].mm_train_inputs[-1]["image_grid_thw"].prod()) // 4
    assert failed.count(chat.image_id) == pads > 0
    assert sum(world.by_episode(done, "action_mask")[-1]) == 1
    assert not any(world.by_episode(done, "advantages")[-1])


@pytest.fixture
def sees(tmp_path: Path) -> str:
    """The folder of a model that sees, as far as a command depends on it."""
    folder = tmp_path / "sees"
    folder.mkdir()
    config = {"model_type": "qwen2_5_vl", "vision_config": {}, "text_config": {}}
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def spec(model: str, **algorithm: Any) -> RunSpec:
    return RunSpec.from_mapping(
        {
            "name": "pictures",
            "env": {"id": SOKOBAN, "params": PARAMS},
            "policy": {
                "model": model,
                "prompt_tokens": 512,
                "response_tokens": 512,
                "turn_tokens": 16,
            },
            "algorithm": {"advantage": "rebn", **algorithm},
            "optimizer": {"lr": 1e-3},
            "training": {"iterations": 3, "tasks": 4, "group_size": 2, "precision": "bf16"},
        }
    )


GPU = Hardware()
FLASH = replace(GPU, learner=replace(GPU.learner, attention="flash_attention_2"))


@pytest.mark.parametrize("hardware", [CPU, GPU, FLASH], ids=["cpu", "gpu", "flash attention"])
def test_a_model_that_sees_gets_images_and_no_packed_rows(
    hardware: Hardware, sees: str, world: Any, tmp_path: Path
) -> None:
    launch = adapter.compile(spec(sees), run_dir=tmp_path, hardware=hardware)
    args = world.parse(launch.argv[3:])
    assert launch.images
    assert args.data.max_images_per_prompt == 1024
    assert not args.ds.packing_samples and not args.train.dynamic_batch_enable
    assert launch.passes is not None and launch.passes.layout == "fixed"


def test_a_model_of_text_is_trained_as_before(world: Any, tmp_path: Path) -> None:
    args = world.parse(adapter.compile(spec("m"), run_dir=tmp_path, hardware=FLASH).argv[3:])
    assert args.data.max_images_per_prompt == 0
    assert args.ds.packing_samples and args.train.dynamic_batch_enable


def test_a_critic_that_would_not_see_is_refused(sees: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"algorithm.advantage.*{sees}"):
        adapter.compile(spec(sees, advantage="gae"), run_dir=tmp_path, hardware=CPU)


def test_ring_attention_is_refused(sees: str, tmp_path: Path) -> None:
    ring = replace(FLASH, gpus_per_node=2, learner=replace(FLASH.learner, sequence_parallel=2))
    with pytest.raises(ConfigurationError, match="sequence_parallel.*packs rows"):
        adapter.compile(spec(sees), run_dir=tmp_path, hardware=ring)


def test_openrlhfs_actor_gives_images_their_positions(chat: VisionChatFormat) -> None:
    """transformers would take the positions of a text, without an error."""
    from openrlhf.models import Actor as Model

    from gem_cpu import tiny_vl

    folder = str(tiny_vl.ensure())
    model = Model(folder, attn_implementation="sdpa")
    from transformers import AutoTokenizer
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    words = AutoTokenizer.from_pretrained(folder)
    pad = model.model.config.image_token_id
    images = Qwen2VLImageProcessorPil.from_pretrained(folder)
    from sight import picture

    shown = dict(images([picture(84, 56, 1), picture(56, 56, 2)], return_tensors="pt"))
    text = words.encode("you see", add_special_tokens=False)
    ids = torch.tensor([[*text, *[pad] * 6, *text, *[pad] * 4, *text]])
    mask = torch.ones_like(ids)
    with torch.no_grad():
        found = model(ids, mask[:, 1:], mask, **shown)
        types = (ids == pad).int()
        whole = {"input_ids": ids, "attention_mask": mask, **shown}
        right, wrong = (
            torch.gather(
                model.model(**whole, **more).logits.float().log_softmax(-1)[:, :-1],
                2,
                ids[:, 1:, None],
            )[..., 0]
            for more in ({"mm_token_type_ids": types}, {})
        )
    torch.testing.assert_close(found, right)
    assert (found - wrong).abs().max() > 0.01

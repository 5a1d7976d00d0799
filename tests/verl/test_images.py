"""Images in verl: what the server is asked, what it says it read, and what verl trains on."""

from __future__ import annotations

import asyncio
import copy
import importlib
import json
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from seeing import png, read_by_engine
from verl.experimental.agent_loop.agent_loop import (
    AgentLoopWorker,
    DictConfigWrap,
    _agent_loop_registry,
)
from verl.utils import tensordict_utils
from verl.utils.import_utils import load_class_from_fqn
from verl.workers.rollout.replica import RolloutReplicaRegistry

from gem import Env, register
from gem.core import Step
from gem.errors import ConfigurationError, UnsupportedVersionError
from gem.rollout.vision import VisionChatFormat
from gem.tasks import Task
from gem_cpu import tiny_processor
from gem_train.experiment.hardware import CPU
from gem_train.experiment.runspec import RunSpec
from gem_train.experiment.tasksets import encode_task
from gem_train.preflight import check
from gem_verl.dataset import GemDataset
from gem_verl.launch import adapter
from gem_verl.positions import repair
from gem_verl.registry import load
from gem_verl.rollout import GemAgentLoopOutput
from gem_verl.settings import ATTENTION, READ, UNMASKED, WORKER, check_config

COLORS = ("red", "green", "blue")


class Signs(Env):
    """Shows a sign of another colour and size in each of three turns."""

    def reset(self, seed: int | None = None, **options: Any) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.shown = 0
        return self.sign("start"), {}

    def sign(self, text: str) -> list[Any]:
        size = (56 + 28 * self.shown, 56)
        shown = {"type": "image", "image": png(COLORS[self.shown], size)}
        self.shown += 1
        return [{"type": "text", "text": text}, shown]

    def step(self, action: str) -> Step:
        if self.shown == len(COLORS):
            return "", 1.0, True, False, {"success": True}
        return self.sign(f"you said {action}"), 0.25, False, False, {"success": False}


register("test:Signs-v0", Signs)

IMAGES = [
    "actor_rollout_ref.rollout.name=vllm",
    "actor_rollout_ref.rollout.load_format=auto",
    f"+{UNMASKED}={WORKER}",
    "actor_rollout_ref.rollout.agent.default_agent_loop=gem",
    "algorithm.adv_estimator=gem_rebn",
    "critic.enable=False",
    "trainer.v1.trainer_mode=gem_sync",
    "+gem.record_dir=record",
    "data.max_prompt_length=200",
    "data.max_response_length=400",
]


@pytest.fixture
def processor(tokenizer: Any) -> Any:
    return tiny_processor.make(copy.deepcopy(tokenizer))


@dataclass
class Answer:
    """verl's `TokenOutput`, as far as it is read."""

    token_ids: list[int]
    log_probs: list[float] | None
    stop_reason: str = "completed"
    extra_fields: dict[str, Any] = field(default_factory=dict)


class SeeingServer:
    """Stands in for verl's client and vLLM: reads images as vLLM does, and says what it read."""

    def __init__(
        self, processor: Any, texts: Sequence[str], wrong: Callable[..., Any] | None = None
    ) -> None:
        self.processor, self.texts = processor, list(texts)
        self.wrong = wrong or (lambda ids, images: (ids, images))
        self.requests: list[tuple[list[int], list[Any] | None]] = []

    async def generate(
        self,
        request_id: str,
        *,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        image_data: list[Any] | None = None,
    ) -> Answer:
        await asyncio.sleep(0)
        text = self.texts[len(self.requests)]
        self.requests.append((list(prompt_ids), image_data))
        tokenizer = self.processor.tokenizer
        ids = [*tokenizer.encode(text), tokenizer.eos_token_id]
        extra: dict[str, Any] = {}
        if image_data is not None:
            sent, images = self.wrong(prompt_ids, image_data)
            extra[READ] = read_by_engine(self.processor, sent, [bytes_of(each) for each in images])
        return Answer(ids, [-0.5] * len(ids), extra_fields=extra)


def bytes_of(image: Any) -> bytes:
    return png(image.getpixel((0, 0)), image.size)


class World:
    """One agent-loop worker of a model that sees."""

    def __init__(self, compose: Any, processor: Any, overrides: Sequence[str] = ()) -> None:
        self.config = compose([*IMAGES, *overrides])
        OmegaConf.resolve(self.config)
        self.processor = processor

    def play(
        self, server: Any, env: str = "test:Signs-v0", agent: str = "gem"
    ) -> list[GemAgentLoopOutput]:
        loop = load_class_from_fqn(_agent_loop_registry[agent]["_target_"])
        row = {"gem_task": encode_task(Task(env, 7)), "index": 3, "session_id": 0}

        async def run() -> Any:
            # verl's loop chooses a builder of prompts for a model that is not there.
            made = loop.__new__(loop)
            made.config, made.processor = self.config, self.processor
            made.rollout_config = self.config.actor_rollout_ref.rollout
            made.server_manager, made.tokenizer = server, self.processor.tokenizer
            made.data_config = DictConfigWrap(self.config.data).config
            made.apply_chat_template_kwargs = {}
            params = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "logprobs": True}
            return await made.run(params, global_steps=1, **row)

        output = asyncio.run(run())
        return output if isinstance(output, list) else [output]


@pytest.fixture
def world(compose: Any, processor: Any) -> World:
    return World(compose, processor)


SAID = ["a", "bc", "def"]


def test_the_server_gets_one_placeholder_and_one_picture_for_each_image(
    world: World, processor: Any
) -> None:
    server = SeeingServer(processor, SAID)
    world.play(server)
    pad = processor.image_token_id
    assert [ids.count(pad) for ids, _ in server.requests] == [1, 2, 3]
    sizes = [[image.size for image in images or ()] for _, images in server.requests]
    assert sizes[-1] == [(56, 56), (84, 56), (112, 56)]
    assert [len(each) for each in sizes] == [1, 2, 3]


def test_a_row_has_all_tokens_of_its_images_and_the_images_in_order(
    world: World, processor: Any
) -> None:
    server = SeeingServer(processor, SAID)
    [row] = world.play(server)
    assert row.multi_modal_data is not None
    images = row.multi_modal_data["images"]
    assert [image.getpixel((0, 0)) for image in images] == [(255, 0, 0), (0, 128, 0), (0, 0, 255)]
    ids = [*row.prompt_ids, *row.response_ids]
    assert ids.count(processor.image_token_id) == 4 + 6 + 8
    # What is trained on begins with what the engine read in the last turn.
    sent, seen = server.requests[-1]
    read = read_by_engine(processor, sent, [bytes_of(each) for each in seen or ()])
    assert ids[: len(read)] == read
    assert sum(row.response_mask) == sum(len(text) + 1 for text in SAID)
    sampled = [i for i, mask in zip(row.response_ids, row.response_mask, strict=True) if mask]
    assert processor.tokenizer.decode(sampled, skip_special_tokens=True) == "".join(SAID)


def doubled(processor: Any) -> Callable[..., Any]:
    """The ids of the first image expanded before an engine that expands them, too."""

    def wrong(ids: list[int], images: list[Any]) -> Any:
        place = ids.index(processor.image_token_id)
        return [*ids[:place], *[processor.image_token_id] * 3, *ids[place:]], images

    return wrong


def dropped(ids: list[int], images: list[Any]) -> Any:
    return ids, images[1:]


@pytest.mark.parametrize("how", ["doubled", "dropped"])
def test_an_image_that_is_dropped_or_expanded_twice_stops_the_run(
    world: World, processor: Any, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    wrong = dropped if how == "dropped" else doubled(processor)
    [row] = world.play(SeeingServer(processor, SAID, wrong))
    assert "dropped or expanded twice" in row.extra_fields["gem"]["error"]
    assert not any(row.response_mask)


def test_a_server_that_does_not_say_what_it_read_stops_the_run(
    world: World, processor: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Silent(SeeingServer):
        async def generate(self, *args: Any, **named: Any) -> Answer:
            answer = await super().generate(*args, **named)
            answer.extra_fields.clear()
            return answer

    caplog.set_level(logging.CRITICAL)
    [row] = world.play(Silent(processor, SAID))
    assert "read None prompt tokens" in row.extra_fields["gem"]["error"]


def test_a_prompt_of_the_same_length_with_another_token_stops_the_run(
    world: World, processor: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)

    def wrong(ids: list[int], images: list[Any]) -> Any:
        return [ids[0] + 1, *ids[1:]], images

    [row] = world.play(SeeingServer(processor, SAID, wrong))
    assert "at place 0 of a prompt with" in row.extra_fields["gem"]["error"]


def test_a_text_that_spells_too_many_placeholders_is_named(
    world: World, processor: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """verl's processor would stop at it, without a word of which episode."""

    class Spelling(SeeingServer):
        async def generate(self, *args: Any, **named: Any) -> Answer:
            answer = await super().generate(*args, **named)
            chat = VisionChatFormat(processor)
            ids = [*chat.encode_text("<|image_pad|>" * 4), processor.tokenizer.eos_token_id]
            answer.token_ids, answer.log_probs = ids, [-0.5] * len(ids)
            return answer

    caplog.set_level(logging.CRITICAL)
    [row] = world.play(Spelling(processor, SAID))
    assert "spells the placeholder" in row.extra_fields["gem"]["error"]


def test_verl_gets_of_a_row_s_images_what_the_chat_format_gets(
    world: World, processor: Any
) -> None:
    [row] = world.play(SeeingServer(processor, SAID))
    worker: Any = SimpleNamespace(
        processor=processor,
        tokenizer=processor.tokenizer,
        _get_mm_processor_kwargs=lambda audios: {},
    )
    ids = torch.tensor([*row.prompt_ids, *row.response_ids])
    made = AgentLoopWorker._compute_multi_modal_inputs(worker, row, ids)
    tokens = made["image_grid_thw"].prod(-1) // processor.image_processor.merge_size**2
    assert tokens.tolist() == [4, 6, 8]
    assert len(made["pixel_values"]) == 4 * (4 + 6 + 8)


def test_a_model_that_does_not_see_plays_as_before(compose: Any, tokenizer: Any) -> None:
    """Its processor is None: the tokenizer's chat format is used."""
    processor = SimpleNamespace(tokenizer=tokenizer)
    server = SeeingServer(processor, SAID)
    [row] = World(compose, processor).play(server, "game:GuessTheNumber-v0-easy")
    assert row.multi_modal_data is None
    assert all(images is None for _, images in server.requests)


REFUSED = [
    ("actor_rollout_ref.rollout.agent.default_agent_loop=gem_turns", "default_agent_loop"),
    ("+gem.context=concat", "gem.context"),
    ("+gem.thinking=drop", "gem.thinking"),
    ("actor_rollout_ref.rollout.name=sglang", "rollout.name"),
    ("actor_rollout_ref.rollout.load_format=dummy", "load_format"),
    ("+data.mm_processor_kwargs={max_pixels: 3136}", "mm_processor_kwargs"),
    ("critic.enable=True", "critic.enable"),
    (f"+{ATTENTION}=sdpa", "use_remove_padding"),
    (f"~{UNMASKED}", "worker_extension_cls"),
]


@pytest.mark.parametrize(("override", "name"), REFUSED)
def test_what_does_not_work_with_images_is_refused_by_name(
    compose: Any, override: str, name: str
) -> None:
    overrides = [each for each in IMAGES if not override.startswith("~") or UNMASKED not in each]
    overrides += [] if override.startswith("~") else [override]
    config = compose(overrides)
    check_config(config)
    with pytest.raises(ConfigurationError, match=name) as error:
        check_config(config, images="test:Signs-v0")
    assert "test:Signs-v0 shows images" in str(error.value)


def test_the_dataset_refuses_a_model_that_does_not_see(compose: Any, tmp_path: Any) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    config = compose([*IMAGES, f"actor_rollout_ref.model.path={tmp_path}"])
    with pytest.raises(ConfigurationError, match=r"test:Signs-v0 shows images.*sees none"):
        GemDataset("gem:test:Signs-v0?n=1", config=config.data)
    (tmp_path / "config.json").write_text('{"vision_config": {}}')
    with pytest.raises(ConfigurationError, match="no processor of the model"):
        GemDataset("gem:test:Signs-v0?n=1", config=config.data)


def test_the_dataset_takes_a_model_that_sees(compose: Any, processor: Any) -> None:
    dataset = GemDataset("gem:test:Signs-v0?n=2", processor=processor, config=compose(IMAGES).data)
    assert len(dataset) == 2
    assert check([Task("test:Signs-v0", 0)], images=True) == ["test:Signs-v0"]


def test_the_dataset_refuses_a_verl_whose_positions_cannot_be_repaired(
    compose: Any, processor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The learner, where they are repaired, would only warn."""
    monkeypatch.setattr(tensordict_utils, "maybe_fix_3d_position_ids", lambda data, more: None)
    monkeypatch.delitem(sys.modules, "gem_verl.positions", raising=False)
    with pytest.raises(UnsupportedVersionError, match="maybe_fix_3d_position_ids"):
        GemDataset("gem:test:Signs-v0?n=2", processor=processor, config=compose(IMAGES).data)


def positions(*lengths: int) -> list[torch.Tensor]:
    return [torch.arange(4 * n).reshape(4, n) + 100 * n for n in lengths]


@pytest.mark.parametrize("lengths", [(3, 5, 2), (5, 5, 5), (5,), (4, 4, 4, 4)])
def test_positions_reach_the_learner_whatever_the_lengths(lengths: tuple[int, ...]) -> None:
    rows = positions(*lengths)
    data = {"position_ids": torch.nested.as_nested_tensor(rows, layout=torch.jagged)}
    repair(data)
    found = data["position_ids"]
    assert found._ragged_idx == 2
    assert torch.equal(found.values(), torch.cat(rows, -1))
    assert [each.tolist() for each in found.unbind()] == [each.tolist() for each in rows]
    assert tensordict_utils.maybe_fix_3d_position_ids is repair


def test_positions_of_texts_are_left_alone() -> None:
    rows = [torch.arange(3), torch.arange(3)]
    flat = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    data = {"position_ids": flat}
    repair(data)
    assert data["position_ids"] is flat
    repair({})


def test_the_registry_has_our_server() -> None:
    assert RolloutReplicaRegistry._registry["vllm"] is load
    replica = RolloutReplicaRegistry.get("vllm")
    assert (replica.__module__, replica.__name__) == ("gem_verl.server", "GemReplica")


class Engine:
    """Stands in for vLLM's: its outputs have the prompt as it was read."""

    async def generate(self, *, prompt: Any, request_id: str) -> Any:
        for _ in range(2):
            await asyncio.sleep(0)
            yield SimpleNamespace(prompt_token_ids=(1, *prompt, *prompt))


def test_our_server_says_what_the_engine_read(monkeypatch: pytest.MonkeyPatch) -> None:
    server_module = importlib.import_module("gem_verl.server")
    engine = Engine()

    async def generate(
        self: Any, prompt_ids: Any, params: Any, request_id: str, image_data: Any = None
    ) -> Answer:
        async for _ in engine.generate(prompt=prompt_ids, request_id=request_id):
            pass
        if params.get("fails"):
            raise ValueError("no room")
        return Answer([], None)

    monkeypatch.setattr(server_module.vLLMHttpServer, "generate", generate)
    server = server_module.GemServer.__new__(server_module.GemServer)
    server.follow(engine)

    async def ask() -> list[Any]:
        asked = [
            server.generate([2], {}, "a", image_data=["picture"]),
            server.generate([3, 4], {}, "b", image_data=["picture"]),
            server.generate([5], {}, "c"),
            server.generate([6], {"fails": True}, "d", image_data=["picture"]),
        ]
        return await asyncio.gather(*asked, return_exceptions=True)

    first, second, text, failed = asyncio.run(ask())
    assert first.extra_fields == {READ: [1, 2, 2]}
    assert second.extra_fields == {READ: [1, 3, 4, 3, 4]}
    assert text.extra_fields == {}
    assert isinstance(failed, ValueError)
    assert not server._read


def test_our_worker_bans_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = importlib.import_module("gem_verl.worker")
    asked: list[Any] = []

    def prepare(self: Any, vocab_size: int, banned_token_ids: Any = None) -> None:
        asked.append((vocab_size, banned_token_ids))

    monkeypatch.setattr(worker.vLLMColocateWorkerExtension, "monkey_patch_model", prepare)
    worker.GemWorker().monkey_patch_model(vocab_size=9, banned_token_ids=[7])
    assert asked == [(9, None)]
    assert f"{worker.GemWorker.__module__}.{worker.GemWorker.__name__}" == WORKER


@pytest.mark.parametrize("context", ["chat", "concat"])
@pytest.mark.parametrize("sees", [True, False])
def test_a_runspec_sets_what_a_model_that_sees_needs(
    sees: bool, context: str, compose: Any, tmp_path: Any
) -> None:
    about = {"tie_word_embeddings": True, **({"vision_config": {}} if sees else {})}
    (tmp_path / "config.json").write_text(json.dumps(about))
    policy = {"model": str(tmp_path), "prompt_tokens": 96, "response_tokens": 200}
    spec = RunSpec.from_mapping(
        {
            "name": "test",
            "env": {"id": "game:GuessTheNumber-v0-easy"},
            "policy": {**policy, "turn_tokens": 16, "turns": 4, "context": context},
            "algorithm": {"advantage": "rebn"},
            "optimizer": {"lr": 1e-3},
            "training": {"iterations": 2, "tasks": 4},
        }
    )
    launch = adapter.compile(spec, run_dir=tmp_path, hardware=CPU)
    config = compose(launch.argv[3:])
    rollout, model = config.actor_rollout_ref.rollout, config.actor_rollout_ref.model
    needed = sees and context == "chat"
    assert rollout.load_format == ("auto" if needed else "dummy")
    assert OmegaConf.select(config, UNMASKED) == (WORKER if needed else None)
    assert model.use_remove_padding is not sees
    assert model.use_fused_kernels is not sees
    assert launch.images
    assert launch.passes is not None
    assert launch.passes.layout == ("dynamic" if sees else "packed")

"""The tiny model that sees: made once, Qwen2.5-VL's layout, one conversation in two layouts."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import pytest

for package in ("torch", "transformers", "PIL"):
    pytest.importorskip(package, reason="the tiny model that sees needs it")

from PIL import Image  # noqa: E402
from sight import Sight, picture, png  # noqa: E402

import gem  # noqa: E402
from gem_bench.models import is_made, resolve_model  # noqa: E402
from gem_cpu import tiny_vl  # noqa: E402
from gem_cpu.openrlhf_plugin import startup_folder  # noqa: E402
from gem_cpu.tiny_vl import Recipe, ensure  # noqa: E402

ROOT = Path(__file__).parents[2]
ROUNDING = 1e-5
"""Sums of other lengths are rounded otherwise."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure(cache=tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def sight(folder: Path) -> Sight:
    return Sight.of(folder)


def shown(text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": text}]}


def test_it_is_made_once_and_the_same_again(folder: Path, tmp_path: Path) -> None:
    again = ensure(cache=tmp_path)
    assert again.name == folder.name
    names = sorted(path.name for path in folder.iterdir())
    assert names == sorted(path.name for path in again.iterdir())
    for name in names:
        assert (folder / name).read_bytes() == (again / name).read_bytes(), name
    before = (again / "model.safetensors").stat().st_mtime_ns
    assert ensure(cache=tmp_path) == again
    assert (again / "model.safetensors").stat().st_mtime_ns == before
    assert ensure(Recipe(seed=1), cache=tmp_path) != again


def test_policy_model_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEM_CACHE", str(tmp_path))
    assert is_made("tiny-vl")
    assert resolve_model("tiny-vl") == str(ensure())


def test_it_is_a_qwen2_5_vl_of_a_third_of_a_million_weights(folder: Path, sight: Sight) -> None:
    config = json.loads((folder / "config.json").read_text())
    text = config["text_config"]
    assert config["model_type"] == "qwen2_5_vl"
    assert text["hidden_size"] // text["num_attention_heads"] == 32
    assert sight.model.num_parameters() == 356_288
    assert len(sight.tokenizer) == text["vocab_size"] == 512
    assert config["image_token_id"] == sight.pad


def test_every_id_has_a_text(sight: Sight) -> None:
    words = sight.tokenizer.convert_ids_to_tokens(range(512))
    assert not [word for word in words if word is None or "reserved" in word]


def test_its_special_tokens_are_those_of_qwen2_5_vl(folder: Path, sight: Sight) -> None:
    words = (
        "endoftext im_start im_end object_ref_start object_ref_end box_start box_end quad_start "
        "quad_end vision_start vision_end vision_pad image_pad video_pad"
    )
    special = [f"<|{word}|>" for word in words.split()]
    decoder = sight.tokenizer.added_tokens_decoder
    assert [str(token) for token in decoder.values() if token.special] == special
    assert set(sight.tokenizer.all_special_tokens) == set(special)
    # transformers 4 cannot read a list of this name.
    assert "extra_special_tokens" not in json.loads((folder / "tokenizer_config.json").read_text())


def test_its_chat_template_has_the_layout_of_qwen2_5_vl(sight: Sight) -> None:
    reply = {"role": "assistant", "content": "\\boxed{left}"}
    text = sight.tokenizer.apply_chat_template(
        [shown("Move."), reply, {"role": "user", "content": "Again."}],
        add_generation_prompt=True,
        tokenize=False,
    )
    assert text == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Move.<|im_end|>\n"
        "<|im_start|>assistant\n\\boxed{left}<|im_end|>\n"
        "<|im_start|>user\nAgain.<|im_end|>\n<|im_start|>assistant\n"
    )
    system = {"role": "system", "content": "Play."}
    said = sight.tokenizer.apply_chat_template([system, shown("Move.")], tokenize=False)
    assert said.startswith("<|im_start|>system\nPlay.<|im_end|>\n<|im_start|>user\n")


def measured() -> list[tuple[str, str, int]]:
    """The games, pixels and tokens that docs/benchmarks.md states."""
    page = (ROOT / "docs/benchmarks.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+) \| [\d.]+ \| [\d.]+ \| (\d+x\d+) \| (\d+) \|", page, re.MULTILINE)
    return [(game, pixels, int(tokens)) for game, pixels, tokens in rows]


@pytest.mark.parametrize(("game", "pixels", "tokens"), measured())
def test_a_board_has_the_stated_tokens(game: str, pixels: str, tokens: int, sight: Sight) -> None:
    kind = "multi" if game in ("ConnectFour", "TicTacToe") else "game"
    observation, _ = gem.make(f"{kind}:{game}-v0", modality="image").reset(seed=1)
    [part] = [part for part in observation if part["type"] == "image"]
    board = Image.open(io.BytesIO(part["image"]))
    assert "{}x{}".format(*board.size) == pixels
    assert sight.tokens(board) == tokens == board.width * board.height // 28**2


def test_nine_boards_are_stated() -> None:
    assert len(measured()) == 9


TASKS = ("Angle", "Bars", "Clock", "Compare", "Count", "Grid", "Path", "Rotation")


@pytest.mark.parametrize("task", TASKS)
def test_no_picture_of_a_visual_task_is_rescaled(task: str, sight: Sight) -> None:
    observation, _ = gem.make(f"image:{task}-v0-hard").reset(seed=0)
    [part] = [part for part in observation if part["type"] == "image"]
    image = Image.open(io.BytesIO(part["image"]))
    assert sight.tokens(image) == image.width * image.height // 28**2 > 0


@pytest.mark.parametrize("layout", ["turn by turn", "padded"])
def test_a_conversation_has_the_same_logprobs_in_every_layout(layout: str, sight: Sight) -> None:
    import torch

    images = [picture(84, 84, 1), picture(112, 56, 2)]
    first = sight.prompt([shown("Which side is the circle on?")])
    replies = [[*sight.tokenizer.encode("\\boxed{left}"), 2], [*sight.tokenizer.encode("up"), 2]]
    # What the template puts between a reply and the next: the end of a message was sampled.
    whole = sight.prompt([shown("Move."), {"role": "assistant", "content": ""}, shown("Again.")])
    bridge = whole[len(sight.prompt([shown("Move.")])) + 1 :]
    second = [*first, *replies[0], *bridge]

    row = sight.expanded([*second, *replies[1]], images)
    with torch.no_grad():
        logits = sight.model(**sight.inputs(row, images)).logits[0].log_softmax(-1)
    start = len(sight.expanded(first, images[:1]))
    end = len(sight.expanded(second, images))
    expected = [
        logits[at + i - 1, token].item()
        for at, reply in zip((start, end), replies, strict=True)
        for i, token in enumerate(reply)
    ]

    if layout == "turn by turn":
        found = [
            *sight.logprobs(first, replies[0], images[:1]),
            *sight.logprobs(second, replies[1], images),
        ]
    else:
        inputs = sight.inputs(row, images)
        wider = {
            name: torch.nn.functional.pad(inputs[name], (5, 3))
            for name in ("input_ids", "attention_mask", "mm_token_type_ids")
        }
        with torch.no_grad():
            padded = sight.model(**inputs | wider).logits[0].log_softmax(-1)
        found = [
            padded[5 + at + i - 1, token].item()
            for at, reply in zip((start, end), replies, strict=True)
            for i, token in enumerate(reply)
        ]
    assert found == pytest.approx(expected, abs=ROUNDING)


@pytest.mark.parametrize("place", [(0, 0), (83, 83), (40, 20)])
def test_one_changed_pixel_changes_the_logprobs(place: tuple[int, int], sight: Sight) -> None:
    prompt, reply = sight.prompt([shown("Move.")]), [*sight.tokenizer.encode("left"), 2]
    before, after = picture(84, 84, 1), picture(84, 84, 1)
    old: Any = before.getpixel(place)
    after.putpixel(place, tuple(255 - value for value in old))
    change = [
        abs(a - b)
        for a, b in zip(
            sight.logprobs(prompt, reply, [before]),
            sight.logprobs(prompt, reply, [after]),
            strict=True,
        )
    ]
    assert max(change) > 10 * ROUNDING


def test_where_a_picture_stands_changes_the_logprobs(sight: Sight) -> None:
    before = [{"type": "image"}, {"type": "text", "text": "Move."}]
    reply, image = [*sight.tokenizer.encode("left"), 2], [picture(84, 84, 1)]
    found = [
        sight.logprobs(sight.prompt([{"role": "user", "content": content}]), reply, image)
        for content in (before, before[::-1])
    ]
    assert max(abs(a - b) for a, b in zip(*found, strict=True)) > 0.01


def test_without_token_types_the_positions_are_those_of_a_text(sight: Sight) -> None:
    import torch

    image = [picture(84, 84, 1)]
    inputs = sight.inputs(sight.expanded(sight.prompt([shown("Move.")]), image), image)
    untyped = {name: value for name, value in inputs.items() if name != "mm_token_type_ids"}
    with torch.no_grad():
        found, silent = sight.model(**inputs).logits, sight.model(**untyped).logits
    assert (found - silent).abs().max() > 0.1


COLOURS = {"red": (200, 20, 20), "green": (20, 180, 20), "blue": (20, 20, 200)}


def square(colour: str, place: int, blind: bool) -> Image.Image:
    """A white picture with a square of a colour somewhere; a blind one is white."""
    image = Image.new("RGB", (84, 84), "white")
    if not blind:
        image.paste(COLOURS[colour], (place, 56 - place, place + 28, 84 - place))
    return image


@pytest.mark.nightly
@pytest.mark.parametrize("blind", [False, True], ids=["picture", "control"])
def test_it_can_learn_a_colour_which_only_the_picture_tells(blind: bool, folder: Path) -> None:
    import torch

    torch.manual_seed(0)
    rng, sight = Random(0), Sight.of(folder)
    prompt = sight.prompt([shown("What colour is the square?")])
    words = [sight.tokenizer.encode(each)[0] for each in COLOURS]

    def logits(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The logits of the first token of replies `[n, vocabulary]`, and the right ones."""
        drawn = [rng.randrange(len(COLOURS)) for _ in range(n)]
        images = [square(list(COLOURS)[i], rng.randrange(57), blind) for i in drawn]
        row = sight.inputs(sight.expanded(prompt, images[:1]), images)
        same = ("input_ids", "attention_mask", "mm_token_type_ids")
        batch = row | {name: row[name].expand(n, -1) for name in same}
        return sight.model(**batch).logits[:, -1], torch.tensor([words[i] for i in drawn])

    optimizer = torch.optim.AdamW(sight.model.parameters(), lr=4e-3)
    for step in range(120):
        optimizer.param_groups[0]["lr"] = 4e-3 * (1 - step / 120)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(*logits(16)).backward()
        torch.nn.utils.clip_grad_norm_(sight.model.parameters(), 1.0)
        optimizer.step()
    with torch.no_grad():
        guesses, right = logits(96)
    share = (guesses.argmax(-1) == right).float().mean().item()
    assert share < 0.6 if blind else share > 0.95


AUTO = """
import base64, io, json, sys
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

folder, *pictures = json.load(sys.stdin)
images = [Image.open(io.BytesIO(base64.b64decode(each))) for each in pictures]
processor = AutoProcessor.from_pretrained(folder)
content = [{"type": "image"}, {"type": "text", "text": "Move."}] * len(images)
text = processor.apply_chat_template(
    [{"role": "user", "content": content}], add_generation_prompt=True
)
inputs = processor(text=[text], images=images, return_tensors="pt")
logits = AutoModelForImageTextToText.from_pretrained(folder)(**inputs).logits
print(json.dumps({
    "kind": type(processor.image_processor).__name__,
    "ids": inputs["input_ids"][0].tolist(),
    "types": inputs["mm_token_type_ids"][0].tolist(),
    "pixels": inputs["pixel_values"].tolist(),
    "logits": logits[0, -1].tolist(),
}))
"""


def in_a_process(code: str, asked: Any, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(startup_folder()), os.environ.get("PYTHONPATH", "")])
    known = {k: v for k, v in os.environ.items() if not k.startswith("GEM_CPU")}
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**known, "PYTHONPATH": path, **environment},
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


needs_torchvision = pytest.mark.skipif(
    find_spec("torchvision") is None, reason="needs torchvision: make test-vision"
)


@needs_torchvision
def test_transformers_load_it_by_the_auto_classes(folder: Path, sight: Sight) -> None:
    import base64

    import torch

    images = [picture(84, 84, 1), picture(112, 56, 2)]
    sent = [base64.b64encode(png(image)).decode() for image in images]
    done = in_a_process(AUTO, [str(folder), *sent], GEM_CPU="1")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["kind"] == "Qwen2VLImageProcessor"
    content = [{"type": "image"}, {"type": "text", "text": "Move."}] * 2
    ids = sight.expanded(sight.prompt([{"role": "user", "content": content}]), images)
    assert said["ids"] == ids and ids.count(sight.pad) == 9 + 8
    inputs = sight.inputs(ids, images)
    assert said["types"] == inputs["mm_token_type_ids"][0].tolist()
    torch.testing.assert_close(torch.tensor(said["pixels"]), inputs["pixel_values"])
    with torch.no_grad():
        logits = sight.model(**inputs).logits[0, -1]
    torch.testing.assert_close(torch.tensor(said["logits"]), logits, atol=ROUNDING, rtol=0)


@needs_torchvision
def test_the_stand_in_acts_when_asked_to_and_says_so_once() -> None:
    code = "import torchvision; print(torchvision.extension._has_ops())"
    bare = in_a_process(code, None)
    acting = in_a_process(code, None, GEM_CPU="1")
    assert acting.returncode == 0, acting.stderr
    if bare.returncode == 0:  # it fits this PyTorch
        assert acting.stdout == "True\n" and "torchvision" not in acting.stderr
        return
    assert "torchvision::nms does not exist" in bare.stderr
    assert acting.stdout == "False\n"
    [line] = acting.stderr.splitlines()
    assert line.startswith("GEM_CPU=1: torchvision runs without its compiled part. Not tested: ")


def test_the_stand_in_imports_nothing_where_nobody_asks_for_torchvision() -> None:
    done = in_a_process("import sys; print('torch' in sys.modules)", None, GEM_CPU="1")
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_its_command_copies_it(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(tiny_vl, "ensure", lambda: folder)
    assert tiny_vl.main(["--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path)
    assert (tmp_path / "preprocessor_config.json").exists()

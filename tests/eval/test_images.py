"""`gem eval` on environments that show images: by a server, and by a model in this process."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chat_server import Answer, Stub, said

pytest.importorskip("gem_vision", reason="needs the extra images")

import gem
from gem.__main__ import guarded
from gem.errors import ConfigurationError, ContractError
from gem.tasks import Task
from gem_eval import native
from gem_eval.cli import main
from gem_eval.contents import content_of, text_of
from gem_train.record import EPISODES, read_episodes

MAZE = "gem:game:Maze-v0?n=2&seed=0&modality=image&size=2&max_turns=3"
Run = Callable[..., int]


@pytest.fixture
def evaluate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> int:
        return guarded(lambda: main([*map(str, words), "--out", "run"]))

    return run


def test_a_server_is_sent_every_picture_of_the_conversation(
    server: Stub, evaluate: Run, tmp_path: Path
) -> None:
    server.answer = lambda number, body: said("\\boxed{up}")
    assert evaluate(MAZE, "--model", "openai:m", "--url", server.url) == 0
    asked = server.requests
    assert {len(body["messages"]) for body in asked} == {1, 3, 5}
    records = list(read_episodes(tmp_path / "run" / EPISODES))
    assert len(records) == 2 and all(each.trajectory.valid for each in records)
    for body in asked:
        users = [m for m in body["messages"] if m["role"] == "user"]
        for message in users:
            kinds = [part["type"] for part in message["content"]]
            assert kinds.count("image_url") == 1 and kinds.count("text") >= 1
    # The first picture is that of the environment, byte for byte.
    shown = set()
    for body in asked:
        [first] = [p for p in body["messages"][0]["content"] if p["type"] == "image_url"]
        head, _, data = first["image_url"]["url"].partition(",")
        assert head == "data:image/png;base64"
        shown.add(base64.b64decode(data))
    params = records[0].trajectory.task.params
    env = gem.make("game:Maze-v0", **params)
    pictures = set()
    for seed in range(2):
        observation, _ = env.reset(seed=seed)
        pictures |= {part["image"] for part in observation if part["type"] == "image"}
    assert shown == pictures


def test_the_oracle_plays_pictures(evaluate: Run) -> None:
    assert evaluate("gem:image:Clock-v0?n=3&seed=0", "--model", "oracle") == 0


def test_a_model_in_this_process_sees_them(evaluate: Run, tmp_path: Path) -> None:
    for package in ("torch", "transformers", "gem_cpu"):
        pytest.importorskip(package, reason="needs the development environment: make env-dev")
    assert evaluate(MAZE, "--model", "hf:tiny-vl", "--max-tokens", 4) == 0
    records = list(read_episodes(tmp_path / "run" / EPISODES))
    assert [len(each.trajectory.turns[0].images) for each in records] == [1, 1]
    assert all(turn.logprobs for each in records for turn in each.trajectory.turns)


def test_a_server_that_is_asked_by_tokens_is_sent_one_placeholder_for_each_picture(
    server: Stub, evaluate: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    transformers = pytest.importorskip("transformers", reason="make env-dev")
    tiny_vl = pytest.importorskip("gem_cpu.tiny_vl", reason="make env-dev")
    folder = str(tiny_vl.ensure())
    token = transformers.AutoConfig.from_pretrained(folder).image_token_id
    read = {"more": 0}

    def tokens(part: dict[str, Any]) -> int:
        """Tokens of a picture: one for 28x28 pixels; a PNG file has its sides in bytes 16 to 24."""
        file = base64.b64decode(part["url"].partition(",")[2])
        width, height = struct.unpack(">II", file[16:24])
        return width * height // 28**2

    def answer(number: int, body: dict[str, Any]) -> Answer:
        shown = len(body["content_parts"])
        assert body["token_ids"].count(token) == shown
        n = len(body["token_ids"]) - shown + sum(map(tokens, body["content_parts"])) + read["more"]
        usage = {"prompt_tokens": n, "completion_tokens": 2}
        sampled = {"token_ids": [40, 41], "logprobs": {"content": [{"logprob": -1.0}] * 2}}
        return Answer(
            json.dumps(
                {"choices": [{"index": 0, "finish_reason": "length", **sampled}], "usage": usage}
            )
        )

    server.serves("vllm", 1024)
    server.answer = answer
    words = (MAZE, "--model", "openai:m", "--url", server.url, "--tokenizer", folder)
    assert evaluate(*words, "--max-tokens", 2, "--system", "Look.") == 0
    records = list(read_episodes(tmp_path / "run" / EPISODES))
    assert len(records) == 2 and all(each.trajectory.valid for each in records)
    for each in records:
        for turn in each.trajectory.turns:
            assert (turn.response_ids, turn.logprobs) == ([40, 41], [-1.0, -1.0])
            assert len(turn.images) == 1
    sent = {part["url"] for body in server.requests for part in body["content_parts"]}
    assert all(url.startswith("data:image/png;base64,") for url in sent)

    read["more"] = 8
    (tmp_path / "run").rename(tmp_path / "first")
    assert evaluate(*words, "--max-tokens", 2) != 0
    assert "used another prompt" in capsys.readouterr().err


def test_a_picture_after_a_call_is_a_message_of_its_own() -> None:
    calls = [{"id": "a", "name": "see", "arguments": "{}"}]
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    messages = native.before([{"type": "text", "text": "done"}, image], {"tool_calls": calls})
    assert messages == [
        {"role": "tool", "tool_call_id": "a", "content": "done"},
        {"role": "user", "content": [image]},
    ]


@pytest.mark.parametrize("image", [b"no image", 3, "gone.png"])
def test_an_image_that_cannot_be_sent_is_told(image: Any) -> None:
    with pytest.raises(ContractError, match="cannot be sent|is a path, bytes or a PIL image"):
        content_of([{"type": "image", "image": image}])


def test_images_of_pillow_and_files_are_sent_as_what_they_are(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    made = pillow.new("RGB", (4, 4), "red")
    file = tmp_path / "picture"
    made.save(file, "JPEG")
    kinds = []
    for image in (made, file, str(file), file.read_bytes()):
        [part] = content_of([{"type": "image", "image": image}])
        kinds.append(part["image_url"]["url"].partition(";")[0])  # type: ignore[index]
    assert kinds == ["data:image/png", *["data:image/jpeg"] * 3]
    with pytest.raises(ConfigurationError, match="x shows images; only text"):
        text_of([{"type": "image", "image": made}], Task("x", 0))

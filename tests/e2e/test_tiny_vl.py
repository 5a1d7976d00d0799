"""Real vLLM serves the tiny model that sees, token ids in and out, and what it does with mistakes.

The server's log-probabilities are compared with those that transformers compute here.
"""

from __future__ import annotations

import base64
import json
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("torchvision") is None:
    pytest.skip("needs torchvision: make e2e-vision", allow_module_level=True)
for package in ("torch", "transformers", "PIL"):
    pytest.importorskip(package, reason="needs the development environment: make env-dev")

from PIL import Image  # noqa: E402
from sight import Sight, picture, png  # noqa: E402

from gem_cpu import tiny_vl  # noqa: E402
from gem_cpu.cloning import EOS  # noqa: E402
from gem_cpu.servers import model_server  # noqa: E402
from gem_eval.cli import main  # noqa: E402
from gem_train.record import EPISODES, read_episodes  # noqa: E402

ROOT = Path(__file__).parents[2]
CLOSE = 1e-3
TOKENS = 6

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def folder() -> Path:
    return tiny_vl.ensure()


@pytest.fixture(scope="module")
def sight(folder: Path) -> Sight:
    return Sight.of(folder)


@dataclass
class Reply:
    """What the server said."""

    prompt_tokens: int
    ids: list[int]
    logprobs: list[float]


@dataclass
class Server:
    """vLLM's server, asked in three ways."""

    url: str

    def post(self, path: str, asked: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            self.url.removesuffix("/v1") + path,
            json.dumps({"model": "m", **asked}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=300) as answer:
            assert answer.status == 200
            return json.load(answer)

    def generate(self, ids: Sequence[int], images: Sequence[Image.Image]) -> Reply:
        said = self.post(
            "/inference/v1/generate",
            {
                "token_ids": list(ids),
                "content_parts": [{"type": "image_url", "url": uri(image)} for image in images],
                "sampling_params": {
                    "max_tokens": TOKENS,
                    "temperature": 1.0,
                    "seed": 3,
                    "logprobs": 0,
                    "ignore_eos": True,
                },
            },
        )
        [choice] = said["choices"]
        logprobs = [each["logprob"] for each in choice["logprobs"]["content"]]
        return Reply(said["usage"]["prompt_tokens"], choice["token_ids"], logprobs)

    def complete(self, ids: Sequence[int], images: Sequence[Image.Image]) -> Reply:
        said = self.post(
            "/v1/completions",
            {
                "prompt": list(ids),
                "multi_modal_data": {"image": [uri(image) for image in images]},
                "max_tokens": TOKENS,
                "seed": 3,
                "logprobs": 0,
                "return_token_ids": True,
                "ignore_eos": True,
            },
        )
        [choice] = said["choices"]
        return Reply(
            said["usage"]["prompt_tokens"],
            choice["token_ids"],
            choice["logprobs"]["token_logprobs"],
        )


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    python = ROOT / ".venvs" / "verl" / "bin" / "python"
    assert python.exists(), "make env-verl"
    with model_server("vllm", python, str(folder), context_tokens=1024) as url:
        yield Server(url)


def uri(image: Image.Image) -> str:
    return f"data:image/png;base64,{base64.b64encode(png(image)).decode()}"


def close(logprobs: list[float], reply: Reply) -> bool:
    """Whether log-probabilities are those of the reply, with room for rounding."""
    return max(abs(a - b) for a, b in zip(logprobs, reply.logprobs, strict=True)) < 10 * CLOSE


IMAGES = [picture(84, 84, 1), picture(112, 56, 2)]
FIRST = [
    {
        "role": "user",
        "content": [{"type": "image"}, {"type": "text", "text": "Which side is the circle on?"}],
    }
]
NEXT = [{"type": "text", "text": "That is wrong."}, {"type": "image"}]


def bridge(sight: Sight) -> list[int]:
    """What the template puts between an ended reply and the next."""
    closed = [*FIRST, {"role": "assistant", "content": ""}, {"role": "user", "content": NEXT}]
    return sight.prompt(closed)[len(sight.prompt(FIRST)) + 1 :]


@pytest.fixture(scope="module")
def turns(server: Server, sight: Sight) -> list[tuple[list[int], Reply]]:
    """The collapsed prompts and the replies of a conversation of two turns, a picture in each."""
    prompt = sight.prompt(FIRST)
    first = server.generate(prompt, IMAGES[:1])
    second = [*prompt, *first.ids, EOS, *bridge(sight)]
    return [(prompt, first), (second, server.generate(second, IMAGES))]


def test_a_prompt_has_as_many_tokens_as_its_pictures_say(
    turns: list[tuple[list[int], Reply]], sight: Sight
) -> None:
    for n, (prompt, reply) in enumerate(turns, 1):
        assert prompt.count(sight.pad) == n
        assert reply.prompt_tokens == len(sight.expanded(prompt, IMAGES[:n]))
        assert reply.prompt_tokens == len(prompt) + (8 if n == 1 else 8 + 7)


def test_server_and_transformers_agree_on_what_was_sampled(
    turns: list[tuple[list[int], Reply]], sight: Sight
) -> None:
    for n, (prompt, reply) in enumerate(turns, 1):
        assert len(reply.ids) == TOKENS
        found = sight.logprobs(prompt, reply.ids, IMAGES[:n])
        print(max(abs(a - b) for a, b in zip(found, reply.logprobs, strict=True)))
        assert found == pytest.approx(reply.logprobs, abs=CLOSE)


def test_a_chat_request_has_the_same_tokens(
    server: Server, turns: list[tuple[list[int], Reply]], sight: Sight
) -> None:
    prompt, reply = turns[0]
    [message] = FIRST
    said = server.post(
        "/v1/chat/completions",
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "image_url", "image_url": {"url": uri(IMAGES[0])}},
                        message["content"][1],
                    ],
                }
            ],
            "max_tokens": TOKENS,
            "temperature": 1.0,
            "seed": 3,
            "return_token_ids": True,
            "ignore_eos": True,
        },
    )
    assert said["prompt_token_ids"] == sight.expanded(prompt, IMAGES[:1])
    assert said["choices"][0]["token_ids"] == reply.ids


def test_a_picture_is_not_dropped_or_taken_for_an_earlier_one(
    server: Server, turns: list[tuple[list[int], Reply]], sight: Sight
) -> None:
    prompt, reply = turns[0]
    other = picture(84, 84, 7)
    said = server.generate(prompt, [other])
    assert said.prompt_tokens == reply.prompt_tokens
    assert sight.logprobs(prompt, said.ids, [other]) == pytest.approx(said.logprobs, abs=CLOSE)
    assert not close(sight.logprobs(prompt, said.ids, IMAGES[:1]), said)


def test_expanded_placeholders_are_expanded_again_which_only_the_prompt_s_length_tells(
    server: Server, turns: list[tuple[list[int], Reply]], sight: Sight
) -> None:
    prompt, _ = turns[0]
    expanded = sight.expanded(prompt, IMAGES[:1])
    doubled = server.generate(expanded, IMAGES[:1])
    assert doubled.prompt_tokens == len(expanded) + 8 != len(expanded)
    assert not close(sight.logprobs(prompt, doubled.ids, IMAGES[:1]), doubled)


def test_completions_ignore_pictures_which_only_the_prompt_s_length_tells(
    server: Server, turns: list[tuple[list[int], Reply]], sight: Sight
) -> None:
    prompt, reply = turns[0]
    found = [server.complete(prompt, [image]) for image in (IMAGES[0], picture(84, 84, 7))]
    for each in found:
        assert each.prompt_tokens == len(prompt) < reply.prompt_tokens
    assert found[0] == found[1]
    assert not close(sight.logprobs(prompt, found[0].ids, IMAGES[:1]), found[0])


def test_gem_eval_asks_by_tokens_what_the_model_answers_in_this_process(
    server: Server, folder: Path, tmp_path: Path
) -> None:
    maze = "gem:game:Maze-v0?n=2&seed=0&modality=image&size=2&max_turns=3&format_error_ends=false"
    asked = [maze, "--temperature", "0", "--max-tokens", "6"]
    episodes = []
    for model in (["openai:m", "--url", server.url, "--tokenizer", str(folder)], [f"hf:{folder}"]):
        out = tmp_path / model[0][:2]
        assert main([*asked, "--model", *model, "--out", str(out)]) == 0
        played = [each.trajectory for each in read_episodes(out / EPISODES)]
        episodes.append(sorted(played, key=lambda each: each.task.seed))
    for served, local in zip(*episodes, strict=True):
        assert len(served.turns) == len(local.turns) == 3
        [ours], [theirs] = served.training_rows(), local.training_rows()
        assert (ours.ids, ours.images) == (theirs.ids, theirs.images) and len(ours.images) == 3
        for one, other in zip(served.turns, local.turns, strict=True):
            assert one.logprobs == pytest.approx(other.logprobs, abs=CLOSE)

"""Whatever an evaluation's record holds or a server answers: a result, or a named error."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from chat_server import Answer, Stub, completed, generated, said
from damaged import damaged, of_values

import gem_eval.server
from gem.__main__ import guarded
from gem.errors import ConfigurationError, RecordError
from gem.rollout.play import Request
from gem.schema import check
from gem.trajectory import Image
from gem_eval.cli import main
from gem_eval.client import _parsed
from gem_eval.completions import GenerateSampler, VllmSampler
from gem_eval.server import Server, hidden
from gem_train.record import EPISODES, METRICS, RUN, CallEntry, read_episodes, read_run

GUESS = "game:GuessTheNumber-v0-easy"
FILES = (RUN, METRICS, EPISODES)
NO_REPLY = (ValueError, TypeError, KeyError, IndexError, AttributeError, ConfigurationError)
"""What `Server.ask` takes for an answer without a reply, or ends the evaluation with."""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("original") / "run"
    words = [GUESS, "--episodes", "3", "--model", "random", "--out", str(folder)]
    assert guarded(lambda: main(words)) == 0
    return folder


@pytest.fixture
def record(original: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "record"
    folder.mkdir()
    for name in FILES:
        (folder / name).write_bytes((original / name).read_bytes())
    return folder


def mutations(record: Path) -> Iterator[tuple[str, str]]:
    for name in FILES:
        path = record / name
        before = path.read_bytes()
        for mutation, content in [*damaged(path, most=1)]:
            path.write_bytes(content)
            yield name, mutation
        path.write_bytes(before)


def check_readers(
    record: Path, original: Path, out: Path, capsys: pytest.CaptureFixture[str], sample: float
) -> None:
    readers: list[list[Any]] = [
        ["report", record],
        ["report", record, "--by", "turns"],
        ["report", record, "--out", out / "e.html"],
        ["report", record, "--format", "junit"],
        ["compare", original, record],
        ["gate", record, "--min", "0.1", "--against", original],
        ["export", record, "--out", out / "e.jsonl"],
    ]
    rng = random.Random(0)
    for name, mutation in mutations(record):
        if rng.random() > sample:
            continue
        regraded = out / f"regraded-{rng.random()}"
        for words in [*readers, ["regrade", record, "--out", regraded]]:
            (out / "e.jsonl").unlink(missing_ok=True)
            try:
                status = guarded(lambda words=words: main([*map(str, words)]))
            except Exception as error:
                raise AssertionError(f"{words[0]}: {name}, {mutation}: {error!r}") from error
            assert status in (0, 1, 2, 3), (words[0], name, mutation)
            assert "Traceback" not in capsys.readouterr().err, (words[0], name, mutation)


def test_commands_say_what_is_damaged_or_show_the_rest(
    record: Path, original: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_readers(record, original, tmp_path, capsys, sample=0.015)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_commands_say_of_every_damage_what_it_is(
    record: Path, original: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_readers(record, original, tmp_path, capsys, sample=1)


def test_an_episode_that_occurs_twice_is_refused_by_every_reader(
    record: Path, original: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = record / EPISODES
    first, *rest = path.read_text().splitlines(keepends=True)
    path.write_text("".join([first, *rest[:1], first]))  # as many as the metrics say
    with pytest.raises(RecordError, match=r"line 3: sample 0 of seed \d .* already in line 1"):
        list(read_episodes(path))
    for words in (
        ["report", record],
        ["compare", original, record],
        ["gate", record, "--min", "0"],
        ["export", record, "--out", tmp_path / "e.jsonl"],
        ["regrade", record, "--out", tmp_path / "regraded"],
        [GUESS, "--model", "random", "--episodes", 3, "--resume", "--out", record],
    ):
        assert guarded(lambda words=words: main([*map(str, words)])) == 2, words
        assert f"{EPISODES}, line 3" in capsys.readouterr().err, words


# Servers


CALL = {"id": "a", "function": {"name": "f", "arguments": "{}"}}


def seen() -> Answer:
    """vLLM's answer to the prompt 1, 2 with an image."""
    sampled = {"token_ids": [3, 9], "logprobs": {"content": [{"logprob": -0.5}] * 2}}
    usage = {"prompt_tokens": 2, "completion_tokens": 2}
    return Answer(json.dumps({"choices": [{**sampled, "finish_reason": "stop"}], "usage": usage}))


def reader(kind: Any, images: int) -> Callable[[Any], dict[str, Any]]:
    """Return what makes the note of an answer to the prompt 1, 2; None: of a chat's."""
    if kind is None:
        return lambda data: _parsed(True, data).note
    chat = SimpleNamespace(stop_ids=frozenset({9}))
    sampler = kind(Server("http://127.0.0.1:1/v1", "m"), chat, kind.SAMPLING, (0, 0), [])
    request = Request(0, [1, 2], [1, 2], True, 8, (Image("a", 1),) * images)
    return lambda data: dict(sampler._parsed(request, data)[1])


@pytest.mark.parametrize(
    ("answer", "read", "images"),
    [
        (said("5", tool_calls=[CALL]), None, 0),
        (completed([1, 2], [3, 9]), VllmSampler, 0),
        (seen(), VllmSampler, 1),
        (generated(2, [3, 9]), GenerateSampler, 0),
    ],
    ids=["chat", "vllm", "vllm with images", "sglang"],
)
def test_an_answer_of_any_shape_is_a_reply_that_can_be_recorded_or_none(
    answer: Answer, read: Any, images: int
) -> None:
    data, note_of = json.loads(answer.body), reader(read, images)
    assert note_of(data)
    if "choices" in data:
        data["choices"][0]["index"] = 0
        data["usage"] |= {"prompt_tokens_details": {"cached_tokens": 1}}
    replies = 0
    for name, changed in of_values(data):
        try:
            note = note_of(changed)
        except NO_REPLY:
            # The usage decides nothing but how many tokens images took.
            assert images or not name.startswith("usage")
            continue
        replies += 1
        check(note, CallEntry, name)
        assert all(isinstance(each, int) and each >= 0 for k, each in note.items() if "tokens" in k)
    assert replies > 20


def test_a_choice_is_the_one_with_the_index_0() -> None:
    data = json.loads(said("wrong").body)
    data["choices"][0]["index"] = 1
    with pytest.raises(ValueError, match="no choice has the index 0"):
        _parsed(False, data)
    right = json.loads(said("right").body)["choices"][0] | {"index": 0}
    data["choices"].append(right)
    assert _parsed(False, data).text == "right"


DEEP = "[" * 200_000
BAD = {
    "deep": DEEP,
    "closed": DEEP + "]" * 200_000,
    "digits": '{"choices": ' + "9" * 5000 + "}",
    "nan": '{"choices": NaN}',
    "surrogate": '{"choices": "\\ud800"}',
}


@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize("body", BAD.values(), ids=BAD)
def test_an_answer_that_the_parser_gives_up_on_is_a_failure_of_its_call(
    server: Stub, tmp_path: Path, body: str, status: int
) -> None:
    server.answer = lambda number, asked: Answer(body, status) if number == 1 else None
    words = [GUESS, "--model", "openai:m", "--url", server.url, "--episodes", "2"]
    words += ["--call-retries", "0", "--max-failed", "1", "--out", str(tmp_path / "run")]
    assert guarded(lambda: main(words)) == 0
    failed = [e.trajectory.failure for e in read_run(tmp_path / "run").episodes()]
    causes = [each.cause for each in failed if each is not None]
    assert causes == ["engine"]


@pytest.mark.parametrize("body", BAD.values(), ids=BAD)
def test_a_refusal_or_a_list_of_models_that_the_parser_gives_up_on_is_no_traceback(
    server: Stub, tmp_path: Path, body: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server.models = Answer(body)
    server.answer = lambda number, asked: Answer(body, 400)
    words = [GUESS, "--model", "openai:m", "--url", server.url, "--out", str(tmp_path / "run")]
    assert guarded(lambda: main(words)) == 2
    assert "answers 400" in capsys.readouterr().err


def test_an_answer_without_end_is_a_failure_of_its_call(
    server: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gem_eval.server, "MOST_ANSWER_BYTES", 1 << 20)
    bomb = gzip.compress(b" " * (8 << 20)).decode("latin-1")
    large = Answer(" " * (2 << 20))
    packed = Answer(bomb, headers={"Content_Encoding": "gzip"}, raw=True)
    server.answer = lambda number, asked: {1: large, 2: packed}.get(number)
    words = [GUESS, "--model", "openai:m", "--url", server.url, "--episodes", "4"]
    words += ["--call-retries", "0", "--max-failed", "1", "--concurrency", "1"]
    assert guarded(lambda: main([*words, "--out", str(tmp_path / "run")])) == 0
    failed = [e.trajectory.failure for e in read_run(tmp_path / "run").episodes()]
    messages = [each.message for each in failed if each is not None]
    assert len(messages) == 2
    assert all("an answer of more than 1 MiB" in each for each in messages)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_no_key_goes_through_a_proxy_to_this_machine(
    server: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    proxy = Stub()
    try:
        address = proxy.url.removesuffix("/v1")
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, address)
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("MINE", "sk-secret")
        url = server.url.replace("127.0.0.1", host)
        words = [GUESS, "--model", "openai:m", "--url", url, "--key-env", "MINE"]
        words += ["--episodes", "1", "--out", str(tmp_path / "run")]
        assert guarded(lambda: main(words)) == 0
        assert set(server.keys) == {"Bearer sk-secret"}
        assert proxy.keys == []
    finally:
        proxy.close()


KEY = "sk-proj-abcd1234efgh5678"


@pytest.mark.parametrize(
    "text",
    [
        f"Incorrect API key provided: {KEY}.",
        "Incorrect API key provided: sk-proj-********************5678. You can",
        "key sk-p...5678",
        "key sk-proj-abcd…",
        "key ************5678",
        'Basic "{basic}"',
        "Bearer {b64}",
        "{hex}",
    ],
)
def test_a_key_is_hidden_in_every_form_in_which_servers_repeat_it(text: str) -> None:
    import base64

    shown = hidden(
        KEY,
        text.format(
            basic=base64.b64encode(f"user:{KEY}".encode()).decode(),
            b64=base64.b64encode(KEY.encode()).decode(),
            hex=KEY.encode().hex(),
        )
        if "{" in text
        else text,
    )
    assert "<key>" in shown
    for part in ("sk-proj", "sk-p", "5678", KEY.encode().hex()[8:-8]):
        assert part not in shown
    for offset in range(3):
        coded = base64.b64encode(b"x" * offset + KEY.encode()).decode()
        assert coded[8:-8] not in shown


@pytest.mark.parametrize(
    "text", ["see *all* models ...", "retry in 5 s...", "model m-**-x", "a list: ****", "xxxx"]
)
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert hidden(KEY, text) == text

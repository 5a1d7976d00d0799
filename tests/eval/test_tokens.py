"""Models that are asked by tokens: what is sent, recorded and refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chat_server import Answer, Stub, completed, generated, refused, said

from gem.__main__ import guarded
from gem.rollout import Budget, ChatFormat, Request, Sample, play
from gem.tasks import Task
from gem.trajectory import Trajectory
from gem_eval.cli import main
from gem_train.record import EPISODES, read_episodes, read_run

transformers = pytest.importorskip("transformers", reason="of the extra local")
tiny_model = pytest.importorskip("gem_cpu.tiny_model", reason="its tokenizer is used")

GUESS = "game:GuessTheNumber-v0-easy"
CONTEXT = 1000
Run = Callable[..., int]


@pytest.fixture(scope="module")
def tokenizer() -> str:
    return str(tiny_model.ensure())


@pytest.fixture(scope="module")
def chat(tokenizer: str) -> ChatFormat:
    return ChatFormat(transformers.AutoTokenizer.from_pretrained(tokenizer))


@pytest.fixture
def server(server: Stub, chat: ChatFormat) -> Stub:
    server.serves("vllm", CONTEXT)

    def answer(number: int, body: dict[str, Any]) -> Answer | None:
        if "prompt" in body:
            return completed(body["prompt"], guess(chat, body["prompt"]))
        if "input_ids" in body:
            return generated(len(body["input_ids"]), guess(chat, body["input_ids"]))
        return None

    server.answer = answer
    return server


@pytest.fixture
def evaluate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Stub, tokenizer: str) -> Run:
    """Run `gem eval` on six tasks by tokens, in a folder `run`; return its exit status."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)

    def run(*words: object, by: str | None = tokenizer) -> int:
        asked = [GUESS, "--episodes", 6, "--out", "run", "--model", "openai:m", "--url", server.url]
        asked += [] if by is None else ["--tokenizer", by]
        return guarded(lambda: main([*map(str, [*asked, *words])]))

    return run


def guess(chat: ChatFormat, prompt_ids: list[int]) -> list[int]:
    """A reply that depends on the prompt alone."""
    text = f"\\boxed{{{1 + sum(prompt_ids) % 10}}}"
    return [*chat.encode_text(text), min(chat.stop_ids)]


def recorded(folder: Path) -> list[Trajectory]:
    found = [record.trajectory for record in read_episodes(folder / EPISODES)]
    return sorted(found, key=lambda each: each.task.seed)


# What is played


@pytest.mark.parametrize("context", ["chat", "concat"])
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_an_episode_has_the_tokens_that_it_has_in_training(
    evaluate: Run, server: Stub, tmp_path: Path, chat: ChatFormat, engine: str, context: str
) -> None:
    server.serves(engine, CONTEXT)

    async def sampler(request: Request) -> Sample:
        ids = guess(chat, request.prompt_ids)
        return Sample(ids, [-0.5] * len(ids), "stop")

    async def trained(seed: int) -> Trajectory:
        budget = Budget(1024, CONTEXT, CONTEXT)
        return await play(Task(GUESS, seed), sampler, chat, budget=budget, context=context)

    assert evaluate("--context", context) == 0
    found = recorded(tmp_path / "run")
    for trajectory in found:
        trajectory.group = 0
        there = asyncio.run(trained(trajectory.task.seed))
        assert trajectory.training_rows() == there.training_rows()
        assert trajectory.to_dict() == there.to_dict()
    assert max(len(each.turns) for each in found) > 1
    paths = {"vllm": {"/v1/completions"}, "sglang": {"/generate"}}
    assert set(server.paths) == paths[engine]
    model = read_run(tmp_path / "run").meta["model"]
    assert (model["tier"], model["engine"]) == ("tokens", engine)
    assert model["logprobs"] == {"vllm": "raw", "sglang": "tempered"}[engine]


def test_vllm_is_sent_every_field_of_sampling_and_a_seed_for_every_turn(
    evaluate: Run, server: Stub, chat: ChatFormat
) -> None:
    assert evaluate("--temperature", 0.5, "--param", "min_p=0.1", "--samples", 2) == 0
    for body in server.requests:
        assert body.pop("prompt")
        assert body.pop("max_tokens") <= 1024
    seeds = [body.pop("seed") for body in server.requests]
    assert len(set(seeds)) == len(seeds)
    fields = {"temperature": 0.5, "top_p": 1.0, "top_k": 0, "min_p": 0.1, "logprobs": 0}
    fields |= {"repetition_penalty": 1.0, "model": "m", "n": 1, "return_token_ids": True}
    fields |= {"skip_special_tokens": False, "add_special_tokens": False}
    assert server.requests[0] == {**fields, "stop_token_ids": sorted(chat.stop_ids)}


def test_sglang_is_asked_for_whole_replies_with_log_probabilities(
    evaluate: Run, server: Stub, chat: ChatFormat
) -> None:
    server.serves("sglang", CONTEXT)
    assert evaluate("--temperature", 0) == 0
    body = server.requests[0]
    sampling = body["sampling_params"]
    assert body["return_logprob"] is True
    assert (sampling["temperature"], sampling["top_k"], sampling["no_stop_trim"]) == (0, -1, True)
    assert sampling["stop_token_ids"] == sorted(chat.stop_ids)


def test_a_seed_that_sglang_would_not_be_sent_is_refused(
    evaluate: Run, server: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    server.serves("sglang", CONTEXT)
    assert evaluate("--param", "seed=3") == 2
    assert "--param seed: SGLang's requests know no `seed`" in capsys.readouterr().err
    assert server.requests == []


def test_the_context_of_the_server_is_never_exceeded_and_ends_episodes(
    evaluate: Run, server: Stub, tmp_path: Path, chat: ChatFormat
) -> None:
    assert evaluate() == 0
    first = max(len(each.turns[0].context_ids) for each in recorded(tmp_path / "run"))
    server.requests.clear()
    assert evaluate("--context-tokens", first + 20, "--resume") == 2
    assert evaluate("--context-tokens", first + 20, "--out", "short") == 0
    lengths = [len(body["prompt"]) + body["max_tokens"] for body in server.requests]
    assert max(lengths) <= first + 20
    ends = {each.end for each in recorded(tmp_path / "short")}
    assert "token_budget" in ends
    assert all(each.valid for each in recorded(tmp_path / "short"))


def test_template_arguments_and_thinking_are_those_of_training(
    evaluate: Run, server: Stub, tmp_path: Path, chat: ChatFormat
) -> None:
    assert evaluate("--system", "Play.", "--template", "x=1", "--thinking", "text") == 0
    prompting = read_run(tmp_path / "run").meta["model"]["prompting"]
    told = {"context": "chat", "system_prompt": "Play.", "template_kwargs": {"x": 1}}
    assert prompting == {**told, "thinking": "text"}
    prompt = chat.tokenizer.decode(server.requests[0]["prompt"])
    assert "Play." in prompt.split("user", maxsplit=1)[0]


# What goes wrong


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (completed(None, [5]), "0.10.2"),
        (completed([1], None), "0.10.2"),
        (completed([1, 2, 3], [5]), "another prompt"),
        (refused(400, "Token id 99999 is out of vocabulary"), "--tokenizer"),
        (refused(400, "This model's maximum context length is 20"), "--context-tokens"),
        (refused(404, "no such model"), "404"),
    ],
    ids=["no prompt", "no reply", "echo", "vocabulary", "context", "404"],
)
def test_a_server_that_does_not_work_with_tokens_is_refused(
    evaluate: Run, server: Stub, capsys: pytest.CaptureFixture[str], answer: Answer, says: str
) -> None:
    server.answer = lambda number, body: answer
    assert evaluate("--concurrency", 1) == 2
    assert says in capsys.readouterr().err
    assert len(server.requests) == 1


def test_log_probabilities_that_are_missing_are_refused_unless_not_asked_for(
    evaluate: Run, server: Stub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.answer = lambda number, body: completed(body["prompt"], [5], logprobs=None)
    assert evaluate() == 2
    assert "--param logprobs=null" in capsys.readouterr().err
    assert evaluate("--param", "logprobs=null", "--out", "without") == 0
    assert all(
        turn.logprobs is None for each in recorded(tmp_path / "without") for turn in each.turns
    )


@pytest.mark.parametrize(
    "answer",
    [
        refused(500, "oops"),
        refused(429, "slow down"),
        Answer("{not json"),
        completed([1], [5], "abort"),
        completed([1], [5] * 2000),
        completed([1], [5], logprobs={"token_logprobs": []}),
        completed([1], [5], logprobs={"token_logprobs": [5.0]}),
        completed([1], [5], logprobs={"token_logprobs": [-1e999]}),
        completed([1], [5], logprobs={"token_logprobs": [None]}),
        completed([1], [5], logprobs={"token_logprobs": [float("nan")]}),
    ],
    ids=[
        *("500", "429", "no json", "aborted", "too many", "log-probs", "above 0", "infinite"),
        *("null", "nan"),
    ],
)
def test_what_passes_is_asked_again_and_what_stays_is_no_zero(
    evaluate: Run, server: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Answer
) -> None:
    monkeypatch.setattr("gem_eval.server._FIRST_PAUSE_S", 0.0)
    well = server.answer

    def ill(number: int, body: dict[str, Any]) -> Answer | None:
        data = json.loads(answer.body) if answer.body.startswith('{"choices') else None
        if data is None:
            return answer
        data["choices"][0]["prompt_token_ids"] = body["prompt"]
        return Answer(json.dumps(data))

    server.answer = lambda number, body: ill(number, body) if number == 1 else well(number, body)
    assert evaluate("--concurrency", 1) == 0
    first = next(read_episodes(tmp_path / "run" / EPISODES))
    assert first.notes["calls"][0]["retries"] == 1
    server.answer = ill
    assert evaluate("--call-retries", 1, "--out", "ill") == 1
    failures = {str(each.failure)[:6] for each in recorded(tmp_path / "ill")}
    assert failures == {"engine"}


def test_what_tokens_need_and_others_cannot_use_is_said(
    evaluate: Run, server: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, by, says in (
        (("--tier", "tokens"), None, "--tokenizer"),
        (("--tier", "text"), "tiny", "--tokenizer is of models that are asked by tokens"),
        (("--thinking", "drop"), None, "--thinking is of models that are asked by tokens"),
        (("--context-tokens", CONTEXT + 1), "tiny", f"has {CONTEXT}"),
        (("--param", "stop=x"), "tiny", "--param stop"),
        (("--context", "window:x"), "tiny", "window"),
        ((), "./nowhere", "--tokenizer: no folder"),
    ):
        assert evaluate(*words, by=by) == 2
        assert says in capsys.readouterr().err
    server.models = Answer(json.dumps({"data": [{"id": "m"}]}))
    assert evaluate() == 2
    assert "--context-tokens N" in capsys.readouterr().err
    assert server.requests == []


def test_another_tokenizer_does_not_continue_a_record(
    evaluate: Run, tmp_path: Path, tokenizer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate() == 0
    other = transformers.AutoTokenizer.from_pretrained(tokenizer)
    other.chat_template = other.chat_template + " "
    other.save_pretrained(tmp_path / "other")
    (tmp_path / "other" / "config.json").write_text("{}")
    assert evaluate("--resume", by=str(tmp_path / "other")) == 2
    assert "model.tokenizer_hash" in capsys.readouterr().err


# Messages in, tokens out


def test_vllm_is_asked_by_messages_and_says_the_tokens(
    evaluate: Run, server: Stub, tmp_path: Path
) -> None:
    lost = [100]  # what an earlier turn becomes in the prompts of later ones

    def answer(number: int, body: dict[str, Any]) -> Answer:
        turn = len(body["messages"]) // 2
        ids = {0: [1, 2], 1: [1, 2, 7, 9, 3], 2: [1, 2, *lost, 3, 7, 9, 4]}.get(turn, [turn])
        data = json.loads(said("\\boxed{11}").body)
        data["prompt_token_ids"], data["choices"][0]["token_ids"] = ids, [7, 9]
        return Answer(json.dumps(data))

    server.answer = answer
    assert evaluate("--turns", 3, by=None) == 0
    assert all(body["return_token_ids"] is True for body in server.requests)
    for trajectory in recorded(tmp_path / "run"):
        turns = trajectory.turns
        assert [turn.fresh for turn in turns] == [True, False, True]
        assert [turn.context_ids for turn in turns] == [[1, 2], [3], [1, 2, 100, 3, 7, 9, 4]]
        assert {tuple(turn.response_ids) for turn in turns} == {(7, 9)}
        assert len(trajectory.training_rows()) == 2
    assert read_run(tmp_path / "run").meta["model"] == {"tier": "messages", "engine": "vllm"}


def test_messages_without_tokens_are_refused_if_they_were_demanded(
    evaluate: Run, server: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate("--tier", "messages", by=None) == 2
    assert "0.10.2" in capsys.readouterr().err


@pytest.mark.parametrize("version", ["0.9.2", "0.10.1.1", "dev"])
def test_an_older_vllm_is_asked_by_text(
    evaluate: Run, server: Stub, tmp_path: Path, version: str
) -> None:
    server.serves("vllm", CONTEXT, version)
    assert evaluate(by=None) == 0
    assert "return_token_ids" not in server.requests[0]
    assert read_run(tmp_path / "run").meta["model"] == {"tier": "text", "engine": "vllm"}


def test_a_proxy_that_does_not_say_vllms_version_is_asked_by_text_or_tokens(
    evaluate: Run, server: Stub, tmp_path: Path
) -> None:
    server.version = Answer("", 404)
    assert evaluate(by=None) == 0
    assert read_run(tmp_path / "run").meta["model"] == {"tier": "text", "engine": "vllm"}
    assert evaluate("--out", "tokens") == 0
    budget = read_run(tmp_path / "tokens").meta["model"]["budget"]
    assert budget["context_tokens"] == CONTEXT

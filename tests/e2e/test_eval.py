"""`gem eval` with real servers: the same tokens as without a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gem_eval.sampler", reason="needs the development environment: make env-dev")
from gem.trajectory import Trajectory
from gem_cpu.cloning import save
from gem_cpu.servers import model_server
from gem_eval.cli import main
from gem_train.record import EPISODES, read_episodes, read_run

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = {"vllm": "verl", "sglang": "rl2"}
TASKS = [
    "gem:game:GuessTheNumber-v0-easy?n=12&prompt=short&format_error_ends=false",
    "gem:math:GSM8K?n=8&source=sample",
]
# What batches share decides the last bits of a logit.
CLOSE = 1e-4
CONTEXT = 2048

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def model(model: Path, tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model, saved so that SGLang's older transformers load it, too."""
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("model")
    save(AutoModelForCausalLM.from_pretrained(model), tokenizer, folder)
    return folder


@pytest.fixture(scope="module", params=ENVIRONMENTS)
def served(request: pytest.FixtureRequest, model: Path) -> Iterator[tuple[str, str]]:
    """An engine and the URL of its server."""
    python = ROOT / ".venvs" / ENVIRONMENTS[request.param] / "bin" / "python"
    assert python.exists(), f"make env-{ENVIRONMENTS[request.param]}"
    with model_server(request.param, python, str(model), context_tokens=CONTEXT) as url:
        yield request.param, url


@pytest.fixture(scope="module")
def local(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Trajectory]:
    """The episodes without a server, greedily."""
    return play(tmp_path_factory.mktemp("local") / "run", f"hf:{model}", "--temperature", "0")


def play(folder: Path, model: str, *words: str) -> list[Trajectory]:
    asked = [*TASKS, "--model", model, "--max-tokens", "12", "--out", str(folder), *words]
    assert main(asked) == 0
    records = list(read_episodes(folder / EPISODES))
    found = {(each.split, each.trajectory.task.seed): each.trajectory for each in records}
    return [found[key] for key in sorted(found)]


def first_texts(trajectories: list[Trajectory]) -> list[str]:
    """The first replies without what is no text: servers differ in bytes that are no character."""
    return [each.turns[0].text.replace("\ufffd", "") for each in trajectories]


def test_greedily_a_server_plays_token_for_token_what_transformers_play(
    served: tuple[str, str], model: Path, local: list[Trajectory], tmp_path: Path
) -> None:
    engine, url = served
    words = ("--url", url, "--tokenizer", str(model), "--temperature", "0")
    remote = play(tmp_path / "run", "openai:m", *words)
    assert len(remote) == 20
    assert len({tuple(turn.response_ids) for each in local for turn in each.turns}) > 8
    assert max(len(each.turns) for each in local) == 4
    for there, here in zip(remote, local, strict=True):
        assert [turn.response_ids for turn in there.turns] == [t.response_ids for t in here.turns]
        assert [turn.context_ids for turn in there.turns] == [t.context_ids for t in here.turns]
        assert (there.rewards, there.end) == (here.rewards, here.end)
        assert there.fingerprint == here.fingerprint
        for ours, theirs in zip(here.turns, there.turns, strict=True):
            assert theirs.logprobs == pytest.approx(ours.logprobs, abs=CLOSE)
    told = read_run(tmp_path / "run").meta["model"]
    assert (told["tier"], told["engine"]) == ("tokens", engine)


def test_sampled_log_probabilities_are_those_that_the_record_says(
    served: tuple[str, str], model: Path, tmp_path: Path
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    _, url = served
    temperature = 0.5
    words = ("--url", url, "--tokenizer", str(model), "--temperature", str(temperature))
    trajectories = play(tmp_path / "run", "openai:m", *words)
    raw = read_run(tmp_path / "run").meta["model"]["logprobs"] == "raw"
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    for row in trajectories[0].training_rows():
        with torch.no_grad():
            logits = policy(torch.tensor([row.ids])).logits[0]
        logprobs = (logits if raw else logits / temperature).log_softmax(-1)
        for place, (token, sampled, told) in enumerate(
            zip(row.response_ids, row.mask, row.logprobs or [], strict=True), len(row.prompt_ids)
        ):
            if sampled:
                assert told == pytest.approx(logprobs[place - 1, token].item(), abs=CLOSE)


def test_asked_by_messages_or_text_a_server_begins_with_the_same_reply(
    served: tuple[str, str], local: list[Trajectory], tmp_path: Path
) -> None:
    engine, url = served
    remote = play(tmp_path / "run", "openai:m", "--url", url, "--temperature", "0")
    tier = read_run(tmp_path / "run").meta["model"]["tier"]
    assert tier == {"vllm": "messages", "sglang": "text"}[engine]
    # Later ones are to the server's tokens of this text, which need not be those sampled.
    assert first_texts(remote) == first_texts(local)
    if tier == "messages":
        first = [(each.turns[0].context_ids, each.turns[0].response_ids) for each in remote]
        assert first == [(each.turns[0].context_ids, each.turns[0].response_ids) for each in local]


def test_transformers_own_server_is_asked_by_text(
    model: Path, local: list[Trajectory], tmp_path: Path
) -> None:
    python = ROOT / ".venvs" / "verl" / "bin" / "python"
    with model_server("transformers", python, str(model)) as url:
        words = ("--url", url, "--temperature", "0")
        remote = play(tmp_path / "run", f"openai:{model}", *words)
    assert read_run(tmp_path / "run").meta["model"]["tier"] == "text"
    assert first_texts(remote) == first_texts(local)

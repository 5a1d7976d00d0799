"""Models in this process: transformers' own, and what training runs have made."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="of the extra local")
transformers = pytest.importorskip("transformers", reason="of the extra local")
tiny_model = pytest.importorskip("gem_cpu.tiny_model", reason="a model is used")

from gem.__main__ import guarded  # noqa: E402
from gem.errors import ConfigurationError, RecordError  # noqa: E402
from gem.rollout import Budget, ChatFormat, Request, play_batch  # noqa: E402
from gem.tasks import TaskSet  # noqa: E402
from gem.trajectory import Trajectory  # noqa: E402
from gem_bench.checkpoints import Checkpoints  # noqa: E402
from gem_bench.reference import train  # noqa: E402
from gem_bench.sampler import CachedSampler, warp  # noqa: E402
from gem_eval.cli import main  # noqa: E402
from gem_eval.local import load  # noqa: E402
from gem_eval.sampler import LocalModelError, SeededSampler  # noqa: E402
from gem_eval.trained import find_trained  # noqa: E402
from gem_train.experiment.runspec import RunSpec, SamplingPart  # noqa: E402
from gem_train.record import EPISODES, Recorder, read_episodes, read_run  # noqa: E402

TASKS = "gem:game:GuessTheNumber-v0-easy?n=6&seed=0&hint=range&prompt=short"
Run = Callable[..., int]


@pytest.fixture(scope="module")
def tiny() -> Path:
    return Path(tiny_model.ensure())


@pytest.fixture
def evaluate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: Path) -> Run:
    """Run `gem eval` on six tasks in a folder `run`; return its exit status."""
    monkeypatch.chdir(tmp_path)

    def run(*words: object, model: str = f"hf:{tiny}") -> int:
        asked = [TASKS, "--out", "run", "--model", model, "--max-tokens", 24, *words]
        return guarded(lambda: main([*map(str, asked)]))

    return run


def recorded(folder: Path) -> list[Trajectory]:
    found = [record.trajectory for record in read_episodes(folder / EPISODES)]
    return sorted(found, key=lambda each: each.task.seed)


def ids(trajectories: list[Trajectory]) -> list[list[list[int]]]:
    return [[turn.response_ids for turn in each.turns] for each in trajectories]


# Models of transformers


def test_greedily_it_plays_what_the_reference_trainer_plays(
    evaluate: Run, tmp_path: Path, tiny: Path
) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32).eval()
    chat = ChatFormat(transformers.AutoTokenizer.from_pretrained(tiny))
    sampler = CachedSampler(model, chat, SamplingPart(top_k=1), torch.Generator())
    budget = Budget(turn_tokens=24, response_tokens=2048, prompt_tokens=2048)
    there = play_batch(list(TaskSet.parse(TASKS)), sampler, chat, budget=budget)
    assert evaluate("--temperature", 0) == 0
    here = recorded(tmp_path / "run")
    assert ids(here) == ids(there)
    assert [each.rewards for each in here] == [each.rewards for each in there]
    assert [each.fingerprint for each in here] == [each.fingerprint for each in there]
    assert max(len(each.turns) for each in here) > 1
    # Those of the model, also where nothing is drawn.
    assert min(min(turn.logprobs or [0.0]) for each in here for turn in each.turns) < 0
    model = read_run(tmp_path / "run").meta["model"]
    assert (model["tier"], model["engine"]) == ("tokens", "transformers")


def test_what_is_drawn_depends_on_task_and_sample_alone(evaluate: Run, tmp_path: Path) -> None:
    for out, concurrency in (("one", 1), ("four", 4)):
        assert evaluate("--samples", 2, "--concurrency", concurrency, "--out", out) == 0
    one, four = (
        {
            (record.trajectory.task.seed, record.notes["sample"]): ids([record.trajectory])
            for record in read_episodes(tmp_path / out / EPISODES)
        }
        for out in ("one", "four")
    )
    assert one == four
    assert any(one[seed, 0] != one[seed, 1] for seed in range(6))
    assert evaluate("--param", "seed=1", "--out", "other") == 0
    assert ids(recorded(tmp_path / "other")) != [one[seed, 0][0] for seed in range(6)]


@pytest.mark.parametrize("game", ["RockPaperScissors", "TicTacToe"])
def test_in_self_play_the_calls_of_an_episode_are_those_of_its_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: Path, game: str
) -> None:
    # In one of the games both seats ask at the same time.
    monkeypatch.chdir(tmp_path)
    words = [f"gem:multi:{game}-v0?n=3&opponent=self", "--model", f"hf:{tiny}", "--out", "run"]
    assert guarded(lambda: main([*words, "--max-tokens", "8", "--turns", "3"])) == 0
    for record in read_episodes(tmp_path / "run" / EPISODES):
        prompt, told = 0, []
        for turn in record.trajectory.turns:
            prompt = (0 if turn.fresh else prompt) + len(turn.context_ids)
            told.append((prompt, len(turn.response_ids)))
            prompt += len(turn.response_ids)
        calls = [(c["prompt_tokens"], c["reply_tokens"]) for c in record.notes["calls"]]
        assert calls == told
        # Those of the other seat cost, too.
        assert record.notes["lost"]


def test_tokens_are_drawn_with_the_probabilities_of_temperature_and_nucleus(tiny: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny)
    chat = ChatFormat(transformers.AutoTokenizer.from_pretrained(tiny))
    sampling = SamplingPart(temperature=0.7, top_k=3, top_p=0.95)
    sampler = SeededSampler(model, chat, sampling)
    logits = torch.tensor([[2.0, 1.0, 0.5, 0.0, 4.0]])
    n = 4000
    requests = [Request(i, [1], [1], True, 1) for i in range(n)]
    sampler._forward = lambda *_: logits.repeat(n, 1)  # type: ignore[method-assign]
    samples = sampler.sample(requests, range(n))
    counts = Counter(sample.token_ids[0] for sample in samples)
    wanted = warp(logits, sampling).softmax(-1)[0]
    for token, p in enumerate(wanted.tolist()):
        assert counts[token] == pytest.approx(n * p, abs=4 * (n * p * (1 - p)) ** 0.5)
    raw = logits.log_softmax(-1)[0]
    assert all(each.logprobs == [raw[each.token_ids[0]].item()] for each in samples)


def test_a_model_that_fails_or_is_stopped_ends_the_evaluation_with_a_message(
    evaluate: Run, tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patched:
        patched.setattr(CachedSampler, "_forward", fail)
        assert evaluate() == 2
    assert "6 episodes at a time (--concurrency)" in capsys.readouterr().err
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny)
    chat = ChatFormat(transformers.AutoTokenizer.from_pretrained(tiny))
    sampler = SeededSampler(model, chat, SamplingPart())
    sampler.stopped.set()
    with pytest.raises(LocalModelError, match="interrupted"):
        sampler.sample([Request(0, [1], [1], True, 9)], [0])


def test_without_transformers_the_extra_is_named(
    evaluate: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert evaluate() == 2
    assert "pip install 'gem-eval[local]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "model", "says"),
    [
        (("--url", "http://localhost/v1"), None, "--url is of servers"),
        (("--key-env", "KEY"), None, "--key-env is of servers, not of hf:"),
        (("--call-retries", 1), "run:.", "--call-retries is of servers, not of run:"),
        (("--timeout-s", 5), None, "--timeout-s is of servers"),
        (("--param", "min_p=0.1"), None, "--param min_p: models in this process know"),
        (("--param", "top_k=0"), None, "top_k"),
        (("--context-tokens", 4000), None, "has 2048"),
        ((), "hf:./nowhere", "--model: no folder './nowhere'"),
        ((), "run:.", "holds no run"),
    ],
)
def test_what_a_local_model_cannot_do_is_refused(
    evaluate: Run,
    capsys: pytest.CaptureFixture[str],
    words: tuple[object, ...],
    model: str | None,
    says: str,
) -> None:
    assert evaluate(*words, **({"model": model} if model else {})) == 2
    assert says in capsys.readouterr().err


# What runs have trained


def spec_of(tiny: Path, **policy: Any) -> RunSpec:
    lengths = {"prompt_tokens": 200, "response_tokens": 100, "turn_tokens": 9, "turns": 2}
    return RunSpec.from_mapping(
        {
            "name": "x",
            "env": {
                "id": "game:GuessTheNumber-v0-easy",
                "params": {"hint": "range", "prompt": "short"},
            },
            "policy": {"model": str(tiny), "system_prompt": "Play.", **lengths, **policy},
            # The bonus changes weights also where no episode succeeds.
            "algorithm": {"advantage": "reinforce", "entropy_coef": 0.1},
            "optimizer": {"lr": 1e-2},
            "training": {"iterations": 2, "tasks": 2},
        }
    )


@pytest.mark.parametrize("rank", [0, 4])
def test_a_checkpoint_of_the_reference_trainer_plays_as_it_was_trained(
    evaluate: Run, tmp_path: Path, tiny: Path, rank: int
) -> None:
    spec, folder = spec_of(tiny, lora_rank=rank), tmp_path / "trained"
    train(spec, folder, checkpoints=Checkpoints(folder, spec, 1))
    found = find_trained(folder)
    assert found.name.endswith("iteration-000002.pt")
    saved = torch.load(found.name, weights_only=True)["policy"]["weights"]
    model, base = load(found, "float32"), load(found.__class__(str(tiny)), "float32")
    weights, before = model.state_dict(), base.state_dict()
    name = "model.layers.0.self_attn.q_proj"
    now = weights[f"{name}.weight"]
    if rank:
        a, b = saved[f"{name}.lora_a"], saved[f"{name}.lora_b"]
        change = spec.policy.lora_alpha / rank * b @ a
        assert change.abs().max() > 0
        assert torch.allclose(now, before[f"{name}.weight"] + change, atol=1e-6)
    else:
        assert torch.equal(now, saved[f"{name}.weight"])
        assert not torch.equal(now, before[f"{name}.weight"])
    assert weights.keys() == before.keys()
    asked = [TASKS, "--out", "run", "--model", f"run:{folder}"]
    assert main(asked) == 0
    told = read_run(tmp_path / "run").meta["model"]
    assert told["prompting"]["system_prompt"] == "Play."
    limits = {"turn_tokens": 9, "response_tokens": 100, "prompt_tokens": 200, "turns": 2}
    assert limits.items() <= told["trained_budget"].items()
    assert {len(each.turns) for each in recorded(tmp_path / "run")} <= {1, 2}
    if rank:
        return
    # Tasks of other environments or parameters have the model's limits, not the training's.
    other = ["gem:game:GuessTheNumber-v0-easy?n=3", "gem:game:TowerofHanoi-v0-easy?n=3"]
    assert main([*other, "--turns", "3", "--out", "other", "--model", f"run:{folder}"]) == 0
    assert all(each.valid for each in recorded(tmp_path / "other"))


def test_the_last_whole_checkpoint_of_transformers_is_taken(tmp_path: Path, tiny: Path) -> None:
    Recorder(tmp_path).start({"trainer": "trl", "spec": spec_of(tiny).to_mapping()})
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny)
    for step, whole in ((9, True), (10, True), (11, False)):
        path = tmp_path / "checkpoints" / f"checkpoint-{step}"
        model.save_pretrained(path)
        if whole:
            (path / "trainer_state.json").write_text("{}")
    assert find_trained(tmp_path).name.endswith("checkpoint-10")
    model.save_pretrained(tmp_path / "model_critic")
    model.save_pretrained(tmp_path / "checkpoints" / "global_step_9" / "actor" / "huggingface")
    assert find_trained(tmp_path).name.endswith("checkpoint-10")
    model.save_pretrained(tmp_path / "model")
    assert find_trained(tmp_path).name.endswith("model")


def test_an_adapter_is_merged(tmp_path: Path, tiny: Path) -> None:
    peft = pytest.importorskip("peft", reason="of the extra local")
    Recorder(tmp_path).start({"trainer": "trl", "spec": spec_of(tiny).to_mapping()})
    base = transformers.AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    adapted = peft.get_peft_model(base, config)
    adapted.save_pretrained(tmp_path / "adapter")  # what the run began with
    adapted.save_pretrained(tmp_path / "checkpoints" / "checkpoint-3")
    (tmp_path / "checkpoints" / "checkpoint-3" / "trainer_state.json").write_text("{}")
    model = load(find_trained(tmp_path), "float32")
    tokens = torch.tensor([[1, 5, 9]])
    assert torch.allclose(model(tokens).logits, adapted(tokens).logits, atol=1e-4)
    with adapted.disable_adapter():
        assert not torch.allclose(model(tokens).logits, adapted(tokens).logits, atol=1e-2)


@pytest.mark.parametrize(
    ("trainer", "says"),
    [
        ("verl", "verl.model_merger"),
        ("openrlhf", "zero_to_fp32"),
        ("reference", "--checkpoint-every"),
    ],
)
def test_checkpoints_that_only_their_trainer_reads_are_refused_with_a_way(
    tmp_path: Path, tiny: Path, trainer: str, says: str
) -> None:
    Recorder(tmp_path).start({"trainer": trainer, "spec": spec_of(tiny).to_mapping()})
    shard = tmp_path / "checkpoints" / "global_step_2" / "actor" / "model_world_size_1_rank_0.pt"
    shard.parent.mkdir(parents=True)
    shard.write_bytes(b"")
    (shard.parent / "huggingface").mkdir()
    (shard.parent / "huggingface" / "config.json").write_text("{}")
    with pytest.raises(ConfigurationError, match=says):
        find_trained(tmp_path)


def test_a_damaged_checkpoint_is_named(tmp_path: Path, tiny: Path) -> None:
    Recorder(tmp_path).start({"trainer": "reference", "spec": spec_of(tiny).to_mapping()})
    (tmp_path / "checkpoints").mkdir()
    path = tmp_path / "checkpoints" / "iteration-000001.pt"
    path.write_bytes(json.dumps({}).encode())
    with pytest.raises(RecordError, match="iteration-000001.pt"):
        load(find_trained(tmp_path), "float32")

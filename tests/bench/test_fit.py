"""The estimate of memory, against transformers, torch's own allocations and common sense."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gem.errors import ConfigurationError
from gem.trajectory import TrainingRow
from gem_bench.__main__ import main
from gem_bench.adapters import WITH_ADAPTERS
from gem_bench.fit import (
    GB,
    PHASES,
    TRAINERS,
    Tiles,
    advise,
    check,
    estimate,
    not_estimated,
    unknown,
)
from gem_bench.runspec import SHIPPED, load_hardware, load_spec
from gem_bench.shape import PUBLISHED, Shape, find_config, qwen3
from gem_train.experiment.hardware import Hardware
from gem_train.experiment.runspec import EvalPart, RunSpec

RECIPES = sorted(Path(__file__).parents[2].joinpath("recipes").glob("*.toml"))


BILLIONS = {"Qwen3-1.7B": 1.72, "Qwen3-4B": 4.02, "Qwen3-8B": 8.19, "Qwen3-32B": 32.76}
"""Parameters that the models' own pages give."""
CONFIGS = {name.removeprefix("Qwen/"): config for name, config in PUBLISHED.items()}
SHAPES = {name: Shape.of(config) for name, config in CONFIGS.items()}

SMALL = {
    "vocab_size": 2048,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 96}
FAMILIES: list[tuple[str, dict[str, Any]]] = [
    ("qwen2", {"head_dim": 16}),
    ("qwen2", {"head_dim": 16, "tie_word_embeddings": True}),
    ("qwen3", {}),
    ("qwen3", {"tie_word_embeddings": True, "attention_bias": True}),
    ("llama", {"attention_bias": True, "mlp_bias": True}),
    ("llama", {"num_key_value_heads": 4}),
    ("mistral", {}),
    ("qwen3_moe", EXPERTS),
]


def small(family: str, **changes: Any) -> Any:
    """A small configuration of transformers."""
    transformers = pytest.importorskip("transformers", reason="counts the parameters")
    config = transformers.AutoConfig.for_model(family, **{**SMALL, **changes})
    config._attn_implementation = "sdpa"
    return config


def model_of(config: Any, kind: str = "AutoModelForCausalLM", device: str = "cpu") -> Any:
    torch = pytest.importorskip("torch", reason="makes the model")
    import transformers

    torch.manual_seed(0)
    with torch.device(device):
        return getattr(transformers, kind).from_config(config, dtype=torch.float32).train()


def count(model: Any) -> int:
    return sum(each.numel() for each in model.parameters())


@pytest.mark.parametrize(("family", "changes"), FAMILIES)
def test_parameters_are_those_of_transformers(family: str, changes: dict[str, Any]) -> None:
    config = small(family, **changes)
    shape = Shape.of(config.to_dict())
    model = model_of(config, device="meta")
    assert shape.parameters == count(model)
    assert shape.critic == count(model_of(config, "AutoModel", "meta")) + config.hidden_size + 1
    if family != "qwen3_moe":  # its experts are no linear layers
        adapted = [each for name, each in model.named_modules() if name.endswith("_proj")]
        wanted = sum(8 * (each.in_features + each.out_features) for each in adapted)
        assert shape.adapters(8) == wanted


@pytest.mark.parametrize("name", CONFIGS)
def test_published_models_have_the_published_size(name: str) -> None:
    config = CONFIGS[name]
    assert round(SHAPES[name].parameters / 1e9, 2) == BILLIONS[name]
    like = small("qwen3", **{key: config[key] for key in config if key != "model_type"})
    assert SHAPES[name].parameters == count(model_of(like, device="meta"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba' is none of those estimated"),
        ({"vocab_size": None}, "lacks vocab_size"),
        ({"model_type": "qwen3_moe"}, "lacks num_experts, num_experts_per_tok, moe_inter"),
    ],
)
def test_other_models_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    changed = {**CONFIGS["Qwen3-4B"], **changes}
    config = {key: value for key, value in changed.items() if value is not None}
    with pytest.raises(ConfigurationError, match=message):
        Shape.of(config)


def experiment(**tables: dict[str, Any]) -> RunSpec:
    """A row of 256 tokens on one GPU, in fp32."""
    made: dict[str, Any] = {
        "name": "fit",
        "env": {"id": "game:GuessTheNumber-v0-easy"},
        "policy": {
            "model": "none",
            "prompt_tokens": 56,
            "response_tokens": 200,
            "turn_tokens": 8,
        },
        "algorithm": {"advantage": "rebn"},
        "optimizer": {"lr": 1e-3},
        "training": {"iterations": 1, "tasks": 16},
    }
    return RunSpec.from_mapping({**made, **{k: {**made[k], **v} for k, v in tables.items()}})


def test_states_are_what_torch_allocates_for_them() -> None:
    config = small("qwen3")
    model = model_of(config)
    import torch

    optimizer = torch.optim.AdamW(model.parameters())
    model(input_ids=torch.arange(32)[None]).logits.sum().backward()
    optimizer.step()
    weights = list(model.parameters())
    # AdamW also counts its steps: one number for each tensor.
    moments = [each for state in optimizer.state.values() for each in state.values() if each.dim()]
    made = {
        "weights": weights,
        "gradients": [each.grad for each in weights],
        "optimizer": moments,
    }
    for trainer in ("reference", "trl", "verl"):
        found = estimate(trainer, experiment(), Hardware(), Shape.of(config.to_dict()))
        for name, tensors in made.items():
            allocated = sum(each.untyped_storage().nbytes() for each in tensors)
            assert found.phases["learn"][name] == allocated, (trainer, name)


@pytest.mark.parametrize(("family", "changes"), FAMILIES)
@pytest.mark.parametrize("arithmetic", ["fp32", "bf16", "autocast"])
def test_layers_keep_the_estimated_bytes_for_the_backward_pass(
    family: str, changes: dict[str, Any], arithmetic: str
) -> None:
    config = small(family, **changes)
    model = model_of(config, "AutoModel")
    import torch

    if arithmetic == "bf16":
        model.to(torch.bfloat16)
    weights = {each.untyped_storage()._cdata for each in model.parameters()}
    # Autocast's copies of weights; no activation has their shape.
    sizes = {each[0].numel() if each.dim() == 3 else each.numel() for each in model.parameters()}
    kept: dict[int, Any] = {}

    def keep(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        copy = arithmetic == "autocast" and tensor.dim() == 2 and tensor.numel() in sizes
        if storage._cdata not in weights and not copy:
            kept[storage._cdata] = storage
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with hooks, torch.autocast("cpu", torch.bfloat16, enabled=arithmetic == "autocast"):
        out = model(input_ids=torch.arange(250)[None], use_cache=False)
    measured = sum(storage.nbytes() for storage in kept.values())
    assert out is not None
    shape = Shape.of(config.to_dict())
    guessed = 250 * shape.layers * shape.activations(arithmetic)
    # Besides layers: the last norm, positions and, by experts, which tokens they get.
    assert guessed == pytest.approx(measured, rel=0.08)


class Row(NamedTuple):
    """What the reference's forward pass reads of a row."""

    ids: list[int]
    sampled: range
    tokens: TrainingRow


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("trainer", ["trl", "trl with checkpointing", "reference"])
def test_a_pass_takes_the_estimated_memory_within_a_quarter(
    trainer: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small("qwen3")
    model = model_of(config)
    import torch
    from memory import Peak

    from gem_bench.reference import token_statistics

    name, _, checkpointing = trainer.partition(" with ")
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if name == "trl":
        utils = pytest.importorskip("trl.trainer.utils", reason="has the head")
        on_few_rows(importlib.import_module("trl.kernels.chunked_logprob"), monkeypatch)
        utils.add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    for each in model.parameters():
        each.grad = torch.zeros_like(each)
    with Peak() as measured:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            if name == "reference":
                chosen, _ = token_statistics(
                    model, [Row([7] * 512, range(1, 512), TrainingRow([], [], [], [], []))], 1.0
                )
            else:
                ids = torch.full((1, 512), 7)
                chosen = model(input_ids=ids, labels=ids, fused_lm_head=True).log_probs
        torch.autograd.backward(-chosen.mean())
    hardware = Hardware.from_mapping({"learner": {"checkpointing": bool(checkpointing)}})
    length = {"prompt_tokens": 112, "response_tokens": 400}
    spec = experiment(policy=length, training={"tasks": 1, "precision": precision})
    parts = estimate(name, spec, hardware, Shape.of(config.to_dict())).phases["learn"]
    guessed = sum(parts.get(each, 0) for each in ("copies", "activations", "logits"))
    assert 0.8 < guessed / measured.peak < 1.25


ROWS, WIDTH = 4, 2048


def on_few_rows(kernels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run TRL's kernels on a few rows at a time, as GPUs do; on a CPU they copy whole tiles."""
    import torch

    def by_rows(kernel: Any) -> Any:
        def fold(tile: Any, stride: int, *args: Any, **named: Any) -> None:
            for at in range(0, len(tile), ROWS):
                part = slice(at, at + ROWS)
                rows = [x[part] if isinstance(x, torch.Tensor) and x.dim() else x for x in args]
                kernel(tile[part], stride, *rows, **named)

        return fold

    def add(total: Any, a: Any, b: Any) -> None:
        for at in range(0, len(b), 16):
            part = slice(at, at + 16)
            total.addmm_(a[:, part].float(), b[part].float())

    for name in ("_forward_tile", "_backward_tile"):
        monkeypatch.setattr(kernels, name, by_rows(getattr(kernels, name)))
    monkeypatch.setattr(kernels, "_addmm_fp32", add)
    # Of a width that suits a small vocabulary.
    utils = importlib.import_module("trl.trainer.utils")
    assert (
        Tiles().tokens,
        Tiles().vocabulary,
    ) == (kernels.TOKEN_CHUNK_SIZE, utils._CHUNKED_LOGPROB_CHUNK_SIZE)
    monkeypatch.setattr(utils, "_CHUNKED_LOGPROB_CHUNK_SIZE", WIDTH)
    monkeypatch.setitem(TRAINERS, "trl", replace(TRAINERS["trl"], head=Tiles(vocabulary=WIDTH)))


SMALL_SHAPE = Shape.of({**qwen3(64, 1, 4, 64, tied=True), "vocab_size": 5000})


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("tokens", [1500, pytest.param(4200, marks=pytest.mark.nightly)])
def test_trls_own_head_takes_the_estimated_memory(
    tokens: int, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = pytest.importorskip("trl.kernels.chunked_logprob", reason="has the head")
    import torch
    from memory import Peak

    on_few_rows(kernels, monkeypatch)
    hidden = torch.randn(tokens, 64).to(torch.bfloat16 if precision == "bf16" else torch.float32)
    weight = torch.randn(5000, 64).mul(0.02).requires_grad_()
    targets = torch.randint(0, 5000, (tokens,))
    head = (1.0, WIDTH, None, 1.0, ("log_probs", "entropy"))
    with Peak() as measured:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            out, *_ = kernels.ChunkedLogProbFunction.apply(
                hidden.requires_grad_(), weight, None, targets, *head
            )
        out.sum().backward()
    element = 2 if precision == "bf16" else 4
    guessed = TRAINERS["trl"].head.size(SMALL_SHAPE, tokens, element, trained=True, entropy=False)
    assert 0.8 < guessed / measured.peak < 1.2


def test_heads_that_make_no_whole_logits_stop_growing_with_the_pass() -> None:
    shape = SHAPES["Qwen3-1.7B"]
    for trainer, keeps in TRAINERS.items():
        short, long = (
            keeps.head.size(shape, tokens, 2, trained=True, entropy=False)
            for tokens in (8_192, 16_384)
        )
        assert keeps.head.whole == (long > 1.9 * short), trainer
        assert keeps.head.whole == (trainer not in ("verl", "oat", "trl"))


def test_native_settings_count_or_are_named() -> None:
    spec, _ = spec_for(next(path for path in RECIPES if path.stem == "published-game"))
    shape, key = SHAPES["Qwen3-4B"], "actor_rollout_ref.actor.fsdp_config"

    def needs(trainer: str, native: dict[str, Any]) -> tuple[float, list[str]]:
        hardware = Hardware().with_native(trainer, native)
        found = estimate(trainer, spec, hardware, shape)
        return found.total("step") / GB, unknown(trainer, spec, hardware)

    plain, none = needs("verl", {})
    assert none == []
    offloaded, none = needs("verl", {f"{key}.offload_policy": True})
    assert offloaded < 10 < plain and none == []
    halved, none = needs("verl", {f"+{key}.model_dtype": "bfloat16"})
    assert halved < 0.65 * plain and none == []
    same, [named] = needs("verl", {f"{key}.model_dtype": "float8"})
    assert (same, named) == (plain, f"{key}.model_dtype")
    assert needs("trl", {"deepspeed": "zero3.json"})[1] == ["deepspeed"]
    critic = replace(spec, algorithm=replace(spec.algorithm, advantage="gae"))
    native = Hardware().with_native("verl", {f"{key}.offload_policy": True})
    assert unknown("verl", critic, native) == [f"{key}.offload_policy"]


def spec_for(recipe: Path) -> tuple[RunSpec, Shape]:
    spec = load_spec(recipe)
    name = spec.policy.model.removeprefix("Qwen/").removesuffix("-Base")
    tiny = {**CONFIGS["Qwen3-4B"], **SMALL, "vocab_size": 512}
    return spec, SHAPES.get(name) or Shape.of(tiny)


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_gets_a_verdict_on_every_shipped_hardware(recipe: Path, trainer: str) -> None:
    spec, shape = spec_for(recipe)
    for file in SHIPPED.glob("*.toml"):
        hardware = load_hardware(file, trainer)
        found = estimate(trainer, spec, hardware, shape)
        assert all(found.total(phase) > 0 for phase in PHASES)
        steps = list(advise(trainer, spec, hardware, shape))
        assert bool(steps) <= bool(found.shortage)
        # Every step helps.
        left = [found.shortage, *(then.shortage for _, _, then in steps)]
        assert left == sorted(left, reverse=True)
        if shape.parameters < 1e9:
            assert not found.shortage


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("name", CONFIGS)
def test_more_gpus_never_need_more_and_longer_episodes_never_less(trainer: str, name: str) -> None:
    def need(gpus: int, tokens: int) -> dict[str, float]:
        length = {"prompt_tokens": 500, "response_tokens": tokens}
        spec = experiment(policy=length, training={"tasks": 16, "precision": "bf16"})
        found = estimate(trainer, spec, Hardware(gpus_per_node=gpus), SHAPES[name])
        return {phase: found.total(phase) for phase in PHASES} | {"missing": found.shortage}

    # DDP's buckets take memory from the second GPU on.
    first = 2 if trainer == "trl" else 1
    for gpus in (each for each in (1, 2, 4, 8) if each >= first):
        for tokens in (500, 1_500, 6_000, 24_000):
            now, longer, more = need(gpus, tokens), need(gpus, 2 * tokens), need(2 * gpus, tokens)
            assert all(longer[key] >= now[key] for key in now)
            assert all(more[key] <= now[key] for key in now)


def game(name: str, trainer: str, **hardware: Any) -> tuple[float, list[tuple[str, Any]]]:
    """The shortage of the published game in GB, and what would help."""
    spec, _ = spec_for(next(path for path in RECIPES if path.stem == "published-game"))
    made = Hardware.from_mapping(hardware)
    shape = SHAPES[name]
    steps = [(key, value) for key, value, _ in advise(trainer, spec, made, shape)]
    return estimate(trainer, spec, made, shape).shortage / GB, steps


def test_advice_names_what_helps() -> None:
    assert game("Qwen3-1.7B", "verl") == (0, [])
    short, steps = game("Qwen3-1.7B", "verl", learner={"checkpointing": False})
    assert short > 0
    assert steps == [("learner.checkpointing", True)]
    short, steps = game("Qwen3-1.7B", "openrlhf", learner={"pass_tokens": 100_000})
    assert short > 0
    assert steps == [("learner.pass_tokens", 12_800)]
    short, steps = game("Qwen3-1.7B", "openrlhf", engine={"memory_share": 0.05})
    assert short > 0
    assert [key for key, _ in steps] == ["engine.memory_share"]
    eight = {"gpus_per_node": 8}
    assert game("Qwen3-32B", "verl", **eight, engine={"tensor_parallel": 4})[0] > 0
    short, steps = game("Qwen3-32B", "oat", **eight)
    assert short > 0
    assert "nodes" not in dict(steps)  # oat has one


def test_every_adapter_that_comes_with_gem_bench_is_known() -> None:
    assert {*WITH_ADAPTERS, "reference"} == {*TRAINERS, "tinker"}
    assert not_estimated("tinker", Hardware()) is not None


def test_skyrls_models_leave_the_gpu_to_its_engines() -> None:
    algorithm = {"advantage": "gae", "kl_coef": 0.1}
    spec = experiment(algorithm=algorithm, training={"precision": "bf16"})
    shape = SHAPES["Qwen3-1.7B"]
    found = estimate("skyrl", spec, Hardware(), shape)
    assert found.phases["sample"].keys() == {"engine", "other"}
    # SkyRL's own default of `gpu_memory_utilization`.
    assert found.phases["sample"]["engine"] == 0.8 * 80 * GB
    states = {"weights": 4, "gradients": 4, "optimizer": 8}
    for name, size in states.items():
        assert found.phases["learn"][name] == size * shape.parameters
    shared = estimate("skyrl", spec, Hardware(gpus_per_node=4), shape)
    assert shared.phases["learn"]["optimizer"] == 2 * shape.parameters


def test_samples_of_an_evaluation_are_episodes_of_it() -> None:
    def cache(episodes: int, samples: int) -> float:
        spec = experiment()
        part = EvalPart(name="a", id=spec.env[0].id, episodes=episodes, samples=samples)
        spec = replace(spec, eval=(part,))
        found = estimate("reference", spec, Hardware(), SHAPES["Qwen3-1.7B"])
        return found.phases["sample"]["KV cache"]

    assert cache(16, 8) == cache(128, 1) > cache(16, 1)


def test_offload_helps_where_the_trainer_offloads() -> None:
    def missing(trainer: str, offload: bool) -> float:
        return game("Qwen3-4B", trainer, learner={"offload": offload})[0]

    for trainer in TRAINERS:
        if TRAINERS[trainer].offload:
            assert missing(trainer, True) < missing(trainer, False), trainer
        else:
            assert missing(trainer, True) == missing(trainer, False), trainer


def test_a_critic_and_an_initial_policy_take_memory() -> None:
    def parts(trainer: str, **tables: dict[str, Any]) -> dict[str, float]:
        spec = experiment(**tables)
        return estimate(trainer, spec, Hardware(), SHAPES["Qwen3-1.7B"]).phases["learn"]

    assert "critic" not in parts("verl")
    assert parts("verl", algorithm={"advantage": "gae"})["critic"] > 12e9
    penalty = {"algorithm": {"kl_coef": 0.1}}
    whole = SHAPES["Qwen3-1.7B"].parameters
    assert parts("oat", **penalty, training={"precision": "bf16"})["initial policy"] == 2 * whole
    assert "initial policy" not in parts("verl", **penalty)  # in main memory
    adapters = {"policy": {"lora_rank": 8}}
    assert "initial policy" not in parts("trl", **penalty, **adapters)
    assert parts("trl", **adapters)["optimizer"] < parts("trl")["optimizer"] / 100


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[str, str]]:
    """Writes a RunSpec and the configuration of a model that is not here; returns their paths."""
    monkeypatch.chdir(tmp_path)

    def write(name: str) -> tuple[str, str]:
        spec = replace(experiment(), policy=replace(experiment().policy, model="not/here"))
        lines = [
            f"{key} = {json.dumps(value)}" if not isinstance(value, dict) else ""
            for key, value in spec.to_mapping().items()
            if key in ("name", "seed")
        ]
        for table in ("env", "policy", "algorithm", "optimizer", "training"):
            values = spec.to_mapping()[table].items()
            lines += [f"[{table}]", *(f"{k} = {json.dumps(v)}" for k, v in values if v or v == 0)]
        (tmp_path / "spec.toml").write_text("\n".join(line for line in lines if "{}" not in line))
        (tmp_path / "config.json").write_text(json.dumps(CONFIGS[name]))
        return "spec.toml", "config.json"

    return write


Files = Callable[[str], tuple[str, str]]


def taken(folder: Path) -> None:
    """Leave a run where the next one is to be: what comes after the estimate refuses that."""
    folder.joinpath("out").mkdir()
    folder.joinpath("out", "run.json").write_text("{}")


def test_the_command_says_whether_it_fits(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    spec, config = files("Qwen3-1.7B")
    asked = ["fit", spec, "--to", "verl", "--model-config", config]
    assert main(asked) == 0
    out = capsys.readouterr().out
    assert "1.72 billion parameters on 1 GPU of 80 GB, 4,096 tokens a pass" in out
    assert out.endswith("fits\n")
    assert main([*asked, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] == SHAPES["Qwen3-1.7B"].parameters
    spec, config = files("Qwen3-32B")
    assert main(asked) == 1
    out = capsys.readouterr().out
    assert "does not fit: step needs 657.2 of 80 GB" in out
    assert "helps most: gpus_per_node = 8" in out
    assert main([*asked, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["fits"] is False
    assert found["advice"][0]["key"] == "gpus_per_node"


def test_the_table_in_the_documentation_is_what_the_command_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    recipe = next(path for path in RECIPES if path.stem == "published-game")
    main(["fit", str(recipe), "--to", "verl"])
    text = recipe.parents[1].joinpath("docs", "hardware.md").read_text(encoding="utf-8")
    shown = text.partition("<!-- fit")[2].partition("```text\n")[2].partition("```")[0]
    assert shown == capsys.readouterr().out


def verdicts() -> str:
    """The published recipes on one GPU and on eight in every trainer, as the page shows them."""
    lines = [f"| recipe | GPUs | {' | '.join(TRAINERS)} |", f"|---|---|{'---|' * len(TRAINERS)}"]
    for recipe in (path for path in RECIPES if path.stem.startswith("published-")):
        spec, shape = spec_for(recipe)
        for machine in ("1xh100", "8xh100"):
            cells = [recipe.stem.removeprefix("published-"), machine[0]]
            for trainer in TRAINERS:
                hardware = load_hardware(SHIPPED / f"{machine}.toml", trainer)
                found = estimate(trainer, spec, hardware, shape)
                helps = [key for key, _, _ in advise(trainer, spec, hardware, shape)]
                most = f"{found.most / GB:.0f}"
                cells.append(f"**{most}** ({', '.join(helps)})" if found.shortage else most)
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def test_the_page_has_every_published_recipe_in_every_trainer() -> None:
    text = RECIPES[0].parents[1].joinpath("docs", "hardware.md").read_text(encoding="utf-8")
    shown = text.partition("<!-- verdicts")[2].partition("\n")[2].partition("\n\n")[0]
    assert shown + "\n" == verdicts()


def test_what_cannot_be_estimated_is_said(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    spec, config = files("Qwen3-1.7B")
    assert main(["fit", spec, "--to", "verl"]) == 2
    assert "'not/here' is no folder and not downloaded" in capsys.readouterr().err
    assert main(["fit", spec, "--to", "verl", "--model-config", "gone.json"]) == 2
    assert "gone.json: no configuration of a model" in capsys.readouterr().err
    assert main(["fit", spec, "--to", "other", "--model-config", config]) == 2
    assert "it is not known what 'other' keeps on a GPU" in capsys.readouterr().err
    assert main(["fit", spec, "--to", "tinker"]) == 0
    assert "the server's" in capsys.readouterr().out
    assert main(["fit", spec, "--to", "verl", "--cpu"]) == 0
    assert "nothing is refused" in capsys.readouterr().out


def test_a_run_that_does_not_fit_is_refused_unless_told_otherwise(
    files: Files, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, config = files("Qwen3-32B")
    model = tmp_path / "model"
    model.mkdir()
    (tmp_path / config).rename(model / "config.json")
    (model / "chat_template.jinja").write_text("")
    asked = ["run", spec, "--to", "reference", "--out", "out", "--set", f"policy.model={model}"]
    assert main(asked) == 2
    said = capsys.readouterr().err
    assert "does not fit: step needs 657" in said
    assert "--no-fit-check" in said
    assert not (tmp_path / "out").exists()
    taken(tmp_path)
    for allowed in ("--no-fit-check", "--cpu"):
        assert main([*asked, allowed]) == 2
        assert "already holds a run" in capsys.readouterr().err


def test_a_run_with_a_native_setting_that_may_change_its_memory_is_not_refused(
    files: Files, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, config = files("Qwen3-32B")
    native = ["--to", "trl", "--native", "deepspeed=zero3.json"]
    assert main(["fit", spec, "--model-config", config, *native]) == 2
    assert "what native.trl.deepspeed changes is not known" in capsys.readouterr().err
    model = tmp_path / "model"
    model.mkdir()
    (tmp_path / config).rename(model / "config.json")
    (model / "chat_template.jinja").write_text("")
    refused = ["--set", f"policy.model={model}", "--set", "algorithm.advantage=gae"]
    assert main(["run", spec, *native, "--out", "out", *refused]) == 2
    said = capsys.readouterr().err
    assert "memory is not estimated: what native.trl.deepspeed changes is not known" in said
    assert "has no critic" in said


def test_a_run_of_a_model_that_is_not_here_goes_on(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, _ = files("Qwen3-32B")
    refused = ["--set", "algorithm.advantage=grpo", "--set", "training.group_size=1"]
    assert main(["run", spec, "--to", "reference", "--out", "out", *refused]) == 2
    said = capsys.readouterr().err
    assert "memory is not estimated: policy.model: 'not/here'" in said
    assert "training.group_size" in said


def test_a_model_in_the_hubs_cache_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="keeps the cache")
    file = tmp_path / "config.json"
    file.write_text('{"model_type": "qwen3"}')
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda model, name: str(file))
    assert find_config("some/model") == {"model_type": "qwen3"}
    assert check("tinker", experiment(), Hardware()) is None

"""Hardware: what may be asked for, and the defaults that depend on the experiment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from machines import SHIPPED, eight

from gem.errors import ConfigurationError
from gem_train.experiment.hardware import CPU, Hardware, check_model, logit_scales
from gem_train.experiment.runspec import RunSpec
from gem_train.passes import attention, pass_tokens

SPEC = RunSpec.from_mapping(
    {
        "name": "guess",
        "env": {"id": "game:GuessTheNumber-v0-easy"},
        "policy": {"model": "m", "prompt_tokens": 64, "response_tokens": 256, "turn_tokens": 8},
        "algorithm": {"advantage": "rebn"},
        "optimizer": {"lr": 1e-3},
        "training": {"iterations": 3, "tasks": 2, "precision": "bf16"},
    }
)


def test_shipped_hardware_says_what_its_name_says() -> None:
    assert {name: (h.nodes, h.gpus_per_node) for name, h in SHIPPED.items()} == {
        "cpu": (1, 1),
        "1xh100": (1, 1),
        "8xh100": (1, 8),
        "2x8xh100": (2, 8),
    }
    assert SHIPPED["cpu"] == CPU
    assert SHIPPED["2x8xh100"].engines == SHIPPED["2x8xh100"].ranks == 8


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"gpus": 8}, "unknown key 'gpus'"),
        ({"executor": "processes"}, "unknown executor 'processes'; known: thread, process"),
        ({"engine": {"tensor_paralel": 2}}, "did you mean engine.tensor_parallel"),
        ({"gpus_per_node": 8, "engine": {"tensor_parallel": 3}}, r"engine.tensor_parallel: 8 GPUs"),
        ({"engine": {"tensor_parallel": 2}}, "engine.tensor_parallel: 1 GPUs do not divide"),
        ({"gpus_per_node": 4, "learner": {"sequence_parallel": 8}}, "learner.sequence_parallel"),
        ({"gpus_per_node": 2, "engine": {"engines": 4}}, "4 engines on 1 GPUs each need 4 GPUs"),
        ({"engine": {"memory_share": 1.0}}, "engine.memory_share must be below 1"),
        ({"learner": {"attention": "xformers"}}, "learner.attention must be one of sdpa"),
        ({"native": {"verl": 3}}, "native.verl must be a table"),
        ({"device": "tpu"}, "device must be one of gpu, cpu"),
    ],
)
def test_hardware_that_cannot_be_is_refused(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Hardware.from_mapping(data)


def test_it_survives_json() -> None:
    made = eight({"verl": {"a.b": [1, "x"]}}, engine={"tensor_parallel": 2})
    assert Hardware.from_mapping(json.loads(json.dumps(made.to_mapping()))) == made


def with_model(model: str) -> RunSpec:
    mapping = SPEC.to_mapping()
    mapping["policy"]["model"] = model
    return RunSpec.from_mapping(mapping)


def test_heads_divide_among_the_gpus_of_a_matrix(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"num_attention_heads": 14}')
    check_model(with_model(str(tmp_path)), eight(engine={"tensor_parallel": 2}))
    with pytest.raises(ConfigurationError, match=r"engine.tensor_parallel: .* 14 attention heads"):
        check_model(with_model(str(tmp_path)), eight(engine={"tensor_parallel": 4}))
    check_model(with_model("somebody/model"), eight(engine={"tensor_parallel": 4}))


def test_attention_is_flash_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gem_train.passes.find_spec", lambda name: name == "flash_attn" or None)
    assert attention(SPEC, Hardware()) == "flash_attention_2"
    assert attention(SPEC, CPU) == attention(SPEC, eight()) == "sdpa"
    monkeypatch.setattr("gem_train.passes.find_spec", lambda name: None)
    assert attention(SPEC, Hardware()) == "sdpa"


def test_a_forward_pass_is_limited_by_its_logits_and_holds_an_episode(tmp_path: Path) -> None:
    def tokens(vocabulary: int) -> int:
        (tmp_path / "config.json").write_text(f'{{"vocab_size": {vocabulary}}}')
        return pass_tokens(with_model(str(tmp_path)), Hardware())

    assert tokens(512) == 65_536
    assert tokens(2**17) == 2048
    assert tokens(2**28) == 64 + 256
    assert pass_tokens(SPEC, Hardware()) == 2048
    assert pass_tokens(SPEC, eight()) == 4096
    assert pass_tokens(SPEC, eight(learner={"pass_tokens": 10})) == 64 + 256


def test_a_fused_head_makes_passes_of_16384_tokens_on_gpus(tmp_path: Path) -> None:
    assert pass_tokens(SPEC, Hardware(), fused=True) == 16_384
    assert pass_tokens(SPEC, CPU, fused=True) == pass_tokens(SPEC, CPU) == 2048
    assert pass_tokens(SPEC, eight(), fused=True) == 4096


def test_models_that_change_their_logits_are_known_by_their_configuration(tmp_path: Path) -> None:
    def scales(**config: Any) -> list[str]:
        (tmp_path / "config.json").write_text(json.dumps(config))
        return logit_scales(str(tmp_path))

    assert scales(vocab_size=10, logit_scale=None, logits_scaling=1) == []
    assert scales(final_logit_softcapping=30.0) == ["final_logit_softcapping"]  # Gemma 2
    assert scales(logits_scaling=8.0) == ["logits_scaling"]  # Granite
    assert scales(logit_scale=0.0625) == ["logit_scale"]  # Cohere
    assert scales(text_config={"final_logit_softcapping": 30.0}) == ["final_logit_softcapping"]
    assert scales(text_config={"logit_scale": 0.0625}, logit_scale=None) == ["logit_scale"]
    assert scales(text_config=None, vision_config={"logit_scale": 2.6}) == []
    assert logit_scales("not/here") == logit_scales("/not/here") == []


def test_what_a_model_that_sees_says_of_its_language_model_counts(tmp_path: Path) -> None:
    language = {"num_attention_heads": 14, "vocab_size": 2**18}
    (tmp_path / "config.json").write_text(json.dumps({"text_config": language}))
    assert pass_tokens(with_model(str(tmp_path)), Hardware()) == 1024
    with pytest.raises(ConfigurationError, match=r"engine.tensor_parallel: .* 14 attention heads"):
        check_model(with_model(str(tmp_path)), eight(engine={"tensor_parallel": 4}))

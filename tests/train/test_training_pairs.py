"""Pairs of settings: of every adapter's table each pair has a verdict, and refused ones stop."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pairs import RUN, SEVERAL, run_with

from gem.errors import ConfigurationError
from gem_train.experiment.hardware import Hardware
from gem_train.pairs import COMMON, FEATURES, check, features, pairs, shown, verdict


@pytest.mark.parametrize("feature", FEATURES)
def test_a_run_has_the_features_that_it_was_given(feature: str) -> None:
    """What enumerates pairs would otherwise look at other runs than it says."""
    found = set(features(*run_with(feature)))
    implied = {"sdpa", "flash attention"} | ({"gpus_per_node"} if feature in SEVERAL else set())
    assert feature in found and found - implied <= {feature}


def test_the_first_row_of_a_pair_decides_and_a_pair_without_one_stops() -> None:
    rows = (
        pairs("critic", "sdpa", "refused", "flash attention only", on_gpus=True),
        pairs({"critic", "nodes"}, {"sdpa"}, "runs", "on the CPU"),
    )
    assert verdict(rows, "sdpa", "critic") == ("refused", "flash attention only")
    assert verdict(rows, "sdpa", "critic", cpu=True) == ("runs", "on the CPU")
    assert verdict(rows, "nodes", "sdpa")[0] == "runs"
    with pytest.raises(
        ConfigurationError, match=r"^hardware.nodes with algorithm.advantage=gae: n"
    ):
        verdict(rows, "nodes", "critic")
    assert shown("fp32", "sdpa") == "training.precision=fp32 with hardware.learner.attention=sdpa"


def test_a_refused_pair_stops_a_run_and_an_untried_one_is_named() -> None:
    rows = (
        pairs("learner.sequence_parallel", "sdpa", "refused", "it is wrong"),
        pairs(FEATURES, FEATURES, "untried"),
    )
    spec, hardware, _ = run_with("learner.sequence_parallel")
    with pytest.raises(ConfigurationError, match=r"parallel with .*attention=sdpa: it is wrong$"):
        list(check(rows, spec, hardware, "sdpa"))
    named = "hardware.learner.sequence_parallel with hardware.learner.attention=flash_attention_2"
    assert named in list(check(rows, spec, hardware, "flash_attention_2"))


def test_flash_attention_in_fp32_is_refused_on_gpus_only() -> None:
    spec, hardware, attention = run_with("fp32", "flash attention")
    with pytest.raises(ConfigurationError, match="16 bits"):
        list(check(COMMON, spec, hardware, attention))
    cpu = replace(hardware, device="cpu")
    assert list(check(COMMON, spec, cpu, attention)) == []


def test_rows_name_features_and_reasons() -> None:
    with pytest.raises(ValueError, match="no such feature: gpus"):
        pairs("gpus", "sdpa", "untried")
    with pytest.raises(ValueError, match="say why"):
        pairs("nodes", "sdpa", "refused")
    assert features(RUN, Hardware(), "sdpa") == ["learner.checkpointing", "sdpa"]

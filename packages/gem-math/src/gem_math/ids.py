"""The ids of math problems; nothing is imported or loaded here."""

from __future__ import annotations

from gem.registry import register

# Set of axon-rl, and its bundled sample.
_TASKS = {
    "ASDiv2K": ("ASDIV-2k", "arithmetic"),
    "GSM8K": ("GSM-8k", "gsm8k"),
    "Math12K": ("MATH-12k", "math"),
    "Math8K-3to5": ("MATH-lvl3to5-8k", "math"),
    "Orz57K": ("ORZ-57k", "math"),
    "DeepScaleR40K": ("DeepScaleR-40K", "math"),
}
_EVALUATIONS = {
    "MATH500": "math",
    "AMC": "amc",
    "OlympiadBench": "olympiad_bench",
    "Minerva": "minerva",
    "AIME24": "aime24",
}
"""Splits of one set."""


def register_all() -> None:
    """Register every id; the registry calls it through the entry-point group `gem.envs`."""
    for id, (name, sample) in _TASKS.items():
        register(f"math:{id}", "gem_math.env:MathEnv", source=f"hub:axon-rl/{name}", sample=sample)
    register(
        "math:Geometry3K",
        "gem_math.env:MathVisualEnv",
        source="hub:axon-rl/geometry3k",
        sample="geometry",
        split="train",
    )
    given = {"source": "hub:axon-rl/math-eval", "sample": "math"}
    for id, split in _EVALUATIONS.items():
        register(f"eval:{id}", "gem_math.env:MathEnv", **{**given, "split": split, "eval": True})

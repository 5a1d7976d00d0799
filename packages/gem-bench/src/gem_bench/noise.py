"""Perturbs weights by about one rounding error, to measure the noise floor of comparisons.

    python -m gem_bench.noise MODEL FOLDER --seed 1

Other machines, kernels or orders of summation change the last digits of numbers. To claim nothing
that depends on them, tests repeat a comparison from perturbed weights and measure how far apart two
correct trainers may be.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from gem.errors import ConfigurationError, exit_status

RELATIVE = 1e-7
"""Relative size of a perturbation: below the spacing of float32, about 1.2e-7; some weights do not
change."""


@torch.no_grad()
def perturb(parameters: Iterable[Any], *, seed: int) -> None:
    """Multiply every weight, in place, by 1 plus a normal number of standard deviation `RELATIVE`.

    Args:
        parameters: Tensors on any device.
        seed: Seed of the normal numbers.

    Raises:
        ConfigurationError: Weights are in a format that has no numbers so near to each other.
    """
    generator = torch.Generator().manual_seed(seed)
    for parameter in parameters:
        if parameter.dtype not in (torch.float32, torch.float64):
            raise ConfigurationError(
                f"weights in {parameter.dtype} cannot change by a relative {RELATIVE:g}; save the "
                "model in float32"
            )
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.mul_((1 + RELATIVE * noise).to(parameter.device))


def perturbed_copy(model: str | Path, folder: str | Path, *, seed: int) -> Path:
    """Copy a model's folder, perturb the weights of the copy, and return its path.

    Raises:
        ConfigurationError: There are no weights, or none that can be perturbed.
        OSError: The folder exists already, or it cannot be written.
    """
    from safetensors.torch import load_file, save_file

    copy = Path(shutil.copytree(model, folder))
    files = sorted(copy.glob("*.safetensors"))
    if not files:
        raise ConfigurationError(f"{model} has no weights (*.safetensors)")
    for path in files:
        weights = load_file(path)
        perturb((weights[name] for name in sorted(weights)), seed=seed)
        save_file(weights, path, metadata={"format": "pt"})
    return copy


def main(argv: list[str] | None = None) -> int:
    """Write a perturbed copy of a model and print its folder."""
    parser = argparse.ArgumentParser(prog="python -m gem_bench.noise", description=__doc__)
    parser.add_argument("model", type=Path, help="folder of a model")
    parser.add_argument("folder", type=Path, help="where to write the copy")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    return exit_status(
        lambda: print(perturbed_copy(args.model, args.folder, seed=args.seed)), OSError
    )


if __name__ == "__main__":
    sys.exit(main())

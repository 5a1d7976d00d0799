"""The command `python -m gem_bench.reference`: train from a spec file, record, save the model."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from gem.blame import cause_of
from gem.errors import GemError
from gem_bench.checkpoints import Checkpoints
from gem_bench.lora import merge
from gem_bench.reference import train
from gem_bench.reference_setup import read_spec
from gem_bench.seeing import load_tokenizer
from gem_train.experiment.metrics import show


def _slow_in_bf16(device: str) -> bool:
    if not (device == "cpu" or (device == "auto" and not torch.cuda.is_available())):
        return False
    supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return supported is not None and not supported()


def main(argv: Sequence[str] | None = None) -> int:
    """Train from the command line; return 2, with a message on stderr, if the run fails."""
    parser = argparse.ArgumentParser(
        prog="python -m gem_bench.reference", description="Train with the reference trainer."
    )
    parser.add_argument("--spec", type=Path, required=True, help="RunSpec, TOML or JSON")
    parser.add_argument("--record", type=Path, required=True, help="folder of the run's record")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:<n>")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0 leaves torch's")
    parser.add_argument(
        "--checkpoint-every",
        type=int,
        metavar="N",
        help="go on from the last checkpoint and save one every N iterations (0: none); by default "
        "there are none, and a folder with a record is refused",
    )
    parser.add_argument(
        "--forward-tokens",
        type=int,
        help="most tokens of a forward pass; by default 65,536 on a GPU and 1,024 on a CPU",
    )
    parser.add_argument(
        "--gradient-checkpointing",
        action="store_true",
        help="compute activations again in the backward pass",
    )
    parser.add_argument("--save", type=Path, help="folder for the trained model")
    args = parser.parse_args(argv)
    # Deterministic cuBLAS: otherwise the order of its sums may change from run to run.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if args.threads > 0:
        torch.set_num_threads(args.threads)
    try:
        spec = read_spec(args.spec)
        if spec.training.precision == "bf16" and _slow_in_bf16(args.device):
            sys.stderr.write(
                "training.precision: this CPU has no instructions for bf16, and passes take "
                "several times as long as in fp32\n"
            )
        every = args.checkpoint_every
        learner = train(
            spec,
            args.record,
            device=args.device,
            forward_tokens=args.forward_tokens,
            gradient_checkpointing=args.gradient_checkpointing,
            checkpoints=None if every is None else Checkpoints(args.record, spec, every),
            report=show,
        )
        if args.save is not None:
            merge(learner.policy)
            learner.policy.save_pretrained(args.save)
            load_tokenizer(spec.policy.model).save_pretrained(args.save)
    except GemError as error:
        cause = cause_of(error)
        sys.stderr.write(f"{error}\n" if cause is None else f"{cause}: {error}\n")
        return 2
    return 0

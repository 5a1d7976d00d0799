"""The example's command on GPUs, as OpenRLHF's own parser reads it; nothing is started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from gem_openrlhf.settings import check_flags, load_settings

EXAMPLE = Path(__file__).parents[2] / "packages/gem-openrlhf/examples/train_openrlhf.sh"
PYTHON = f"""#!/bin/bash
case "$*" in
  "-c import flash_attn") ;;
  "-m openrlhf.cli.train_ppo_ray "*) printf '%s\\n' "${{@:3}}" > "$OUT/argv" ;;
  *) exec {sys.executable} "$@" ;;
esac
"""
RAY = """#!/bin/bash
[[ "$1" == status ]] && exec test -s "$OUT/ray"
printf '%s\\n' "$@" > "$OUT/ray"
exec sleep 60
"""


def given(folder: Path, **environment: str) -> list[str]:
    """Start the example where `python` and `ray` only note how they are called."""
    programs = folder / "bin"
    programs.mkdir()
    for name, text in (("python", PYTHON), ("ray", RAY)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [EXAMPLE, "--train.num_episodes", "2"],
        env={**os.environ, "OUT": str(folder), **environment, "PATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return (folder / "argv").read_text().splitlines()


def test_two_nodes_of_eight_gpus(world: Any, tmp_path: Path) -> None:
    argv = given(tmp_path, GPUS="8", NODES="2", HOST="10.0.0.1")
    args = world.parse(argv)
    settings = load_settings(args.train.agent_func_path)
    assert settings is not None and settings.advantage == "rebn"
    check_flags(args, settings)
    assert (args.actor.num_nodes, args.actor.num_gpus_per_node) == (2, 8)
    assert (args.vllm.num_engines, args.vllm.enable_prefix_caching) == (16, True)
    assert args.train.colocate_all and args.vllm.enable_sleep and args.ds.enable_sleep
    assert args.actor.gradient_checkpointing_enable
    assert args.ckpt.load_enable and args.ckpt.save_steps == args.eval.steps == 20
    assert args.train.num_episodes == 2
    assert args.train.dynamic_batch_enable and args.ds.packing_samples
    # A forward pass holds the longest episode.
    assert args.train.max_tokens_per_gpu == args.rollout.max_tokens_per_gpu > args.data.max_len
    begun = (tmp_path / "ray").read_text().splitlines()
    assert begun[begun.index("--node-ip-address") + 1] == "10.0.0.1"
    assert begun[begun.index("--num-gpus") + 1] == "8"

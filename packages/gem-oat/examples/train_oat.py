"""Train an LLM agent in a GEM environment with oat, on oat's own launcher and flags.

    python train_oat.py                              8 GPUs of 80 GB: Qwen3-1.7B-Base
    python train_oat.py --gpus 2 --max_train 1280    any flag of oat or GEM wins over those below
    MODEL=/path/to/tiny python train_oat.py --cpu    the same training for real, without a GPU: a
                                                     model of a few hundred thousand weights

Needs: oat-llm 0.2 with vLLM on Python 3.10, and gem-core and gem-oat from a clone (for --cpu
gem-cpu, see docs/oat.md). Check: python -m gem_oat.doctor

Launchpad starts processes that import `gem_oat` themselves: nothing of a run may be defined in this
file. Subclasses of `gem_oat.Learner` or `gem_oat.Actor` go into a module of their own, and from
there into `main(flags, learner=..., actor=...)`.
"""

from __future__ import annotations

import os
import sys

ENV = os.environ.get("ENV", "game:GuessTheNumber-v0")

RUN = {
    # What is played: task j of iteration k has the seed k * rollout_batch_size + j.
    "gem_tasks": f"gem:{ENV}?seed=0",
    "gem_eval": f"gem:{ENV}?n=64&seed=1000000#name=same&temperature=0",
    "eval_steps": 20,
    # How a turn's advantage is computed: also reinforce, grpo, rloo (with num_samples above 1), and
    # gae, which needs critic_type=ppo.
    "gem_advantage": "rebn",
    "gamma": 0.9,  # per turn, not per token
    # An iteration: tasks, episodes of each, episodes of an optimiser step; max_train is in tasks.
    "rollout_batch_size": 128,
    "num_samples": 1,
    "train_batch_size": 128,
    "max_train": 25600,
    # Token limits of a first prompt, of a whole episode, and of a turn.
    "prompt_max_length": 1024,
    "max_model_len": 5120,
    "generate_max_length": 512,
    "eval_generate_max_length": 512,
    # Optimiser.
    "learning_rate": 1e-6,
    "lr_scheduler": "constant",
    "lr_warmup_ratio": 0,
    "zero_stage": 2,
    # Actor and learner take turns on every GPU.
    "pretrain": os.environ.get("MODEL", "Qwen/Qwen3-1.7B-Base"),
    "gpus": 8,
    "vllm_gpu_ratio": 0.45,
}
SWITCHES = ["--collocate", "--vllm_sleep", "--enable_prefix_caching", "--gradient_checkpointing"]

CPU_RUN = {
    "gem_tasks": f"gem:{ENV}-easy?seed=0&hint=range&prompt=short",
    "gem_eval": f"gem:{ENV}-easy?n=16&seed=1000000&hint=range&prompt=short#name=same&temperature=0",
    "eval_steps": 2,
    "rollout_batch_size": 16,
    "train_batch_size": 16,
    "max_train": 48,
    "prompt_max_length": 40,
    "max_model_len": 168,
    "generate_max_length": 8,
    "eval_generate_max_length": 8,
    "learning_rate": 1e-3,
    "gpus": 1,
    "shm_size_mb": 100,
}
CPU_SWITCHES = ["--collocate", "--no-bf16", "--no-flash_attn", "--no-use_fused_lm_head"]
CPU_ENVIRONMENT = {
    "GEM_CPU": "1",
    "DS_ACCELERATOR": "cpu",
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "HF_HUB_OFFLINE": "1",
}


def without_gpu() -> None:
    """Begin again in an environment in which every Python process gets gem-cpu's shims."""
    from gem_cpu.openrlhf_plugin import startup_folder

    path = os.pathsep.join(filter(None, [str(startup_folder()), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, **CPU_ENVIRONMENT, "PYTHONPATH": path}
    os.execve(sys.executable, [sys.executable, *sys.argv], environment)


def main() -> int:
    """Put the flags together and train."""
    flags = sys.argv[1:]
    cpu = "--cpu" in flags
    if cpu and os.environ.get("GEM_CPU") != "1":
        if "MODEL" not in os.environ:
            sys.exit("set MODEL to a tiny model: python -m gem_cpu.tiny_model --out tiny")
        without_gpu()
    run = RUN | CPU_RUN if cpu else RUN
    switches = CPU_SWITCHES if cpu else SWITCHES
    own = [flag for flag in flags if flag != "--cpu"]

    import gem_oat

    return gem_oat.main([*(f"--{name}={value}" for name, value in run.items()), *switches, *own])


if __name__ == "__main__":
    sys.exit(main())

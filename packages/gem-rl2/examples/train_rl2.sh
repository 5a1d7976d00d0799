#!/usr/bin/env bash
# Train an LLM agent in a GEM environment with RL2, on RL2's own launcher.
#
#   ./train_rl2.sh                                  8 GPUs of 80 GB: Qwen3-1.7B-Base
#   ./train_rl2.sh actor.lr=5e-7                    any further key of RL2 wins over those below
#   MODEL=/path/to/tiny ./train_rl2.sh --cpu        the same training for real, without a GPU: a model
#                                                   of a few hundred thousand weights, a few iterations
#
# Needs: RL2 with SGLang, and gem-core and gem-rl2 from a clone  (for --cpu also gem-cpu, see docs)
# Check: python -m gem_rl2.doctor
set -euo pipefail

cpu=false
if [[ "${1:-}" == "--cpu" ]]; then
  cpu=true
  shift
fi
model=${MODEL:-Qwen/Qwen3-1.7B-Base}
env=${ENV:-game:GuessTheNumber-v0}
out=${OUT:-$PWD/runs/train_rl2}
tasks=25600
gpus=${GPUS:-8}
mkdir -p "$out"

# How episodes are played: GEM's keys.
gem=(
  rollout.env_path="$(python -m gem_rl2 env-path)"
  +gem.advantage=rebn       # also reinforce, grpo, rloo, gae; left out: RL2's own, adv.estimator
  +gem.prompt_tokens=1024   # of the first prompt; the rest of actor.max_length_per_device is for the episode
  +gem.task_order=file      # train on the tasks in their order
  +gem.trainer_seed=0
)

# RL2's keys; gamma is per turn, not per token.
keys=(
  actor.model_name="$model" actor.max_length_per_device=5120 actor.max_grad_norm=1.0
  actor.avg_level=token     # mean over all sampled tokens of an optimiser step
  adv.estimator=reinforce   # creates no critic; gae does, and goes with +gem.advantage=gae
  adv.gamma=0.9
  trainer.project=gem trainer.experiment_name=guess trainer.use_wandb=false
  trainer.test_freq=20 trainer.save_dir="$out/model" hydra.run.dir="$out/hydra"
  rollout.dynamic_filtering=false trainer.n_epochs=1 actor.scheduler=constant actor.warmup_ratio=0
)

batch=128

if $cpu; then
  # gem-cpu makes RL2 and SGLang run on the CPU; everything is small and fp32.
  : "${MODEL:?the path of a tiny model is needed; make one with: python -m gem_cpu.tiny_model --out tiny}"
  unset CUDA_VISIBLE_DEVICES
  PYTHONPATH=$(python -c 'from gem_cpu.rl2_plugin import folders; print(folders())')${PYTHONPATH:+:$PYTHONPATH}
  export PYTHONPATH GEM_CPU=1 GEM_CPU_DTYPE=float32 SGLANG_USE_CPU_ENGINE=1 OMP_NUM_THREADS=1
  export GLOO_SOCKET_IFNAME=lo TORCHDYNAMO_DISABLE=1 HF_HUB_OFFLINE=1 WANDB_MODE=disabled
  env="${ENV:-game:GuessTheNumber-v0-easy}?hint=range&prompt=short"
  tasks=48 gpus=1 batch=16
  server=+rollout.server_args
  keys+=(
    +gem.turn_tokens=16 actor.max_length_per_device=1024 trainer.test_freq=3
    actor.offload_model=false actor.offload_optimizer=false actor.gradient_checkpointing=false
    $server.device=cpu $server.attention_backend=torch_native $server.sampling_backend=pytorch
    $server.disable_overlap_schedule=true $server.max_total_tokens=32768 $server.skip_server_warmup=true
    $server.random_seed=0 rollout.server_args.dtype=float32
  )
  keys+=(actor.lr=1e-3 actor.weight_decay=0)
  gem[2]=+gem.prompt_tokens=128
else
  keys+=(actor.lr=1e-6 actor.weight_decay=0)
fi

# Seeded tasks as RL2's rows.
[[ $env == *\?* ]] && uri="gem:$env&" || uri="gem:$env?"
python -m gem_rl2.make_dataset "$out/train.jsonl" "${uri}n=$tasks&seed=0"
python -m gem_rl2.make_dataset --eval "$out/eval.jsonl" "${uri}n=16&seed=1000000#name=same&temperature=0"

torchrun --standalone --nproc-per-node "$gpus" -m RL2.trainer.ppo \
  "${gem[@]}" "${keys[@]}" \
  train_data.path="$out/train.jsonl" train_data.prompts_per_rollout=$batch \
  train_data.responses_per_prompt=1 test_data.path="$out/eval.jsonl" \
  rollout.train_sampling_params.temperature=1.0 rollout.train_sampling_params.max_new_tokens=512 \
  "$@"

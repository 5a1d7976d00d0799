#!/usr/bin/env bash
# Train an LLM agent in a GEM environment with ROLL, on ROLL's own launcher.
#
#   GEM_ROLL_HOME=/path/to/ROLL ./train_roll.sh      8 GPUs of 80 GB: Qwen3-1.7B-Base
#   MODEL=/path/to/tiny ./train_roll.sh --cpu        the same training for real, without a GPU: a
#                                                    model of a few hundred thousand weights
#
# Needs: a checkout of ROLL at commit 8eb27cc with its requirements but gem-llm, and
#        gem-core and gem-roll from a clone  (for --cpu also gem-cpu, see docs/roll.md)
# Check: python -m gem_roll.doctor
set -euo pipefail
: "${GEM_ROLL_HOME:?the path of a checkout of ROLL is needed: docs/roll.md}"

out=${OUT:-$PWD/runs/train_roll}
attention=sdpa
mkdir -p "$out"
export PYTHONPATH=$GEM_ROLL_HOME${PYTHONPATH:+:$PYTHONPATH}

if [[ "${1:-}" == "--cpu" ]]; then
  # gem-cpu makes ROLL and vLLM run on the CPU; everything is small and fp32.
  : "${MODEL:?the path of a tiny model is needed; make one with: python -m gem_cpu.tiny_model --out tiny}"
  unset CUDA_VISIBLE_DEVICES
  PYTHONPATH=$(python -c 'from gem_cpu.openrlhf_plugin import startup_folder; print(startup_folder())'):$PYTHONPATH
  export GEM_CPU=1 OMP_NUM_THREADS=1 TORCHDYNAMO_DISABLE=1 GLOO_SOCKET_IFNAME=lo HF_HUB_OFFLINE=1
  export VLLM_TARGET_DEVICE=cpu VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind
  export RAY_ADDRESS=local RAY_TMPDIR=${RAY_TMPDIR:-/tmp/gem-roll-$$} RAY_memory_monitor_refresh_ms=0
  model=$MODEL env=game:GuessTheNumber-v0-easy params='{hint: range, prompt: short}'
  steps=3 tasks=16 prompt=40 response=128 turn=8 evaluate=2 lr=1.0e-3 short=fp32 rows=16
  computed=', param_dtype: float32'
  train_on='list(range(0,1))' sample_on='list(range(1,2))' sharded=1
  engine='{enforce_eager: true, gpu_memory_utilization: 0.1, attention_config: {}, load_format: auto}'
else
  model=${MODEL:-Qwen/Qwen3-1.7B-Base} env=${ENV:-game:GuessTheNumber-v0} params='{}'
  steps=200 tasks=128 prompt=1024 response=4096 turn=512 evaluate=20 lr=1.0e-6 short=bf16 rows=2
  computed=   # by default bf16; a param_dtype of bfloat16 would also be that of the optimiser's weights
  train_on='list(range(0,8))' sample_on='list(range(0,8))' sharded=8   # ROLL gives the GPUs to one at a time
  engine='{gpu_memory_utilization: 0.6, load_format: auto}'
  ! python -c 'import flash_attn' 2>/dev/null || attention=fa2
fi

# ROLL's configuration. Two dotted paths switch GEM on: pipeline_cls and env_manager_cls.
cat > "$out/config.yaml" <<EOF
pipeline_cls: gem_roll.pipeline.GemAgenticPipeline
exp_name: guess
seed: 0
logging_dir: $out/logs
output_dir: $out/output
checkpoint_config: {type: file_system, output_dir: $out/model}
track_with: stdout
num_gpus_per_node: 8
max_steps: $steps
save_steps: 100
logging_steps: 1000000          # ROLL writes whole conversations into its log
eval_steps: $evaluate           # before iteration 0, $evaluate, ...

pretrain: $model
reward_pretrain: $model
sequence_length: $((prompt + response))
rollout_batch_size: $tasks      # num_env_groups * group_size

adv_estimator: reinforce        # creates no critic; gae does, and goes with gem.advantage: gae
gamma: 0.9                      # per turn, not per token
reward_normalization: {grouping: batch, method: identity}   # GEM's estimators normalise
init_kl_coef: 0.0
loss_agg_mode: token-mean
pg_clip: 0.2
ppo_epochs: 1
max_grad_norm: 1.0

actor_train:
  model_args: {attn_implementation: $attention, dtype: $short}
  training_args:
    learning_rate: $lr
    weight_decay: 0
    lr_scheduler_type: constant
    per_device_train_batch_size: $rows
    gradient_accumulation_steps: $((tasks / rows / sharded))   # the whole batch in one optimiser step
  strategy_args:
    strategy_name: fsdp2_train
    strategy_config: {fsdp_size: $sharded, reduce_dtype: float32$computed}
  device_mapping: $train_on
  infer_batch_size: $rows
actor_infer:
  model_args: {dtype: $short}
  generating_args: {max_new_tokens: $turn, temperature: 1.0, top_p: 1.0, top_k: -1}   # of a turn
  strategy_args: {strategy_name: vllm, strategy_config: $engine}
  device_mapping: $sample_on

train_env_manager: {num_env_groups: $tasks, group_size: 1, tags: [guess], num_groups_partition: [$tasks], max_env_num_per_worker: 64}
val_env_manager: {num_env_groups: 16, group_size: 1, tags: [same], num_groups_partition: [16], max_env_num_per_worker: 64}
val_batch_size: 16

custom_envs:
  guess:                        # tasks to train on: task j of iteration k has seed k * $tasks + j
    env_type: $env
    env_config: $params
    env_manager_cls: gem_roll.env_manager.GemEnvManager
    gem: &gem
      advantage: rebn           # also reinforce, gae, and with group_size > 1 grpo, rloo
      prompt_tokens: $prompt    # of the first prompt; the rest of sequence_length is for the episode
      first_seed: 0
      record_dir: $out
  same:                         # tasks to evaluate on, greedily
    env_type: $env
    env_config: $params
    env_manager_cls: gem_roll.env_manager.GemEnvManager
    gem: {<<: *gem, first_seed: 1000000, temperature: 0.0}
EOF

export ROLL_LOG_DIR=$out/logs
launcher=$GEM_ROLL_HOME/examples/start_agentic_pipeline.py
# Hydra takes the folder relative to the script.
exec python "$launcher" --config_path "$(realpath --relative-to "$GEM_ROLL_HOME/examples" "$out")" --config_name config

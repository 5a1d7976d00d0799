#!/usr/bin/env bash
# Train an LLM agent in a GEM environment with verl, on verl's own launcher.
#
#   ./train_verl.sh                            all GPUs of this node, of 80 GB: Qwen3-1.7B-Base
#   GPUS=4 ./train_verl.sh                     four of them
#   ./train_verl.sh data.train_batch_size=64   any further setting of verl wins over those below
#   RAY_ADDRESS=10.0.0.1:6379 ./train_verl.sh trainer.nnodes=2
#                                              two nodes, which have joined one Ray cluster before:
#                                              ray start --head --port 6379, and on the other node
#                                              ray start --address 10.0.0.1:6379
#   MODEL=/path/to/tiny ./train_verl.sh --cpu  the same training for real, without a GPU: a model
#                                              of a few hundred thousand weights, a few iterations
#
# Needs: verl[vllm]>=0.9.1,<0.10, gem-core and gem-verl (from a clone, docs/verl.md), better also flash-attn
# Check: python -m gem_verl.doctor
set -euo pipefail

cpu=false
if [[ "${1:-}" == "--cpu" ]]; then
  cpu=true
  shift
fi
model=${MODEL:-Qwen/Qwen3-1.7B-Base}
env=${ENV:-game:GuessTheNumber-v0}
gpus=1
attention=sdpa
if ! $cpu; then
  gpus=${GPUS:-$(nvidia-smi --list-gpus 2>/dev/null | grep -c . || true)}
  [[ $gpus -gt 0 ]] || { echo "no GPU is found: set GPUS, or run with --cpu" >&2; exit 2; }
  ! python -c 'import flash_attn' 2>/dev/null || attention=flash_attention_2
fi

# What GEM adds: where episodes come from, who plays them, how turns become advantages.
gem=(
  data.custom_cls.path=pkg://gem_verl.dataset
  data.custom_cls.name=GemDataset
  "data.train_files=\"gem:$env?n=25600&seed=0\""                  # 25600 different episodes
  "data.val_files=[\"gem:$env?n=128&seed=1000000#name=same\",\"gem:game:Mastermind-v0?n=128#name=other\"]"
  data.shuffle=False                                              # train on seeds in their order
  actor_rollout_ref.rollout.agent.default_agent_loop=gem          # a row per episode; gem_turns: per turn
  algorithm.adv_estimator=gem_rebn                                # also gem_grpo, gem_rloo, gem_reinforce, gem_gae
  algorithm.gamma=0.9                                             # per turn, not per token
  trainer.v1.trainer_mode=gem_sync                                # verl's `sync` plus gem/* metrics and a record
  +gem.turn_tokens=512                                            # most tokens of one turn
  +gem.record_dir="$PWD/runs/train_verl"                          # metrics and episodes as JSON lines
)

# What any verl run says.
run=(
  data.train_batch_size=128 data.max_prompt_length=1024 data.max_response_length=4096
  actor_rollout_ref.model.path="$model"
  +actor_rollout_ref.model.override_config.attn_implementation="$attention"
  actor_rollout_ref.model.use_remove_padding=True                    # rows are packed, not padded
  actor_rollout_ref.model.use_fused_kernels=True                     # never the logits of a whole pass
  actor_rollout_ref.model.enable_gradient_checkpointing=True
  actor_rollout_ref.actor.strategy=fsdp2
  actor_rollout_ref.actor.optim.lr=1e-6
  actor_rollout_ref.actor.ppo_mini_batch_size=128                    # one update per batch
  actor_rollout_ref.actor.use_dynamic_bsz=True
  actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384
  actor_rollout_ref.rollout.name=vllm
  actor_rollout_ref.rollout.n=1                                      # episodes per seed; GRPO wants more
  actor_rollout_ref.rollout.tensor_model_parallel_size=1
  actor_rollout_ref.rollout.gpu_memory_utilization=0.5
  actor_rollout_ref.rollout.max_model_len=5120
  actor_rollout_ref.rollout.val_kwargs.temperature=0
  trainer.n_gpus_per_node="$gpus" trainer.nnodes=1
  trainer.total_training_steps=200 trainer.test_freq=20 trainer.save_freq=50
  trainer.project_name=gem trainer.experiment_name=train_verl 'trainer.logger=[console]'
)

# Without a GPU: gem-cpu makes verl and vLLM run on the CPU, everything is small and fp32.
if $cpu; then
  : "${MODEL:?the path of a tiny model is needed; make one with: python -m gem_cpu.tiny_model --out tiny}"
  unset CUDA_VISIBLE_DEVICES RAY_ADDRESS
  export GEM_CPU=1 VERL_PLATFORM=cpu VERL_ENGINE_DEVICE=cuda VLLM_TARGET_DEVICE=cpu
  export VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1
  export TORCHDYNAMO_DISABLE=1 RAY_memory_monitor_refresh_ms=0 HF_HUB_OFFLINE=1
  small="gem:${ENV:-game:GuessTheNumber-v0-easy}?hint=range&prompt=short"
  run+=(
    "data.train_files=\"$small&n=64\"" "data.val_files=\"$small&n=16&seed=1000000#name=same\""
    data.train_batch_size=16 data.max_prompt_length=128 data.max_response_length=256
    data.dataloader_num_workers=0 gem.turn_tokens=16 +gem.seed=0
    actor_rollout_ref.actor.optim.lr=1e-3 actor_rollout_ref.actor.ppo_mini_batch_size=16
    actor_rollout_ref.actor.fsdp_config.strategy=fsdp2
    actor_rollout_ref.actor.fsdp_config.use_torch_compile=False
    +actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=fp32
    +actor_rollout_ref.actor.fsdp_config.mixed_precision.reduce_dtype=fp32
    +actor_rollout_ref.actor.fsdp_config.mixed_precision.buffer_dtype=fp32
    actor_rollout_ref.model.enable_gradient_checkpointing=False
    actor_rollout_ref.rollout.dtype=float32 actor_rollout_ref.rollout.enforce_eager=True
    actor_rollout_ref.rollout.free_cache_engine=False +actor_rollout_ref.rollout.enable_sleep_mode=False
    actor_rollout_ref.rollout.max_model_len=384 actor_rollout_ref.rollout.max_num_seqs=32
    actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes=16
    actor_rollout_ref.rollout.agent.num_workers=1 reward.num_workers=1
    trainer.device=cpu trainer.total_training_steps=3 trainer.test_freq=3 trainer.save_freq=-1
    trainer.resume_mode=disable
    +ray_kwargs.ray_init.address=local +ray_kwargs.ray_init.num_gpus=1 ray_kwargs.ray_init.num_cpus=10
    +ray_kwargs.ray_init.object_store_memory=500000000 +ray_kwargs.ray_init.include_dashboard=False
    transfer_queue.backend.SimpleStorage.num_data_storage_units=1
  )
fi

exec python -m verl.trainer.main_ppo "${gem[@]}" "${run[@]}" "$@"

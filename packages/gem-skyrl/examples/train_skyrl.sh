#!/usr/bin/env bash
# Train an LLM agent in a GEM environment with SkyRL, on SkyRL's own launcher.
#
#   ./train_skyrl.sh                                all GPUs of this machine, of 80 GB: Qwen3-1.7B-Base
#   GPUS=4 ./train_skyrl.sh                         four of them
#   ./train_skyrl.sh trainer.ckpt_interval=50       any further setting of SkyRL wins over those below
#   MODEL=/path/to/tiny ./train_skyrl.sh --cpu      the same training for real, without a GPU: a model
#                                                   of a few hundred thousand weights, a few iterations
#
# Started again with the same OUT, it goes on from the last checkpoint; remove $OUT/checkpoints to begin anew.
#
# Needs: SkyRL 0.4 with vLLM, and gem-core and gem-skyrl from a clone  (for --cpu also gem-cpu, see docs)
# Check: python -m gem_skyrl.doctor
set -euo pipefail

cpu=false
if [[ "${1:-}" == "--cpu" ]]; then
  cpu=true
  shift
fi
model=${MODEL:-Qwen/Qwen3-1.7B-Base}
env=${ENV:-game:GuessTheNumber-v0}
out=${OUT:-$PWD/runs/train_skyrl}
tasks=25600
gpus=1
if ! $cpu; then
  gpus=${GPUS:-$(nvidia-smi --list-gpus 2>/dev/null | grep -c . || true)}
  [[ $gpus -gt 0 ]] || { echo "no GPU is found: set GPUS, or run with --cpu" >&2; exit 2; }
fi
mkdir -p "$out"

# What any SkyRL run says, and the table `gem`; gamma is per turn, not per token.
run=(
  trainer.override_entrypoint=gem_skyrl.entrypoint   # switches GEM on
  gem.advantage=rebn                                 # also reinforce, grpo, rloo, gae (with a critic's model)
  gem.turn_tokens=512                                # most tokens of one turn
  gem.response_tokens=4096                           # most tokens after the first prompt
  trainer.max_prompt_length=1024                     # of the first prompt
  trainer.policy.model.path="$model" trainer.ref.model.path="$model"
  trainer.strategy=fsdp trainer.epochs=1
  trainer.algorithm.gamma=0.9 trainer.algorithm.use_kl_loss=false
  trainer.algorithm.loss_reduction=token_mean
  trainer.train_batch_size=128 trainer.policy_mini_batch_size=128 generator.n_samples_per_prompt=1
  trainer.policy.optimizer_config.lr=1e-6 trainer.policy.optimizer_config.weight_decay=0
  trainer.policy.optimizer_config.scheduler=constant
  trainer.placement.policy_num_gpus_per_node="$gpus" trainer.placement.ref_num_gpus_per_node="$gpus"
  generator.inference_engine.num_engines="$gpus"
  generator.inference_engine.engine_init_kwargs.max_model_len=5120
  trainer.eval_interval=20 trainer.eval_before_train=true trainer.dump_eval_results=false
  trainer.ckpt_path="$out/checkpoints" trainer.ckpt_interval=20 trainer.max_ckpts_to_keep=2
  trainer.export_path="$out/exports" trainer.log_path="$out/logs"
  trainer.logger=console trainer.print_example_interval=-1
  data.train_data="['$out/train.jsonl']" data.val_data="['$out/eval.jsonl']" data.dataloader.num_workers=0
)

if $cpu; then
  # gem-cpu makes SkyRL and vLLM run on the CPU; everything is small and fp32.
  : "${MODEL:?the path of a tiny model is needed; make one with: python -m gem_cpu.tiny_model --out tiny}"
  unset CUDA_VISIBLE_DEVICES
  PYTHONPATH=$(python -c 'from gem_cpu.openrlhf_plugin import startup_folder; print(startup_folder())')${PYTHONPATH:+:$PYTHONPATH}
  RAY_TMPDIR=$(mktemp -d)
  trap 'rm -rf "$RAY_TMPDIR"' EXIT
  export PYTHONPATH RAY_TMPDIR GEM_CPU=1 VLLM_TARGET_DEVICE=cpu VLLM_CPU_KVCACHE_SPACE=1 VLLM_NO_USAGE_STATS=1
  export VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1 TORCHDYNAMO_DISABLE=1 HF_HUB_OFFLINE=1
  export GLOO_SOCKET_IFNAME=lo RAY_ADDRESS=local RAY_memory_monitor_refresh_ms=0 RAY_prestart_worker_first_driver=0
  export RAY_OVERRIDE_RESOURCES='{"CPU": 10, "GPU": 2}'   # slots for learner and engine, only bookkeeping
  export SKYRL_DUMP_INFRA_LOG_TO_STDOUT=1
  env="${ENV:-game:GuessTheNumber-v0-easy}?hint=range&prompt=short"
  tasks=48
  engine=generator.inference_engine
  run+=(
    gem.seed=0 gem.turn_tokens=16 gem.response_tokens=256 trainer.max_prompt_length=128
    trainer.train_batch_size=16 trainer.policy_mini_batch_size=16 trainer.eval_interval=3
    trainer.micro_train_batch_size_per_gpu=16 trainer.micro_forward_batch_size_per_gpu=16
    trainer.policy.optimizer_config.lr=1e-3
    trainer.policy.fsdp_config.mixed_precision.param_dtype=fp32 "$engine.model_dtype=float32"
    trainer.flash_attn=false trainer.remove_microbatch_padding=false trainer.gradient_checkpointing=false
    trainer.use_expandable_segments=false trainer.enable_ray_gpu_monitor=false
    # Learner and engine stay in processes of their own, and the weights go through files.
    trainer.placement.colocate_all=false "$engine.weight_sync_backend=delta"
    "$engine.delta_weight_sync.sync_dir=$out/weights/published"
    "$engine.delta_weight_sync.local_checkpoint_dir=$out/weights/received"
    "$engine.delta_weight_sync.publish_staging_dir=$out/weights/staged"
    "$engine.engine_init_kwargs.max_model_len=384" "$engine.max_num_batched_tokens=4096" "$engine.max_num_seqs=16"
    "$engine.engine_init_kwargs.worker_cls=vllm.v1.worker.cpu_worker.CPUWorker"
    "$engine.engine_init_kwargs.enable_chunked_prefill=false" "$engine.distributed_executor_backend=mp"
    "$engine.enforce_eager=true" "$engine.enable_ray_prometheus_stats=false"
  )
else
  # Learner and engines take turns on every GPU. Rows without padding, as many in a forward pass as fit.
  run+=(
    trainer.placement.colocate_all=true
    generator.inference_engine.gpu_memory_utilization=0.7
    trainer.flash_attn=true trainer.remove_microbatch_padding=true trainer.max_tokens_per_microbatch=8192
  )
fi

# Seeded tasks as SkyRL's datasets.
[[ $env == *\?* ]] && uri="gem:$env&" || uri="gem:$env?"
python -m gem_skyrl.make_dataset "$out/train.jsonl" "${uri}n=$tasks&seed=0"
python -m gem_skyrl.make_dataset --eval "$out/eval.jsonl" "${uri}n=16&seed=1000000#name=same&temperature=0"

python -m skyrl.train.entrypoints.main_base "${run[@]}" "$@"

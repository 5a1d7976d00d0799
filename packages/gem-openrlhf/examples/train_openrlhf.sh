#!/usr/bin/env bash
# Train an LLM agent in a GEM environment with OpenRLHF, on OpenRLHF's own launcher.
#
#   ./train_openrlhf.sh                             all GPUs of this node, of 80 GB: Qwen3-1.7B-Base
#   GPUS=4 ./train_openrlhf.sh                      four of them
#   NODES=2 HOST=10.0.0.1 ./train_openrlhf.sh       with a second node, which runs
#                                                   ray start --block --address 10.0.0.1:6379
#   ./train_openrlhf.sh --train.num_episodes 2      any further flag of OpenRLHF wins over those below
#   MODEL=/path/to/tiny ./train_openrlhf.sh --cpu   the same training for real, without a GPU: a model
#                                                   of a few hundred thousand weights, a few iterations
#
# Started again with the same OUT, it goes on from the last checkpoint; remove $OUT/checkpoints to begin anew.
#
# Needs: OpenRLHF 0.11 with vLLM, and gem-core and gem-openrlhf from a clone  (for --cpu also gem-cpu, see docs)
# Check: python -m gem_openrlhf.doctor
set -euo pipefail

cpu=false
if [[ "${1:-}" == "--cpu" ]]; then
  cpu=true
  shift
fi
model=${MODEL:-Qwen/Qwen3-1.7B-Base}
env=${ENV:-game:GuessTheNumber-v0}
out=${OUT:-$PWD/runs/train_openrlhf}
tasks=25600
# Hardware: GPUs of a node, nodes, and the address at which others join (training begins once they have).
nodes=${NODES:-1}
host=${HOST:-127.0.0.1}
gpus=1
attention=sdpa
if ! $cpu; then
  gpus=${GPUS:-$(nvidia-smi --list-gpus 2>/dev/null | grep -c . || true)}
  [[ $gpus -gt 0 ]] || { echo "no GPU is found: set GPUS, or run with --cpu" >&2; exit 2; }
  ! python -c 'import flash_attn' 2>/dev/null || attention=flash_attention_2
fi
mkdir -p "$out"

# How episodes are played. OpenRLHF loads this file in its vLLM actors.
cat > "$out/agent.py" <<'AGENT'
from gem_openrlhf import GemAgentExecutor, Settings


class AgentExecutor(GemAgentExecutor):
    settings = Settings(
        advantage="rebn",     # also reinforce, grpo, rloo, gae; None: one of OpenRLHF's own
        prompt_tokens=1024,   # of the first prompt; the rest of --data.max_len is for the episode
        turn_tokens=512,      # most tokens of one turn
        task_order="file",    # train on the tasks in their order
    )
AGENT

# What any OpenRLHF run says; gamma is per turn, not per token.
run=(
  --train.agent_func_path "$out/agent.py"
  --actor.model_name_or_path "$model"
  --data.label_key label --data.max_len 5120
  --algo.advantage.estimator reinforce        # creates no critic; gae does, and goes with advantage="gae"
  --algo.advantage.gamma 0.9
  --algo.kl.init_coef 0
  --rollout.batch_size 128 --rollout.n_samples_per_prompt 1 --rollout.micro_batch_size 1
  --train.batch_size 128 --train.micro_batch_size 1  # rows of a forward pass: fp32 logits are 3 GB each
  --eval.steps 20 --eval.n_samples_per_prompt 1
  --actor.adam.lr 1e-6 --actor.lr_scheduler constant --actor.lr_warmup_ratio 0
  --actor.num_nodes "$nodes" --actor.num_gpus_per_node "$gpus"
  --ref.num_nodes "$nodes" --ref.num_gpus_per_node "$gpus"
  --critic.num_nodes "$nodes" --critic.num_gpus_per_node "$gpus"
  --vllm.num_engines $((nodes * gpus)) --vllm.tensor_parallel_size 1
  --ds.zero_stage 2
  --ds.attn_implementation "$attention"
  --logger.tensorboard_dir "$out/tensorboard"
  --ckpt.output_dir "$out/model" --ckpt.path "$out/checkpoints" --ckpt.best_metric_key none
  --ckpt.save_steps 20 --ckpt.max_num 2 --ckpt.load_enable  # 24 GB each
)
cluster=(--num-gpus "$gpus" --disable-usage-stats)

if $cpu; then
  # gem-cpu makes OpenRLHF, DeepSpeed and vLLM run on the CPU; everything is small and fp32.
  : "${MODEL:?the path of a tiny model is needed; make one with: python -m gem_cpu.tiny_model --out tiny}"
  unset CUDA_VISIBLE_DEVICES
  PYTHONPATH=$(python -c 'from gem_cpu.openrlhf_plugin import startup_folder; print(startup_folder())')${PYTHONPATH:+:$PYTHONPATH}
  export PYTHONPATH GEM_CPU=1 GEM_CPU_DTYPE=float32 DS_ACCELERATOR=cpu VLLM_TARGET_DEVICE=cpu
  export VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1 VLLM_NO_USAGE_STATS=1
  export TORCHDYNAMO_DISABLE=1 HF_HUB_OFFLINE=1 GLOO_SOCKET_IFNAME=lo RAY_memory_monitor_refresh_ms=0
  export RAY_prestart_worker_first_driver=0 TORCH_EXTENSIONS_DIR=$out/torch_extensions
  env="${ENV:-game:GuessTheNumber-v0-easy}?hint=range&prompt=short"
  tasks=48
  sed -i 's/prompt_tokens=1024,/prompt_tokens=128, seed=0,/; s/turn_tokens=512,/turn_tokens=16,/' "$out/agent.py"
  run+=(
    --data.max_len 384 --rollout.batch_size 16 --rollout.micro_batch_size 16
    --train.batch_size 16 --train.micro_batch_size 16 --eval.steps 3
    --actor.adam.lr 1e-3
    --vllm.enforce_eager --vllm.gpu_memory_utilization 0.1 --vllm.sync_backend gloo
  )
  # Two slots, for actor and engine; they are only bookkeeping.
  cluster=(--num-gpus 2 --num-cpus 8 --object-store-memory 500000000 --include-dashboard=false --disable-usage-stats)
else
  # Actor and engine take turns on every GPU.
  run+=(
    --train.colocate_all --vllm.enable_sleep --ds.enable_sleep --vllm.gpu_memory_utilization 0.4
    --vllm.enable_prefix_caching              # a turn's prompt is the episode so far
    --actor.gradient_checkpointing_enable
  )
  # Rows without padding, as many in a forward pass as fit: fp32 logits of 8,192 tokens are 5 GB.
  [[ $attention == sdpa ]] || run+=(
    --ds.packing_samples --train.dynamic_batch_enable
    --rollout.max_tokens_per_gpu 8192 --train.max_tokens_per_gpu 8192
  )
fi

# Seeded tasks as OpenRLHF's datasets.
[[ $env == *\?* ]] && uri="gem:$env&" || uri="gem:$env?"
python -m gem_openrlhf.make_dataset "$out/train.jsonl" "${uri}n=$tasks&seed=0"
python -m gem_openrlhf.make_dataset --eval "$out/eval.jsonl" "${uri}n=16&seed=1000000#name=same&temperature=0"
run+=(--data.prompt_dataset "$out/train.jsonl" --eval.dataset "$out/eval.jsonl")

# A Ray cluster of our own, on a free port if it is alone. `--block` keeps it in the foreground of a job whose process
# group ends with this script; `ray stop` would end every Ray on the machine.
port=6379
[[ $nodes -gt 1 ]] || port=$(python -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])')
temp=$(mktemp -d)
set -m
ray start --head --block --node-ip-address "$host" --port "$port" --temp-dir "$temp" "${cluster[@]}" \
  > "$out/ray.log" 2>&1 &
ray=$!
set +m
stop() {
  kill -TERM -- "-$ray" 2>/dev/null || true
  wait "$ray" 2>/dev/null || true
  kill -KILL -- "-$ray" 2>/dev/null || true
  rm -rf "$temp"
}
trap stop EXIT

# Ray gives up to its processes what it was started with; the hook is read by the launcher.
export RAY_ADDRESS=$host:$port RAY_RUNTIME_ENV_HOOK=gem_openrlhf.worker.runtime_env_hook
for _ in $(seq 120); do
  ray status >/dev/null 2>&1 && break
  kill -0 "$ray" 2>/dev/null || { tail -20 "$out/ray.log"; exit 1; }
  sleep 1
done
python -m openrlhf.cli.train_ppo_ray "${run[@]}" "$@"

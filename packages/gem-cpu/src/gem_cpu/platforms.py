"""Each trainer's settings and environment variables without a GPU (entry points `gem.platforms`).

Each trainer's page in docs/ says what the shims replace and leave untested.
"""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gem_train.experiment.hardware import Hardware, language, model_config
from gem_train.experiment.runspec import RunSpec
from gem_train.platforms import Platform, digest, python_path, socket_folder

_HERE = Path(__file__).parent
_STARTUP = _HERE / "startup"

_COMMON = {"GEM_CPU": "1", "OMP_NUM_THREADS": "1"}
_NO_COMPILER = {"TORCHDYNAMO_DISABLE": "1"}
_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"}
_VLLM = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
}
_RAY = {"RAY_memory_monitor_refresh_ms": "0", "RAY_USAGE_STATS_ENABLED": "0"}
_CUDA = "CUDA_VISIBLE_DEVICES"

_BUCKET = 32
_MOST_SEQUENCES = 64


def verl(spec: RunSpec, run_dir: Path, hardware: Hardware) -> Platform:
    """Return verl's settings and environment variables on CPU."""
    rollout, ray = "actor_rollout_ref.rollout", "ray_kwargs.ray_init"
    # A bucket must hold the largest weight, which is that of the embeddings, in fp32.
    model = language(model_config(spec.policy.model))
    largest = 4 * int(model.get("vocab_size", 0)) * int(model.get("hidden_size", 0))
    settings: dict[str, Any] = {
        "trainer.device": "cpu",
        "actor_rollout_ref.actor.fsdp_config.use_torch_compile": False,
        f"{rollout}.enforce_eager": True,
        # With chunked prefill vLLM rewinds the generator of a seeded request, which PyTorch's CPU
        # generators cannot do.
        f"{rollout}.enable_chunked_prefill": False,
        f"{rollout}.free_cache_engine": False,
        f"+{rollout}.enable_sleep_mode": False,
        f"{rollout}.checkpoint_engine.update_weights_bucket_megabytes": max(
            16, 1 + (largest >> 20)
        ),
        f"{rollout}.agent.num_workers": hardware.gpus,
        f"{rollout}.max_num_seqs": min(spec.episodes, 256),
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
    }
    one = hardware.nodes == 1
    if one:
        # A Ray cluster of the run's own, with GPU slots, which verl takes for its accelerators.
        settings |= {
            f"+{ray}.address": "local",
            f"{ray}.num_cpus": 7 + 3 * hardware.gpus,
            f"+{ray}.num_gpus": hardware.gpus,
            f"+{ray}.object_store_memory": 500_000_000,
            f"+{ray}.include_dashboard": False,
            f"+{ray}._temp_dir": socket_folder(run_dir),
        }
    if spec.algorithm.kl_coef:
        settings["actor_rollout_ref.ref.fsdp_config.use_torch_compile"] = False
    if spec.algorithm.estimator.needs_critic:
        settings["critic.fsdp.use_torch_compile"] = False
    env = {
        **_COMMON,
        **_NO_COMPILER,
        **(_LOOPBACK if one else {}),
        **_VLLM,
        **_RAY,
        "VERL_PLATFORM": "cpu",
        "VERL_ENGINE_DEVICE": "cuda",  # selects verl's FSDP engine; nothing touches CUDA
        "TORCH_EXTENSIONS_DIR": str(run_dir / "torch_extensions"),
    }
    return Platform(settings, env, unset=[_CUDA, "RAY_ADDRESS"] if one else [_CUDA])


def openrlhf(spec: RunSpec, run_dir: Path, hardware: Hardware) -> Platform:
    """Return OpenRLHF's settings and environment variables on CPU."""
    settings = {
        "vllm.enforce_eager": True,
        "vllm.gpu_memory_utilization": 0.1,
        "vllm.sync_backend": "gloo",
    }
    # OpenRLHF reserves a GPU slot per model and engine; here slots are bookkeeping only.
    models = 1 + (spec.algorithm.kl_coef > 0) + spec.algorithm.estimator.needs_critic
    slots = models * hardware.gpus + hardware.engines
    env = {
        **_COMMON,
        **_NO_COMPILER,
        **_LOOPBACK,
        **_VLLM,
        **_RAY,
        **python_path(_STARTUP),
        "DS_ACCELERATOR": "cpu",
        "RAY_ADDRESS": "local",  # the run's own cluster, which ends with the launcher
        "RAY_prestart_worker_first_driver": "0",  # idle processes, as many as there are CPUs
        "RAY_OVERRIDE_RESOURCES": json.dumps({"CPU": 6 + slots, "GPU": slots}),
        "RAY_TMPDIR": socket_folder(run_dir),
        "GEM_CPU_DTYPE": "float32" if spec.training.precision == "fp32" else "bfloat16",
        "TORCH_EXTENSIONS_DIR": str(Path(sys.prefix) / "torch_extensions"),
    }
    return Platform(settings, env, unset=[_CUDA])


def oat(spec: RunSpec, run_dir: Path, hardware: Hardware) -> Platform:
    """Return oat's settings and environment variables on CPU."""
    # With oat's fused head, newer DeepSpeed gets no gradient for a tied embedding.
    settings = {"flash_attn": False, "use_fused_lm_head": False, "shm_size_mb": 100}
    env = {**_COMMON, **_LOOPBACK, **python_path(_STARTUP), "DS_ACCELERATOR": "cpu"}
    return Platform(settings, env | {"GEM_CPU_DEVICES": str(hardware.gpus)}, unset=[_CUDA])


def rl2(spec: RunSpec, run_dir: Path, hardware: Hardware) -> Platform:
    """Return RL2's settings and environment variables on CPU.

    Args:
        spec: The experiment.
        run_dir: Absolute folder of the run.
        hardware: How many processes stand for GPUs.
    """
    server: dict[str, Any] = {
        "device": "cpu",
        "attention_backend": "torch_native",
        "sampling_backend": "pytorch",
        "disable_overlap_schedule": True,
        "max_total_tokens": 65536,
        "max_running_requests": 128,
        "skip_server_warmup": True,
        # SGLang by default picks an ephemeral port long before it listens: on a busy machine
        # another connection takes it meanwhile. This range is below the ephemeral ports.
        "nccl_port": _port(run_dir),
        "log_level": "warning",
    }
    settings = {f"+rollout.server_args.{key}": value for key, value in server.items()}
    # Offloading saves GPU memory: useless here. But only so do ranks after the first get a model
    # from RL2, whose way to make an empty one transformers refuses.
    settings |= {"actor.offload_model": hardware.gpus > 1, "actor.offload_optimizer": False}
    env = {
        **_COMMON,
        **_NO_COMPILER,
        **_LOOPBACK,
        **python_path(_STARTUP, _HERE / "rl2_stand_ins"),
        "SGLANG_USE_CPU_ENGINE": "1",
    }
    if spec.training.precision == "fp32":
        env["GEM_CPU_DTYPE"] = "float32"
    return Platform(settings, env, unset=[_CUDA])


def roll(spec: RunSpec, run_dir: Path, hardware: Hardware, *, path: Sequence[Path]) -> Platform:
    """Return ROLL's settings and environment variables on CPU.

    Args:
        spec: The experiment.
        run_dir: Absolute folder of the run.
        hardware: How many processes stand for GPUs.
        path: Folders for `PYTHONPATH`, after that of the shims.
    """
    engine = {
        "enforce_eager": True,
        "gpu_memory_utilization": 0.1,
        "max_model_len": spec.policy.tokens,
        "max_num_batched_tokens": max(4096, spec.policy.tokens),
        "load_format": "auto",
        # ROLL would ask for flash attention.
        "attention_config": {},
    }
    settings = {
        # Slots, which are bookkeeping: no memory is shared, and vLLM cannot sleep.
        "num_gpus_per_node": 2 * hardware.gpus,
        "actor_infer.device_mapping": f"list(range({hardware.gpus},{2 * hardware.gpus}))",
        "actor_infer.strategy_args.strategy_config": engine,
        "train_env_manager.max_env_num_per_worker": spec.episodes,
    }
    env = {
        **_COMMON,
        **_NO_COMPILER,
        **_LOOPBACK,
        **_VLLM,
        **_RAY,
        **python_path(_STARTUP, *path),
        "RAY_ADDRESS": "local",  # the run's own cluster, which ends with the launcher
        "RAY_prestart_worker_first_driver": "0",
        "RAY_DEDUP_LOGS": "0",
        "RAY_TMPDIR": socket_folder(run_dir),
    }
    return Platform(settings, env, unset=[_CUDA])


def skyrl(spec: RunSpec, run_dir: Path, hardware: Hardware) -> Platform:
    """Return SkyRL's settings and environment variables on CPU.

    Engines and models have processes of their own: none can leave its memory to another.
    """
    engine, weights = "generator.inference_engine", run_dir / "weights"
    tokens = spec.policy.tokens
    settings: dict[str, Any] = {
        "trainer.placement.colocate_all": False,
        "trainer.placement.colocate_policy_ref": False,
        "trainer.use_expandable_segments": False,
        "trainer.enable_ray_gpu_monitor": False,
        f"{engine}.enable_ray_prometheus_stats": False,
        f"{engine}.enforce_eager": True,
        f"{engine}.max_num_seqs": min(spec.episodes, _MOST_SEQUENCES),
        f"{engine}.max_num_batched_tokens": max(4096, tokens),
        # SkyRL names the worker for GPUs where it starts engines by Ray.
        f"{engine}.distributed_executor_backend": "mp",
        f"{engine}.engine_init_kwargs.worker_cls": "vllm.v1.worker.cpu_worker.CPUWorker",
        f"{engine}.engine_init_kwargs.enable_chunked_prefill": False,
        # SkyRL's own way for weights that needs neither NCCL nor a GPU's memory: files.
        f"{engine}.weight_sync_backend": "delta",
        f"{engine}.delta_weight_sync.sync_dir": weights / "published",
        f"{engine}.delta_weight_sync.local_checkpoint_dir": weights / "received",
        f"{engine}.delta_weight_sync.publish_staging_dir": weights / "staged",
    }
    models = 1 + (spec.algorithm.kl_coef > 0) + spec.algorithm.estimator.needs_critic
    slots = models * hardware.gpus + hardware.engines * hardware.engine.tensor_parallel
    env = {
        **_COMMON,
        **_NO_COMPILER,
        **_LOOPBACK,
        **_VLLM,
        **_RAY,
        **python_path(_STARTUP),
        "RAY_ADDRESS": "local",  # the run's own cluster, which ends with the launcher
        "RAY_prestart_worker_first_driver": "0",
        "RAY_OVERRIDE_RESOURCES": json.dumps({"CPU": 6 + 2 * slots, "GPU": slots}),
        "RAY_TMPDIR": socket_folder(run_dir),
        # Two runs would look for a free port in the same range, and meet there.
        "SKYRL_VLLM_START_PORT": str(_port(run_dir)),
        "SKYRL_DUMP_INFRA_LOG_TO_STDOUT": "1",
    }
    return Platform(settings, env, unset=[_CUDA])


def tinker(spec: RunSpec, run_dir: Path, hardware: Hardware) -> Platform:
    """Return a local Tinker server on CPU, compiled for one number and length of rows."""
    policy = spec.policy
    server = {
        "model": policy.model,
        "max-rank": policy.lora_rank,
        "sequences": min(max(spec.episodes // spec.algorithm.minibatches, 1), _MOST_SEQUENCES),
        "bucket": math.ceil(policy.tokens / _BUCKET) * _BUCKET,
        "state": run_dir / "server",
    }
    options = [word for key, value in server.items() for word in (f"--{key}", str(value))]
    return Platform(
        # In fp32 a tight tolerance detects a sampler whose weights differ from the trainer's.
        {"server": "skyrl_jax", "logprob_tolerance": 1e-3},
        {"HF_HUB_OFFLINE": "1", "TINKER_TELEMETRY": "0"},
        unset=["TINKER_BASE_URL", "TINKER_API_KEY"],
        before=["python", "-m", "gem_cpu.tinker_server", *options, "--"],
        state=["server"],
    )


def _port(run_dir: Path) -> int:
    """Return a port for a run, below those that the system gives to connections."""
    return 20_000 + int.from_bytes(digest(run_dir)[:4], "big") % 12_000


def engine_server(engine: str) -> dict[str, str]:
    """Return the environment variables of an engine's HTTP server on CPU."""
    env = {**_COMMON, **_NO_COMPILER, **_LOOPBACK, "HF_HUB_OFFLINE": "1"}
    if engine == "vllm":
        return {**env, **_VLLM, **python_path(_STARTUP)}
    if engine == "transformers":
        return env
    # The shims of RL2 make SGLang serve fp32 weights in fp32.
    env |= {"SGLANG_USE_CPU_ENGINE": "1", "GEM_CPU_DTYPE": "float32"}
    return {**env, **python_path(_STARTUP, _HERE / "rl2_stand_ins")}


def trl(spec: RunSpec, run_dir: Path, hardware: Hardware) -> Platform:
    """Return TRL's settings and environment variables on CPU; vLLM samples where it is installed.

    Of TRL itself nothing is replaced from 1.16 on; `trl_plugin` says what its vLLM is told.
    """
    settings: dict[str, Any] = {"use_cpu": True}
    env = {"OMP_NUM_THREADS": "1", **_LOOPBACK}
    if importlib.util.find_spec("vllm") is not None:
        settings |= {"use_vllm": True, "vllm_max_model_length": spec.policy.tokens}
        settings["vllm_gpu_memory_utilization"] = 0.1
        env |= {**_COMMON, **_NO_COMPILER, **_VLLM, **python_path(_STARTUP)}
        if spec.training.precision == "fp32":
            env["GEM_CPU_DTYPE"] = "float32"
    return Platform(settings, env, unset=[_CUDA])

"""What is extended or called of SkyRL in the trainer's process; `worker.SEAMS` in the learner's."""

from __future__ import annotations

from gem_train.seams import Seam, called, calls

_SYNC = "skyrl.train.trainer:RayPPOTrainer"
_ASYNC = "skyrl.train.fully_async_trainer:FullyAsyncRayPPOTrainer"
_EXPERIMENT = "skyrl.train.entrypoints.main_base:BasePPOExp"
_TRACKING = "skyrl.train.utils.tracking:Tracking"
_SERVERS = "skyrl.backends.skyrl_train.inference_servers"

SEAMS = (
    Seam(f"{_SYNC}._build_train_dataloader_and_compute_training_steps", "self"),
    Seam(f"{_ASYNC}._build_train_dataloader_and_compute_training_steps", "self"),
    Seam(f"{_SYNC}.build_models", "self, PolicyWorker, CriticWorker, RefWorker"),
    Seam(f"{_SYNC}.convert_to_training_input", "self, generator_output, uids"),
    Seam(f"{_SYNC}.apply_reward_kl_penalty", "self, data"),
    Seam(f"{_SYNC}.compute_advantages_and_returns", "self, data"),
    Seam(f"{_SYNC}.save_checkpoints", "self"),
    Seam(f"{_ASYNC}.save_checkpoints", "self"),
    Seam(f"{_SYNC}.load_checkpoints", "self"),
    Seam(f"{_ASYNC}.load_checkpoints", "self"),
    Seam(f"{_SYNC}.train", "self"),
    Seam(f"{_ASYNC}.train", "self"),
    Seam(f"{_SYNC}.eval", "self, vllm_metrics_scraper"),
    Seam("skyrl.train.generators.base:GeneratorInterface.generate", "self, input_batch"),
    Seam(f"{_EXPERIMENT}.get_train_dataset", "self"),
    Seam(f"{_EXPERIMENT}.get_eval_dataset", "self"),
    Seam(f"{_EXPERIMENT}.get_tracker", "self"),
    Seam(f"{_EXPERIMENT}.get_generator", "self, cfg, tokenizer, inference_engine_client"),
    Seam(
        f"{_EXPERIMENT}.get_trainer",
        "self, cfg, tracker, tokenizer, train_dataset, eval_dataset, inference_engine_client, "
        "generator, colocate_pg",
    ),
    Seam(f"{_TRACKING}.log", "self, data, step, commit"),
    called(f"{_TRACKING}", "project_name, experiment_name, backend, config, tags"),
    *calls("skyrl.train.utils.utils", {"initialize_ray": "cfg", "validate_cfg": "cfg"}),
    *calls(f"{_SERVERS}.utils", {"resolve_policy_model_name": "cfg"}),
    *calls("skyrl.train.generators.utils", {"build_vllm_cache_salt": "weight_version, model_name"}),
    *calls(f"{_SERVERS}.remote_inference_client", {"RemoteGenerateClient": "proxy_url"}),
    called(
        f"{_SERVERS}.remote_inference_client:RemoteGenerateClient.generate",
        "self, *, prompt_token_ids, sampling_params, session_id, model, cache_salt",
    ),
)
"""Functions and methods, with the parameters that they have or are given."""

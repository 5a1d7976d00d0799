"""What is extended or called of oat."""

from __future__ import annotations

from gem_train.seams import Seam, called

_ACTOR = "oat.algorithms.ppo:PPOActor"
_LEARNER = "oat.algorithms.ppo_multiturn:PPOMultiTurnLearner"
_STRATEGY = "oat.utils.deepspeed:DeepspeedStrategy"
_COLLECTOR = "oat.algorithms.ppo_multiturn:MultiTurnFeedbackCollector"

SEAMS = (
    called("oat.interface:get_program", "args, *, learner_cls, actor_cls"),
    called("oat.args:default_args_validation", "args"),
    Seam(f"{_ACTOR}.init", "self, actor_id, save_path"),
    Seam(f"{_ACTOR}.init_process_group"),
    Seam(f"{_ACTOR}.update_weight"),
    Seam(f"{_ACTOR}.step", "self, prompts, formatted_prompts, references"),
    Seam(f"{_LEARNER}.run", "self"),
    Seam(f"{_LEARNER}._init", "self, args, actors"),
    Seam(f"{_LEARNER}.prepare_data", "self, strategy, tokenizer"),
    Seam(f"{_LEARNER}.process_feedback_data", "self, data_list"),
    Seam(f"{_LEARNER}.learn", "self, learning_round"),
    Seam(f"{_LEARNER}.evaluate", "self, dataloader, steps"),
    Seam(f"{_LEARNER}.eval_and_log", "self, train_info, eval, save"),
    called(
        f"{_LEARNER}.get_batch_logps",
        "self, model, input_ids, att_mask, temperature, *, compute_entropy",
    ),
    Seam(f"{_COLLECTOR}.get_metrics", "self, actor_time, feedback_data"),
    called(f"{_LEARNER}.sync_params_to_actors", "self"),
    called(f"{_STRATEGY}.all_reduce", "self, data, op"),
    called(f"{_STRATEGY}.save_ckpt", "self, model, save_dir, tag, *, max_num, max_mem"),
    called(f"{_STRATEGY}.load_ckpt", "self, model, load_dir, tag"),
    called("oat.utils.ipc:PlasmaShmClient.serialize_ipc", "self, data"),
    called("oat.utils.ipc:PlasmaShmClient.deserialize_ipc", "self, data"),
)
"""Functions and methods, with the parameters that they have or are given."""

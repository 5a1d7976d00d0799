"""Train an LLM agent in a GEM environment with TRL.

    accelerate launch --num_processes 8 train_trl.py     8 GPUs of 80 GB: Qwen3-1.7B-Base, batches
                                                         of 128 episodes
    python train_trl.py                                  one GPU: batches of 16
    MODEL=/path/to/tiny python train_trl.py --cpu        the same training for real, without a GPU:
                                                         a model of a few hundred thousand weights

Needs: gem-core and gem-trl[vllm] from a clone (for --cpu gem-trl, see docs/trl.md).
Check: python -m gem_trl.doctor
"""

import os
import sys

from trl import GRPOConfig

from gem_trl import GemGRPOTrainer, GemSettings, eval_datasets, task_dataset

CPU = "--cpu" in sys.argv
GPU = {"use_vllm": True, "vllm_max_model_length": 5120}  # of an episode; by default the model's
OUT = os.environ.get("OUT", "runs/train_trl")
URI = f"gem:game:GuessTheNumber-v0{'-easy?hint=range&prompt=short&' if CPU else '?'}"

# Whatever any run with TRL says. A batch of episodes has processes * per_device_train_batch_size *
# steps_per_generation of them, an optimiser step as many as gradient_accumulation_steps says.
config = GRPOConfig(
    output_dir=f"{OUT}/checkpoints",
    max_steps=3 if CPU else 200,
    num_generations=2,  # TRL refuses 1; gem.group_size has the last word
    per_device_train_batch_size=16 if CPU else 2,
    gradient_accumulation_steps=1 if CPU else 8,  # 64 on one GPU makes batches of 128, too
    max_completion_length=8 if CPU else 512,  # of a turn
    vllm_importance_sampling_correction=False,  # on by default, leaves out whole episodes
    learning_rate=1e-3 if CPU else 1e-6,
    lr_scheduler_type="constant",
    shuffle_dataset=False,  # tasks in their order
    eval_strategy="steps",
    eval_steps=2 if CPU else 20,
    num_generations_eval=1,
    logging_steps=1,
    save_steps=2 if CPU else 50,
    **({"use_cpu": True, "bf16": False} if CPU else GPU),
)

trainer = GemGRPOTrainer(
    model=os.environ.get("MODEL", "Qwen/Qwen3-1.7B-Base"),
    args=config,
    train_dataset=task_dataset(f"{URI}n=25600&seed=0"),
    eval_dataset=eval_datasets(f"{URI}n=16&seed=1000000#name=same&temperature=0"),
    # How episodes are played, and what becomes of the rewards, of which every turn has one.
    gem=GemSettings(
        advantage="rebn",  # also reinforce, and with several episodes of a task grpo, rloo
        gamma=0.9,  # per turn, not per token
        group_size=1,  # episodes of each task
        prompt_tokens=40 if CPU else 1024,
        response_tokens=128 if CPU else 4096,  # of the whole episode after its first prompt
        record_dir=OUT,
    ),
)
trainer.train()

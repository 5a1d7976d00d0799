"""Multi-turn reinforcement learning on a Tinker server, in one file.

    export TINKER_API_KEY=...                        # the hosted service, or with
    export TINKER_BASE_URL=http://...                # one of your own
    python examples/train_tinker.py --model Qwen/Qwen3-8B

    MODEL=<folder> python examples/train_tinker.py --cpu       # a server on this machine, no GPU

Read it from top to bottom: play a batch of episodes with the server's sampler, compute an advantage
for every turn, send token ids with advantages back, take an optimiser step. `gem_tinker.train` is
the same loop with evaluation, checkpoints and a record.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys

import tinker

from gem.rollout import ChatFormat
from gem_tinker.advantage import Objective, batch_rows, to_datums
from gem_tinker.rollout import Sampling, play_batch
from gem_tinker.server import probe
from gem_tinker.settings import Config, read
from gem_train.experiment.metrics import episode_metrics


def settings(args: argparse.Namespace) -> Config:
    """What is learned, from what, and how."""
    return read(
        [
            f"model={args.model}",
            # Task j of iteration k has the seed k * tasks + j.
            "train=gem:game:GuessTheNumber-v0-easy?seed=0&hint=range&prompt=short",
            f"iterations={args.iterations}",
            "tasks=16",
            f"group_size={2 if args.cpu else 8}",
            # Token limits of a first prompt, of everything after it, and of a turn.
            f"prompt_tokens={40 if args.cpu else 512}",
            f"response_tokens={128 if args.cpu else 4096}",
            f"turn_tokens={8 if args.cpu else 512}",
            "advantage=rebn",  # or reinforce, grpo, rloo
            "gamma=0.9",  # per turn, not per token
            "loss_fn=ppo",
            f"lr={1e-3 if args.cpu else 4e-5}",
            f"lora_rank={8 if args.cpu else 32}",
            "seed=0",
        ]
    )


async def main(config: Config) -> None:
    """Train."""
    # Servers add their losses up in different ways; the probe finds out, the objective corrects.
    objective = Objective(config.loss_aggregation, await probe(config), config.response_tokens)
    with tinker.ServiceClient() as service:
        client = await service.create_lora_training_client(
            config.model, rank=config.lora_rank, train_unembed=False
        )
        chat = ChatFormat(client.get_tokenizer())
        tasks = config.train_tasks()
        for iteration in range(config.iterations):
            # A sampler with the current weights plays the batch, all episodes at the same time.
            sampler = await client.save_weights_and_get_sampling_client(record_stability_info=False)
            first = iteration * config.tasks
            batch = tasks[first : first + config.tasks]
            sampling = Sampling(seed=(config.seed or 0, iteration))
            episodes = await play_batch(
                sampler, chat, config, batch, sampling, group_size=config.group_size
            )

            # One advantage a turn, from all turns of the batch; rows are what the model has seen.
            rows, _ = batch_rows(episodes, config)

            # An episode is one datum: every sampled token carries its turn's advantage.
            # On some servers a step that does not wait for its gradient may overtake it.
            await client.forward_backward(to_datums(rows, objective), config.loss_fn)
            await client.optim_step(tinker.AdamParams(learning_rate=config.lr, beta2=0.99))

            metrics = episode_metrics(episodes)
            shown = ("success_rate", "return_mean", "turns_mean", "failed_episodes")
            print(iteration, "  ".join(f"{k} {metrics[k]:.3f}" for k in shown), flush=True)


def on_cpu(args: argparse.Namespace) -> None:
    """Run this file again as the client of a server on this machine."""
    server = [sys.executable, "-m", "gem_cpu.tinker_server", "--model", args.model]
    again = [sys.executable, __file__, "--cpu", "--iterations", str(args.iterations)]
    os.execv(sys.executable, [*server, "--", *again])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default=os.environ.get("MODEL", "Qwen/Qwen3-8B"))
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--cpu", action="store_true", help="needs `make env-tinker` and MODEL")
    arguments = parser.parse_args()
    if arguments.cpu and "TINKER_BASE_URL" not in os.environ:
        os.environ["MODEL"] = arguments.model
        on_cpu(arguments)
    asyncio.run(main(settings(arguments)))

"""A trainer to develop an adapter against: real, but small, and without any knowledge of GEM.

    python -m fake_trainer CONFIG.json

It has the parts of trainers, in the usual order: a dataset of texts, a rollout that asks an engine,
padded tensors, advantages, a clipped loss, an optimiser, logs, evaluations. Its policy gives each
token a score by the token before it (a table `[vocabulary, vocabulary]`). Others extend `Trainer`
and name their class in the configuration. On its own it knows rows of one reward and no turns.

Tensors are `[rows, columns]`, with a column for every token but the first: column c is about token
c + 1.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import AutoTokenizer

DEFAULTS = {
    "trainer": "fake_trainer:Trainer", "model": "", "data": "", "eval_data": None, "steps": 10,
    "prompts": 16, "samples": 8, "eval_every": 0, "prompt_tokens": 40, "response_tokens": 128,
    "temperature": 1.0, "top_k": -1, "lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "adam_eps": 1e-8,
    "grad_clip": 1.0, "clip": 0.2, "gamma": 1.0, "seed": 0,
}  # fmt: skip
"""Settings; a class that extends `Trainer` may have further ones."""


@dataclass
class Output:
    """What the engine sampled for one prompt."""

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str
    """`stop` or `length`."""


class Engine:
    """Samples from the policy's current weights."""

    def __init__(self, weights: NDArray[np.float64]) -> None:
        self.weights = weights

    async def generate(
        self,
        prompt_ids: list[int],
        *,
        max_tokens: int,
        stop_token_ids: list[int],
        temperature: float,
        top_k: int,
        seed: int | None = None,
    ) -> Output:
        """Sample one response."""
        random = np.random.default_rng(seed)
        output, last = Output([], [], "length"), prompt_ids[-1]
        for _ in range(max_tokens):
            logits = self.weights[last] / temperature
            if top_k > 0:
                logits = np.where(logits >= np.sort(logits)[-top_k], logits, -np.inf)
            logprobs = log_softmax(logits)
            last = int(random.choice(len(logprobs), p=np.exp(logprobs)))
            output.token_ids.append(last)
            output.logprobs.append(float(logprobs[last]))
            if last in stop_token_ids:
                output.finish_reason = "stop"
                break
        return output


class Trainer:
    """Plays, computes advantages, updates; a step each."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = {**DEFAULTS, **config}
        self.tokenizer = AutoTokenizer.from_pretrained(self.config["model"])
        random = np.random.default_rng(self.config["seed"])
        self.weights = random.normal(0, 0.02, (len(self.tokenizer), len(self.tokenizer)))
        self.moments = [np.zeros_like(self.weights), np.zeros_like(self.weights)]
        self.engine = Engine(self.weights)

    def train(self) -> None:
        """Train for `steps` steps."""
        config, texts = self.config, lines(self.config["data"])
        every = config["eval_every"]
        for step in range(config["steps"]):
            if every and step % every == 0:
                self.evaluate(step)
            first = step * config["prompts"]
            wanted = texts[first : first + config["prompts"]]
            rows = asyncio.run(self.rollout([t for t in wanted for _ in range(config["samples"])]))
            batch = self.collate(rows)
            self.compute_advantages(batch)
            self.log(step, self.update(batch, step))
        if every:
            self.evaluate(config["steps"])

    async def rollout(self, texts: list[str], evaluation: bool = False) -> list[dict[str, Any]]:
        """Return training rows: `ids`, `prompt_length`, `mask` of the response, `reward`."""
        raise NotImplementedError("name a class that plays in the configuration: trainer")

    def collate(self, rows: list[dict[str, Any]]) -> dict[str, NDArray[Any]]:
        """Return the tensors of a batch, padded at the right."""
        shape = len(rows), max(len(row["ids"]) for row in rows)
        batch = {"ids": np.zeros(shape, np.int64), "lengths": np.zeros(shape[0], np.int64)}
        batch["mask"] = np.zeros((shape[0], shape[1] - 1), np.float32)
        batch["reward"] = np.array([row["reward"] for row in rows], np.float32)
        for place, row in enumerate(rows):
            batch["ids"][place, : len(row["ids"])] = row["ids"]
            batch["lengths"][place] = len(row["ids"])
            batch["mask"][place, row["prompt_length"] - 1 : len(row["ids"]) - 1] = row["mask"]
        return batch

    def compute_advantages(self, batch: dict[str, NDArray[Any]]) -> None:
        """Set `advantages`: of each row, its reward less the mean."""
        centred = batch["reward"] - batch["reward"].mean()
        batch["advantages"] = centred[:, None] * batch["mask"]

    def update(self, batch: dict[str, NDArray[Any]], step: int) -> dict[str, float]:
        """Make one optimiser step (Adam) with the token mean of the clipped loss."""
        config, (rows, columns) = self.config, np.nonzero(batch["mask"])
        before, after = batch["ids"][rows, columns], batch["ids"][rows, columns + 1]
        advantages = batch["advantages"][rows, columns].astype(np.float64)
        logprobs = log_softmax(self.weights[before] / config["temperature"])
        ratio = np.ones(len(rows))  # One step a batch: the policy is the one that sampled.
        clipped = np.clip(ratio, 1 - config["clip"], 1 + config["clip"])
        loss = -np.minimum(ratio * advantages, clipped * advantages).mean()
        towards = np.exp(logprobs) * advantages[:, None]
        towards[np.arange(len(rows)), after] -= advantages
        gradient = np.zeros_like(self.weights)
        np.add.at(gradient, before, towards / (len(rows) * config["temperature"]))
        norm = float(np.linalg.norm(gradient))
        gradient *= min(1.0, config["grad_clip"] / (norm + 1e-6))
        mean, square = self.moments
        mean += (1 - config["beta1"]) * (gradient - mean)
        square += (1 - config["beta2"]) * (gradient**2 - square)
        unbiased = [
            m / (1 - config[b] ** (step + 1)) for m, b in ((mean, "beta1"), (square, "beta2"))
        ]
        self.weights -= config["lr"] * unbiased[0] / (np.sqrt(unbiased[1]) + config["adam_eps"])
        entropy = -(np.exp(logprobs) * logprobs).sum(-1).mean()
        return {"train/loss": float(loss), "train/grad_norm": norm, "train/entropy": float(entropy)}

    def evaluate(self, step: int) -> None:
        """Play the evaluation's texts once."""
        rows = asyncio.run(self.rollout(lines(self.config["eval_data"]), evaluation=True))
        self.log(step, {"eval/reward": float(np.mean([row["reward"] for row in rows]))})

    def log(self, step: int, values: dict[str, float]) -> None:
        """Print metrics."""
        print(f"step {step}: {json.dumps(values)}", flush=True)


def log_softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return log-probabilities over the last axis."""
    centred = scores - scores.max(-1, keepdims=True)
    return centred - np.log(np.exp(centred).sum(-1, keepdims=True))


def lines(path: str) -> list[str]:
    """Return the lines of a file."""
    return Path(path).read_text(encoding="utf-8").splitlines()


def main() -> None:
    """Train as the configuration file says."""
    config = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    module, _, name = config.get("trainer", DEFAULTS["trainer"]).partition(":")
    getattr(import_module(module), name)(config).train()


if __name__ == "__main__":
    main()

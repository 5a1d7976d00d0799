"""The reference trainer: multi-turn policy gradients on one device, in one file.

    python -m gem_bench.reference --spec spec.toml --record runs/demo

Read it from top to bottom: a sampler that keeps one KV cache for a whole batch of conversations,
the training rows, log-probabilities of sampled tokens, a turn-level critic, the loss, the loop.
It is the definition that other trainers are compared with, so nothing here is fast at the price
of being exact: the default is fp32, and on a CPU the same spec gives bitwise the same metrics.

Environments, token layout and advantages are `gem`'s; this file holds what a trainer must add.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer, DynamicCache

from gem.advantage import advantages
from gem.blame import cause_of
from gem.errors import ConfigurationError, GemError
from gem.rollout import ChatFormat, Request, Sample, play_batch
from gem.seeding import stream
from gem.tasks import Task
from gem.training.batches import chunks, minibatches
from gem.training.metrics import episode_metrics
from gem.training.record import METRICS, RUN, Recorder, TrainedRow
from gem.training.runspec import RunSpec, SamplingPart
from gem.training.settings import check_failures
from gem.trajectory import Sequence as TokenRow
from gem.trajectory import Trajectory, turn_table
from gem_bench.lora import add_adapters, merge
from gem_bench.models import resolve_model
from gem_bench.runspec import load_spec


class CachedSampler:
    """Samples a batch of conversations with one KV cache that lives as long as the episodes.

    Each call prefills only what the cache has not seen (the last sampled token and the new
    observation), left-padded, then decodes all rows in step. Columns of padding and of rows that
    have finished their turn stay in the cache but are masked, so positions and attention are
    those of an unbatched forward pass. Rows of episodes that are over are dropped from the cache.
    """

    def __init__(
        self,
        model: Any,
        chat: ChatFormat,
        pad_id: int,
        sampling: SamplingPart,
        generator: torch.Generator,
    ) -> None:
        self.model = model
        self.device = model.device
        self.stop = torch.tensor(sorted(chat.stop_ids), device=self.device)
        self.pad_id = pad_id
        self.sampling = sampling
        self.generator = generator
        self._cache: Any = None
        self._mask = torch.zeros(0, 0, dtype=torch.long, device=self.device)
        self._episodes: list[int] = []
        self._seen: list[int] = []  # tokens of each row's prompt that the cache holds

    @torch.no_grad()
    def __call__(self, requests: list[Request]) -> list[Sample]:
        """Sample one turn for every request."""
        self._align(requests)
        logits = self._feed([r.prompt_ids[n:] for r, n in zip(requests, self._seen, strict=True)])
        limit = torch.tensor([r.max_tokens for r in requests], device=self.device)
        length = torch.zeros_like(limit)
        alive = torch.ones_like(limit, dtype=torch.bool)
        sampled: list[tuple[Tensor, Tensor]] = []
        for _ in range(max(r.max_tokens for r in requests)):
            token, logprob = self._draw(logits)
            sampled.append((token, logprob))
            length += alive
            alive = alive & ~torch.isin(token, self.stop) & (length < limit)
            if not alive.any():
                break
            logits = self._forward(token[:, None], alive[:, None].long())
        # The last token of a turn is fed together with the next observation.
        lengths = length.tolist()
        self._seen = [len(r.prompt_ids) + n - 1 for r, n in zip(requests, lengths, strict=True)]
        tokens = torch.stack([t for t, _ in sampled], 1).tolist()
        logprobs = torch.stack([p for _, p in sampled], 1).tolist()
        stop = set(self.stop.tolist())
        return [
            Sample(t[:n], p[:n], "stop" if t[n - 1] in stop else "length")
            for t, p, n in zip(tokens, logprobs, lengths, strict=True)
        ]

    def _align(self, requests: list[Request]) -> None:
        """Make the cache's rows those of the requests; start anew if any prompt does."""
        row_of = {episode: row for row, episode in enumerate(self._episodes)}
        if any(r.fresh or r.episode not in row_of for r in requests):
            self._cache = DynamicCache()
            self._mask = self._mask.new_zeros(len(requests), 0)
            self._seen = [0] * len(requests)
        else:
            rows = [row_of[r.episode] for r in requests]
            if rows != list(range(len(self._episodes))):
                index = torch.tensor(rows, device=self.device)
                self._cache.batch_select_indices(index)
                self._mask = self._mask[index]
                self._seen = [self._seen[row] for row in rows]
        self._episodes = [r.episode for r in requests]

    def _feed(self, blocks: list[list[int]]) -> Tensor:
        """Feed a left-padded block of tokens; returns the logits after it, `[rows, vocab]`."""
        width = max(map(len, blocks))
        ids = [[self.pad_id] * (width - len(b)) + b for b in blocks]
        mask = [[0] * (width - len(b)) + [1] * len(b) for b in blocks]
        return self._forward(
            torch.tensor(ids, device=self.device), torch.tensor(mask, device=self.device)
        )

    def _forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        self._mask = torch.cat([self._mask, mask], 1)
        positions = (self._mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        output = self.model(
            input_ids=ids,
            attention_mask=self._mask,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: Tensor = output.logits[:, -1].float()
        return logits

    def _draw(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Draw one token a row; returns tokens and their log-probability when drawn, `[rows]`."""
        if self.sampling.top_k == 1:
            token = logits.argmax(-1)
            return token, torch.zeros_like(token, dtype=logits.dtype)
        logprobs = warp(logits, self.sampling).log_softmax(-1)
        drawn = torch.multinomial(logprobs.exp(), 1, generator=self.generator)
        return drawn[:, 0], logprobs.gather(1, drawn)[:, 0]


def warp(logits: Tensor, sampling: SamplingPart) -> Tensor:
    """Apply temperature, then top-k, then top-p to `logits[rows, vocab]`."""
    logits = logits / sampling.temperature
    if 0 < sampling.top_k < logits.shape[-1]:
        floor = logits.topk(sampling.top_k, -1).values[:, -1:]
        logits = logits.masked_fill(logits < floor, -torch.inf)
    if sampling.top_p < 1.0:
        ordered, index = logits.sort(-1, descending=True)
        probs = ordered.softmax(-1)
        # The mass before a token decides: the most likely token always stays.
        drop = probs.cumsum(-1) - probs >= sampling.top_p
        logits = logits.masked_fill(drop.scatter(-1, index, drop), -torch.inf)
    return logits


@dataclass
class Row:
    """One training row: a stretch of an episode that is one growing sequence of tokens."""

    episode: int
    """Index of the episode in the batch."""
    tokens: TokenRow
    """What the rollout left."""
    ids: list[int]
    """Prompt and response."""
    sampled: list[int]
    """Positions in `ids` of the tokens that the policy sampled."""
    turn: list[int]
    """The turn that each sampled token belongs to."""
    states: list[tuple[int, int]]
    """`(turn, position in ids of its last prompt token)` for every turn of this row."""
    old_logprobs: Tensor | None = None
    """Log-probabilities before the first update, `[sampled tokens]`; None: the current ones."""
    old_values: Tensor | None = None
    """The critic's values before the first update, `[turns]`."""


def training_rows(trajectories: Sequence[Trajectory]) -> list[Row]:
    """The rows of all episodes that count, in the order played."""
    rows = []
    for episode, trajectory in enumerate(trajectories):
        for tokens in trajectory.sequences() if trajectory.valid else []:
            start = len(tokens.prompt_ids)
            where = [(start + i, s.turn) for s in tokens.spans for i in range(s.start, s.end)]
            rows.append(
                Row(
                    episode,
                    tokens,
                    tokens.prompt_ids + tokens.response_ids,
                    sampled=[position for position, _ in where],
                    turn=[turn for _, turn in where],
                    states=[(span.turn, start + span.start - 1) for span in tokens.spans],
                )
            )
    return rows


def trained_rows(
    rows: Sequence[Row], trajectories: Sequence[Trajectory], advantage: list[list[float]]
) -> list[list[TrainedRow]]:
    """What the loss sees of each row, `[episode][row]`, for comparison with other trainers."""
    shown: list[list[TrainedRow]] = [[] for _ in trajectories]
    for row in rows:
        start, n = len(row.tokens.prompt_ids), len(row.tokens.response_ids)
        mask, per_token = [0] * n, [0.0] * n
        for position, turn in zip(row.sampled, row.turn, strict=True):
            mask[position - start] = 1
            per_token[position - start] = advantage[row.episode][turn]
        rewards = row.tokens.token_rewards(trajectories[row.episode].rewards)
        shown[row.episode].append(
            TrainedRow(row.ids[:start], row.ids[start:], mask, rewards, per_token)
        )
    return shown


def pad(rows: Sequence[Row], device: torch.device) -> dict[str, Tensor]:
    """Right-padded `input_ids` and `attention_mask`, `[rows, length]`."""
    width = max(len(row.ids) for row in rows)
    ids = [row.ids + [0] * (width - len(row.ids)) for row in rows]
    mask = [[1] * len(row.ids) + [0] * (width - len(row.ids)) for row in rows]
    return {
        "input_ids": torch.tensor(ids, device=device),
        "attention_mask": torch.tensor(mask, device=device),
    }


def token_statistics(model: Any, rows: Sequence[Row], temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy of every sampled token, `[sampled tokens of all rows]`.

    The distribution is the model's at the sampling temperature, before top-k and top-p.
    """
    where = [(i, position) for i, row in enumerate(rows) for position in row.sampled]
    row, position = torch.tensor(where, device=model.device).T
    # Logits are computed only in columns where some row has a sampled token.
    kept, column = torch.unique(position - 1, return_inverse=True)
    batch = pad(rows, model.device)
    logits = model(**batch, use_cache=False, logits_to_keep=kept).logits[row, column].float()
    logprobs = (logits / temperature).log_softmax(-1)
    chosen = logprobs.gather(1, batch["input_ids"][row, position][:, None])[:, 0]
    return chosen, -(logprobs.exp() * logprobs).sum(-1)


class Critic(nn.Module):
    """A transformer of its own with a linear head, read where the policy is about to act."""

    def __init__(self, path: str, device: torch.device) -> None:
        super().__init__()
        self.trunk = AutoModel.from_pretrained(path, dtype=torch.float32).to(device).eval()
        self.head = nn.Linear(self.trunk.config.hidden_size, 1, device=device)
        nn.init.zeros_(self.head.weight)  # the first batch's values are 0: no random baseline
        nn.init.zeros_(self.head.bias)

    def forward(self, rows: Sequence[Row]) -> Tensor:
        """Value before each turn, `[turns of all rows]`."""
        where = [(i, position) for i, row in enumerate(rows) for _, position in row.states]
        row, position = torch.tensor(where, device=self.head.weight.device).T
        batch = pad(rows, self.head.weight.device)
        hidden = self.trunk(**batch, use_cache=False).last_hidden_state[row, position]
        value: Tensor = self.head(hidden.float())[:, 0]
        return value


def policy_loss(new: Tensor, old: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """Clipped surrogate of each token (PPO, arXiv 1707.06347, equation 7), to be minimised.

    At `new == old` its gradient is that of REINFORCE, `-advantage * grad(new)`.
    """
    ratio = (new - old).exp()
    return torch.max(-advantage * ratio, -advantage * ratio.clamp(1 - clip, 1 + clip))


def value_loss(new: Tensor, old: Tensor, target: Tensor, clip: float) -> Tensor:
    """Clipped squared error of each turn's value, as in the original PPO code."""
    clipped = old + (new - old).clamp(-clip, clip)
    return 0.5 * torch.max((new - target) ** 2, (clipped - target) ** 2)


@contextmanager
def _loading(path: str) -> Iterator[None]:
    """Report what goes wrong as a fault of `policy.model`."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"policy.model: cannot load {path!r}: {error}") from error


class Learner:
    """The policy, its critic if there is one, their optimisers, and one update from a batch."""

    def __init__(self, spec: RunSpec, device: torch.device, forward_tokens: int) -> None:
        self.algorithm = spec.algorithm
        self.temperature = spec.sampling.temperature
        self.grad_clip = spec.optimizer.grad_clip
        self.device = device
        self.forward_tokens = forward_tokens
        self.bf16 = spec.training.precision == "bf16"
        path = spec.policy.model
        with _loading(path):
            self.policy: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        if spec.policy.lora_rank:
            add_adapters(self.policy, spec.policy, spec.seed)
        # Evaluation mode throughout: dropout would make the updated policy another than the
        # one that sampled.
        self.policy.to(device).eval()
        self.optimizer = self._adamw(self.policy, spec, spec.optimizer.lr)
        self.critic: Critic | None = None
        if self.algorithm.advantage == "gae":
            with _loading(path):
                self.critic = Critic(path, device)
            self.critic_optimizer = self._adamw(self.critic, spec, self.algorithm.value_lr)

    @staticmethod
    def _adamw(model: nn.Module, spec: RunSpec, lr: float) -> torch.optim.AdamW:
        o = spec.optimizer
        return torch.optim.AdamW(
            [parameter for parameter in model.parameters() if parameter.requires_grad],
            lr=lr,
            betas=(o.beta1, o.beta2),
            eps=o.eps,
            weight_decay=o.weight_decay,
        )

    def autocast(self) -> AbstractContextManager[Any]:
        """Mixed precision if the spec asks for bf16; the weights themselves stay fp32."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16)

    @torch.no_grad()
    def values(self, rows: Sequence[Row], turns: Sequence[int]) -> list[list[float]] | None:
        """The critic's value before each turn, `[episode][turn]`; None without a critic.

        Args:
            rows: The batch.
            turns: Number of turns of each episode.
        """
        if self.critic is None:
            return None
        table = [[0.0] * n for n in turns]
        for chunk in chunks(rows, self.forward_tokens):
            with self.autocast():
                value = self.critic(chunk)
            for row, old in zip(
                chunk, torch.split(value, [len(r.states) for r in chunk]), strict=True
            ):
                row.old_values = old
                for (turn, _), v in zip(row.states, old.tolist(), strict=True):
                    table[row.episode][turn] = v
        return table

    def update(
        self, rows: Sequence[Row], advantage: list[list[float]], target: list[list[float]]
    ) -> dict[str, float]:
        """Improve the policy (and the critic) on one batch.

        Args:
            rows: The batch.
            advantage: Of each turn, `[episode][turn]`.
            target: What the critic's value of each turn should be, `[episode][turn]`.

        Returns:
            Means over the updates of loss, gradient norm before clipping, entropy and so on.
        """
        parts = [part for part in minibatches(rows, self.algorithm.minibatches) if part]
        if self.algorithm.epochs * len(parts) > 1:
            self._remember_logprobs(rows)
        steps = []
        for _ in range(self.algorithm.epochs):
            for batch in parts:
                step = self._policy_step(batch, advantage)
                if self.critic is not None:
                    step |= self._critic_step(self.critic, batch, target)
                steps.append(step)
        return {key: sum(s[key] for s in steps) / len(steps) for key in steps[0]}

    @torch.no_grad()
    def _remember_logprobs(self, rows: Sequence[Row]) -> None:
        for chunk in chunks([row for row in rows if row.sampled], self.forward_tokens):
            with self.autocast():
                old, _ = token_statistics(self.policy, chunk, self.temperature)
            for row, part in zip(
                chunk, torch.split(old, [len(r.sampled) for r in chunk]), strict=True
            ):
                row.old_logprobs = part

    def _policy_step(self, rows: Sequence[Row], advantage: list[list[float]]) -> dict[str, float]:
        rows = [row for row in rows if row.sampled]
        tokens = sum(len(row.sampled) for row in rows)
        by_token = self.algorithm.loss_aggregation == "token-mean"
        denominator = tokens if by_token else len(rows)
        loss = entropy = clipped = 0.0
        self.optimizer.zero_grad()
        for chunk in chunks(rows, self.forward_tokens):
            per_token = [advantage[row.episode][turn] for row in chunk for turn in row.turn]
            a = torch.tensor(per_token, dtype=torch.float32, device=self.device)
            with self.autocast():
                new, h = token_statistics(self.policy, chunk, self.temperature)
            known = [row.old_logprobs for row in chunk if row.old_logprobs is not None]
            old = torch.cat(known) if known else new.detach()
            surrogate = policy_loss(new, old, a, self.algorithm.clip)
            part = (surrogate - self.algorithm.entropy_coef * h).sum() / denominator
            torch.autograd.backward(part)
            loss += part.item()
            entropy += h.sum().item() / tokens
            outside = ((new - old).exp() - 1).abs() > self.algorithm.clip
            clipped += outside.sum().item() / tokens
        norm = nn.utils.clip_grad_norm_(self.policy.parameters(), self.grad_clip)
        self.optimizer.step()
        return {
            "loss": loss,
            "grad_norm": norm.item(),
            "entropy": entropy,
            "clip_fraction": clipped,
        }

    def _critic_step(
        self, critic: Critic, rows: Sequence[Row], target: list[list[float]]
    ) -> dict[str, float]:
        turns = sum(len(row.states) for row in rows)
        loss = 0.0
        self.critic_optimizer.zero_grad()
        for chunk in chunks(rows, self.forward_tokens):
            wanted = [target[row.episode][turn] for row in chunk for turn, _ in row.states]
            goal = torch.tensor(wanted, dtype=torch.float32, device=self.device)
            with self.autocast():
                new = critic(chunk)
            old = torch.cat([row.old_values for row in chunk if row.old_values is not None])
            part = value_loss(new, old, goal, self.algorithm.value_clip).sum() / turns
            torch.autograd.backward(part)
            loss += part.item()
        norm = nn.utils.clip_grad_norm_(critic.parameters(), self.grad_clip)
        self.critic_optimizer.step()
        return {"value_loss": loss, "value_grad_norm": norm.item()}


def train(
    spec: RunSpec,
    record: str | Path,
    *,
    device: str = "auto",
    forward_tokens: int = 65_536,
    report: Callable[[int, str, dict[str, float]], None] | None = None,
) -> Learner:
    """Run an experiment and record it.

    Args:
        spec: The experiment; `spec.policy.model` is a local folder or a hub name.
        record: Folder for `metrics.jsonl` and `episodes.jsonl`, and for `run.json` unless whoever
            started the run has written it.
        device: `auto` (CUDA if there is one), `cpu`, `cuda` or `cuda:<n>`.
        forward_tokens: Most tokens, padding included, in one forward pass of an update. Limits
            memory; changes results by rounding only.
        report: Called with iteration, split and metrics after each recorded line.

    Returns:
        The learner with the trained policy.

    Raises:
        ConfigurationError: The spec asks for something this trainer does not do, or the model
            cannot be used (the message names the key), or `record` holds another run.
        RolloutError: More episodes of a batch failed than `training.max_failed_fraction`.
    """
    check_supported(spec)
    if (Path(record) / METRICS).exists():
        raise ConfigurationError(f"{record} holds the record of another run; choose a new folder")
    recorder = Recorder(record)
    if not (recorder.folder / RUN).exists():
        about = {"trainer": "reference", "spec": spec.to_mapping(), "model": spec.policy.model}
        recorder.start(about)
    place = torch.device(
        device if device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    )
    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        return _train(spec, recorder, place, forward_tokens, report or _say_nothing)
    finally:
        torch.use_deterministic_algorithms(deterministic)


def _train(
    spec: RunSpec,
    recorder: Recorder,
    device: torch.device,
    forward_tokens: int,
    report: Callable[[int, str, dict[str, float]], None],
) -> Learner:
    with _loading(spec.policy.model):
        tokenizer = AutoTokenizer.from_pretrained(spec.policy.model)
    learner = Learner(spec, device, forward_tokens)
    chat = ChatFormat(tokenizer, system_prompt=spec.policy.system_prompt)
    pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
    room = getattr(learner.policy.config, "max_position_embeddings", None)
    wanted = spec.policy.prompt_tokens + spec.policy.response_tokens
    if room is not None and wanted > room:
        raise ConfigurationError(
            f"policy.prompt_tokens + policy.response_tokens is {wanted}, but the model has "
            f"{room} positions"
        )

    def rollout(
        tasks: Sequence[Task],
        groups: Sequence[int],
        sampling: SamplingPart,
        *key: int,
    ) -> tuple[list[Trajectory], dict[str, float]]:
        # A stream of its own for each batch: an evaluation more or less changes nothing else.
        generator = torch.Generator(device).manual_seed(stream(spec.seed, *key).getrandbits(63))
        sampler = CachedSampler(learner.policy, chat, pad_id, sampling, generator)
        began = time.perf_counter()
        with learner.autocast():
            episodes = play_batch(
                tasks, sampler, chat, budget=spec.budget, context=spec.policy.context, groups=groups
            )
        seconds = time.perf_counter() - began
        check_failures(
            [t.valid for t in episodes],
            spec.training.max_failed_fraction,
            [t.failure for t in episodes],
        )
        metrics = episode_metrics(episodes)
        metrics |= {"rollout_s": seconds, "tokens_per_s": metrics["sampled_tokens"] / seconds}
        return episodes, metrics

    def evaluate(iteration: int) -> None:
        for number, part in enumerate(spec.eval):
            if iteration % part.every and iteration != spec.training.iterations:
                continue
            greedy = part.temperature == 0
            sampling = SamplingPart(top_k=1) if greedy else SamplingPart(part.temperature)
            tasks = [Task(part.id, part.seed + j, part.params) for j in range(part.episodes)]
            groups = range(part.episodes)
            episodes, metrics = rollout(tasks, groups, sampling, iteration, 1 + number)
            recorder.metrics(iteration, metrics, f"eval:{part.name}")
            recorder.episodes(iteration, episodes, split=f"eval:{part.name}")
            report(iteration, f"eval:{part.name}", metrics)

    algorithm, size = spec.algorithm, spec.training.group_size
    show_rows = os.environ.get("GEM_RECORD_ROWS") == "1"
    for iteration in range(spec.training.iterations):
        evaluate(iteration)
        tasks = [task for task in spec.train_tasks(iteration) for _ in range(size)]
        groups = [i // size for i in range(len(tasks))]
        episodes, metrics = rollout(tasks, groups, spec.sampling, iteration, 0)

        began = time.perf_counter()
        rows = training_rows(episodes)
        values = learner.values(rows, [len(t.turns) for t in episodes])
        table = turn_table(episodes, values)
        advantage, target = advantages(
            algorithm.advantage, table, gamma=algorithm.gamma, lam=algorithm.lam
        )
        per_episode = table.split(advantage)
        metrics |= learner.update(rows, per_episode, table.split(target))
        metrics |= {"lr": spec.optimizer.lr, "update_s": time.perf_counter() - began}
        recorder.metrics(iteration, metrics)
        shown = trained_rows(rows, episodes, per_episode) if show_rows else None
        recorder.episodes(iteration, episodes, per_episode, rows=shown)
        report(iteration, "train", metrics)
    evaluate(spec.training.iterations)
    return learner


def check_supported(spec: RunSpec) -> None:
    """Refuse what this trainer would otherwise ignore.

    Raises:
        ConfigurationError: Names the key, its value and what is possible.
    """
    if spec.algorithm.kl_coef:
        raise ConfigurationError(
            f"algorithm.kl_coef: the reference trainer has no KL penalty, got "
            f"{spec.algorithm.kl_coef}; set it to 0"
        )
    if spec.algorithm.advantage in ("grpo", "rloo") and spec.training.group_size < 2:
        raise ConfigurationError(
            f"training.group_size: {spec.algorithm.advantage} compares episodes of one task and "
            f"needs at least 2, got {spec.training.group_size}"
        )


def _say_nothing(iteration: int, split: str, metrics: dict[str, float]) -> None:
    pass


def read_spec(path: Path) -> RunSpec:
    """Read a RunSpec from a `.toml` or `.json` file, with a model that can be loaded.

    Raises:
        ConfigurationError: The file cannot be read, is not a RunSpec, or names no model.
        MissingExtraError: A model made by gem-cpu is asked for and gem-cpu is not installed.
    """
    if path.suffix == ".json":
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"cannot read the spec {path}: {error}") from error
        spec = RunSpec.from_mapping(data)
    else:
        spec = load_spec(path)
    return replace(spec, policy=replace(spec.policy, model=resolve_model(spec.policy.model)))


def main(argv: list[str] | None = None) -> int:
    """Train from the command line; exit status 2 and a message if the spec is refused."""
    parser = argparse.ArgumentParser(prog="python -m gem_bench.reference", description=__doc__)
    parser.add_argument("--spec", type=Path, required=True, help="RunSpec, TOML or JSON")
    parser.add_argument("--record", type=Path, required=True, help="folder of the run's record")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:<n>")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0 leaves torch's")
    parser.add_argument("--save", type=Path, help="folder for the trained model")
    args = parser.parse_args(argv)
    # Without it cuBLAS may add up in another order from run to run.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if args.threads > 0:
        torch.set_num_threads(args.threads)

    def report(iteration: int, split: str, metrics: dict[str, float]) -> None:
        shown = ("success_rate", "return_mean", "turns_mean", "loss", "grad_norm", "entropy")
        numbers = "  ".join(f"{key} {metrics[key]:.4f}" for key in shown if key in metrics)
        print(f"{iteration:5d} {split}  {numbers}", flush=True)

    try:
        spec = read_spec(args.spec)
        learner = train(spec, args.record, device=args.device, report=report)
        if args.save is not None:
            merge(learner.policy)
            learner.policy.save_pretrained(args.save)
            AutoTokenizer.from_pretrained(spec.policy.model).save_pretrained(args.save)
    except GemError as error:
        cause = cause_of(error)
        sys.stderr.write(f"{error}\n" if cause is None else f"{cause}: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

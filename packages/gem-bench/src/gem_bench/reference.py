"""The reference trainer: the definition of what every trainer's adapter is compared with.

    python -m gem_bench.reference --spec spec.toml --record runs/demo

Multi-turn policy gradients on one device, in order of execution: play episodes (`rollout`), cut
them into training rows (`gem_bench.rows`), give every turn an advantage (`turn_advantages`), the
losses (`gem_train.experiment.losses`), the steps (`Learner`), the loop (`train`). Exactness comes
before speed: the default is fp32, and on a CPU the same spec gives bitwise the same metrics.

Where it differs from common implementations of PPO and GRPO:

- Advantages, values and discounting are per turn; all sampled tokens of a turn share its advantage.
- Standard deviations are the population's, with no epsilon added; below 1e-6 the advantage is 0.
  Statistics cover the whole batch (ReBN) or group (GRPO). Advantages of GAE are normalised if
  `whiten` says so.
- Nothing is bootstrapped after an episode's last turn, also when the episode was truncated.
- Minibatches are not shuffled: consecutive whole episodes in the order played, in every epoch.
- The denominator of a loss counts the whole minibatch; cutting it into forward passes only rounds.
- Ratios compare the trainer's own log-probabilities with those before the batch's first update, at
  the sampling temperature, before tokens are left out or penalised (top-k, top-p, min-p, repetition
  penalty). The sampler's are used by corrections only
  (`algorithm.tis_*`, `reject_*`).
- The critic is a second transformer, which begins with the policy's weights and a zero head. It
  reads the last prompt token of each turn and has an optimiser of its own.
- The KL penalty is to the policy with which the run began, unless `algorithm.kl_reset` says so.
- No dropout. bf16 is autocast: weights stay fp32.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from transformers import AutoModel

from gem.multi import all_seats
from gem.rollout import ChatFormat, play_tasks
from gem.seeding import stream
from gem.tasks import Task
from gem.trajectory import Trajectory
from gem_bench.behaviour import Behaviour
from gem_bench.checkpoints import Checkpoints
from gem_bench.exploitability import exploitability
from gem_bench.lora import add_adapters
from gem_bench.models import load_pretrained, recomputing
from gem_bench.reference_setup import check_positions, check_supported, open_record, success_rates
from gem_bench.rows import Row, pad, row_means, row_sums, trained_rows, training_rows
from gem_bench.seeing import load_policy, load_tokenizer, sampler
from gem_train.batches import chunks, minibatches
from gem_train.experiment import estimate
from gem_train.experiment.agreement import Agreement
from gem_train.experiment.filtering import filtered
from gem_train.experiment.losses import (
    bounded,
    clipped,
    importance_weights,
    kept,
    kl_penalty,
    policy_loss,
    probability_ratio,
    value_loss,
)
from gem_train.experiment.metrics import update_metrics
from gem_train.experiment.runspec import AlgorithmPart, RunSpec, SamplingPart
from gem_train.judges import asked_here
from gem_train.passes import CPU_TOKENS
from gem_train.settings import check_episodes

Metrics: TypeAlias = dict[str, float]
PerTurn: TypeAlias = list[list[float]]
"""One number for each turn, `[episode][turn]`."""


def rollout(
    learner: Learner,
    chat: ChatFormat,
    tasks: Sequence[Task],
    group_size: int,
    sampling: SamplingPart,
    key: tuple[int, int],
    policy: tuple[Any, int] | None = None,
    first_group: int = 0,
) -> tuple[list[Trajectory], float]:
    """Play a batch of episodes; return them and the seconds it took.

    Args:
        learner: Has the policy and the spec.
        chat: Token layout of a conversation.
        tasks: Each is played `group_size` times; these episodes, in a row, are a group. One with
            `seat=all` is a match of the policy against itself, with an episode for every agent.
        group_size: Episodes of each task.
        sampling: How turns are sampled.
        key: Iteration and number of the batch in it. They give the batch a random stream of its
            own, so evaluations do not change training.
        policy: What samples, and its version; by default the current policy.
        first_group: Number of the first group.

    Raises:
        RolloutError: More episodes failed than `training.max_failed_fraction`.
    """
    spec = learner.spec
    seed = stream(spec.seed, *key).getrandbits(63)
    generator = torch.Generator(learner.device).manual_seed(seed)
    model, version = policy or (learner.policy, key[0])
    sampling_model = sampler(model, chat, sampling, generator, version)
    began = time.perf_counter()
    with learner.autocast():
        played = play_tasks(
            [task for task in tasks for _ in range(group_size)],
            sampling_model,
            chat,
            budget=spec.budget,
            context=spec.policy.context,
            groups=[first_group + group for group in range(len(tasks)) for _ in range(group_size)],
        )
    episodes = [episode for of_task in played for episode in of_task]
    seconds = time.perf_counter() - began
    check_episodes(episodes, spec.training.max_failed_fraction)
    return episodes, seconds


def training_batch(
    learner: Learner,
    chat: ChatFormat,
    iteration: int,
    rates: Mapping[str, Sequence[float | None]],
    policy: tuple[Any, int],
) -> tuple[list[Trajectory], list[bool], Metrics]:
    """Play the batch of an iteration, and further ones as `training.extra_batches` says.

    Args:
        learner: Has the policy and the spec.
        chat: Token layout of a conversation.
        iteration: Its number.
        rates: Success rates that decide about the tasks, see `RunSpec.train_tasks`.
        policy: What samples, and its version.

    Returns:
        All episodes that were played, whether each is trained on, and metrics.

    Raises:
        RolloutError: Too many episodes failed, or there is nothing to train on.
    """
    spec, size = learner.spec, learner.spec.training
    episodes: list[Trajectory] = []
    seconds = 0.0
    for number in range(1 + (size.extra_batches or 0)):
        tasks = spec.train_tasks(iteration, rates, number)
        key, first = (number * size.iterations + iteration, 0), number * size.tasks
        more, taken = rollout(
            learner, chat, tasks, size.group_size, spec.sampling, key, policy, first
        )
        episodes += more
        seconds += taken
        if size.extra_batches is None:
            return episodes, [True] * len(episodes), {"rollout_s": seconds}
        found = filtered(episodes, size.tasks, spec.algorithm)
        if found.groups == size.tasks:
            break
    found.check()
    return episodes, found.trained, {"rollout_s": seconds, **found.metrics}


def turn_advantages(
    algorithm: AlgorithmPart,
    trajectories: Sequence[Trajectory],
    values: PerTurn | None = None,
    state: MutableMapping[str, float] | None = None,
    added: PerTurn | None = None,
    trained: Sequence[bool] | None = None,
) -> tuple[PerTurn, PerTurn]:
    """Return every turn's advantage, and the target of the critic's value.

    `r_t` is the reward of turn t, `V_t` the critic's value before it. Within an episode,
    `G_t = r_t + gamma * G_{t+1}` and `R = sum_t r_t`. Failed episodes are in no statistic.

    - `reinforce`: `A_t = G_t` (Williams, 1992)
    - `rebn`: `A_t = (G_t - mean G) / std G` over all turns of the batch (arXiv 2510.01051, sec. 3),
      or over those of the turn's environment or role (`normalise`)
    - `grpo`: `A_t = (R - mean R) / std R` over the group's episodes (arXiv 2402.03300, eq. 4)
    - `rloo`: `A_t = R` minus the mean R of the group's other episodes (arXiv 2402.14740)
    - `rae`: `A_t = G_0` minus a running mean of earlier `G_0` of the role (arXiv 2506.24119)
    - `gae`, the advantage of PPO: `A_t = delta_t + gamma * lam * A_{t+1}` with
      `delta_t = r_t + gamma * V_{t+1} - V_t` (arXiv 1506.02438, eq. 16); its target is `A_t + V_t`

    Episodes of different roles, which are agents of an environment, are never in one group.

    Args:
        algorithm: Names the estimator, with `gamma`, `lam` and what is done to rewards and
            advantages (`gem_train.experiment.estimate.Shaping`).
        trajectories: The batch; `group` says which episodes are of one task.
        values: The critic's value before each turn; needed by `gae`.
        state: What an estimator that keeps one left after the batch before; brought up to date.
        added: To each turn's reward, such as `Learner.penalties`.
        trained: Whether an episode is trained on; the others are in no statistic.
    """
    return estimate.turn_advantages(
        algorithm.advantage,
        trajectories,
        algorithm,
        gamma=algorithm.gamma,
        lam=algorithm.lam,
        added=added,
        values=values,
        state=state,
        trained=trained,
    )


def token_statistics(
    model: Any, rows: Sequence[Row], temperature: float, chat: ChatFormat | None = None
) -> tuple[Tensor, Tensor]:
    """Return log-probability and entropy of every sampled token, `[sampled tokens of all rows]`.

    The distribution is the model's at the sampling temperature, before any token is left out or
    penalised.
    """
    where = [(i, position) for i, row in enumerate(rows) for position in row.sampled]
    row, position = torch.tensor(where, device=model.device).T
    # Logits are computed only in columns where some row has a sampled token.
    kept, column = torch.unique(position - 1, return_inverse=True)
    batch = pad(rows, model.device, chat)
    logits = model(**batch, use_cache=False, logits_to_keep=kept).logits[row, column].float()
    logprobs = (logits / temperature).log_softmax(-1)
    chosen = logprobs.gather(1, batch["input_ids"][row, position][:, None])[:, 0]
    return chosen, -(logprobs.exp() * logprobs).sum(-1)


class Critic(nn.Module):
    """A transformer of its own with a linear head, read where the policy is about to act."""

    def __init__(self, path: str, device: torch.device, chat: ChatFormat) -> None:
        super().__init__()
        self.chat = chat
        self.trunk = load_pretrained(AutoModel, path, dtype=torch.float32).to(device).eval()
        self.head = nn.Linear(self.trunk.config.get_text_config().hidden_size, 1, device=device)
        nn.init.zeros_(self.head.weight)  # the first batch's values are 0: no random baseline
        nn.init.zeros_(self.head.bias)

    def forward(self, rows: Sequence[Row]) -> Tensor:
        """Return the value before each turn, `[turns of all rows]`."""
        where = [(i, position) for i, row in enumerate(rows) for _, position in row.states]
        row, position = torch.tensor(where, device=self.head.weight.device).T
        batch = pad(rows, self.head.weight.device, self.chat)
        hidden = self.trunk(**batch, use_cache=False).last_hidden_state[row, position]
        value: Tensor = self.head(hidden.float())[:, 0]
        return value


class Learner:
    """Policy, critic if the advantage is `gae`, their optimisers; `update` is one training step."""

    def __init__(
        self,
        spec: RunSpec,
        device: torch.device,
        forward_tokens: int,
        *,
        gradient_checkpointing: bool = False,
    ) -> None:
        """Load the models from `spec.policy.model`; see `train` for the arguments."""
        self.spec = spec
        self.device = device
        self.forward_tokens = forward_tokens
        path = spec.policy.model
        self.chat = spec.policy.chat_format(load_tokenizer(path))
        self.policy = load_policy(path)
        if spec.policy.lora_rank:
            add_adapters(self.policy, spec.policy, spec.seed)
        # Evaluation mode: with dropout, the updated policy would differ from the sampled one.
        self.policy.to(device).eval()
        self.optimizer = self._adamw(self.policy, spec.optimizer.lr)
        self.initial = deepcopy(self.policy) if spec.algorithm.kl_coef else None
        self.behaviour = Behaviour(self.policy, spec.training.staleness)
        self.estimator_state: dict[str, float] = {}  # of an estimator that keeps one
        self.agreement = Agreement()  # of the last batch
        # Rows of its first forward pass, with their log-probabilities before the update.
        self._before: list[tuple[Sequence[Row], Tensor]] = []
        self.critic: Critic | None = None
        if spec.algorithm.estimator.needs_critic:
            self.critic = Critic(path, device, self.chat)
            self.critic_optimizer = self._adamw(self.critic, spec.algorithm.value_lr)
        if gradient_checkpointing:
            for model in (self.policy, *([self.critic.trunk] if self.critic else [])):
                model.gradient_checkpointing_enable({"use_reentrant": False})

    def _adamw(self, model: nn.Module, lr: float) -> torch.optim.AdamW:
        o, weights = self.spec.optimizer, [w for w in model.parameters() if w.requires_grad]
        return torch.optim.AdamW(
            weights, lr=lr, betas=(o.beta1, o.beta2), eps=o.eps, weight_decay=o.weight_decay
        )

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context of forward passes: mixed precision if the spec asks for bf16."""
        bf16 = self.spec.training.precision == "bf16"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=bf16)

    @torch.no_grad()
    def values(self, rows: Sequence[Row], turns: Sequence[int]) -> PerTurn | None:
        """Return the critic's value before each turn; None without a critic.

        Args:
            rows: The batch; each row keeps its values for `value_loss`.
            turns: Number of turns of each episode.
        """
        if self.critic is None:
            return None
        table = [[0.0] * n for n in turns]
        for chunk in chunks(rows, self.forward_tokens):
            with self.autocast():
                value = self.critic(chunk)
            sizes = [len(row.states) for row in chunk]
            for row, old in zip(chunk, torch.split(value, sizes), strict=True):
                row.old_values = old
                for (turn, _), v in zip(row.states, old.tolist(), strict=True):
                    table[row.episode][turn] = v
        return table

    def penalties(self, rows: Sequence[Row], turns: Sequence[int]) -> PerTurn | None:
        """Return what a KL penalty adds to the reward of each turn; None if there is none.

        Args:
            rows: The batch.
            turns: Number of turns of each episode.
        """
        algorithm = self.spec.algorithm
        if self.initial is None or algorithm.kl_in == "loss":
            return None
        table = [[0.0] * n for n in turns]
        old = self._logprobs(self.policy, rows)
        for (row, new), (_, initial) in zip(old, self._logprobs(self.initial, rows), strict=True):
            kl = kl_penalty(new, initial, algorithm.kl_estimator)
            for turn, value in zip(row.turn, kl.tolist(), strict=True):
                table[row.episode][turn] -= algorithm.kl_coef * value
        return table

    def exploitability(self, chat: ChatFormat, task: Task, sampling: SamplingPart) -> Metrics:
        """Return what best responses win against the policy in a small game of several agents."""

        def logprobs(rows: Sequence[Row]) -> Tensor:
            with self.autocast():
                return token_statistics(self.policy, rows, sampling.temperature, self.chat)[0]

        return exploitability(
            logprobs,
            chat,
            task,
            budget=self.spec.budget,
            context=self.spec.policy.context,
            greedy=sampling.top_k == 1,
            forward_tokens=self.forward_tokens,
        )

    def reset_reference(self, iteration: int) -> None:
        """Let the KL penalty be to the current policy from now on, every `kl_reset` iterations.

        Args:
            iteration: Number of the batch that comes next.
        """
        every = self.spec.algorithm.kl_reset
        if every is not None and iteration and iteration % every == 0:
            self.initial = deepcopy(self.policy)

    def update(
        self, rows: Sequence[Row], advantage: PerTurn, target: PerTurn, iteration: int
    ) -> Metrics:
        """Improve the policy, and the critic if there is one, on one batch.

        Args:
            rows: The batch.
            advantage: Of each turn.
            target: What the critic's value of each turn should be.
            iteration: Number of the batch, for the schedule of the learning rate.

        Returns:
            Means over the optimiser steps of loss, gradient norm before clipping, entropy,
            learning rate and share of clipped tokens; `update_kl`, the KL divergence of the policy
            after the update from that before it, in nats per token, as k3 estimates it on the first
            forward pass's tokens; the first pass's metrics of `gem_train.experiment.agreement`, if
            tokens are drawn from all candidates; with a KL penalty also of `kl`, with a correction
            of the shares of tokens with a ratio beyond its bounds (`tis_fraction`) and of rejected
            ones (`rejected_fraction`), with a critic of its loss and gradient norm. While only the
            critic is trained, its metrics alone.
        """
        algorithm = self.spec.algorithm
        batches = [batch for batch in minibatches(rows, algorithm.minibatches) if batch]
        if algorithm.epochs * len(batches) > 1:
            for row, logprobs in self._logprobs(self.policy, rows):
                row.old_logprobs = logprobs
        if self.initial is not None and algorithm.kl_in == "loss":
            for row, logprobs in self._logprobs(self.initial, rows):
                row.initial_logprobs = logprobs
        steps, self.agreement = [], Agreement()
        with recomputing(self.policy, *filter(None, [self.critic])):
            for number, batch in enumerate(batches * algorithm.epochs):
                self._schedule(iteration * self.spec.steps + number)
                step = {}
                if iteration >= algorithm.critic_warmup:
                    step = self._policy_step(batch, advantage, first=number < len(batches))
                if self.critic is not None:
                    step |= self._critic_step(self.critic, batch, target)
                steps.append(step)
        metrics = update_metrics(steps) | self.agreement.metrics()
        if self._before:
            metrics["update_kl"] = self._update_kl(*self._before.pop())
        return metrics

    def _update_kl(self, rows: Sequence[Row], before: Tensor) -> float:
        """Return how far the policy went from log-probabilities of rows, in nats per token."""
        after = torch.cat([logprobs for _, logprobs in self._logprobs(self.policy, rows)])
        return kl_penalty(before, after, "k3").mean().item()

    def _schedule(self, step: int) -> None:
        """Set the learning rates of an optimiser step."""
        spec = self.spec
        factor = spec.optimizer.factor(step, spec.training.iterations * spec.steps)
        self.optimizer.param_groups[0]["lr"] = spec.optimizer.lr * factor
        if self.critic is not None:
            self.critic_optimizer.param_groups[0]["lr"] = spec.algorithm.value_lr * factor

    @torch.no_grad()
    def _logprobs(self, model: Any, rows: Sequence[Row]) -> list[tuple[Row, Tensor]]:
        """Return each row that has sampled tokens with their log-probabilities."""
        found: list[tuple[Row, Tensor]] = []
        for chunk in chunks([row for row in rows if row.sampled], self.forward_tokens):
            with self.autocast():
                logprobs, _ = token_statistics(
                    model, chunk, self.spec.sampling.temperature, self.chat
                )
            parts = torch.split(logprobs, [len(row.sampled) for row in chunk])
            found += zip(chunk, parts, strict=True)
        return found

    def _policy_step(self, rows: Sequence[Row], advantage: PerTurn, *, first: bool) -> Metrics:
        """Take one step down the policy's loss; `first` is of the first pass over the batch.

        It is `sum(weight * (surrogate - entropy_coef * entropy + kl_coef * kl)) / units` over
        tokens; `loss_aggregation` decides weights and units. A correction is a factor of the
        surrogate; the weight of a rejected token is 0, and it counts in `units`.
        """
        algorithm, longest = self.spec.algorithm, self.spec.policy.response_tokens
        rows = [row for row in rows if row.sampled]
        tokens = sum(len(row.sampled) for row in rows)
        units = sum(algorithm.units(row.turn) for row in rows)
        loss = entropy = outside = kl = beyond = rejected = 0.0
        self.optimizer.zero_grad()
        for chunk in chunks(rows, self.forward_tokens):
            per_token = [advantage[row.episode][turn] for row in chunk for turn in row.turn]
            a = torch.tensor(per_token, dtype=torch.float32, device=self.device)
            with self.autocast():
                new, h = token_statistics(
                    self.policy, chunk, self.spec.sampling.temperature, self.chat
                )
            known = [row.old_logprobs for row in chunk if row.old_logprobs is not None]
            old = torch.cat(known) if known else new.detach()
            if not self._before:
                self._before.append((chunk, old))
            weights = [algorithm.weights(row.turn, longest) for row in chunk]
            per_token = [w[t] for row, w in zip(chunk, weights, strict=True) for t in row.turn]
            weight = torch.tensor(per_token, device=self.device)
            lengths = torch.tensor([len(row.sampled) for row in chunk])
            mean, total = partial(row_means, lengths), partial(row_sums, lengths)
            surrogate = policy_loss(new, old, a, algorithm, mean)
            known_to_all = all(row.tokens.logprobs is not None for row in chunk)
            if first and known_to_all and self.spec.sampling.whole:
                sampler = [p for row in chunk for p in row.drawn]
                self.agreement += Agreement.of(old.detach().float().cpu(), sampler)
            if algorithm.corrects:
                drawn = torch.tensor([p for row in chunk for p in row.drawn], device=self.device)
                surrogate = surrogate * importance_weights(old, drawn, algorithm, total)
                stays = kept(old, drawn, algorithm, total)
                weight = weight * stays
                beyond += bounded(old, drawn, algorithm, total).sum().item() / tokens
                rejected += (~stays).sum().item() / tokens
            penalty = torch.zeros_like(new)
            if self.initial is not None and algorithm.kl_in == "loss":
                started = [row.initial_logprobs for row in chunk]
                initial = torch.cat([each for each in started if each is not None])
                penalty = kl_penalty(new, initial, algorithm.kl_estimator)
            terms = surrogate - algorithm.entropy_coef * h + algorithm.kl_coef * penalty
            part = (terms * weight).sum() / units
            torch.autograd.backward(part)
            loss += part.item()
            entropy += h.sum().item() / tokens
            kl += penalty.sum().item() / tokens
            ratio = probability_ratio(new, old, algorithm, mean)
            outside += clipped(ratio, a, algorithm).sum().item() / tokens
        norm = nn.utils.clip_grad_norm_(self.policy.parameters(), self.spec.optimizer.grad_clip)
        self.optimizer.step()
        lr = self.optimizer.param_groups[0]["lr"]
        means = {"entropy": entropy, "clip_fraction": outside, "lr": lr}
        if self.initial is not None and algorithm.kl_in == "loss":
            means["kl"] = kl
        if algorithm.weighs:
            means["tis_fraction"] = beyond
        if algorithm.rejects:
            means["rejected_fraction"] = rejected
        return {"loss": loss, "grad_norm": norm.item(), **means}

    def _critic_step(self, critic: Critic, rows: Sequence[Row], target: PerTurn) -> Metrics:
        """Take one step down the mean value loss of the minibatch's turns."""
        turns = sum(len(row.states) for row in rows)
        loss = 0.0
        self.critic_optimizer.zero_grad()
        for chunk in chunks(rows, self.forward_tokens):
            wanted = [target[row.episode][turn] for row in chunk for turn, _ in row.states]
            goal = torch.tensor(wanted, dtype=torch.float32, device=self.device)
            with self.autocast():
                new = critic(chunk)
            old = torch.cat([row.old_values for row in chunk if row.old_values is not None])
            part = value_loss(new, old, goal, self.spec.algorithm.value_clip).sum() / turns
            torch.autograd.backward(part)
            loss += part.item()
        norm = nn.utils.clip_grad_norm_(critic.parameters(), self.spec.optimizer.grad_clip)
        self.critic_optimizer.step()
        return {"value_loss": loss, "value_grad_norm": norm.item()}


@contextmanager
def _deterministic() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


@_deterministic()
def train(
    spec: RunSpec,
    record: str | Path,
    *,
    device: str = "auto",
    forward_tokens: int | None = None,
    gradient_checkpointing: bool = False,
    checkpoints: Checkpoints | None = None,
    report: Callable[[int, str, Metrics], None] = lambda *_: None,
) -> Learner:
    """Run an experiment and record it; return the learner with the trained policy.

    Args:
        spec: The experiment; `spec.policy.model` is a local folder or a hub name.
        record: Folder for `metrics.jsonl` and `episodes.jsonl`, and for `run.json` unless the
            launcher has written it.
        device: `auto` (CUDA if there is one), `cpu`, `cuda` or `cuda:<n>`.
        forward_tokens: Most tokens, padding included, in one forward pass of an update. By default
            65,536 on a GPU and 1,024 on a CPU, which is faster with smaller tensors. Limits
            memory. Changes results by rounding only, except for `update_kl`, which is computed on
            the first pass.
        gradient_checkpointing: Compute activations again in the backward pass.
        checkpoints: Of this run, which goes on from the last one; what the record has after it is
            set aside. None saves none, and refuses a folder that holds a record.
        report: Called with iteration, split and metrics after each recorded batch.

    Raises:
        ConfigurationError: The spec asks for something this trainer does not do, or the model
            cannot be used (the message names the key), or `record` holds another run.
        RecordError: The record or a checkpoint cannot be written or read.
        RolloutError: More episodes of a batch failed than `training.max_failed_fraction`.
        UnfinishedError: Code that runs in the training called `sys.exit()`.
    """
    check_supported(spec)
    recording = open_record(spec, record, again=checkpoints is not None)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if forward_tokens is None:
        forward_tokens = CPU_TOKENS if device == "cpu" else 65_536
    learner = Learner(
        spec, torch.device(device), forward_tokens, gradient_checkpointing=gradient_checkpointing
    )
    chat, config = learner.chat, learner.policy.config.get_text_config()
    check_positions(spec, getattr(config, "max_position_embeddings", None))

    def evaluate(iteration: int) -> None:
        for number, part in enumerate(spec.eval):
            if iteration % part.every and iteration != spec.training.iterations:
                continue
            sampling = SamplingPart(**part.sampling.engine)
            if part.temperature == 0:
                sampling = SamplingPart(top_k=1)
            tasks = [Task(part.id, part.seed + j, part.params) for j in range(part.episodes)]
            key = (iteration, 1 + number)
            episodes, seconds = rollout(learner, chat, tasks, part.samples, sampling, key)
            found = {"rollout_s": seconds}
            if all_seats(part.params):
                found |= learner.exploitability(chat, tasks[0], sampling)
            metrics = recording.write_evaluation(iteration, part.name, episodes, metrics=found)
            report(iteration, f"eval:{part.name}", metrics)

    begin = checkpoints.restore(learner) if checkpoints else 0
    with asked_here(spec, record), recording.to_the_end(lambda: spec.training.iterations):
        for iteration in range(begin, spec.training.iterations):
            evaluate(iteration)
            rates, policy = success_rates(spec, record, iteration), learner.behaviour.at(iteration)
            episodes, counted, played = training_batch(learner, chat, iteration, rates, policy)
            began = time.perf_counter()
            learner.reset_reference(iteration)
            rows = training_rows(episodes, counted)
            turns = [len(t.turns) for t in episodes]
            values, added = learner.values(rows, turns), learner.penalties(rows, turns)
            advantage, target = turn_advantages(
                spec.algorithm, episodes, values, learner.estimator_state, added, counted
            )
            in_loss = spec.training.in_loss(episodes, counted)
            rows = [row for row in rows if in_loss[row.episode]]
            metrics = learner.update(rows, advantage, target, iteration)
            metrics |= {"update_s": time.perf_counter() - began}
            trained = partial(trained_rows, rows, episodes, advantage)
            recording.keep_batch(episodes, advantage, trained, metrics=played)
            report(iteration, "train", recording.write_iteration(iteration, metrics=metrics))
            if checkpoints:
                checkpoints.save(learner, iteration + 1)
        evaluate(spec.training.iterations)
    return learner


if __name__ == "__main__":
    from gem_bench.reference_command import main

    sys.exit(main())

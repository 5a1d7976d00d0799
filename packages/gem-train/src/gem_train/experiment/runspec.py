"""The RunSpec: everything that defines a learning problem, and nothing about a trainer."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from gem.errors import ConfigurationError, DataError
from gem.estimators import BUILT_IN, Estimator, check_name, estimator
from gem.json_lines import parse
from gem.multi import all_seats
from gem.rollout.play import Budget
from gem.rollout.prompting import Prompting
from gem.tables import build, filled, parse_toml, setting
from gem.tasks import Task, TaskSet
from gem_judge.named import RULES
from gem_judge.settings import JudgeSettings
from gem_train.experiment.estimate import Shaping
from gem_train.experiment.filtering import Filtering
from gem_train.experiment.losses import Correction, PolicyLoss
from gem_train.experiment.metrics import check_info_names
from gem_train.experiment.mixtures import SEEDS, EnvPart, Mixture, Tasks
from gem_train.experiment.schedule import Schedule
from gem_train.experiment.tasksets import EvalSampling, Source, check_names

MAX_FAILED_FRACTION = 0.1
"""Default of the share of failed episodes above which a run stops."""
EVAL_SEED = 500_000
"""Default seed of an evaluation's first task."""


@dataclass(frozen=True, kw_only=True)
class EvalPart(EvalSampling):
    """One evaluation, with the same tasks every time."""

    name: str = setting("name in the metrics (`eval:<name>`)", check=filled)
    id: str = setting("registered environment id", check=filled)
    params: Mapping[str, Any] = setting("parameters given to `gem.make`", {})
    seed: int = setting(
        "episode j has seed `seed + j`; the default is between the training tasks of any two seeds "
        "of a sweep",
        EVAL_SEED,
    )
    episodes: int = setting("tasks per evaluation", 64, least=1)
    samples: int = setting("episodes of each task", 1, least=1)
    every: int = setting(
        "iterations between evaluations; also before the first and at the end", 20, least=1
    )

    @property
    def sampling(self) -> EvalSampling:
        """How its turns are sampled."""
        return EvalSampling(**{key: getattr(self, key) for key in EvalSampling().engine})

    @property
    def source(self) -> Source:
        """Its task set and settings."""
        tasks = TaskSet(self.id, self.episodes, self.seed, self.params)
        return Source(tasks, self.name, self.sampling, self.samples)


@dataclass(frozen=True, kw_only=True)
class PolicyPart(Prompting):
    """Prompts, model and token limits."""

    model: str = setting(
        "path or hub name of a model with a chat template, or one of gem-cpu's", check=filled
    )
    prompt_tokens: int = setting("most tokens of a fresh prompt", least=1)
    response_tokens: int = setting("most tokens appended to a fresh prompt", least=1)
    turn_tokens: int = setting("most tokens sampled in a turn", least=1)
    turns: int | None = setting("most turns, besides the environment's own limit", None, least=1)
    lora_rank: int = setting(
        "rank of low-rank adapters on the attention and MLP projections; 0 trains all weights",
        0,
        least=0,
    )
    lora_alpha: float = setting("adapters are scaled by `lora_alpha / lora_rank`", 32.0, above=0)
    lora_init: str | None = setting(
        "adapter to begin with; by default a random one", None, check=filled
    )

    @property
    def tokens(self) -> int:
        """Most tokens of an episode with one append-only prompt (context `chat`)."""
        return self.prompt_tokens + self.response_tokens


@dataclass(frozen=True)
class LogitsProcessing:
    """Changes of the logits before a training token is drawn; some trainers have no setting."""

    min_p: float = setting(
        "leave out candidates that are less likely than `min_p` times the likeliest, in training "
        "(arXiv 2407.01082)",
        0.0,
        least=0,
        most=1,
    )
    repetition_penalty: float = setting(
        "the logits of tokens that are in the conversation already are divided by it where "
        "positive, else multiplied, before the temperature, in training (arXiv 1909.05858, "
        "section 4.1)",
        1.0,
        above=0,
    )


@dataclass(frozen=True)
class SamplingPart(LogitsProcessing):
    """How training episodes are sampled; `top_k = 1` at temperature 1 is greedy."""

    temperature: float = setting("softmax temperature", 1.0, above=0)
    top_p: float = setting("nucleus mass", 1.0, above=0, most=1)
    top_k: int = setting("number of candidates; -1 is all", -1, least=1, special=-1)

    @property
    def whole(self) -> bool:
        """Whether tokens are drawn from the model's whole distribution at the temperature."""
        return replace(self, temperature=1.0) == SamplingPart()


@dataclass(frozen=True)
class EstimatorPart:
    """The estimator of advantages."""

    advantage: str = setting(
        "reinforce, rebn, grpo, rloo, gae, rae, or an estimator of an installed package",
        check=check_name,
    )
    gamma: float = setting("discount per turn", 1.0, least=0, most=1)
    lam: float = setting("GAE's lambda per turn", 1.0, least=0, most=1)

    @property
    def estimator(self) -> Estimator:
        """The estimator that `advantage` names, with its traits."""
        return estimator(self.advantage)


@dataclass(frozen=True)
class AlgorithmPart(Correction, PolicyLoss, Shaping, EstimatorPart):
    """Advantage and policy loss."""

    epochs: int = setting("passes over a batch", 1, least=1)
    minibatches: int = setting("optimiser steps per pass", 1, least=1)
    kl_coef: float = setting("weight of the KL divergence to the initial policy", 0.0, least=0)
    kl_in: str = setting(
        "where the penalty is: a term of the `loss`, or taken from the `reward` of each turn, as "
        "the sum over its sampled tokens before the first update (arXiv 2203.02155)",
        "loss",
        choices=("loss", "reward"),
    )
    kl_reset: int | None = setting(
        "iterations after which the current policy takes the place of the initial one in the KL "
        "penalty, again and again (ProRL, arXiv 2505.24864, section 2.3.2); by default never",
        None,
        least=1,
    )
    entropy_coef: float = setting("weight of the entropy bonus", 0.0, least=0)
    value_lr: float = setting(
        "critic's learning rate, where the estimator needs a critic", 1e-3, above=0
    )
    value_clip: float = setting("clip range of the critic's prediction", 0.2, above=0)
    critic_warmup: int = setting(
        "first iterations in which only the critic is trained (VC-PPO, arXiv 2503.01491)",
        0,
        least=0,
    )


@dataclass(frozen=True)
class OptimizerPart(Schedule):
    """Optimiser of the policy; that of a critic differs in its learning rate."""

    type: str = setting("optimiser", "adamw", choices=("adamw",))
    beta1: float = setting("decay of the first moment", 0.9, least=0, below=1)
    beta2: float = setting("decay of the second moment", 0.999, least=0, below=1)
    eps: float = setting("denominator offset", 1e-8, above=0)
    weight_decay: float = setting("decoupled weight decay", 0.0, least=0)
    grad_clip: float = setting("largest gradient norm", 1.0, above=0)

    @property
    def betas(self) -> list[float]:
        """Decays of both moments."""
        return [self.beta1, self.beta2]


@dataclass(frozen=True)
class TrainingPart(Filtering):
    """Size of the run; each iteration plays `tasks * group_size` episodes."""

    iterations: int = setting("batches to train on", least=1)
    tasks: int = setting("different tasks in a batch", least=1)
    group_size: int = setting("episodes of each task", 1, least=1)
    staleness: int = setting(
        "iterations by which the policy that samples is older than the one that is trained: batch "
        "`i` is played with the weights after `max(0, i - staleness)` iterations",
        0,
        least=0,
    )
    precision: str = setting("parameters and arithmetic", "fp32", choices=("fp32", "bf16"))
    max_failed_fraction: float = setting(
        "share of failed episodes in a batch above which the run stops",
        MAX_FAILED_FRACTION,
        least=0,
        most=1,
    )
    info_metrics: tuple[str, ...] = setting(
        "numbers in the environments' `info` that are metrics: means of the last values",
        (),
        check=check_info_names,
    )


def _check_landmarks(landmarks: Mapping[str, Any]) -> None:
    for name, value in landmarks.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise ConfigurationError(
                f"landmarks.{name} must be a success rate from 0 to 1, got {value!r}"
            )


@dataclass(frozen=True)
class RunSpec:
    """Everything that defines a learning problem and nothing about a trainer."""

    name: str = setting("name of the experiment", check=filled)
    env: tuple[EnvPart, ...] = setting("training environment, or several")
    policy: PolicyPart = setting("model and context")
    algorithm: AlgorithmPart = setting("advantage and loss")
    optimizer: OptimizerPart = setting("optimiser")
    training: TrainingPart = setting("size of the run")
    sampling: SamplingPart = field(default_factory=SamplingPart)
    eval: tuple[EvalPart, ...] = ()
    seed: int = setting("seed of sampling and of newly made weights", 0, least=0)
    judge: Mapping[str, JudgeSettings] = setting(
        'judges by name, which environments ask (`params.judge = "<name>"`)', {}
    )
    landmarks: Mapping[str, float] = setting(
        "success rates to compare with, such as random play's; lines in the report, and nothing "
        "to a trainer",
        {},
    )

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any]) -> RunSpec:
        """Make a spec from parsed TOML or JSON.

        Raises:
            ConfigurationError: A key is unknown or missing, or its value has the wrong type or
                range; the message names the key as `table.key`.
        """
        spec = build(cls, _with_environments(data))
        if spec.algorithm.minibatches > spec.episodes:
            raise ConfigurationError(
                f"algorithm.minibatches must be at most the number of episodes in a batch, "
                f"training.tasks * training.group_size = {spec.episodes}, got "
                f"{spec.algorithm.minibatches}"
            )
        _check_landmarks(spec.landmarks)
        spec._check_loss()
        spec._check_unread()
        spec._check_groups()
        spec._check_sampling()
        check_names([part.name for part in spec.eval], "eval")
        spec._check_mixture()
        spec._check_apart()
        spec._check_judges()
        return spec

    @classmethod
    def read(cls, path: Path) -> RunSpec:
        """Read a `.toml` or `.json` file.

        Raises:
            ConfigurationError: It cannot be read or is no RunSpec; the message names the file.
        """
        try:
            content = path.read_bytes()
            json = path.suffix == ".json"
            data = parse(content, str(path)) if json else parse_toml(content, str(path))
        except (OSError, DataError, ConfigurationError) as error:
            raise ConfigurationError(f"cannot read the spec {path}: {error}") from error
        try:
            return cls.from_mapping(data)
        except ConfigurationError as error:
            raise ConfigurationError(f"{path}: {error}") from error

    def to_mapping(self) -> dict[str, Any]:
        """Return a JSON-ready mapping that `from_mapping` reads back.

        `env` is a table where there is one environment, else an array of tables.
        """
        found = asdict(self)
        if len(self.env) == 1:
            [env] = found["env"]
            defaults = asdict(EnvPart(self.env[0].id))
            always = ("id", "params", "seed")
            found["env"] = {k: v for k, v in env.items() if k in always or v != defaults[k]}
        for part in ("judge", "landmarks"):
            if not found[part]:
                del found[part]
        return found

    def settings(self) -> dict[str, Any]:
        """Return `to_mapping` without what describes the experiment only: `landmarks`."""
        found = self.to_mapping()
        found.pop("landmarks", None)
        return found

    @property
    def budget(self) -> Budget:
        """The episode's token and turn limits."""
        p = self.policy
        return Budget(p.turn_tokens, p.response_tokens, p.prompt_tokens, p.turns)

    @property
    def task_set(self) -> Tasks:
        """All training tasks, in order, `training.tasks` an iteration.

        Behind those of all iterations come those of their first extra batches, and so on.
        """
        batches = 1 + (self.training.extra_batches or 0)
        n, [env, *others] = batches * self.training.iterations * self.training.tasks, self.env
        if others or env.schedule or env.name is not None:
            return Mixture(self.env, n, self.training.tasks)
        return TaskSet(env.id, n, env.seed, env.params)

    @property
    def episodes(self) -> int:
        """Episodes of an iteration."""
        return self.training.tasks * self.training.group_size

    @property
    def steps(self) -> int:
        """Optimiser steps of an iteration."""
        return self.algorithm.epochs * self.algorithm.minibatches

    @property
    def eval_every(self) -> int:
        """Iterations between points at which at least one evaluation is due; 0 without any."""
        return math.gcd(*(part.every for part in self.eval))

    @property
    def evaluations(self) -> list[Source]:
        """Task set and settings of each evaluation."""
        return [part.source for part in self.eval]

    def train_tasks(
        self,
        iteration: int,
        rates: Mapping[str, Sequence[float | None]] | None = None,
        batch: int = 0,
    ) -> list[Task]:
        """Return the tasks of an iteration, `training.tasks` of them.

        Args:
            iteration: Its number.
            rates: Of every `adaptive` environment, by name (`EnvPart.shown`): its success rate in
                each earlier iteration, see `EnvPart.params_at`.
            batch: 0, or the number of an extra batch, from 1.
        """
        first = (batch * self.training.iterations + iteration) * self.training.tasks
        tasks = self.task_set[first : first + self.training.tasks]
        params = {
            env.shown: env.params_at(iteration, (rates or {}).get(env.shown, ()))
            for env in self.env
            if env.adaptive or batch
        }
        alone = self.env[0].shown
        return [replace(t, params=params.get(t.name or alone, t.params)) for t in tasks]

    def _check_loss(self) -> None:
        """Refuse settings of the loss and the schedule that contradict each other."""
        algorithm = self.algorithm
        highest, most = 1 + algorithm.highest, algorithm.dual_clip
        if most is not None and most <= highest:
            raise ConfigurationError(
                f"algorithm.dual_clip must be above 1 + clip_high = {highest:g}, got {most!r}"
            )
        self._check_bounds()
        self._check_phases()
        steps = self.training.iterations * self.steps
        if self.optimizer.warmup >= steps:
            raise ConfigurationError(
                f"optimizer.warmup must be below the optimiser steps of the run, {steps}, got "
                f"{self.optimizer.warmup}"
            )

    def _check_phases(self) -> None:
        """Refuse phases of a run without what they are phases of."""
        algorithm, iterations = self.algorithm, self.training.iterations
        alone = algorithm.critic_warmup
        if alone and not algorithm.estimator.needs_critic:
            raise ConfigurationError(
                f"algorithm.critic_warmup: the advantage {algorithm.advantage!r} has no critic; "
                f"leave it out, got {alone}"
            )
        for name, given in (("critic_warmup", alone), ("kl_reset", algorithm.kl_reset)):
            if given is not None and given >= iterations:
                raise ConfigurationError(
                    f"algorithm.{name} must be below training.iterations = {iterations}, got "
                    f"{given}"
                )

    def _check_bounds(self) -> None:
        """Refuse bounds of a correction that contradict each other."""
        algorithm = self.algorithm
        for low, high in (("tis_floor", "tis_clip"), ("reject_low", "reject_high")):
            least, most = getattr(algorithm, low), getattr(algorithm, high)
            if least is not None and most is not None and least >= most:
                raise ConfigurationError(
                    f"algorithm.{low} must be below algorithm.{high} = {most:g}, got {least!r}"
                )

    def _check_unread(self) -> None:
        """Refuse settings that nothing reads, because of another one.

        The advantages' own (`lam`, `value_lr`, `value_clip`, `normalise`) are left: a sweep may
        vary the advantage.
        """
        algorithm, policy = self.algorithm, self.policy
        weighs = algorithm.weighs, "without tis_clip or tis_floor"
        gate = algorithm.loss == "sapo"
        fades, clips = (gate, f"to the loss {algorithm.loss!r}"), (not gate, "to the loss 'sapo'")
        below = algorithm.loss == "ppo" or algorithm.clip_high is None
        penalty = algorithm.kl_coef > 0, "without algorithm.kl_coef"
        adapters = policy.lora_rank > 0, "without policy.lora_rank"
        by_group = algorithm.advantage == "grpo" or algorithm.advantage not in BUILT_IN
        conditions = {
            "policy.lora_alpha": adapters,
            "policy.lora_init": adapters,
            "algorithm.clip": clips if gate else (below, "to the loss 'cispo' with clip_high"),
            "algorithm.clip_high": clips,
            "algorithm.dual_clip": (algorithm.loss == "ppo", f"to the loss {algorithm.loss!r}"),
            "algorithm.group_std": (by_group, f"to the advantage {algorithm.advantage!r}"),
            "algorithm.kl_estimator": penalty,
            "algorithm.kl_in": penalty,
            "algorithm.kl_reset": penalty,
            "algorithm.reject_level": (algorithm.rejects, "without reject_low or reject_high"),
            "algorithm.sapo_negative": fades,
            "algorithm.sapo_positive": fades,
            "algorithm.tis_level": weighs,
            "algorithm.tis_outside": weighs,
            "optimizer.min_lr_ratio": (
                self.optimizer.schedule != "constant",
                "to the schedule 'constant'",
            ),
        }
        for key, (read, without) in conditions.items():
            table, _, name = key.partition(".")
            part = getattr(self, table)
            [default] = (each.default for each in fields(part) if each.name == name)
            given = getattr(part, name)
            if given != default and not read:
                raise ConfigurationError(
                    f"{key}: means nothing {without}; leave it out, got {given!r}"
                )

    def _check_groups(self) -> None:
        """Refuse dynamic sampling where a task has one episode, or several agents."""
        extra = self.training.extra_batches
        if extra is not None and self.training.group_size < 2:
            raise ConfigurationError(
                "training.extra_batches: compares the episodes of a task; training.group_size must "
                f"be 2 or more, got {self.training.group_size}"
            )
        if extra is not None and any(all_seats(env.params) for env in self.env):
            raise ConfigurationError(
                "training.extra_batches: the agents of a match (seat=all) are no group of episodes "
                f"with comparable returns; leave it out, got {extra}"
            )

    def _check_sampling(self) -> None:
        """Refuse what engines understand differently."""
        sampling = self.sampling
        if sampling.min_p and sampling.top_p < 1:
            raise ConfigurationError(
                "sampling.min_p: vLLM leaves candidates out before it counts the mass of top_p, "
                "transformers afterwards; set sampling.top_p to 1 or leave min_p out, got "
                f"{sampling.min_p!r}"
            )
        for part in self.eval:
            if part.min_p and part.top_p < 1:
                raise ConfigurationError(
                    f"eval.{part.name}.min_p: means something else together with top_p in vLLM "
                    f"than in transformers; leave one of them out, got {part.min_p!r}"
                )
            if part.samples > 1 and 0 in (part.temperature, part.top_k - 1):
                raise ConfigurationError(
                    f"eval.{part.name}.samples: greedy episodes of a task are all alike; set it to "
                    f"1, or sample at a temperature, got {part.samples}"
                )

    def _check_mixture(self) -> None:
        """Refuse environments without a task, and changes that never happen."""
        iterations, n = self.training.iterations, self.training.iterations * self.training.tasks
        mixture = Mixture(self.env, n, self.training.tasks)
        for index, env in enumerate(self.env):
            key = mixture.key(index)
            if index in mixture.never:
                raise ConfigurationError(
                    f"{key}.weight: none of the {n} tasks of this run (training.iterations * "
                    f"training.tasks) is of {env.shown!r}; it needs a larger weight, got "
                    f"{env.weight:g}"
                )
            for number, stage in enumerate(env.schedule):
                if stage.iteration is not None and stage.iteration >= iterations:
                    raise ConfigurationError(
                        f"{key}.schedule[{number}].iteration: the run has the iterations 0 to "
                        f"{iterations - 1}, got {stage.iteration}"
                    )

    def _check_apart(self) -> None:
        """Refuse the default seeds of an evaluation where the run trains on its tasks."""
        n = len(self.task_set)
        mixture = Mixture(self.env, n, self.training.tasks)
        for part in (each for each in self.eval if each.seed == EVAL_SEED):
            for index, env in enumerate(self.env):
                params = [env.params_after(k) for k in range(len(env.schedule) + 1)]
                end = env.seed + mixture.count(index)
                same = env.id == part.id and part.params in params
                if same and env.seed < EVAL_SEED + part.episodes and end > EVAL_SEED:
                    raise ConfigurationError(
                        f"eval.{part.name}.seed: tasks from {EVAL_SEED} on are trained on too: the "
                        f"{end - env.seed} tasks of {env.shown!r} have the seeds from {env.seed} "
                        f"on; set it to {end} or more"
                    )

    def _check_judges(self) -> None:
        """Refuse judges that nobody asks, and names of judges that are not there."""
        for name, judge in self.judge.items():
            if not re.fullmatch(r"[A-Za-z0-9_-]+", name) or name == RULES:
                raise ConfigurationError(
                    f"judge.{name}: a name has letters, digits, - and _, and is not {RULES!r}"
                )
            judge.check(f"judge.{name}.")
        params = [env.params_after(n) for env in self.env for n in range(len(env.schedule) + 1)]
        params += [part.params for part in self.eval]
        asked = {each["judge"] for each in params if isinstance(each.get("judge"), str)} - {RULES}
        if missing := sorted(asked - self.judge.keys()):
            raise ConfigurationError(
                f"params.judge: there is no table [judge.{missing[0]}]; there is "
                f"{', '.join(sorted(self.judge)) or 'none'}"
            )
        if unused := sorted(self.judge.keys() - asked):
            raise ConfigurationError(
                f"judge.{unused[0]}: no environment has params.judge = {unused[0]!r}"
            )


def _with_environments(data: Any) -> Any:
    """Return a spec's data with `env` as an array, in which every environment has its own seeds."""
    if not isinstance(data, Mapping) or "env" not in data:
        return data
    env = data["env"]
    if not isinstance(env, list | tuple):
        build(EnvPart, env, "env.")
        return {**data, "env": [env]}
    tables = (
        {"seed": i * SEEDS, **each} if isinstance(each, Mapping) else each
        for i, each in enumerate(env)
    )
    return {**data, "env": [*tables]}

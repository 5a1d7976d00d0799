"""gem-bench's hook: a RunSpec becomes OpenRLHF's own command, `openrlhf.cli.train_ppo_ray`."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from gem_openrlhf import worker
from gem_openrlhf.dataset import line
from gem_openrlhf.record import EVALUATED
from gem_openrlhf.settings import LORA, ONE_ROW, Settings
from gem_openrlhf.version import SUPPORTED_OPENRLHF, check_openrlhf
from gem_train import entries, platforms
from gem_train.experiment.hardware import sees
from gem_train.experiment.tasksets import dataset_text
from gem_train.launch import Adapter, Launch
from gem_train.pairs import COMPUTED, ON_CPU, pairs
from gem_train.passes import TO_PASS, UNPADDED, Layout, Passes, named
from gem_train.platforms import Platform
from gem_train.table import (
    Computed,
    Copied,
    Departs,
    Elsewhere,
    Fixed,
    Ignored,
    Refused,
    Run,
    Table,
    below,
    namesakes,
)

MODELS = ("actor", "critic", "ref")
AGENT_FILE, TRAIN_FILE, EVAL_FILE = "agent.py", "train.jsonl", "eval.jsonl"
CHECKPOINTS = "checkpoints"
AGENT = "agent file: "
"""Before the names of the agent file's settings; all other names are flags."""


def _compile(run: Run) -> Launch:
    """Return OpenRLHF's command.

    Raises:
        ConfigurationError: OpenRLHF cannot run this spec; the message names the key.
    """
    platform = platforms.of("openrlhf", run.spec, run.run_dir, run.hardware, _SHARED_GPUS)
    settings = TABLE.settings(run)
    flags = {k: v for k, v in settings.items() if not k.startswith(AGENT)}
    flags = _always(run) | platform.settings | flags
    if not run.critic:
        flags = {key: flags[key] for key in flags if not key.startswith("critic.")}
    flags = TABLE.with_native(flags, run)
    files = {
        AGENT_FILE: _agent_file(below(settings, AGENT)),
        TRAIN_FILE: dataset_text(line, [run.spec.task_set.uri], evaluation=False),
    }
    if run.spec.eval:
        uris = [source.text for source in run.spec.evaluations]
        files[EVAL_FILE] = dataset_text(line, uris, evaluation=True)
    return Launch.of(
        run.spec,
        ["python", "-m", "openrlhf.cli.train_ppo_ray", *_arguments(flags)],
        platform,
        {worker.VARIABLE: worker.HOOK, "RAY_DEDUP_LOGS": "0"},
        files=files,
        state=[EVALUATED, CHECKPOINTS],
        passes=_forward(run, flags),
    )


def _forward(run: Run, flags: Mapping[str, Any]) -> Passes:
    """Return how OpenRLHF divides a batch."""
    batch = ("rollout.batch_size", "rollout.n_samples_per_prompt")
    step, epochs = "train.batch_size", "train.max_epochs"
    packed, dynamic = "ds.packing_samples", "train.dynamic_batch_enable"
    rows, tokens = "train.micro_batch_size", "train.max_tokens_per_gpu"
    split = ("ds.ring_attn_size", "ds.tensor_parallel_size")
    said = named(flags, *batch, step, epochs, packed, dynamic, rows, tokens, *split)
    steps = said[epochs] * (prod(said[name] for name in batch) // said[step])
    padding = UNPADDED if said.get(packed) else TO_PASS
    if said.get(dynamic):
        layout: Layout = "packed" if said.get(packed) else "dynamic"
        most = prod(said[name] for name in (tokens, *split)) if tokens in said else None
        return Passes(layout, padding, steps, most, None, said)
    most = said[rows] * run.spec.policy.tokens
    return Passes("fixed", padding, steps, most, said[rows], said)


def _sees(run: Run) -> bool:
    """Return whether the model is known to see; one that is not here yet is not."""
    return bool(sees(run.spec.policy.model))


def _always(run: Run) -> dict[str, Any]:
    """Return the flags that no key decides; those of the critic are given where there is one."""
    # OpenRLHF's switch for images; no prompt has more of them than it has tokens.
    images = {"data.max_images_per_prompt": run.spec.policy.tokens} if _sees(run) else {}
    return {
        **images,
        "data.label_key": "label",
        "ds.zero_stage": 2,
        "train.num_episodes": 1,
        "train.agent_func_path": run.run_dir / AGENT_FILE,
        "data.prompt_dataset": run.run_dir / TRAIN_FILE,
        "data.max_len": run.spec.policy.tokens,
        "ckpt.output_dir": run.run_dir / "model",
        "ckpt.path": run.run_dir / CHECKPOINTS,
        "logger.tensorboard_dir": run.run_dir / "tensorboard",
    }


_SHARED_GPUS = Platform(
    {
        "train.colocate_all": True,
        "vllm.enable_sleep": True,
        "ds.enable_sleep": True,
        "vllm.enable_prefix_caching": True,
        "vllm.gpu_memory_utilization": 0.4,
    }
)
"""Models and engines on the same GPUs, one after the other."""


def _agent_file(settings: Mapping[str, Any]) -> str:
    given = Settings(**settings).given()
    lines = [f"        {name}={value!r},\n" for name, value in given.items()]
    return (
        "from gem_openrlhf import GemAgentExecutor, Settings\n\n\n"
        "class AgentExecutor(GemAgentExecutor):\n"
        f"    settings = Settings(\n{''.join(lines)}    )\n"
    )


def _tasks(run: Run) -> dict[str, Any]:
    return {f"{AGENT}task_order": "file", f"{AGENT}record_dir": str(run.run_dir)}


def _evaluations(run: Run) -> dict[str, Any]:
    return {
        "eval.dataset": run.run_dir / EVAL_FILE,
        "eval.steps": run.spec.eval_every,
        "eval.n_samples_per_prompt": 1,
        "ckpt.best_metric_key": "none",
    }


def _advantage(run: Run) -> dict[str, Any]:
    return {
        f"{AGENT}advantage": run.spec.algorithm.advantage,
        "algo.advantage.estimator": "gae" if run.critic else "reinforce",
    }


def _kl(run: Run) -> dict[str, Any]:
    algorithm = run.spec.algorithm
    term: dict[str, Any] = {"algo.kl.estimator": algorithm.kl_estimator}
    if algorithm.kl_in == "loss":
        term["algo.kl.use_loss"] = True
    return {"algo.kl.init_coef": algorithm.kl_coef, **(term if algorithm.kl_coef else {})}


_AGGREGATIONS = {"token-mean": "token-mean", "row-mean-token-mean": "seq-mean-token-mean"}


def _aggregation(run: Run) -> dict[str, Any]:
    return {"actor.loss_agg_mode": _AGGREGATIONS[run.spec.algorithm.loss_aggregation]}


def _ratio(run: Run) -> dict[str, Any]:
    sequence = run.spec.algorithm.ratio == "sequence"
    return {"actor.policy_loss_type": "gspo" if sequence else "ppo"}


def _clip(run: Run) -> dict[str, Any]:
    algorithm = run.spec.algorithm
    return {"actor.eps_clip_low_high": [algorithm.clip, algorithm.highest]}


def _schedule(run: Run) -> dict[str, Any]:
    optimizer = run.spec.optimizer
    names = {
        "lr_scheduler": optimizer.hugging_face,
        "lr_warmup_ratio": entries.warmup_ratio(run, up=True),
        "min_lr_ratio": optimizer.min_lr_ratio,
    }
    return {f"{part}.{k}": value for part in ("actor", "critic") for k, value in names.items()}


def _correction(run: Run) -> dict[str, Any]:
    algorithm, correction = run.spec.algorithm, "algo.advantage.is_correction"
    if algorithm.tis_clip is None:
        return {}
    return {
        f"{correction}_threshold": [algorithm.tis_floor or 0.0, algorithm.tis_clip],
        f"{correction}_level": "token",
        f"{correction}_mode": {"clip": "clip", "zero": "mask"}[algorithm.tis_outside],
    }


def _other_distribution(run: Run) -> bool:
    """Whether vLLM reports other log-probabilities; with a correction those that it draws with."""
    sampling = run.spec.sampling
    if run.spec.algorithm.tis_clip is not None:
        return not sampling.whole
    return sampling.temperature != 1


def _passes(run: Run) -> dict[str, Any]:
    share = run.step_episodes // run.hardware.ranks
    fitting = run.pass_tokens // run.spec.policy.tokens
    micro = next(n for n in range(min(share, fitting), 0, -1) if share % n == 0)
    flags: dict[str, Any] = {"rollout.micro_batch_size": micro, "train.micro_batch_size": micro}
    # OpenRLHF gives the images of packed rows the positions of a text.
    if run.attention == "flash_attention_2" and not _sees(run):
        # Rows without padding, as many in a forward pass as fit.
        flags |= {"ds.packing_samples": True, "train.dynamic_batch_enable": True}
        sizes = ("rollout.max_tokens_per_gpu", "train.max_tokens_per_gpu")
        flags |= dict.fromkeys(sizes, run.pass_tokens)
    return flags


def _checkpoints(run: Run) -> dict[str, Any]:
    every = run.hardware.checkpoint_every
    return {
        "ckpt.load_enable": every is not None,
        **({} if every is None else {"ckpt.save_steps": every}),
    }


def _betas(run: Run) -> dict[str, Any]:
    names = ("actor.adam.betas", "critic.adam.betas")
    return dict.fromkeys(names, run.spec.optimizer.betas)


def _of_all(name: str) -> tuple[str, ...]:
    return tuple(f"{model}.{name}" for model in MODELS)


_ROWS = entries.one_row(ONE_ROW)

TABLE = Table(
    "openrlhf",
    {
        **entries.ALL_WEIGHTS,
        "policy.lora_rank": Fixed(0, LORA),
        **entries.SHARED_GPUS,
        **entries.tasks(Computed(_tasks, "data.prompt_dataset, agent file: task_order='file'")),
        **entries.evaluations(Computed(_evaluations, "eval.dataset"), "not before the first"),
        **namesakes(Settings, f"{AGENT}{{}}"),
        "name": Copied("logger.wandb.run_name"),
        "seed": (Copied((f"{AGENT}seed", "train.seed")), entries.seeds()),
        "policy.model": Copied("actor.model_name_or_path"),
        "policy.context": (Copied(f"{AGENT}context"), _ROWS["policy.context"]),
        "policy.thinking": (Copied(f"{AGENT}thinking"), _ROWS["policy.thinking"]),
        "policy.response_tokens": Elsewhere("data.max_len less policy.prompt_tokens"),
        "sampling.temperature": Copied("rollout.temperature"),
        "sampling.top_p": Copied("rollout.top_p"),
        "algorithm.advantage": (
            Computed(
                _advantage, "agent file; algo.advantage.estimator decides whether there is a critic"
            ),
            Refused(
                lambda run, value: run.critic and _sees(run),
                "OpenRLHF's critic cannot be made of a model that sees, as {run.spec.policy.model} "
                "does; choose an estimator without a critic",
            ),
        ),
        "algorithm.gamma": Copied("algo.advantage.gamma"),
        "algorithm.lam": Copied("algo.advantage.lambd"),
        **entries.plain_loss("OpenRLHF", without=("clip_high", "dual_clip", "ratio")),
        "algorithm.clip": Computed(_clip, "actor.eps_clip_low_high"),
        "algorithm.clip_high": Computed(_clip, "actor.eps_clip_low_high"),
        "algorithm.dual_clip": Copied("actor.dual_clip"),
        "algorithm.ratio": (
            Computed(_ratio, "actor.policy_loss_type"),
            *entries.constant_in_rows("OpenRLHF"),
            Refused(
                lambda run, value: (
                    value == "sequence"
                    and run.spec.algorithm.loss_aggregation != "row-mean-token-mean"
                ),
                "OpenRLHF's 'gspo' takes the mean of rows' means; set algorithm.loss_aggregation "
                "to 'row-mean-token-mean'",
            ),
        ),
        "algorithm.group_std": Computed(
            lambda run: {"algo.advantage.no_std_norm": not run.spec.algorithm.group_std},
            "algo.advantage.no_std_norm",
        ),
        "algorithm.epochs": Copied("train.max_epochs"),
        "algorithm.minibatches": (
            Computed(lambda run: {"train.batch_size": run.step_episodes}, "train.batch_size"),
            entries.WHOLE_MINIBATCHES,
            entries.WHOLE_STEPS,
            Departs(
                lambda run, value: value > 1,
                "OpenRLHF draws the rows of a minibatch at random, or deals them out by length "
                "(train.dynamic_batch_enable)",
            ),
        ),
        "algorithm.loss_aggregation": (
            Computed(_aggregation, "actor.loss_agg_mode"),
            entries.aggregations("OpenRLHF", _AGGREGATIONS),
            Departs(
                lambda run, value: (
                    value != "token-mean"
                    and run.spec.algorithm.kl_coef + run.spec.algorithm.entropy_coef > 0
                ),
                "actor.loss_agg_mode; KL penalty and entropy stay means over tokens",
            ),
        ),
        **entries.FIXED_REFERENCE,
        "algorithm.critic_warmup": Fixed(
            0,
            "OpenRLHF keeps the rows of critic.freezing_steps, and trains the policy on them as "
            "soon as it is trained",
        ),
        "algorithm.kl_coef": Computed(_kl, "algo.kl.init_coef"),
        "algorithm.kl_in": Computed(_kl, "algo.kl.use_loss"),
        "algorithm.kl_estimator": Computed(_kl, "algo.kl.estimator"),
        # Weight 0 leaves the loss alone and logs the entropy.
        "algorithm.entropy_coef": Copied("actor.entropy_coef"),
        **entries.plain_correction("OpenRLHF", without=("tis_floor", "tis_outside")),
        "algorithm.tis_clip": Computed(_correction, "algo.advantage.is_correction_threshold"),
        "algorithm.tis_floor": (
            Computed(_correction, "algo.advantage.is_correction_threshold"),
            Refused(
                lambda run, value: value is not None and run.spec.algorithm.tis_clip is None,
                "OpenRLHF has no lower bound alone; set algorithm.tis_clip, too",
            ),
        ),
        "algorithm.tis_outside": Computed(_correction, "algo.advantage.is_correction_mode"),
        "algorithm.value_lr": Copied("critic.adam.lr"),
        "algorithm.value_clip": (Copied("critic.value_clip"), entries.VALUES_ON_TOKENS),
        "optimizer.lr": Copied("actor.adam.lr"),
        "optimizer.type": Fixed("adamw", "actor.adam"),
        "optimizer.schedule": Computed(_schedule, "actor.lr_scheduler"),
        "optimizer.warmup": Computed(_schedule, "actor.lr_warmup_ratio"),
        "optimizer.min_lr_ratio": (
            Computed(_schedule, "actor.min_lr_ratio"),
            entries.no_linear_minimum("OpenRLHF"),
        ),
        "optimizer.beta1": Computed(_betas, "actor.adam.betas"),
        "optimizer.beta2": Computed(_betas, "actor.adam.betas"),
        "optimizer.eps": Copied(("actor.adam.eps", "critic.adam.eps")),
        "optimizer.weight_decay": (
            Copied(("actor.adam.weight_decay", "critic.adam.weight_decay")),
            entries.NO_DECAY,
        ),
        "optimizer.grad_clip": Copied(("actor.max_norm", "critic.max_norm")),
        **entries.bounded_staleness(
            "OpenRLHF's asynchronous mode (train.async_enable) bounds how old weights are",
            "train.async_enable",
        ),
        **entries.PLAYED_ONCE,
        "training.iterations": Elsewhere("rows of data.prompt_dataset"),
        "training.tasks": Copied("rollout.batch_size"),
        "training.group_size": (Copied("rollout.n_samples_per_prompt"), entries.GROUPED),
        "training.precision": (
            Elsewhere("ds.param_dtype"),
            entries.computed_in_bf16("bf16 weights and gradients, fp32 in the optimiser"),
            *entries.bf16_only("OpenRLHF knows bf16 and fp16: trained in bf16"),
        ),
        "hardware.nodes": Copied(_of_all("num_nodes")),
        "hardware.gpus_per_node": Copied(_of_all("num_gpus_per_node")),
        "hardware.engine.tensor_parallel": Copied("vllm.tensor_parallel_size"),
        "hardware.engine.engines": (Copied("vllm.num_engines"), entries.ALL_ENGINES),
        "hardware.engine.memory_share": Copied("vllm.gpu_memory_utilization"),
        "hardware.learner.tensor_parallel": Copied("ds.tensor_parallel_size"),
        "hardware.learner.sequence_parallel": (
            Copied("ds.ring_attn_size"),
            Refused(
                lambda run, value: value > 1 and _sees(run),
                "OpenRLHF's ring attention packs rows, and gives the images of packed rows the "
                "positions of a text; set it to 1",
            ),
        ),
        "hardware.learner.pass_tokens": Computed(
            _passes,
            "rollout.max_tokens_per_gpu, train.max_tokens_per_gpu with flash attention, else "
            "rollout.micro_batch_size, train.micro_batch_size",
        ),
        "hardware.learner.checkpointing": Copied("actor.gradient_checkpointing_enable"),
        "hardware.learner.offload": Copied("ds.adam_offload"),
        "hardware.learner.attention": Copied("ds.attn_implementation"),
        "hardware.checkpoint_every": Computed(_checkpoints, "ckpt.save_steps"),
        "hardware.logger": Ignored(),
    },
    others=(
        entries.critic_head,
        entries.optimizer_weights(
            "DeepSpeed's ZeRO keeps them beside those in bf16", "ds.param_dtype"
        ),
    ),
    untold=(
        entries.untold(_other_distribution, entries.OTHER_DISTRIBUTION),
        entries.untold(
            lambda run: run.spec.algorithm.kl_coef > 0,
            "OpenRLHF logs the loss without the KL penalty",
            ("loss",),
        ),
    ),
)
"""How OpenRLHF realises each setting: flags, and settings of the agent file."""

PAIRS = (
    pairs(
        "learner.sequence_parallel",
        "sdpa",
        "refused",
        "ring attention is flash attention's, which OpenRLHF would choose by itself; install "
        "flash-attn, or set sequence_parallel to 1",
    ),
    pairs(ON_CPU, ON_CPU, "runs", "tests/conformance, on the CPU"),
    pairs(
        "gpus_per_node",
        {"learner.pass_tokens", "sdpa", "flash attention", "fp32"},
        "runs",
        "test_ranks.py, on the CPU",
    ),
    pairs(COMPUTED, COMPUTED, "untried"),
)
"""Which settings of the hardware work together in OpenRLHF."""

adapter = Adapter(
    "openrlhf",
    SUPPORTED_OPENRLHF,
    "openrlhf",
    TABLE,
    _compile,
    check=check_openrlhf,
    images=True,
    pairs=PAIRS,
)


def _arguments(flags: Mapping[str, Any]) -> list[str]:
    """Write flags as OpenRLHF's command line."""
    out = []
    for key, value in flags.items():
        if isinstance(value, bool):
            out += [f"--{key}"] if value else []
        else:
            out += [f"--{key}", *map(str, value if isinstance(value, list) else [value])]
    return out

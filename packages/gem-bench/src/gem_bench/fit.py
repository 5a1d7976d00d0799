"""Estimates the memory that a run needs on each GPU, from the model's configuration alone.

- `TRAINERS`: what each trainer keeps on a GPU, and when.
- `estimate`: the bytes of each part in each phase of an iteration.
- `advise`: the settings that would help.

The phases are `sample` (engines play episodes), `learn` (forward and backward passes) and `step`
(the optimiser). All lengths are the longest that the experiment allows, and GB are 10^9 bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from operator import attrgetter
from typing import Any, ClassVar, Protocol

from gem.errors import ConfigurationError
from gem_bench.shape import Shape, find_config
from gem_train.experiment.hardware import Hardware
from gem_train.experiment.runspec import RunSpec
from gem_train.passes import pass_tokens

GB = 10**9
PHASES = ("sample", "learn", "step")
PARTS = (
    "weights",
    "gradients",
    "optimizer",
    "initial policy",
    "critic",
    "copies",
    "activations",
    "logits",
    "scratch",
    "engine",
    "KV cache",
    "other",
)
OTHER = 2 * GB
"""CUDA's context, kernels and communication; as much again in an engine's share."""


class Head(Protocol):
    """What computes log-probabilities from the output of the last layer."""

    whole: ClassVar[bool]
    """Whether it makes the logits of all tokens of a pass."""

    def size(
        self, shape: Shape, tokens: int, element: int, *, trained: bool, entropy: bool
    ) -> float:
        """Return its bytes in a forward and backward pass.

        Args:
            shape: The model.
            tokens: Of the pass.
            element: Bytes of a number in the arithmetic of the pass.
            trained: Whether the output head gets gradients; not with adapters.
            entropy: Whether the loss has an entropy bonus.
        """


@dataclass(frozen=True)
class Whole:
    """The logits of all tokens of a pass."""

    each: int
    """Bytes of a logit in bf16: model's, fp32's, softmax and both gradients; in fp32 16 or more."""
    whole: ClassVar[bool] = True

    def size(
        self, shape: Shape, tokens: int, element: int, *, trained: bool, entropy: bool
    ) -> float:
        """Return its bytes; see `Head.size`."""
        return tokens * shape.vocabulary * (self.each if element == 2 else max(16, self.each))


@dataclass(frozen=True)
class Chunks:
    """verl's and oat's fused head: all logits of 512 tokens at a time, computed again backwards."""

    tokens: int = 512
    whole: ClassVar[bool] = False

    def size(
        self, shape: Shape, tokens: int, element: int, *, trained: bool, entropy: bool
    ) -> float:
        """Return its bytes; see `Head.size`."""
        chunk = min(tokens, self.tokens) * shape.vocabulary
        weight = element * shape.vocabulary * shape.hidden
        # In fp32: logits, probabilities, which token it was, their difference, and the gradient;
        # of an entropy bonus log-probabilities and a product. Then the gradient of the head, which
        # is added to that of the earlier chunks.
        folding = (28 if entropy else 20) * chunk
        adding = (12 + element) * chunk + weight * trained
        return max(folding, adding) + weight * trained + 2 * element * tokens * shape.hidden


@dataclass(frozen=True)
class Tiles:
    """TRL's fused head: tiles of tokens and vocabulary, which its kernels change in place."""

    tokens: int = 4096
    vocabulary: int = 32_768
    whole: ClassVar[bool] = False

    def size(
        self, shape: Shape, tokens: int, element: int, *, trained: bool, entropy: bool
    ) -> float:
        """Return its bytes; see `Head.size`."""
        # The buffer has the whole width even if the vocabulary is smaller.
        tile = min(tokens, self.tokens) * self.vocabulary * element
        # Autocast's copy of a part of the head; gradients are added up in fp32.
        part = min(self.vocabulary, shape.vocabulary) * shape.hidden * element * (element == 2)
        gradient = 4 * shape.vocabulary * shape.hidden * trained
        return tile + part + gradient + (4 + element) * tokens * shape.hidden


@dataclass(frozen=True)
class Keeps:
    """What a trainer keeps on each GPU; bytes are of a parameter, in bf16 training."""

    weights: int = 4
    gradients: int = 4
    optimizer: int = 8
    """In fp32 training weights and gradients take 4 bytes and the optimiser 8 or more."""
    shared: str = "all"
    """`all` states are divided among the GPUs, those of `updates` (not the weights), or `none`."""
    while_sampling: tuple[str, ...] = ("weights", "optimizer")
    """States that stay on the GPU while engines sample."""
    offload: tuple[str, ...] = ()
    """Phases without the optimiser's state if `learner.offload` is set."""
    reference: str = "none"
    """The initial policy of a KL penalty: `whole`, `shared` or, if in main memory, `none`."""
    reference_weights: int | None = None
    """Bytes of its parameters; None: as many as the policy's."""
    head: Head = field(default_factory=lambda: Whole(16))
    """How log-probabilities are computed from the last layer's output."""
    away: tuple[str, ...] = ()
    """States that are in main memory all the time."""
    share: float = 0.5
    """The engine's part of the memory where `engine.memory_share` is not set."""
    sleeps: bool = True
    """Whether the engine leaves the memory while the learner works."""
    own_sampler: tuple[str, ...] = ()
    """Precisions in which the learner's weights sample, all episodes at once."""
    split_pass: bool = False
    """Whether the GPUs of `learner.sequence_parallel` share a pass, or each has one."""
    lora: bool = False
    lacking: tuple[str, ...] = ()
    """Keys of the hardware that can only be 1."""


_ROWS_AND_MATRICES = ("learner.tensor_parallel", "learner.sequence_parallel")
_ZERO_2 = Keeps(
    weights=2, gradients=2, optimizer=12, shared="updates", offload=PHASES, reference="whole"
)
TRAINERS = {
    # FSDP2 with weights in fp32; the optimiser's state is loaded for the whole update.
    "verl": Keeps(offload=("sample",), head=Chunks(), lacking=("learner.tensor_parallel",)),
    # `ds.enable_sleep` takes the optimiser away while engines sample.
    "openrlhf": replace(_ZERO_2, while_sampling=("weights",), share=0.4, split_pass=True),
    "oat": replace(
        _ZERO_2,
        head=Chunks(),
        share=0.45,
        lacking=("nodes", "engine.tensor_parallel", *_ROWS_AND_MATRICES),
    ),
    # FSDP; `offload_model` is on by default, and the optimiser's state is loaded for its step.
    "rl2": Keeps(
        while_sampling=("optimizer",), offload=("sample", "learn"), share=0.6, lacking=("nodes",)
    ),
    # FSDP2 with weights in fp32. Models and their optimisers leave the GPU while engines sample
    # (`offload_for_sampling`), and the initial policy while another model is there.
    "skyrl": Keeps(
        while_sampling=(), share=0.8, split_pass=True, lacking=("learner.tensor_parallel",)
    ),
    # DDP and autocast; the engine stays.
    "trl": Keeps(
        head=Tiles(),
        shared="none",
        reference="whole",
        share=0.3,
        sleeps=False,
        own_sampler=("fp32",),
        lora=True,
        lacking=("nodes", *_ROWS_AND_MATRICES),
    ),
    # FSDP2 with weights in fp32; the initial policy in bf16.
    "roll": Keeps(
        reference="shared",
        reference_weights=2,
        share=0.6,
        lacking=("engine.tensor_parallel", *_ROWS_AND_MATRICES),
    ),
    "reference": Keeps(
        shared="none",
        while_sampling=("weights", "gradients", "optimizer"),
        own_sampler=("bf16", "fp32"),
        head=Whole(20),  # the entropy's, too
        lora=True,
        reference="whole",
        lacking=("nodes", "gpus_per_node", "engine.tensor_parallel", *_ROWS_AND_MATRICES),
    ),
}


@dataclass(frozen=True)
class Estimate:
    """Memory of each GPU, in bytes."""

    phases: dict[str, dict[str, float]]
    """Size of a part, by phase and part."""
    memory: float
    gpus: int
    """GPUs that the trainer uses."""
    parameters: int
    """Of the model, without adapters."""
    pass_tokens: int
    """Tokens of a forward pass of the learner."""
    kv_token: float
    """KV cache of a token."""
    episode: float
    """KV cache of an episode of full length."""
    room: float
    """What is left for the KV cache."""

    def total(self, phase: str) -> float:
        """Return the size of a phase."""
        return sum(self.phases[phase].values())

    @property
    def most(self) -> float:
        """Size of the phase that needs most."""
        return max(map(self.total, PHASES))

    @property
    def shortage(self) -> float:
        """What is missing in all phases together, and for an episode's KV cache; 0 if it fits."""
        missing = [self.total(phase) - self.memory for phase in PHASES]
        return sum(max(each, 0) for each in [*missing, self.episode - self.room])


def estimate(trainer: str, spec: RunSpec, hardware: Hardware, shape: Shape) -> Estimate:
    """Estimate the memory of each GPU; keys of the hardware that a trainer lacks count as 1."""
    keeps, element = keeps_of(trainer, hardware), 4 if spec.training.precision == "fp32" else 2
    if trainer == "verl" and not shape.tied:
        # FSDP2 shards such a head by itself, so that the fused one cannot be used.
        keeps = replace(keeps, head=Whole(8))
    hardware = _used(keeps, hardware)
    memory, adapters = hardware.gpu_memory_gb * GB, shape.adapters(spec.policy.lora_rank)
    trained = adapters or shape.parameters
    states = _states(keeps, element, hardware, shape.parameters + adapters, trained)

    def kept(phase: str) -> set[str]:
        away = hardware.learner.offload and phase in keeps.offload
        there = keeps.while_sampling if phase == "sample" else states
        return set(there) - ({"optimizer"} if away else set()) - set(keeps.away)

    waiting = {"initial policy": 0.0, "critic": 0.0}
    if spec.algorithm.kl_coef and not adapters:
        divided = {"none": 0.0, "whole": hardware.learner.tensor_parallel, "shared": hardware.gpus}
        if by := divided[keeps.reference]:
            each = max(keeps.reference_weights or keeps.weights, element)
            waiting["initial policy"] = shape.parameters * each / by
    if spec.algorithm.estimator.needs_critic:
        critic = _states(keeps, element, hardware, shape.critic, shape.critic)
        waiting["critic"] = sum(critic[state] for state in kept("sample"))

    tokens, parallel = _tokens(keeps, spec, hardware), hardware.engine.tensor_parallel
    passes = _passes(keeps, element, hardware, shape, tokens)
    head = keeps.head.size(
        shape, tokens, element, trained=not adapters, entropy=spec.algorithm.entropy_coef != 0
    )
    # The head is gone when a layer is computed again: of the two only the larger counts.
    again = passes.pop("again")
    passes |= {"logits": head} if head > again else {"activations": passes["activations"] + again}
    # GPUs have at least one head each, if need be the same one.
    keys = max(shape.keys / parallel, shape.queries / shape.heads)
    kv_token = 2 * shape.layers * keys * element
    episode, own = spec.policy.tokens * kv_token, spec.training.precision in keeps.own_sampler
    if own:
        batches = [spec.episodes, *(part.episodes * part.samples for part in spec.eval)]
        room = -(-max(batches) // hardware.gpus) * episode
        sampler = {"copies": passes["copies"], "KV cache": room}
    else:
        sampler = {"engine": (hardware.engine.memory_share or keeps.share) * memory}
        room = sampler["engine"] - (shape.parameters + adapters) * element / parallel - OTHER

    among = 1 if keeps.shared == "none" else hardware.gpus
    # torch's AdamW makes denominators beside its state, DeepSpeed gradients in fp32.
    scratch = 0 if "optimizer" in keeps.away else 4 * trained / among
    further = {"sample": sampler, "learn": passes, "step": {"scratch": scratch}}
    phases = {}
    for phase in PHASES:
        parts = {name: states[name] for name in states if name in kept(phase)}
        parts |= waiting | further[phase]
        if not (keeps.sleeps or own):
            parts |= sampler
        phases[phase] = {name: size for name, size in parts.items() if size} | {"other": OTHER}
    return Estimate(
        phases, memory, hardware.gpus, shape.parameters, tokens, kv_token, episode, room
    )


_AGAIN = 1.6
"""What the backward pass of a layer takes, over what its forward pass keeps: measured."""
_FSDP = "actor_rollout_ref.actor.fsdp_config"
_OFFLOAD = f"{_FSDP}.offload_policy"
"""verl's key that leaves weights, gradients and optimiser in main memory."""
_STATES = ("weights", "gradients", "optimizer")
_BF16 = {"weights": 2, "gradients": 2, "optimizer": 4}
_NATIVE: Mapping[str, Mapping[str, Mapping[Any, dict[str, Any]]]] = {
    "verl": {
        _OFFLOAD: {True: {"away": _STATES}, False: {}},
        f"{_FSDP}.param_offload": {True: {"while_sampling": ("optimizer",)}, False: {}},
        f"{_FSDP}.model_dtype": {
            **{key: {} for key in ("fp32", "float32")},
            **dict.fromkeys(("bf16", "bfloat16"), _BF16),
        },
    }
}
"""What native settings of a trainer change, by key and value."""


def keeps_of(trainer: str, hardware: Hardware) -> Keeps:
    """Return what a trainer keeps on a GPU, with the native settings that are known here."""
    keeps = TRAINERS[trainer]
    for name, value in hardware.native.get(trainer, {}).items():
        known = _NATIVE.get(trainer, {}).get(name.lstrip("+"), {})
        keeps = replace(keeps, **known.get(value, {}))
    return keeps


def unknown(trainer: str, spec: RunSpec, hardware: Hardware) -> list[str]:
    """Return the native settings that may make the estimate wrong: all that are not known here.

    Those of the actor say nothing of a critic.
    """
    known = {} if spec.algorithm.estimator.needs_critic else _NATIVE.get(trainer, {})
    given = hardware.native.get(trainer, {})
    return [name for name, value in given.items() if value not in known.get(name.lstrip("+"), ())]


def _used(keeps: Keeps, hardware: Hardware) -> Hardware:
    """Return the hardware as a trainer can use it."""
    for key in keeps.lacking:
        hardware = _with(hardware, key, 1)
    return hardware


def _states(
    keeps: Keeps, element: int, hardware: Hardware, held: int, trained: int
) -> dict[str, float]:
    """Return the bytes of the states of a network with so many parameters."""
    among = 1 if keeps.shared == "none" else hardware.gpus
    divided = hardware.gpus if keeps.shared == "all" else hardware.learner.tensor_parallel
    # DDP keeps buckets beside the gradients.
    buckets = 2 if keeps.shared == "none" and hardware.gpus > 1 else 1
    moments = keeps.optimizer if element == 2 else max(8, keeps.optimizer)
    return {
        "weights": held * max(keeps.weights, element) / divided,
        "gradients": trained * max(keeps.gradients, element) * buckets / among,
        "optimizer": trained * moments / among,
    }


def _tokens(keeps: Keeps, spec: RunSpec, hardware: Hardware) -> int:
    """Return the most tokens of a GPU's forward pass."""
    sequence, length = hardware.learner.sequence_parallel, spec.policy.tokens
    most = pass_tokens(spec, hardware, fused=not keeps.head.whole)
    if keeps.split_pass:
        most = -(-most // sequence)
    if not spec.policy.one_row:
        return most
    rows = -(-spec.episodes // (spec.algorithm.minibatches * max(hardware.ranks, 1)))
    return min(most, -(-rows * length // sequence))


def _passes(
    keeps: Keeps, element: int, hardware: Hardware, shape: Shape, tokens: int
) -> dict[str, float]:
    """Return the bytes of what passes through the layers need beside the states.

    `again` is what the backward pass computes again.
    """
    autocast = keeps.shared == "none" and element == 2
    arithmetic = "fp32" if element == 4 else "autocast" if autocast else "bf16"
    layer = shape.activations(arithmetic, hardware.learner.tensor_parallel)
    again = 0.0
    activations = shape.layers * layer
    if hardware.learner.checkpointing:
        # Inputs of all layers, and one layer computed again (arXiv 2205.05198, section 5) with the
        # gradients of what it keeps.
        activations = shape.layers * shape.hidden * (4 if autocast else element)
        again = _AGAIN * layer
    copies = {
        # Autocast: all weights in bf16.
        "none": 2 * shape.parameters * autocast,
        # Gathered weights and gradients of the embeddings and of two layers.
        "all": 2 * element * (shape.outside + 2 * shape.layer),
        "updates": 0,
    }
    return {
        "copies": float(copies[keeps.shared]),
        "activations": tokens * activations,
        "again": tokens * again,
    }


def advise(
    trainer: str, spec: RunSpec, hardware: Hardware, shape: Shape
) -> Iterator[tuple[str, Any, Estimate]]:
    """Yield the settings that help most, each on top of the earlier ones, until the run fits.

    Settings of the experiment come last: they change what is learned.

    Yields:
        Key of the hardware or spec, value, the estimate with it; nothing where nothing helps.
    """
    hardware = _used(TRAINERS[trainer], hardware)
    now = estimate(trainer, spec, hardware, shape)
    while now.shortage:
        found = []
        for key, value in _changes(trainer, spec, hardware, now, shape):
            learned = key.startswith("policy.")
            changed = _with(spec, key, value) if learned else spec
            given = hardware if learned else _with(hardware, key, value)
            then = estimate(trainer, changed, given, shape)
            # A native setting is proposed where nothing else is needed beside it.
            alone = not key.startswith("native.") or not then.shortage
            if then.shortage < now.shortage and alone:
                found.append((learned, then.shortage, key, value, then, changed, given))
        if not found:
            return
        *_, key, value, now, spec, hardware = min(found, key=lambda each: each[:2])
        yield key, value, now


def _changes(
    trainer: str, spec: RunSpec, hardware: Hardware, now: Estimate, shape: Shape
) -> Iterator[tuple[str, Any]]:
    """Yield what could be changed, the least costly first; a trainer ignores some of it."""
    keeps, learner, length = keeps_of(trainer, hardware), hardware.learner, spec.policy.tokens
    yield "learner.checkpointing", True
    if (learner.pass_tokens or 0) > length:
        yield "learner.pass_tokens", length
    if "engine" in now.phases["sample"]:
        beside = [
            now.total(p) - parts["engine"] for p, parts in now.phases.items() if "engine" in parts
        ]
        if (share := int(100 - 100 * max(beside) / now.memory) / 100) > 0:
            yield "engine.memory_share", share
    if keeps.offload:
        yield "learner.offload", True
    if trainer == "verl" and not spec.algorithm.estimator.needs_critic:
        yield f"native.verl.{_OFFLOAD}", True
    step = spec.episodes // spec.algorithm.minibatches
    for key, most in (
        ("engine.tensor_parallel", hardware.gpus_per_node),
        ("learner.sequence_parallel", hardware.gpus),
        ("learner.tensor_parallel", hardware.gpus_per_node),
        ("gpus_per_node", 8),
        ("nodes", 8 if hardware.gpus_per_node >= 8 else 1),
    ):
        for size in (2, 4, 8):
            if key in keeps.lacking or most % size or size <= attrgetter(key)(hardware):
                continue
            if "tensor" in key and shape.heads % size:
                continue
            ranks = _with(hardware, key, size).ranks
            if ranks and step % ranks == 0:
                yield key, size
    if keeps.lora and not spec.policy.lora_rank:
        yield "policy.lora_rank", 32


def _with(settings: Any, key: str, value: Any) -> Any:
    """Return a spec or hardware with another value of a dotted key."""
    name, _, rest = key.partition(".")
    if name == "native":
        trainer, _, native = rest.partition(".")
        return settings.with_native(trainer, {native: value})
    return replace(
        settings, **{name: _with(getattr(settings, name), rest, value) if rest else value}
    )


def not_estimated(trainer: str, hardware: Hardware) -> str | None:
    """Return why there is nothing to estimate, if so.

    Raises:
        ConfigurationError: It is not known what the trainer keeps.
    """
    if hardware.cpu:
        return "cpu: nothing is refused; main memory is not estimated"
    if trainer == "tinker":
        return "tinker: weights and their memory are the server's"
    if trainer not in TRAINERS:
        raise ConfigurationError(f"it is not known what {trainer!r} keeps on a GPU")
    return None


def check(trainer: str, spec: RunSpec, hardware: Hardware) -> str | None:
    """Refuse a run on GPUs that does not fit; return why it was not estimated, if so.

    Raises:
        ConfigurationError: It does not fit; the message says what would help.
    """
    try:
        if not_estimated(trainer, hardware) is not None:
            return None
        shape = Shape.of(find_config(spec.policy.model))
    except ConfigurationError as error:
        return f"memory is not estimated: {error}"
    found = estimate(trainer, spec, hardware, shape)
    if found.shortage:
        if strange := unknown(trainer, spec, hardware):
            return f"memory is not estimated: {unknown_text(trainer, strange)}"
        steps = list(advise(trainer, spec, hardware, shape))
        raise ConfigurationError("\n".join([*verdict(found, steps), "--no-fit-check tries it"]))
    return None


def unknown_text(trainer: str, names: list[str]) -> str:
    """Return what is said of native settings that `unknown` has found."""
    keys = ", ".join(f"native.{trainer}.{name}" for name in names)
    return f"what {keys} changes is not known; a run may need less, or more"


def to_mapping(found: Estimate, steps: list[tuple[str, Any, Estimate]]) -> dict[str, Any]:
    """Return an estimate and what `advise` found as JSON; sizes are bytes."""
    return {
        "fits": not found.shortage,
        **asdict(found),
        "advice": [
            {"key": key, "value": value, "most": then.most, "fits": not then.shortage}
            for key, value, then in steps
        ],
    }


def verdict(found: Estimate, steps: list[tuple[str, Any, Estimate]]) -> Iterator[str]:
    """Yield lines that say whether a run fits and, if not, what `advise` found."""
    if not found.shortage:
        yield "fits"
        return
    if found.room < found.episode:
        yield (
            f"does not fit: an episode's KV cache takes {found.episode / GB:.1f} GB, the engine "
            f"has {max(found.room, 0) / GB:.1f} GB for it"
        )
    if found.most > found.memory:
        phase = max(PHASES, key=found.total)
        yield f"does not fit: {phase} needs {found.most / GB:.1f} of {found.memory / GB:g} GB"
    for number, (key, value, then) in enumerate(steps):
        start, end = "and" if number else "helps most:", "" if then.shortage else ", fits"
        yield f"{start} {key} = {json.dumps(value)}: {then.most / GB:.1f} GB{end}"
    if not steps or steps[-1][2].shortage:
        yield "nothing more helps but larger GPUs or shorter episodes (policy.response_tokens)"


def table(found: Estimate) -> Iterator[str]:
    """Yield lines: what is estimated, GB of each part in each phase, and the KV cache."""
    gpus = f"{found.gpus} GPU{'s' * (found.gpus > 1)} of {found.memory / GB:g} GB"
    billions = found.parameters / 1e9
    yield f"{billions:.2f} billion parameters on {gpus}, {found.pass_tokens:,} tokens a pass"
    names = [name for name in PARTS if any(name in parts for parts in found.phases.values())]
    yield f"{'GB per GPU':<16}" + "".join(f"{phase:>8}" for phase in PHASES)
    for name in names:
        sizes = [found.phases[phase].get(name) for phase in PHASES]
        cells = ["" if size is None else f"{size / GB:.1f}" for size in sizes]
        yield f"{name:<16}" + "".join(f"{cell:>8}" for cell in cells)
    yield f"{'total':<16}" + "".join(f"{found.total(phase) / GB:>8.1f}" for phase in PHASES)
    yield (
        f"KV cache: {found.kv_token / 1e6:.3f} MB a token; {max(found.room, 0) / GB:.1f} GB hold "
        f"{max(int(found.room / found.episode), 0):,} episodes of full length"
    )

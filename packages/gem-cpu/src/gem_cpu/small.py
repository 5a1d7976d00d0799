"""Makes a small model for any environment that has an oracle: `policy.model = "small"`.

The model clones, on texts of that environment, a player that in each turn is competent with a
probability (the environment's oracle) and random otherwise (its random policy): it knows what the
texts mean and how to answer, but often does not act on it, so that training has something to
improve. First it clones the oracle alone, to learn what the texts mean; then that player. Tokenizer
and weights are made once for each environment, its parameters, prompting, limits and `Cloning`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from gem.core import Env
from gem.errors import ConfigurationError
from gem.rollout import Budget, ChatFormat, Request, Sample, play_batch
from gem.rollout.prompting import Prompting
from gem.seeding import stream
from gem.tables import assignments, build, setting
from gem.tasks import Task
from gem.trajectory import TrainingRow
from gem_cpu.cloning import EOS, Size, clone, ensure_model, new_model, train_tokenizer

_FIRST_SEED = 3 * 10**12
"""Far from those of a training run and of the other small models."""
_AT_ONCE = 256
"""Episodes played side by side."""


@dataclass(frozen=True)
class Cloning:
    """How the model is made, `small?competent=0.3&careful_steps=600`."""

    competent: float = setting("share of turns that the oracle plays", 0.3, least=0, most=1)
    vocabulary: int = setting("tokens, a multiple of 64", 512, least=320)
    hidden: int = setting("width", 96, least=32)
    layers: int = setting("layers", 2, least=1)
    episodes: int = setting("episodes of each of the two players", 2048, least=1)
    careful_steps: int = setting("steps in which the oracle alone is cloned", 400, least=0)
    steps: int = setting("steps after them, with half the learning rate", 150, least=1)
    batch: int = setting("rows of a step", 32, least=1)
    lr: float = setting("learning rate", 4e-3, above=0)
    seed: int = setting("seed of weights and players", 0, least=0)

    @classmethod
    def parse(cls, text: str) -> Cloning:
        """Read what stands after `small?`.

        Raises:
            ConfigurationError: A setting is unknown or not allowed.
        """
        pairs = [f"{key}={value}" for key, value in parse_qsl(text, keep_blank_values=True)]
        found = build(cls, assignments(cls, pairs), "small?")
        if found.vocabulary % 64:
            raise ConfigurationError(
                f"small?vocabulary must be a multiple of 64, got {found.vocabulary}"
            )
        return found


class Mixed:
    """A sampler that in each turn asks the oracle with a probability, else the random policy."""

    def __init__(self, chat: ChatFormat, tasks: Sequence[Task], competent: float) -> None:
        """Prepare for the episodes of tasks with different seeds.

        Args:
            chat: Encodes the actions.
            tasks: Of `play_batch`, which must make environments with `make`.
            competent: Probability of the oracle.
        """
        self._chat = chat
        self._competent = competent
        self._tasks = tasks
        self._rng = [stream(task.seed) for task in tasks]
        self._envs: dict[int, Env] = {}

    def make(self, task: Task) -> Env:
        """Make the environment of a task."""
        env = self._envs[task.seed] = task.make()
        return env

    def __call__(self, requests: list[Request]) -> list[Sample]:
        """Answer every request."""
        return [self._sample(request.episode, request.max_tokens) for request in requests]

    def _sample(self, episode: int, most: int) -> Sample:
        action = mixed_action(
            self._envs[self._tasks[episode].seed], self._competent, self._rng[episode]
        )
        ids = [*self._chat.encode_text(action), EOS]
        if len(ids) > most:
            raise ConfigurationError(
                f"policy.model: an action of {len(ids)} tokens does not fit into the {most} that "
                "turn_tokens and response_tokens leave it"
            )
        return Sample(ids, None, "stop")


def mixed_action(env: Env, competent: float, rng: Any) -> str:
    """Return the oracle's action with a probability, else a random one.

    Raises:
        ConfigurationError: The environment has no oracle.
    """
    if rng.random() >= competent:
        return env.sample_random_action()
    try:
        return env.oracle_action()
    except NotImplementedError:
        name = env.spec.id if env.spec else repr(env)
        raise ConfigurationError(
            f"policy.model: {name} has no oracle, which a small model is cloned from"
        ) from None


def ensure(
    env_id: str,
    params: Mapping[str, Any],
    prompting: Prompting,
    budget: Budget,
    cloning: Cloning | None = None,
    *,
    cache: str | Path | None = None,
    progress: bool = True,
) -> Path:
    """Return the folder of the model, making it if it is not in the cache.

    On another kind of processor the same arguments give a model that behaves alike, but is not
    equal to the last bit.

    Args:
        env_id: Id of the environment.
        params: Its parameters.
        prompting: What the policy is shown.
        budget: Limits of an episode, as in training.
        cloning: How the model is made.
        cache: Cache folder, see `gem_cpu.cloning.cache_folder`.
        progress: Show progress bars on standard error.

    Raises:
        ConfigurationError: The environment is unknown or has no oracle, or a prompt or an action
            does not fit into the budget.
    """
    cloning = cloning or Cloning()
    most = budget.prompt_tokens + budget.response_tokens
    tasks = [Task(env_id, _FIRST_SEED + i, params) for i in range(cloning.episodes)]
    texts = _texts(tasks[:200], cloning)
    # A conversation's end is an observation and the beginning of a reply.
    positions = 64 * (most // 64 + 2)
    tokenizer = train_tokenizer(texts, cloning.vocabulary, positions)
    chat = prompting.chat_format(tokenizer)

    def rows(competent: float, n: int) -> list[TrainingRow]:
        return _rows(tasks[:n], chat, prompting.context, budget, competent)

    def warm_start() -> tuple[Any, float]:
        size = Size(cloning.vocabulary, cloning.hidden, cloning.layers, positions)
        model, loss = new_model(size, cloning.seed), 0.0
        for number, (competent, steps, lr) in enumerate(
            (
                (1.0, cloning.careful_steps, cloning.lr),
                (cloning.competent, cloning.steps, cloning.lr / 2),
            ),
            1,
        ):
            loss = clone(
                model,
                rows(competent, cloning.episodes),
                steps=steps,
                batch=cloning.batch,
                lr=lr,
                seed=cloning.seed,
                progress=f"small model of {env_id}, {number} of 2" if progress else None,
            )
        return model, loss

    recipe = {
        "env_id": env_id,
        "params": dict(params),
        "prompting": asdict(prompting),
        "budget": asdict(budget),
        "cloning": asdict(cloning),
    }
    layout = [(r.prompt_ids, r.response_ids, r.mask) for r in rows(cloning.competent, 8)]
    inputs = {"recipe": recipe, "texts": texts, "layout": layout}
    return ensure_model("small", tokenizer, inputs, warm_start, code=[__file__], cache=cache)


def _texts(tasks: Sequence[Task], cloning: Cloning) -> list[str]:
    """Return what environments and players say."""
    texts = []
    for task in tasks:
        rng = stream(task.seed)
        with task.make() as env:
            observation, _ = env.reset(seed=task.seed)
            over = False
            while not over:
                action = mixed_action(env, 0.5, rng)
                texts += [f"user\n{observation}\nassistant\n", action]
                observation, _, terminated, truncated, _ = env.step(action)
                over = terminated or truncated
    return texts


def _rows(
    tasks: Sequence[Task], chat: ChatFormat, context: str, budget: Budget, competent: float
) -> list[TrainingRow]:
    """Return the training rows of episodes of the mixed player."""
    found = []
    for start in range(0, len(tasks), _AT_ONCE):
        part = tasks[start : start + _AT_ONCE]
        player = Mixed(chat, part, competent)
        for trajectory in play_batch(
            part, player, chat, budget=budget, context=context, make_env=player.make
        ):
            if trajectory.failure is not None:
                raise ConfigurationError(f"policy.model: small: {trajectory.failure}")
            found += trajectory.training_rows()
    return found

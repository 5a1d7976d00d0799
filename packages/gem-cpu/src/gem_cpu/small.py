"""Makes a small model for any environment that has an oracle: `policy.model = "small"`.

The model clones, on texts of that environment, a player that in each turn is competent with a
probability (the environment's oracle) and otherwise random or wrong (`Player`): it knows what the
texts mean and how to answer, but often does not act on it, so that training has something to
improve. First it clones the oracle alone, to learn what the texts mean; then that player. Tokenizer
and weights are made once for each environment, its parameters, prompting, limits and `Cloning`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from random import Random
from string import ascii_lowercase
from typing import Any

from gem.core import Env, Observation
from gem.errors import ConfigurationError
from gem.parameters import listed
from gem.rollout import Budget, ChatFormat, Request, Sample, play_batch
from gem.rollout.prompting import Prompting
from gem.seeding import stream
from gem.tables import setting
from gem.tasks import Task
from gem.trajectory import TrainingRow
from gem_cpu import tiny_vl
from gem_cpu.cloning import (
    EOS,
    Size,
    clone,
    ensure_model,
    new_model,
    read_settings,
    train_tokenizer,
)
from gem_judge.named import RULES

_FIRST_SEED = 3 * 10**12
"""Far from those of a training run and of the other small models."""
_DRAWS = 100
"""Random actions among which a wrong one is looked for."""
_AT_ONCE = 256
"""Episodes played side by side."""


@dataclass(frozen=True)
class Cloning:
    """How the model is made, `small?competent=0.3&careful_steps=600`."""

    competent: float = setting("share of turns that the oracle plays", 0.3, least=0, most=1)
    wrong: str = setting(
        "what the player does in other turns: `random` acts at random; `mode` gives one wrong "
        "answer a question, so that the most likely answer of the model is wrong",
        "random",
        choices=("random", "mode"),
    )
    filler: int = setting(
        "random letters before each action, which decide nothing, like most tokens of long replies",
        0,
        least=0,
    )
    first: float | None = setting(
        "least place of a cloned question, see `gem.wrappers.Questions`; with neither this nor "
        "`last` the questions of training are cloned",
        None,
        least=0,
        below=1,
    )
    last: float | None = setting(
        "cloned questions have places below this one; by default 1", None, above=0, most=1
    )
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
        found = read_settings(cls, text, "small")
        if found.vocabulary % 64:
            raise ConfigurationError(
                f"small?vocabulary must be a multiple of 64, got {found.vocabulary}"
            )
        return found


class Player:
    """Chooses the text of every turn that is cloned."""

    def __init__(self, cloning: Cloning) -> None:
        self._cloning = cloning
        self._wrong: dict[str, str] = {}

    def action(self, env: Env, competent: float, rng: Random) -> str:
        """Return the oracle's action with a probability, else one that `Cloning.wrong` describes.

        Args:
            env: An environment in which it is the policy's turn.
            competent: Probability of the oracle.
            rng: Decides who plays, and draws the filler.

        Raises:
            ConfigurationError: The environment has no oracle, or no wrong action is found.
        """
        if rng.random() < competent:
            action = _oracle(env)
        elif self._cloning.wrong == "mode":
            action = self._wrong_for(env, _oracle(env))
        else:
            action = env.sample_random_action()
        letters = "".join(f"{rng.choice(ascii_lowercase)} " for _ in range(self._cloning.filler))
        return letters + action

    def _wrong_for(self, env: Env, right: str) -> str:
        """Return the wrong action that stands for a right one: always the same.

        The last number is one larger; an action without a number becomes a random other one.
        """
        last = re.search(r"-?\d+(?!.*\d)", right, re.DOTALL)
        if last:
            return f"{right[: last.start()]}{int(last[0]) + 1}{right[last.end() :]}"
        for _ in range(_DRAWS):
            if right in self._wrong:
                return self._wrong[right]
            drawn = env.sample_random_action()
            if drawn != right:
                self._wrong[right] = drawn
        raise ConfigurationError(
            f"policy.model: small?wrong=mode: {_DRAWS} random actions of {env!r} are all the right "
            "one; take wrong=random"
        )


def _oracle(env: Env) -> str:
    try:
        return env.oracle_action()
    except NotImplementedError:
        name = env.spec.id if env.spec else repr(env)
        raise ConfigurationError(
            f"policy.model: {name} has no oracle, which a small model is cloned from"
        ) from None


class Mixed:
    """A sampler that plays as a `Player` in the environments that it makes."""

    def __init__(
        self, chat: ChatFormat, tasks: Sequence[Task], player: Player, competent: float
    ) -> None:
        """Prepare for the episodes of tasks with different seeds.

        Args:
            chat: Encodes the actions.
            tasks: Of `play_batch`, which must make environments with `make`.
            player: Chooses the actions.
            competent: Probability of the oracle.
        """
        self._chat = chat
        self._player, self._competent = player, competent
        self._tasks = tasks
        self._rng = [stream(task.seed) for task in tasks]
        self._envs: dict[int, Env] = {}

    def make(self, task: Task) -> Env:
        """Make the environment of a task."""
        env = self._envs[task.seed] = task.make()
        return env

    def __call__(self, requests: list[Request]) -> list[Sample]:
        """Answer every request."""
        return [self._sample(request) for request in requests]

    def _sample(self, request: Request) -> Sample:
        episode, most = request.episode, request.max_tokens
        env = self._envs[self._tasks[episode].seed]
        action = self._player.action(env, self._competent, self._rng[episode])
        ids = [*self._chat.encode_text(action), EOS]
        if len(ids) > most:
            raise ConfigurationError(
                f"policy.model: an action of {len(ids)} tokens does not fit into the {most} that "
                "turn_tokens and response_tokens leave it"
            )
        return Sample(ids, None, "stop", prompt_tokens=len(request.prompt_ids))


def cloned_tasks(env_id: str, params: Mapping[str, Any], cloning: Cloning) -> list[Task]:
    """Return the tasks whose episodes the model clones; their rewards do not matter.

    They show images even if the run does not: it may be the control of another one.
    """
    wrappers = [
        {"name": each} if isinstance(each, str) else each
        for each in listed("wrappers", params.get("wrappers", ()), callable)
    ]
    left_out = {"scale_reward", "outcome_reward", "without_images"}
    split = []
    if (cloning.first, cloning.last) != (None, None):
        first, last = cloning.first or 0.0, 1.0 if cloning.last is None else cloning.last
        left_out.add("questions")
        split.append({"name": "questions", "first": first, "last": last})
    # The wrapper of questions is the innermost one.
    kept = [*split, *(w for w in wrappers if callable(w) or w.get("name") not in left_out)]
    others = {name: value for name, value in params.items() if name != "wrappers"}
    params = {**others, "wrappers": kept} if kept else others
    return [Task(env_id, _FIRST_SEED + i, unjudged(params)) for i in range(cloning.episodes)]


def unjudged(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an environment's parameters with the judge by rules: cloning asks no model."""
    return {**params, "judge": RULES} if "judge" in params else params


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
    cloning, params = cloning or Cloning(), unjudged(params)
    most = budget.prompt_tokens + budget.response_tokens
    tasks, player = cloned_tasks(env_id, params, cloning), Player(cloning)
    texts = _texts(tasks[:200], player)
    # A conversation's end is an observation and the beginning of a reply.
    positions = 64 * (most // 64 + 2)
    sight = _sight(cloning, positions) if _shows_images(tasks[0]) else None
    if sight is None:
        tokenizer = train_tokenizer(texts, cloning.vocabulary, positions)
        chat = prompting.chat_format(tokenizer)
        size = Size(cloning.vocabulary, cloning.hidden, cloning.layers, positions)
        begin = partial(new_model, size, cloning.seed)
    else:
        tokenizer = tiny_vl.new_tokenizer(sight, texts)
        processor: Any = tiny_vl.processor(sight, tokenizer)
        chat = prompting.chat_format(processor)
        begin = partial(tiny_vl.new_model, sight, tokenizer)

    def rows(competent: float, n: int) -> list[TrainingRow]:
        return cloned_rows(tasks[:n], chat, prompting.context, budget, player, competent)

    def warm_start() -> tuple[Any, float]:
        model, loss = begin(), 0.0
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
                chat=chat,
            )
        return model, loss

    recipe = {
        "env_id": env_id,
        "params": tasks[0].params,
        "prompting": asdict(prompting),
        "budget": asdict(budget),
        "cloning": asdict(cloning),
    }
    shown = rows(cloning.competent, 8)
    layout = [(r.prompt_ids, r.response_ids, r.mask) for r in shown]
    inputs = {"recipe": recipe, "texts": texts, "layout": layout}
    if sight is None:
        return ensure_model("small", tokenizer, inputs, warm_start, code=[__file__], cache=cache)
    return ensure_model(
        "small-vl",
        tokenizer,
        {**inputs, "images": [[image.digest for image in row.images] for row in shown]},
        warm_start,
        code=[__file__, tiny_vl.__file__],
        cache=cache,
        finish=partial(tiny_vl.add_sight, recipe=sight),
    )


def _sight(cloning: Cloning, positions: int) -> tiny_vl.Recipe:
    """Return the recipe of a model that sees."""
    if cloning.hidden % tiny_vl.HEAD:
        raise ConfigurationError(
            f"policy.model: small?hidden must be a multiple of {tiny_vl.HEAD} where environments "
            f"show images, got {cloning.hidden}"
        )
    return tiny_vl.Recipe(
        seed=cloning.seed,
        vocabulary=cloning.vocabulary,
        hidden=cloning.hidden,
        layers=cloning.layers,
        heads=cloning.hidden // tiny_vl.HEAD,
        max_positions=positions,
    )


def _shows_images(task: Task) -> bool:
    with task.make() as env:
        observation, _ = env.reset(seed=task.seed)
    parts = () if isinstance(observation, str) else observation
    return any(part["type"] == "image" for part in parts)


def _texts(tasks: Sequence[Task], player: Player) -> list[str]:
    """Return what environments and players say."""
    texts = []
    for task in tasks:
        rng = stream(task.seed)
        with task.make() as env:
            observation, _ = env.reset(seed=task.seed)
            over = False
            while not over:
                action = player.action(env, 0.5, rng)
                texts += [f"user\n{_words(observation)}\nassistant\n", action]
                observation, _, terminated, truncated, _ = env.step(action)
                over = terminated or truncated
    return texts


def _words(observation: Observation) -> str:
    if isinstance(observation, str):
        return observation
    return "".join(part["text"] for part in observation if part["type"] == "text")


def cloned_rows(
    tasks: Sequence[Task],
    chat: ChatFormat,
    context: str,
    budget: Budget,
    player: Player,
    competent: float,
) -> list[TrainingRow]:
    """Return the training rows of the player's episodes."""
    found = []
    for start in range(0, len(tasks), _AT_ONCE):
        part = tasks[start : start + _AT_ONCE]
        sampler = Mixed(chat, part, player, competent)
        for trajectory in play_batch(
            part, sampler, chat, budget=budget, context=context, make_env=sampler.make
        ):
            if trajectory.failure is not None:
                raise ConfigurationError(f"policy.model: small: {trajectory.failure}")
            found += trajectory.training_rows()
    return found

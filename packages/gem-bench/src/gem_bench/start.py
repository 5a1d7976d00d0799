"""Measures what an experiment begins with: does its policy leave room to learn?

A curve of sampled success may rise although the policy learns nothing new: where the most likely
answers are already right, training only makes them more likely, and where evaluations ask what
training asks, they measure memory. `measure` prints what tells these cases apart.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from gem.core import WrapperLike
from gem.multi import of_one_seat
from gem.parameters import listed
from gem.rollout import ChatFormat, play_batch
from gem.tasks import Task
from gem.trajectory import Trajectory
from gem_bench.compare import estimate
from gem_bench.models import SMALL, resolved
from gem_bench.reference import Learner, rollout
from gem_bench.stats import Estimate, over_tasks
from gem_train.experiment.mixtures import Mixture
from gem_train.experiment.runspec import RunSpec
from gem_train.settings import check_episodes

if TYPE_CHECKING:
    from gem_cpu.small import Cloning

_AT_ONCE = 128
_MOST_ASKED = 2_048
"""Most tasks whose questions are compared."""
_SHARPENING = 0.3
"""Greedy success above sampled success by more than this is warned about."""


@dataclass(frozen=True)
class Asked:
    """Which questions the tasks of one purpose ask, compared with those of others."""

    name: str
    """`cloned`, `trained`, or the name of an evaluation."""
    tasks: int
    compared: int
    """Number of tasks whose questions are looked at: the first ones."""
    questions: int
    """Distinct first observations of these."""
    shared: dict[str, float]
    """Share of these whose question belongs also to tasks of the purpose with this name."""
    held_out: bool = False
    """Whether it is an evaluation with a part of the questions (`gem.wrappers.Questions`) that is
    not a training environment's."""


@dataclass(frozen=True)
class StageSuccess:
    """How often the first environment is won after a stage of its schedule has begun."""

    changed: dict[str, Any]
    """What the stages so far have changed of its parameters."""
    success: float
    """Share of sampled episodes that succeed."""
    player: float | None
    """The same of the player that a small model was shown; None for other models."""


@dataclass(frozen=True)
class Start:
    """What a model can do before training, and what it will be asked."""

    name: str
    """Of the experiment."""
    model: str
    """Folder or hub name."""
    parameters: int
    success: Estimate
    """Of sampled episodes, over tasks."""
    greedy: float
    """Share of greedy episodes of the same tasks that succeed."""
    format_errors: float
    """Share of sampled episodes with a format error."""
    asked: list[Asked]
    """Of the tasks of cloning (small models), of training, and of each evaluation."""
    stages: list[StageSuccess]
    """Before any stage, and after each; none without a schedule, unless it is a small model."""
    making_s: float
    """CPU seconds of this process until the model was there; next to nothing if it was cached."""

    @property
    def warnings(self) -> list[str]:
        """What makes the curves of this experiment mean less than they seem to."""
        found = []
        if self.greedy - self.success.mean > _SHARPENING:
            found.append(
                f"the most likely answers are right already (greedy {self.greedy:.2f}, sampled "
                f"{self.success.mean:.2f}): a rising curve will show sharpening"
            )
        for each in self.asked:
            found += [
                f"evaluation {each.name!r} is not held out: {share:.0%} of its questions are also "
                f"{name}"
                for name, share in each.shared.items()
                if each.held_out and share
            ]
        return found


def measure(spec: RunSpec, *, episodes: int = 256) -> Start:
    """Make the model of a spec if it is gem-cpu's, and play the spec's first tasks with it.

    Args:
        spec: The experiment.
        episodes: Number of tasks, each played once sampled and once greedily.

    Raises:
        ConfigurationError: The model cannot be made or loaded.
        RolloutError: Too many episodes failed.
    """
    questions, cloning = asked(spec), _cloning(spec)
    began = time.process_time()
    spec = resolved(spec)
    making_s = time.process_time() - began
    learner = Learner(spec, torch.device("cpu"), 65_536)
    chat = learner.chat
    tasks = list(Mixture(spec.env, episodes, episodes))
    sampled, greedy = [], []
    for number, first in enumerate(range(0, episodes, _AT_ONCE)):
        part = tasks[first : first + _AT_ONCE]
        sampled += rollout(learner, chat, part, 1, spec.sampling, (number, 0))[0]
        greedy += rollout(learner, chat, part, 1, replace(spec.sampling, top_k=1), (number, 1))[0]
    env, by_stage = spec.env[0], []
    for stages in range(len(env.schedule) + 1) if env.schedule or cloning else ():
        params = env.params_after(stages)
        played = sampled  # the same tasks, unless there are several environments
        part = [Task(env.id, env.seed + place, params) for place in range(min(episodes, _AT_ONCE))]
        if stages or len(spec.env) > 1:
            played = rollout(learner, chat, part, 1, spec.sampling, (stages, 2))[0]
        changed = {name: value for name, value in params.items() if value != env.params.get(name)}
        shown = None if cloning is None else _share_won(_shown(spec, chat, part, cloning))
        by_stage.append(StageSuccess(changed, _share_won(played), shown))
    valid = [episode for episode in sampled if episode.valid]
    return Start(
        spec.name,
        spec.policy.model,
        sum(each.numel() for each in learner.policy.parameters()),
        over_tasks([[float(episode.success)] for episode in valid]),
        _share_won(greedy),
        sum(episode.format_error for episode in valid) / len(valid),
        questions,
        by_stage,
        making_s,
    )


def _cloning(spec: RunSpec) -> Cloning | None:
    """Return how a small model is made."""
    kind, _, settings = spec.policy.model.partition("?")
    if kind != SMALL:
        return None
    from gem_cpu.small import Cloning

    return Cloning.parse(settings)


def _shown(
    spec: RunSpec, chat: ChatFormat, tasks: Sequence[Task], cloning: Cloning
) -> list[Trajectory]:
    """Return episodes of the player that a small model clones last."""
    from gem_cpu.small import Mixed, Player, unjudged

    tasks = [
        replace(task, params=unjudged(of_one_seat(task.env_id, task.params))) for task in tasks
    ]
    sampler = Mixed(chat, tasks, Player(cloning), cloning.competent)
    episodes = play_batch(
        tasks,
        sampler,
        chat,
        budget=spec.budget,
        context=spec.policy.context,
        make_env=sampler.make,
    )
    check_episodes(episodes, spec.training.max_failed_fraction)
    return episodes


def _share_won(episodes: Sequence[Trajectory]) -> float:
    valid = [episode for episode in episodes if episode.valid]
    return sum(episode.success for episode in valid) / len(valid)


def asked(spec: RunSpec) -> list[Asked]:
    """Compare the questions of cloning (small models), training and each evaluation of a spec."""
    purposes: list[tuple[str, list[Task], bool]] = []
    if (cloning := _cloning(spec)) is not None:
        from gem_cpu.small import cloned_tasks

        env = spec.env[0]
        params = of_one_seat(env.id, env.params)
        purposes.append(("cloned", cloned_tasks(env.id, params, cloning), False))
    trained = Mixture(spec.env, spec.training.iterations * spec.training.tasks, spec.training.tasks)
    purposes.append(("trained", list(trained), False))
    learnt = len(purposes)
    trained_parts = [_part(env.params) for env in spec.env]
    for part in spec.eval:
        tasks = [Task(part.id, part.seed + place, part.params) for place in range(part.episodes)]
        kept = _part(part.params)
        purposes.append((part.name, tasks, bool(kept) and kept not in trained_parts))
    earlier: dict[str, set[bytes]] = {}
    found = []
    for number, (name, tasks, held_out) in enumerate(purposes):
        each = _questions(tasks[:_MOST_ASKED])
        shared = {
            other: sum(question in known for question in each) / len(each)
            for other, known in earlier.items()
        }
        distinct = set(each)
        found.append(Asked(name, len(tasks), len(each), len(distinct), shared, held_out))
        if number < learnt:  # evaluations may have the same names
            earlier[name] = distinct
    return found


def _part(params: Mapping[str, Any]) -> list[WrapperLike]:
    """Return the wrappers of parameters that keep a part of the questions."""
    wrappers = listed("wrappers", params.get("wrappers", ()), callable)
    return [w for w in wrappers if isinstance(w, Mapping) and w.get("name") == "questions"]


def _questions(tasks: Iterable[Task]) -> list[bytes]:
    """Return a digest of the first observation of each task."""
    found = []
    for task in tasks:
        whole = replace(task, params=of_one_seat(task.env_id, task.params))
        with whole.make() as env:
            observation, _ = env.reset(seed=task.seed)
        found.append(hashlib.sha256(str(observation).encode()).digest())
    return found


def as_text(found: Start) -> str:
    """Render for a terminal."""
    lines = [
        f"{found.name}: start success {estimate(found.success)}, greedy {found.greedy:.2f}, format "
        f"errors {found.format_errors:.2f}, {found.parameters:,} parameters, made in "
        f"{found.making_s:.0f} CPU s: {found.model}"
    ]
    for each in found.asked:
        shared = [f"{share:.0%} also {name}" for name, share in each.shared.items()]
        lines.append(
            f"  {each.name}: {each.questions:,} questions in "
            + (f"the first {each.compared:,} of " if each.compared < each.tasks else "")
            + ", ".join([f"{each.tasks:,} tasks", *shared])
        )
    for number, stage in enumerate(found.stages):
        changed = ", ".join(f"{name} {value}" for name, value in stage.changed.items())
        lines.append(
            f"  stage {number}{f' ({changed})' if changed else ''}: success {stage.success:.2f}"
            + ("" if stage.player is None else f", the player that it was shown {stage.player:.2f}")
        )
    lines += [f"  warning: {text}" for text in found.warnings]
    return "\n".join(lines)

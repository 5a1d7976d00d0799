"""OpenRLHF's own objects for tests: its parsed command line, its experiences, its maker."""

from __future__ import annotations

import contextlib
import io
import runpy
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from gem.trajectory import Trajectory

MAX_LEN = 2048
STOP = 2


class _ParsedError(Exception):
    def __init__(self, args: Any) -> None:
        self.parsed = args


def parse(argv: Sequence[str]) -> Any:
    """Parse a command line as OpenRLHF's launcher does, up to where it would start something.

    Raises:
        SystemExit: A flag is unknown or its value impossible.
        AssertionError: Flags that do not go together.
    """

    def stop(args: Any) -> None:
        raise _ParsedError(args)

    command = ["train_ppo_ray", *argv]
    with (
        patch("openrlhf.utils.get_strategy", stop),
        patch("ray.is_initialized", lambda: True),
        patch.object(sys, "argv", command),
        contextlib.redirect_stdout(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # the module is imported already, and run again
        try:
            runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__")
        except _ParsedError as error:
            return error.parsed
    raise AssertionError("OpenRLHF's launcher went another way")


def keys() -> list[str]:
    """Return the names of all flags of OpenRLHF's launcher."""

    def leaves(args: Any, section: str = "") -> Iterator[str]:
        for name, value in vars(args).items():
            if isinstance(value, SimpleNamespace):
                yield from leaves(value, f"{section}{name}.")
            else:
                yield f"{section}{name}"

    return list(leaves(parse(["--reward.remote_url", "x"])))


def agent_file(folder: Path, **settings: Any) -> Path:
    """Write an agent file."""
    path = folder / "agent.py"
    given = ", ".join(f"{key}={value!r}" for key, value in settings.items())
    path.write_text(
        "from gem_openrlhf import GemAgentExecutor, Settings\n\n\n"
        f"class AgentExecutor(GemAgentExecutor):\n    settings = Settings({given})\n"
    )
    return path


def maker(agent: Path | None, *flags: str, samples: int = 2) -> Any:
    """OpenRLHF's experience maker as GEM extends it."""
    from gem_openrlhf.advantage import GemExperienceMaker

    argv = ["--actor.num_gpus_per_node", "1", "--data.max_len", str(MAX_LEN)]
    argv += ["--rollout.n_samples_per_prompt", str(samples), "--rollout.batch_size", "4"]
    argv += ["--train.batch_size", "4", "--data.label_key", "label"]
    argv += ["--train.agent_func_path", str(agent)] if agent else ["--reward.remote_url", "x"]
    argv += ["--algo.advantage.estimator", "reinforce", "--algo.kl.init_coef", "0", *flags]
    args = parse(argv)
    strategy = SimpleNamespace(args=args)
    control = SimpleNamespace(value=args.algo.kl.init_coef)
    nobody = (None, None, None, None)
    return GemExperienceMaker(*nobody, control, strategy, SimpleNamespace(pad_token_id=0))


def experiences(
    maker: Any,
    batch: Sequence[Trajectory],
    *,
    value: Callable[[int, int], float] = lambda episode, turn: 0.0,
    rows: int = 3,
    chat: Any = None,
    shown: bool = False,
) -> list[Any]:
    """Episodes as OpenRLHF's generator and maker hold them before advantages are computed.

    Args:
        maker: Decides how rows are put together.
        batch: The episodes.
        value: The critic's value of a turn; everywhere else it is 9.
        rows: OpenRLHF's `--rollout.micro_batch_size`.
        chat: Chat format; by default one of text.
        shown: Whether episodes have shown images.
    """
    from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

    from gem_openrlhf.rollout import GemAgentExecutor, Played
    from gem_train.experiment.tasksets import DatasetRow
    from gem_train.packed import PackedTrajectory

    samples, chat = [], chat or SimpleNamespace(stop_ids={STOP}, usable=len)
    for episode, trajectory in enumerate(batch):
        row = DatasetRow(trajectory.task)
        response = GemAgentExecutor._row(trajectory, row, chat, shown=shown)
        response |= {
            "prompt": f"task {trajectory.task.seed}",
            "label": Played(row.encode(), PackedTrajectory.of(trajectory)),
        }
        sample = SamplesGenerator._process_response_into_experience(
            SimpleNamespace(), response, max_len=MAX_LEN
        )
        sample.values = torch.full(sample.action_mask.shape, 9.0)
        if trajectory.valid:
            tokens = trajectory.training_rows()[0]
            first = len(tokens.prompt_ids) - 1
            for span in tokens.spans:
                column = min(first + span.start, sample.values.shape[1] - 1)
                sample.values[0, column] = value(episode, span.turn)
        known = sample.rollout_log_probs
        sample.action_log_probs = torch.zeros(sample.action_mask.shape) if known is None else known
        sample.kl = torch.zeros(sample.action_mask.shape)
        samples.append(sample)
    maker.args.rollout.micro_batch_size = rows
    return list(maker.split_rollout_samples(samples))


def by_episode(experiences: Sequence[Any], name: str) -> list[list[float]]:
    """Read a tensor `[rows, actions]` back, one list an episode, in the order of the batch."""
    found = {}
    for experience in experiences:
        for place, number in enumerate(experience.index):
            found[number] = getattr(experience, name)[place].tolist()
    return [found[number] for number in sorted(found)]

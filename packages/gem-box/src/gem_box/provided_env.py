"""`ProvidedEnv`: terminal tasks in a box of one of Harbor's own providers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gem.blame import boundary
from gem.errors import ConfigurationError
from gem.parameters import text
from gem_box.env import HarborEnv
from gem_box.folders import Folder, read
from gem_box.grading import Graded
from gem_box.problems import told
from gem_box.provided import ProvidedBox


class ProvidedEnv(HarborEnv):
    """Terminal tasks in Harbor's folders, in a box of one of Harbor's providers.

    Each episode is a trial of Harbor whose agent is the policy: how the box is built, its network,
    its users and limits, and the tests are Harbor's own, so that every task runs that runs there,
    and earns what it earns there. If the tests write nothing that Harbor can read, the reward is 0,
    and `info["graded"]` has the reason: the policy may have broken the tests. If Harbor fails in
    another way, the episode is a failure with the cause `sandbox` and has no reward. Tests that
    reach their limit of time are such a failure, because the limit is one of a clock, and a clock
    runs while a machine is busy.

    A command has a new shell, which goes on in the last one's folder, with its variables. Needs
    Harbor (Python 3.12), in this Python or the one that the variable `GEM_HARBOR_PYTHON` names.
    """

    def __init__(
        self,
        folder: str,
        *,
        box: str,
        eval: bool = False,
        max_turns: int = 20,
        output_chars: int = 4000,
        command_s: float = 30.0,
        reward_key: str | None = None,
        seed: int | None = None,
    ) -> None:
        """Read the tasks; no box is started.

        Args:
            folder: A task folder, or one that has task folders.
            box: The provider as of `harbor run --env`: a name, such as `docker` or `daytona`, or
                `MODULE:CLASS`.
            eval: See `HarborEnv`.
            max_turns: See `HarborEnv`.
            output_chars: See `HarborEnv`.
            command_s: Most seconds of a command, by the provider's clock.
            reward_key: See `HarborEnv`.
            seed: Seed of the first `reset` that is not given one.

        Raises:
            ConfigurationError: A value is not allowed, or there is no task, or one has no
                instruction.
        """
        self.provider = text("box", box)
        self._provided: ProvidedBox | None = None
        super().__init__(
            folder,
            eval=eval,
            max_turns=max_turns,
            output_chars=output_chars,
            command_s=command_s,
            reward_key=reward_key,
            seed=seed,
        )

    def _runnable(self, path: Path) -> Folder:
        task = read(path)
        if not task.instruction.strip():
            raise ConfigurationError(f"task {task.name!r}: {'; '.join(told(task.problems))}")
        return task

    def _chosen(self) -> str:
        return "harbor"

    def _says_offline(self) -> bool:
        return False

    def _start_box(self) -> ProvidedBox:
        if self._provided is not None and not self._provided.lives:
            self._provided.close()
            self._provided = None
        self._provided = self._provided or ProvidedBox(self.provider)
        with boundary("sandbox"):
            self._provided.start(self.task.path)
        return self._provided

    def _graded(self) -> Graded:
        assert isinstance(self._box, ProvidedBox)
        return self._box.graded(self.task.tests_s, self.reward_key, self.task.name)

    def _leave(self) -> None:
        # Harbor goes on: its next box comes sooner.
        box, self._box = getattr(self, "_box", None), None
        if isinstance(box, ProvidedBox):
            box.drop()

    def close(self) -> None:
        """End the box, and Harbor; safe to repeat."""
        super().close()
        provided, self._provided = getattr(self, "_provided", None), None
        if provided is not None:
            provided.close()

    def __getstate__(self) -> dict[str, Any]:
        return {n: value for n, value in super().__getstate__().items() if n != "_provided"}

    def __setstate__(self, state: dict[str, Any]) -> None:  # type: ignore[override]
        self._provided = None
        super().__setstate__(state)

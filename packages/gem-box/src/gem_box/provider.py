"""A box as an environment of Harbor: `harbor run --env gem_box.provider:BoxEnvironment ...`.

Needs Harbor 0.26 and its Python, 3.12. The variable `GEM_BOX_IMAGE` names an image for all tasks,
such as `host`.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import (
    EnvironmentCapabilities,
    EnvironmentResourceCapabilities,
)

from gem.errors import ConfigurationError, UnreachableError
from gem_box.folders import read
from gem_box.images import built, problems
from gem_box.limits import limits
from gem_box.overlay import OverlayBox
from gem_box.problems import told
from gem_sandbox import Limits

_LIMITS = Limits(cpu_s=3600.0, memory_mb=4096, disk_mb=2048, processes=512)
_LOGS = ["/logs/agent", "/logs/verifier", "/logs/artifacts"]


class BoxEnvironment(BaseEnvironment):
    """An environment of Harbor in an `OverlayBox`."""

    box: OverlayBox

    @staticmethod
    def type() -> str:
        """Return the provider's name."""
        return "gem-box"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """A box has no network."""
        return EnvironmentCapabilities(disable_internet=True)

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        """Harbor's own numbers of cores and memory are not used; those of task.toml are."""
        return EnvironmentResourceCapabilities()

    def _validate_definition(self) -> None:
        task = read(self.environment_dir.parent)
        reasons = told(problems(task, os.environ.get("GEM_BOX_IMAGE")))
        if reasons:
            raise ConfigurationError(f"task {task.name!r}: {'; '.join(reasons)}")

    async def start(self, force_build: bool) -> None:
        """Build the image, unless it is in the cache, and begin the box."""
        await asyncio.to_thread(self._start)
        await self.ensure_dirs(_LOGS)

    def _start(self) -> None:
        task = read(self.environment_dir.parent)
        image = built(task, os.environ.get("GEM_BOX_IMAGE"))
        workdir = task.table("environment").get("workdir")
        # Whoever calls Harbor has chosen the tasks: they get what they ask for.
        allowed, _ = limits(task, _LIMITS)
        self.box = image.box(allowed, task.env("environment"), workdir)
        self.box.start()
        self.box.put(None, self.box.workdir)

    async def stop(self, delete: bool) -> None:
        """End the box; nothing of it stays."""
        await asyncio.to_thread(self.box.close)

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: Any = None,
    ) -> ExecResult:
        """Run a command in a shell of its own."""
        if user not in (None, "root", 0):
            raise ConfigurationError(f"user {user!r}: commands of a box run as root")
        ran = await asyncio.to_thread(
            self.box.execute,
            ["/bin/bash", "-c", command],
            float(timeout_sec or _LIMITS.cpu_s),
            cwd=cwd,
            env=self._merge_env(env),
        )
        return ExecResult(
            stdout=ran.output.decode("utf-8", "replace"), stderr="", return_code=ran.code
        )

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copy a file into the box."""
        await asyncio.to_thread(self.box.put, Path(source_path), target_path)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Copy the content of a folder into the box."""
        await asyncio.to_thread(self.box.put, Path(source_dir), target_dir)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copy a file out of the box."""
        await asyncio.to_thread(self._get, source_path, Path(target_path))

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy the content of a folder out of the box."""
        await asyncio.to_thread(self._get, source_dir, Path(target_dir))

    def _get(self, path: str, target: Path) -> None:
        try:
            self.box.get(path, target)
        except UnreachableError as error:
            raise RuntimeError(str(error)) from error

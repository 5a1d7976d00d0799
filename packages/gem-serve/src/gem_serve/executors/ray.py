"""`RayExecutor`: environments in actors of a Ray cluster; needs the extra `gem-core[ray]`."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from gem.errors import UnreachableError
from gem.executors.host import EnvHost
from gem.executors.pool import PoolExecutor, Worker
from gem.foreign import described, named, trace
from gem.plugins import extra

logger = logging.getLogger(__name__)

_POLL_S = 5.0
"""How long a request for answers waits in an actor."""
_LOOK_S = 1.0
"""How often idle and silent actors are looked for."""
_CLOSE_S = 4.0
"""How long environments may take to close."""
_NEEDED = 'environments on a Ray cluster need the extra ray: pip install "gem-core[ray]"'


class RayExecutor(PoolExecutor):
    """Environments in Ray actors, on all nodes of the cluster that this process belongs to.

    By default actors take no CPU and no GPU from Ray's accounts, so that they start inside a
    trainer's cluster whose resources are all reserved, and are spread over the nodes. If an actor
    or its node is lost, the episodes go on in other actors.
    """

    # Ray starts actors on a node that is lost until it has noticed.
    most_failed_starts = 20

    def __init__(
        self,
        workers: int | None = None,
        *,
        least: int = 0,
        num_cpus: float = 0.0,
        resources: Mapping[str, float] | None = None,
        episodes_per_worker: int | None = None,
    ) -> None:
        """Store the parameters; actors start when they are needed.

        Connects to the cluster of this process, of the environment variable `RAY_ADDRESS`, or
        starts one on this machine.

        Args:
            workers: Most actors; one for each CPU of the cluster by default.
            least: Actors that stay although they have nothing to do.
            num_cpus: CPUs that each actor reserves.
            resources: Custom resources that each actor reserves, such as `{"envs": 1}`.
            episodes_per_worker: Episodes after which an actor is replaced; None for no limit.

        Raises:
            MissingExtraError: Ray is not installed.
            ConfigurationError: A number is below 1.
            UnreachableError: There is no cluster, and none can be started.
        """
        self._ray = extra("ray", _NEEDED)
        if not self._ray.is_initialized():
            try:
                self._ray.init(log_to_driver=False, include_dashboard=False)
            except Exception as error:
                raise UnreachableError(f"no Ray cluster: {error}") from error
        if workers is None:
            workers = max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        self._options = {
            "num_cpus": num_cpus,
            "num_gpus": 0,
            "resources": dict(resources or {}),
            "scheduling_strategy": "SPREAD",
            "max_restarts": 0,
        }
        super().__init__(workers, least=least, episodes_per_worker=episodes_per_worker)

    def _begin(self) -> None:
        super()._begin()
        self._polled: dict[Any, _Actor] = {}
        self._thread: threading.Thread | None = None

    def _start(self) -> Worker:
        try:
            actor = _Actor(self._ray, self._options, self._most)
        except Exception as error:
            raise UnreachableError(f"cannot start a Ray actor: {error}") from error
        self._polled[actor.poll()] = actor
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="gem-ray", daemon=True)
            self._thread.start()
        return actor

    def close(self) -> None:
        """End all actors, once they have closed their environments."""
        super().close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def actors(self) -> list[Any]:
        """Return Ray's handles of the actors."""
        with self._lock:
            return [worker.handle for worker in self._workers if isinstance(worker, _Actor)]

    def _run(self) -> None:
        """Pass answers on, until there are no more actors."""
        while True:
            with self._lock:
                if not self._polled:
                    self._thread = None
                    return
                polled = list(self._polled)
            ready, _ = self._ray.wait(polled, num_returns=1, timeout=_LOOK_S)
            for reference in ready:
                with self._lock:
                    actor = self._polled.pop(reference)
                self._take(actor, reference)
            self.look()

    def _take(self, actor: _Actor, reference: Any) -> None:
        try:
            frames = self._ray.get(reference)
        except Exception as error:
            # Of Ray's report the first line says what happened.
            what = (named(error)[1].strip().splitlines() or [type(error).__name__])[0]
            self.ended(actor, f"its actor ended: {what}")
            return
        if frames is None:  # it was asked to end, and its environments are closed
            actor.end(kill=True)
            self.ended(actor, "its actor ended")
            return
        try:
            for frame in frames or [b"[]"]:
                self.received(actor, frame)
            with self._lock:
                self._polled[actor.poll()] = actor
        except Exception as error:
            why = f"it sent something that is not an answer: {described(error)}"
            logger.warning("an actor is ended: %s\n%s", why, trace(error))
            actor.end(kill=True)
            self.ended(actor, why)


class _Actor(Worker):
    """One Ray actor."""

    def __init__(self, ray: Any, options: Mapping[str, Any], of: int) -> None:
        super().__init__()
        self._ray = ray
        paths = [path for path in sys.path if path]
        groups = {"requests": 1, "answers": 1, "end": 1}
        kind = ray.remote(concurrency_groups=groups)(_EnvActor)
        self.handle = kind.options(**options).remote(paths, of)

    def poll(self) -> Any:
        """Ask for answers; return Ray's reference."""
        return self.handle.answers.options(concurrency_group="answers").remote()

    def send(self, frame: bytes) -> None:
        self.handle.receive.options(concurrency_group="requests").remote(frame)

    def end(self, *, kill: bool = False) -> None:
        with contextlib.suppress(Exception):
            if kill:
                self._ray.kill(self.handle)
            else:
                self.handle.end.options(concurrency_group="end").remote()


class _EnvActor:
    """What an actor runs: an `EnvHost` whose answers are asked for."""

    def __init__(self, paths: list[str], of: int) -> None:
        from gem.workers import pool as graders

        sys.path += [path for path in paths if path not in sys.path and Path(path).exists()]
        graders.shared_by = of
        self._answers: SimpleQueue[bytes | None] = SimpleQueue()
        self._host = EnvHost(self._answers.put)
        self._answers.put(b"[]")  # ready

    def receive(self, frame: bytes) -> None:
        self._host.receive(frame)

    def answers(self) -> list[bytes] | None:
        """Return frames of answers, an empty list after a while, None after `end`."""
        frames: list[bytes] = []
        with contextlib.suppress(Empty):
            frame = self._answers.get(timeout=_POLL_S)
            while frame is not None:
                frames.append(frame)
                frame = self._answers.get_nowait()
            return None
        return frames

    def end(self) -> None:
        self._host.close(wait_s=_CLOSE_S)
        self._answers.put(None)

"""Another process, with another hash seed, that plays the same episodes as this one."""

from __future__ import annotations

import json
import os
import pickle
import queue
import subprocess
import sys
import threading
from typing import IO

from gem.testing.playing import digest, transcript
from gem.testing.subject import FaultError, SkipCheck, Subject, describe

_TIMEOUT_S = 120
_LENGTH_BYTES = 8


class OtherProcess:
    """Plays the transcripts of one subject after the other; started by the first question.

    It plays while the asking process goes on, and is started again after it died.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._refusal: SkipCheck | None = None

    def ask(self, subject: Subject) -> None:
        """Begin to play a subject there."""
        self._refusal = None
        try:
            question = pickle.dumps(subject)
        except Exception as error:
            self._refusal = SkipCheck(f"the function that makes it cannot be pickled: {error}")
            return
        if self._process is None or self._process.poll() is not None:
            self._start()
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(len(question).to_bytes(_LENGTH_BYTES, "big") + question)
            self._process.stdin.flush()
        except BrokenPipeError:
            # It died between two questions; the missing answer tells.
            pass

    def answer(self) -> str:
        """Return the digest of the transcript asked for.

        Raises:
            SkipCheck: The subject cannot be sent to another process.
            FaultError: It cannot be played there.
        """
        if self._refusal is not None:
            raise self._refusal
        try:
            line = self._answers.get(timeout=_TIMEOUT_S)
        except queue.Empty:
            self.close()
            raise FaultError(f"another process is not done after {_TIMEOUT_S} s") from None
        if not line:
            assert self._process is not None
            raise FaultError(f"another process died with status {self._process.wait()}")
        answer = json.loads(line)
        if "unknown" in answer:
            raise SkipCheck(f"another process cannot import what makes it: {answer['unknown']}")
        if "error" in answer:
            raise FaultError(f"another process failed: {answer['error']}")
        return str(answer["digest"])

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
            self._process = None

    def __enter__(self) -> OtherProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _start(self) -> None:
        self.close()
        seeds = {os.environ.get("PYTHONHASHSEED", ""), "101", "202"}
        paths = os.pathsep.join(path for path in sys.path if path)
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from gem.testing.elsewhere import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": max(seeds)},
        )
        self._answers = queue.SimpleQueue()
        assert self._process.stdout is not None
        arguments = self._process.stdout, self._answers
        threading.Thread(target=_pass_on, args=arguments, daemon=True).start()


def _pass_on(lines: IO[bytes], answers: queue.SimpleQueue[str]) -> None:
    for line in lines:
        answers.put(line.decode())
    answers.put("")


def serve() -> None:
    """Answer the questions of standard input; the other side of `OtherProcess`."""
    # What an environment prints must not look like an answer.
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        while length := sys.stdin.buffer.read(_LENGTH_BYTES):
            question = sys.stdin.buffer.read(int.from_bytes(length, "big"))
            answers.write(json.dumps(_answer(question)) + "\n")
            answers.flush()


def _answer(question: bytes) -> dict[str, str]:
    try:
        subject: Subject = pickle.loads(question)
    except Exception as error:
        # It is a class of the asking program's main module, for instance.
        return {"unknown": describe(error)}
    try:
        played = transcript(subject.factory(), subject.seeds, subject.max_steps)
    except Exception as error:
        return {"error": describe(error)}
    return {"digest": digest(played)}

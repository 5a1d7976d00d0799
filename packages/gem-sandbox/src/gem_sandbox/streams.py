"""A program's stdin, stdout and stderr as file descriptors; used outside of the sandbox."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Iterator

_PART = 1 << 16


class Outputs(contextlib.AbstractContextManager["Outputs"]):
    """Pipes for a program's stdout and stderr; the first `limit` bytes of each are kept."""

    def __init__(self, limit: int) -> None:
        out, their_out = os.pipe()
        err, their_err = os.pipe()
        self.theirs = [their_out, their_err]
        for descriptor in self.theirs:
            # A program with another user id must be able to open /dev/stdout.
            os.fchmod(descriptor, 0o666)
        self.cut = False
        """Whether a stream was longer than the limit."""
        self._limit = limit
        self._kept = {out: bytearray(), err: bytearray()}
        self._open = {out, err}
        self.poll = select.poll()
        """Has the streams that have not ended; a caller may add descriptors."""
        for descriptor in self._open:
            self.poll.register(descriptor, select.POLLIN)

    def __exit__(self, *exc: object) -> None:
        self.close_theirs()
        for descriptor in self._kept:
            os.close(descriptor)

    def close_theirs(self) -> None:
        """Close this process's copies of the program's ends; safe to repeat."""
        while self.theirs:
            os.close(self.theirs.pop())

    def read(self, descriptor: int) -> None:
        """Read available output; unregister a stream that has ended."""
        kept = self._kept[descriptor]
        part = os.read(descriptor, _PART)
        if not part:
            self._open.discard(descriptor)
            self.poll.unregister(descriptor)
        room = self._limit - len(kept)
        kept += part[:room]
        self.cut = self.cut or len(part) > room

    def drain(self, to_its_end: bool) -> None:
        """Read to the end of the streams (all writers must have ended), or only what is there."""
        while self._open and (ready := self.poll.poll(None if to_its_end else 0)):
            for descriptor, _ in ready:
                self.read(descriptor)

    def texts(self) -> tuple[str, str]:
        """Return both streams as text, undecodable bytes replaced."""
        out, err = (bytes(kept).decode("utf-8", "replace") for kept in self._kept.values())
        return out, err


@contextlib.contextmanager
def in_memory(data: bytes) -> Iterator[int]:
    """Yield the descriptor of a memory file with this content, positioned at its start."""
    descriptor = os.memfd_create("gem")
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


def encoded(text: str) -> bytes:
    """Return text as UTF-8; lone surrogates become question marks."""
    return text.encode("utf-8", "replace")

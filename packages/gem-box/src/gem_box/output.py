"""What is kept of a command's output: head and tail."""

from __future__ import annotations

import os

_CHUNK = 1 << 16
# A command that writes more than this many times what is kept is ended.
_TIMES = 64


class Kept:
    """Output as it arrives: at most `most` bytes of it are kept.

    Attributes:
        ended: Whether nobody can write any more.
        total: Bytes that came.
    """

    def __init__(self, most: int) -> None:
        self._half = max(1, most // 2)
        self._most = most
        self._head, self._tail = bytearray(), bytearray()
        self.ended = False
        self.total = 0

    @property
    def flooded(self) -> bool:
        """Whether so much came that the command is to be ended."""
        return self.total > max(_TIMES * self._most, 1 << 26)

    @property
    def left_out(self) -> int:
        """Bytes that came and are not kept."""
        return self.total - len(self._head) - len(self._tail)

    def drain(self, descriptor: int) -> None:
        """Take what is in a pipe that does not block."""
        while not (self.ended or self.flooded):
            try:
                data = os.read(descriptor, _CHUNK)
            except BlockingIOError:
                return
            self.ended = not data
            self.add(data)

    def add(self, data: bytes) -> None:
        """Take some bytes."""
        self.total += len(data)
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[max(room, 0) :]
        del self._tail[: -self._half]

    def text(self) -> bytes:
        """Return what is kept, with a line in place of what is not."""
        if not self.left_out:
            return bytes(self._head + self._tail)
        note = b"\n... (%d bytes left out) ...\n" % self.left_out
        return bytes(self._head + note + self._tail)

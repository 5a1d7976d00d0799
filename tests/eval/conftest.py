"""What the tests of gem-eval share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from chat_server import Stub


@pytest.fixture
def server() -> Iterator[Stub]:
    """A stub of a server; tests change what it answers."""
    stub = Stub()
    yield stub
    stub.close()

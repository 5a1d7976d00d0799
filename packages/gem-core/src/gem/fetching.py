"""HTTP requests whose answers are limited in size and time: for search tools and WikiGame."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Mapping

from gem.version import __version__

_MAX_BYTES = 1 << 24


def fetched(
    url: str,
    timeout_s: float,
    *,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    proxies: bool = True,
) -> tuple[str, bytes]:
    """Return the final address and the body of the answer to a request.

    Args:
        url: Where to ask.
        timeout_s: Time limit of connecting, of each wait for data, and of the whole answer.
        body: Of a POST request; None makes it a GET request.
        headers: Of the request.
        proxies: Whether to use the proxies that environment variables name.

    Raises:
        HTTPError: The server answers with an error; its status is the `code`.
        OSError, http.client.HTTPException: It does not answer, or not in time.
        ValueError: The address cannot be asked, or the answer has more than 16 MiB.
    """
    named = {"User-Agent": f"gem-core/{__version__}", **(headers or {})}
    request = urllib.request.Request(url, data=body, headers=named)
    deadline = time.monotonic() + timeout_s
    opener = urllib.request.build_opener(*([] if proxies else [urllib.request.ProxyHandler({})]))
    with opener.open(request, timeout=timeout_s) as response:
        answer = b""
        while chunk := response.read1(1 << 16):
            answer += chunk
            if len(answer) > _MAX_BYTES:
                raise ValueError(f"an answer of more than {_MAX_BYTES} bytes")
            if time.monotonic() > deadline:
                raise TimeoutError("too slow")
        return response.url, answer

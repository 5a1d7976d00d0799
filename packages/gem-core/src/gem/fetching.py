"""HTTP requests whose answers are limited in size and time; `asked` repeats those that fail."""

from __future__ import annotations

import http.client
import ipaddress
import math
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import SplitResult, urlsplit

from gem.errors import ConfigurationError, RefusedError, UnreachableError
from gem.version import __version__

T = TypeVar("T")

_MAX_BYTES = 1 << 24
_PAUSE_S = 0.2
# HTTP statuses that are not retried.
_FINAL = frozenset({400, 401, 403, 404, 405, 413, 415, 422})
# Those that say that what was sent is at fault, not who sent it or where.
_REFUSED = frozenset({400, 413, 422})


def http_address(name: str, url: Any) -> SplitResult:
    """Check a parameter that is an HTTP address; return its parts.

    Raises:
        ConfigurationError: It is none.
    """
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        if parts and parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return parts
    except ValueError:  # of the port or an IPv6 address
        pass
    raise ConfigurationError(f"{name} must be an http(s) address, got {url!r}")


def is_local(url: str) -> bool:
    """Whether an address is this machine, which no proxy reaches: it would only learn keys."""
    host = (urlsplit(url).hostname or "").rstrip(".")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback or address.is_unspecified


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
        proxies: Whether to use the proxies that environment variables name. None reaches this
            machine.

    Raises:
        HTTPError: The server answers with an error; its status is the `code`.
        OSError, http.client.HTTPException: It does not answer, not in time, or not to the end.
        ValueError: The address cannot be asked, or the answer has more than 16 MiB.
    """
    named = {"User-Agent": f"gem-core/{__version__}", **(headers or {})}
    request = urllib.request.Request(url, data=body, headers=named)
    deadline = time.monotonic() + timeout_s
    direct = not proxies or is_local(url)
    opener = urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if direct else []))
    with opener.open(request, timeout=timeout_s) as response:
        answer = b""
        while chunk := response.read1(1 << 16):
            answer += chunk
            if len(answer) > _MAX_BYTES:
                raise ValueError(f"an answer of more than {_MAX_BYTES} bytes")
            if time.monotonic() > deadline:
                raise TimeoutError("too slow")
        # `read1` ends without a word where the connection does.
        left = getattr(response, "length", None)
        if left:
            raise http.client.IncompleteRead(answer, left)
        return response.url, answer


def asked(
    who: str,
    url: str,
    read: Callable[[bytes], T],
    *,
    timeout_s: float,
    retries: int,
    malformed: str,
    reread: bool = False,
    deadline: float = math.inf,
    **request: Any,
) -> T:
    """Return what `read` makes of the answer to a request.

    Args:
        who: Names the server in messages.
        url: Where to ask.
        read: Reads the body of an answer; raises ValueError, LookupError or TypeError if it cannot.
        timeout_s: Time limit of one attempt.
        retries: Further attempts, after growing pauses, unless the HTTP status is in `_FINAL`.
        malformed: Says of an answer that cannot be read what it is not.
        reread: Whether to ask again after such an answer.
        deadline: Time of `time.monotonic` at which the last attempt ends.
        **request: Further keywords of `fetched`.

    Raises:
        RefusedError: The server says that what was sent is at fault.
        UnreachableError: The server does not answer, answers with an error, or cannot be read.
    """
    reason: object = "too slow"
    for attempt in range(retries + 1):
        time.sleep(min(_PAUSE_S * (2**attempt - 1), max(deadline - time.monotonic(), 0)))
        left = min(timeout_s, deadline - time.monotonic())
        if left <= 0:
            break
        try:
            return read(fetched(url, left, **request)[1])
        except urllib.error.HTTPError as error:
            error.close()
            reason = f"it answers {error.code} {error.reason}"
            if error.code in _REFUSED:
                raise RefusedError(f"{who} refuses a request: {reason}") from None
            if error.code in _FINAL:
                break
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            reason = f"its answer is not {malformed}: {error}"
            if not reread:
                break
    raise UnreachableError(f"{who}: {reason}; is the address right and is it up?")

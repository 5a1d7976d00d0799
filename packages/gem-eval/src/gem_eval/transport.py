"""How a request goes to the model's server: `Direct`, or `Proxied` where a proxy is set.

An evaluation makes many small requests to one place, and httpx's general client takes most of the
CPU time of a turn for that (`benchmarks/evaluation.py`). `Direct` is HTTP/1.1 on asyncio's streams
for such requests alone; its errors are httpx's.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol
from urllib.request import getproxies, proxy_bypass

import httpx

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_CONNECT_S = 30.0


@dataclass(frozen=True)
class Answer:
    """What a server answers to a request."""

    status: int
    headers: Mapping[str, str]
    """By names in lower case."""
    content: bytes

    @property
    def text(self) -> str:
        """The content; what is no UTF-8 is replaced."""
        return self.content.decode("utf-8", "replace")


class Transport(Protocol):
    """Sends requests to one server."""

    async def post(self, url: str, body: bytes) -> Answer:
        """Send a JSON body; the time limit of a call is the caller's to set.

        Args:
            url: Of the server.
            body: UTF-8.

        Raises:
            httpx.HTTPError: There is no connection, it broke, or the answer is no HTTP/1.1.
        """

    async def aclose(self) -> None:
        """Close the connections."""


def transport_to(url: str, headers: Mapping[str, str], tls: ssl.SSLContext) -> Transport:
    """Return what reaches a server; a proxy is used if the usual environment variables name one.

    Args:
        url: Of the server, with any path.
        headers: Of every request, besides those that a JSON body needs.
        tls: For https.
    """
    parsed, proxies = httpx.URL(url), getproxies()
    headers = {"Accept": "application/json", "Content-Type": "application/json", **headers}
    if (parsed.scheme in proxies or "all" in proxies) and not proxy_bypass(parsed.host):
        return Proxied(headers, tls)
    return Direct(parsed, headers, tls)


class Proxied:
    """Sends requests with httpx, which finds the proxy."""

    def __init__(self, headers: Mapping[str, str], tls: ssl.SSLContext) -> None:
        """Connect to nothing yet; the arguments are those of `transport_to`."""
        self._http = httpx.AsyncClient(
            headers=headers,
            timeout=httpx.Timeout(None, connect=_CONNECT_S),
            limits=httpx.Limits(max_connections=None),
            verify=tls,
        )

    async def post(self, url: str, body: bytes) -> Answer:
        """See `Transport.post`."""
        response = await self._http.post(url, content=body)
        return Answer(response.status_code, response.headers, response.content)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()


class Direct:
    """Keeps connections open and uses each for one request at a time."""

    def __init__(self, url: httpx.URL, headers: Mapping[str, str], tls: ssl.SSLContext) -> None:
        """Connect to nothing yet; the arguments are those of `transport_to`."""
        self._tls = tls if url.scheme == "https" else None
        self._host = url.raw_host.decode("ascii")
        self._port = url.port or (443 if self._tls else 80)
        self._paths: dict[str, bytes] = {}
        own = {"Host": url.netloc.decode("ascii"), "Accept-Encoding": "identity", **headers}
        self._head = "".join(f"{name}: {value}\r\n" for name, value in own.items()).encode()
        self._idle: list[Connection] = []

    async def post(self, url: str, body: bytes) -> Answer:
        """See `Transport.post`."""
        if url not in self._paths:
            self._paths[url] = httpx.URL(url).raw_path
        connection = await self._connection()
        reader, writer = connection
        try:
            writer.write(
                b"POST %b HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b"
                % (self._paths[url], self._head, len(body), body)
            )
            await writer.drain()
            answer, reusable = await _answer(reader)
        except BaseException as error:
            # Also if it is cancelled: what is still to come belongs to no other request.
            writer.close()
            known = _as_httpx(error)
            if known is None:
                raise
            raise known from error
        if reusable:
            self._idle.append(connection)
        else:
            writer.close()
        return answer

    async def aclose(self) -> None:
        """Close the connections."""
        for _, writer in self._idle:
            writer.close()
        self._idle.clear()

    async def _connection(self) -> Connection:
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof() and not writer.is_closing():
                return reader, writer
            writer.close()
        try:
            async with asyncio.timeout(_CONNECT_S):
                return await asyncio.open_connection(
                    self._host, self._port, ssl=self._tls, happy_eyeballs_delay=0.25
                )
        except TimeoutError:
            raise httpx.ConnectTimeout(f"no connection within {_CONNECT_S:g} s") from None
        except OSError as error:
            raise httpx.ConnectError(str(error)) from error


async def _answer(reader: asyncio.StreamReader) -> tuple[Answer, bool]:
    """Read an answer; return it, and whether the connection can be used again."""
    status = 100
    while 100 <= status < 200:  # a server may say first that it goes on
        head = (await reader.readuntil(b"\r\n\r\n"))[:-4].decode("latin-1")
        first, *lines = head.split("\r\n")
        version, code, *_ = first.split(" ", 2)
        if version not in ("HTTP/1.1", "HTTP/1.0"):
            raise ValueError(f"it begins with {first[:80]!r}")
        status = int(code)
    split = [line.partition(":") for line in lines]
    headers = {name.lower(): value.strip() for name, _, value in split}
    reusable = version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
    if headers.get("transfer-encoding", "").lower() == "chunked":
        content = await _chunks(reader)
    elif "content-length" in headers:
        content = await reader.readexactly(int(headers["content-length"]))
    elif status in (204, 304):
        content = b""
    else:
        content, reusable = await reader.read(), False
    return Answer(status, headers, content), reusable


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    found = []
    while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        found.append((await reader.readexactly(size + 2))[:-2])
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass  # trailers
    return b"".join(found)


def _as_httpx(error: BaseException) -> httpx.HTTPError | None:
    if isinstance(error, asyncio.IncompleteReadError):
        what = "was cut off" if error.partial else "did not come: the connection was closed"
        return httpx.RemoteProtocolError(f"the answer {what}")
    if isinstance(error, ValueError | asyncio.LimitOverrunError):
        return httpx.RemoteProtocolError(f"the answer is no HTTP/1.1: {error}")
    if isinstance(error, OSError):
        return httpx.ReadError(str(error))
    return None

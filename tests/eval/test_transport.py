"""What goes to a server byte by byte, and how its answers are read."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from gem_eval.transport import Answer, Direct, Proxied, Transport, transport_to

NOBODY = "http://127.0.0.1:9/v1"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Scripted:
    """A server that sends `answers` in turn; after None it closes the connection."""

    def __init__(self, answers: list[bytes | None], tls: ssl.SSLContext | None = None) -> None:
        self.answers = list(answers)
        self.requests: list[bytes] = []
        self.connections = 0
        self._tls = tls

    async def __aenter__(self) -> Scripted:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    @property
    def url(self) -> str:
        scheme = "https" if self._tls else "http"
        return f"{scheme}://127.0.0.1:{self.port}/v1/chat"

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while self.answers and (head := await reader.read(65536)):
            self.requests.append(head)
            answer = self.answers.pop(0)
            if answer is not None:
                writer.write(answer)
            if answer is None or not self.answers or self.answers[0] is None:
                self.answers = self.answers[1:] if answer is not None else self.answers
                break
        writer.close()


def with_server(
    answers: list[bytes | None], play: Callable[[Transport, Scripted], Awaitable[object]]
) -> Scripted:
    """Play with a transport to a server with these answers."""
    server = Scripted(answers)

    async def main() -> None:
        async with server, asyncio.timeout(30):
            transport = transport_to(
                server.url, {"Authorization": "Bearer k"}, httpx.create_ssl_context()
            )
            assert isinstance(transport, Direct)
            try:
                await play(transport, server)
            finally:
                await transport.aclose()

    asyncio.run(main())
    return server


def answer_to(*answers: bytes | None) -> Answer:
    """Return the answer to one request."""
    found = []

    async def play(transport: Transport, server: Scripted) -> None:
        found.append(await transport.post(server.url, b"{}"))

    with_server([*answers], play)
    return found[0]


def test_a_request_has_what_a_server_needs() -> None:
    server = with_server([OK], lambda transport, server: transport.post(server.url, '"é"'.encode()))
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    assert first == "POST /v1/chat HTTP/1.1"
    assert dict(line.split(": ", 1) for line in lines) == {
        "Host": f"127.0.0.1:{server.port}",
        "Accept": "application/json",
        "Accept-Encoding": "identity",
        "Content-Type": "application/json",
        "Authorization": "Bearer k",
        "Content-Length": "4",
    }
    assert body == '"é"'.encode()


@pytest.mark.parametrize(
    "sent",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length:2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n1;x=y\r\nk\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nT: r\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\n\r\nok",
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
    ],
    ids=["length", "chunked", "trailers", "until closed", "1.0", "continue"],
)
def test_a_body_is_read_however_it_is_sent(sent: bytes) -> None:
    answer = answer_to(sent)
    assert (answer.status, answer.content) == (200, b"ok")


def test_status_and_headers_are_those_that_were_sent() -> None:
    answer = answer_to(b"HTTP/1.1 429\r\nRetry-After:  7 \r\nContent-Length: 0\r\n\r\n")
    assert (answer.status, answer.headers["retry-after"], answer.content) == (429, "7", b"")


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (b"SSH-2.0-OpenSSH\r\n\r\n", "no HTTP/1.1"),
        (b"HTTP/1.1 OK\r\n\r\n", "no HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: two\r\n\r\n", "no HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok", "was cut off"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nok", "was cut off"),
        (b"HTTP/1.1 200 OK\r\nContent-", "was cut off"),
        (None, "did not come"),
    ],
)
def test_a_broken_answer_is_an_error_of_httpx(sent: bytes | None, says: str) -> None:
    with pytest.raises(httpx.RemoteProtocolError, match=says):
        answer_to(sent)


def test_without_a_server_there_is_no_connection() -> None:
    async def main() -> None:
        await transport_to(NOBODY, {}, httpx.create_ssl_context()).post(NOBODY, b"")

    with pytest.raises(httpx.ConnectError):
        asyncio.run(main())


def test_a_connection_is_used_again_unless_the_server_closed_it() -> None:
    async def play(transport: Transport, server: Scripted) -> None:
        for _ in range(2):
            await transport.post(server.url, b"{}")
        assert server.connections == 1
        # The server closes it after this answer, which the transport has to notice.
        await transport.post(server.url, b"{}")
        await asyncio.sleep(0.05)
        assert (await transport.post(server.url, b"{}")).content == b"ok"
        assert server.connections == 2

    with_server([OK, OK, OK, None, OK], play)


def test_the_answer_to_a_cancelled_request_goes_to_no_other() -> None:
    async def play(transport: Transport, server: Scripted) -> None:
        late = asyncio.create_task(transport.post(server.url, b"{}"))
        while not server.requests:
            await asyncio.sleep(0.001)
        late.cancel()
        await asyncio.wait([late])
        assert (await transport.post(server.url, b"{}")).content == b"ok"
        assert server.connections == 2

    with_server([b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", OK], play)


def test_https_checks_the_certificate(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "stub")])
    now = datetime.datetime.now(datetime.timezone.utc)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / "stub.pem"
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path.write_bytes(secret + certificate.public_bytes(serialization.Encoding.PEM))
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(path)

    async def post(trusted: ssl.SSLContext) -> bytes:
        async with Scripted([OK], serving) as server:
            transport = transport_to(server.url, {}, trusted)
            try:
                return (await transport.post(server.url, b"{}")).content
            finally:
                await transport.aclose()

    assert asyncio.run(post(ssl.create_default_context(cafile=str(path)))) == b"ok"
    with pytest.raises(httpx.ConnectError, match="certificate"):
        asyncio.run(post(httpx.create_ssl_context()))


def test_a_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> Scripted:
        async with Scripted([OK]) as proxy:
            monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
            monkeypatch.delenv("no_proxy", raising=False)
            tls = httpx.create_ssl_context()
            url = "http://model.example/v1/chat"
            transport = transport_to(url, {"Authorization": "Bearer k"}, tls)
            assert isinstance(transport, Proxied)
            assert (await transport.post(url, b"{}")).content == b"ok"
            await transport.aclose()
            monkeypatch.setenv("no_proxy", "model.example")
            assert isinstance(transport_to(url, {}, tls), Direct)
            return proxy

    proxy = asyncio.run(main())
    assert proxy.requests[0].startswith(b"POST http://model.example/v1/chat HTTP/1.1\r\n")
    assert b"Bearer k" in proxy.requests[0]

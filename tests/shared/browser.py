"""A real Chromium that tests drive: its own protocol over a WebSocket, no driver to install."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
_FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
    "--disable-background-networking --disable-component-update --remote-debugging-port=0"
)


class Browser:
    """One page of a running Chromium."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._number = 0
        self.complaints: list[str] = []
        """Errors and warnings of the console, and uncaught exceptions."""
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol; return its result."""
        self._number += 1
        asked = {"id": self._number, "method": method, "params": parameters}
        self._socket.send(json.dumps(asked))
        while True:
            answer = json.loads(self._socket.recv(timeout=60))
            self._note(answer)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def _note(self, message: dict[str, Any]) -> None:
        about = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(about["exceptionDetails"]))
        if message.get("method") == "Runtime.consoleAPICalled":
            self.complaints.append(str(about["args"]))
        if message.get("method") == "Log.entryAdded":
            self.complaints.append(str(about["entry"]["text"]))

    def open(self, url: str, *, width: int = 1280, height: int = 1000, dark: bool = False) -> None:
        """Open a page in a window of this size, and wait until it is there."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Page.navigate", url=url)
        self.wait("location.href !== 'about:blank' && document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """Return the value of a JavaScript expression; promises are awaited."""
        asked = {"expression": script, "returnByValue": True, "awaitPromise": True}
        answer = self.call("Runtime.evaluate", **asked)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, script: str, timeout_s: float = 60.0) -> Any:
        """Return the first value of an expression that is true."""
        until = time.monotonic() + timeout_s
        while not (value := self.run(script)):
            assert time.monotonic() < until, f"never true: {script}"
            time.sleep(0.1)
        return value

    def picture(self, path: Path) -> None:
        """Save a picture of the whole page."""
        whole = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(whole["data"]))


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Start a Chromium with an empty profile; end it afterwards."""
    if not CHROMIUM:
        pytest.skip("no Chromium on this machine")
    client = pytest.importorskip("websockets.sync.client", reason="talks to Chromium")
    command = [CHROMIUM, *_FLAGS.split(), f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        port = _port(profile)
        import urllib.request

        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=60) as answer:
            pages = json.loads(answer.read())
        address = next(page["webSocketDebuggerUrl"] for page in pages if page["type"] == "page")
        with client.connect(address, max_size=None, proxy=None) as socket:
            yield Browser(socket)
    finally:
        process.terminate()
        process.communicate(timeout=60)


def _port(profile: Path) -> int:
    """Return the port that Chromium wrote into its profile."""
    until = time.monotonic() + 60
    file = profile / "DevToolsActivePort"
    while time.monotonic() < until:
        if file.exists() and (found := re.match(r"(\d+)\n", file.read_text())):
            return int(found[1])
        time.sleep(0.05)
    raise AssertionError("Chromium did not start")

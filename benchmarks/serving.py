"""How long `/health` of a server takes while clients misbehave, and what they cost it.

    python benchmarks/serving.py [--seconds 10] [--only ATTACK]

Starts `python -m gem serve` on a free port of this machine for each attack. The attackers run in a
process of their own. Prints, for each attack: the median and the longest time of `/health` in
seconds (each on a connection of its own; `none` if 30 s were not enough), how many were refused,
the largest memory and the most threads of the server, and the environments that it counts 3 s after
the attackers have left.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

GAME = "game:GuessTheNumber-v0-easy"
RECIPE = {"id": GAME, "params": {}, "wrappers": []}
GIVE_UP_S = 30.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--only", choices=list(ATTACKS))
    parser.add_argument("--sockets", type=int, default=10_000)
    parser.add_argument("--attack", nargs=2, metavar=("NAME", "PORT"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.attack:
        name, port = arguments.attack
        ATTACKS[name](int(port), arguments)
        return
    print(
        f"{'attack':<16}{'median':>9}{'longest':>9}{'refused':>9}{'MB':>7}{'threads':>9}{'left':>6}"
    )
    for name in [arguments.only] if arguments.only else list(ATTACKS):
        with server() as (process, port):
            print(f"{name:<16}{measured(name, process, port, arguments)}", flush=True)


def measured(name: str, process: Any, port: int, arguments: argparse.Namespace) -> str:
    options = [f"--seconds={arguments.seconds}", f"--sockets={arguments.sockets}"]
    command = [sys.executable, __file__, *options, "--attack", name, str(port)]
    took: list[float] = []
    refused, memory, threads = 0, 0, 0
    attacker = subprocess.Popen(command)
    ends = time.monotonic() + arguments.seconds
    while time.monotonic() < ends:
        began = time.monotonic()
        refused += health(port) != 200
        took.append(time.monotonic() - began)
        status = Path(f"/proc/{process.pid}/status").read_text()
        memory = max(memory, int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) // 1024)
        threads = max(threads, int(re.findall(r"Threads:\s+(\d+)", status)[0]))
        time.sleep(0.05)
    attacker.kill()
    attacker.wait()
    time.sleep(3)
    longest = f"{max(took):.2f}" if max(took) < GIVE_UP_S else "none"
    figures = f"{statistics.median(took):>9.3f}{longest:>9}{refused:>9}{memory:>7}{threads:>9}"
    return f"{figures}{left(port):>6}"


def health(port: int) -> int:
    """Return the status of `/health`, 0 if there is none."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=GIVE_UP_S)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def left(port: int) -> str:
    """Return the number of environments that the server counts."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=GIVE_UP_S) as page:
            return re.findall(r"gem_serve_environments (\d+)", page.read().decode())[0]
    except OSError:
        return "?"


@contextlib.contextmanager
def server() -> Iterator[tuple[Any, int]]:
    command = [sys.executable, "-m", "gem", "serve", "--port", "0", "--max-envs", "1024"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            (port,) = re.findall(r":(\d+)/envs", process.stdout.readline())
            for _ in range(3):
                health(int(port))
            yield process, int(port)
        finally:
            process.kill()


def opened(port: int, path: str) -> Any:
    from websockets.sync.client import connect

    return connect(
        f"ws://127.0.0.1:{port}{path}", proxy=None, max_size=None, compression=None
    ).__enter__()


def repeated(port: int, path: str, text: str, connections: int, arguments: Any) -> None:
    """Send a message on several connections, again and again, also if they are closed."""
    from concurrent.futures import ThreadPoolExecutor

    def one(_: int) -> None:
        ends = time.monotonic() + arguments.seconds
        while time.monotonic() < ends:
            with contextlib.suppress(Exception):
                client = opened(port, path)
                while time.monotonic() < ends:
                    client.send(text)
                    client.recv(timeout=5)

    with ThreadPoolExecutor(connections) as threads:
        list(threads.map(one, range(connections)))


def frames(port: int, arguments: Any) -> None:
    text = json.dumps([["open", 0, RECIPE, None, None], *[["step", 0, "x"]] * 300_000])
    repeated(port, "/batch", text, 4, arguments)


def dense(port: int, arguments: Any) -> None:
    text = json.dumps({"type": "step", "data": {"text": "x", "y": [[]] * 1_500_000}})
    repeated(port, f"/envs/{GAME}/ws", text, 4, arguments)


def opens(port: int, arguments: Any) -> None:
    requests = [["open", 0, RECIPE, None, None], ["load", 0]]
    repeated(port, "/batch", json.dumps(requests), 8, arguments)


def many(port: int, arguments: Any) -> None:
    repeated(port, "/batch", json.dumps([["load", 7]] * 1000), 32, arguments)


def unread(port: int, arguments: Any) -> None:
    """Clients that send calls and never read."""
    clients = []
    for _ in range(8):
        client = opened(port, "/batch")
        raw = client.socket
        client.send(json.dumps([["open", 0, RECIPE, None, None]]))
        raw.setblocking(False)
        clients.append(client)
    frame = json.dumps([["reset", 0, 1, {}]]).encode()
    head = bytes([0x81, 0x80 | len(frame), 0, 0, 0, 0])
    ends = time.monotonic() + arguments.seconds
    while time.monotonic() < ends:
        for client in clients:
            with contextlib.suppress(OSError):
                client.socket.send((head + frame) * 50)
        time.sleep(0.001)


def silent(port: int, arguments: Any) -> None:
    """Sockets that never say anything."""
    held = []
    ends = time.monotonic() + arguments.seconds
    for _ in range(arguments.sockets):
        with contextlib.suppress(OSError):
            held.append(socket.create_connection(("127.0.0.1", port), timeout=2))
        if time.monotonic() > ends:
            break
    time.sleep(max(0.0, ends - time.monotonic()))


def bodies(port: int, arguments: Any) -> None:
    """Requests whose bodies never come."""
    head = f"POST /envs/{GAME}/reset HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n".encode()
    held = []
    ends = time.monotonic() + arguments.seconds
    for _ in range(arguments.sockets // 5):
        with contextlib.suppress(OSError):
            held.append(socket.create_connection(("127.0.0.1", port), timeout=2))
            held[-1].sendall(head)
        if time.monotonic() > ends:
            break
    time.sleep(max(0.0, ends - time.monotonic()))


def quiet(port: int, arguments: Any) -> None:
    time.sleep(arguments.seconds)


ATTACKS = {
    "none": quiet,
    "5 MB frames": frames,
    "dense JSON": dense,
    "opened again": opens,
    "1,000 requests": many,
    "never read": unread,
    "silent sockets": silent,
    "no bodies": bodies,
}

if __name__ == "__main__":
    os.environ.pop("GEM_SERVE_TOKEN", None)
    main()

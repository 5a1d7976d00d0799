"""Evaluation: what `gem eval` costs beside a server that answers in 50 ms, and inspect-ai likewise.

python benchmarks/evaluation.py [--quick] [--memory] [--inspect PYTHON] [--concurrency N ...]

The server is a process of its own and answers after 50 ms, however many ask at a time. All episodes
have ten turns of GuessTheNumber. Each row is a process of its own:

- gem eval: over HTTP, as the command does, with its record; at several concurrencies.
- gem eval, no server: the model is a pause of 50 ms in the same process.
- inspect-ai, no server: the same environment (`gem_eval.inspect`) and pause in inspect-ai, with its
  log, in the interpreter of `make env-inspect`; left out where that was not made.
- --memory: gem eval plays 50,000 episodes; its memory (RSS) on the way and its peak,
  that of the metrics at the end included.

Columns: turns a second; their share of what 50 ms a turn allow; CPU time of the process and of the
server for a turn; how many cores other work on the machine used meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vector_work import TICK_S, Span, stat

ROOT = Path(__file__).resolve().parents[1]
INSPECT = ROOT / ".venvs" / "inspect" / "bin" / "python"
ENV = "gem:game:GuessTheNumber-v0?format_error_ends=false"
TURNS, WAIT_S = 10, 0.05
REPLY = "I guess \\boxed{0}"  # never right: all episodes have the same number of turns
MEMORY_EPISODES, MEMORY_CONCURRENCY = 50_000, 512


# The server


class Answering(asyncio.Protocol):
    """Answers every request of a connection after a while; reads no more of it than its length."""

    def __init__(self, wait_s: float) -> None:
        message = {"role": "assistant", "content": REPLY}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105}
        self.reply = self.response({"choices": [choice], "usage": usage})
        self.models = self.response({"data": [{"id": "m"}]})
        self.wait_s, self.buffer = wait_s, b""

    @staticmethod
    def response(data: dict[str, Any]) -> bytes:
        body = json.dumps(data).encode()
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        return head % len(body) + body

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, end, body = self.buffer.partition(b"\r\n\r\n")
        if not end:
            return
        if head.startswith(b"GET"):
            self.buffer = b""
            self.transport.write(self.models)
            return
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(body) >= length:
            self.buffer = body[length:]
            asyncio.get_running_loop().call_later(self.wait_s, self.transport.write, self.reply)


async def serve(wait_s: float) -> None:
    """Print the port and answer until the process is ended."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Answering(wait_s), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def server(wait_s: float) -> Iterator[tuple[str, int]]:
    """Run the server; yield the URL of its API and its process id."""
    command = [sys.executable, __file__, "serve", str(wait_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1", process.pid
        finally:
            process.terminate()


# What plays, each in a process of its own


def gem_eval(folder: Path, concurrency: int, episodes: int, url: str | None) -> dict[str, float]:
    """Play as the command does; return the memory on the way, in MB."""
    from gem_eval.client import ChatClient, Reply
    from gem_eval.episode import play
    from gem_eval.players import ModelPlayer
    from gem_eval.runner import Limits, evaluate
    from gem_eval.server import Server
    from gem_eval.tasks import parse_tasks

    class Pause:
        async def reply(self, messages: Sequence[Any], tools: Sequence[Any] = ()) -> Reply:
            await asyncio.sleep(WAIT_S)
            return Reply(REPLY, "stop", {"prompt_tokens": 100, "reply_tokens": 5})

    asked = Pause() if url is None else ChatClient(Server(url, "m", concurrency=concurrency))
    player = ModelPlayer(asked)
    memory: dict[str, float] = {}
    played = 0

    def watch(_: object) -> None:
        nonlocal played
        played += 1
        if played % max(1, episodes // 10) == 0:
            memory[str(played)] = rss_mb()

    evaluate(
        folder,
        parse_tasks([ENV], episodes=episodes, seed=0),
        lambda each, **how: play(each, player, **how),
        about={"settings": {}, "versions": {}},
        limits=Limits(concurrency=concurrency),
        watch=watch,
    )
    return {**memory, "peak": rss_mb("VmHWM")}


def inspect_ai(folder: Path, concurrency: int, episodes: int) -> dict[str, float]:
    """Play in inspect-ai, all of whose limits are the concurrency."""
    from inspect_ai import eval as run
    from inspect_ai.model import ModelAPI, ModelOutput, ModelUsage, modelapi

    @modelapi(name="pause")
    class Pause(ModelAPI):
        def max_connections(self) -> int:
            return concurrency

        async def generate(self, *_: object, **__: object) -> ModelOutput:
            await asyncio.sleep(WAIT_S)
            output = ModelOutput.from_content("m", REPLY)
            output.usage = ModelUsage(input_tokens=100, output_tokens=5, total_tokens=105)
            return output

    [log] = run(
        "gem_eval/env",
        task_args={"id": ENV, "n": episodes},
        model="pause/m",
        log_dir=str(folder),
        display="none",
        max_samples=concurrency,
        max_connections=concurrency,
    )
    assert log.status == "success", log.error
    return {}


def rss_mb(which: str = "VmRSS") -> float:
    """Return the resident memory of this process, or its peak (`VmHWM`)."""
    text = Path("/proc/self/status").read_text().partition(f"{which}:")[2]
    return int(text.split()[0]) * 1024 / 1e6


def measure(who: str, concurrency: int, episodes: int, url: str | None) -> None:
    """Play once to load everything, then measure; print what was found."""
    import logging

    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        for name, number in (("first", min(8, episodes)), ("then", episodes)):
            span = Span()
            where = Path(folder, name)
            if who == "inspect":
                memory = inspect_ai(where, min(concurrency, number), number)
            else:
                memory = gem_eval(where, min(concurrency, number), number, url)
            took, used, others = span.end()
    print(json.dumps({"took": took, "cpu": used, "others": others, "memory": memory}))


# The table


def show(
    title: str, who: str, concurrency: int, episodes: int, python: str | Path, http: bool
) -> dict[str, Any]:
    """Measure a row and print it."""
    with server(WAIT_S) as (url, pid):
        before = server_s(pid)
        words = [python, __file__, "measure", who, concurrency, episodes, url if http else "none"]
        done = subprocess.run([*map(str, words)], stdout=subprocess.PIPE, text=True, check=True)
        spent = server_s(pid) - before
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    turns = TURNS * episodes
    rate, ideal = turns / found["took"], min(concurrency, episodes) / WAIT_S
    print(
        f"{title:24}{concurrency:12}{rate:10,.0f}{rate / ideal:8.1%}"
        f"{1000 * found['cpu'] / turns:10.3f}"
        f"{(f'{1000 * spent / turns:.3f}' if http else '-'):>10}{found['others']:8.1f}",
        flush=True,
    )
    return found


def server_s(pid: int) -> float:
    """Return the CPU time of the server so far."""
    return TICK_S * sum(int(ticks) for ticks in stat(pid)[11:13])


def main(argv: Sequence[str]) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few episodes: does it run?")
    parser.add_argument("--memory", action="store_true", help="50,000 episodes, minutes")
    parser.add_argument("--inspect", type=Path, default=INSPECT, metavar="PYTHON")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[16, 64, 512])
    args = parser.parse_args(argv)
    waves = 1 if args.quick else 6
    many = [2] if args.quick else args.concurrency
    print(
        f"{'':24}{'concurrency':>12}{'turns/s':>10}{'ideal':>8}{'CPU ms':>10}{'server':>10}"
        f"{'others':>8}"
    )
    for n in many:
        show("gem eval", "gem", n, n * waves, sys.executable, http=True)
    for n in many:
        show("gem eval, no server", "gem", n, n * waves, sys.executable, http=False)
    if args.inspect.exists():
        for n in many:
            show("inspect-ai, no server", "inspect", n, n, args.inspect, http=False)
    else:
        print(f"inspect-ai: {args.inspect} is not there; make env-inspect")
    if args.memory:
        number = 200 if args.quick else MEMORY_EPISODES
        found = show("memory", "gem", MEMORY_CONCURRENCY, number, sys.executable, http=True)
        print("MB after episodes:", {k: round(v) for k, v in found["memory"].items()})


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        asyncio.run(serve(float(sys.argv[2])))
    elif sys.argv[1:2] == ["measure"]:
        name, concurrency, episodes, url = sys.argv[2:]
        measure(name, int(concurrency), int(episodes), None if url == "none" else url)
    else:
        main(sys.argv[1:])

"""Local servers as context managers: started on entry, killed on exit."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPException
from pathlib import Path

from gem.fetching import fetched
from gem_cpu.platforms import engine_server
from gem_train.processes import free_port

START_TIMEOUT_S = 60.0
MODEL_TIMEOUT_S = 420.0
_POLL_S = 0.1


class ServerError(RuntimeError):
    """A server did not start; the message has the end of its standard error."""


@contextmanager
def time_server() -> Iterator[str]:
    """Run the MCP server of times and dates; yields its address.

    Raises:
        ServerError: The server ended at once, or does not listen after `START_TIMEOUT_S`.
    """
    port = free_port()
    command = [sys.executable, "-m", "gem_cpu.time_server", "--port", str(port)]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace"
    )
    try:
        _wait_for(process, port)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.communicate()


@contextmanager
def model_server(
    engine: str, python: Path, model: str, *, context_tokens: int = 1024
) -> Iterator[str]:
    """Run an engine's own OpenAI-compatible server; yields the URL of its API.

    The model is called `m`, by transformers as its folder; weights and arithmetic are fp32.

    Args:
        engine: `vllm`, `sglang` or `transformers`.
        python: Interpreter of an environment that has it: verl's has all but SGLang, RL2's that.
        model: Folder of the model.
        context_tokens: Most tokens of prompt and reply.

    Raises:
        ServerError: The server ended, or does not answer after `MODEL_TIMEOUT_S`.
    """
    port = free_port()
    shared = ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"]
    if engine == "transformers":
        command = ["transformers.cli.transformers", "serve", *shared, "--device", "cpu", model]
    elif engine == "vllm":
        command = ["vllm.entrypoints.openai.api_server", "--model", model, *shared]
        command += ["--served-model-name", "m"]
        command += ["--max-model-len", str(context_tokens), "--max-num-seqs", "16"]
        # Chunked prefill rewinds the generators of seeded requests, which is impossible on a CPU.
        command += ["--enforce-eager", "--no-enable-chunked-prefill"]
        command += ["--max-num-batched-tokens", str(max(4096, context_tokens))]
    else:
        command = ["sglang.launch_server", "--model-path", model, *shared]
        command += ["--served-model-name", "m", "--context-length", str(context_tokens)]
        command += ["--device", "cpu"]
        command += ["--attention-backend", "torch_native", "--sampling-backend", "pytorch"]
        command += ["--disable-overlap-schedule", "--skip-server-warmup"]
        command += ["--max-total-tokens", "65536", "--max-running-requests", "16"]
    env = {**os.environ, **engine_server(engine)}
    env.pop("CUDA_VISIBLE_DEVICES", None)
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [str(python), "-m", *command], env=env, stdout=log, stderr=log, start_new_session=True
        )
        try:
            _wait_until_healthy(process, f"http://127.0.0.1:{port}/health")
            yield f"http://127.0.0.1:{port}/v1"
        except ServerError as error:
            log.seek(0)
            told = log.read().decode(errors="replace")[-3000:]
            raise ServerError(f"{engine}: {error}:\n{told}") from None
        finally:
            # Its engine is a process of its own.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_until_healthy(process: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + MODEL_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ServerError(f"the server ended with status {process.returncode}")
        try:
            fetched(url, 5)
            return
        except (OSError, HTTPException):
            time.sleep(1)
    raise ServerError(f"{url} does not answer after {MODEL_TIMEOUT_S:g} s")


def _wait_for(process: subprocess.Popen[str], port: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ServerError(f"the server ended: {(process.communicate()[1] or '')[-2000:]}")
        with closing(socket.socket()) as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(_POLL_S)
    raise ServerError(f"no server listens at port {port} after {START_TIMEOUT_S:g} s")

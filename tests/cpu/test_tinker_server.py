"""A Tinker server of one's own: started, watched and stopped around a command.

A small HTTP server stands for SkyRL's here; tests/tinker/test_real_runs.py starts the real one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from gem_cpu import tinker_server
from gem_cpu.tinker_server import Options, ServerError, initial_adapter, running, supervise

FAKE = """
import http.server, os, sys
if "broken" in sys.argv[sys.argv.index("--base-model") + 1]:
    sys.exit("no such model")

class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/die":
            os._exit(7)
        self.send_response(200)
        self.end_headers()

port = int(sys.argv[sys.argv.index("--port") + 1])
print("listening", os.environ["JAX_PLATFORMS"], os.environ["GEM_TINKER_BUCKET"], flush=True)
http.server.HTTPServer(("127.0.0.1", port), Answer).serve_forever()
"""


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """An interpreter that starts the stand-in whatever module it is asked for."""
    (tmp_path / "fake.py").write_text(FAKE)
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} {tmp_path / "fake.py"} "$@"\n')
    script.chmod(0o755)
    return script


def launch(python: Path, *command: str, model: str = "m") -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "gem_cpu.tinker_server", "--model", model]
    return subprocess.run(
        [*words, "--python", str(python), "--", *command],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_command_finds_the_server_and_its_status_is_passed_on(python: Path) -> None:
    look = (
        "import os, sys, urllib.request; url = os.environ['TINKER_BASE_URL']; "
        "assert os.environ['TINKER_API_KEY'].startswith('tml-'); "
        "urllib.request.urlopen(url + '/api/v1/healthz'); print(url); sys.exit(5)"
    )
    done = launch(python, sys.executable, "-c", look)
    assert done.returncode == 5, done.stderr
    port = done.stdout.strip().rpartition(":")[2]
    again = subprocess.run(
        [sys.executable, "-c", f"import socket; socket.create_connection(('127.0.0.1', {port}))"],
        capture_output=True,
        check=False,
    )
    assert again.returncode != 0, "the server is still there"


def test_the_server_is_told_how_to_run(python: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with running(Options(Path("m"), bucket=96), python, state) as server:
        assert server.log.read_text().split()[:3] == ["listening", "cpu", "96"]


def test_a_server_that_does_not_start_says_why(python: Path) -> None:
    done = launch(python, "true", model="broken")
    assert done.returncode == 3
    assert "no such model" in done.stderr


def test_a_command_ends_with_its_server(python: Path) -> None:
    kill = (
        "import os, time, urllib.request\n"
        "try: urllib.request.urlopen(os.environ['TINKER_BASE_URL'] + '/die')\n"
        "except OSError: pass\n"
        "time.sleep(600)"
    )
    done = launch(python, sys.executable, "-c", kill)
    assert done.returncode == 3
    assert "ended with status 7" in done.stderr


def test_whoever_ends_the_launcher_ends_everything(python: Path, tmp_path: Path) -> None:
    sign = tmp_path / "sign"
    code = f"import os, time; open({str(sign)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    words = [sys.executable, "-m", "gem_cpu.tinker_server", "--model", "m", "--python", str(python)]
    launcher = subprocess.Popen([*words, "--", sys.executable, "-c", code])
    deadline = time.monotonic() + 60
    while not (sign.exists() and sign.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(60) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(int(sign.read_text()), 0)


def test_a_second_signal_does_not_leave_a_command_behind_that_ignores_the_first(
    python: Path, tmp_path: Path
) -> None:
    sign = tmp_path / "sign"
    code = (
        "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"open({str(sign)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    )
    words = [sys.executable, "-m", "gem_cpu.tinker_server", "--model", "m", "--python", str(python)]
    launcher = subprocess.Popen([*words, "--", sys.executable, "-c", code])
    deadline = time.monotonic() + 60
    while not (sign.exists() and sign.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    command = int(sign.read_text())
    try:
        launcher.send_signal(signal.SIGTERM)
        time.sleep(2)
        assert launcher.poll() is None, "it waits for the command"
        launcher.send_signal(signal.SIGTERM)
        assert launcher.wait(60) == 128 + signal.SIGTERM
        with pytest.raises(ProcessLookupError):
            os.kill(command, 0)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(command, signal.SIGKILL)


def test_a_healthy_server_lets_the_command_finish(python: Path, tmp_path: Path) -> None:
    with running(Options(Path("m")), python, tmp_path / "state") as server:
        assert supervise(["true"], server) == 0
        server.check()
    with pytest.raises(ServerError, match="ended"):
        server.check()


def test_the_oldest_sampler_has_the_initial_adapter(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints" / "model_1" / "sampler_weights"
    folder.mkdir(parents=True)
    for age, name in enumerate(("new", "middle", "old")):
        text = tmp_path / "adapter_model.safetensors"
        text.write_text(name)
        with tarfile.open(folder / f"{name}.tar.gz", "w:gz") as archive:
            archive.add(text, text.name)
        os.utime(folder / f"{name}.tar.gz", (1000 - age, 1000 - age))
    found = initial_adapter(tmp_path, tmp_path / "out")
    assert (found / "adapter_model.safetensors").read_text() == "old"


def test_a_server_that_made_no_sampler_has_no_adapter(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="holds no weights"):
        initial_adapter(tmp_path, tmp_path / "out")


def test_a_missing_environment_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tinker_server.sys, "prefix", str(tmp_path / ".venvs" / "tinker"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ServerError, match="make env-tinker"):
        tinker_server.find_python()

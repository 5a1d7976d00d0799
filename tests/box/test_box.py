"""A box: its shell, its limits, what it keeps commands from, and what lives on in it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gem.errors import BusyMachineError, UnreachableError
from gem_box import OverlayBox, Ran
from gem_box.box import SYSTEM
from gem_box.watching import descendants
from gem_box.within.kernel import CAPABILITIES
from gem_sandbox import Limits


def said(ran: Ran) -> str:
    assert (ran.code, ran.limit_hit) == (0, None), ran
    return ran.output.decode()


def test_the_shell_keeps_folder_variables_and_functions(box: OverlayBox) -> None:
    box.run('cd /tmp; x=3; export Y=4; f() { echo "f $x $Y"; }', 10)
    assert said(box.run("pwd; f; bash -c 'echo $Y'", 10)) == "/tmp\nf 3 4\n4\n"


def test_a_command_ends_while_a_process_in_the_background_holds_its_output(
    box: OverlayBox,
) -> None:
    assert said(box.run("cd /tmp && sleep 1000 & echo begun", 10)) == "begun\n"
    assert "sleep 1000" in said(box.run("jobs", 10))
    assert said(box.run("sleep 1000 | cat & echo $?", 10)) == "0\n"


def test_output_of_the_background_comes_with_a_later_command(box: OverlayBox) -> None:
    box.run("(read line < /tmp/go; echo heard $line) & mkfifo /tmp/go", 10)
    box.run("while ! [ -p /tmp/go ]; do :; done; echo word > /tmp/go", 10)
    assert box.run("wait; echo end", 10).output.decode().endswith("end\n")


@pytest.mark.parametrize(
    ("command", "code", "output"),
    [
        ("false", 1, ""),
        ("echo a; echo b >&2", 0, "a\nb\n"),
        ("cat", 0, ""),
        ("echo 'it''s' \"$HOME\"", 0, "its /root\n"),
        ("cat <<'EOF'\n$x `y` 'z'\nEOF", 0, "$x `y` 'z'\n"),
        ("printf 'ä\\n'", 0, "ä\n"),
        ("kill -9 $BASHPID; echo no", -9, ""),
    ],
)  # fmt: skip
def test_codes_and_output(box: OverlayBox, command: str, code: int, output: str) -> None:
    ran = box.run(command, 10)
    assert (ran.code, ran.output.decode()) == (code, output)
    assert said(box.run("echo still there", 10)) == "still there\n"


@pytest.mark.parametrize("command", ["echo (", "'", "if true", "done", "cat <<EOF"])
def test_a_command_that_is_no_command_is_an_outcome(box: OverlayBox, command: str) -> None:
    box.run(command, 10)
    assert said(box.run("echo still there", 10)) == "still there\n"


@pytest.mark.parametrize(
    ("command", "code"), [("exit 3", 3), ("exec true", 0), ("set -e; false", 1), ("kill -9 $$", -9)]
)
def test_a_shell_that_ends_is_told_and_replaced(box: OverlayBox, command: str, code: int) -> None:
    ran = box.run(f"cd /tmp; {command}", 10)
    assert (ran.code, ran.ended_shell) == (code, True)
    assert said(box.run("pwd", 10)) == "/\n"


def test_a_command_is_refused_that_no_shell_takes(box: OverlayBox) -> None:
    for command in ("a\0b", "x" * 70_000):
        assert box.run(command, 10).code == 2
    assert said(box.run("echo " + "y" * 50_000, 10)) == "y" * 50_000 + "\n"


def test_a_long_command_with_many_quotes_is_run(box: OverlayBox) -> None:
    # In quotes it is longer than what a pipe takes at once.
    text = "'a'\n" * 14_000
    assert len(text) > 55_000
    ran = box.run(f"cat > /tmp/text <<'EOF'\n{text}EOF\nwc -l < /tmp/text", 10)
    assert said(ran) == "14000\n"


def test_a_command_that_got_too_little_time_ends_and_the_next_one_runs(
    box: OverlayBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: object) -> bool:
        raise BusyMachineError("too much else runs")

    box.run("cd /tmp", 10)
    with monkeypatch.context() as patched:
        patched.setattr("gem_box.overlay.watch", busy)
        with pytest.raises(BusyMachineError):
            box.run("sleep 1000", 10)
    assert said(box.run("echo next", 10)) == "next\n"
    assert b"sleep" not in box.run("cat /proc/[0-9]*/cmdline", 10).output


def test_an_answer_that_nobody_waited_for_is_not_that_of_the_next_command(
    box: OverlayBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> tuple[dict[str, object], list[int]]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("gem_box.link.receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            box.execute(["/bin/sh", "-c", "exit 3"], 10)
    with pytest.raises(UnreachableError, match="not started"):
        box.execute(["/bin/sh", "-c", "echo second"], 10)
    box.start()
    assert said(box.execute(["/bin/sh", "-c", "echo third"], 10)) == "third\n"


@pytest.mark.parametrize(
    "command", ["while :; do :; done", "sleep 1000", "kill -STOP $$", "exec 8>&- 9>&-; sleep 1000"]
)
def test_a_command_over_its_time_ends_with_the_shell_and_not_the_background(
    box: OverlayBox, command: str
) -> None:
    box.run("sleep 1234 & cd /tmp", 10)
    ran = box.run(f"sleep 4321 & {command}", 0.3)
    assert (ran.limit_hit, ran.ended_shell) == ("time", True)
    assert said(box.run("pwd", 10)) == "/tmp\n"
    left = said(box.run("cat /proc/*/cmdline | tr '\\0' ' '", 10))
    assert "sleep 1234" in left
    assert "sleep 4321" not in left


def test_long_output_has_head_and_tail_and_a_flood_ends_its_command(box: OverlayBox) -> None:
    box.limits = Limits(output_bytes=1000)
    ran = box.run("seq 100000", 10)
    lines = ran.output.decode().split("\n")
    assert (lines[0], lines[-2], ran.left_out) == ("1", "100000", 588_895 - 1000)
    assert box.run("cat /dev/zero", 60).limit_hit == "output"


def test_memory_of_all_processes_together_is_limited() -> None:
    box = OverlayBox(limits=Limits(memory_mb=200))
    box.start()
    hog = "head -c 150m /dev/zero | tail -c 150m | sleep 1000"
    assert box.run(f"{hog} & {hog}", 60).limit_hit == "memory"
    assert said(box.run("echo still there", 10)) == "still there\n"
    box.close()


def test_a_bomb_of_forks_leaves_a_box_that_answers(box: OverlayBox) -> None:
    box.run("b() { b | b & }; b; sleep 1000", 0.5)
    box.restart()
    assert said(box.run("echo still there", 10)) == "still there\n"


def test_a_full_disk_leaves_room_for_the_tests(tmp_path: Path) -> None:
    box = OverlayBox(limits=Limits(disk_mb=20))
    box.start()
    assert box.run("cat /dev/zero > /tmp/full", 60).code != 0
    (tmp_path / "test.sh").write_text("x" * 100_000)
    box.restart()
    box.put(tmp_path, "/tests", fresh=True)
    assert said(box.run("wc -c < /tests/test.sh", 10)) == "100000\n"
    box.close()


def test_commands_have_few_capabilities_and_gain_none(box: OverlayBox) -> None:
    status = said(box.run("cat /proc/self/status", 10))
    fields = dict(line.split(":\t", 1) for line in status.splitlines())
    kept = sum(1 << number for number in CAPABILITIES.values())
    for name in ("CapPrm", "CapEff", "CapBnd"):
        assert int(fields[name], 16) == kept, name
    assert fields["NoNewPrivs"] == "1"
    ran = box.execute(["/bin/sh", "-c", "grep CapEff /proc/self/status"], 10)
    assert int(ran.output.split()[1], 16) == kept


@pytest.mark.parametrize(
    "attack",
    [
        "unshare -U true", "unshare -m true", "mount -t tmpfs x /mnt", "umount /proc", "chroot /",
        "mknod /tmp/d b 8 0", "touch /usr/x", "echo 1 > /proc/sys/kernel/panic", "hostname x",
        "cat /proc/1/environ", "ls /proc/1/root/", "ls /proc/1/fd", "dmesg",
        "ls /home/*", "ip link add x type dummy", "kill -9 1; kill -0 1 && false",
        "echo 1000 > /proc/1/oom_score_adj", "kill -STOP 1; false", "cat /proc/1/mem",
    ],
)  # fmt: skip
def test_commands_do_not_reach_beyond_the_box(box: OverlayBox, attack: str) -> None:
    assert box.run(attack, 10).code != 0
    assert said(box.run("echo still there", 10)) == "still there\n"


def test_the_network_is_the_box_alone(box: OverlayBox) -> None:
    program = (
        "import socket, threading\n"
        "server = socket.create_server(('127.0.0.1', 80))\n"
        "client = socket.create_connection(server.getsockname())\n"
        "server.accept()[0].send(b'hi'); print(client.recv(9))\n"
        "try: socket.create_connection(('192.0.2.1', 80), 1)\n"
        "except OSError as error: print(error.errno)\n"
    )
    if box.run("python3 --version", 10).code:
        pytest.skip("this machine has no python3 in /usr")
    assert said(box.execute(["/usr/bin/python3", "-c", program], 10)) == "b'hi'\n101\n"


def test_files_go_in_and_out_and_links_are_not_followed(box: OverlayBox, tmp_path: Path) -> None:
    (tmp_path / "in" / "sub").mkdir(parents=True)
    (tmp_path / "in" / "sub" / "file").write_bytes(b"\0content")
    (tmp_path / "in" / "run").write_text("#!/bin/sh\necho ran")
    (tmp_path / "in" / "run").chmod(0o755)
    box.put(tmp_path / "in", "/data/deep")
    box.put(tmp_path / "in" / "run", "/data/other")
    assert (
        said(box.run("/data/deep/run; /data/other; stat -c %u /data/deep/sub", 10))
        == "ran\nran\n0\n"
    )
    box.run("ln -s /etc/passwd /data/link; mkfifo /data/pipe; ln -s deep/sub /data/folder", 10)
    assert box.read("/data/deep/sub/file", 100) == b"\0content"
    assert box.read("/data/deep/sub/file", 3) == b"\0con"
    for name in ("link", "pipe", "folder/file", "deep", "missing"):
        assert box.read(f"/data/{name}", 100) is None, name
    box.get("/data", tmp_path / "out")
    assert (tmp_path / "out" / "deep" / "sub" / "file").read_bytes() == b"\0content"
    assert not (tmp_path / "out" / "link").exists()
    box.get("/data/deep/run", tmp_path / "one")
    assert (tmp_path / "one").read_text() == "#!/bin/sh\necho ran"
    with pytest.raises(FileNotFoundError):
        box.get("/data/missing", tmp_path / "none")


def test_a_fresh_folder_replaces_whatever_a_command_put_there(
    box: OverlayBox, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("ours")
    for trap in (
        "ln -s /tmp/mine /a",
        "mkdir -p /a/b; echo x > /a/b/x",
        "echo x > /a",
        "mkfifo /a",
    ):
        box.run(f"rm -rf /a; mkdir -p /tmp/mine/b; {trap}; ln -s /tmp/mine /a/b", 10)
        box.restart()
        box.put(tmp_path, "/a/b", fresh=True)
        assert said(box.run("ls /a/b; [ ! -L /a ] && [ ! -L /a/b ]", 10)) == "file\n", trap


def test_a_restart_ends_all_processes_and_restores_the_system(box: OverlayBox) -> None:
    box.run(
        "setsid sleep 1000 & echo forged > /etc/passwd; echo kept > /srv/kept; rm -r /etc/hosts", 10
    )
    box.restart(SYSTEM)
    assert "sleep" not in said(box.run("cat /proc/*/comm", 10))
    assert said(box.run("head -c 5 /etc/passwd /etc/hosts | grep -c root; cat /srv/kept", 10))
    assert "forged" not in said(box.run("cat /etc/passwd /etc/hosts", 10))


def test_a_box_leaves_no_process_and_one_that_is_killed_is_gone(box: OverlayBox) -> None:
    box.run("sleep 1000 &", 10)
    pid = box.link.pid
    inside = [pid, *descendants(pid)]
    assert len(inside) >= 3
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(UnreachableError):
        box.run("echo", 10)
        box.run("echo", 10)
    box.close()
    assert not any(Path(f"/proc/{each}").exists() for each in inside)
    box.start()
    assert said(box.run("echo again", 10)) == "again\n"


def test_a_box_ends_with_the_process_that_began_it() -> None:
    program = (
        "from gem_box import OverlayBox\n"
        "box = OverlayBox(); box.start(); box.run('sleep 1000 &', 10)\n"
        "print(box.link.pid, box.link.keeper.pid, flush=True); input()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", program], **pipes) as process:  # type: ignore[call-overload]
        first, keeper = map(int, process.stdout.readline().split())
        descriptors = [os.pidfd_open(pid) for pid in (first, keeper)]
        process.kill()
    for descriptor in descriptors:
        assert select.select([descriptor], [], [], 60)[0]
        os.close(descriptor)


def test_a_forked_process_holds_no_box(box: OverlayBox) -> None:
    box.run("cd /tmp", 10)
    assert box._link is not None
    keeper = os.pidfd_open(box.link.keeper.pid)
    go, goes = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(goes)
        os.read(go, 1)
        os._exit(box._link is not None)
    os.close(go)
    assert said(box.run("pwd", 10)) == "/tmp\n"
    box.close()
    assert select.select([keeper], [], [], 0)[0]
    os.close(goes)
    os.close(keeper)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_process_alone_has_a_limit_of_memory_also_in_the_background() -> None:
    box = OverlayBox(limits=Limits(memory_mb=100))
    box.start()
    assert said(box.run("ulimit -d; ulimit -u", 10)) == f"{100 << 10}\n{box.limits.processes}\n"
    box.close()

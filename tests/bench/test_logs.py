"""What is shown of a failed trainer's log."""

from __future__ import annotations

from pathlib import Path

from gem_bench.logs import explain


def said(path: Path, text: str) -> list[str]:
    path.write_text(text, encoding="utf-8", newline="")
    return explain("it failed", path).splitlines()


def test_the_first_exception_is_shown_when_it_is_far_above_the_end(tmp_path: Path) -> None:
    noise = "\x1b[36m(Driver pid=2)\x1b[0m actor died\n" * 40
    log = "UserWarning: no engine: ImportWarning('x')\n"
    log += "\x1b[36m(Worker pid=1)\x1b[0m ERROR [core.py:3] RuntimeError: head_dim=16 unsupported\n"
    lines = said(tmp_path / "log", log + noise + "pkg.EngineDeadError: see above\n")
    assert "first exception in the log, line 2: RuntimeError: head_dim=16 unsupported" in lines
    assert "  | (Driver pid=2) actor died" in lines
    assert lines[25] == "  | pkg.EngineDeadError: see above"
    assert f"whole log: {tmp_path / 'log'}" in lines


def test_a_short_log_is_shown_whole(tmp_path: Path) -> None:
    lines = said(tmp_path / "log", "starting\n\nValueError: bad\n")
    assert lines[:3] == ["it failed", "  | starting", "  | ValueError: bad"]
    assert not any("first exception" in line for line in lines)


def test_of_a_progress_bar_the_last_state_is_shown(tmp_path: Path) -> None:
    lines = said(tmp_path / "log", "load: 0%\rload: 50%\rload: 100%\r\nKilled")
    assert lines[1:3] == ["  | load: 100%", "  | Killed"]


def test_an_empty_or_missing_log_is_said_to_be_so(tmp_path: Path) -> None:
    assert "  | (the log is empty)" in said(tmp_path / "log", "")
    assert "cannot be read" in explain("it failed", tmp_path / "missing")


def test_of_a_resumed_run_only_the_last_start_is_looked_at(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("ValueError: killed\n")
    began = log.stat().st_size
    with log.open("a") as file:
        file.write("OSError: full\n" + "later\n" * 40)
    lines = explain("it failed", log, after=began).splitlines()
    assert "first exception in the log, line 2: OSError: full" in lines

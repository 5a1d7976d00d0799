"""A run that stops before its end is an error, whatever ended it."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gem.errors import UnfinishedError
from gem_train.ending import to_the_end
from gem_train.record import read_run
from gem_train.recording import RunRecording
from gem_train.testing.golden import golden_batch

PACKAGES = Path(__file__).parents[2] / "packages"
ABOUT = {"trainer": "mine", "versions": {"mine": "1.0"}}


def written(recording: RunRecording, *iterations: int) -> None:
    for iteration in iterations:
        recording.keep_batch(golden_batch())
        recording.write_iteration(iteration)


@pytest.mark.parametrize("code", [(), (0,), (None,), (False,), (256,), (-512,)])
def test_an_exit_with_status_0_is_an_error_that_names_its_place(code: tuple[Any, ...]) -> None:
    def in_the_environment() -> None:
        sys.exit(*code)

    with (
        pytest.raises(UnfinishedError, match=r"after 1 of 3 iterations.*sys\.exit") as error,
        to_the_end(lambda: 1, lambda: 3),
    ):
        in_the_environment()
    assert __file__ in str(error.value)
    assert "in in_the_environment" in str(error.value)


def test_an_exit_after_the_last_iteration_is_an_error_too() -> None:
    # What comes after the iterations, such as the last evaluation, has not been done.
    with pytest.raises(UnfinishedError, match="after 3 of 3"), to_the_end(lambda: 3, lambda: 3):
        sys.exit()


@pytest.mark.parametrize("code", [3, "words"])
def test_an_exit_with_another_status_keeps_it_and_is_told(
    code: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as error, to_the_end(lambda: 1, lambda: 3):
        sys.exit(code)
    assert error.value.code == code
    assert f"after 1 of 3 iterations, because code that runs in it called sys.exit({code!r})" in (
        capsys.readouterr().err
    )


def test_a_loop_that_ends_early_without_an_error_is_one() -> None:
    with (
        pytest.raises(UnfinishedError, match="recorded only 2 of 3 iterations"),
        to_the_end(lambda: 2, lambda: 3),
    ):
        pass
    for done in (3, 4):
        with to_the_end(lambda done=done: done, lambda: 3):
            pass


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, GeneratorExit])
def test_other_ends_stay_what_they_are(error: type[BaseException]) -> None:
    with pytest.raises(error), to_the_end(lambda: 0, lambda: 3):
        raise error


def test_around_an_event_loop_an_exit_in_any_task_is_seen() -> None:
    async def leave() -> None:
        await asyncio.sleep(0)
        sys.exit(0)

    async def main() -> None:
        await asyncio.gather(leave(), asyncio.sleep(10))

    with pytest.raises(UnfinishedError), to_the_end(lambda: 0, lambda: 1):
        asyncio.run(main())


def test_iterations_are_those_of_the_record_and_then_those_of_this_process(tmp_path: Path) -> None:
    first = RunRecording(tmp_path, ABOUT)
    assert first.iterations == 0
    written(first, 0, 1, 2)
    assert first.iterations == 3
    again = RunRecording(tmp_path, ABOUT)
    assert again.iterations == 3
    # It goes on from a checkpoint: what was recorded after it is set aside.
    written(again, 1)
    assert again.iterations == 2
    assert [line["iteration"] for line in read_run(tmp_path).metrics] == [0, 1]


def test_a_run_that_was_complete_may_be_started_again(tmp_path: Path) -> None:
    written(RunRecording(tmp_path, ABOUT), 0, 1)
    with RunRecording(tmp_path, ABOUT).to_the_end(lambda: 2):
        pass
    with pytest.raises(UnfinishedError), RunRecording(tmp_path, ABOUT).to_the_end(lambda: 3):
        pass


def test_without_a_folder_iterations_are_counted_as_well() -> None:
    recording = RunRecording(None, ABOUT)
    with pytest.raises(UnfinishedError, match="1 of 2"), recording.to_the_end(lambda: 2):
        written(recording, 0)
    with RunRecording(None, ABOUT).to_the_end(lambda: 2):
        pass  # it may have gone on with a run that was complete


def test_the_exit_status_of_a_program_is_not_0() -> None:
    program = (
        "import sys\n"
        "from gem_train.ending import to_the_end\n"
        "with to_the_end(lambda: 0, lambda: 3):\n"
        "    sys.exit(0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "the run ended after 0 of 3 iterations" in done.stderr


def test_whatever_records_a_run_demands_all_of_its_iterations() -> None:
    """A package that opens a record of training, such as a new adapter, has the net below it."""
    recording, netted = set(), set()
    for path in PACKAGES.glob("*/src/*/**/*.py"):
        text, package = path.read_text(encoding="utf-8"), path.relative_to(PACKAGES).parts[0]
        if package == "gem-core":
            continue
        if re.search(r"\bRunRecording\($|\bRunRecording\((?!RunRecording)", text, re.MULTILINE):
            recording.add(package)
        if re.search(r"\bto_the_end\(", text):
            netted.add(package)
    assert len(recording) >= 9
    assert recording <= netted

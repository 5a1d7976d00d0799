"""The live page in a real browser: curves grow, episodes appear, what is read stays."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from browser import Browser, browser

from gem_train.record import EPISODES, METRICS, Recorder

MakeRun = Callable[..., Path]
GemBench = Callable[..., "subprocess.Popen[str]"]
ENDS = 'document.querySelector(".panel svg .mean.g0").getAttribute("points").split(" ").length'


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Browser]:
    with browser(tmp_path / "profile") as opened:
        yield opened


@pytest.fixture
def address(gem_bench: GemBench, tmp_path: Path) -> Iterator[str]:
    """Where `gem-bench serve` shows the folder of `make_run`."""
    server = gem_bench("serve", tmp_path / "runs", "--port", "0")
    assert server.stdout is not None
    yield server.stdout.readline().split()[0]
    server.terminate()
    server.communicate(timeout=30)


def grow(folder: Path, iteration: int) -> None:
    """Append an iteration, as the trainer would."""
    Recorder(folder).metrics(iteration, {"success_rate": 1.0, "return_mean": 2.0})
    line = json.loads((folder / EPISODES).read_text().splitlines()[0])
    with (folder / EPISODES).open("a") as file:
        file.write(json.dumps({**line, "iteration": iteration}) + "\n")


def test_curves_grow_and_episodes_appear_while_one_is_read(
    page: Browser, address: str, make_run: MakeRun
) -> None:
    folder = make_run(iterations=4)
    page.open(address)
    assert page.run(ENDS) == 4
    choose = 'document.querySelectorAll("#episode-list [role=option]")[3].click()'
    page.run(choose)
    read = page.run('document.getElementById("episode").innerText')
    page.run('document.getElementById("episode").firstChild.marked = true')
    grow(folder, 4)
    page.wait(f"{ENDS} === 5")
    page.wait('document.querySelector("#episode-list [role=option] span").textContent '
              '=== "iteration 4"')  # fmt: skip
    assert page.run('document.getElementById("episode").innerText') == read
    assert page.run('document.getElementById("episode").firstChild.marked')
    assert "iteration 5/6" in page.run('document.getElementById("cards").innerText')
    assert page.complaints == []


def test_a_run_that_starts_later_appears_and_one_may_be_hidden(
    page: Browser, address: str, make_run: MakeRun
) -> None:
    page.open(address)
    page.wait('document.getElementById("table").innerText.includes("waiting")')
    make_run("verl", iterations=3)
    page.wait('document.querySelectorAll("#legend button").length === 1')
    make_run("reference", iterations=3)
    page.wait('document.querySelectorAll("#legend button").length === 2')
    page.wait('document.querySelectorAll("#episode-list .g1").length > 0')
    names = 'document.getElementById("legend").innerText'
    assert page.run(names).split() == ["reference", "verl"]
    assert page.run('document.querySelectorAll(".panel:not([hidden])").length') == 4
    page.run('document.querySelectorAll("#legend button")[1].click()')
    assert page.run('document.querySelector(".panel svg").querySelectorAll(".mean").length') == 1
    assert page.complaints == []


def test_what_was_chosen_stays_when_data_come(
    page: Browser, address: str, make_run: MakeRun
) -> None:
    folder = make_run(iterations=4)
    page.open(address)
    page.run(
        """(() => {
        document.querySelectorAll("#axis button")[1].click();
        const outcome = document.getElementById("episode-iteration");
        outcome.value = "train 2"; outcome.dispatchEvent(new Event("change"));
        const metric = document.querySelector(".panel select");
        metric.value = "grad_norm"; metric.dispatchEvent(new Event("change"));
        const svg = document.querySelector(".panel svg"), box = svg.getBoundingClientRect();
        svg.dispatchEvent(new PointerEvent("pointermove", {clientX: box.left + 200}));
        })()"""
    )
    assert not page.run('document.getElementById("tooltip").hidden')
    grow(folder, 4)
    page.wait(f"{ENDS} === 5")
    state = page.run(
        """[document.querySelector("#axis [aria-pressed=true]").textContent,
            document.getElementById("episode-iteration").value,
            document.querySelector(".panel select").value,
            document.getElementById("tooltip").hidden]"""
    )
    assert state == ["Tokens", "train 2", "grad_norm", False]
    assert page.complaints == []


def test_a_resumed_run_loses_what_it_does_again(
    page: Browser, address: str, make_run: MakeRun
) -> None:
    folder = make_run(iterations=6)
    page.open(address)
    assert page.run(ENDS) == 6
    Recorder(folder).rewind(2)
    page.wait(f"{ENDS} === 2")
    first = 'document.querySelector("#episode-list [role=option] span").textContent'
    page.wait(f'{first} === "iteration 1" || '
              'document.querySelectorAll("#episode-list [role=option]").length === 17')  # fmt: skip
    assert page.complaints == []


def test_damage_is_shown_and_the_end_of_the_server_is_told(
    page: Browser, gem_bench: GemBench, make_run: MakeRun
) -> None:
    folder = make_run(iterations=4)
    server = gem_bench("serve", folder, "--port", "0")
    assert server.stdout is not None
    page.open(server.stdout.readline().split()[0])
    with (folder / METRICS).open("a") as file:
        file.write("{broken\n")
    page.wait('document.getElementById("table").innerText.includes("line 5 is damaged")')
    server.terminate()
    server.communicate(timeout=30)
    page.wait('document.getElementById("live").innerText.startsWith("No new data")')
    assert page.run(ENDS) == 4


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_fits_the_window(
    page: Browser, address: str, make_run: MakeRun, width: int, dark: bool
) -> None:
    make_run()
    make_run("verl", env="game:Wordle-v0-with-a-long-name-that-needs-room")
    page.open(address, width=width, dark=dark)
    page.wait('document.querySelectorAll(".panel svg .mean").length > 0')
    assert page.run("document.documentElement.scrollWidth - innerWidth") <= 0
    # A wide page may scroll a wide table; a narrow one shows it as a list.
    cells = "" if width > 560 else "td, tbody th, "
    inside = f"""[...document.querySelectorAll("{cells}.card, .panel")].every((e) => {{
        const box = e.getBoundingClientRect();
        return box.width === 0 || (box.left >= 0 && box.right <= innerWidth);
    }})"""
    assert page.run(inside)
    # Texts of curves keep their size.
    drawn = 'document.querySelector(".panel svg text").getBoundingClientRect().height'
    assert page.run(drawn) >= 9
    colour = "getComputedStyle(document.body).backgroundColor"
    assert (page.run(colour) == "rgb(13, 17, 23)") == dark

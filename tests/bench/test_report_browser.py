"""The report in a real browser: both curves are drawn, controls work, nothing is complained of."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from gem.tasks import Task
from gem.trajectory import Failure, Trajectory, Turn
from gem_bench import evaluations
from gem_bench.evaluations import Evaluation
from gem_bench.plot import drawing, ticks
from gem_bench.report import report
from gem_bench.series import load_runs
from gem_train.record import Recorder

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
    "--disable-background-networking --disable-component-update --enable-logging=stderr "
    "--virtual-time-budget=5000 --window-size=1300,1000 --dump-dom"
)
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no Chromium on this machine")


@pytest.fixture
def browse(tmp_path: Path) -> Callable[..., tuple[dict[str, Any], list[str]]]:
    """Opens HTML, runs a script in it; returns what the script returns and all console lines."""

    def open_page(html: str, script: str) -> tuple[dict[str, Any], list[str]]:
        probe = (
            "<script>const out = document.createElement('pre'); out.id = 'probe';"
            f"out.textContent = JSON.stringify((() => {{ {script} }})());"
            "document.body.append(out);</script></body>"
        )
        page = tmp_path / "page.html"
        page.write_text(html.replace("</body>", probe), encoding="utf-8")
        done = subprocess.run(
            [CHROMIUM, *FLAGS.split(), f"--user-data-dir={tmp_path / 'profile'}", page.as_uri()],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        found = re.search(r'<pre id="probe">(.*?)</pre>', done.stdout, re.DOTALL)
        console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        assert found is not None, f"the script did not run: {console}"
        return json.loads(unescape(found[1])), console

    return open_page


@pytest.fixture
def html(make_run: Callable[..., Path]) -> str:
    """The report of two trainers with two seeds each."""
    folders = [make_run(t, seed=seed) for t in ("reference", "verl") for seed in range(2)]
    return report(load_runs(folders))


def test_both_curves_are_drawn_and_the_console_stays_empty(browse: Any, html: str) -> None:
    result, console = browse(
        html,
        """
        const panel = document.querySelector(".panel svg");
        const box = panel.getBoundingClientRect();
        return {
            means: [...panel.querySelectorAll(".mean")].map(
                (line) => ({group: line.classList[1], width: line.getBoundingClientRect().width})),
            bands: panel.querySelectorAll(".band").length,
            width: box.width,
            label: panel.getAttribute("aria-label"),
            panels: document.querySelectorAll(".panel:not([hidden])").length,
            overflow: document.documentElement.scrollWidth - innerWidth,
            uneven: document.getElementById("curve-hint").textContent.includes("reach a point"),
        };
        """,
    )
    assert console == []
    assert [mean["group"] for mean in result["means"]] == ["g0", "g1"]
    assert all(mean["width"] > 0.8 * result["width"] for mean in result["means"])
    assert result["bands"] == 2
    assert result["panels"] == 4
    assert not result["uneven"]
    assert "reference: " in result["label"]
    assert result["overflow"] <= 0


def test_a_run_that_ended_early_does_not_cut_the_curve_of_the_others(
    browse: Any, tmp_path: Path
) -> None:
    for seed, length in enumerate((100, 61, 1)):
        recorder = Recorder(tmp_path / str(seed))
        recorder.start({"trainer": "reference", "spec": {"name": "x", "seed": seed}})
        for iteration in range(length):
            values = {"success_rate": 0.2 * seed, "sampled_tokens": 100.0, "episodes": 8.0}
            recorder.metrics(iteration, values)
    html = report(load_runs([tmp_path / str(seed) for seed in range(3)]), window=1)
    result, console = browse(
        html,
        """
        const found = {hint: document.getElementById("curve-hint").textContent};
        for (const [axis, unit] of [[0, 1], [1, 100]]) {
            document.querySelectorAll("#axis button")[axis].click();
            const {mean, band} = panels[0].drawings[0];
            const at = (low, high) => [...new Set(
                mean.filter(([x]) => x > low * unit && x <= high * unit).map(([, y]) => +y.toFixed(9)))];
            found[axis] = {end: panels[0].end / unit, first: at(-1, 0), shared: at(0, 60), last: at(60, 99),
                band: band.at(-1)[0] / unit, bands: document.querySelectorAll(".panel .band").length > 0};
        }
        panels[0].mark(panels[0].end);
        return found;
        """,  # noqa: E501
    )
    assert console == []
    assert "mean and band are of the runs that reach a point" in result.pop("hint")
    for axis in result.values():
        assert axis.pop("band") == pytest.approx(60, abs=1)
        assert axis == {"end": 99, "first": [0.2], "shared": [0.1], "last": [0.0], "bands": True}


def test_landmarks_are_drawn_where_training_succeeds_or_not(
    browse: Any, make_run: Callable[..., Path]
) -> None:
    folder = make_run(names=("a", "b"))
    meta = json.loads((folder / "run.json").read_text())
    meta["spec"]["landmarks"] = {"random": 0.34, "oracle": 1.0}
    (folder / "run.json").write_text(json.dumps(meta))
    result, console = browse(
        report(load_runs([folder])),
        """
        const panels = [...document.querySelectorAll(".panel svg")];
        const texts = () => panels.map((svg) => [...svg.querySelectorAll("text.landmark")].map((t) => t.textContent));
        const first = texts(), label = panels[0].getAttribute("aria-label");
        const ys = [...panels[0].querySelectorAll("line.landmark")].map((l) => +l.getAttribute("y1"));
        const split = document.getElementById("split");
        split.value = "env:a"; split.dispatchEvent(new Event("change"));
        return {first, label, ys, later: texts().flat()};
        """,  # noqa: E501
    )
    assert console == []
    assert result["first"][0] == ["random 0.34", "oracle 1"]
    assert not any(result["first"][1:])
    assert result["ys"][0] > result["ys"][1] > 0
    assert result["label"].endswith("random: 0.34; oracle: 1")
    assert result["later"] == []


def test_pointing_at_a_panel_shows_the_values_of_both_trainers(browse: Any, html: str) -> None:
    result, console = browse(
        html,
        """
        const panel = document.querySelector(".panel svg"), box = panel.getBoundingClientRect();
        panel.dispatchEvent(new PointerEvent("pointermove",
            {clientX: box.left + box.width / 2, clientY: box.top + 50, bubbles: true}));
        const tip = document.getElementById("tooltip");
        const text = [...tip.children].map((line) => line.textContent), hidden = tip.hidden;
        panel.dispatchEvent(new PointerEvent("pointerleave"));
        return {text, hidden, after: tip.hidden};
        """,
    )
    assert console == []
    assert not result["hidden"]
    assert result["text"][0].startswith("iteration ")
    assert re.fullmatch(r"reference  0\.\d+  \[\S+, \S+\]", result["text"][1])
    assert result["text"][2].startswith("verl  0.")
    assert result["after"]


def test_axis_smoothing_and_legend_redraw_the_curves(browse: Any, html: str) -> None:
    result, console = browse(
        html,
        """
        const points = () => document.querySelector(".panel .mean").getAttribute("points");
        const seen = [points()];
        const slider = document.getElementById("smoothing");
        slider.value = 1; slider.dispatchEvent(new Event("input"));
        seen.push(points());
        document.querySelectorAll("#axis button")[1].click();
        seen.push(points());
        document.querySelector("#legend button").click();
        const left = [...document.querySelector(".panel svg").querySelectorAll(".mean")];
        return {seen, left: left.map((line) => line.classList[1])};
        """,
    )
    assert console == []
    assert len(set(result["seen"])) == 3
    assert result["left"] == ["g1"]


def test_episodes_are_filtered_and_coloured_by_advantage(browse: Any, html: str) -> None:
    result, console = browse(
        html,
        """
        const choose = (id, value) => {
            const select = document.getElementById(id);
            select.value = value;
            select.dispatchEvent(new Event("change"));
        };
        const options = () => [...document.querySelectorAll("#episode-list [role=option]")];
        const all = options().length;
        choose("episode-run", "1.0");
        choose("episode-outcome", "success");
        const verdict = (o) => o.querySelector(".won, .lost").textContent;
        const verdicts = [...new Set(options().map(verdict))];
        const token = document.querySelector("#episode .act");
        const colour = getComputedStyle(token).backgroundColor;
        const spans = [...document.querySelectorAll("#episode .tokens span")];
        const text = spans.map((s) => s.textContent);
        choose("episode-colour", "mask");
        const plain = getComputedStyle(document.querySelector("#episode .act")).backgroundColor;
        return {all, some: options().length, verdicts, colour, plain, text: text.join(""),
                title: token.title, heading: document.querySelector("#episode h3").textContent};
        """,
    )
    assert console == []
    assert 0 < result["some"] < result["all"]
    assert result["verdicts"] == ["success"]
    assert result["heading"].startswith("verl, seed 0")
    assert result["colour"] != result["plain"]
    assert "mask 1" in result["title"]
    assert "advantage 0.500" in result["title"]
    assert "Guess a number from 1 to 10.<|im_end|>" in result["text"]


@pytest.fixture
def evaluated(tmp_path: Path) -> str:
    """The report of an evaluation in two environments, with a void episode."""
    recorder = Recorder(tmp_path / "run")
    recorder.start({"kind": "evaluation", "trainer": "m", "parts": ["eval:x", "eval:y"]})
    outcomes = (("x", True), ("x", False), ("y", False), ("y", None))
    for sample, (env_id, success) in enumerate(outcomes):
        end = "terminated" if success else "truncated"
        turn = Turn(
            "ask", [], True, [], None, "say", 0.0, True, False, "stop", {"success": success}
        )
        episode = Trajectory(Task(env_id, 3), [turn], end=end)
        if success is None:
            episode = Trajectory(
                Task(env_id, 4), end="failed", failure=Failure("engine", "gone", 1)
            )
        notes = [{"sample": sample, "calls": [{"reasoning": "hm"}]}]
        recorder.episodes(0, [episode], split=f"eval:{env_id}", notes=notes)
    table = evaluations.Table("m", [["environment", "success"], ["x", "0.5"]], ["a remark"])
    return evaluations.report([Evaluation(tmp_path / "run", "m", None, [])], [table])


def test_episodes_of_an_evaluation_are_filtered_by_environment_outcome_and_end(
    browse: Any, evaluated: str
) -> None:
    result, console = browse(
        evaluated,
        """
        const choose = (id, value) => {
            const select = document.getElementById(id);
            select.value = value;
            select.dispatchEvent(new Event("change"));
        };
        const count = () => document.querySelectorAll("#episode-list [role=option]").length;
        const found = {all: count(), thought: document.querySelector("#episode details").innerText};
        choose("episode-outcome", "failure"); found.failure = count();
        choose("episode-env", "y"); found.both = count();
        choose("episode-outcome", "void"); found.void = count();
        found.text = document.getElementById("episode").innerText;
        choose("episode-outcome", ""); choose("episode-env", "");
        choose("episode-end", "truncated"); found.end = count();
        const shown = (id) => document.getElementById(id).getClientRects().length > 0;
        const hidden = ["curves", "parity", "episode-iteration", "episode-colour", "scale"];
        return {...found, hidden: hidden.filter(shown)};
        """,
    )
    assert console == []
    assert result.pop("text").endswith("ended: failed: engine: gone")
    assert result == {
        "all": 4, "thought": "reasoning", "failure": 2, "both": 1, "void": 1, "end": 2,
        "hidden": [],
    }  # fmt: skip


def test_characters_that_span_tokens_are_shown_whole(browse: Any, html: str) -> None:
    result, _ = browse(
        html,
        """
        const arrow = pieces([226, 134, 145], data.vocabularies[0]);
        return {text: document.body.innerText, arrow};
        """,
    )
    assert result["arrow"] == [{"text": "↑", "ids": [226, 134, 145], "from": 0}]
    assert "�" not in result["text"]


def test_report_and_picture_have_the_same_ticks(browse: Any, html: str) -> None:
    ranges = [(0, 1), (-0.13, 0.97), (0, 12_345_678), (2, 2), (0, 0), (-2.0000000000000004, -2)]
    result, _ = browse(html, f"return {json.dumps(ranges)}.map(([a, b]) => ticks(a, b, 6));")
    for (low, high), drawn in zip(ranges, result, strict=True):
        assert drawn == pytest.approx(ticks(low, high))


def test_report_and_picture_have_the_same_bands(browse: Any, make_run: Callable[..., Path]) -> None:
    groups = load_runs([make_run(seed=seed, skill=0.02 + 0.03 * seed) for seed in range(3)])
    metrics = ("success_rate", "return_mean", "turns_mean")
    result, _ = browse(
        report(groups, window=4),
        f"return {json.dumps(metrics)}.map((metric) => drawing(data.groups[0], metric).band);",
    )
    for metric, band in zip(metrics, result, strict=True):
        drawn = drawing(groups[0], metric, "iteration", 4)
        assert drawn is not None and max(drawn.high) > max(drawn.low)
        for place, edge in ((1, drawn.low), (2, drawn.high)):
            assert [each[place] for each in band] == pytest.approx(edge, abs=1e-4), metric


def test_the_window_counts_iterations_also_where_a_point_is_the_mean_of_several(
    browse: Any, make_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = load_runs([make_run(iterations=24, skill=0.03)])
    monkeypatch.setattr("gem_bench.report._MOST_POINTS", 12)
    shown, _ = browse(
        report(groups, window=4), 'return drawing(data.groups[0], "turns_mean").mean;'
    )
    drawn = drawing(groups[0], "turns_mean", "iteration", 4)
    assert drawn is not None
    wanted = dict(zip(drawn.mean.x, drawn.mean.y, strict=True))
    assert [x for x, _ in shown] == [*range(1, 24, 2)]
    assert [y for _, y in shown[1:]] == pytest.approx([wanted[x] for x, _ in shown[1:]], abs=1e-4)


def test_this_test_would_notice_a_complaint(browse: Any, html: str) -> None:
    _, console = browse(html, 'console.error("broken"); return {};')
    assert len(console) == 1
    assert "broken" in console[0]

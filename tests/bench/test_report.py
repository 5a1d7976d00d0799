"""The picture and the report: what is in them, and that they need nothing else."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from gem.errors import ConfigurationError
from gem_bench.plot import COLORS, DASHES, dashes, drawing, interpolate, plot, tick_label, ticks
from gem_bench.report import report
from gem_bench.series import load_runs
from gem_bench.tokens import find_tokenizer, token_bytes
from gem_train.record import Recorder

SVG = "{http://www.w3.org/2000/svg}"
VOID = {"meta", "link", "input", "br"}


class Page(HTMLParser):
    """Collects what the tests ask about and checks that every element is closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.references: list[str] = []
        self.data: Any = None
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.references += [v or "" for k, v in attrs if k in ("src", "href", "xlink:href")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.references += [v or "" for k, v in attrs if k in ("src", "href", "xlink:href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["script"] and self.data is None:
            self.data = json.loads(data)


@pytest.fixture
def runs(make_run: Callable[..., Path]) -> list[Path]:
    """Two trainers, two seeds each."""
    return [make_run(trainer, seed=seed) for trainer in ("reference", "verl") for seed in range(2)]


def lines(svg: str, kind: str) -> list[ElementTree.Element]:
    shapes = ElementTree.fromstring(svg).iter()
    return [s for s in shapes if s.tag != f"{SVG}line" and kind in s.get("class", "").split()]


def test_the_picture_has_a_mean_a_band_and_thin_runs_for_each_trainer(runs: list[Path]) -> None:
    svg = plot(load_runs(runs), metrics=["success_rate", "turns_mean"], window=4)
    for group in ("g0", "g1"):
        counts = {
            kind: sum(group in shape.get("class", "") for shape in lines(svg, kind))
            for kind in ("mean", "band", "run")
        }
        assert counts == {"mean": 2, "band": 2, "run": 4}  # two panels


def test_every_point_of_the_picture_lies_inside_it(runs: list[Path]) -> None:
    svg = plot(load_runs(runs), metrics=["success_rate"], x="tokens")
    root = ElementTree.fromstring(svg)
    left, top, width, height = map(float, root.get("viewBox", "").split())
    points = [
        tuple(map(float, pair.split(",")))
        for kind in ("mean", "band", "run")
        for shape in lines(svg, kind)
        for pair in shape.get("points", "").split()
    ]
    assert points
    assert all(left <= x <= left + width and top <= y <= top + height for x, y in points)


def test_a_legend_of_many_trainers_has_rows_and_tells_them_apart(
    make_run: Callable[..., Path],
) -> None:
    groups = load_runs([make_run(f"trainer-{i}") for i in range(8)])
    root = ElementTree.fromstring(plot(groups, metrics=["success_rate"]))
    names = [t for t in root.iter(f"{SVG}text") if (t.text or "").startswith("trainer-")]
    assert len(names) == len(groups) == 8
    width = float(root.get("viewBox", "").split()[2])
    panel = root.find(f"{SVG}g")
    assert panel is not None
    top = float(panel.get("transform", "").split()[-1].rstrip(")"))
    rows = {float(t.get("y", "")) for t in names}
    assert 1 < len(rows) < 8
    assert all(float(t.get("x", "")) < width for t in names)
    assert max(rows) < top
    assert len({c for c, _ in COLORS}) == len(set(DASHES)) == 8


def test_small_multiples_have_a_panel_for_each_value_and_one_line_for_each_algorithm(
    make_run: Callable[..., Path],
) -> None:
    """GRPO has run on `easy` only."""
    runs = [make_run("reference", advantage=advantage, env=env, seed=seed)
            for env, advantage in (("easy", "rebn"), ("easy", "grpo"), ("hard", "rebn"))
            for seed in range(2)]  # fmt: skip
    svg = plot(load_runs(runs), metrics=["success_rate", "loss"], panels="env.id")
    texts = [t.text for t in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    for title in ("easy: success rate", "easy: loss", "hard: success rate", "hard: loss"):
        assert texts.count(title) == 1
    assert texts.count("reference, rebn (2 seeds)") == texts.count("reference, grpo (2 seeds)") == 1
    means = [shape.get("class") for shape in lines(svg, "mean")]
    assert means == ["mean g0", "mean g1"] * 2 + ["mean g0"] * 2
    fewer = plot(load_runs(runs[:-1]), metrics=["success_rate"], panels="env.id")
    assert "reference, rebn (1 to 2 seeds)" in fewer, "of `hard` one seed is left"
    with pytest.raises(ConfigurationError, match=r"'env.ids': .* these differ: env.id, algor"):
        plot(load_runs(runs), metrics=["success_rate"], panels="env.ids")


def test_small_multiples_draw_every_run_without_a_spec(tmp_path: Path) -> None:
    for name, spec in (("a", {"name": "x", "seed": 0}), ("b", {}), ("c", {})):
        recorder = Recorder(tmp_path / name)
        recorder.start({"trainer": "reference", "spec": spec})
        recorder.metrics(0, {"success_rate": 0.5})
    groups = load_runs([tmp_path / name for name in "abc"])
    svg = plot(groups, metrics=["success_rate"], panels="name")
    assert [shape.get("class") for shape in lines(svg, "mean")] == ["mean g0", "mean g1", "mean g2"]


def test_a_split_is_a_line_of_its_own_and_evaluations_are_not_smoothed(tmp_path: Path) -> None:
    for seed in range(2):
        recorder = Recorder(tmp_path / str(seed))
        recorder.start({"trainer": "reference", "spec": {"seed": seed}})
        for iteration in range(4):
            recorder.metrics(iteration, {"success_rate": 0.1 * iteration})
            recorder.metrics(iteration, {"success_rate": iteration % 2}, split="eval:greedy")
    groups = load_runs([tmp_path / "0", tmp_path / "1"])
    splits = ["train", "eval:greedy"]
    svg = plot(groups, metrics=["success_rate"], window=4, splits=splits)
    texts = [t.text for t in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    named = [text for text in texts if text and text.startswith("reference")]
    assert named == ["reference (2 seeds), sampled", "reference (2 seeds), greedy"]
    assert [shape.get("class") for shape in lines(svg, "mean")] == ["mean g0", "mean g1"]
    drawn = drawing(groups[0], "success_rate", "iteration", 4, "eval:greedy")
    assert drawn is not None and drawn.mean.y == [0.0, 1.0, 0.0, 1.0]
    assert "Trailing mean over 4 iterations, evaluations as recorded; bands" in texts[-1]
    alone = plot(groups, metrics=["success_rate"], window=4, splits=["eval:greedy"])
    assert ">As recorded; bands" in alone
    assert ">Trailing mean over 4 iterations; bands" in plot(
        groups, metrics=["success_rate"], window=4
    )


def test_a_metric_that_nobody_recorded_is_refused_with_those_that_are(runs: list[Path]) -> None:
    with pytest.raises(ConfigurationError, match="'sucess_rate' of train; .*: .*success_rate"):
        plot(load_runs(runs), metrics=["sucess_rate"])


def test_a_split_that_nobody_recorded_is_refused_with_those_that_are(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.metrics(0, {"success_rate": 0.5})
    recorder.metrics(0, {"success_rate": 0.5}, "eval:held_out")
    for splits in (["eval:held-out"], ["train", "eval:held-out"]):
        with pytest.raises(
            ConfigurationError, match="'eval:held-out'; recorded: eval:held_out, train"
        ):
            plot(load_runs([tmp_path]), metrics=["success_rate"], splits=splits)


def test_a_panel_in_which_nobody_recorded_the_metric_is_named(tmp_path: Path) -> None:
    for name, metric in (("a", "loss"), ("b", "entropy")):
        recorder = Recorder(tmp_path / name)
        recorder.start({"trainer": "reference", "spec": {"name": name, "seed": 0}})
        recorder.metrics(0, {metric: 0.5})
    groups = load_runs([tmp_path / "a", tmp_path / "b"])
    with pytest.raises(ConfigurationError, match="no run of the panel 'b' recorded 'loss'"):
        plot(groups, metrics=["loss"], panels="name")


def test_runs_with_different_tokens_are_averaged_where_they_overlap(runs: list[Path]) -> None:
    group = load_runs(runs)[0]
    drawn = drawing(group, "success_rate", "tokens", 1)
    assert drawn is not None
    ends = [run.curves["train"].tokens[-1] for run in group.runs]
    assert drawn.mean.x[-1] == max(ends)
    assert drawn.mean.y[-1] == drawn.runs[ends.index(max(ends))].y[-1]
    middle = drawn.mean.x[60]
    expected = sum(interpolate(line, middle) for line in drawn.runs) / len(drawn.runs)
    assert drawn.mean.y[60] == pytest.approx(expected)
    assert drawn.low[60] <= drawn.mean.y[60] <= drawn.high[60]


def of_lengths(root: Path, *lengths: int) -> list[Path]:
    """Seeds of one experiment: seed s succeeds at the rate 0.2 s, for so many iterations."""
    for seed, length in enumerate(lengths):
        recorder = Recorder(root / str(seed))
        recorder.start({"trainer": "reference", "spec": {"name": "x", "seed": seed}})
        for iteration in range(length):
            values = {"success_rate": 0.2 * seed, "sampled_tokens": 100.0, "episodes": 8.0}
            recorder.metrics(iteration, values)
    return [root / str(seed) for seed in range(len(lengths))]


@pytest.mark.parametrize(("x", "unit"), [("iteration", 1), ("tokens", 100)])
def test_a_run_that_ended_early_does_not_cut_the_curve_of_the_others(
    tmp_path: Path, x: str, unit: int
) -> None:
    groups = load_runs(of_lengths(tmp_path, 100, 61, 1))
    drawn = drawing(groups[0], "success_rate", x, 1)
    assert drawn is not None
    assert drawn.mean.x[-1] == 99 * unit
    at = dict(zip(drawn.mean.x, drawn.mean.y, strict=True))
    assert at[0] == pytest.approx(0.2)
    shared = [point for point in at if 0 < point <= 60 * unit]
    assert {round(at[point], 9) for point in shared} == {0.1}
    assert {at[point] for point in at if point > 60 * unit} == {0.0}
    # A band where there are two runs or more.
    assert len(drawn.low) == len(drawn.high) == 1 + len(shared)
    svg = plot(groups, metrics=["success_rate"], x=x, window=1)
    assert "mean and band are of the runs that reach a point" in svg
    right = [max(float(p.split(",")[0]) for p in s.get("points", "").split())
             for kind in ("mean", "run", "band") for s in lines(svg, kind)]  # fmt: skip
    assert right[:2] == [460, 460] and max(right) == 460
    assert right[-1] == pytest.approx(44 + 60 / 99 * (460 - 44), abs=4)


def test_the_caption_says_nothing_of_lengths_where_all_runs_are_as_long(tmp_path: Path) -> None:
    groups = load_runs(of_lengths(tmp_path, 5, 5))
    assert "reach" not in plot(groups, metrics=["success_rate"])


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0, 119, [0, 20, 40, 60, 80, 100, 120]),
        (-0.13, 0.97, [-0.2, 0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (2, 2, [1, 1.5, 2, 2.5, 3]),
        (0, 0, [-1, -0.5, 0, 0.5, 1]),
        (-2.0000000000000004, -2, [-3, -2.5, -2, -1.5, -1]),
    ],
)
def test_ticks_are_round_and_cover_the_range(
    low: float, high: float, expected: list[float]
) -> None:
    assert ticks(low, high) == pytest.approx(expected)


def test_tick_labels_have_the_digits_of_their_step() -> None:
    labels = [tick_label(v, s) for v, s in [(0.2, 0.2), (0.25, 0.25), (3, 1), (20_000, 5_000)]]
    assert labels == ["0.2", "0.25", "3", "20k"]


def test_the_report_holds_the_curves_of_both_trainers(runs: list[Path]) -> None:
    page = Page(report(load_runs(runs)))
    assert [group["label"] for group in page.data["groups"]] == ["reference", "verl"]
    for group in page.data["groups"]:
        assert len(group["runs"]) == 2
        for run in group["runs"]:
            column = run["splits"]["train"]["columns"]["success_rate"]
            assert len(column) == 12
            assert column[-1] > column[0]


def test_the_report_needs_nothing_from_elsewhere(runs: list[Path]) -> None:
    html = report(load_runs(runs))
    references = Page(html).references
    assert [r for r in references if not r.startswith(("#", "data:"))] == []
    assert re.findall(r"@import|url\(", html) == []
    assert "default-src 'none'" in html


def test_episodes_can_be_read_token_by_token(runs: list[Path]) -> None:
    data = Page(report(load_runs(runs))).data
    episode = data["episodes"][0]
    turn = episode["turns"][0]
    vocabulary = data["vocabularies"][episode["vocabulary"]]
    said = "".join(vocabulary[str(token)] for token in turn["context"])
    assert (
        said == "<|im_start|>user\nGuess a number from 1 to 10.<|im_end|>\n<|im_start|>assistant\n"
    )
    assert vocabulary[str(turn["response"][-1])] == "<|im_end|>"
    assert len(turn["logprobs"]) == len(turn["response"])
    assert len(episode["advantages"]) == len(episode["turns"])


def test_without_a_tokenizer_the_turns_text_is_shown(make_run: Callable[..., Path]) -> None:
    data = Page(report(load_runs([make_run(model=Path("some/model"))]))).data
    assert data["vocabularies"] == []
    assert data["episodes"][0]["turns"][0]["observation"] == "Guess a number from 1 to 10."


def test_a_tokenizer_can_be_named(make_run: Callable[..., Path], byte_model: Path) -> None:
    run = make_run(model=Path("some/model"))
    data = Page(report(load_runs([run]), tokenizer=byte_model)).data
    assert data["episodes"][0]["vocabulary"] == 0
    with pytest.raises(ConfigurationError, match=r"nowhere/tokenizer\.json"):
        report(load_runs([run]), tokenizer=Path("nowhere"))


def test_the_number_of_episodes_is_bounded_and_spread_over_training(
    make_run: Callable[..., Path],
) -> None:
    run = make_run(iterations=30, episodes=20)
    data = Page(report(load_runs([run]), episodes=24)).data
    iterations = [episode["iteration"] for episode in data["episodes"]]
    assert iterations == [0] * 8 + [14] * 8 + [29] * 8
    assert Page(report(load_runs([run]), episodes=0)).data["episodes"] == []


def test_runs_that_only_evaluated_or_have_just_begun_are_shown_too(
    make_run: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "run.json").write_text('{"trainer": "verl", "status": "running"}')
    recorder = Recorder(tmp_path / "evaluated")
    recorder.metrics(0, {"success_rate": 0.5, "episodes": 4.0}, "eval:greedy")
    page = Page(report(load_runs([tmp_path / "begun", tmp_path / "evaluated"])))
    assert [group["runs"][0]["splits"].keys() for group in page.data["groups"]] == [
        {}.keys(),
        {"eval:greedy": 0}.keys(),
    ]


def test_text_from_an_environment_cannot_break_the_page(make_run: Callable[..., Path]) -> None:
    hostile = "</script><script>alert(1)</script><!--"
    run = make_run(hostile, secret=hostile)
    html = report(load_runs([run]))
    assert "<script>alert" not in html
    assert Page(html).data["groups"][0]["label"] == hostile


def test_parity_and_settings_are_in_the_report(runs: list[Path]) -> None:
    html = report(load_runs(runs))
    assert "verl fixes it" in html
    assert "Settings matched wherever they apply: 1" in html
    assert "<code>algorithm.gamma</code>" in html


def test_what_a_trainer_does_not_have_is_no_fault_of_it(make_run: Callable[..., Path]) -> None:
    folders = [make_run("reference"), make_run("verl"), make_run("trl")]
    edit(folders[1], parity=[
        {"name": "algorithm.gamma", "status": "matched", "how": "gamma"},
        {"name": "hardware.engine.engines", "status": "matched", "how": "the number"},
        {"name": "a remark", "status": "unmatched", "how": "of verl"},
    ])  # fmt: skip
    edit(folders[2], parity=[{"name": "hardware.device", "status": "matched", "how": "here"}])
    html = report(load_runs(folders))
    shown, _, folded = html.partition("<details><summary>Settings matched wherever they apply: 2")
    none = '<span class="status none">–</span> does not apply'
    unknown = '<span class="status unknown">unknown</span> not reported'

    def cells(text: str, name: str) -> list[str]:
        row = text.partition(f"<code>{name}</code></th>")[2].partition("</tr>")[0]
        return [re.sub("<td[^>]*>", "", cell) for cell in row.split("</td>")[:3]]

    # A setting of the hardware, and a remark, are of those that have them.
    assert cells(folded, "hardware.engine.engines")[::2] == [none, none]
    assert cells(shown, "a remark")[::2] == [none, none]
    # Every adapter must say something of a setting of the experiment.
    assert cells(shown, "algorithm.gamma")[2] == unknown
    # The worst comes first.
    assert shown.index("algorithm.gamma") < shown.index("a remark")


def test_the_landmarks_of_a_recipe_are_lines_and_no_settings(
    make_run: Callable[..., Path],
) -> None:
    folders = [make_run("reference"), make_run("reference", seed=1), make_run("verl")]
    for folder in folders[:2]:
        spec = json.loads((folder / "run.json").read_text())["spec"]
        edit(folder, spec={**spec, "landmarks": {"random": 0.34, "oracle": 1.0}})
    edit(folders[1], spec={**spec, "seed": 1, "landmarks": {"random": 0.34, "best": 0.9}})
    groups = load_runs(folders)
    assert [len(group.runs) for group in groups] == [2, 1]
    assert "landmarks" not in "".join(groups[0].settings)
    data = Page(report(groups)).data
    assert data["landmarks"] == [["random", 0.34], ["best", 0.9], ["oracle", 1.0]]
    picture = plot(groups, metrics=["success_rate", "turns_mean"])
    assert picture.count('<line class="landmark"') == 3
    assert ">random 0.34</text>" in picture
    assert plot(groups, metrics=["turns_mean"]).count('<line class="landmark"') == 0


def edit(folder: Path, **changes: Any) -> None:
    """Change entries of a `run.json`."""
    meta = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**meta, **changes}))


def test_byte_level_tokens_are_bytes_and_special_tokens_text(byte_model: Path) -> None:
    tokens = token_bytes(byte_model)
    assert b"".join(tokens[byte] for byte in "a é\n↑".encode()) == "a é\n↑".encode()
    assert tokens[257] == b"<|im_end|>"


def test_sentencepiece_tokens_show_their_spaces_and_bytes(tmp_path: Path) -> None:
    vocabulary = {"▁number": 0, "<0x0A>": 1, "s": 2}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}}))
    assert token_bytes(tmp_path) == {0: b" number", 1: b"\n", 2: b"s"}


def test_the_tokens_are_those_of_a_real_tokenizer(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        show_progress=False,
        special_tokens=["<|im_end|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    bpe.train_from_iterator(["guess a number, higher: naïve 日本語\n"] * 9, trainer)
    bpe.save(str(tmp_path / "tokenizer.json"))
    text = "higher: 日本語 ↑ 🎲 naïve\n<|im_end|>"
    tokens = token_bytes(tmp_path)
    assert b"".join(tokens[i] for i in bpe.encode(text).ids).decode() == text


def test_a_hub_model_is_looked_up_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    folder = tmp_path / "hub" / "models--Qwen--Qwen3-1.7B-Base" / "snapshots" / "abc"
    folder.mkdir(parents=True)
    assert find_tokenizer("Qwen/Qwen3-1.7B-Base") is None
    (folder / "tokenizer.json").write_text("{}")
    assert find_tokenizer("Qwen/Qwen3-1.7B-Base") == folder


def test_no_group_is_drawn_like_another() -> None:
    drawn = {(COLORS[i % len(COLORS)], dashes(i)) for i in range(64)}
    assert len(drawn) == 64


def test_a_mixture_has_curves_of_its_environments(make_run: Callable[..., Path]) -> None:
    folder = make_run(names=("small", "a/large"))
    [group] = Page(report(load_runs([folder]))).data["groups"]
    splits = group["runs"][0]["splits"]
    assert list(splits) == ["train", "env:a/large", "env:small"]
    assert not any(name.startswith("env/") for name in splits["train"]["columns"])
    for name in ("small", "a/large"):
        columns = splits[f"env:{name}"]["columns"]
        assert list(columns) == ["share", "success_rate", "return_mean", "turns_mean"]
        assert columns["share"] == [0.5] * 12
    small, large = (splits[f"env:{n}"]["columns"]["return_mean"] for n in ("small", "a/large"))
    assert [(a + b) / 2 for a, b in zip(small, large, strict=True)] == pytest.approx(
        splits["train"]["columns"]["return_mean"], abs=1e-4
    )
    svg = plot(load_runs([folder]), metrics=["env/small/success_rate"], window=3)
    assert lines(svg, "mean")

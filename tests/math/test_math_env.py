"""Math: grading inside episodes, in any thread, and problems with figures."""

from __future__ import annotations

import base64
import json
import pickle
import struct
import threading
from pathlib import Path
from typing import Any

import pytest

import gem
from gem.errors import ConfigurationError, DataError
from gem.sources import SAMPLE_FOLDER, load
from gem_math.env import MathEnv, MathVisualEnv

# The smallest picture: one black pixel.
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABAQAAAAA3bvkkAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
)


def graded(gold: Any, answer: str, **parameters: Any) -> Any:
    env = MathEnv([{"problem": "?", "answer": gold}], **parameters)
    env.reset()
    return env.step(f"Therefore \\boxed{{{answer}}}.")


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("1000", "1,000"),
        (12, "12"),
        (0.5, "\\frac{1}{2}"),
        ("\\{2, 3\\}", "\\{3, 2\\}"),
        (["15\\%", "15"], "15"),
        ("(x - 4)(x + 4)", "x^2 - 16"),
    ],
)
def test_equal_answers_are_paid(gold: Any, answer: str) -> None:
    _, reward, terminated, truncated, info = graded(gold, answer)
    assert (reward, terminated, truncated, info["correct"]) == (1.0, True, False, True)


@pytest.mark.parametrize(("gold", "answer"), [("12", "21"), ("cat", "act"), (["1", "2"], "3")])
def test_other_answers_are_not(gold: Any, answer: str) -> None:
    _, reward, _, _, info = graded(gold, answer)
    assert (reward, info["correct"], info["format_error"]) == (0.0, False, False)


def test_a_hanging_answer_is_wrong_and_harms_no_other() -> None:
    assert graded("5", "9^{9^{9^{9}}}", timeout_s=0.5)[1] == 0.0
    assert graded("(x+1)^2", "x^2 + 2x + 1", timeout_s=20.0)[1] == 1.0


def test_every_thread_can_grade() -> None:
    rewards: list[float] = []

    def play() -> None:
        rewards.append(graded("(x+1)^2", "1 + 2x + x^2", timeout_s=20.0)[1])

    threads = [threading.Thread(target=play) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rewards == [1.0] * 4


@pytest.mark.parametrize("gold", [None, {"a": 1}, [], True])
def test_a_gold_of_another_kind_is_an_error_of_the_data(gold: Any) -> None:
    with pytest.raises(DataError, match="row 0, column 'answer': "):
        graded(gold, "1")


@pytest.mark.parametrize(
    ("gold", "what"),
    [
        *[(gold, "has an empty answer") for gold in ("", " ", "$ $", "\u200b", ["5", "$$"])],
        *[(gold, "nobody can give the answer") for gold in ("}", "1}{2", "\\boxed{", ["}", "{"])],
    ],
)
def test_an_answer_that_nobody_can_give_is_an_error_of_the_data_when_it_is_loaded(
    gold: Any, what: str
) -> None:
    rows = [{"problem": "?", "answer": "1"}] * 3 + [{"problem": "?", "answer": gold}]
    with pytest.raises(DataError, match=f"row 3, column 'answer': .*{what}"):
        MathEnv(rows).reset(idx=0)


def test_one_of_several_answers_that_can_be_given_is_enough() -> None:
    env = MathEnv([{"problem": "?", "answer": ["}", "5"]}])
    env.reset()
    assert env.step("\\boxed{5}")[1] == 1.0


def test_an_answer_that_the_grader_does_not_take_is_an_error_before_it_is_shown() -> None:
    env = MathEnv([{"problem": "?", "answer": "x" * 3}, {"problem": "?", "answer": "\\text{ . }"}])
    with pytest.raises(DataError, match="row 1, column 'answer': "):
        env.reset(idx=1)


@pytest.mark.parametrize("name", ["arithmetic", "gsm8k", "math", "geometry"])
def test_every_sampled_answer_is_graded_right_and_a_guess_wrong(name: str) -> None:
    make = MathVisualEnv if name == "geometry" else MathEnv
    env = make(f"sample:{name}", timeout_s=20.0)
    for index in range(len(load(f"sample:{name}"))):
        env.reset(idx=index)
        assert env.step(env.oracle_action())[1] == 1.0, env.render()
        env.reset(idx=index)
        assert env.step("\\boxed{-987}")[1] == 0.0


@pytest.mark.parametrize("timeout_s", [0, -1, "1", None, float("inf"), True])
def test_the_time_limit_is_a_positive_number(timeout_s: Any) -> None:
    with pytest.raises(ConfigurationError, match="timeout_s must be a number above 0, got"):
        MathEnv("sample", timeout_s=timeout_s)


def test_figures_are_parts_of_the_observation_in_the_place_of_their_marks() -> None:
    rows = [
        {"images": [PIXEL], "problem": "<image>How wide?", "answer": "1"},
        {"images": [PIXEL], "problem": "How wide?", "answer": "1"},
        {"images": [PIXEL, PIXEL], "problem": "Is <image> as wide as <image>?", "answer": "1"},
        {"images": {"bytes": PIXEL, "path": None}, "problem": "How wide?", "answer": "1"},
    ]
    env = MathVisualEnv(rows)
    image = {"type": "image", "image": PIXEL}
    last = {"type": "text", "text": env.answer_format.instruction}

    def text(words: str) -> dict[str, str]:
        return {"type": "text", "text": words}

    for index in (0, 1, 3):
        assert env.reset(idx=index)[0] == [image, text("How wide?"), last]
    expected = [text("Is"), image, text("as wide as"), image, text("?"), last]
    assert env.reset(idx=2)[0] == expected
    assert "[image]" in env.render()
    assert env.step("\\boxed{1}")[1] == 1.0


def test_figures_of_a_file_lie_beside_it_and_travel_as_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PIXEL)
    row = {"images": ["a.png"], "problem": "How wide?", "answer": "1"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    env = MathVisualEnv(tmp_path / "rows.jsonl")
    assert env.reset(seed=0)[0][0] == {"type": "image", "image": PIXEL}
    assert pickle.loads(pickle.dumps(env)).step("\\boxed{1}")[1] == 1.0
    (tmp_path / "a.png").unlink()
    message = r"rows\.jsonl, row 0, column 'images': .*a\.png cannot be read"
    with pytest.raises(DataError, match=message):
        env.reset(seed=0)


def test_figures_of_the_hub_are_read_without_decoding_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "geometry"
    folder.mkdir()
    kinds = datasets.Features(
        {
            "images": datasets.List(datasets.Image()),
            "problem": datasets.Value("string"),
            "answer": datasets.Value("string"),
        }
    )
    column = [[{"bytes": PIXEL, "path": None}]]
    data = datasets.Dataset.from_dict(
        {"images": column, "problem": ["<image>How wide?"], "answer": ["1"]}, features=kinds
    )
    data.to_parquet(str(folder / "train-00000-of-00001.parquet"))
    env = gem.make("math:Geometry3K", source=f"hub:{folder}")
    assert env.reset(seed=0)[0][0] == {"type": "image", "image": PIXEL}
    assert env.step("\\boxed{1}")[1] == 1.0


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"images": [3]}, "column 'images': int is no figure"),
        ({"images": []}, "column 'problem': 1 times <image>, but 0 figures"),
        ({}, "no column 'images'"),
    ],
)
def test_broken_figures_are_an_error_of_the_data(row: dict[str, Any], message: str) -> None:
    env = MathVisualEnv([{"problem": "<image>?", "answer": "1", **row}])
    with pytest.raises(DataError, match=message):
        env.reset()


def test_sampled_figures_are_small_pictures() -> None:
    figures = sorted(SAMPLE_FOLDER.glob("*.png"))
    assert len(figures) == len(load("sample:geometry"))
    for figure in figures:
        data = figure.read_bytes()
        assert data.startswith(b"\x89PNG\r\n\x1a\n")
        assert struct.unpack(">II", data[16:24]) == (200, 140)
        assert len(data) < 5000

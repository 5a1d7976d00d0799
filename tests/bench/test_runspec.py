"""Reading RunSpecs: every mistake is answered with the file and the key it is in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gem.errors import ConfigurationError
from gem.tables import flatten
from gem_bench.runspec import load_hardware, load_spec
from gem_bench.sweep import read

FOLDER = Path(__file__).parents[2] / "recipes"
RECIPES = sorted(
    [*FOLDER.glob("*.toml"), *FOLDER.glob("baselines/*.toml"), *FOLDER.glob("papers/*.toml")]
)
SWEEPS = sorted(FOLDER.glob("sweeps/*.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_is_a_valid_spec_named_after_its_file(path: Path) -> None:
    assert load_spec(path).name == path.stem


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_every_sweep_names_its_runs(path: Path) -> None:
    assert read([path])


def test_overrides_replace_settings_and_keep_their_type(spec_file: Callable[..., Path]) -> None:
    spec = load_spec(
        spec_file(),
        [
            "algorithm.gamma=0.5",
            "training.tasks=4",
            "policy.model=another/model",
            'policy.system_prompt="Be brief."',
            "env.params.hint=range",
            "env.params.soft_reward=true",
        ],
    )
    assert spec.algorithm.gamma == 0.5
    assert spec.training.tasks == 4
    assert spec.policy.model == "another/model"
    assert spec.policy.system_prompt == "Be brief."
    assert spec.env[0].params == {"hint": "range", "soft_reward": True}


def test_an_override_reaches_into_an_array(tmp_path: Path, spec_file: Callable[..., Path]) -> None:
    path = spec_file()
    with path.open("a") as file:
        file.write('\n[[eval]]\nname = "greedy"\nid = "game:Wordle-v0"\nepisodes = 64\n')
    assert load_spec(path, ["eval.0.episodes=8"]).eval[0].episodes == 8
    with pytest.raises(ConfigurationError, match=r"'1' is not an entry of an array of 1"):
        load_spec(path, ["eval.1.episodes=8"])


@pytest.mark.parametrize(
    "text",
    [
        '[{name = "questions", last = 0.5}, "without_images"]',
        '[{"name": "questions", "last": 0.5}, "without_images"]',
    ],
)
def test_an_override_is_a_table_or_an_array_in_toml_or_json(
    spec_file: Callable[..., Path], text: str
) -> None:
    spec = load_spec(spec_file(), [f"env.params.wrappers={text}"])
    assert spec.env[0].params["wrappers"] == [
        {"name": "questions", "last": 0.5},
        "without_images",
    ]
    with pytest.raises(ConfigurationError, match="neither TOML nor JSON"):
        load_spec(spec_file(), [f"env.params.wrappers={text[:-1]}"])


@pytest.mark.parametrize("text", [r'"\ud83e\udd14"', r'"\U0001f914"', '"🤔"', "🤔"])
def test_an_override_is_a_text_with_the_escapes_of_toml_or_json(
    spec_file: Callable[..., Path], text: str
) -> None:
    assert load_spec(spec_file(), [f"policy.system_prompt={text}"]).policy.system_prompt == "🤔"
    with pytest.raises(ConfigurationError, match="neither TOML nor JSON"):
        load_spec(spec_file(), ['policy.system_prompt="🤔'])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("algorithm.gama=0.9", "unknown key 'algorithm.gama'; did you mean algorithm.gamma"),
        ("algorithm.gamma=1.5", "algorithm.gamma must be at most 1, got 1.5"),
        ("training.tasks=2.5", "training.tasks must be of type int, got 2.5"),
        ("training.tasks=0", "training.tasks must be at least 1"),
        ("algorithm.advantage=ppo", "algorithm.advantage: unknown estimator 'ppo'"),
        ("optimizer=fast", "optimizer must be a table"),
        ("algorithm.gamma", "must be key=value"),
        ("algorithm.gamma.x=1", "'x' is not in a table"),
    ],
)
def test_a_wrong_setting_is_named_with_its_file(
    spec_file: Callable[..., Path], override: str, message: str
) -> None:
    path = spec_file()
    with pytest.raises(ConfigurationError) as error:
        load_spec(path, [override])
    assert message in str(error.value)
    assert str(path) in str(error.value)


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    path.write_text('name = "x"\n[env]\nid = "game:Wordle-v0"\n')
    with pytest.raises(ConfigurationError, match="missing key 'policy"):
        load_spec(path)


def test_broken_toml_is_named_with_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    path.write_text('name = "x"\nseed = = 3\n')
    with pytest.raises(ConfigurationError, match=r"spec\.toml: .*line 2"):
        load_spec(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no RunSpec at .*nowhere"):
        load_spec(tmp_path / "nowhere.toml")


def test_flattening_names_every_setting_by_its_dotted_key() -> None:
    mapping = {"a": 1, "b": {"c": None, "d": {}}, "e": [{"f": "x"}, {"f": "y"}]}
    assert flatten(mapping) == {"a": 1, "b.c": None, "e.0.f": "x", "e.1.f": "y"}


def test_shipped_hardware_is_found_by_name_and_files_by_path(tmp_path: Path) -> None:
    assert load_hardware("8xh100", "verl").gpus == 8
    file = tmp_path / "mine.toml"
    file.write_text("gpus_per_node = 4\n[native.verl]\n'a.b' = 1\n")
    assert load_hardware(file, "verl", ["c.d=[1, 2]", "e=some text", "a.b=2"]).native == {
        "verl": {"a.b": 2, "c.d": [1, 2], "e": "some text"}
    }
    file.write_text("gpus = 4\n")
    with pytest.raises(ConfigurationError, match=r"mine\.toml: unknown key 'gpus'"):
        load_hardware(file, "verl")
    with pytest.raises(ConfigurationError, match=r"no hardware \(shipped: 1xh100, .*\) at 9xh100"):
        load_hardware("9xh100", "verl")
    with pytest.raises(ConfigurationError, match="native setting 'x' must be key=value"):
        load_hardware("cpu", "verl", ["x"])

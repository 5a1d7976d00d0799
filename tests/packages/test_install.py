"""Every package builds a wheel and installs from it into an environment that has nothing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "gem-core", "gem-check", "gem-math", "gem-train", "gem-sandbox", "gem-serve", "gem-tau",
    "gem-judge", "gem-box", "gem-vision",
    "gem-bench", "gem-eval", "gem-cpu",
    "gem-verl", "gem-openrlhf", "gem-tinker", "gem-oat", "gem-rl2", "gem-skyrl", "gem-trl",
    "gem-roll", "gem-verifiers",
)  # fmt: skip
# Packages come over a network.
pytestmark = pytest.mark.timeout(3600)

IMPORT_EVERYTHING = """
import importlib, json, pkgutil, sys, {name} as package
found = [package.__name__]
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    # Of the second one Gymnasium's own classes are the bases; it is imported by Gymnasium.
    if not module.name.endswith(("__main__", "gem.gymnasium")):
        found.append(module.name)
        importlib.import_module(module.name)
print(json.dumps(found))
"""


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=600, check=False
    )


def checked(*command: str | Path) -> str:
    result = run(*command)
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("wheels")
    for name in PACKAGES:
        source = ROOT / "packages" / name
        checked(sys.executable, "-m", "build", "-w", "-n", "-o", folder, source)
    found = {w.name.split("-")[0].replace("_", "-"): w for w in folder.glob("*.whl")}
    assert sorted(found) == sorted(PACKAGES)
    return found


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """The Python of a new environment without anything; this one's pip installs into it."""
    checked(sys.executable, "-m", "venv", "--without-pip", tmp_path / "env")
    return tmp_path / "env" / "bin" / "python"


def pip(python: Path) -> list[str | Path]:
    return [sys.executable, "-m", "pip", "--python", python]


def install(python: Path, *what: str | Path) -> None:
    """Install wheels, with what they need of the others beside them and from the index."""
    links = [f"--find-links={each.parent}" for each in what if isinstance(each, Path)][:1]
    said = ""
    for pause_s in (0, 5, 30):
        time.sleep(pause_s)
        try:
            result = run(*pip(python), "install", "-q", *links, *what)
        except subprocess.TimeoutExpired as error:
            said = str(error)
            continue
        if result.returncode == 0:
            return
        said = result.stderr
    raise AssertionError(said)


@pytest.mark.parametrize("name", PACKAGES)
def test_a_wheel_carries_its_licence_and_types(wheels: dict[str, Path], name: str) -> None:
    names = zipfile.ZipFile(wheels[name]).namelist()
    assert any(n.endswith("/LICENSE") for n in names)
    assert any(n.endswith("/py.typed") for n in names)
    assert not any("test_" in n or "__pycache__" in n for n in names)


def test_gem_core_installs_alone_with_at_most_five_distributions(
    wheels: dict[str, Path], empty: Path
) -> None:
    install(empty, wheels["gem-core"])
    listed = json.loads(checked(*pip(empty), "list", "--format=json"))
    assert "gem-core" in {each["name"] for each in listed}
    assert len(listed) <= 5
    modules = json.loads(checked(empty, "-c", IMPORT_EVERYTHING.format(name="gem")))
    assert "gem.rollout.play" in modules
    checked(empty, "-m", "gem", "play", "game:GuessTheNumber-v0-easy", "--policy", "oracle")


def test_importing_gem_loads_nothing_but_the_standard_library(
    wheels: dict[str, Path], empty: Path
) -> None:
    install(empty, wheels["gem-core"])
    program = (
        "import sys, gem; gem.make('game:Wordle-v0').reset(seed=0); "
        "print([m for m in sys.modules if m.split('.')[0] not in "
        "(*sys.stdlib_module_names, 'gem', '__main__', '__mp_main__') "
        "and not m.startswith(('_', 'sitecustomize'))])"
    )
    assert checked(empty, "-c", program).strip() == "[]"


def ours(python: Path) -> set[str]:
    """The packages of this repository that are installed."""
    listed = json.loads(checked(*pip(python), "list", "--format=json"))
    return {each["name"] for each in listed if each["name"].startswith("gem-")}


@pytest.mark.nightly
def test_gem_bench_brings_what_it_needs_and_no_more(wheels: dict[str, Path], empty: Path) -> None:
    install(empty, wheels["gem-bench"])
    assert ours(empty) == {"gem-core", "gem-judge", "gem-train", "gem-bench"}
    assert "usage: gem-bench" in checked(empty, "-m", "gem_bench", "--help")


@pytest.mark.nightly
def test_gem_eval_adds_a_command_to_gem(wheels: dict[str, Path], empty: Path) -> None:
    install(empty, wheels["gem-eval"])
    assert ours(empty) == {"gem-core", "gem-judge", "gem-train", "gem-bench", "gem-eval"}
    assert "of the package gem-eval" in checked(empty, "-m", "gem", "--help")
    out = empty.parent / "out"
    evaluate = [empty, "-m", "gem", "eval", "game:GuessTheNumber-v0-easy", "--model", "oracle"]
    assert "1.000" in checked(*evaluate, "--out", out)


@pytest.mark.nightly
def test_gem_cpu_brings_what_it_needs_and_no_more(wheels: dict[str, Path], empty: Path) -> None:
    install(empty, wheels["gem-cpu"])
    assert ours(empty) == {"gem-core", "gem-judge", "gem-train", "gem-cpu"}
    checked(empty, "-c", "import gem_cpu")


# What each id, tool, executor and command is that a package brings, by the extra that names it.
BROUGHT = {
    "python": [
        "import gem; gem.make('code:CodeContest', source='sample', runner='subprocess')",
        "from gem.tools import make_tools; make_tools('python')",
        "from gem.__main__ import main; raise SystemExit(main(['doctor', '--help']))",
    ],
    "check": [
        "from gem.__main__ import main; raise SystemExit(main(['check', '--help']))",
        "from gem.__main__ import main; raise SystemExit(main(['info', 'game:Wordle-v0']))",
    ],
    "math": [
        "import gem; gem.make('math:GSM8K', source='sample')",
        "import gem; gem.make('eval:MATH500', source='sample')",
    ],
    "tau": ["import gem; gem.make('tau:Retail-v2')"],
    "judge": [
        "import gem; gem.make('judge:Reply-v0')",
        "from gem.__main__ import main; raise SystemExit(main(['judge', '--help']))",
    ],
    "box": [
        "import gem; gem.make('harbor:sample')",
        "from gem.__main__ import main; raise SystemExit(main(['harbor', '--help']))",
    ],
    "serve": [
        "import gem; gem.make('remote:http://127.0.0.1:9/x')",
        "from gem.executors.named import make_executor; make_executor('remote:http://[::1]:9')",
        "from gem.__main__ import main; raise SystemExit(main(['serve', '--help']))",
    ],
    "train": ["from gem.__main__ import main; raise SystemExit(main(['replay', '--help']))"],
}


@pytest.mark.parametrize(
    "extra",
    [
        extra if extra == "math" else pytest.param(extra, marks=pytest.mark.nightly)
        for extra in BROUGHT
    ],
)
def test_what_is_missing_is_named_with_the_extra_that_brings_it(
    wheels: dict[str, Path], empty: Path, extra: str
) -> None:
    install(empty, wheels["gem-core"])
    for program in BROUGHT[extra]:
        result = run(empty, "-c", program)
        assert result.returncode != 0, program
        assert f"pip install 'gem-core[{extra}]'" in result.stderr, result.stderr
    install(empty, f"--find-links={wheels['gem-core'].parent}", f"gem-core[{extra}]")
    for program in BROUGHT[extra]:
        result = run(empty, "-c", program)
        assert "pip install 'gem-core" not in result.stderr, result.stderr
        assert result.returncode == 0 or "127.0.0.1:9" in result.stderr, result.stderr


@pytest.mark.nightly
def test_an_adapter_without_its_trainer_says_what_to_install(
    wheels: dict[str, Path], empty: Path
) -> None:
    trainers = ("verl", "openrlhf", "tinker", "oat", "rl2", "skyrl", "trl", "roll")
    install(empty, wheels["gem-train"], wheels["gem-sandbox"])
    install(empty, "--no-deps", *(wheels[f"gem-{trainer}"] for trainer in trainers))
    for trainer in trainers:
        result = run(empty, "-m", f"gem_{trainer}.doctor")
        assert result.returncode != 0
        output = result.stdout + result.stderr
        assert "Traceback" not in output
        assert re.search(rf"{trainer}\S* is not installed", output.lower())
        assert "pip install" in output

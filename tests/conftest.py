"""What the tests of every package share: a tokenizer and a model made in a moment, a small run."""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from examples import install

_entry_points = importlib.metadata.entry_points


@cache
def _strangers() -> frozenset[str]:
    """Distributions that plug something into GEM and are none of ours: what the user installed."""
    groups = [each for each in _entry_points().groups if each.startswith("gem.")]
    # L0 tries every estimator that is installed (docs/tutorials/own-estimator.md).
    groups = [each for each in groups if each != "gem.estimators"]
    there = {e.dist.name for group in groups for e in _entry_points(group=group) if e.dist}
    packages = Path(__file__).parents[1] / "packages"
    return frozenset(there - {path.name for path in packages.iterdir()} - {"gem-template"})


def _ours(**wanted: str) -> Any:
    found = _entry_points(**wanted)
    kept = [e for e in found if e.dist is None or e.dist.name not in _strangers()]
    return importlib.metadata.EntryPoints(kept)


# Before anything of GEM is imported: tests see GEM's own environments, whatever else is installed.
if _strangers():
    importlib.metadata.entry_points = _ours  # type: ignore[assignment]

from gem.errors import MissingExtraError  # noqa: E402
from gem_train.experiment.hardware import CPU  # noqa: E402

# Before an adapter registers estimators: a user's one is tried wherever all are.
install("own-estimator")

with contextlib.suppress(ImportError):  # not every trainer's environment has it
    from hypothesis import HealthCheck, settings

    # By default an example that takes 200 ms, or is made slowly, fails its test, as any does on a
    # busy machine. A CI run draws the same every time; elsewhere a failure says how to repeat it.
    settings.register_profile(
        "gem",
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        derandomize=bool(os.environ.get("CI")),
        print_blob=True,
    )
    settings.load_profile("gem")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Skip a test that misses an extra in the environment that has hardly any (`make env-core`)."""
    try:
        return (yield)
    except MissingExtraError as error:
        if Path(sys.prefix).name == "core":
            pytest.skip(f"needs an extra: {error}")
        raise


# The background jobs of a shell ignore SIGINT, and so would everything that tests start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

FOUND = Path(os.environ.get("RUNS", Path(__file__).parents[1] / "runs")) / "conformance"

CHATML = (
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say why tests were skipped or repeated, and on what real trainers ran, which round."""
    reasons = Counter(r.longrepr[2] for r in terminalreporter.stats.get("skipped", []))
    for reason, number in reasons.most_common():
        terminalreporter.write_line(f"{number} skipped: {reason.removeprefix('Skipped: ')}")
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.write_sep("_", f"{report.nodeid} failed and was repeated")
        terminalreporter.write_line(report.longreprtext)
    ended = [r for kind in ("passed", "failed") for r in terminalreporter.stats.get(kind, [])]
    if any("slow" in report.keywords for report in ended):
        from arithmetic import arithmetic

        terminalreporter.write_line(f"seen on: {arithmetic()}")
        if seed := os.environ.get("GEM_PERTURB"):
            terminalreporter.write_line(f"weights perturbed with seed {seed}")


@pytest.fixture(scope="session")
def keep() -> Callable[[str, str], None]:
    """Note what was seen of an adapter, for `tools/compatibility.py`: a file with the date.

    To be called when it was seen, and only then: `keep("verl", "L0 to L3")`. What follows the
    adapter's name is said of the result: `keep("trl with vLLM", "L0 to L3")`.
    """
    from arithmetic import arithmetic

    def write(name: str, holds: str) -> None:
        adapter, _, how = name.partition(" ")
        path = FOUND / adapter / f"{holds} {how}".strip()
        path.parent.mkdir(parents=True, exist_ok=True)
        today = datetime.datetime.now(datetime.timezone.utc).date()
        path.write_text(f"{today}\n{arithmetic()}\n")

    return write


@pytest.fixture(scope="session")
def make_tokenizer() -> Callable[[Sequence[str], int], Any]:
    """Make a byte-level BPE tokenizer with ChatML from a corpus and the size of its vocabulary."""
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")

    def make(corpus: Sequence[str], vocab_size: int) -> Any:
        bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
        bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        bpe.decoder = tokenizers.decoders.ByteLevel()
        bpe.train_from_iterator(
            corpus,
            tokenizers.trainers.BpeTrainer(
                vocab_size=vocab_size,
                special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
                initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
                show_progress=False,
            ),
        )
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>"
        )
        tokenizer.chat_template = CHATML
        return tokenizer

    return make


@pytest.fixture(scope="session")
def small_tokenizer(make_tokenizer: Callable[[Sequence[str], int], Any]) -> Any:
    """A tokenizer whose merges make many spellings of one text."""
    corpus = ["guess the number higher lower \\boxed{12} 日本語 é user assistant system\n"] * 20
    return make_tokenizer(corpus, 330)


@pytest.fixture(scope="session")
def tokenizer(make_tokenizer: Callable[[Sequence[str], int], Any]) -> Any:
    """A tokenizer with a token for every byte and none besides."""
    return make_tokenizer(["guess the number"], 259)


@pytest.fixture(scope="session")
def model(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of 100,000 weights that every engine can run on CPU (heads of 32)."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=2048,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def compiled(model: Path) -> Callable[..., Any]:
    """Compile three iterations of eight episodes: `compiled(adapter, folder, **tables)`.

    `tables` change those of the RunSpec; `hardware` is one process that stands for a GPU.
    Returns the `gem_train.launch.Launch`.
    """
    from gem_train.experiment.runspec import RunSpec

    def evaluation(name: str, temperature: float) -> dict[str, Any]:
        game = {"id": "game:GuessTheNumber-v0", "params": {"prompt": "short"}}
        return {**game, "name": name, "episodes": 3, "every": 3, "temperature": temperature}

    lengths = {"prompt_tokens": 300, "response_tokens": 900, "turn_tokens": 8}
    spec: dict[str, Any] = {
        "name": "smoke",
        # Formats are never right: the episode must go on for there to be several turns.
        "env": {
            "id": "game:GuessTheNumber-v0-easy",
            "params": {"prompt": "short", "format_error_ends": False},
        },
        "policy": {"model": str(model), **lengths},
        "algorithm": {"advantage": "rebn", "gamma": 0.9, "lam": 0.95},
        "optimizer": {"lr": 1e-3},
        "training": {"iterations": 3, "tasks": 4, "group_size": 2},
        "eval": [evaluation("warm", 1.0), evaluation("greedy", 0.0)],
    }

    def make(adapter: Any, folder: Path, hardware: Any = CPU, **tables: Any) -> Any:
        changed = {
            name: {**spec.get(name, {}), **table} if isinstance(table, Mapping) else table
            for name, table in tables.items()
        }
        folder.mkdir()
        launch = adapter.compile(
            RunSpec.from_mapping({**spec, **changed}), run_dir=folder, hardware=hardware
        )
        return replace(launch, env={**launch.env, "GEM_RECORD_ROWS": "1"})

    return make

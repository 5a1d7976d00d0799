"""What the tests of every package share: no time limits, a tokenizer that is made in a moment."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest

with contextlib.suppress(ImportError):  # not every trainer's environment has it
    from hypothesis import settings

    # By default an example that takes 200 ms fails its test, as any does on a busy machine.
    settings.register_profile("gem", deadline=None)
    settings.load_profile("gem")

CHATML = (
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)


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
def tokenizer(make_tokenizer: Callable[[Sequence[str], int], Any]) -> Any:
    """A tokenizer with a token for every byte and none besides."""
    return make_tokenizer(["guess the number"], 259)

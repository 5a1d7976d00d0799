"""Tokenizers and models of transformers in this process; the extra `local` installs it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gem.errors import ConfigurationError, MissingExtraError
from gem.rollout import ChatFormat, Prompting
from gem.tables import check
from gem_bench.models import load_pretrained
from gem_train.experiment.hardware import sees
from gem_train.experiment.runspec import SamplingPart

if TYPE_CHECKING:
    from gem_eval.sampler import LocalModel
    from gem_eval.trained import Trained

SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "seed": 0}


def chat_format(tokenizer: str, prompting: Prompting, option: str = "--tokenizer") -> ChatFormat:
    """Return the chat format of a model, which shows images if the model sees.

    A folder with a tokenizer and no `config.json` is one of a model that sees no images.

    Args:
        tokenizer: Folder or hub name.
        prompting: How its chat template is used.
        option: That names it, for messages.

    Raises:
        ConfigurationError: There is none, or its chat template cannot be used.
        MissingExtraError: transformers is not installed.
    """
    with _needed():
        from transformers import AutoTokenizer

        from gem_bench.seeing import load_tokenizer

    found = load_pretrained(AutoTokenizer, tokenizer, option)
    return prompting.chat_format(load_tokenizer(tokenizer, option) if sees(tokenizer) else found)


def own_chat_format(model: str, prompting: Prompting) -> ChatFormat:
    """Return the chat format of a model in this process, which shows images if the model sees.

    Raises:
        ConfigurationError, MissingExtraError: See `chat_format`.
    """
    with _needed():
        import transformers  # noqa: F401

        from gem_bench.seeing import load_tokenizer

    return prompting.chat_format(load_tokenizer(model, "--model"))


def tokenizer_hash(tokenizer: Any) -> str:
    """Return a hash of vocabulary and chat template."""
    told = [sorted(tokenizer.get_vocab().items()), str(tokenizer.chat_template)]
    return hashlib.blake2b(repr(told).encode(), digest_size=12).hexdigest()


def load(trained: Trained, dtype: str) -> Any:
    """Load a model for sampling, onto a GPU if there is one, adapters merged.

    Raises:
        ConfigurationError: It cannot be loaded.
        MissingExtraError: torch, transformers or, for adapters, peft is not installed.
    """
    with _needed():
        import torch
        import transformers  # noqa: F401

        from gem_bench.seeing import load_policy

    model = load_policy(trained.model, "--model", getattr(torch, dtype))
    trained.apply(model)
    if trained.adapter is not None:
        with _needed():
            from peft import PeftModel

        try:
            model = PeftModel.from_pretrained(model, str(trained.adapter)).merge_and_unload()
        except (OSError, ValueError, RuntimeError) as error:
            raise ConfigurationError(
                f"cannot apply the adapter {trained.adapter} to {trained.model}: {error}"
            ) from error
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval()


def context_tokens(model: Any) -> int | None:
    """Return how many positions a model has; None if its configuration does not say."""
    most = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return most if isinstance(most, int) else None


def local_model(model: Any, chat: ChatFormat, sampling: dict[str, Any]) -> LocalModel:
    """Return the model as what all episodes ask.

    Args:
        model: Of `load`.
        chat: Its chat format.
        sampling: `SAMPLING` with other values; the temperature 0 is greedy.

    Raises:
        ConfigurationError: A value or name is wrong.
    """
    from gem_eval.sampler import LocalModel, SeededSampler, SeededSeeingSampler

    if unknown := sorted(sampling.keys() - SAMPLING.keys()):
        raise ConfigurationError(
            f"--param {unknown[0]}: models in this process know {', '.join(SAMPLING)}"
        )
    values = {**SAMPLING, **sampling}
    seed = values.pop("seed")
    if values["temperature"] == 0:
        values |= {"temperature": 1.0, "top_k": 1}
    part = SamplingPart(**values)
    check(part, "--param ")
    if type(seed) is not int:
        raise ConfigurationError(f"--param seed must be an integer, got {seed!r}")
    kind = SeededSeeingSampler if chat.shows_images else SeededSampler
    return LocalModel(kind(model, chat, part), seed)


@contextmanager
def _needed() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"models asked by tokens need {error.name!r}: pip install 'gem-eval[local]'"
        ) from error

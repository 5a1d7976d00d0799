"""Chat templates of model families, as TRL ships them, on tokenizers made for tests."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

CHATML = ("<|im_start|>", "<|im_end|>")
DEEPSEEK = ("<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>")
GLM = ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|endoftext|>")
GEMMA_4 = ("<bos>", "<|turn>", "<|think|>", "<turn|>")
LLAMA = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
GEMMA = ("<bos>", "<start_of_turn>", "<end_of_turn>")
HARMONY = ("<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|return|>")
THINK = ("<think>", "</think>")


@dataclass(frozen=True)
class Family:
    """A template, and the control tokens it is written with."""

    template: str
    """Name of TRL's file."""
    control: tuple[str, ...]
    """The last one ends a reply."""
    markers: tuple[str, str] | None = THINK
    opened: bool = False
    """The prompt opens the thinking."""
    kwargs: tuple[tuple[str, Any], ...] = ()
    swap: tuple[str, str] | None = None
    """Text of TRL's file, and what a model that TRL has no file of has in its place."""

    @property
    def source(self) -> str:
        """The template."""
        found = importlib.util.find_spec("trl")
        if found is None or found.origin is None:
            pytest.skip("the templates are those that TRL ships, and TRL is not installed")
        folder = Path(found.origin).parent / "chat_templates"
        source = (folder / f"{self.template}.jinja").read_text(encoding="utf-8")
        if self.swap is None:
            return source
        assert source.count(self.swap[0]) == 1
        return source.replace(*self.swap)

    def dress(self, tokenizer: Any, markers: str) -> Any:
        """Give a new tokenizer the template and its tokens.

        Args:
            tokenizer: Changed in place.
            markers: How it spells the markers of thinking: `token`, `special` token, or `text`.
        """
        from transformers import AddedToken

        tokenizer.add_special_tokens({"additional_special_tokens": list(self.control)})
        if self.markers is not None and markers != "text":
            special = markers == "special"
            tokens = [AddedToken(m, special=special, normalized=False) for m in self.markers]
            tokenizer.add_tokens(tokens, special_tokens=special)
        tokenizer.bos_token, tokenizer.eos_token = self.control[0], self.control[-1]
        tokenizer.chat_template = self.source
        return tokenizer


OFF = (("enable_thinking", False),)
# The prompt of Qwen3-Thinking-2507 opens the thinking; the rest of its template is Qwen3's.
PROMPT = "{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n"
ALWAYS = (PROMPT, PROMPT.replace("\\n' }}", "\\n<think>\\n' }}"))
THINKING = {
    "qwen3": Family("qwen3", CHATML),
    "qwen3 off": Family("qwen3", CHATML, kwargs=OFF),
    "qwen3-thinking-2507": Family("qwen3", CHATML, opened=True, swap=ALWAYS),
    "qwen3.5": Family("qwen3_5_think", CHATML, opened=True),
    "qwen3.5 small": Family("qwen3_5_nothink", CHATML),
    "qwen3.6": Family("qwen3_6", CHATML, opened=True),
    "qwen3.8": Family("qwen3_8", CHATML, opened=True),
    "deepseek-r1": Family("deepseek_r1_distill", DEEPSEEK, opened=True),
    "glm-4.5": Family("glm4moe", GLM),
    "glm-4.5 off": Family("glm4moe", GLM, kwargs=OFF),
    "nemotron-3": Family("nemotron_3_nano", CHATML, opened=True),
    "lfm-2.5": Family("lfm2_2_5", CHATML),
    "gemma-4": Family("gemma4_v5", GEMMA_4, markers=("<|channel>", "<channel|>")),
}
PLAIN = {
    "qwen3-2507": Family("qwen3_instruct_2507", CHATML, markers=None),
    "qwen2.5": Family("qwen2_5", CHATML, markers=None),
    "llama-3.1": Family("llama3_1", LLAMA, markers=None),
    "gemma-3": Family("gemma3", GEMMA, markers=None),
}
CHANNELS = {
    "gpt-oss": Family("gptoss", HARMONY, markers=None),
    "muse-glimmer": Family("muse_glimmer", HARMONY, markers=None),
}

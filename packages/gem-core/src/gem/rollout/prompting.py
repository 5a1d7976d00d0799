"""How a policy is prompted: settings that adapters and RunSpecs have in common."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from gem.rollout.context import check_context
from gem.rollout.thinking import MODES
from gem.rollout.tokens import ChatFormat, Tokenizer
from gem.specs import imported
from gem.tables import setting


@dataclass(frozen=True)
class Prompting:
    """What the policy is shown, and what of its replies the environment is given."""

    context: str = setting(
        "context that builds the prompts: `chat`, `concat`, `concat_with_action`, `window:<k>`",
        "chat",
        check=check_context,
    )
    system_prompt: str | None = setting("text of a system message before everything else", None)
    template_kwargs: Mapping[str, Any] | None = setting(
        "further arguments of the chat template, such as `enable_thinking`", None
    )
    thinking: str = setting(
        "`keep` earlier thinking in the prompt, `drop` it, or take it for `text` like any other",
        "keep",
        choices=MODES,
    )

    def chat_format(self, tokenizer: Tokenizer) -> ChatFormat:
        """Return the chat format of a tokenizer, or of a processor, which can show images.

        Raises:
            ConfigurationError: Its template cannot be used, or has no thinking to drop.
        """
        sees = hasattr(tokenizer, "image_processor")
        made = imported("gem.rollout.vision:VisionChatFormat") if sees else ChatFormat
        chat: ChatFormat = made(
            tokenizer,
            system_prompt=self.system_prompt,
            template_kwargs=self.template_kwargs,
            thinking=self.thinking,
        )
        return chat

    def shared_chat_format(self, tokenizer: Any) -> ChatFormat:
        """Return `chat_format`, the same object for the same tokenizer and settings.

        Examining a template takes long, for callers that ask before every episode.
        """
        known = {each.name: getattr(self, each.name) for each in fields(Prompting)}
        return _chat_format(tokenizer, json.dumps(known))

    @property
    def shown(self) -> str:
        """What decides how many rows an episode has, for messages."""
        return f"context {self.context!r} with thinking {self.thinking!r}"

    @property
    def one_row(self) -> bool:
        """Whether an episode is one growing sequence, not one of its own for every turn."""
        return self.context == "chat" and self.thinking != "drop"

    def several_rows(self, reason: str, prefix: str = "") -> list[tuple[str, bool, str]]:
        """Refuse what makes several training rows of an episode.

        Args:
            reason: Why there must be one.
            prefix: What comes before the names of the settings.

        Returns:
            For each setting its name, whether its value is refused, and why.
        """
        return [
            (f"{prefix}context", self.context != "chat", f"{reason}: only 'chat' is possible"),
            (f"{prefix}thinking", self.thinking == "drop", f"{reason}: choose 'keep'"),
        ]


@functools.lru_cache(maxsize=8)
def _chat_format(tokenizer: Any, prompting: str) -> ChatFormat:
    return Prompting(**json.loads(prompting)).chat_format(tokenizer)

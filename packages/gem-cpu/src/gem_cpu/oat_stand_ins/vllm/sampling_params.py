"""Stand-in for `vllm.sampling_params`."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class RequestOutputKind(Enum):
    """What is returned of a request before it is finished; here nothing, whatever is asked for."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


@dataclass
class SamplingParams:
    """How a request is sampled; vLLM's names and defaults."""

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int = 16
    logprobs: int | None = None
    seed: int | None = None
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    stop_token_ids: list[int] = field(default_factory=list)

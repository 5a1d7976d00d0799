"""`python -m gem_trl.train` with vLLM in its process, on a CPU: eager and in fp32.

TRL passes neither setting on, and by itself vLLM would compile and serve fp32 weights in bf16.
"""

from __future__ import annotations

import functools
import sys

from trl.generation import vllm_generation

from gem_trl.train import main

vllm_generation.LLM = functools.partial(
    vllm_generation.LLM, enforce_eager=True, dtype="float32", enable_chunked_prefill=False
)

if __name__ == "__main__":
    sys.exit(main())

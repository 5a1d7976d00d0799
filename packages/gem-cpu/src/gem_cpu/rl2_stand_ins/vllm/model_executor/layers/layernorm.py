"""SGLang's own normalisation layers under vLLM's name.

On a CPU without AMX, SGLang replaces its layers by vLLM's, although its own have plain PyTorch code
for this case. If vLLM were missing it would run transformers' models instead of its own.
"""

from sglang.srt.layers.layernorm import GemmaRMSNorm, RMSNorm

__all__ = ["GemmaRMSNorm", "RMSNorm"]

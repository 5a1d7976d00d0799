"""SGLang's own activation layers under vLLM's name; see `layernorm`."""

from sglang.srt.layers.activation import GeluAndMul, SiluAndMul

__all__ = ["GeluAndMul", "SiluAndMul"]

"""See `layers.layernorm`: what SGLang imports of vLLM on a CPU without AMX."""

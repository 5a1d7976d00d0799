"""Stand-in for vLLM: what SGLang imports on a CPU without AMX; see `layers.layernorm`."""

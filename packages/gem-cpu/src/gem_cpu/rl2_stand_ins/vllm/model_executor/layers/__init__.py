"""Stand-in for `vllm.model_executor.layers`; see `layernorm`."""

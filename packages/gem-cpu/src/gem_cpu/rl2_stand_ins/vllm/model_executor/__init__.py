"""Stand-in for `vllm.model_executor`; see `layers.layernorm`."""

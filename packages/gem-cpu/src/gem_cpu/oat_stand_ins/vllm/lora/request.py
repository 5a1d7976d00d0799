"""Stand-in for `vllm.lora.request`; adapters are not served."""


class LoRARequest:
    """oat imports this class and never instantiates it."""

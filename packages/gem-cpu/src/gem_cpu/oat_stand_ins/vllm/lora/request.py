"""Stand-in for `vllm.lora.request`; adapters are not served."""


class LoRARequest:
    """Imported by oat, never made."""

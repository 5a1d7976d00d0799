"""What decides how sums are rounded on this machine."""

from __future__ import annotations

from pathlib import Path


def arithmetic() -> str:
    """Return processor, instruction set, BLAS and threads, as PyTorch uses them."""
    import torch

    known = [line.strip(" -") for line in torch.__config__.show().splitlines()]
    libraries = [k for k in known if ("MKL" in k or "BLAS" in k) and not k.startswith("Build")]
    parts = [processor(), torch.backends.cpu.get_cpu_capability(), *libraries]
    return ", ".join([*parts, f"torch {torch.__version__}", f"{torch.get_num_threads()} threads"])


def processor() -> str:
    """Return the processor's name, with family, model and stepping: names alone can hide them."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    known: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        known.setdefault(name.strip(), value.strip())
    numbers = [known[n] for n in ("cpu family", "model", "stepping") if n in known]
    return f"{known.get('model name', 'unknown processor')} ({'/'.join(numbers)})"

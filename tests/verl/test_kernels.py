"""Log-probabilities that verl's own parts compute: of shared and packed rows, of a fused head."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gem_train.experiment.hardware import logit_scales

LENGTHS = [40, 90, 70]
"""Of rows that are packed into one of 200 tokens, which two ranks cut in the middle."""

MODEL = """
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

LENGTHS = {lengths}


def model(attention="sdpa"):
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, head_dim=32,
        num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True,
    )
    made = AutoModelForCausalLM.from_config(config, attn_implementation=attention).float()
    for weight in made.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.2)
    return made


torch.manual_seed(1)
ids = torch.randint(0, 256, (1, sum(LENGTHS)))
places = torch.cat([torch.arange(n) for n in LENGTHS])[None]
labels = torch.roll(ids, -1, 1)


def chosen(logits, labels):
    return logits.float().log_softmax(-1).gather(-1, labels[..., None]).squeeze(-1)


def packed(network, ids=ids, places=places, labels=labels):
    out = network(input_ids=ids, attention_mask=None, position_ids=places, use_cache=False)
    return chosen(out.logits, labels)


def apart(network):
    found, at = [], 0
    for n in LENGTHS:
        logits = network(input_ids=ids[:, at : at + n], use_cache=False).logits
        found.append(chosen(logits, labels[:, at : at + n]))
        at += n
    return torch.cat(found, 1)
"""

SHARED = """
import torch.distributed as dist
from verl.models.transformers.monkey_patch import apply_monkey_patch
from verl.utils.ulysses import set_ulysses_sequence_parallel_group, ulysses_pad_and_slice_inputs

dist.init_process_group("gloo")
network = model()
with torch.no_grad():
    whole, separate = packed(network), apart(network)
    set_ulysses_sequence_parallel_group(dist.group.WORLD)
    apply_monkey_patch(network, ulysses_sp_size=2, use_remove_padding=True)
    mine, where, pad = ulysses_pad_and_slice_inputs(ids, position_ids_rmpad=places, sp_size=2)
    wanted, _, _ = ulysses_pad_and_slice_inputs(labels, None, sp_size=2)
    part = packed(network, mine, where, wanted)[0].contiguous()
    parts = [torch.empty_like(part) for _ in range(2)]
    dist.all_gather(parts, part)
difference = (torch.cat(parts) - whole[0]).abs()
if dist.get_rank() == 0:
    print(float((whole - separate).abs().max()), (difference > 1e-3).nonzero().flatten().tolist())
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.nightly
def test_rows_that_verl_shares_without_flash_attention_are_wrong_where_they_were_cut() -> None:
    """Why gem-verl refuses it. Should verl learn it, this fails, and the refusal can go."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    code = MODEL.format(lengths=LENGTHS) + SHARED
    env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    env |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", code],
            env={**env, "RANK": str(rank), "GEM_CPU": "0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=300) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    packed, _, wrong = outputs[0][0].strip().splitlines()[-1].partition(" ")
    # Packed on one rank, each row sees itself only.
    assert float(packed) < 1e-4
    # The second row begins at 40 and was cut at 100: its end saw nothing of its beginning.
    assert wrong == str(list(range(100, LENGTHS[0] + LENGTHS[1])))


def parts() -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(MODEL.format(lengths=LENGTHS), names)
    return names


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_fused_kernels_give_the_log_probabilities_and_gradients_of_logits(
    temperature: float,
) -> None:
    """Without flash attention; rows of more tokens than a chunk of verl's."""
    from verl.models.transformers.monkey_patch import apply_monkey_patch

    names = parts()
    network = names["model"]()
    batch = torch.randint(0, 256, (1, 700))
    labels = torch.roll(batch, -1, 1)

    def gradients(logprobs: torch.Tensor, entropy: torch.Tensor) -> list[torch.Tensor]:
        network.zero_grad()
        (logprobs * torch.linspace(-1, 1, 700)).sum().add(0.1 * entropy.sum()).backward()
        return [weight.grad.clone() for weight in network.parameters()]

    logits = network(input_ids=batch, use_cache=False).logits / temperature
    distribution = torch.distributions.Categorical(logits=logits)
    expected = distribution.log_prob(labels), distribution.entropy()
    wanted = gradients(*expected)
    original = type(network).forward
    try:
        apply_monkey_patch(network, use_fused_kernels=True, fused_kernels_backend="torch")
        out = network(input_ids=batch, use_cache=False, return_dict=True, temperature=temperature)
        found = out.log_probs, out.entropy
        assert not hasattr(out, "logits") or out.logits is None
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(gradients(*found), wanted, rtol=1e-3, atol=1e-3)
    finally:
        type(network).forward = original


def test_fused_kernels_leave_out_what_scales_logits(tmp_path: Any) -> None:
    """Why gem-verl refuses them for such models: they read the last matrix alone."""
    from transformers import AutoModelForCausalLM, Gemma2Config
    from verl.models.transformers.monkey_patch import apply_monkey_patch

    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1, head_dim=16,
        num_attention_heads=2, num_key_value_heads=2, final_logit_softcapping=0.5,
    )  # fmt: skip
    network = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").float()
    batch = torch.arange(1, 30)[None]
    labels = torch.roll(batch, -1, 1)
    expected = network(input_ids=batch, use_cache=False).logits.log_softmax(-1)
    expected = expected.gather(-1, labels[..., None]).squeeze(-1).detach()
    original = type(network).forward
    try:
        apply_monkey_patch(network, use_fused_kernels=True, fused_kernels_backend="torch")
        found = network(input_ids=batch, use_cache=False, return_dict=True).log_probs.detach()
    finally:
        type(network).forward = original
    assert float((found - expected).abs().max()) > 0.01
    config.save_pretrained(tmp_path)
    assert logit_scales(str(tmp_path)) == ["final_logit_softcapping"]


@pytest.mark.parametrize("tokens", [400, 1600])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_verls_fused_head_takes_the_estimated_memory(
    precision: str, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `gem-bench fit` says of it, and of oat's, which is the same but for names."""
    from memory import Peak
    from verl.utils.experimental.torch_functional import FusedLinearForPPO

    # A package of this repository that the environments of trainers lack.
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "packages" / "gem-bench" / "src"))
    from gem_bench.fit import TRAINERS

    dtype, element = (torch.float32, 4) if precision == "fp32" else (torch.bfloat16, 2)
    hidden = torch.randn(tokens, 64, dtype=dtype).requires_grad_()
    weight = torch.randn(6000, 64, dtype=dtype).requires_grad_()
    with Peak() as measured:
        logprobs, _ = FusedLinearForPPO()(hidden, weight, torch.randint(0, 6000, (tokens,)))
        logprobs.sum().backward()
    shape = SimpleNamespace(vocabulary=6000, hidden=64)
    head = TRAINERS["verl"].head
    guessed = head.size(shape, tokens, element, trained=True, entropy=False)  # type: ignore[arg-type]
    assert 0.8 < guessed / measured.peak < 1.2

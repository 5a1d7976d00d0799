"""Does vLLM draw from the model's distribution, with the seeds that the adapters give it?

    GEM_CPU=1 VLLM_TARGET_DEVICE=cpu VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind \\
        TORCHDYNAMO_DISABLE=1 OMP_NUM_THREADS=1 \\
        .venvs/verl/bin/python benchmarks/sampler.py --model MODEL
    .venvs/dev/bin/python benchmarks/sampler.py --model MODEL --runs RUN [RUN ...]

The first samples from a fixed model with vLLM alone. The second reads the episodes that a real
trainer recorded, of runs whose weights did not change (`--set optimizer.lr=1e-12`): everything that
stands between an adapter and the engine is in between, too. Both add up, over all tokens drawn,
what should be zero on average: the surprisal less the entropy, the share of tokens that end a turn
less its expectation, the share of tokens below e^-10 less its expectation, and, for the 30
likeliest tokens of each distribution, the number drawn less the number expected (chi-square, as a
standard normal number). The baseline is inverse-transform sampling in double precision from the
same distributions. Standard deviations
beyond 4 are no chance.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from gem.rollout import ChatFormat
from gem.seeding import stream
from gem_train.record import read_run

ROWS, TURN, RARE, RANKS = 512, 16, -10.0, 30


class Tally:
    """Sums of deviations from what the model expects, and of their variances."""

    def __init__(self) -> None:
        self._sums = {name: [0.0, 0.0] for name in ("surprisal", "stops", "rare")}
        self._ranks = torch.zeros(RANKS, dtype=torch.float64)
        self._covariance = torch.zeros(RANKS, RANKS, dtype=torch.float64)
        self.tokens = 0

    def add(self, logprobs: Tensor, drawn: Tensor, stop: Tensor) -> None:
        """Take distributions `[n, vocab]` and the token drawn from each, `[n]`."""
        probs = logprobs.exp()
        entropy = -(probs * logprobs).sum(-1)
        variance = (probs * logprobs**2).sum(-1) - entropy**2
        chosen = logprobs.gather(1, drawn[:, None])[:, 0]
        self._one("surprisal", -chosen - entropy, variance)
        for name, share, hit in (
            ("stops", probs[:, stop].sum(-1), torch.isin(drawn, stop)),
            ("rare", (probs * (logprobs < RARE)).sum(-1), chosen < RARE),
        ):
            self._one(name, hit.double() - share, share * (1 - share))
        likeliest, order = probs.topk(RANKS)
        self._ranks += ((order == drawn[:, None]).double() - likeliest).sum(0)
        self._covariance += torch.diag(likeliest.sum(0)) - likeliest.T @ likeliest
        self.tokens += len(drawn)

    def _one(self, name: str, deviations: Tensor, variances: Tensor) -> None:
        self._sums[name][0] += float(deviations.sum())
        self._sums[name][1] += float(variances.sum())

    def line(self) -> str:
        """Standard deviations of everything."""
        found = [total / math.sqrt(variance) for total, variance in self._sums.values()]
        square = float(self._ranks @ torch.linalg.solve(self._covariance, self._ranks))
        found.append((square - RANKS) / math.sqrt(2 * RANKS))
        return f"{self.tokens:10,}  " + "  ".join(f"{value:9.2f}" for value in found)


def prompts(chat: ChatFormat, batch: int) -> list[list[int]]:
    """Beginnings of games, told apart by a number."""
    rng = stream(7, batch)
    return [
        chat.prompt(f"Guess a number between 1 and {rng.randint(2, 999)}.") for _ in range(ROWS)
    ]


def distributions(
    model: torch.nn.Module, rows: Sequence[tuple[list[int], list[int]]]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield log-probabilities `[n, vocab]` and drawn tokens `[n]` of rows.

    Args:
        model: What they were sampled from.
        rows: Token ids, and the positions of those that were sampled.
    """
    for first in range(0, len(rows), 64):
        part = rows[first : first + 64]
        width = max(len(ids) for ids, _ in part)
        ids = torch.tensor([ids + [0] * (width - len(ids)) for ids, _ in part])
        mask = torch.tensor([[1] * len(ids) + [0] * (width - len(ids)) for ids, _ in part])
        with torch.no_grad():
            logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        where = [(i, position) for i, (_, sampled) in enumerate(part) for position in sampled]
        row, position = torch.tensor(where).T
        yield logits[row, position - 1].double().log_softmax(-1), ids[row, position]


def recorded(folder: Path) -> list[tuple[list[int], list[int]]]:
    """Return the rows of a run's training episodes."""
    rows = []
    for episode in read_run(folder).episodes("train"):
        for row in episode.trajectory.training_rows():
            start = len(row.prompt_ids)
            sampled = [start + i for span in row.spans for i in range(span.start, span.end)]
            rows.append((row.prompt_ids + row.response_ids, sampled))
    return rows


def inverse_transform(logprobs: Tensor, rng: random.Random) -> Tensor:
    """Draw a token from each distribution in double precision, `[n]`."""
    u = torch.tensor([rng.random() for _ in logprobs], dtype=torch.float64)
    mass = logprobs.exp().cumsum(-1)
    return torch.searchsorted(mass, (u * mass[:, -1])[:, None], right=True)[:, 0]


def audit_runs(model: torch.nn.Module, stop: Tensor, folders: Sequence[Path]) -> None:
    """Print a line for each run, and one for the baseline on the same distributions."""
    print(f"{'':18}  {'tokens':>10}  {'surprisal':>9}  {'stops':>9}  {'rare':>9}  {'ranks':>9}")
    baseline, rng = Tally(), random.Random(0)
    for folder in folders:
        tally = Tally()
        for logprobs, drawn in distributions(model, recorded(folder)):
            tally.add(logprobs, drawn, stop)
            baseline.add(logprobs, inverse_transform(logprobs, rng), stop)
        print(f"{folder.name:18}  {tally.line()}", flush=True)
    print(f"{'double precision':18}  {baseline.line()}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--runs", type=Path, nargs="+", help="folders of recorded runs")
    args = parser.parse_args()
    chat = ChatFormat(AutoTokenizer.from_pretrained(args.model))
    stops = sorted(chat.stop_ids)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    if args.runs:
        audit_runs(model, torch.tensor(stops), args.runs)
        return 0
    import vllm

    settings = {"dtype": "float32", "max_model_len": 256, "enforce_eager": True}
    # vLLM cannot rewind a CPU's random numbers, as it would after the first part of a prompt.
    settings |= {"enable_chunked_prefill": False, "max_num_batched_tokens": 8192}
    engine = vllm.LLM(args.model, **settings)
    engines, baseline, began, batch = Tally(), Tally(), time.monotonic(), 0
    while engines.tokens < args.tokens:
        asked = prompts(chat, batch)
        params = [
            vllm.SamplingParams(
                temperature=1.0,
                max_tokens=TURN,
                stop_token_ids=stops,
                seed=stream(0, batch, row, 0).getrandbits(31),
            )
            for row in range(ROWS)
        ]
        texts = [{"prompt_token_ids": ids} for ids in asked]
        outputs = engine.generate(texts, params, use_tqdm=False)
        rows = []
        for prompt, output in zip(asked, outputs, strict=True):
            ids = prompt + list(output.outputs[0].token_ids)
            rows.append((ids, list(range(len(prompt), len(ids)))))
        rng = random.Random(batch)
        for logprobs, drawn in distributions(model, rows):
            stop = torch.tensor(stops)
            engines.add(logprobs, drawn, stop)
            exact = inverse_transform(logprobs, rng)
            baseline.add(logprobs, exact, stop)
        batch += 1
    print(f"{batch} batches in {time.monotonic() - began:.0f} s; standard deviations of")
    print(f"{'':18}  {'tokens':>10}  {'surprisal':>9}  {'stops':>9}  {'rare':>9}  {'ranks':>9}")
    print(f"{'vLLM ' + vllm.__version__:18}  {engines.line()}")
    print(f"{'double precision':18}  {baseline.line()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

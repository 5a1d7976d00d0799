"""A copy of the model that samples in the trainer's process, for `gem_trl.async_trainer`."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, GenerationConfig

from gem.errors import RolloutError
from gem.rollout.play import Request, Sample
from gem_train.sampling import EngineSampler


class InProcessEngine:
    """Samples rounds of turns with `generate`; gets its weights from TRL's async trainer.

    It is both the sampler of a `gem_trl.async_worker.GemRolloutWorker` and TRL's `weight_transfer`
    (`trl.experimental.async_grpo.async_grpo_trainer.WeightTransferProtocol`). Weights change
    between rounds only. Version `n` has received them `n` times, which is TRL's `model_version`.
    """

    def __init__(
        self,
        model: str,
        *,
        temperature: float,
        stop_ids: frozenset[int],
        pad_id: int,
        device: Any = "cpu",
        **model_kwargs: Any,
    ) -> None:
        """Load the copy.

        Args:
            model: Folder or name of the model, as for AsyncGRPOTrainer.
            temperature: Divides the logits; log-probabilities are of the divided ones, as those of
                TRL's async trainer are.
            stop_ids: Tokens at which a turn ends.
            pad_id: Token that fills up shorter prompts, to which nothing attends.
            device: Where the copy is.
            **model_kwargs: Arguments of `from_pretrained`.
        """
        self._model = AutoModelForCausalLM.from_pretrained(model, **model_kwargs).to(device).eval()
        # The model's own would leave tokens out, or penalise them.
        self._model.generation_config = GenerationConfig()
        self._engine = EngineSampler(stop_ids)
        self._temperature = temperature
        self._pad_id = pad_id
        self._weights = threading.Lock()
        self.version = 0
        """How often the weights have been received."""

    def __call__(self, requests: Sequence[Request]) -> list[Sample]:
        """Sample a turn for each request."""
        longest = max(len(request.prompt_ids) for request in requests)
        pads = [longest - len(request.prompt_ids) for request in requests]
        prompts = [
            [self._pad_id] * pad + request.prompt_ids
            for pad, request in zip(pads, requests, strict=True)
        ]
        device = self._model.device
        ids = torch.tensor(prompts, device=device)
        attended = torch.tensor([[0] * pad + [1] * (longest - pad) for pad in pads], device=device)
        with self._weights, torch.no_grad():
            version = self.version
            output = self._model.generate(
                input_ids=ids,
                attention_mask=attended,
                max_new_tokens=max(request.max_tokens for request in requests),
                do_sample=True,
                temperature=self._temperature,
                top_k=0,
                top_p=1.0,
                eos_token_id=self._engine.stop_ids,
                pad_token_id=self._pad_id,
                output_scores=True,
                return_dict_in_generate=True,
            )
        sampled = output.sequences[:, longest:].cpu()
        logprobs = torch.stack(output.scores, 1).float().log_softmax(-1).cpu()
        known = logprobs.gather(-1, sampled[..., None])[..., 0]
        samples = []
        for row, request in enumerate(requests):
            length = self._length(sampled[row].tolist(), request.max_tokens)
            turn, found = sampled[row, :length].tolist(), known[row, :length].tolist()
            samples.append(self._engine.sample(turn, found, cut=True, version=version))
        return samples

    def _length(self, ids: Sequence[int], most: int) -> int:
        """Return the number of tokens of a turn: up to its first stop token, at most so many."""
        ends = [place + 1 for place, token in enumerate(ids) if token in self._engine.stop_ids]
        return min([most, len(ids), *ends[:1]])

    # TRL's WeightTransferProtocol

    def init_weight_transfer(self) -> None:
        """Nothing is needed."""

    def pause(self) -> None:
        """Wait for the end of the round that is being sampled, and begin no other one."""
        self._weights.acquire()

    def send_weights(self, iterator: Iterator[tuple[str, Tensor]]) -> None:
        """Take over the trainer's weights.

        Raises:
            RolloutError: They are not those of this model.
        """
        try:
            self._receive(iterator)
        except BaseException:
            # TRL does not call `resume` then, and ends the worker, which may wait for them.
            if self._weights.locked():
                self._weights.release()
            raise

    def _receive(self, iterator: Iterator[tuple[str, Tensor]]) -> None:
        own = dict(self._model.named_parameters())
        received = set()
        with torch.no_grad():
            for name, weight in iterator:
                if name not in own or own[name].shape != weight.shape:
                    raise RolloutError(f"the trainer sent weights that the engine lacks: {name}")
                own[name].copy_(weight)
                received.add(name)
        if missing := sorted(own.keys() - received):
            raise RolloutError(f"the trainer did not send all weights: {', '.join(missing)}")

    def resume(self) -> None:
        """Sample with the weights that were received."""
        self.version += 1
        self._weights.release()

    def destroy(self) -> None:
        """Nothing is held."""

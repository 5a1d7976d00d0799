"""`python -m gem_trl.train` with a vLLM server in whose place the main process's model answers.

vLLM's server needs a GPU, but what decides which process gets which answer is TRL's own
`VLLMGeneration.generate`, which runs here as it is. With `--apart` the processes do not sample in
step.
"""

from __future__ import annotations

import sys
from typing import Any

from trl.generation.vllm_generation import VLLMGeneration

import gem_trl.trainer
from gem_train.seams import replaced
from gem_trl.train import main


class Server:
    """Answers as a vLLM server would that has the model's weights."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def generate(self, prompts: list[list[int]], **params: Any) -> dict[str, Any]:
        assert params["generation_kwargs"]["stop_token_ids"] == self.trainer.eos_token_ids
        with replaced(self.trainer, "use_vllm", False):
            ids, _ = self.trainer._generate_single_turn(prompts, None, {}, 1)
        # vLLM's, of the processed distribution: greedy tokens are certain.
        logprobs = [[[0.0] for _ in answer] for answer in ids]
        return {"prompt_ids": prompts, "completion_ids": ids, "logprobs": logprobs}


class Served(gem_trl.trainer.GemGRPOTrainer):
    """A trainer that is told that it has a server."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        generation = object.__new__(VLLMGeneration)
        wanted = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
        vars(generation).update({name: getattr(self, name) for name in wanted})
        vars(generation).update(
            accelerator=self.accelerator,
            mode="server",
            max_completion_length=self.max_completion_length,
            logprobs=0,
            generation_kwargs={"stop_token_ids": self.eos_token_ids},
            structured_outputs_regex=None,
            vllm_client=Server(self),
            sync_weights=lambda: None,
        )
        self.vllm_generation = generation
        self.use_vllm, self.vllm_mode, self._last_loaded_step = True, "server", -1


class Apart(Served):
    """The same without rounds in step."""

    sampling_is_collective = False


if __name__ == "__main__":
    apart = "--apart" in sys.argv
    gem_trl.trainer.GemGRPOTrainer = Apart if apart else Served  # type: ignore[misc]
    sys.exit(main([argument for argument in sys.argv[1:] if argument != "--apart"]))

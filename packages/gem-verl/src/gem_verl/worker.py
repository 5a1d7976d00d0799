"""verl's part of vLLM's worker, for models that see: the policy may sample each of its tokens.

`+actor_rollout_ref.rollout.engine_kwargs.vllm.worker_extension_cls=gem_verl.worker.GemWorker`
"""

from __future__ import annotations

from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

from gem_train.seams import Seam, check_seams
from gem_verl import TRAINER

SEAMS = (Seam("monkey_patch_model", "self, vocab_size, banned_token_ids"),)
"""Methods of verl's worker that are extended here, with their parameters."""

check_seams(TRAINER, SEAMS, owner=vLLMColocateWorkerExtension)


class GemWorker(vLLMColocateWorkerExtension):  # type: ignore[misc]
    """verl's part of the worker, which bans no token.

    verl gives the placeholders of images and videos the probability 0 in the engine, but not in the
    learner: log-probabilities of all other tokens would differ. GEM ends a response before such a
    token (`gem.rollout.vision`).
    """

    def monkey_patch_model(
        self, vocab_size: int, banned_token_ids: list[int] | None = None
    ) -> None:
        """Prepare the model as verl does, without banned tokens."""
        super().monkey_patch_model(vocab_size)

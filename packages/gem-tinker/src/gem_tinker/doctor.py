"""`python -m gem_tinker.doctor`: does GEM work with this tinker and its server? If not, why not?"""

from __future__ import annotations

import asyncio
import sys
from functools import partial

from gem.errors import MissingExtraError
from gem_tinker import COOKBOOK, SUPPORTED_COOKBOOK, TRAINER, check_cookbook
from gem_train.doctor import Check, doctor, entry_point, importable
from gem_train.seams import calls, check_seams

ANSWER_TIMEOUT_S = 30.0

SEAMS = calls(
    "tinker",
    {
        "ServiceClient.create_lora_training_client": "self, base_model, *, rank, seed, "
        "train_unembed",
        "ServiceClient.create_training_client_from_state": "self, path",
        "ServiceClient.create_training_client_from_state_with_optimizer": "self, path",
        "RestClient.get_server_capabilities": "self",
        "RestClient.get_weights_info_by_tinker_path": "self, tinker_path",
        "TrainingClient.forward_backward": "self, data, loss_fn, loss_fn_config",
        "TrainingClient.get_tokenizer": "self",
        "TrainingClient.optim_step": "self, optim_params",
        "TrainingClient.save_state": "self, name",
        "TrainingClient.save_weights_and_get_sampling_client": "self, *, record_stability_info",
        "SamplingClient.sample": "self, *, prompt, num_samples, sampling_params",
    },
) + calls("tinker.lib.base_url", {"resolve_base_url": "base_url"})
"""What is called of the SDK, with the parameters that are given."""


check_hooks = partial(check_seams, TRAINER, SEAMS)
"""The SDK has what is called."""


def check_cookbook_hooks() -> str:
    """The cookbook is not installed, or has what is called and replaced."""
    try:
        found = check_cookbook()
    except MissingExtraError:
        return "no tinker-cookbook: only the direct loop can be used"
    [train] = importable("gem_tinker.cookbook_train", what=f"tinker-cookbook {found}")
    check_seams(COOKBOOK, train.SEAMS)
    return f"tinker-cookbook {found} (supported: {SUPPORTED_COOKBOOK})"


def check_server() -> str:
    """Something listens at the server's address, accepts the SDK's key and has models."""
    from gem_tinker.server import models, reach

    url, names = reach(None), list(asyncio.run(models(None, ANSWER_TIMEOUT_S)))
    return f"server: {url} with {', '.join(names[:5])}{' ...' if len(names) > 5 else ''}"


CHECKS: tuple[Check, ...] = (
    TRAINER.describe,
    partial(entry_point, "gem-tinker", "tinker"),
    check_hooks,
    check_cookbook_hooks,
    check_server,
)
"""In order; a check may rely on those before it."""


if __name__ == "__main__":
    sys.exit(doctor(CHECKS))

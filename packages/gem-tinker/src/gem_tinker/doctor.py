"""`python -m gem_tinker.doctor`: does GEM work with this tinker and its server? If not, why not?"""

from __future__ import annotations

import asyncio
import importlib.metadata
import inspect
import sys
from typing import Any

from gem.errors import MissingExtraError
from gem.training.doctor import Check, ProblemError, doctor
from gem_tinker import (
    SUPPORTED_COOKBOOK,
    SUPPORTED_TINKER,
    __version__,
    check_cookbook,
    check_tinker,
)

ANSWER_TIMEOUT_S = 30.0

SEAMS = {
    "ServiceClient.create_lora_training_client": ("base_model", "rank", "seed", "train_unembed"),
    "ServiceClient.create_training_client_from_state_with_optimizer": ("path",),
    "TrainingClient.forward_backward": ("data", "loss_fn", "loss_fn_config"),
    "TrainingClient.optim_step": (),
    "TrainingClient.save_state": ("name",),
    "TrainingClient.save_weights_and_get_sampling_client": ("record_stability_info",),
    "SamplingClient.sample": ("prompt", "num_samples", "sampling_params"),
}
"""Methods of the SDK that are called, with the parameters that are used."""

COOKBOOK_SEAMS = {
    "train_step": ("data_D", "training_client", "learning_rate", "num_substeps", "loss_fn"),
    "save_checkpoint_and_get_sampling_client": ("training_client", "checkpoint_mgr", "i_batch"),
    "compute_full_batch_metrics_and_get_sampling_client": ("data_D", "training_logprobs_D"),
    "run_evaluations_parallel": ("evaluators", "sampling_client", "config", "i_batch", "store"),
}
"""The same for functions of `tinker_cookbook.rl.train`."""


def check_version() -> str:
    """The SDK is installed in a supported version."""
    return f"tinker {check_tinker()} (supported: {SUPPORTED_TINKER}), gem-tinker {__version__}"


def check_entry_point() -> str:
    """gem-bench will find the adapter."""
    names = {entry.name for entry in importlib.metadata.entry_points(group="gem.adapters")}
    if "tinker" not in names:
        raise ProblemError(
            "gem-tinker's entry point is missing: the package is on the path but not installed. "
            "Run: pip install gem-tinker (in a clone: pip install -e packages/gem-tinker)"
        )
    return "gem-bench finds the adapter"


def check_hooks() -> str:
    """The SDK has what is called."""
    import tinker

    missing(tinker, SEAMS)
    return f"{len(SEAMS)} methods of the SDK are as expected"


def check_cookbook_hooks() -> str:
    """The cookbook is not installed, or has what is called."""
    try:
        found = check_cookbook()
    except MissingExtraError:
        return "no tinker-cookbook: only the direct loop can be used"
    try:
        from tinker_cookbook.rl import train
    except ImportError as error:
        raise ProblemError(f"tinker-cookbook {found} cannot be imported: {error}") from error
    missing(train, COOKBOOK_SEAMS)
    return f"tinker-cookbook {found} (supported: {SUPPORTED_COOKBOOK})"


def check_key() -> str:
    """The SDK finds a key."""
    import tinker

    try:
        tinker.RestClient()
    except tinker.TinkerError as error:
        raise ProblemError(
            f"no key: {error}. (A server of your own takes any TINKER_API_KEY that begins with "
            "tml-.)"
        ) from error
    return "there is a key"


def check_reachable() -> str:
    """Something listens at the server's address."""
    from gem_tinker.probe import reach

    return f"server: {reach(None)}"


def check_answers() -> str:
    """The server accepts the key and has models."""
    import tinker
    from tinker.lib.base_url import resolve_base_url

    async def ask() -> Any:
        question = tinker.RestClient().get_server_capabilities()
        return await asyncio.wait_for(question, ANSWER_TIMEOUT_S)

    try:
        models = [str(model.model_name) for model in asyncio.run(ask()).supported_models]
    except (tinker.TinkerError, asyncio.TimeoutError) as error:
        raise ProblemError(
            f"the Tinker server at {resolve_base_url()} does not answer: "
            f"{type(error).__name__}: {error}"
        ) from error
    return f"models: {', '.join(models[:5])}{' ...' if len(models) > 5 else ''}"


CHECKS: tuple[Check, ...] = (
    check_version,
    check_entry_point,
    check_hooks,
    check_cookbook_hooks,
    # Before anything that lets the SDK connect, which it tries for minutes.
    check_reachable,
    check_key,
    check_answers,
)


def missing(owner: Any, seams: dict[str, tuple[str, ...]]) -> None:
    """Make sure that functions exist and have parameters of these names.

    Raises:
        ProblemError: Names the first that does not.
    """
    for name, parameters in seams.items():
        function = owner
        for part in name.split("."):
            function = getattr(function, part, None)
        known = [] if function is None else list(inspect.signature(function).parameters)
        lacking = [parameter for parameter in parameters if parameter not in known]
        if function is None or lacking:
            what = "is missing" if function is None else f"has no parameter {', '.join(lacking)}"
            raise ProblemError(
                f"{owner.__name__}.{name} {what}; gem-tinker {__version__} supports tinker "
                f"{SUPPORTED_TINKER} and tinker-cookbook {SUPPORTED_COOKBOOK}"
            )


def main() -> int:
    """Print the findings; exit status 1 if something is wrong."""
    return doctor(CHECKS)


if __name__ == "__main__":
    sys.exit(main())

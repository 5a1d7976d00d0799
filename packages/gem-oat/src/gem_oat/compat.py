"""oat 0.2 with newer versions of what it pins: torch, vLLM, transformers.

oat-llm 0.2.4 pins torch 2.6, vLLM 0.8.4 and transformers 4.51. With those nothing here changes what
happens; with newer ones, on GPUs too, it does not run without.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from gem_train.imports import after_import


@functools.cache
def install() -> None:
    """Have oat's modules adapted in this process when they are imported.

    Also an entry point of vLLM, which calls it in each of its processes.
    """
    after_import("oat.utils.distributed", _process_groups)
    after_import("oat.model", lambda module: _tied_weights())


def _process_groups(known: Any) -> None:
    helper = known._new_process_group_helper
    if "backend_options" in inspect.signature(helper).parameters:
        # oat compares versions as texts, in which 2.10 comes before 2.6, and passes the old name.
        def renamed(*args: Any, pg_options: Any = None, **kwargs: Any) -> Any:
            kwargs.setdefault("backend_options", pg_options)
            return helper(*args, **kwargs)

        known._new_process_group_helper = renamed
    start = known.WorkerWrap.init_process_group

    def init_process_group(self: Any, *args: Any, **kwargs: Any) -> None:
        # What it returns is for nobody, and newer engines cannot send it between processes.
        start(self, *args, **kwargs)

    known.WorkerWrap.init_process_group = init_process_group


def _tied_weights() -> None:
    from transformers import PreTrainedModel

    # Set by `post_init`, which oat's critic does not call, and read when weights are loaded.
    if not hasattr(PreTrainedModel, "all_tied_weights_keys"):
        PreTrainedModel.all_tied_weights_keys = {}

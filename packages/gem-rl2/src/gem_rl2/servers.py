"""The trainer ends with its servers, which RL2 starts as processes of the trainer's.

If a part of an SGLang server dies, the rest goes on listening and answers nothing.
"""

from __future__ import annotations

import threading
from functools import partial

from gem.training import processes

PART = "sglang"
"""How the names of the processes begin that a server consists of."""
MESSAGE = "gem-rl2: a process of SGLang has ended"


def watch() -> None:
    """Stop this process when a part of its servers is gone; called when they are there."""
    parts = {
        part: server
        for server in processes.children_of()
        for part in processes.children_of(server, recursive=True)
        if processes.name_of(part).startswith(PART)
    }
    if parts:
        stop = partial(processes.stop_without, parts, MESSAGE)
        threading.Thread(target=stop, name="gem-servers", daemon=True).start()

"""The trainer ends with its servers, which RL2 starts as processes of the trainer's.

If a part of an SGLang server dies, the rest goes on listening and answers nothing.
"""

from __future__ import annotations

import threading

from gem.training import processes

PART = "sglang"
"""How the names of the processes begin that a server consists of."""
MISSING = (
    "gem-rl2: a process of SGLang has ended; its server would answer nothing any more, so the run "
    "stops"
)


def watch() -> None:
    """Stop this process when a part of its servers is gone; called when they are there."""
    parts = {
        part: server
        for server in processes.children_of()
        for part in processes.children_of(server, recursive=True)
        if processes.name_of(part).startswith(PART)
    }
    if parts:
        stop = processes.stop_without
        threading.Thread(
            target=stop, args=(parts, MISSING), name="gem-servers", daemon=True
        ).start()

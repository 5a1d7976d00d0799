"""Ends the process group of a trainer that was killed; `end_group_after_me` runs it as a file.

A killed process cannot end the servers it started, and torchrun looks after those of the other
processes only.
"""

import os
import signal
import sys
import time

POLL_S = 1.0
GRACE_S = 5.0


def main(trainer: int) -> None:
    """Wait until the parent is gone, then end everything that it has left in its group."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while os.getppid() == trainer:
        time.sleep(POLL_S)
    group = os.getpgrp()
    if group == trainer:
        os.killpg(group, signal.SIGTERM)
        time.sleep(GRACE_S)
        os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]))

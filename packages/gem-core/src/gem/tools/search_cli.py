"""The command `python -m gem search`: build an index, serve it, try a query."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from gem.tools.search_index import build_folder, open_index
from gem.tools.search_server import SearchServer

_SHOWN = 5


def build(arguments: argparse.Namespace) -> int:
    """Write an index."""
    began = time.monotonic()
    live = sys.stderr.isatty()

    def tell(count: int) -> None:
        if live:
            print(f"\r{count:,} passages", end="", file=sys.stderr, flush=True)

    count, broken = build_folder(
        Path(arguments.corpus), Path(arguments.out), skip_broken=arguments.skip_broken, tell=tell
    )
    if live:
        print("\r", end="", file=sys.stderr)
    for message in broken[:_SHOWN]:
        print(f"skipped: {message}", file=sys.stderr)
    if broken:
        print(f"{len(broken)} broken lines skipped", file=sys.stderr)
    print(f"{arguments.out}: {count:,} passages in {time.monotonic() - began:.1f} s")
    return 0


def query(arguments: argparse.Namespace) -> int:
    """Print the passages found; return exit status 1 if there are none."""
    hits = open_index(arguments.index).search(arguments.query, arguments.topk)
    for hit in hits:
        print(f"{hit.score:7.3f}  {hit.title}: {hit.text}")
    return 0 if hits else 1


def serve(arguments: argparse.Namespace) -> int:
    """Serve an index until interrupted."""
    with SearchServer(open_index(arguments.index), arguments.host, arguments.port) as server:
        host, port = server.server_address[:2]
        address = f"http://{host!s}:{port}/retrieve"
        print(f"{len(server.index):,} passages at {address} (JSON, MessagePack)", flush=True)
        server.serve_forever()
    return 0

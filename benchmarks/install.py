"""Installing gem-core from its wheel: distributions and bytes, beside the original GEM's.

python benchmarks/install.py [--without-original]

Builds the wheel, installs it into an empty virtual environment (pip and setuptools are not
counted), and plays one step there.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from original import original_python

PACKAGE = Path(__file__).resolve().parents[1] / "packages" / "gem-core"
# Files of every installed distribution, as recorded by its installer.
COUNT = """
import json
from importlib.metadata import distributions
sizes = {}
for found in distributions():
    name = found.metadata['Name'].lower()
    if name not in ('pip', 'setuptools'):
        files = [found.locate_file(f) for f in found.files or ()]
        sizes[name] = sum(f.stat().st_size for f in files if f.exists())
print(json.dumps(sizes))
"""
PLAY = r"""
import gem
env = gem.make('game:GuessTheNumber-v0-easy')
env.reset(seed=0)
env.step(r'\boxed{5}')
"""


def installed(python: str | Path) -> dict[str, int]:
    """Bytes of each distribution."""
    run = subprocess.run([python, "-c", COUNT], capture_output=True, text=True, check=True)
    sizes: dict[str, int] = json.loads(run.stdout)
    return sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--without-original", action="store_true", help="install ours only")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        pip = ["-m", "pip", "-q", "--disable-pip-version-check"]
        wheel = [sys.executable, *pip, "wheel", "--no-deps", "-w", folder, str(PACKAGE)]
        subprocess.run(wheel, check=True)
        (built,) = Path(folder).glob("gem_core-*.whl")
        venv.create(Path(folder) / "venv", with_pip=True)
        python = Path(folder) / "venv" / "bin" / "python"
        subprocess.run([python, *pip, "install", built], check=True)
        subprocess.run([python, "-c", PLAY], check=True, cwd=folder)
        ours = installed(python)
        print(f"wheel {built.name}: {built.stat().st_size / 1024:.0f} KiB")
    rows = {"gem-core": ours}
    if not arguments.without_original:
        rows["gem-llm (original)"] = installed(original_python())
    print(f"{'':22}{'distributions':>15}{'MiB':>9}  largest")
    for name, sizes in rows.items():
        largest = sorted(sizes, key=lambda each: -sizes[each])[:3]
        print(
            f"{name:22}{len(sizes):15}{sum(sizes.values()) / 2**20:9.1f}  "
            + ", ".join(f"{each} {sizes[each] / 2**20:.1f}" for each in largest)
        )


if __name__ == "__main__":
    main()

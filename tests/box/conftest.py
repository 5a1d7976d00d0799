"""Boxes of the tests: a cache of their own, a small image of this machine's programs."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gem.errors import UnreachableError
from gem_box import OverlayBox
from gem_box.images import imported

PROGRAMS = (
    *("bash", "cat", "chmod", "cp", "env", "head", "ls", "mkdir", "mv", "rm", "sleep", "sort"),
    *("tr", "touch", "wc", "sed", "grep", "ln", "setsid", "kill", "timeout", "date", "tail"),
)
TINY = "tiny:1"


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("boxes")
    before = os.environ.get("GEM_BOX_CACHE")
    os.environ["GEM_BOX_CACHE"] = str(folder)
    yield folder
    os.environ.pop("GEM_BOX_CACHE")
    if before is not None:
        os.environ["GEM_BOX_CACHE"] = before


@pytest.fixture(scope="session", autouse=True)
def machine() -> None:
    box = OverlayBox()
    try:
        box.start()
    except UnreachableError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    finally:
        box.close()


@pytest.fixture
def box() -> Iterator[OverlayBox]:
    box = OverlayBox()
    box.start()
    yield box
    box.close()


@pytest.fixture(scope="session")
def tiny(cache: Path, archive: Path) -> str:
    """The name of an image whose programs a policy can replace."""
    imported(TINY, archive)
    return TINY


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small root file system, made of this machine's programs."""
    archive = tmp_path_factory.mktemp("tiny") / "tiny.tar"
    with tarfile.open(archive, "w") as tar:
        for name in ("etc", "usr", "usr/bin", "root", "tmp"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(folder)
        for name, target in {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64"}.items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            tar.addfile(link)
        passwd = tarfile.TarInfo("etc/passwd")
        passwd.size = len(b"root:x:0:0::/root:/bin/bash\n")
        tar.addfile(passwd, io.BytesIO(b"root:x:0:0::/root:/bin/bash\n"))
        needed: set[str] = set()
        for name in PROGRAMS:
            path = shutil.which(name)
            if path is None:
                pytest.skip(f"this machine has no {name}, which the small image is made of")
            said = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
            needed |= set(re.findall(r"(/\S+) \(0x", said))
            tar.add(Path(path).resolve(), f"usr/bin/{name}")
        for library in sorted(needed):
            at = library if library.startswith("/usr/") else f"/usr{library}"
            tar.add(Path(library).resolve(), at.lstrip("/"))
        shell = tarfile.TarInfo("usr/bin/sh")
        shell.type, shell.linkname = tarfile.SYMTYPE, "bash"
        tar.addfile(shell)
    return archive

"""Archives, in which files go into boxes and come out."""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def packed(source: Path | None, name: str = "") -> Iterator[int]:
    """Yield the descriptor of an archive, all of whose files are root's.

    Args:
        source: A folder, whose content is packed; a file; or None for an empty archive.
        name: Of the file in the archive; empty for a folder.
    """
    with emptied() as descriptor:
        with (
            os.fdopen(descriptor, "wb", closefd=False) as file,
            tarfile.open(fileobj=file, mode="w|") as archive,
        ):
            if name and source is not None:
                archive.add(source.resolve(), name, filter=_by_root)
            elif source is not None:
                for each in sorted(source.iterdir()):
                    archive.add(each, each.name, filter=_by_root)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor


@contextlib.contextmanager
def emptied() -> Iterator[int]:
    """Yield the descriptor of an empty file in memory."""
    descriptor = os.memfd_create("archive", os.MFD_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def unpack(descriptor: int, target: Path) -> None:
    """Write what a box packed: a policy may have made it, so only plain files and folders."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    with io.FileIO(descriptor, closefd=False) as file, tarfile.open(fileobj=file) as archive:
        for member in archive:
            _, *parts = member.name.split("/")
            place = target.joinpath(*parts)
            if ".." in parts:
                continue
            if member.isdir():
                place.mkdir(parents=True, exist_ok=True)
            elif (content := archive.extractfile(member) if member.isfile() else None) is not None:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(content.read())


def _by_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member

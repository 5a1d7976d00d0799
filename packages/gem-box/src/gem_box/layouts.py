"""Images as `skopeo copy` and `docker save` write them, as one root file system and its settings.

OCI image layouts (folders, or archives of them) and Docker's older archives:
https://github.com/opencontainers/image-spec/blob/main/layer.md.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from gem.errors import ConfigurationError
from gem.json_lines import parse

MACHINE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
"""This machine's architecture, as images call it."""
_REF, _FULL_REF = "org.opencontainers.image.ref.name", "io.containerd.image.name"
_ROOT = ("", "root", "0", "root:root", "0:0", "root:0", "0:root")
_GONE, _OPAQUE = ".wh.", ".wh..wh..opq"
_ZSTD = b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True)
class Settings:
    """What an image says of the programs that are started in it."""

    env: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"


class Layout:
    """An image layout: a folder, or a tar archive that may be compressed."""

    def __init__(self, path: Path) -> None:
        """Open it.

        Raises:
            ConfigurationError: It cannot be read.
        """
        self.path = path
        self._archive: tarfile.TarFile | None = None
        if not path.is_dir():
            try:
                self._archive = tarfile.open(path)  # noqa: SIM115 - closed by close()
                names = self._archive.getnames()
            except (OSError, EOFError, tarfile.TarError) as error:
                raise ConfigurationError(f"{path} is no tar archive: {error}") from None
            self._names = {_clean(name): name for name in names}

    def close(self) -> None:
        """Close the archive."""
        if self._archive is not None:
            self._archive.close()

    def has_image(self) -> bool:
        """Return whether this is an image, not the files of one."""
        if self._has("index.json") and self._has("oci-layout"):
            return True
        if not self._has("manifest.json"):
            return False
        found = self._json("manifest.json")
        return isinstance(found, list) and all(
            isinstance(each, dict) and "Layers" in each for each in found
        )

    def image(self, name: str) -> tuple[list[str], Settings]:
        """Return the names of an image's layers, the lowest first, and its settings.

        Args:
            name: The one to take where there are several.

        Raises:
            ConfigurationError: There is no such image for this machine, or it is damaged, or its
                programs do not run as root.
        """
        try:
            if self._has("index.json") and self._has("oci-layout"):
                manifest = self._manifest("index.json", name)
                config = self._json(self._blob(manifest["config"]))
                layers = [self._blob(layer) for layer in manifest["layers"]]
            else:
                manifest = self._of_docker(name)
                config, layers = self._json(manifest["Config"]), list(manifest["Layers"])
                for layer, digest in zip(layers, config["rootfs"]["diff_ids"], strict=True):
                    self._require_whole(layer, digest)
            return layers, self._settings(config)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            if isinstance(error, ConfigurationError):
                raise
            raise ConfigurationError(f"{self.path}: no image that can be read: {error!r}") from None

    def write(self, layers: Sequence[str], target: IO[bytes]) -> None:
        """Write the files of layers as one tar archive, without what upper layers replace.

        Raises:
            ConfigurationError: A layer cannot be read.
        """
        kept: list[set[int]] = []
        hidden = _Hidden()
        for layer in reversed(layers):
            with self._layer(layer) as archive:
                kept.insert(0, hidden.visible(archive.getmembers()))
        with tarfile.open(fileobj=target, mode="w|", format=tarfile.PAX_FORMAT) as merged:
            for layer, numbers in zip(layers, kept, strict=True):
                with self._layer(layer) as archive:
                    _copy(archive, numbers, merged)

    def _manifest(self, place: str, name: str) -> Mapping[str, Any]:
        found = self._json(place)
        if "layers" in found:
            return dict(found)
        fitting = [each for each in found["manifests"] if _fits(each)]
        if len(fitting) > 1:
            fitting = [each for each in fitting if _named(each, name)]
        if len(fitting) != 1:
            named = [each.get("annotations", {}).get(_REF, "?") for each in found["manifests"]]
            raise ConfigurationError(
                f"{self.path} has {len(fitting)} images {name!r} for {MACHINE}; it has "
                f"{', '.join(named) or 'none'}"
            )
        return self._manifest(self._blob(fitting[0]), name)

    def _of_docker(self, name: str) -> Mapping[str, Any]:
        found = self._json("manifest.json")
        fitting = [each for each in found if name in (each.get("RepoTags") or ())]
        if len(found) == 1:
            return dict(found[0])
        if len(fitting) != 1:
            tags = [tag for each in found for tag in each.get("RepoTags") or ()]
            raise ConfigurationError(f"{self.path} has no image {name!r}; it has {', '.join(tags)}")
        return dict(fitting[0])

    def _settings(self, config: Mapping[str, Any]) -> Settings:
        own = config.get("config") or {}
        machine = config.get("architecture", MACHINE)
        if machine != MACHINE:
            raise ConfigurationError(f"{self.path} is for {machine}; this machine is {MACHINE}")
        if (user := own.get("User") or "") not in _ROOT:
            raise ConfigurationError(
                f"{self.path}: its programs run as {user!r}; in a box all commands run as root"
            )
        pairs = [str(each).partition("=") for each in own.get("Env") or ()]
        env = {name: value for name, _, value in pairs}
        return Settings(env, str(Path("/") / (own.get("WorkingDir") or "/")))

    def _blob(self, about: Mapping[str, Any]) -> str:
        """Return the name of a blob whose content is what its digest says."""
        name = f"blobs/sha256/{str(about['digest']).removeprefix('sha256:')}"
        self._require_whole(name, about["digest"])
        return name

    def _require_whole(self, name: str, digest: str) -> None:
        """Make sure that a file has the content that its digest says."""
        kind, _, wanted = digest.partition(":")
        if kind != "sha256":
            raise ConfigurationError(f"{self.path}: digests by {kind} are not supported")
        with self._open(name) as file:
            known = hashlib.sha256()
            while block := file.read(1 << 20):
                known.update(block)
        if known.hexdigest() != wanted:
            raise ConfigurationError(f"{self.path}: {name} is damaged")

    def _has(self, name: str) -> bool:
        return name in self._names if self._archive else (self.path / name).is_file()

    def _open(self, name: str) -> IO[bytes]:
        try:
            if self._archive is None:
                return (self.path / _clean(name)).open("rb")
            file = self._archive.extractfile(self._names[_clean(name)])
        except (OSError, KeyError, tarfile.TarError) as error:
            raise ConfigurationError(f"{self.path}: {name} cannot be read: {error}") from None
        if file is None:
            raise ConfigurationError(f"{self.path}: {name} is no file")
        return file

    def _json(self, name: str) -> Any:
        with self._open(name) as file:
            return parse(file.read().decode("utf-8"), f"{self.path}: {name}")

    @contextlib.contextmanager
    def _layer(self, name: str) -> Iterator[tarfile.TarFile]:
        with self._open(name) as file:
            zstd = file.read(4) == _ZSTD
            file.seek(0)
            try:
                archive = tarfile.open(fileobj=file)  # noqa: SIM115 - closed below
            except (OSError, EOFError, tarfile.TarError) as error:
                why = "zstd, which Python cannot read; gzip can be" if zstd else error
                raise ConfigurationError(f"{self.path}: layer {name}: {why}") from None
            with archive:
                yield archive


class _Hidden:
    """What the layers so far, from the top down, hide of those below."""

    def __init__(self) -> None:
        self.paths: set[str] = set()
        # Nothing of lower layers is seen below these paths: an upper layer removes the folder, has
        # a file in its place, or says that it is opaque.
        self.trees: set[str] = set()

    def visible(self, members: Sequence[tarfile.TarInfo]) -> set[int]:
        """Return the numbers of a layer's entries that are seen; hide what they hide."""
        # The last entry of a path counts.
        last = {_clean(member.name): number for number, member in enumerate(members)}
        seen, paths, trees = set(), set(), set()
        for path, number in last.items():
            folder, _, name = path.rpartition("/")
            if name == _OPAQUE:
                trees.add(folder)
            elif name.startswith(_GONE):
                gone = f"{folder}/{name.removeprefix(_GONE)}".lstrip("/")
                paths.add(gone)
                trees.add(gone)
            elif path and not self._hides(path):
                seen.add(number)
                paths.add(path)
                if not members[number].isdir():
                    trees.add(path)
        self.paths |= paths
        self.trees |= trees
        return seen

    def _hides(self, path: str) -> bool:
        if path in self.paths or "" in self.trees:
            return True
        return any(path[:at] in self.trees for at, char in enumerate(path) if char == "/")


def _copy(archive: tarfile.TarFile, numbers: set[int], merged: tarfile.TarFile) -> None:
    members = archive.getmembers()
    kept = {_clean(members[number].name) for number in numbers}
    for number in sorted(numbers):
        member = members[number]
        content = archive.extractfile(member) if member.isreg() or member.islnk() else None
        if member.islnk() and _clean(member.linkname) not in kept:
            # What it was a link to is hidden: it has the content itself.
            assert content is not None
            content.seek(0, os.SEEK_END)
            member = member.replace(deep=True)
            member.type, member.linkname, member.size = tarfile.REGTYPE, "", content.tell()
            content.seek(0)
        merged.addfile(member, content if member.isreg() else None)


def _clean(name: str) -> str:
    return os.path.normpath(f"/{name}").lstrip("/")


def _fits(about: Mapping[str, Any]) -> bool:
    """Return whether it is an image of this machine, as far as it says."""
    where = about.get("platform") or {}
    known = where.get("architecture", MACHINE), where.get("os", "linux")
    return known == (MACHINE, "linux")


def _named(about: Mapping[str, Any], name: str) -> bool:
    notes = about.get("annotations") or {}
    return name in (notes.get(_REF), notes.get(_FULL_REF)) or (
        ":" in name and name.rpartition(":")[2] == notes.get(_REF) and _FULL_REF not in notes
    )

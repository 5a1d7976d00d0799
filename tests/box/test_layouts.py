"""Images as `skopeo copy` and `docker save` write them: layers, whiteouts, settings, damage."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from boxes_attacks import call, write_task

import gem
from gem.__main__ import main
from gem.errors import ConfigurationError
from gem_box.images import base, imported
from gem_box.layouts import MACHINE, Layout

REF = "org.opencontainers.image.ref.name"


def layer(entries: Mapping[str, Any]) -> bytes:
    """A layer: texts are files, None a folder, ("link", x) a hard link, ("sym", x) a symlink."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for name, value in entries.items():
            member = tarfile.TarInfo(name)
            data = b""
            if value is None:
                member.type, member.mode = tarfile.DIRTYPE, 0o755
            elif isinstance(value, tuple):
                member.type = tarfile.LNKTYPE if value[0] == "link" else tarfile.SYMTYPE
                member.linkname = value[1]
            else:
                data = value.encode()
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return content.getvalue()


class Oci:
    """An OCI layout in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "blobs" / "sha256").mkdir(parents=True)
        (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        self.manifests: list[dict[str, Any]] = []

    def blob(self, content: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        (self.folder / "blobs" / "sha256" / digest).write_bytes(content)
        return {"digest": f"sha256:{digest}", "size": len(content)}

    def add(self, layers: list[bytes], config: Mapping[str, Any], ref: str, **about: Any) -> None:
        settings = {"architecture": MACHINE, "os": "linux", "config": config, **about}
        manifest = {
            "config": self.blob(json.dumps(settings).encode()),
            "layers": [self.blob(each) for each in layers],
        }
        found = self.blob(json.dumps(manifest).encode())
        self.manifests.append({**found, "annotations": {REF: ref}})
        self.write(self.manifests)

    def write(self, manifests: list[dict[str, Any]]) -> None:
        (self.folder / "index.json").write_text(json.dumps({"manifests": manifests}))


@pytest.fixture
def oci(tmp_path: Path) -> Oci:
    return Oci(tmp_path / "oci")


LAYERS = [
    {
        "app": None,
        "app/kept": "1",
        "app/changed": "1",
        "app/gone": "1",
        "old/deep/x": "1",
        "opaque/below": "1",
        "tree/x": "1",
        "a": "linked",
        "b": ("link", "a"),
        "c": ("link", "a"),
    },
    {
        "app/changed": "2",
        "app/.wh.gone": "",
        ".wh.old": "",
        "opaque/.wh..wh..opq": "",
        "opaque/new": "2",
        "tree": "now a file",
        "a": "other",
        "app/gone2": "2",
    },
    {"app/.wh.gone2": "", "old": None, "old/again": "3", "s": ("sym", "app/kept")},
]
WANTED = {
    "app/kept": "1",
    "app/changed": "2",
    "opaque/new": "2",
    "tree": "now a file",
    "a": "other",
    "b": "linked",
    "c": "linked",
    "old/again": "3",
    "s": "1",
}


def files(path: Path, name: str = "x:1") -> dict[str, str]:
    """The files that an image has."""
    layout = Layout(path)
    whole = path.parent / "whole.tar"
    with whole.open("wb") as file:
        layout.write(layout.image(name)[0], file)
    layout.close()
    found = {}
    with tarfile.open(whole) as tar:
        for member in tar.getmembers():
            content = tar.extractfile(member)
            if content is not None:
                found[member.name] = content.read().decode()
    return found


@pytest.mark.parametrize("packed", ["folder", "archive", "gzip"])
def test_an_upper_layer_replaces_and_removes_what_is_below(oci: Oci, packed: str) -> None:
    layers = [layer(each) for each in LAYERS]
    # Layers may be compressed.
    oci.add([layers[0], gzip.compress(layers[1]), layers[2]], {}, "1")
    path = oci.folder
    if packed != "folder":
        path = oci.folder.with_name("oci.tar")
        with tarfile.open(path, "w:gz" if packed == "gzip" else "w") as tar:
            tar.add(oci.folder, ".")
    assert files(path) == WANTED


def test_an_archive_of_docker_save(tmp_path: Path) -> None:
    path = tmp_path / "saved.tar"
    config: dict[str, Any] = {"architecture": MACHINE}
    config["config"] = {"Env": ["A=b=c"], "WorkingDir": "/app"}
    digests = [f"sha256:{hashlib.sha256(layer(each)).hexdigest()}" for each in LAYERS]
    config["rootfs"] = {"type": "layers", "diff_ids": digests}
    contents = {f"{n}/layer.tar": layer(each) for n, each in enumerate(LAYERS)}
    manifest = [{"Config": "c.json", "RepoTags": ["x:1"], "Layers": list(contents)}]
    contents |= {"c.json": json.dumps(config).encode()}
    contents["manifest.json"] = json.dumps(manifest).encode()

    def save() -> None:
        with tarfile.open(path, "w") as tar:
            for name, content in contents.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))

    save()
    assert files(path) == WANTED
    settings = Layout(path).image("x:1")[1]
    assert (settings.env, settings.workdir) == ({"A": "b=c"}, "/app")
    contents["1/layer.tar"] = contents["1/layer.tar"][:-512] + b"\1" * 512
    save()
    with pytest.raises(ConfigurationError, match=r"1/layer\.tar is damaged"):
        files(path)


def test_the_image_of_this_machine_and_of_this_name_is_taken(oci: Oci) -> None:
    oci.add([layer({"one": "1"})], {}, "1")
    oci.add([layer({"two": "2"})], {}, "2")
    assert files(oci.folder, "x:2") == {"two": "2"}
    with pytest.raises(ConfigurationError, match=f"0 images 'x:3' for {MACHINE}; it has 1, 2"):
        files(oci.folder, "x:3")
    # An index of platforms, as `skopeo copy --all` writes it, with an attestation.
    one, two = oci.manifests
    other = {**two, "platform": {"architecture": "s390x", "os": "linux"}}
    unknown = {**two, "platform": {"architecture": "unknown", "os": "unknown"}}
    ours = {**one, "platform": {"architecture": MACHINE, "os": "linux"}}
    index = oci.blob(json.dumps({"manifests": [other, unknown, ours]}).encode())
    oci.write([index])
    assert files(oci.folder, "x:1") == {"one": "1"}


@pytest.mark.parametrize(
    ("config", "about", "said"),
    [
        ({"User": "node"}, {}, "its programs run as 'node'"),
        ({}, {"architecture": "s390x"}, "is for s390x; this machine is"),
    ],
)
def test_an_image_that_cannot_be_what_it_is_here_is_refused(
    oci: Oci, config: dict[str, Any], about: dict[str, Any], said: str
) -> None:
    oci.add([layer({"one": "1"})], config, "1", **about)
    with pytest.raises(ConfigurationError, match=said):
        imported("x:1", oci.folder)
    with pytest.raises(ConfigurationError, match="is not here"):
        base("x:1")


def test_damage_is_told(oci: Oci, tmp_path: Path) -> None:
    oci.add([b"\x28\xb5\x2f\xfdrest"], {}, "1")
    with pytest.raises(ConfigurationError, match="zstd, which Python cannot read"):
        files(oci.folder)
    for blob in (oci.folder / "blobs" / "sha256").iterdir():
        blob.write_bytes(blob.read_bytes() + b" ")
    with pytest.raises(ConfigurationError, match="is damaged"):
        files(oci.folder)
    (oci.folder / "index.json").write_text('{"manifests": [{}]}')
    with pytest.raises(ConfigurationError, match="no image that can be read: KeyError"):
        files(oci.folder)
    with pytest.raises(ConfigurationError, match="is no tar archive"):
        imported("x:1", tmp_path / "missing.tar")
    (tmp_path / "text.tar").write_text("text")
    with pytest.raises(ConfigurationError, match="is no tar archive"):
        imported("x:1", tmp_path / "text.tar")


def test_a_task_begins_with_the_folder_and_the_variables_of_its_image(
    oci: Oci, archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"Env": ["PATH=/opt/bin:/usr/bin:/bin", "A=b"], "WorkingDir": "/srv"}
    tool = "#!/bin/bash\necho found\n"
    oci.add([archive.read_bytes(), layer({"srv/here": "1", "opt/bin/tool": tool})], config, "1")
    assert main(["harbor", "import", "own:1", str(oci.folder)]) == 0
    text = "FROM own:1\nENV PATH=/more:$PATH B=c\nRUN echo $A > built; echo $PATH >> built\n"
    folder = write_task(tmp_path / "task", "", environment__Dockerfile=f"{text}WORKDIR sub\n")
    with gem.make(f"harbor:{folder}") as env:
        env.reset(seed=0)
        said = env.step(call('echo "$PWD $A $B $PATH"; cat ../built; ls ..'))[0]
        path = "/more:/opt/bin:/usr/bin:/bin"
        assert said.startswith(f"/srv/sub b c {path}\nb\n{path}\nbuilt\nhere\nsub\n"), said
    # Another image under this name: what was built from the first one is not taken.
    oci.add([archive.read_bytes(), layer({"srv/other": "1"})], {**config, "Env": ["A=z"]}, "2")
    oci.write(oci.manifests[1:])
    assert main(["harbor", "import", "own:1", str(oci.folder)]) == 0
    with gem.make(f"harbor:{folder}") as env:
        env.reset(seed=0)
        assert env.step(call("cat ../built; ls .."))[0].startswith("z\n/more:/usr/local/sbin")
        assert "other" in env.step(call("ls .."))[0]
    # A root file system under this name says nothing of variables.
    imported("own:1", archive)
    with gem.make(f"harbor:{folder}") as env:
        env.reset(seed=0)
        assert env.step(call('echo "$PWD [$A] $B"'))[0].startswith("/sub [] c\n")

"""The check of a release names what is wrong with the files of a package."""

from __future__ import annotations

import email
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import release_check

ROOT = Path(__file__).parents[2]
METADATA = """\
Metadata-Version: 2.4
Name: {name}
Version: {version}
License-Expression: Apache-2.0
License-File: LICENSE
{more}
# Readme
{readme}
"""
Make = Callable[..., release_check.Built]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Make the files of a package; `files` are further ones of the wheel."""

    def made(
        name: str = "gem-core",
        version: str = "1.0",
        *,
        more: str = "",
        readme: str = "",
        files: dict[str, str] | None = None,
        lacking: tuple[str, ...] = (),
    ) -> release_check.Built:
        package = "gem" if name == "gem-core" else name.replace("-", "_")
        about = f"{package}-{version}.dist-info"
        held = {f"{package}/__init__.py": "", f"{package}/py.typed": "", **(files or {})}
        text = METADATA.format(name=name, version=version, more=more, readme=readme)
        wheel, source = tmp_path / f"{name}.whl", tmp_path / f"{name}.tar.gz"
        with zipfile.ZipFile(wheel, "w") as archive:
            for path, content in {**held, f"{about}/METADATA": text}.items():
                archive.writestr(path, content)
        empty = tmp_path / "empty"
        empty.touch()
        with tarfile.open(source, "w:gz") as archive_:
            for path in held:
                if path not in lacking:
                    archive_.add(empty, f"{name}-{version}/src/{path}")
        return release_check.Built(name, wheel, source)

    return made


def problems(check: Any, *packages: release_check.Built) -> str:
    return "\n".join(check(packages))


def test_a_package_without_problems_has_none(make: Make) -> None:
    core = make(readme="[a page](https://example.org) [below](#below)")
    needs = make("gem-verl", more="Requires-Dist: gem-core[python]==1.0\nRequires-Dist: numpy>=1\n")
    for name in ("versions", "links", "licences", "contents"):
        assert problems(getattr(release_check, name), core, needs) == ""


def test_versions_are_in_step(make: Make) -> None:
    other = make("gem-verl", "1.1", more="Requires-Dist: gem-core==1.0\n")
    loose = make("gem-trl", more="Requires-Dist: gem-train>=1.0\n")
    found = problems(release_check.versions, make(), other, loose)
    assert "gem-verl: version 1.1, gem-core has 1.0" in found
    assert "gem-trl: needs 'gem-train>=1.0'" in found


def test_a_link_into_the_repository_is_named(make: Make) -> None:
    found = problems(release_check.links, make(readme="See [docs](../../docs/index.md)."))
    assert (
        found
        == "gem-core: the README's link to ../../docs/index.md leads nowhere on the package index"
    )


def test_licences_of_data_are_declared_and_explained(make: Make) -> None:
    files = {"gem/data/LICENSE-WORDS.txt": "", "gem/data/words.txt": ""}
    found = problems(release_check.licences, make(files=files))
    assert "gem/data/LICENSE-WORDS.txt is not declared" in found
    assert "gem/data has a licence of others and no README.md" in found
    declared = "License-File: src/gem/data/LICENSE-WORDS.txt\n"
    whole = make(files={**files, "gem/data/README.md": ""}, more=declared)
    assert problems(release_check.licences, whole) == ""
    bare = make()
    bare.__dict__["metadata"] = email.message_from_string("Name: gem-core\n")
    assert problems(release_check.licences, bare) == "gem-core: declares no licence"


def test_a_wheel_holds_its_package_only_and_the_source_all_of_it(make: Make) -> None:
    files = {"tests/test_x.py": "", "gem/data.json": ""}
    found = problems(release_check.contents, make(files=files, lacking=("gem/data.json",)))
    assert "gem-core: the wheel holds tests/test_x.py" in found
    assert "gem-core.tar.gz: lacks src/gem/data.json" in found


def test_two_builds_that_differ_are_named(make: Make, tmp_path: Path) -> None:
    first = make()
    changed = tmp_path / "changed.whl"
    changed.write_bytes(first.wheel.read_bytes() + b"x")
    second = release_check.Built(first.name, changed, first.source)
    assert list(release_check.reproducible([first], [first])) == []
    assert list(release_check.reproducible([first], [second])) == [
        "gem-core.whl: two builds of the same files differ"
    ]


def test_packages_have_the_licence_of_the_project() -> None:
    """Files, for a link would leave the source distribution."""
    licence = (ROOT / "LICENSE").read_bytes()
    for package in (ROOT / "packages").glob("*/pyproject.toml"):
        own = package.parent / "LICENSE"
        assert own.read_bytes() == licence and not own.is_symlink(), own


@pytest.mark.parametrize(
    "package", sorted(p.parent.name for p in ROOT.glob("packages/gem-*/README.md"))
)
def test_no_readme_of_ours_has_a_link_that_works_in_the_repository_only(package: str) -> None:
    text = (ROOT / "packages" / package / "README.md").read_text(encoding="utf-8")
    assert release_check._LINK.findall(text) == []

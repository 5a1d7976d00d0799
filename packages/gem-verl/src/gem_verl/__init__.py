"""GEM in verl: environments, multi-turn rollouts and turn-level advantages.

Installing the package is enough: verl loads `gem_verl.plugin` in every process through its own
entry-point group, and the launcher stays `python -m verl.trainer.main_ppo`. See docs/verl.md.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from gem.errors import MissingExtraError, UnsupportedVersionError

__version__ = "0.1.0"

SUPPORTED_VERL = ">=0.9.1,<0.10"
"""Versions of verl that this package works with."""

__all__ = ["SUPPORTED_VERL", "__version__", "check_verl"]


def check_verl() -> str:
    """Return the version of the installed verl.

    Raises:
        MissingExtraError: verl is not installed.
        UnsupportedVersionError: Its version is outside `SUPPORTED_VERL`.
    """
    install = f'pip install "verl[vllm]{SUPPORTED_VERL}"'
    try:
        found = version("verl")
    except PackageNotFoundError:
        raise MissingExtraError(f"verl is not installed; install it with: {install}") from None
    # packaging comes with verl; it is no dependency of what must work without verl.
    from packaging.specifiers import SpecifierSet

    if not SpecifierSet(SUPPORTED_VERL).contains(found, prereleases=True):
        raise UnsupportedVersionError(
            f"verl {found} is installed, gem-verl {__version__} supports verl {SUPPORTED_VERL}; "
            f"install a supported one with: {install}"
        )
    return found

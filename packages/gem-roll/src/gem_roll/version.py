"""The version of gem-roll, and the commit of ROLL that it works with."""

__version__ = "0.1.0"

COMMIT = "8eb27cc2dc34c4d1310b169d9b86d339004d811a"
"""Of ROLL's main branch, 18 August 2026. There is no release: the project `roll` of the package
index is another one."""

SUPPORTED_ROLL = f"commit {COMMIT[:7]}"

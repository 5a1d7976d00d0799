"""The notebooks run, and print what they show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from website import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))


def shown(notebook: Any) -> list[str]:
    """Return what the code of each cell printed."""
    said = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            assert output.get("name") != "stderr", output
            said.append(output.get("text") or output["data"]["text/plain"])
    return said


def test_there_are_two() -> None:
    assert len(NOTEBOOKS) == 2


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_notebook_prints_what_it_shows(path: Path) -> None:
    stored = nbformat.read(path, as_version=4)
    run = nbformat.read(path, as_version=4)
    for cell in run.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    folder = {"metadata": {"path": str(path.parent)}}
    NotebookClient(run, timeout=120, kernel_name="python3", resources=folder).execute()
    assert shown(run) == shown(stored) != []

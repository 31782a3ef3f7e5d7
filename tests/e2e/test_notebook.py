"""The notebook runs from top to bottom, and shows what it says."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full  # Jupyter, torch

for library in ("nbclient", "ipykernel", "torch", "transformers", "pandas", "altair"):
    pytest.importorskip(library)

NOTEBOOK = Path(__file__).parents[2] / "examples" / "first_merge.ipynb"


@pytest.mark.filterwarnings("ignore")  # of the client's event loop
def test_the_first_merge_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbclient
    import nbformat

    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert [output for output in outputs if output.output_type == "error"] == []
    pages = [output.get("data", {}).get("text/html", "") for output in outputs]
    assert len([page for page in pages if "altair-viz" in page]) == 2
    [shown] = [page for page in pages if "row_heading" in page]
    rows = re.findall(r"row_heading.*?>([\w+]+)</th>(.*?)</tr>", shown, re.DOTALL)
    scores = {name: re.findall(r">([\d.]+)%<", row)[-1] for name, row in rows}
    assert [*scores] == ["base", "code", "tool", "memory", "ram+", "average", "search"]
    means = {name: float(score) for name, score in scores.items()}
    best_alone = max(means[name] for name in ("base", "code", "tool", "memory"))
    assert min(means["search"], means["ram+"]) > 90 > means["average"] > best_alone
    assert (tmp_path / "merges" / "ram+" / "ramerge.json").is_file()


def test_notebook_uses_public_names_and_installs_safely() -> None:
    text = NOTEBOOK.read_text()
    assert not re.search(r"(from|import) ramerge\.|pip install[^\n]*\bramerge\b", text)

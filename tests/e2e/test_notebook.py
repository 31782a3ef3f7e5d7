"""The notebook runs from top to bottom, and shows what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.full  # Jupyter, torch

for library in ("nbclient", "ipykernel", "torch", "transformers", "pandas", "altair"):
    pytest.importorskip(library)

NOTEBOOK = Path(__file__).parents[2] / "examples" / "first_merge.ipynb"


@pytest.mark.filterwarnings("ignore")  # of the client's event loop
def test_the_first_merge_runs(tmp_path: Path) -> None:
    import nbclient
    import nbformat

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert [output for output in outputs if output.output_type == "error"] == []
    drawn = [output.data["image/svg+xml"] for output in outputs if "image/svg+xml" in output.get("data", {})]
    assert len(drawn) == 4
    tables = [output.data["text/html"] for output in outputs if "text/html" in output.get("data", {})]
    shares = [float(share) for share in re.findall(r">([\d.]+)%<", tables[-1])]
    assert len(shares) == 6
    assert min(shares[:3]) > 90 > max(shares[3:])  # RAM+ keeps what averaging loses
    assert "#b00020" in tables[-1]
    assert (tmp_path / "merges" / "ram+" / "ramerge.json").is_file()

"""A notebook: results show themselves as HTML, and what is usual there works."""

from __future__ import annotations

import subprocess
import sys

import optional
import pytest

optional.needed("nbclient", "ipykernel")

nbformat = optional.module("nbformat")

# In a process of its own: nbclient leaves its event loop open.
EXECUTE = """
import nbclient, nbformat
notebook = nbformat.read("notebook.ipynb", 4)
nbclient.NotebookClient(notebook, timeout=120).execute()
nbformat.write(notebook, "notebook.ipynb")
"""

CELLS = [
    "import torch\nfrom fastload import FastLoader, verify\n"
    "loader = FastLoader(torch.arange(12.0), 4, dtype=torch.float64, device='cpu')",
    "loader",
    "for batch in loader:\n    last = batch\nlast.tolist()",
    "loader.plan",
    "loader.stats()",
    "loader.report()",
    "verify(FastLoader(torch.arange(12.0), 4, dtype=torch.float32, device='cpu'))",
    "verify(FastLoader(torch.arange(12.0), 4, device='cpu'))",
]
SHOWN = {
    1: "Tensor of 12 samples",
    3: "engine workers, batches on cpu",
    4: "images/s",
    5: "undecided",
    6: "equal to the bit: 3 batches, engine workers",
    7: "nothing to compare: this is torch&#x27;s own loader",
}


@pytest.mark.thorough
def test_a_notebook_runs_and_shows_its_results(tmp_path):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    nbformat.write(notebook, tmp_path / "notebook.ipynb")
    subprocess.run([sys.executable, "-c", EXECUTE], cwd=tmp_path, check=True, timeout=150)
    outputs = [cell.outputs for cell in nbformat.read(tmp_path / "notebook.ipynb", 4).cells]
    assert [output.text for each in outputs for output in each if output.output_type == "stream"] == []  # no warning
    assert outputs[2][0].data["text/plain"] == "[8.0, 9.0, 10.0, 11.0]"
    for number, text in SHOWN.items():
        assert text in outputs[number][0].data["text/html"], number
        assert len(outputs[number][0].data["text/plain"]) < 300, number

"""A notebook that runs in this very process shows what it shows in a kernel."""

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from workbench.analysis.compat import analyze_run
from workbench.datasets import sample_run
from workbench.workflow import make_page


def run_apart(code):
    """Run code in a process of its own: there is one IPython to a process."""
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(command, capture_output=True, text=True, timeout=280)


def test_outputs_are_those_of_a_notebook(tmp_path):
    done = run_apart(
        f"""
        import warnings
        warnings.simplefilter("ignore")
        import nbformat, papermill
        from workbench.report.inprocess import ENGINE
        cells = [
            "import matplotlib.figure; print('said'); 3 + 4",
            "figure = matplotlib.figure.Figure(); figure.add_subplot(); figure",
            "1 / 0",
            "print('never')",
        ]
        nodes = [nbformat.v4.new_code_cell(cell) for cell in cells]
        spec = dict(name="python3", display_name="Python 3", language="python")
        node = nbformat.v4.new_notebook(cells=nodes, metadata=dict(kernelspec=spec))
        path = {str(tmp_path / "done.ipynb")!r}
        try:
            papermill.execute_notebook(node, path, engine_name=ENGINE, progress_bar=False)
        except papermill.PapermillExecutionError as error:
            print(error.ename, error.evalue)
        for cell in nbformat.read(path, 4).cells:
            if cell.cell_type == "code":
                print([(o.output_type, sorted(o.get("data", ()))) for o in cell.outputs])
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "ZeroDivisionError division by zero",
        "[('display_data', ['text/plain']), ('stream', [])]",
        "[('display_data', ['image/png', 'text/plain'])]",
        "[('error', [])]",
        "[]",
    ]


@pytest.mark.slow
def test_the_page_is_that_of_a_kernel(run_dir):
    page = make_page(analyze_run(run_dir)).read_text()
    done = run_apart(
        f"""
        from workbench.report import analyze_run
        from workbench.report.pipeline import make_page
        for _ in range(2):
            make_page(analyze_run({str(run_dir)!r}), in_process=True)
        """
    )
    assert done.returncode == 0, done.stderr
    again = (run_dir / "report.html").read_text()
    # What a cell ends with is a result there, and shown as all else here.
    assert again == page.replace(" output_execute_result", "")


@pytest.fixture
def run_dir(tmp_path):
    """A copy of a recorded run."""
    return Path(shutil.copytree(sample_run(), tmp_path / "runs" / "linux"))

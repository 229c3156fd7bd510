"""The notebooks: short, stripped, headless, and of one form."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.report import execute_notebook

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells_of(path):
    cells = json.loads(path.read_text())["cells"]
    return [{**cell, "source": "".join(cell["source"])} for cell in cells]


def code_of(path):
    return [cell for cell in cells_of(path) if cell["cell_type"] == "code"]


def test_there_are_thirteen_notebooks():
    assert [path.stem[:2] for path in NOTEBOOKS] == [f"{number:02d}" for number in range(13)]


def test_the_list_of_notebooks_has_each_with_its_question():
    lines = (ROOT / "notebooks" / "README.md").read_text().splitlines()
    for path in NOTEBOOKS:
        question = cells_of(path)[0]["source"].splitlines()[0].removeprefix("# ")
        assert f"| [{path.stem}]({path.name}) | {question} |" in lines


@every_notebook
def test_title_is_first_then_parameters_then_imports(path):
    first, second, third = cells_of(path)[:3]
    assert first["source"].startswith("# ")
    assert second["metadata"]["tags"] == ["parameters"]
    lines = [line for line in third["source"].splitlines() if line]
    assert all(line.startswith(("import ", "from ")) for line in lines)
    assert len(lines) <= 3


@every_notebook
def test_every_parameter_is_an_annotated_literal_with_an_explanation(path):
    source = cells_of(path)[1]["source"]
    for node, line in zip(ast.parse(source).body, source.splitlines(), strict=True):
        assert isinstance(node, ast.AnnAssign), line
        ast.literal_eval(node.value)
        assert "  # " in line, line
    assert "headless: bool = False" in source


@every_notebook
def test_cells_are_few_and_short(path):
    code = code_of(path)
    assert len(code) <= 15
    for cell in code:
        assert len(cell["source"].splitlines()) <= 10, cell["source"]


@every_notebook
def test_logic_lives_in_the_package(path):
    for cell in code_of(path):
        assert not re.search(r"^\s*(def|class|!|%)\b|sys\.path|[\"']/", cell["source"], re.M)


@every_notebook
def test_exercises_have_a_folded_solution(path):
    exercise = any("**Exercise.**" in c["source"] for c in cells_of(path))
    solutions = [c for c in code_of(path) if "solution" in c["metadata"].get("tags", [])]
    assert len(solutions) == exercise
    for cell in solutions:
        assert cell["metadata"]["jupyter"] == {"outputs_hidden": True, "source_hidden": True}


@every_notebook
def test_it_is_stripped_and_keeps_its_kernel(path):
    notebook = json.loads(path.read_text())
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    for cell in code_of(path):
        assert cell["outputs"] == []
        assert cell["execution_count"] is None


@every_notebook
def test_it_runs_in_process(path, monkeypatch, tmp_path, capsys):
    """All cells with recorded data, in this process: a second, not ten."""
    from IPython.core.interactiveshell import InteractiveShell

    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.chdir(tmp_path)
    shell = InteractiveShell()
    for cell in code_of(path):
        tags = cell["metadata"].get("tags", [])
        capsys.readouterr()
        shell.run_cell(cell["source"]).raise_error()
        if "parameters" in tags:
            shell.run_cell("headless, live = True, False").raise_error()
        if "solution" in tags:
            assert capsys.readouterr().out.strip(), "a solution says its answer"


@pytest.mark.slow
@every_notebook
def test_papermill_runs_it_with_defaults(path, tmp_path):
    output = execute_notebook(path.stem, tmp_path / path.name, {"headless": True})
    images = [
        data
        for cell in json.loads(output.read_text())["cells"]
        for result in cell.get("outputs", [])
        for data in result.get("data", {})
        if data == "image/png"
    ]
    assert images or path.stem == "00_check_setup"


@pytest.mark.slow
def test_papermill_explains_every_parameter():
    for path in NOTEBOOKS:
        command = [sys.executable, "-m", "papermill", "--help-notebook", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert "headless: bool" in done.stdout
        assert "nobody is there" in done.stdout

"""The wheel alone, in an environment without the checkout: everything that a user has works."""

import json
import os
import re
import subprocess
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.whole, pytest.mark.timeout(900)]

MODEL = """\
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = torch.nn.Conv2d(3, 8, 3), torch.nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.conv(x).relu().mean((2, 3)))


EXAMPLE_INPUTS = (torch.ones(1, 3, 16, 16),)
"""
MATRIX = "models: [my.py:Net]\ndtypes: [fp32]\nruns: 4\nprocesses: 2\nevidence: false\n"


@pytest.fixture
def run(installed, tmp_path):
    """Runs the installed command in an empty folder with a model; returns its lines."""
    (tmp_path / "my.py").write_text(MODEL)

    def run(*arguments, command="workbench"):
        done = subprocess.run(
            [installed / "bin" / command, *arguments],
            cwd=tmp_path,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run


def test_it_has_no_tests_and_no_pictures(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert not [name for name in names if "tests/" in name or name.endswith(".png")]
    assert wheel.stat().st_size < 5e6  # more than half are the samples


def test_the_extension_of_jupyterlab_is_in_it_and_small(wheel):
    parts = [part for part in zipfile.ZipFile(wheel).infolist() if "/report/lab/" in part.filename]
    assert {"package.json", "remoteEntry.js"} <= {Path(part.filename).name for part in parts}
    assert sum(part.compress_size for part in parts) < 0.5e6


def test_it_has_every_file_of_the_package(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    package = Path(__file__).resolve().parents[1] / "workbench"
    files = [path for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    shipped = "toy_cnn/|Net/|Edited/|mobilenet_v3_small(_int8)?/|Shuffled/"
    ours = re.compile(rf"data/samples/out_(?!{shipped})")
    names_of = (str(path.relative_to(package)) for path in files)
    wanted = {f"workbench/{name}" for name in names_of if not ours.match(name)}
    assert not {n for n in wanted - names if "explorer/web/" not in n and "/." not in n}


def test_it_is_the_installed_one(run, installed):
    (place,) = run("-c", "import workbench; print(workbench.__file__)", command="python")
    assert place.startswith(str(installed))


def test_a_model_is_profiled_reported_and_analysed(run, tmp_path):
    short = ("--runs", "4", "--processes", "2", "--measure", "evidence=no", "--measure", "roof=no")
    run("profile", "my.py:Net", *short)
    (manifest,) = tmp_path.glob("out_*/runs/*/manifest.json")
    assert (manifest.parent / "report.html").stat().st_size > 10_000
    assert "my.py:10" in (manifest.parent / "report.md").read_text()
    assert "error" not in json.loads("\n".join(run("findings", str(manifest.parent), "--json")))


@pytest.mark.cases
def test_a_batch_makes_its_pages(run, tmp_path):
    pytest.importorskip("workbench.plugins.batch")
    (tmp_path / "my.yaml").write_text(MATRIX)
    run("batch", "my.yaml")
    assert list(tmp_path.glob("portfolio_*/index.html"))


def test_samples_and_case_studies_are_there(run):
    code = (
        "import workbench as wb; wb.open_run(wb.sample_run()).compare(); wb.sample_file('exports');"
    )
    code += (
        "print(*(wb.sample_file(name).is_file() for name in ('squeezesam.csv', 'my_segmenter.py')))"
    )
    assert run("-c", code, command="python")[-1].endswith(" True")
    code = "import workbench as wb\ntry: wb.sample_run('Ready')\n"
    code += "except wb.WorkbenchError as error: print(error)"
    (line,) = run("-c", code, command="python")
    assert line.startswith("Ready: is no sample of the package -> clone the repository")
    assert line.endswith(
        "here are Edited, Net, Shuffled, mobilenet_v3_small, mobilenet_v3_small_int8, toy_cnn"
    )


def test_the_notebooks_are_copied_and_kept(run, tmp_path):
    code = "from workbench.report.notebooks import copy_notebooks; print(copy_notebooks())"
    copies = tmp_path / "workbench-notebooks"
    copies.mkdir()
    (copies / "01_first_profile.ipynb").write_text("edited")
    assert run("-c", code, command="python") == [str(copies)]
    ours = Path(__file__).parents[1] / "notebooks"
    assert {file.name for file in copies.iterdir()} >= {file.name for file in ours.glob("*.ipynb")}
    assert (copies / "01_first_profile.ipynb").read_text() == "edited"

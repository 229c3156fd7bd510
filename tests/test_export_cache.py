"""An export is kept while everything that it was made from is the same, and no longer."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from exporting import run_program

import workbench as wb

MODEL = """\
import torch
import neighbour

SCALE = torch.load("scale.pt", weights_only=True)


class Net(torch.nn.Linear):
    def __init__(self):
        super().__init__(4, neighbour.SIZE)

    def forward(self, x):
        return super().forward(x) * SCALE


EXAMPLE_INPUTS = (torch.ones(1, 4),)
"""


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A model of the user's with a neighbour, a file that it loads, and weights."""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MODEL)
    Path("neighbour.py").write_text("SIZE = 3\n")
    torch.save(torch.ones(1), "scale.pt")
    torch.save({"weight": torch.ones(3, 4), "bias": torch.zeros(3)}, "weights.pt")
    return tmp_path


def export(model="mine.py:Net", **choices):
    """Export a model; returns the program, and whether an earlier one was kept."""
    told, options = [], wb.ExportOptions(**{"backend": "portable"} | choices)
    pte = wb.export_model(
        model, options=options, progress=lambda text, fraction: told.append(text)
    ).path
    return pte, f"{pte.name}: up to date" in told


def identify_export(model="mine.py:Net", **choices):
    """What an export depends on."""
    return wb.open_program(export(model, **choices)[0]).export.made_from


def record_of(pte):
    return pte.with_name(f"{pte.name}.export.json")


def test_an_unchanged_export_is_kept(files):
    pte, kept = export()
    assert not kept
    record = record_of(pte).read_bytes()
    assert export() == (pte, True)
    assert record_of(pte).read_bytes() == record
    assert export(fresh=True) == (pte, False)


def test_an_export_writes_only_what_differs(files):
    pte, _ = export()
    written = {path: path.stat().st_mtime_ns for path in pte.parent.iterdir()}
    export(fresh=True)
    again = {path for path in pte.parent.iterdir() if path.stat().st_mtime_ns != written[path]}
    assert {path.suffix for path in again} <= {".json", ".etrecord"} and pte not in again


def test_of_two_exports_at_once_the_first_one_stays(files):
    first = []

    def export_meanwhile(text, fraction):
        if "comparing" in text and not first:
            first.append(wb.export_model("mine.py:Net", progress=lambda text, fraction: None))

    second = wb.export_model("mine.py:Net", progress=export_meanwhile)
    assert first and second.export == first[0].export


further = pytest.mark.cases
CHANGES = {
    "a line above": lambda: Path("mine.py").write_text("# more\n" + MODEL),
    "an import": lambda: Path("neighbour.py").write_text("SIZE = 2\n"),
    "a file that it loads": lambda: torch.save(torch.zeros(1), "scale.pt"),
    "weights": lambda: torch.save(
        {"weight": torch.zeros(3, 4), "bias": torch.zeros(3)}, "weights.pt"
    ),
    "inputs": lambda: torch.save(torch.zeros(1, 4), "inputs.pt"),
}


@pytest.mark.parametrize(
    "what",
    [
        pytest.param(what, marks=pytest.mark.whole if what == "an import" else further)
        for what in CHANGES
    ],
)
def test_whatever_it_was_made_from_is_noticed(files, what):
    torch.save(torch.ones(1, 4), "inputs.pt")
    choices = {"inputs": ("inputs.pt",)}
    if what == "weights":
        choices["state_dict"] = "weights.pt"
    before = identify_export(**choices)
    assert export(**choices)[1]
    CHANGES[what]()
    pte, kept = export(**choices)
    after = wb.open_program(pte).export.made_from
    assert not kept
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {{"a line above": "lines", "inputs": "inputs"}.get(what, "model")}


def test_what_is_no_part_of_the_graph_makes_no_other_export(files):
    pte, _ = export()
    Path("mine.py").write_text(MODEL + "# more\n")
    Path("other.py").write_text("SIZE = 1\n")
    assert export() == (pte, True)


READS = """\
import json, os, pathlib, torch, installed.constants
from pathlib import Path


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        folder = Path(__file__).parent
        self.weight = torch.nn.Parameter(torch.load(folder / "weights.pt", weights_only=True))
        self.scale = json.loads((folder / "scale.json").read_text())["scale"]

    def forward(self, x):
        x = x @ self.weight * self.scale + installed.constants.SHIFT
        return x * float(os.environ.get("NET_GAIN", "1"))


EXAMPLE_INPUTS = (torch.ones(1, 4),)
"""


@pytest.fixture
def reader(tmp_path, monkeypatch):
    """A model that reads weights, a constant, an editable package, and an environment variable."""
    monkeypatch.chdir(tmp_path)
    package = tmp_path / "elsewhere" / "installed"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "constants.py").write_text("SHIFT = 1.0\n")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.setenv("NET_GAIN", "1")
    Path("reads.py").write_text(READS)
    Path("scale.json").write_text('{"scale": 2.0}')
    torch.save(torch.eye(4), "weights.pt")
    return package


READ = {
    "weights": lambda package, patch: torch.save(2 * torch.eye(4), "weights.pt"),
    "a constant beside it": lambda package, patch: Path("scale.json").write_text('{"scale": 3.0}'),
    "an editable package": lambda package, patch: (package / "constants.py").write_text(
        "SHIFT = 20.0\n"
    ),
    "the environment": lambda package, patch: patch.setenv("NET_GAIN", "4"),
}


def export_and_run(*, apart):
    """The bytes of a program and its first output, and whether an earlier one was kept.

    In a process ``apart``, if packages and variables may be others.
    """
    if apart:
        command = [sys.executable, "-m", "workbench", "export", "reads.py:Net"]
        done = subprocess.run([*command, "--backend", "portable"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        path, kept = Path(done.stdout.strip()), "up to date" in done.stderr
    else:
        path, kept = export("reads.py:Net")
    value = run_program(wb.open_program(path), [torch.ones(1, 4)])[0][0, 0]
    return path.read_bytes(), float(value), kept


@pytest.mark.parametrize(
    "what",
    [pytest.param(what, marks=pytest.mark.whole if what == "weights" else further)
     for what in READ],
)  # fmt: skip
def test_what_a_model_reads_while_it_is_built_makes_another_program(reader, monkeypatch, what):
    expected = {"weights": 5, "a constant beside it": 4, "an editable package": 22}
    apart = what != "weights"
    before, value, _ = export_and_run(apart=apart)
    assert value == 3
    READ[what](reader, monkeypatch)
    after, value, kept = export_and_run(apart=apart)
    assert not kept and after != before and value == expected.get(what, 12)
    assert export_and_run(apart=apart) == (after, value, True)


INT8 = {"backend": "xnnpack", "dtype": "int8"}


@pytest.mark.whole
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"inputs": ("random:1",)}),
        pytest.param({}, {"rewrite": ("transposes",)}, marks=further),
        pytest.param({}, {"state_dict": "weights.pt"}, marks=further),
        pytest.param(INT8, INT8 | {"module_dtypes": (("*", "int8dyn"),)}, marks=further),
    ],
)
def test_other_options_are_another_export(files, before, after):
    export(**before)
    assert export(**after)[1] is False
    assert export(**after)[1] is True


@pytest.mark.whole
@pytest.mark.parametrize(
    ("suffix", "harm"),
    [
        ("", "edited"),
        (".layers.json", "gone"),
        pytest.param(".layers.json", "cut", marks=further),
        pytest.param(".input0.bin", "edited", marks=further),
        pytest.param(".export.json", "cut", marks=further),
    ],
)
def test_a_damaged_export_is_made_again(files, suffix, harm):
    pte, _ = export()
    path = pte.with_name(pte.name + suffix)
    good = path.read_bytes()
    if harm == "gone":
        path.unlink()
    else:
        path.write_bytes(good[:-9] if harm == "cut" else good[:-9] + b"\0" * 9)
    assert export() == (pte, False)
    assert export() == (pte, True)
    assert pte.exists() and path.exists()


@pytest.mark.whole
def test_a_kept_export_that_is_wrong_says_so_again(files):
    pte, _ = export()
    record, told = record_of(pte), []
    record.write_text(record.read_text().replace('"problem": ""', '"problem": "wrong"'))
    options = wb.ExportOptions(backend="portable")
    again = wb.export_model(
        "mine.py:Net", options=options, progress=lambda text, _: told.append(text)
    )
    assert again.path == pte
    assert told[-2:] == [
        f"{pte.name}: up to date", f"warning: {pte.name}: this export is wrong: wrong",
    ]  # fmt: skip


@pytest.mark.whole
def test_a_loaded_model_is_identified_as_others_are(files):
    model = wb.load_model("mine.py:Net")
    pte, kept = export(model)
    assert not kept and export(model) == (pte, True)
    torch.save(torch.zeros(1), "scale.pt")
    assert export(wb.load_model("mine.py:Net")) == (pte, False)


def test_a_class_of_one_name_in_two_files_of_a_folder_is_two_models(files):
    Path("other.py").write_text(MODEL.replace("* SCALE", "+ SCALE"))
    mine, other = (identify_export(f"{name}.py:Net") for name in ("mine", "other"))
    assert mine["model"] != other["model"]


def test_the_dtype_and_rewrites_make_no_other_model(files):
    options = {"dtype": "bf16", "rewrite": ("attention",)}
    plain, changed = (identify_export(**each) for each in ({}, options))
    assert plain["model"] == changed["model"] and plain["settings"] != changed["settings"]


def test_both_sides_of_a_branch_are_parts_of_the_graph(files):
    class Branch(torch.nn.Module):
        def __init__(self, factor):
            super().__init__()
            self.factor = factor

        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * self.factor, (x,))

    models = [wb.load_model(Branch(factor), torch.ones(3)) for factor in (2.0, 2.0, 3.0)]
    first, same, other = map(export, models)
    assert same == (first[0], True) and other == (first[0], False)


AGAIN = """
import sys
import workbench as wb
wb.export_model("mine.py:Net", options=wb.ExportOptions(backend="portable"))
print("executorch.exir" in sys.modules)
"""


@pytest.mark.whole
def test_an_export_that_is_up_to_date_imports_no_executorch(files):
    """Which takes seconds, and logs what it cannot load."""
    export()
    done = subprocess.run([sys.executable, "-c", AGAIN], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "False"
    assert "Failed to load" not in done.stderr

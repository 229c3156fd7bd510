"""An export is kept while everything that it was made from is the same, and no longer."""

import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

import workbench as wb
from workbench import store
from workbench.export import artifact as cache
from workbench.export.artifact import export_model
from workbench.options import ExportOptions

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


def export(**choices):
    """Export the model; returns the program, and whether an earlier one was kept."""
    told, options = [], ExportOptions(**{"backend": "portable"} | choices)
    pte = export_model(
        "mine.py:Net", options=options, progress=lambda text, fraction: told.append(text)
    ).path
    return pte, told == [f"{pte.name}: up to date"]


def test_an_unchanged_export_is_kept(files):
    pte, kept = export()
    assert not kept
    record = store.export_record_path(pte).read_bytes()
    assert export() == (pte, True)
    assert store.export_record_path(pte).read_bytes() == record
    assert export(fresh=True) == (pte, False)


def test_a_kept_export_needs_no_torch(files):
    export()
    code = (
        "import sys; from workbench.cli import workbench; "
        "workbench(['export', 'mine.py:Net', '--backend', 'portable'], standalone_mode=False); "
        "print(sorted({'torch', 'executorch', 'numpy'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "up to date" in done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


CHANGES = {
    "source": lambda: Path("mine.py").write_text(MODEL + "# more\n"),
    "import": lambda: Path("neighbour.py").write_text("SIZE = 3  # more\n"),
    "weights": lambda: torch.save(
        {"weight": torch.zeros(3, 4), "bias": torch.zeros(3)}, "weights.pt"
    ),
    "inputs": lambda: torch.save(torch.zeros(1, 4), "inputs.pt"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_whatever_it_was_made_from_is_noticed(files, what):
    torch.save(torch.ones(1, 4), "inputs.pt")
    choices = {"state_dict": "weights.pt", "inputs": ("inputs.pt",)}
    options = ExportOptions(backend="portable", **choices)
    before = cache.identify_export("mine.py:Net", options)
    CHANGES[what]()
    after = cache.identify_export("mine.py:Net", options)
    part = what if what in ("weights", "inputs") else "model"
    assert [name for name in before if before[name] != after[name]] == [part]


@pytest.mark.ci
def test_what_was_made_from_something_else_is_made_again(files):
    pte, _ = export()
    assert wb.open_program(pte).export.made_from == cache.identify_export(
        "mine.py:Net", ExportOptions(backend="portable")
    )
    CHANGES["import"]()
    assert export() == (pte, False)


INT8 = {"backend": "xnnpack", "dtype": "int8"}


@pytest.mark.ci
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"inputs": ("random:1",)}),
        ({}, {"rewrite": False}),
        ({}, {"state_dict": "weights.pt"}),
        pytest.param(INT8, INT8 | {"module_dtypes": (("*", "int8dyn"),)}, marks=pytest.mark.slow),
    ],
)
def test_other_options_are_another_export(files, before, after):
    export(**before)
    assert export(**after)[1] is False
    assert export(**after)[1] is True
    assert export(**before)[1] is False


@pytest.mark.parametrize("part", ["versions", "workbench"])
def test_another_exporter_is_noticed(files, monkeypatch, part):
    before = cache.identify_export("mine.py:Net")
    if part == "versions":
        monkeypatch.setattr(cache, "versions", lambda: {"torch": "0"})
    else:
        monkeypatch.setattr(cache, "_EXPORTER", [files])
    changed = cache.identify_export("mine.py:Net")
    assert changed[part] != before[part]
    assert changed["model"] == before["model"]


@pytest.mark.ci
@pytest.mark.parametrize(
    ("suffix", "harm"),
    [
        pytest.param("", "edited", marks=pytest.mark.ci),
        pytest.param(".etrecord", "gone", marks=pytest.mark.ci),
        (".layers.json", "cut"),
        pytest.param(".input0.bin", "edited", marks=pytest.mark.ci),
        pytest.param(".export.json", "cut", marks=pytest.mark.ci),
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


@pytest.mark.ci
def test_a_kept_export_that_is_wrong_says_so_again(files):
    pte, _ = export()
    record = store.export_record_path(pte)
    record.write_text(record.read_text().replace('"problem": ""', '"problem": "wrong"'))
    told = []
    options = ExportOptions(backend="portable")
    assert (
        export_model(
            "mine.py:Net", options=options, progress=lambda text, fraction: told.append(text)
        ).path
        == pte
    )
    assert told == [f"{pte.name}: up to date", f"warning: {pte.name}: this export is wrong: wrong"]


@pytest.mark.ci
def test_a_model_object_is_always_exported(files):
    from workbench.models.loader import load_model

    model = load_model("mine.py:Net")
    told = []
    with warnings.catch_warnings(action="ignore"):
        for _ in range(2):
            pte = export_model(
                model,
                options=ExportOptions(backend="portable"),
                progress=lambda text, fraction: told.append(text),
            ).path
    assert not any("up to date" in line for line in told)
    assert wb.open_program(pte).export.made_from == {}


# Sources


def model_key():
    return cache.identify_export("mine.py:Net")["model"]


def test_the_key_has_the_folder_of_the_file_its_packages_and_versions_but_no_named_files(files):
    Path("parts").mkdir()
    Path("parts/__init__.py").touch()
    Path("data").mkdir()
    Path("data/other.py").touch()
    keys = [model_key()]
    assert "torch 2" in keys[0]
    for change in (lambda: Path("parts/inner.py").touch(), CHANGES["import"]):
        change()
        keys.append(model_key())
    assert len(set(keys)) == 3
    Path("data/other.py").write_text("SIZE = 3\n")
    torch.save(torch.zeros(1), "scale.pt")
    assert model_key() == keys[-1]


def test_a_class_of_one_name_in_two_files_of_a_folder_is_two_models(files):
    Path("other.py").write_text(MODEL.replace("* SCALE", "+ SCALE"))
    mine, other = (cache.identify_export(f"{name}.py:Net") for name in ("mine", "other"))
    assert mine["model"] != other["model"]


def test_the_key_is_the_same_in_another_folder_though_the_file_names_files(files, monkeypatch):
    spec, key = f"{files / 'mine.py'}:Net", model_key()
    (files / "elsewhere").mkdir()
    monkeypatch.chdir(files / "elsewhere")
    Path("scale.pt").write_bytes(b"another one")
    assert cache.identify_export(spec)["model"] == key


def test_a_package_is_a_part_of_the_key_of_a_file_with_relative_imports(tmp_path):
    files = ("net/__init__.py", "net/sizes.py", "net/deep/__init__.py", "net/deep/model.py")
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / files[-1]).write_text("from ..sizes import WIDTH\n")
    keys = []
    for width in (1, 2):
        (tmp_path / files[1]).write_text(f"WIDTH = {width}\n")
        keys.append(cache.identify_export(f"{tmp_path / files[-1]}:Net")["model"])
    assert keys[0] != keys[1]

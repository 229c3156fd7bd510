"""An export is kept while everything that it was made from is the same, and no longer."""

import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from workbench import store
from workbench.cli import workbench
from workbench.export import artifact as cache
from workbench.export.artifact import export_model
from workbench.models import sources
from workbench.models.sources import find_sources
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
    pte = export_model("mine.py:Net", options, tell=told.append)
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


@pytest.mark.slow
def test_the_command_says_what_it_did(files):
    arguments = ["export", "mine.py:Net", "--backend", "portable"]
    first, second = (CliRunner().invoke(workbench, arguments) for _ in range(2))
    assert "up to date" not in first.stderr
    assert "Net_portable_fp32.pte: up to date" in second.stderr
    assert first.stdout == second.stdout


CHANGES = {
    "source": lambda: Path("mine.py").write_text(MODEL + "# more\n"),
    "import": lambda: Path("neighbour.py").write_text("SIZE = 3  # more\n"),
    "named file": lambda: torch.save(torch.zeros(1), "scale.pt"),
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


@pytest.mark.slow
def test_what_was_made_from_something_else_is_made_again(files):
    pte, _ = export()
    assert store.load_export(pte).made_from == cache.identify_export(
        "mine.py:Net", ExportOptions(backend="portable")
    )
    CHANGES["import"]()
    assert export() == (pte, False)


INT8 = {"backend": "xnnpack", "dtype": "int8"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"inputs": ("random:1",)}),
        ({}, {"rewrite": False}),
        ({}, {"state_dict": "weights.pt"}),
        (INT8, INT8 | {"module_dtypes": (("*", "int8dyn"),)}),
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
        real = cache.find_sources
        monkeypatch.setattr(cache, "find_sources", lambda file: real(Path("neighbour.py")))
    changed = cache.identify_export("mine.py:Net")
    assert changed[part] != before[part]
    assert changed["model"] == before["model"]


@pytest.mark.parametrize(
    ("suffix", "harm"),
    [
        pytest.param("", "edited", marks=pytest.mark.slow),
        pytest.param(".etrecord", "gone", marks=pytest.mark.slow),
        (".layers.json", "cut"),
        pytest.param(".input0.bin", "edited", marks=pytest.mark.slow),
        pytest.param(".export.json", "cut", marks=pytest.mark.slow),
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


@pytest.mark.slow
def test_a_kept_export_that_is_wrong_says_so_again(files):
    pte, _ = export()
    record = store.export_record_path(pte)
    record.write_text(record.read_text().replace('"problem": ""', '"problem": "wrong"'))
    told = []
    options = ExportOptions(backend="portable")
    assert export_model("mine.py:Net", options, tell=told.append) == pte
    assert told == [f"{pte.name}: up to date", f"warning: {pte.name}: this export is wrong: wrong"]
    with pytest.warns(UserWarning, match="wrong"):
        export_model("mine.py:Net", options)


@pytest.mark.slow
def test_a_model_object_is_always_exported(files):
    from workbench.models.loader import load_model

    model = load_model("mine.py:Net")
    told = []
    with warnings.catch_warnings(action="ignore"):
        for _ in range(2):
            pte = export_model(model, ExportOptions(backend="portable"), tell=told.append)
    assert not any("up to date" in line for line in told)
    assert store.load_export(pte).made_from == {}


# Sources


def test_the_sources_of_a_registered_model_are_its_own():
    file = Path(cache.__file__).parents[1] / "models" / "zoo" / "unet_small.py"
    names = {path.name for path in find_sources(file).files}
    assert {"unet_small.py", "blocks.py", "registry.py"} <= names
    assert "vit_tiny.py" not in names
    exporter = find_sources(Path(cache.__file__).with_name("artifact.py"))
    modules = {path.name for path in Path(cache.__file__).parent.glob("*.py")}
    assert modules - {path.name for path in exporter.files} <= {"__init__.py", "probes.py"}
    assert any(package.startswith("torch ") for package in exporter.packages)


def test_imports_of_every_form_are_followed(tmp_path, monkeypatch):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "inner.py").write_text("from . import sibling\nfrom .other import x\nimport inner\n")
    (package / "sibling.py").write_text("def f():\n    import late\n")
    (package / "other.py").write_text("not Python")
    (tmp_path / "late.py").write_text("import json, no_such_package")
    (tmp_path / "main.py").write_text("from package.inner import thing\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = find_sources(tmp_path / "main.py")
    assert [path.name for path in found.files] == [
        "late.py", "main.py", "__init__.py", "inner.py", "other.py", "sibling.py",
    ]  # fmt: skip
    assert found.packages == ()


def test_packages_that_pip_put_on_pythonpath_are_not_the_users(tmp_path, monkeypatch):
    package, metadata = (
        tmp_path / "extra" / "elsewhere",
        tmp_path / "extra" / "elsewhere-1.2.dist-info",
    )
    package.mkdir(parents=True)
    metadata.mkdir()
    (package / "__init__.py").touch()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1.2\n")
    (metadata / "RECORD").write_text("elsewhere/__init__.py,,\n")
    (tmp_path / "main.py").write_text("import elsewhere\n")
    monkeypatch.syspath_prepend(str(tmp_path / "extra"))
    sources._distributions.cache_clear()
    found = find_sources(tmp_path / "main.py")
    assert [path.name for path in found.files] == ["main.py"]
    assert found.packages == ("elsewhere 1.2",)


@pytest.mark.parametrize("text", ["a. " + "b" * 300, "/" * 500, "x/" * 250])
def test_a_sentence_is_not_taken_for_a_file(tmp_path, text):
    (tmp_path / "main.py").write_text(f"TEXT = {text!r}\n")
    assert [path.name for path in find_sources(tmp_path / "main.py").files] == ["main.py"]

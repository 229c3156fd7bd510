"""The schema of matrices is that of the code, and readers agree with it."""

from pathlib import Path

import mutants
import pytest
import yaml
from schemas import Described, check_reader

from workbench.plugins.batch.matrix import Cell, read_matrix
from workbench.plugins.batch.page import EMPTY, Portfolio, write_csv
from workbench.records.codec import to_json
from workbench.store import load_record

ROOT = Path(__file__).resolve().parents[3]
MATRIX = ROOT / "data" / "matrix.yaml"
FOLDER = ROOT / "workbench" / "plugins" / "batch"
DESCRIBED = Described("matrix", FOLDER / "matrix.schema.json")


def test_the_published_schema_is_the_one_of_the_code():
    DESCRIBED.check_schema()


def test_what_the_schema_refuses_the_reader_refuses_too(cli, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    least = {"models": ["toy_cnn"]}
    check_reader(DESCRIBED.validator, least, lambda file: cli("batch", "--dry-run", file))


def test_the_documented_matrix_fits_its_schema():
    DESCRIBED.validator.validate(yaml.safe_load(MATRIX.read_text()))


def make_portfolio(folder):
    """The record of a batch with a finished cell."""
    row = {**EMPTY, "experiment": "on", "threads": 1, "latency_ms": 1.5, "outcome": "faster"}
    names = ("toy_cnn", "toy_cnn", "fp32", "host", "auto", "toy_cnn_xnnpack_fp32")
    cell = Cell(*names, state="done", run="out/runs/x", rows=(row,))
    return [to_json(Portfolio({"models": ["toy_cnn"]}, (cell,), "2026")).encode()]


def load_portfolio(path):
    """Read the record of a batch, and list its cells."""
    write_csv(load_record(Portfolio, path).cells)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "kind",
    [
        mutants.Kind("p.json", make_portfolio, load_portfolio),
        mutants.Kind("m.yaml", lambda _: [MATRIX.read_bytes()], read_matrix),
    ],
    ids=["portfolio", "matrix"],
)
def test_a_damaged_file_is_refused_in_one_line(kind, seed, tmp_path):
    ends, failures = mutants.fuzz(kind, seed, range(60), tmp_path)
    assert not failures
    assert ends.total() == 60

"""The schema of matrices is that of the code and of its page, and readers agree with it."""

import json
from pathlib import Path

import jsonschema
import mutants
import pytest
import yaml
from schemas import check_reader, describe_keys

from workbench.plugins.batch.matrix import Cell, read_matrix
from workbench.plugins.batch.page import EMPTY, Portfolio, write_csv
from workbench.records.codec import to_json
from workbench.store import load_record

ROOT = Path(__file__).resolve().parents[3]
MATRIX = ROOT / "data" / "matrix.yaml"
SCHEMA = ROOT / "workbench" / "plugins" / "batch" / "matrix.schema.json"
PAGE = ROOT / "data" / "docs" / "plugins" / "batch.md"
HEADING = "## Keys of a matrix\n"


def test_the_published_schema_is_the_one_of_the_command(cli):
    code, printed, _ = cli("schema", "matrix")
    assert code == 0 and "matrix" in cli("schema")[1].split()
    assert printed == SCHEMA.read_text(), f"workbench schema matrix > {SCHEMA}"
    jsonschema.Draft202012Validator.check_schema(json.loads(printed))


def test_the_page_has_its_keys():
    table = describe_keys(json.loads(SCHEMA.read_text()), "###")
    assert PAGE.read_text().partition(HEADING)[2] == table, (
        f"PYTHONPATH=tests python {__file__} writes it"
    )


def validator():
    return jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text()))


def test_what_the_schema_refuses_the_reader_refuses_too(cli, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    check_reader(validator(), {"models": ["toy_cnn"]}, lambda file: cli("batch", "--dry-run", file))


def test_the_documented_matrix_fits_its_schema():
    validator().validate(yaml.safe_load(MATRIX.read_text()))


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


if __name__ == "__main__":
    table = describe_keys(json.loads(SCHEMA.read_text()), "###")
    PAGE.write_text(PAGE.read_text().partition(HEADING)[0] + HEADING + table)

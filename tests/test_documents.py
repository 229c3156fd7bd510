"""The schemas are those of the code, every file fits its own, and older files are still read."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

import workbench as wb
from workbench.datasets import SAMPLES
from workbench.errors import StoreError, UsageError
from workbench.frames import STATISTICS, make_frame
from workbench.records.codec import Columns, Contract, from_json, to_json, to_plain, upgrade
from workbench.records.documents import (
    DOCUMENTS,
    Metrics,
    describe_document,
    find_problem,
)
from workbench.records.layers import Layers
from workbench.records.portfolio import Cell, Outcome, Portfolio, Row, Stage
from workbench.records.runs import SCHEMA_VERSION, Ceilings, Export, RunRecord
from workbench.report.artifacts import write_artifacts
from workbench.store import load_document

PUBLISHED = SAMPLES.parent / "schemas" / f"v{SCHEMA_VERSION}"
RECORDS = {"manifest": RunRecord, "export": Export, "layers": Layers, "ceilings": Ceilings}
RECORDED = [
    *(("manifest", path) for path in sorted(SAMPLES.glob("out_*/runs/*/manifest.json"))),
    *(("layers", path) for path in sorted(SAMPLES.glob("out_*/runs/*/layers.json"))),
    *(("ceilings", path) for path in sorted(SAMPLES.glob("out_*/runs/*/ceilings_*.json"))),
    *(("export", path) for path in sorted(SAMPLES.glob("exports/*.export.json"))),
]
SLOW = pytest.param("unet_small", marks=pytest.mark.slow)
DERIVED = ("metrics", "analysis_summary", "pipeline_summary")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_published_schema_is_the_one_of_the_code(name):
    described = describe_document(name)
    jsonschema.Draft202012Validator.check_schema(described)
    written = json.loads((PUBLISHED / f"{name}.schema.json").read_text())
    assert written == described, f"workbench schema {name} > {PUBLISHED}/{name}.schema.json"


def test_nothing_else_is_published():
    assert {path.name.split(".")[0] for path in PUBLISHED.iterdir()} == set(DOCUMENTS)


@pytest.mark.parametrize(
    ("name", "path"), RECORDED, ids=lambda value: "/".join(getattr(value, "parts", ())[-4:])
)
def test_what_was_recorded_is_read_whatever_its_version(name, path):
    content = json.loads(path.read_bytes())
    older = content["schema_version"] < SCHEMA_VERSION
    record = from_json(RECORDS[name], path.read_bytes(), path)
    assert record.schema_version == SCHEMA_VERSION
    assert find_problem(json.loads(to_json(record)), name) == ""
    assert find_problem(upgrade(content, path), name) == ""
    assert ("schema_version" in find_problem(content, name)) == older


def test_a_first_manifest_had_notes_and_fewer_fields():
    path = wb.sample_run() / "manifest.json"
    content = json.loads(path.read_bytes())
    first = drop_defaults(RunRecord, content) | {"notes": [], "schema_version": 1}
    first["export"] = content["export"]
    assert first.keys() != content.keys()
    run = from_json(RunRecord, json.dumps(first), path)
    assert run.plan.sha256 == content["plan"]["sha256"]
    assert run.sessions == ()
    assert run.export.schema_version == SCHEMA_VERSION
    with pytest.raises(UsageError, match="unknown key 'notes'"):
        from_json(RunRecord, json.dumps(first | {"notes": ["written"]}), path)
    with pytest.raises(UsageError, match="unknown key 'notes'"):
        from_json(RunRecord, json.dumps(first | {"schema_version": SCHEMA_VERSION}), path)


def drop_defaults(record, content):
    """What is left without the fields that came later, which all have a default."""
    later = {f.name for f in fields(record) if f.default is not MISSING}
    return {key: value for key, value in content.items() if key not in later}


@pytest.mark.parametrize("version", [0, -1, SCHEMA_VERSION + 1, "1", None, True, 1.0])
def test_a_version_that_nobody_wrote_is_refused(version):
    path = wb.sample_run() / "manifest.json"
    content = json.loads(path.read_bytes()) | {"schema_version": version}
    with pytest.raises(StoreError, match=r"schema version .*, this workbench reads 1, 2"):
        from_json(RunRecord, json.dumps(content), path)


@pytest.fixture(scope="module", params=["toy_cnn", SLOW])
def run_dir(request, tmp_path_factory):
    """An emulated run, and one with several thread counts."""
    folder = tmp_path_factory.mktemp("documents") / "runs" / "linux"
    shutil.copytree(wb.sample_run(request.param), folder)
    write_artifacts(wb.open_run(folder))
    return folder


@pytest.mark.parametrize("name", DERIVED)
def test_what_the_workbench_writes_fits_its_schema(run_dir, name):
    path = find(run_dir, name)
    content = json.loads(path.read_bytes())
    assert to_plain(load_document(DOCUMENTS[name], path)) == content
    for key in list(content)[:4]:
        damaged = {k: v for k, v in content.items() if k != key}
        assert key in find_problem(damaged, name)
    assert "surprise" in find_problem({**content, "surprise": 1}, name)


def find(run_dir, name):
    (path,) = run_dir.glob(f"*{name}.json")
    return path


def test_a_portfolio_fits_its_schema():
    cell = Cell("toy_cnn", "toy_cnn", "fp32", "host", "auto", "toy_cnn_xnnpack_fp32", "0" * 64)
    row = Row("avx512_on", "native", 1, "cpu_ns", 50, 1.0, 0.9, 1.1)
    outcome = Outcome(cell, "done", (Stage("export", "2026-01-01", 1.5),), rows=(row,))
    portfolio = Portfolio({"models": ["toy_cnn"]}, "2026-01-01", (outcome,))
    schema = jsonschema.Draft202012Validator(describe_document("portfolio"))
    content = json.loads(to_json(portfolio))
    schema.validate(content)
    content["outcomes"][0]["rows"][0]["n"] = 1.5
    assert not schema.is_valid(content)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not a JSON object"),
        ('{"schema_version": 1}', "regenerate it with `workbench analyze`"),
        ('{"schema_version": 9}', "the workbench version that wrote it"),
        ('{"schema_version": 2, "unit": "s"}', "not a metrics document"),
    ],
)
def test_a_bad_document_is_one_clear_line(tmp_path, text, says):
    path = tmp_path / "metrics.json"
    path.write_text(text)
    with pytest.raises(StoreError, match=says) as caught:
        load_document(Metrics, path)
    assert "\n" not in str(caught.value)
    assert "metrics.json: " in str(caught.value)


@dataclass(frozen=True)
class Part:
    """A part.

    More of it.
    """

    name: str
    size: tuple[int, float | None] = (1, None)


@dataclass(frozen=True)
class Whole:
    """A whole."""

    parts: tuple[Part, ...]
    by_number: dict[int, Part]
    anything: Any = None


ACCEPTED = [
    {"parts": [], "by_number": {}},
    {"parts": [{"name": "a"}], "by_number": {"-3": {"name": "b", "size": [1, None]}}},
    {"parts": [{"name": "a", "size": [1, 2.5]}], "by_number": {}, "anything": [1, {}]},
]
REFUSED = [
    {"parts": []},
    {"parts": [{"name": 1}], "by_number": {}},
    {"parts": [{"name": "a", "size": [1]}], "by_number": {}},
    {"parts": [{"name": "a", "size": [1, 2, 3]}], "by_number": {}},
    {"parts": [{"name": "a", "more": 1}], "by_number": {}},
    {"parts": [], "by_number": {"x": {"name": "b"}}},
]


@pytest.mark.parametrize("content", [*ACCEPTED, *REFUSED], ids=str)
def test_a_record_is_described_by_its_types(content):
    contract = Contract()
    schema = contract.publish("whole", 1, contract.of(Whole))
    assert schema["$defs"]["Part"]["description"] == "A part."
    valid = jsonschema.Draft202012Validator(schema).is_valid(content)
    assert valid == (content in ACCEPTED)


def test_a_row_is_described_by_its_columns():
    contract = Contract()
    frame = make_frame("some rows", ("n", "int", "", "how many"), ("t_ms", "float", "ms", "time"))
    rows = Annotated[tuple[Mapping[str, Any], ...], Columns(frame)]
    schema = contract.publish("rows", 1, contract.of(rows))
    validator = jsonschema.Draft202012Validator(schema)
    assert validator.is_valid([{"n": 1, "t_ms": None, "further": "column"}])
    assert not validator.is_valid([{"n": 1}])
    assert not validator.is_valid([{"n": 0.5, "t_ms": 1}])
    assert "time [ms]" in json.dumps(schema)
    row = Annotated[Mapping[str, Any], Columns(STATISTICS, without=("n",), clock=Literal["cpu_ns"])]
    more = contract.of(row)
    assert list(more["properties"])[:2] == ["clock", "latency"]
    assert more["properties"]["clock"] == {"enum": ["cpu_ns"]}


@given(st.dictionaries(st.sampled_from(["unit", "latencies", "floor"]), st.none() | st.text()))
def test_any_metrics_are_described_or_refused(tmp_path_factory, content):
    path = Path(tmp_path_factory.getbasetemp()) / "any.json"
    path.write_text(json.dumps({**content, "schema_version": SCHEMA_VERSION}))
    with pytest.raises(StoreError, match="not a metrics document"):
        load_document(Metrics, path)


def test_the_command_prints_a_schema(cli):
    assert cli("schema")[1].split() == [*DOCUMENTS]
    assert json.loads(cli("schema", "metrics")[1]) == describe_document("metrics")
    code, _, err = cli("schema", "metric")
    assert code == 2 and "did you mean 'metrics'?" in err

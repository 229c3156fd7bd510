"""Traces in other formats: what comes out is what went in, and what cannot be says why."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from etdump_builder import Block, Profile, build_etdump

from workbench.analysis.categories import add_categories
from workbench.analysis.ledger import build_ledger
from workbench.analysis.operators import describe_spans
from workbench.cli import main
from workbench.datasets import sample_run
from workbench.errors import StoreError, UsageError
from workbench.frames import EVENTS, SPANS
from workbench.trace.etdump import read_etdump
from workbench.workflow import export_trace

GOLDEN = sorted((Path(__file__).parent / "data" / "etdump").glob("*.etdump"))
TRACE = next(path for path in GOLDEN if path.stem == "two_methods")
needs_pyarrow = pytest.mark.skipif(
    importlib.util.find_spec("pyarrow") is None,
    reason="pyarrow is an extra: pip install '.[parquet]'",
)
FORMATS = ["csv", pytest.param("parquet", marks=needs_pyarrow), "perfetto", "speedscope"]


@pytest.fixture
def trace(tmp_path):
    """A copy of a small real trace, in a folder of its own."""
    return Path(shutil.copy(TRACE, tmp_path / "it.etdump"))


@pytest.fixture
def cli(capfd, tmp_path, monkeypatch):
    """Run ``workbench trace`` in the trace's folder: its exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(["trace", *map(str, arguments)])
        out, err = capfd.readouterr()
        return ended.value.code, out, err

    return run


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_every_event_has_its_row_of_the_ledger(path):
    events = read_etdump(path)
    spans, ledger = describe_spans(events), add_categories(build_ledger(events))
    assert list(spans)[: len(events.columns)] == list(events)
    pd.testing.assert_frame_equal(spans[list(events)], events)
    described = spans[spans["ledger_kind"].notna()]
    assert described["run"].isin(ledger["run"]).all()
    names = {"ledger_kind": "kind", "own_ns": "duration_ns"}
    for name in ("ledger_kind", "name", "operator", "key", "own_ns", "category", "rule", "run"):
        assert described[name].tolist() == ledger[names.get(name, name)].tolist()
    e2e = events[(events["kind"] == "method") & (events["run"] >= 0)].set_index("run")
    own = described.groupby("run")["own_ns"].sum()
    assert own.to_dict() == e2e["duration_ns"].to_dict()
    outside = spans.loc[spans["run"] < 0, SPANS.names[len(EVENTS.names) :]]
    assert outside.isna().to_numpy().all()


@needs_pyarrow
@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_parquet_comes_back_equal(path, tmp_path):
    (file,) = export_trace(path, "parquet", out=tmp_path / "it.parquet")
    spans = describe_spans(read_etdump(path))
    pd.testing.assert_frame_equal(pd.read_parquet(file), spans)


@needs_pyarrow
def test_parquet_says_what_its_columns_mean(trace):
    from pyarrow import parquet

    (file,) = export_trace(trace, "parquet")
    assert file == trace.with_suffix(".parquet")
    schema = parquet.read_schema(file)
    for column in SPANS.columns:
        metadata = schema.field(column.name).metadata
        assert metadata[b"unit"].decode() == column.unit
        assert metadata[b"meaning"].decode() == column.meaning
    assert schema.metadata[b"frame"] == b"spans"
    assert schema.metadata[b"trace"] == b"it"


@needs_pyarrow
def test_a_trace_without_a_run_has_nothing_from_the_ledger(tmp_path):
    path = tmp_path / "it.etdump"
    path.write_bytes(build_etdump([Block("Default", [Profile("Method::init", -1, end=5)])]))
    (file,) = export_trace(path, "parquet")
    (row,) = pd.read_parquet(file).to_dict("records")
    assert (row["name"], row["duration_ns"]) == ("Method::init", 5)
    assert pd.isna(row["category"])
    assert pd.isna(row["own_ns"])
    assert export_trace(path, "perfetto")[0].stat().st_size > 0


@pytest.mark.parametrize("to", FORMATS)
def test_files_lie_beside_the_trace_unless_told_otherwise(cli, trace, to):
    code, out, err = cli(trace, "--to", to)
    beside = {Path(line) for line in out.split()}
    assert (code, err) == (0, "")
    assert beside == {path for path in trace.parent.iterdir() if path != trace}
    assert all(path.name.startswith("it") for path in beside)

    code, out, _ = cli(trace, "--to", to, "--out", "new/elsewhere")
    files = [Path(line) for line in out.split()]
    assert code == 0
    assert all(file.stat().st_size > 0 for file in files)
    expected = Path("new/elsewhere")
    assert files == [expected] or all(file.parent == expected for file in files)


def test_csvs_are_those_that_analyze_writes(trace):
    from workbench.trace.writers.csv_tables import write_csvs

    paths = write_csvs(read_etdump(trace), trace)
    written = [path.read_bytes() for path in paths]
    assert export_trace(trace, "csv") == paths
    assert [path.read_bytes() for path in paths] == written


@pytest.mark.parametrize("to", ["perfetto", "speedscope"])
def test_two_traces_of_one_name_are_told_apart(cli, trace, to):
    other = trace.parent / "other" / trace.name
    other.parent.mkdir()
    shutil.copy(TRACE, other)
    code, out, _ = cli(trace, "--to", to, "--baseline", other)
    assert code == 0
    content = Path(out.strip()).read_bytes()
    assert b"baseline: it" in content
    assert b"candidate: it" in content


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--to", "json"], "--to: unknown format 'json' -> valid: csv, parquet, perfetto"),
        (["--to", "perfeto"], "did you mean 'perfetto'?"),
        ([], "--to"),
        (["--to", "csv", "--baseline", "it.etdump"], "--baseline: csv holds one trace"),
        (["--to", "parquet", "--baseline", "it.etdump"], "for perfetto, speedscope"),
        (["--to", "perfetto", "--out", "it.etdump"], "it.etdump: is a trace to read"),
        (["--to", "perfetto", "--out", "./it.etdump"], "is a trace to read"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(cli, trace, arguments, words):
    before = trace.read_bytes()
    code, out, err = cli(trace, *arguments)
    assert code == 2
    assert out == ""
    assert words in err
    assert "Traceback" not in err
    assert [*trace.parent.iterdir()] == [trace]
    assert trace.read_bytes() == before


def test_a_baseline_is_not_overwritten_either(trace):
    other = Path(shutil.copy(trace, trace.with_name("other.etdump")))
    with pytest.raises(UsageError, match="is a trace to read"):
        export_trace(trace, "perfetto", out=other, baseline=other)


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize(
    "content", [None, b"", b"no trace\n" * 9, "cut"], ids=["missing", "empty", "foreign", "cut"]
)
def test_a_bad_trace_is_one_line_and_exit_code_1(cli, trace, to, content):
    bad = trace.with_name("bad.etdump")
    if content is not None:
        bad.write_bytes(trace.read_bytes()[:-100] if content == "cut" else content)
    before = set(trace.parent.iterdir())
    arguments = ["--baseline", bad] if to in ("perfetto", "speedscope") else []
    for chosen in [[bad], [trace, *arguments]][: 1 + bool(arguments)]:
        code, out, err = cli(*chosen, "--to", to)
        assert (code, out) == (1, "")
        assert err.startswith("error: ")
        assert "bad.etdump" in err
        assert len(err.splitlines()) == 1
    assert set(trace.parent.iterdir()) == before


@pytest.mark.parametrize("to", FORMATS)
def test_a_place_that_cannot_be_written_is_one_line(cli, trace, to):
    trace.with_name("file").write_text("in the way")
    out = Path("file/it") if to != "csv" else Path("file")
    code, printed, err = cli(trace, "--to", to, "--out", out)
    assert (code, printed) == (1, "")
    assert len(err.splitlines()) == 1
    assert f"error: {out}" in err
    assert "cannot be written: " in err
    assert ".tmp" not in err


def test_a_folder_in_the_way_is_one_line(trace):
    (trace.parent / "folder").mkdir()
    with pytest.raises(StoreError, match="cannot be written: Is a directory"):
        export_trace(trace, "perfetto", out=trace.parent / "folder")
    assert not any((trace.parent / "folder").iterdir())


@pytest.mark.skipif(sys.platform == "darwin", reason="its file names are text")
@pytest.mark.parametrize("to", FORMATS)
def test_a_file_name_that_is_no_text(trace, to):
    odd = trace.rename(os.fsdecode(os.fsencode(trace.parent) + b"/\xff\n.etdump"))
    assert all(path.stat().st_size > 0 for path in export_trace(odd, to))


@needs_pyarrow
def test_hostile_names_come_through(tmp_path):
    name = '"\\\x00\x1b[31m</script>\U0001f4a3\ufffd' + "x" * 900
    run = [
        Profile(name, 0, 0, delegate_str=name, end=4),
        Profile("DELEGATE_CALL", 0, 0, end=5),
        Profile("Method::execute", -1, end=9),
    ]
    path = tmp_path / "it.etdump"
    path.write_bytes(build_etdump([Block("Execute", run)]))
    (file,) = export_trace(path, "parquet")
    assert pd.read_parquet(file)["name"].tolist()[0] == name
    (file,) = export_trace(path, "speedscope")
    assert "\x1b" not in file.read_text()
    (file,) = export_trace(path, "perfetto")
    assert name.encode() in file.read_bytes()


@pytest.mark.parametrize("to", FORMATS)
def test_exchange_needs_neither_torch_nor_executorch(trace, to):
    code = (
        "import sys; from workbench.workflow import export_trace;"
        f"export_trace({str(trace)!r}, {to!r});"
        "print(*(m for m in ('torch', 'executorch') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_parquet_without_pyarrow_says_what_to_install(trace, monkeypatch):
    from workbench.errors import SetupError

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SetupError, match=r"executorch-workbench\[parquet\]"):
        export_trace(trace, "parquet")


@needs_pyarrow
def test_the_sample_closes_in_every_format(tmp_path):
    off, on = (sorted(sample_run().glob(f"avx512_{side}/*_t1.etdump"))[0] for side in ("off", "on"))
    (file,) = export_trace(on, "parquet", out=tmp_path / "on.parquet")
    spans = pd.read_parquet(file)
    e2e = spans.loc[spans["kind"] == "method", "duration_ns"]
    assert spans["own_ns"].sum() == e2e.sum()
    assert set(spans["category"].cat.categories) >= {"Convolution", "Data Movement"}
    for to in ("perfetto", "speedscope"):
        (file,) = export_trace(on, to, out=tmp_path / to, baseline=off)
        assert b"Convolution (NHWC, F32) IGEMM" in file.read_bytes()

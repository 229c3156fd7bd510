"""A matrix becomes cells, cells become runs with reports, and nothing is done twice."""

import csv
import html
import io
import json
import re
import shutil
import socketserver
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import mutants
import pandas as pd
import pytest
import yaml
from batch_evidence import check_nothing_twice
from hostile_run import EVIL, LINK
from made_starts import make_start
from needed import needs
from recorded import plain
from run_folder import open_made_run
from schemas import Described, check_reader

import workbench as wb
from workbench.errors import StoreError, UsageError
from workbench.plots.tables import COLORS
from workbench.plugins.batch.matrix import Cell, read_matrix
from workbench.plugins.batch.portfolio import (
    EMPTY,
    PORTFOLIO,
    Portfolio,
    list_rows,
    render_index,
    write_csv,
)
from workbench.records.codec import to_json
from workbench.run.locks import lock_folder
from workbench.store import load_record

pytestmark = needs("targets", "zoo")
ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "data" / "matrix.yaml"
DESCRIBED = Described(
    "workbench.plugins.batch.matrix_document",
    ROOT / "workbench" / "plugins" / "batch" / "matrix.schema.json",
)
MATRIX = "models: [toy_cnn, vit_tiny]\ndtypes: [fp32, int8]\nisa: none\n"
#: Cells that take seconds: two finished programs, and a notebook that shows little.
SMALL = """
programs: '*.pte'
isa: none
runs: 2
processes: 1
evidence: false
roof: false
cold_start: false
notebook: my.ipynb
"""
NOTEBOOK = {
    "cells": [
        {
            "cell_type": "code",
            "metadata": {"tags": ["parameters"]},
            "source": ["run_dir = ''"],
            "outputs": [],
            "execution_count": None,
        }
    ],
    "metadata": {},
    "nbformat": 4,
    "nbformat_minor": 4,
}


@pytest.fixture
def matrix(tmp_path):
    def write(text=MATRIX):
        path = tmp_path / "small.yaml"
        path.write_text(text)
        return path

    return write


def write_small(folder, conv_pte, names=("first", "second")):
    """A matrix of finished programs in a folder; returns its path."""
    for name in names:
        for path in conv_pte.parent.glob(f"{conv_pte.name}*"):
            shutil.copyfile(path, folder / path.name.replace(conv_pte.stem, name))
    (folder / "my.ipynb").write_text(json.dumps(NOTEBOOK))
    path = folder / "small.yaml"
    path.write_text(SMALL)
    return path


@pytest.fixture(scope="module")
def finished(conv_pte, tmp_path_factory):
    """The matrix of a finished batch, what it returned, and what it said meanwhile."""
    path = write_small(tmp_path_factory.mktemp("batch"), conv_pte)
    said = []
    portfolio = wb.batch(path, out=path.parent / "out", progress=lambda *line: said.append(line))
    return SimpleNamespace(path=path, out=path.parent / "out", portfolio=portfolio, said=said)


def dates(folder):
    return {path: path.stat().st_mtime_ns for path in folder.glob("out_*/**/*") if path.is_file()}


def test_the_example_is_planned_by_the_command(cli, tmp_path):
    code, out, _ = cli("batch", ROOT / "data" / "matrix.yaml", "--dry-run")
    assert code == 0
    assert out.splitlines()[0] == "toy_cnn/fp32/host/auto  export, measure, report"
    assert out.splitlines()[-1] == "12 cells, 0 done"
    assert not (tmp_path / "portfolio_matrix").exists()


def test_a_plan_is_one_document(cli, matrix):
    code, out, _ = cli("batch", matrix(), "--dry-run", "--json")
    assert code == 0
    planned = json.loads(out)["plan"]
    assert len({entry["cell"]["stem"] for entry in planned}) == len(planned) == 4
    assert planned[0]["todo"] == ["export", "measure", "report"]


def test_a_batch_that_cannot_begin_is_one_line(cli, matrix, monkeypatch, tmp_path):
    code, out, err = cli("batch", matrix("models: toy_cn"))
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "did you mean 'toy_cnn'?" in err
    code, _, err = cli("batch", matrix(), "--only", "nothing")
    assert code == 2
    assert "no cell 'nothing' -> cells: toy_cnn/fp32/host/none" in err
    code, _, err = cli("batch", matrix(), "--dask", "local:none")
    assert (code, "bad number of workers" in err) == (2, True)
    (tmp_path / "file").write_text("")
    code, _, err = cli("batch", matrix(), "--out", tmp_path / "file" / "out")
    assert (code, "cannot be written: Not a directory" in err) == (1, True)
    monkeypatch.setitem(sys.modules, "distributed", None)
    code, _, err = cli("batch", matrix())
    assert (code, len(err.splitlines())) == (1, 1)
    assert "Dask is not installed" in err and "[batch]" in err


def test_without_semaphores_a_batch_says_what_to_mount(matrix, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise FileNotFoundError(2, "No such file or directory")  # as sem_open without /dev/shm

    monkeypatch.setattr("multiprocessing.synchronize.SemLock.__init__", refuse)
    with pytest.raises(wb.WorkbenchError, match=r"cannot start workers: .*mount /dev/shm"):
        wb.batch(matrix(), out=tmp_path / "out")


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n", b"\0" * 64])
def test_a_dask_address_of_another_program_is_one_line(cli, matrix, answer, monkeypatch):
    monkeypatch.setattr("workbench.plugins.batch.batches.CONNECT_S", 0.2)

    class Program(socketserver.StreamRequestHandler):
        def handle(self):
            self.wfile.write(answer)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Program) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = "tcp://127.0.0.1:{1}".format(*server.server_address)
        code, _, err = cli("batch", matrix(), "--dask", address)
        server.shutdown()
    assert (code, len(err.splitlines())) == (1, 1)
    assert f"{address}: no Dask scheduler answers" in err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model: [toy_cnn]", "did you mean 'models'?"),
        ("models: toy_cnn\nops: [evil.so]", "unknown key 'ops'"),  # code to load
        ("models: [toy_cn]", "did you mean 'toy_cnn'?"),
        ("models: []", "is empty"),
        ("models: [toy_cnn, toy_cnn]", "a value twice"),
        ("models: toy_cnn\ndtypes: fp23", "did you mean 'fp32'?"),
        ("models: toy_cnn\nisa: avx51", "did you mean 'avx512'?"),
        ("models: toy_cnn\ntargets: qenu", "valid: android[:SERIAL], host, qemu[:CPU], ssh:HOST"),
        ("models: toy_cnn\nbackend: vulkan", "valid: portable, xnnpack"),
        ("models: toy_cnn\nagainst: none.pte", "none.pte: no such file"),
        ("models: toy_cnn\nthreads: [-1]", "out of range"),
        ("models: toy_cnn\nruns: 1.5", "$.runs: expected int"),
        ("models: toy_cnn\nmodels: vit_tiny", "duplicate key 'models'"),
        ("models: &m [toy_cnn]\ndtypes: *m", "alias"),
        ("models: [toy_cnn", "not YAML"),
        ("- toy_cnn", "expected a mapping"),
        ("", "expected a mapping"),
        ("models: !!python/object/apply:os.system [ls]", "not YAML"),
        ("models: " + "[" * 90_000, "nested too deeply"),
        ("models: toy_cnn # " + "x" * 200_000, "too large"),
        ("models: toy_cnn\nnotebook: none.ipynb", "none.ipynb: no such notebook"),
        ("models: [toy_cnn]\nexclude: [{dtype: int8}]", "unknown dtype 'int8'"),
        ("models: [toy_cnn]\nexclude: [{}]", "an exclusion needs a model"),
        ("models: [toy_cnn]\nexclude: [{model: toy_cnn}]", "every cell is excluded"),
        ("models: [a.py:Net, b.py:Net]", "would both be called Net"),
        ("programs: none/*.pte", "no .pte file matches 'none/*.pte'"),
    ],
)
def test_a_bad_matrix_is_one_clear_line(matrix, tmp_path, text, words):
    for name in "ab":
        (tmp_path / f"{name}.py").write_text("class Net: ...\n")
    with pytest.raises((UsageError, StoreError)) as error:
        wb.batch(matrix(text), out=tmp_path / "out")
    assert words in str(error.value)
    assert not (tmp_path / "out").exists()


def test_programs_are_cells_of_their_own(cli, matrix, conv_pte, tmp_path):
    release = tmp_path / "release"
    release.mkdir()
    for path in (release / "b.pte", release / "a.pte", tmp_path / "a.pte"):
        shutil.copyfile(conv_pte, path)
    path = matrix("programs: release/*.pte\nmodels: toy_cnn\ndtypes: [fp32, int8]\nisa: none")
    code, out, _ = cli("batch", path, "--dry-run")
    names = [line.split()[0] for line in out.splitlines()[:-1]]
    assert code == 0
    assert names == [
        *("toy_cnn/fp32/host/none", "toy_cnn/int8/host/none"),
        *("a/pte/host/none", "b/pte/host/none"),
    ]
    code, _, err = cli("batch", matrix("programs: [release/a.pte, a.pte]"), "--dry-run")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "would both be called a" in err


@pytest.mark.whole
def test_a_batch_is_one_page_and_table(finished):
    cells = finished.portfolio.cells
    assert [(cell.label, cell.state) for cell in cells] == [("first", "done"), ("second", "done")]
    for cell in cells:
        run = wb.open_run(f"{finished.portfolio.folder}/{cell.run}")
        assert (run.record.state, run.record.plan.stem) == ("complete", cell.label)
        assert (finished.out / cell.report).is_file()
        assert [row["experiment"] for row in cell.rows] == ["baseline", "repeat"]
        assert cell.rows[1]["against"] == "baseline" and cell.rows[1]["speedup"] > 0
        assert all(row["grade"] for row in cell.rows)
    page = (finished.out / "index.html").read_text()
    assert "2 cells: 2 done" in page
    assert all(f'href="./{cell.report}"' in page for cell in cells)
    assert all(f"</span>{name}</span>" in page for name in COLORS), "the legend of the bars"
    lines = list(csv.DictReader(io.StringIO((finished.out / "portfolio.csv").read_text())))
    assert [line["model"] for line in lines] == ["first"] * 2 + ["second"] * 2
    assert all(float(line["latency_ms"]) > 0 for line in lines)
    check_nothing_twice(finished.out, 2)


@pytest.mark.whole
def test_progress_says_what_runs(finished):
    texts = [text for text, _ in finished.said]
    assert texts[0] == "exporting 1 of 2: first/pte/host/none"
    heads = {text.split(":")[0] for text in texts}
    assert heads == {
        f"{verb}ing {n} of 2" for verb in ("export", "measur", "report") for n in (1, 2)
    }
    assert any("measuring 1 of 2: first/pte/host/none: " in text for text in texts)
    fractions = [fraction for _, fraction in finished.said]
    assert fractions == sorted(fractions)
    assert (fractions[0], 0.8 < fractions[-1] < 1) == (0, True)


@pytest.mark.whole
def test_a_finished_batch_does_nothing_again(finished, cli):
    before = dates(finished.out)
    code, out, _ = cli("batch", finished.path, "--out", finished.out, "--dry-run")
    assert (code, out.splitlines()[-1]) == (0, "2 cells, 2 done")
    code, out, _ = cli("batch", finished.path, "--out", finished.out, "--only", "first/*")
    assert (code, out) == (0, f"{finished.out}/index.html\n")
    assert dates(finished.out) == before
    # The page has the other cell, too.
    assert "2 cells: 2 done" in (finished.out / "index.html").read_text()


@pytest.mark.cases
def test_what_is_gone_or_changed_is_made_again_and_nothing_else(finished, tmp_path):
    shutil.copytree(finished.path.parent, tmp_path, dirs_exist_ok=True)
    path, out = tmp_path / "small.yaml", tmp_path / "out"
    first, second = finished.portfolio.cells
    (out / second.run / "manifest.json").write_text("{}")
    text = (tmp_path / "my.ipynb").read_text().replace("''", "'' ")
    (tmp_path / "my.ipynb").write_text(text)
    half = out / ".portfolio.json.abcd1234.partial"
    half.write_text("{")
    before = dates(out)
    portfolio = wb.batch(path, out=out)
    assert [cell.state for cell in portfolio.cells] == ["done", "done"]
    assert not half.exists()
    assert portfolio.cells[0].run == first.run
    assert portfolio.cells[1].run != second.run
    changed = {path for path, date in dates(out).items() if before.get(path) != date}
    measured = {path.parent for path in changed if path.name == "manifest.json"}
    assert measured == {out / portfolio.cells[1].run}
    assert out / first.report in changed


def test_another_batch_of_a_portfolio_is_refused(matrix, tmp_path):
    running = r"another batch is running here \(.*, PID \d+, since"
    with lock_folder(tmp_path / "out"), pytest.raises(UsageError, match=running):
        wb.batch(matrix("models: toy_cnn\ntargets: qemu"), out=tmp_path / "out")


BROKEN = """
import os, torch

class Raises(torch.nn.Module):
    def forward(self, x):
        raise ValueError("<b>no such thing</b>")

class Exits(torch.nn.Module):
    def forward(self, x):
        raise SystemExit

class Dies(torch.nn.Module):
    def forward(self, x):
        os.kill(os.getpid(), 9)

class Hangs(torch.nn.Module):
    def forward(self, x):
        while True:
            x = x + 1

def get_example_inputs():
    return (torch.ones(1),)
"""


@pytest.mark.cases
@pytest.mark.timeout(900)
def test_a_failure_takes_no_other_cell_with_it(conv_pte, cli, tmp_path):
    """Models that raise, exit, kill their worker and hang; one that is fine ends well."""
    path = write_small(tmp_path, conv_pte, ["fine"])
    (tmp_path / "my.py").write_text(BROKEN)
    names = ("Raises", "Exits", "Dies", "Hangs")
    models = ", ".join(f"'my.py:{name}'" for name in names)
    path.write_text(f"{path.read_text()}models: [{models}]\nexport_limit_s: 90\n")
    code, _, err = cli("batch", path, "--out", "out")
    assert code == 1 and "Traceback" not in err, err
    record = json.loads((tmp_path / "out" / PORTFOLIO).read_text())
    cells = {cell["label"]: cell for cell in record["cells"]}
    assert {name: cell["state"] for name, cell in cells.items()} == {
        **dict.fromkeys(names, "failed"),
        "fine": "done",
    }
    assert "<b>no such thing</b>" in cells["Raises"]["error"]
    assert "the worker process died 2 times" in cells["Dies"]["error"]
    assert "export failed: took longer than 90 s" in cells["Hangs"]["error"]
    assert "in forward" in (tmp_path / "out" / "logs" / "Hangs_fp32_host_none.log").read_text()
    assert f"retry: workbench batch {path} --out out --only Raises/fp32/host/none" in err
    page = (tmp_path / "out" / "index.html").read_text()
    assert "&lt;b&gt;no such thing" in page and "<b>no such" not in page


@pytest.mark.cases
def test_other_versions_on_a_worker_are_refused(conv_pte, tmp_path, monkeypatch):
    monkeypatch.setattr("workbench.plugins.batch.batches.versions", lambda: {"executorch": "0.1"})
    (cell,) = wb.batch(write_small(tmp_path, conv_pte, ["x"]), out=tmp_path / "out", jobs=1).cells
    assert cell.state == "failed"
    assert "this worker has {'python'" in cell.error
    assert "install the same everywhere: {'executorch': '0.1'}" in cell.error


def make_cell(**fields):
    return Cell("toy_cnn", "toy_cnn", "fp32", "host", "auto", "stem", **fields)


@pytest.mark.browser
def test_names_of_strangers_are_text(open_hostile, tmp_path):
    axes = (EVIL, EVIL, "fp32", EVIL, "none", "stem")
    texts = ("experiment", "against", "outcome", "bottleneck", "grade")
    row = {**EMPTY, **dict.fromkeys(texts, EVIL), "speedup": 1.5, "share": 0.5, "latency_ms": 2.0}
    failed = dict.fromkeys(("error", "retry", "problem"), f"{EVIL}\ud800")
    cells = (
        Cell(*axes, state="failed", **failed),
        Cell(*axes, state="done", rows=(row,), report=LINK, run=LINK, problem=EVIL),
    )
    (tmp_path / "index.html").write_text(render_index(Portfolio({}, cells, EVIL)))
    page = open_hostile(tmp_path / "index.html")
    page.get_by_role("searchbox").fill("script")
    assert page.locator("#measurements tbody tr:visible").count() == 2
    (tmp_path / "portfolio.csv").write_text(write_csv(cells))
    values = pd.read_csv(tmp_path / "portfolio.csv", dtype=str).to_numpy().ravel()
    assert not any(re.match("[=+@-]", str(value)) for value in values)


@pytest.mark.parametrize(("doing", "text"), [("", "waiting"), ("measuring", "measuring")])
def test_an_open_cell_says_what_happens_to_it(doing, text):
    page = render_index(Portfolio({}, (make_cell(doing=doing),), ""))
    assert f"<td>{text}</td>" in page
    table = page.partition('id="measurements"')[2]
    assert table.count("<td") == table.count("</th>")


def test_emulated_rows_have_no_times(tmp_path):
    times = {"a": 6.0, "b": 3.0}
    run = open_made_run(tmp_path / "run", times, traced=1, changes={"emulated": True})
    rows = list_rows(run)
    assert [row["speedup"] or row["latency_ms"] for row in rows] == [None] * 2
    page = render_index(Portfolio({}, (make_cell(state="done", rows=rows),), ""))
    assert "emulated: no times" in page
    table = page.partition('id="measurements"')[2]
    assert table.count("<td") == len(rows) * table.count("</th>")


def test_a_measurement_has_a_row_for_each_of_its_comparisons(tmp_path):
    pairs, times = (("a", "b"), ("c", "b")), {"a": 6.0, "b": 3.0, "c": 1.5}
    changes = {"starts": (make_start("a"),)}
    rows = list_rows(open_made_run(tmp_path / "run", times, pairs=pairs, traced=1, changes=changes))
    assert [(row["experiment"], row["against"]) for row in rows] == [
        *(("a", None), ("b", "a"), ("b", "c"), ("c", None)),
    ]
    assert [round(row["speedup"], 1) for row in rows if row["against"]] == [2.0, 0.5]
    assert rows[0]["bottleneck"] == "Convolution" and rows[0]["share"] > 0.5
    assert rows[0]["first_output_ms"] > 0 and rows[0]["peak_mb"] > 0


def test_a_row_says_where_the_time_goes_or_why_not():
    run = wb.open_run(wb.sample_run("mobilenet_v3_small"))
    rows = list_rows(run)
    before, after = rows[0], next(row for row in rows if row["against"])
    assert after["bottleneck"] == max(after["shares"], key=after["shares"].get) == "GEMM"
    assert after["finding"] and after["gain"] and not before["finding"]
    emulated = list_rows(wb.open_run(wb.sample_run("toy_cnn")))[-1]
    assert emulated["unknown"] == "emulated: no times"
    cells = [
        Cell(model, model, "fp32", "host", "auto", model, state="done", rows=(before, row), run="r")
        for model, row in (("good", after), ("other", emulated))
    ]
    page = plain(html.unescape(render_index(Portfolio({}, tuple(cells), ""))))
    assert "Speed-ups over the baselines: 1 faster" in page
    low, high = (f"{after[end]:.2f}" for end in ("low", "high"))
    assert f"[{low}, {high}]" in page and after["finding"] in page
    assert 'aria-label="Convolution' in page and "emulated: no times" in page
    assert page.count("data-more>") == 2


def test_runs_that_were_measured_one_by_one_are_put_on_the_page_of_a_batch():
    page = wb.collect_runs([wb.sample_run("vit_tiny"), wb.open_run(wb.sample_run("toy_cnn"))])
    text = html.unescape(page.html)
    assert page.html.startswith("<iframe") and "vit_tiny" in text and "toy_cnn" in text
    assert "[data-jp-theme-light=false] .wb-batch{" in page.html
    ab = wb.open_run(wb.sample_run("vit_tiny")).compare()
    assert f"{ab.latency['speedup'].iloc[0]:.2f}x" in text
    assert "vit_tiny" in str(page)


def test_the_published_schema_is_the_one_of_the_code():
    DESCRIBED.check_schema()


def test_what_the_schema_refuses_the_reader_refuses_too(cli, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    least = {"models": ["toy_cnn"]}
    check_reader(DESCRIBED.validator, least, lambda file: cli("batch", "--dry-run", file))


def test_the_documented_matrix_fits_its_schema():
    DESCRIBED.validator.validate(yaml.safe_load(EXAMPLE.read_text()))


def test_errors_are_no_formulas_in_a_table():
    cell = Cell("x.py:Net", "Net", "fp32", "host", "none", "Net", problem="=x.py:1: is wrong")
    assert ",'=x.py:1: is wrong" in write_csv([cell])


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
        mutants.Kind("m.yaml", lambda _: [EXAMPLE.read_bytes()], read_matrix),
    ],
    ids=["portfolio", "matrix"],
)
def test_a_damaged_file_is_refused_in_one_line(kind, seed, tmp_path):
    ends, failures = mutants.fuzz(kind, seed, range(60), tmp_path)
    assert not failures
    assert ends.total() == 60

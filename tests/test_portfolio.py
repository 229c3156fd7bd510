"""A matrix becomes cells, cells become outcomes, and nothing is done twice."""

import csv
import io
import json
import os
import shutil
import socketserver
import subprocess
import sys
import threading
import time
import traceback
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from exporting import NET
from run_folder import make_start, open_made_run

import workbench as wb
from workbench.errors import ExportError, StoreError, TraceError, UsageError, WorkbenchError
from workbench.portfolio import matrix as matrices
from workbench.portfolio import scheduler, stages
from workbench.portfolio.executor import limit_time, open_executor
from workbench.portfolio.matrix import plan_cells, read_matrix
from workbench.portfolio.state import open_storage, outcome_path, render_index
from workbench.records.portfolio import STAGES, Cell, Outcome, Portfolio, Row
from workbench.run.locks import lock_device, lock_folder
from workbench.store import load_run

ROOT = Path(__file__).resolve().parents[1]
MATRIX = """
models: [toy_cnn, vit_tiny]
dtypes: [fp32, int8]
isa: none
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Locks of this test alone; nothing of the user's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def matrix(tmp_path):
    def write(text=MATRIX):
        path = tmp_path / "small.yaml"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def ran(monkeypatch):
    """What ran, in order: threads run the jobs, with stand-ins for the stages."""
    done = []

    def open_threads(jobs, devices, dask):
        queues = defaultdict(lambda: ThreadPoolExecutor(2))
        return nullcontext(lambda run, job, device: queues[device].submit(run, job))

    def stand_in(stage):
        def run(job, progress):
            begin = time.monotonic()
            progress("running", 0.0)
            time.sleep(0.005)
            outcome = job.outcome
            if stage == "measure":
                run_dir = job.root / "runs" / "linux"
                run_dir.mkdir(parents=True, exist_ok=True)
                (run_dir / "manifest.json").write_text(f"{job.cell.name} {time.monotonic()}")
                name = run_dir.relative_to(job.storage.folder).as_posix()
                files = stages.hash_run_files(run_dir)
                outcome = replace(outcome, run_dir=name, files=files, damaged=False)
            elif stage == "report":
                page = job.storage.folder / outcome.run_dir / "report.html"
                page.write_text("report")
                row = Row("native", "native", 1, "cpu_ns", 9, 2.0, 1.9, 2.1, latency_ms=2.0)
                outcome = replace(outcome, report=f"{outcome.run_dir}/report.html", rows=(row,))
            done.append((stage, job.cell.name, begin, time.monotonic()))
            return outcome, False

        return run

    for stage in STAGES:
        monkeypatch.setitem(stages.STAGE_FUNCTIONS, stage, stand_in(stage))
    monkeypatch.setattr(scheduler, "open_executor", open_threads)
    monkeypatch.setattr(matrices, "identify_export", lambda model, options: {"model": model})
    monkeypatch.setattr(scheduler, "check_toggle", lambda *args: None)
    monkeypatch.setattr(scheduler, "find_runner", lambda *args: None)
    return done


def test_the_example_is_planned_by_the_command(cli, tmp_path):
    code, out, _ = cli("batch", ROOT / "data" / "matrix.yaml", "--dry-run")
    assert code == 0
    assert out.splitlines()[0] == "toy_cnn/fp32/host/auto  export, measure, report"
    assert out.splitlines()[-1] == "12 cells, 0 done"
    assert not (tmp_path / "portfolio_matrix").exists()


def test_a_plan_is_one_document(cli, matrix, ran):
    code, out, _ = cli("batch", matrix(), "--dry-run", "--json")
    assert code == 0
    planned = json.loads(out)["plan"]
    assert len({entry["cell"]["cache_key"] for entry in planned}) == len(planned) == 4
    assert planned[0]["todo"] == ["export", "measure", "report"]


def test_a_batch_that_cannot_begin_is_one_line(cli, matrix, ran):
    code, out, err = cli("batch", matrix("models: toy_cn"))
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "did you mean 'toy_cnn'?" in err
    code, _, err = cli("batch", matrix(), "--only", "nothing")
    assert code == 2
    assert "no cell 'nothing' -> cells: toy_cnn/fp32/host/none" in err


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 400 Bad Request\r\n", b"\0" * 64, b"\x10" + b"\0" * 7]
)
def test_a_dask_address_of_another_program_is_one_line(cli, matrix, answer, monkeypatch):
    pytest.importorskip("distributed", reason="needs the extra cluster")
    monkeypatch.setattr("workbench.portfolio.executor.CONNECT_S", 0.2)

    class Program(socketserver.StreamRequestHandler):
        def handle(self):
            self.wfile.write(answer)
            if len(answer) == 8:  # a length, of what never comes
                self.rfile.read()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Program) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = "tcp://127.0.0.1:{1}".format(*server.server_address)
        code, _, err = cli("batch", matrix(), "--dask", address)
        server.shutdown()
    assert (code, len(err.splitlines())) == (1, 1)
    assert f"{address}: no Dask scheduler answers" in err


def test_the_command_ends_as_the_batch_did(cli, matrix, ran, monkeypatch, tmp_path):
    code, out, err = cli("batch", matrix("models: toy_cnn"))
    assert (code, out) == (0, "portfolio_small/index.html\n")
    assert "reporting 1 of 1: toy_cnn/fp32/host/auto" in err

    def fail(job, progress):
        raise ExportError("no such operator")

    monkeypatch.setitem(stages.STAGE_FUNCTIONS, "export", fail)
    code, out, err = cli("batch", matrix("models: vit_tiny"), "--json")
    assert code == 1
    assert json.loads(out)["portfolio"]["outcomes"][0]["state"] == "failed"
    assert "vit_tiny/fp32/host/auto: export failed: no such operator" in err
    assert "retry: workbench batch" in err


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
        ("models: toy_cnn\nthreads: [-1]", "out of range"),
        ("models: toy_cnn\nruns: 1.5", "$.runs: expected int"),
        ("models: toy_cnn\nprecision: .nan", "out of range"),
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
    ],
)
def test_a_bad_matrix_is_one_clear_line(matrix, text, words):
    with pytest.raises((UsageError, StoreError)) as error:
        plan_cells(read_matrix(matrix(text)))
    assert words in str(error.value)


@pytest.mark.ci
def test_a_model_beside_the_matrix_is_found_and_seen_to_change(matrix, tmp_path):
    (tmp_path / "mine").mkdir()
    file, text = tmp_path / "mine" / "net.py", f"{NET}\n\nEXAMPLE_INPUTS = (torch.ones(1, 4),)\n"
    path = matrix("models: net.py:Net").rename(tmp_path / "mine" / "m.yaml")
    keys = []
    for content in (text, text, text.replace("(4, 2)", "(4, 3)")):
        file.write_text(content)
        (cell,) = plan_cells(read_matrix(path))
        assert (cell.model, cell.label) == (f"{file}:Net", "Net")
        keys.append(cell.cache_key)
    assert keys[0] == keys[1] != keys[2]


def test_two_models_of_one_name_are_refused(matrix, tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.py").write_text("class Net: ...\n")
    with pytest.raises(UsageError, match="would both be called Net"):
        plan_cells(read_matrix(matrix("models: [a.py:Net, b.py:Net]")))


def test_programs_are_cells_of_their_own(cli, matrix, conv_pte, tmp_path, ran):
    release = tmp_path / "release"
    release.mkdir()
    for name in ("b", "a"):
        shutil.copyfile(conv_pte, release / f"{name}.pte")
    path = matrix("programs: release/*.pte\nmodels: toy_cnn\ndtypes: [fp32, int8]\nisa: none")
    code, out, _ = cli("batch", path, "--dry-run")
    names = [line.split()[0] for line in out.splitlines()[:-1]]
    assert code == 0
    assert names == [
        *("toy_cnn/fp32/host/none", "toy_cnn/int8/host/none"),
        *("a/pte/host/none", "b/pte/host/none"),
    ]
    keys = {cell.label: cell.cache_key for cell in plan_cells(read_matrix(path))}
    (release / "a.pte").write_bytes(conv_pte.read_bytes() + b"x")
    changed = {cell.label: cell.cache_key for cell in plan_cells(read_matrix(path))}
    assert (keys["a"] != changed["a"], keys["b"] == changed["b"]) == (True, True)
    for text, says in (
        ("programs: none/*.pte", "no .pte file matches 'none/*.pte'"),
        ("programs: [release/a.pte, a.pte]", "would both be called a"),
    ):
        shutil.copyfile(conv_pte, tmp_path / "a.pte")
        code, _, err = cli("batch", matrix(text), "--dry-run")
        assert (code, len(err.splitlines())) == (2, 1)
        assert says in err


@pytest.mark.slow
def test_a_batch_of_programs_is_one_page(conv_pte, matrix, tmp_path):
    for name in ("first", "second"):
        for path in conv_pte.parent.glob(f"{conv_pte.name}*"):
            shutil.copyfile(path, tmp_path / path.name.replace(conv_pte.stem, name))
    settings = "isa: none\nruns: 2\nprocesses: 1\nevidence: false\nroof: false"
    portfolio = wb.batch(matrix(f"programs: '*.pte'\n{settings}"), out=tmp_path / "out")
    assert [(o.cell.label, o.state) for o in portfolio.outcomes] == [
        ("first", "done"),
        ("second", "done"),
    ]
    assert all(row.peak_mb for outcome in portfolio.outcomes for row in outcome.rows)
    page = (tmp_path / "out" / "index.html").read_text()
    assert "first" in page and "second" in page


def test_the_address_tells_what_the_result_depends_upon(matrix, monkeypatch):
    monkeypatch.setattr(matrices, "identify_export", lambda model, options: {"model": model})
    changes = ["", "runs: 51", "threads: 2", "processes: 4", "evidence: false"]
    changes += ["dtypes: int8", "isa: none", "backend: portable", "targets: ssh:a"]
    texts = [f"models: toy_cnn\n{change}" for change in changes]
    cells = [cell for text in texts for cell in plan_cells(read_matrix(matrix(text)))]
    assert len({cell.cache_key for cell in cells}) == len(changes)
    assert plan_cells(read_matrix(matrix("models: [toy_cnn]"))) == cells[:1]


def test_every_cell_is_exported_measured_and_reported_once(matrix, ran, tmp_path):
    portfolio = wb.batch(matrix(), out=tmp_path / "out")
    assert [outcome.state for outcome in portfolio.outcomes] == ["done"] * 4
    assert [stage for stage, *_ in ran] == ["export"] * 4 + ["measure"] * 4 + ["report"] * 4
    assert len({(stage, name) for stage, name, *_ in ran}) == 12
    spans = sorted((begin, end) for stage, _, begin, end in ran if stage == "measure")
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
    written = json.loads((tmp_path / "out" / "portfolio.json").read_text())
    assert [o["state"] for o in written["outcomes"]] == ["done"] * 4
    lines = list(csv.DictReader(io.StringIO((tmp_path / "out" / "portfolio.csv").read_text())))
    assert [line["latency_ms"] for line in lines] == ["2.0"] * 4
    assert "4 cells: 4 done" in (tmp_path / "out" / "index.html").read_text()


def test_a_program_is_exported_once_for_all_targets_and_extensions(matrix, ran, tmp_path):
    text = "models: toy_cnn\nisa: [none, auto]\ntargets: [host, 'ssh:a']"
    wb.batch(matrix(text), out=tmp_path / "out")
    assert [stage for stage, *_ in ran].count("export") == 1
    assert [stage for stage, *_ in ran].count("measure") == 4


def test_a_failure_takes_no_other_cell_with_it(matrix, ran, tmp_path, monkeypatch):
    good = stages.STAGE_FUNCTIONS["export"]

    def fail(job, progress):
        if job.cell.name == "toy_cnn/int8/host/none":
            raise ExportError("no such operator", where="<b>")
        return good(job, progress)

    monkeypatch.setitem(stages.STAGE_FUNCTIONS, "export", fail)
    portfolio = wb.batch(matrix(), out=tmp_path / "out")
    states = {outcome.cell.name: outcome.state for outcome in portfolio.outcomes}
    assert states.pop("toy_cnn/int8/host/none") == "failed"
    assert set(states.values()) == {"done"}
    (failed,) = [outcome for outcome in portfolio.outcomes if outcome.state == "failed"]
    assert (failed.failed_stage, failed.error) == ("export", "<b>: no such operator")
    assert "ExportError" in (tmp_path / "out" / failed.log).read_text()
    assert failed.retry.endswith("--only toy_cnn/int8/host/none")
    page = (tmp_path / "out" / "index.html").read_text()
    assert "&lt;b&gt;: no such operator" in page
    assert "<b>:" not in page

    monkeypatch.setitem(stages.STAGE_FUNCTIONS, "export", good)
    ran.clear()
    mended = wb.batch(matrix(), out=tmp_path / "out", only=failed.cell.name)
    assert {outcome.state for outcome in mended.outcomes} == {"done"}
    assert [stage for stage, *_ in ran] == ["export", "measure", "report"]


@pytest.mark.parametrize(
    "damage",
    [
        "manifest",
        *(pytest.param(what, marks=pytest.mark.ci) for what in ("outcome", "report", "cache_key")),
    ],
)
def test_what_was_damaged_is_made_anew_and_nothing_else(matrix, ran, tmp_path, damage):
    out = tmp_path / "out"
    first = wb.batch(matrix(), out=out).outcomes[0]
    ran.clear()
    if damage == "manifest":
        (out / first.run_dir / "manifest.json").write_text("{}")
    elif damage == "report":
        (out / first.report).unlink()
    elif damage == "outcome":
        (out / outcome_path(first.cell)).write_text('{"cell": 3')
    else:
        text = (out / outcome_path(first.cell)).read_text()
        (out / outcome_path(first.cell)).write_text(text.replace(first.cell.cache_key, "0" * 16))
    again = wb.batch(matrix(), out=out)
    assert {outcome.state for outcome in again.outcomes} == {"done"}
    redone = [stage for stage, name, *_ in ran if name == first.cell.name]
    assert len(redone) == len(ran)
    assert redone == (["report"] if damage == "report" else ["export", "measure", "report"])


def test_a_trace_that_cannot_be_read_is_measured_anew(matrix, ran, tmp_path, monkeypatch):
    good = stages.STAGE_FUNCTIONS["report"]

    def fail(job, progress):
        raise TraceError("truncated", where="x.etdump")

    monkeypatch.setitem(stages.STAGE_FUNCTIONS, "report", fail)
    wb.batch(matrix("models: toy_cnn"), out=tmp_path / "out")
    monkeypatch.setitem(stages.STAGE_FUNCTIONS, "report", good)
    ran.clear()
    (outcome,) = wb.batch(matrix("models: toy_cnn"), out=tmp_path / "out").outcomes
    assert (outcome.state, [s for s, *_ in ran]) == ("done", ["export", "measure", "report"])


def test_what_killed_writers_left_is_not_hashed_and_goes(matrix, ran, tmp_path):
    out = tmp_path / "out"
    first = wb.batch(matrix(), out=out).outcomes[0]
    run_dir = out / first.run_dir
    left = [
        out / ".portfolio.json.abcd1234.partial",
        run_dir / ".manifest.json.abcd1234.partial",
        run_dir / "net_t1.etdump.partial",
    ]
    for path in left:
        path.write_text("half of it")
    assert stages.hash_run_files(run_dir) == first.files
    running = r"another batch is running here \(.*, PID \d+, since"
    with lock_folder(out), pytest.raises(UsageError, match=running):
        wb.batch(matrix(), out=out)
    assert all(path.exists() for path in left)
    ran.clear()
    wb.batch(matrix(), out=out)
    assert not any(path.exists() for path in left)
    assert ran == []


def test_a_folder_that_cannot_be_written_is_one_clear_line(matrix, ran, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written: Not a directory"):
        wb.batch(matrix(), out=tmp_path / "file" / "out")


def test_other_versions_on_a_worker_are_refused(matrix, ran, tmp_path):
    (cell,) = plan_cells(read_matrix(matrix("models: toy_cnn")))
    storage, others = open_storage(tmp_path / "out"), {"executorch": "0.1"}
    job = stages.Job("export", Outcome(cell), read_matrix(matrix()), storage, versions=others)
    with pytest.raises(WorkbenchError, match=r"executorch .* instead of 0\.1"):
        stages.run_job(job)


def test_what_others_wrote_behind_a_url_is_seen():
    """S3 and the like remember what they have listed."""
    fsspec = pytest.importorskip("fsspec")

    class Listing(fsspec.get_filesystem_class("memory")):
        protocol, listed = "listing", {}

        def find(self, path, **options):
            return self.listed.setdefault(path, super().find(path, **options))

        def invalidate_cache(self, path=None):
            self.listed.clear()

    fsspec.register_implementation("listing", Listing, clobber=True)
    storage = open_storage("listing://portfolio")
    storage.write("cells/a.json", "{}")
    storage.fetch("cells")
    files, root = fsspec.core.url_to_fs(storage.url)
    files.pipe_file(f"{root}/cells/b.json", b"{}")
    storage.fetch("cells")
    assert (storage.folder / "cells" / "b.json").read_text() == "{}"


def test_a_url_that_cannot_be_reached_is_one_clear_line(monkeypatch):
    fsspec = pytest.importorskip("fsspec")

    class BotoCoreError(Exception):
        """What botocore's errors derive from."""

    def fail(*_, **__):
        raise BotoCoreError("Unable to locate credentials")

    botocore = SimpleNamespace(BotoCoreError=BotoCoreError)
    monkeypatch.setitem(sys.modules, "botocore.exceptions", botocore)
    monkeypatch.setattr(fsspec.get_filesystem_class("memory"), "find", fail)
    with pytest.raises(StoreError, match=r"memory://p/cells: .*: Unable to locate credentials"):
        open_storage("memory://p").fetch("cells")


@pytest.mark.slow
def test_a_report_says_what_does_not_fit_together(matrix, tmp_path):
    (cell,) = plan_cells(read_matrix(matrix("models: toy_cnn")))
    storage = open_storage(tmp_path / "out")
    run_dir = f"{cell.folder}/runs/linux"
    shutil.copytree(wb.sample_run("mobilenet_v3_small"), storage.folder / run_dir)
    outcome = Outcome(cell, run_dir=run_dir)
    job = stages.Job("report", outcome, read_matrix(matrix()), storage)
    assert stages.report_cell(job, lambda text, fraction: None)[0].problem == ""
    stem = load_run(storage.folder / run_dir).plan.stem
    program = storage.folder / cell.folder / "artifacts" / f"{stem}.pte"
    program.parent.mkdir()
    program.write_bytes(b"another")
    reported, _ = stages.report_cell(job, lambda text, fraction: None)
    assert "program is the one that ran" in reported.problem


def test_a_portfolio_behind_a_url(matrix, ran, tmp_path):
    fsspec = pytest.importorskip("fsspec")
    portfolio = wb.batch(matrix(), out="memory://portfolio")
    assert {outcome.state for outcome in portfolio.outcomes} == {"done"}
    files = fsspec.filesystem("memory")
    assert "4 cells: 4 done" in files.cat_file("/portfolio/index.html").decode()
    for outcome in portfolio.outcomes:
        remote = files.cat_file(f"/portfolio/{outcome_path(outcome.cell)}")
        assert json.loads(remote)["state"] == "done"
    assert not [name for name in files.find("/portfolio") if name.endswith(".partial")]
    storage = open_storage("memory://portfolio")
    files.pipe_file("/portfolio/cells/half.json.partial", b"{")
    (storage.folder / "cells" / ".half.json.abcd1234.partial").write_text("{")
    storage.fetch("cells")
    storage.send("cells")
    assert not (storage.folder / "cells" / "half.json.partial").exists()
    assert not [name for name in files.find("/portfolio") if "abcd1234" in name]


def test_the_plan_names_the_stages_that_are_left(cli, matrix, ran, tmp_path):
    wb.batch(matrix(), out=tmp_path / "out", only="toy_cnn/fp32/*")
    code, out, _ = cli("batch", matrix(), "--out", tmp_path / "out", "--dry-run")
    assert code == 0
    first, *others, total = out.splitlines()
    assert first == "toy_cnn/fp32/host/none  done"
    assert [line.split("  ")[1] for line in others] == ["export, measure, report"] * 3
    assert total == "4 cells, 1 done"


def test_progress_says_what_runs(matrix, ran, tmp_path):
    told, doing = [], set()

    def listen(*line):
        told.append(line)
        outcomes = (json.loads(p.read_text()) for p in (tmp_path / "out").glob("cells/*.json"))
        doing.update(outcome["doing"] for outcome in outcomes)

    wb.batch(matrix(), out=tmp_path / "out", progress=listen)
    assert {"exporting", "measuring", "reporting"} <= doing
    texts = list(dict.fromkeys(text for text, _ in told))
    assert texts[0] == "exporting 1 of 4: toy_cnn/fp32/host/none"
    heads = {text.split(":")[0] for text in texts}
    assert {f"{stage} 1 of 4" for stage in ("exporting", "measuring", "reporting")} <= heads
    fractions = [fraction for _, fraction in told]
    assert fractions == sorted(fractions) and fractions[0] == 0
    assert 0.8 < fractions[-1] < 1  # stages of several cells end in any order


def test_progress_says_what_a_job_waits_for(matrix, ran, tmp_path, monkeypatch):
    monkeypatch.setattr("workbench.portfolio.scheduler.POLL_S", 0.05)
    told = []

    def listen(text, _):
        told.append(text)
        if text.endswith(": waiting"):
            held.close()

    with ExitStack() as held:
        held.enter_context(lock_device("host"))
        wb.batch(matrix("models: toy_cnn\nisa: none\n"), out=tmp_path / "out", progress=listen)
    waiting = "exporting 1 of 1: toy_cnn/fp32/host/none: another measurement or batch is running"
    assert any(text.startswith(waiting) and f"PID {os.getpid()}" in text for text in told)
    assert not told[-1].endswith(": waiting")


def test_another_notebook_makes_only_the_reports_anew(matrix, ran, tmp_path):
    cell = {"cell_type": "code", "metadata": {"tags": ["parameters"]}, "source": ["run_dir = ''"]}
    cell |= {"outputs": [], "execution_count": None}
    notebook = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 4}
    (tmp_path / "my.ipynb").write_text(json.dumps(notebook))
    wb.batch(matrix(), out=tmp_path / "out")
    ran.clear()
    for _ in range(2):
        wb.batch(matrix(MATRIX + "notebook: my.ipynb"), out=tmp_path / "out")
    assert [stage for stage, *_ in ran] == ["report"] * 4


def test_a_page_is_text_wherever_it_is_not_markup():
    evil = "<script>alert(1)</script>\"'"
    cell = Cell(evil, evil, "fp32", evil, "none", "stem", "0")
    rows = (Row(evil, evil, 1, evil, 5, 2.0, 1.0, 3.0, evil, 1.5, 1.4, 1.6, evil, evil, 0.5, 2.0),)
    outcomes = (
        Outcome(cell, state="failed", error=evil, log=evil, retry=evil, problem=evil, report=evil),
        Outcome(cell, state="done", rows=rows, grade="A", problem=evil),
    )
    page = render_index(Portfolio({"threads": [1]}, evil, outcomes))
    assert page.count("<script") == 1
    assert "alert(1)</script>" not in page
    assert "http" not in page.replace("http-equiv", "").replace("Http", "")


def test_an_open_cell_says_what_happens_to_it():
    cell = Cell("toy_cnn", "toy_cnn", "fp32", "host", "auto", "stem", "0")
    for doing, shown in (("", "waiting"), ("measuring", "measuring")):
        page = render_index(Portfolio({"threads": [1]}, "", (Outcome(cell, doing=doing),)))
        assert f"<td>{shown}</td>" in page


def test_emulated_rows_have_no_times():
    cell = Cell("toy_cnn", "toy_cnn", "fp32", "qemu:max", "sme2", "stem", "0")
    rows = (Row("sme2_on", "native", 1),)
    page = render_index(
        Portfolio({"threads": [1]}, "", (Outcome(cell, "done", rows=rows, emulated=True),))
    )
    assert "emulated: which code runs, not how fast" in page
    assert "<svg" not in page
    table = page.partition('id="measurements"')[2]
    assert table.count("<td") == table.count("<th>")


def test_a_sparkline_has_a_bar_for_each_latency():
    cell = Cell("toy_cnn", "toy_cnn", "fp32", "host", "auto", "stem", "0")
    rows = tuple(Row(name, name, 1, latency_ms=ms) for name, ms in (("a", 4.0), ("b", 1.0)))
    page = render_index(Portfolio({}, "", (Outcome(cell, "done", rows=rows),)))
    assert page.count("<rect") == 2
    assert 'height="26.0" class=""><title>fp32, host, a, 1 thread: 4.00 ms</title>' in page
    assert 'height="6.5" class="fastest"' in page
    assert "<svg" not in render_index(Portfolio({}, "", (Outcome(cell),)))


# This regular expression never releases the GIL: no thread and no signal handler runs.
HANG = """
import re, sys
from pathlib import Path
from workbench.portfolio.executor import limit_time

def hang():
    with limit_time(Path(sys.argv[1]), "first", 0.5):
        re.match("(a|a)*b", "a" * 99)

hang()
"""


@pytest.mark.slow
def test_native_code_that_hangs_is_killed_and_reported_once(tmp_path):
    note = tmp_path / "logs" / "net.where"
    done = subprocess.run([sys.executable, "-c", HANG, note], timeout=60)
    assert done.returncode == 1
    assert "in hang" in note.read_text()
    with (
        pytest.raises(WorkbenchError, match="took longer than 60 s") as error,
        limit_time(note, "first", 60),
    ):
        pytest.fail("tried once more")
    assert "in hang" in "".join(traceback.format_exception(error.value))
    with limit_time(note, "first", 60):
        assert note.exists()
    assert not note.exists()


def test_an_error_within_the_limit_is_raised(tmp_path):
    note = tmp_path / "net.where"
    with pytest.raises(OSError, match="no such tensor"), limit_time(note, "first", 60):
        raise OSError("no such tensor")
    assert not note.exists()


def hang_in_a_worker(note: Path) -> int:
    with limit_time(note, "first", 1):
        while True:
            os.getpid()


@pytest.mark.slow
def test_a_worker_that_hangs_fails_its_job_only(tmp_path):
    with open_executor(1, []) as submit:
        hanging = submit(hang_in_a_worker, tmp_path / "net.where")
        after = submit(len, "abc")
        assert after.result(timeout=280) == 3
        with pytest.raises(WorkbenchError, match="took longer than 1 s"):
            hanging.result()


def test_without_semaphores_a_worker_says_what_to_mount(monkeypatch):
    def refuse(*_, **__):
        raise FileNotFoundError(2, "No such file or directory")  # as sem_open without /dev/shm

    monkeypatch.setattr("multiprocessing.synchronize.SemLock.__init__", refuse)
    with open_executor(1, []) as submit, pytest.raises(WorkbenchError, match="/dev/shm"):
        submit(len, "abc").result(timeout=60)


NOISY = """\
import logging, multiprocessing, warnings
import workbench.cli as cli, workbench.cli.work as work
from workbench.portfolio.executor import open_executor

kept = []

def warn(word):
    kept.append(multiprocessing.Lock())  # as tqdm: leaks where a worker is killed
    warnings.filterwarnings("always")
    warnings.warn(word)
    logging.getLogger("torch").warning(word)
    return word

def call():
    with open_executor(1, []) as submit:
        assert submit(warn, "look here").result()
    raise SystemExit

if __name__ == "__main__":
    work.models.callback = call
    cli.main(["models"])
"""


@pytest.mark.slow
def test_warnings_of_workers_stay_off_the_terminal(tmp_path):
    (tmp_path / "noisy.py").write_text(NOISY)
    done = subprocess.run([sys.executable, tmp_path / "noisy.py"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_row_has_the_needs_of_its_measurement(tmp_path):
    changes = {"starts": (make_start("a"),)}
    subject = open_made_run(tmp_path / "run", {"a": None}, traced=1, changes=changes).subject
    (row,), needs = stages.tabulate_rows(subject), subject.resources.set_index("resource")["value"]
    assert (row.first_output_ms, row.peak_mb) == (needs["first output"], needs["peak memory"])
    assert row.bottleneck == "Convolution" and row.share > 0.5
    vars(subject)["use"] = (frozenset({"latency"}), "interference")
    (row,) = stages.tabulate_rows(subject)
    assert (row.bottleneck, row.share, row.latency_ms > 0) == ("", None, True)


def test_a_measurement_has_a_row_for_each_of_its_comparisons(tmp_path):
    pairs, times = (("a", "b"), ("c", "b")), {"a": 6.0, "b": 3.0, "c": 1.5}
    run = open_made_run(tmp_path / "run", times, pairs=pairs, traced=1)
    rows = [row for m in run.measurements for row in stages.tabulate_rows(m)]
    assert [(row.experiment, row.against) for row in rows] == [
        *(("a", ""), ("b", "a"), ("b", "c"), ("c", "")),
    ]
    assert [round(row.speedup, 1) for row in rows if row.against] == [2.0, 0.5]

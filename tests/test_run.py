"""Runs, measurements and comparisons: computed once, when first asked for."""

import json
import shutil
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from program_builder import exported
from recorded import recorded, report_text
from run_folder import open_made_run

import workbench as wb
from workbench import store
from workbench.analysis import open as open_module
from workbench.analysis import run as run_module
from workbench.errors import ComparisonError, StoreError, UsageError
from workbench.records.runs import PlannedProgram
from workbench.report.artifacts import write_artifacts
from workbench.run.plan import BY_ORDER
from workbench.store import load_record


@pytest.fixture
def run_dir(tmp_path):
    return Path(shutil.copytree(wb.sample_run(), tmp_path / "out_net" / "runs" / "linux"))


@pytest.fixture
def reads(monkeypatch):
    """How often files are read and ledgers built, by file or function."""
    counts = Counter()

    def count(name, key, module=run_module):
        real = getattr(module, name)

        def counted(*arguments, **options):
            counts[key(arguments)] += 1
            return real(*arguments, **options)

        monkeypatch.setattr(module, name, counted)

    count("read_etdump", lambda arguments: Path(arguments[0]).name)
    count("load_run", lambda _: "manifest", open_module)
    count("load_layers", lambda _: "sidecar")
    count("describe_latencies", lambda _: "latencies")
    count("undisturbed_times", lambda _: "findings")
    count("attribute_layers", lambda _: "attribution")
    return counts


def test_opening_reads_no_trace(run_dir, reads):
    run = wb.open_run(run_dir)
    assert len(run.measurements) == 3
    assert reads == {"manifest": 1}


def test_files_and_reports_read_everything_once(run_dir, reads):
    run = wb.open_run(run_dir)
    write_artifacts(run)
    report_text(run)
    wb.explore(run)
    wb.validate_run(run)
    etdumps = [session.etdump for session in run.record.sessions if session.etdump]
    assert len(etdumps) == 15
    assert {reads.pop(Path(name).name) for name in etdumps} == {1}
    attributed = reads.pop("attribution")
    assert attributed == len(run.measurements)
    assert reads == {"manifest": 1, "sidecar": 1, "latencies": 1, "findings": 1}


@pytest.mark.slow
def test_a_measurement_reads_its_files_once(conv_pte, tmp_path, monkeypatch, reads):
    manifests = []
    monkeypatch.setattr(
        store,
        "load_record",
        lambda cls, path: manifests.append(cls.__name__) or load_record(cls, path),
    )
    pte = Path(shutil.copy(conv_pte, tmp_path))
    run = wb.measure(pte, wb.MeasureOptions(runs=4, processes=2), root=tmp_path)
    report_text(run)
    assert run.findings is not None
    etdumps = [s.etdump for m in run.measurements for s in m.sessions]
    etdumps += [s.etdump for s in run.record.samplings if s.etdump]
    assert {reads.pop(Path(name).name) for name in etdumps} == {1}
    assert manifests.count("RunRecord") == 1
    assert reads.pop("attribution", 0) <= len(run.measurements)
    assert reads == {"manifest": 1, "sidecar": 1, "latencies": 1, "findings": 1}


def test_plots_of_the_learning_path_analyse_once(run_dir, reads):
    run = wb.open_run(run_dir)
    ab, on = run.compare(), run["avx512_on"]
    for _ in range(2):
        wb.plot_latencies(run)
        wb.plot_categories(run)
        wb.plot_shift(ab)
        wb.plot_speedups(ab)
        wb.plot_operators(ab)
        wb.plot_categories(on, by="layer type")
        wb.plot_bottlenecks(on)
    assert set(reads.values()) <= {1, len(run.measurements)}
    assert reads["latencies"] == reads["manifest"] == 1


def test_a_frame_is_computed_once():
    on = wb.open_run(wb.sample_run())["avx512_on"]
    first = on.operators
    start = time.process_time()
    assert on.operators is first
    assert time.process_time() - start < 1e-3


def test_three_lines_give_operators_with_their_layers():
    run = recorded()
    operators = run["avx512_on"].operators
    assert operators["mean_ms"].is_monotonic_decreasing
    assert {"name", "module", "source", "mean_ms", "share"} <= set(operators)


def test_measurements_are_found_by_name_threads_and_phase():
    run = recorded("unet_small")
    first = run.measurements[0]
    assert run[first.name] is first
    assert run[first.name, first.threads] is first
    with pytest.raises(UsageError, match=f"did you mean '{first.name}'"):
        run[first.name + "x"]
    with pytest.raises(UsageError, match="thread count"):
        run[first.name, 99]
    with pytest.raises(UsageError, match="experiment"):
        run["decode", first.name]


def test_measurements_add_up_to_the_run():
    run = recorded("unet_small")
    assert sum(len(m.ledger) for m in run.traced) == len(run.ledger)
    for m in run.traced:
        assert m.operators["mean_ms"].sum() == pytest.approx(m.categories["mean_ms"].sum())
        assert m.statistics["latency"].item() == m.latency_ms
        assert "(95 % CI, n = 5 restarts)" in str(wb.show(run))


def test_a_planned_comparison_is_the_same_object():
    run = recorded()
    ab = run.compare()
    assert run.compare("avx512_off", "avx512_on") is ab
    assert wb.compare(run["avx512_off"], run["avx512_on"]) is ab
    assert ab.interleaved and ab.toggled
    back = run.compare("avx512_on", "avx512_off")
    assert back.verdict.outcome == "slower"
    assert back.verdict.speedup == pytest.approx(1 / ab.verdict.speedup)


def test_runs_of_different_programs_need_to_be_told(tmp_path):
    one, other = recorded(), recorded("vit_tiny")
    sides = one.subject, other.subject
    with pytest.raises(ComparisonError, match="differ in program"):
        wb.compare(*sides)
    apart = wb.compare(*sides, across=("program", "device", "build", "threads"))
    assert not apart.interleaved
    assert apart.verdict.outcome == "slower"
    assert set(apart.categories["outcome"]) <= {"faster", "slower", "equivalent", "inconclusive"}


def test_a_ledger_that_does_not_close_is_a_failed_check(monkeypatch):
    run = wb.open_run(wb.sample_run())
    checks = run.checks.set_index("check")["status"]
    assert checks["ledger closes"] == "ok"

    real = run_module.build_ledger

    def lose(events):
        ledger = real(events)
        return ledger.assign(duration_ns=ledger["duration_ns"].where(ledger["row"] != 1, 0))

    monkeypatch.setattr(run_module, "build_ledger", lose)
    spoilt = wb.open_run(wb.sample_run()).checks.set_index("check").loc["ledger closes"]
    assert spoilt["status"] == "fail"
    assert "do not add up" in spoilt["evidence"]


def test_a_run_without_a_finished_session_says_how_to_resume(run_dir):
    record = store.load_run(run_dir)
    sessions = tuple(replace(session, complete=False) for session in record.sessions)
    store.save_run(replace(record, sessions=sessions), run_dir)
    with pytest.raises(StoreError, match="resumes"):
        wb.open_run(run_dir)


def test_files_outside_the_folder_are_refused(run_dir):
    record = store.load_run(run_dir)
    sessions = (*record.sessions[:-1], replace(record.sessions[-1], etdump="../../x.etdump"))
    store.save_run(replace(record, sessions=sessions), run_dir)
    with pytest.raises(StoreError, match="outside its folder"):
        wb.open_run(run_dir)


@pytest.mark.parametrize("masks", [True, False], ids=["features", "kernels"])
def test_what_ran_decides_where_names_do_not(tmp_path, masks):
    folder = shutil.copytree(wb.sample_run("toy_cnn"), tmp_path / "run")
    text = (folder / "manifest.json").read_text()
    content = json.loads(text.replace('"sme2_on"', '"one"').replace('"sme2_off"', '"two"'))
    content["plan"].update(direction=BY_ORDER, experiments=content["plan"]["experiments"][::-1])
    for session in content["sessions"]:
        session["masked"] = session["masked"] if masks else []
    (folder / "manifest.json").write_text(json.dumps(content))
    run = wb.open_run(folder)
    assert [(ab.baseline.name, ab.candidate.name) for ab in run.comparisons] == [("two", "one")]
    how = "two: it hides sme" if masks else "the traces or logs of one name SME kernels"
    assert how in run.checks.set_index("check").at["baseline", "evidence"]


def test_an_open_run_takes_another_baseline_or_refuses_it(tmp_path):
    run = open_made_run(tmp_path, {"off": None, "on": None}, traced=2, processes=2)
    turned = wb.open_run(run, baseline="on")
    assert [(ab.baseline.name, ab.candidate.name) for ab in turned.comparisons] == [("on", "off")]
    assert run.compare().baseline.name == "off", "the run itself stays as it was"
    with pytest.raises(UsageError, match="unknown experiment 'x'"):
        wb.open_run(run, baseline="x")


def test_the_history_names_the_problem_of_the_program_that_ran(tmp_path):
    export = exported(model="net", problem="its outputs differ from the model's: SQNR 1 dB")
    second = PlannedProgram("b", "b.pte", "1" * 64, "net", "b")
    folder = tmp_path / "runs" / "first"
    record = open_made_run(folder, {"a": None, "b": None}, traced=2, processes=2).record
    plan = replace(record.plan, programs=(second,), experiments=tuple(
        replace(e, program="b" if e.name == "b" else "") for e in record.plan.experiments
    ))  # fmt: skip
    store.save_run(replace(record, plan=plan, exports={"b": export}), folder)
    history = wb.read_history([tmp_path])
    assert not history.problems
    problems = history.rows.set_index("experiment")["problem"]
    assert problems.to_dict() == {"a": "", "b": "SQNR 1 dB"}

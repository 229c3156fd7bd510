"""Runs, measurements and comparisons: computed once, when first asked for."""

import json
import re
import shutil
import sys
from collections import Counter
from pathlib import Path

import pytest
from brief import LATENCIES_ALONE
from changed_runs import changed
from recorded import recorded, report_text
from run_folder import open_made_run

import workbench as wb
from workbench.jobs import Trial

#: A profile of latencies alone.
SHORT = ("--runs", "4", "--processes", "2", *LATENCIES_ALONE)
#: How often files were opened, by name.
OPENED = Counter()
sys.addaudithook(
    lambda event, arguments: (
        OPENED.update([str(arguments[0]).rpartition("/")[2]]) if event == "open" else None
    )
)


@pytest.fixture
def run_dir(tmp_path):
    return Path(shutil.copytree(wb.sample_run(), tmp_path / "out_net" / "runs" / "linux"))


def test_opening_reads_no_trace(run_dir):
    OPENED.clear()
    run = wb.open_run(run_dir)
    assert len(run.measurements) == 3
    assert not [name for name in OPENED if name.endswith(".etdump")]


@pytest.mark.whole
def test_files_and_reports_read_everything_once(run_dir):
    OPENED.clear()
    run = wb.open_run(run_dir)
    report_text(run)
    wb.explore(run)
    assert len(run.checks)
    etdumps = [session.etdump for session in run.record.sessions if session.etdump]
    assert len(etdumps) == 63
    assert {OPENED[Path(name).name] for name in etdumps} == {1}
    assert OPENED["layers.json"] <= 2 and OPENED["manifest.json"] <= 4, "small files"


@pytest.mark.cases
def test_a_measurement_reads_its_files_once(conv_pte, tmp_path):
    pte = Path(shutil.copy(conv_pte, tmp_path))
    OPENED.clear()
    run = wb.measure(pte, options=wb.MeasureOptions(runs=4, processes=2), root=tmp_path)
    report_text(run)
    assert run.findings is not None
    etdumps = [s.etdump for m in run.measurements for s in m.sessions]
    etdumps += [s.etdump for s in run.record.samplings if s.etdump]
    assert {OPENED[Path(name).name] for name in etdumps} == {1}


@pytest.mark.whole
def test_what_fails_after_measuring_costs_its_part_only(conv_pte, tmp_path, monkeypatch):
    parts = {
        "run.execute.time_starts": "starts",
        "run.execute.sample_experiments": "PC samples",
        "workflow.keep_places": "names of machine code",
        "workflow.Peaks.recall": "the machine's peaks",
        "workflow.write_artifacts": "CSV and JSON files",
        "workflow.make_report": "report",
    }
    for name in parts:
        monkeypatch.setattr(f"workbench.{name}", lambda *_, **__: 1 / 0)
    texts, brief = [], wb.MeasureOptions(runs=4, processes=2)
    pte = shutil.copy(conv_pte, tmp_path)
    run = wb.profile(
        pte, measure=brief, report=True, root=tmp_path, progress=lambda text, _: texts.append(text)
    )
    assert run.record.state == "complete"
    assert wb.open_run(run.path).record == run.record, "as if it had been opened"
    assert len(run.comparisons) == 1
    said = [f"{part} not made: ZeroDivisionError: division by zero" for part in parts.values()]
    warnings = [text.partition("warning: ")[2] for text in texts if "warning: " in text]
    assert sorted(warnings) == sorted(said)


@pytest.mark.whole
@pytest.mark.parametrize(
    "form", ["", *(pytest.param(form, marks=pytest.mark.cases) for form in ("--quiet", "--json"))]
)
def test_the_answer_comes_before_starts_and_each_trial_at_once(
    cli, conv_pte, tmp_path, monkeypatch, form
):
    """The verdict and the findings do not wait for anything; the report's path is last."""
    stdout = sys.stdout

    def mark(*_):
        print("(starts)", file=stdout)

    def check(run, *, tried, **_):
        for trial in (
            Trial("", "mean", "a mean", 2, 1, 5, 2.0, 1.5, 0.5, 0.4, 0.6),
            Trial("", "mean", "a mean", 2, 2, 5, 2.0, 1.5, 0.5, -0.4, 0.6),
            Trial("", "mean", "a mean", 2, problem="they do not run alone"),
        ):
            tried(trial)
        print("(tried)", file=stdout)

    monkeypatch.setattr("workbench.run.execute.time_starts", mark)
    monkeypatch.setattr("workbench.workflow.find_trials", lambda: check)
    short = ("--runs", "4", "--processes", "2", "--measure", "roof=no", *filter(None, [form]))
    code, out, err = cli("profile", shutil.copy(conv_pte, tmp_path), *short)
    assert code == 0, err
    first, between, last = re.split(r"\(starts\)\n|\(tried\)\n", out)
    if form:
        assert (first, between) == ("", "")
        return
    for text in ("measurement quality", "| Convolution |", "1. "):
        assert first.count(text) == 1 and text not in last
    verdict, *_ = first.splitlines()
    assert re.search("faster|slower|unchanged|inconclusive", verdict)
    assert between.splitlines() == [
        "tried mean: on 1 of 2 parts, 2.00 ms -> 1.50 ms; it saves 0.500 ms, between 0.400 ms and "
        "0.600 ms",
        "tried mean: on this part, 2.00 ms -> 1.50 ms; not shown to help: it saves 0.500 ms, "
        "between \N{MINUS SIGN}0.400 ms and 0.600 ms",
        "tried mean: not tried: they do not run alone",
    ]
    assert last.splitlines()[-1].startswith("report: ")


@pytest.mark.whole
def test_the_answer_is_the_verdict_of_the_run(conv_pte, tmp_path):
    texts, answers = [], []

    def progress(text, _):
        texts.append(text)

    options = wb.MeasureOptions(runs=4, processes=2, roof=False, evidence=False)
    run = wb.profile(
        shutil.copy(conv_pte, tmp_path), measure=options, progress=progress, answer=answers.append
    )
    (answer,) = answers
    assert answer.compare().text == run.compare().text
    assert not answer.record.starts and run.record.starts
    wb.profile(shutil.copy(conv_pte, tmp_path), measure=options, progress=progress)
    told = [number for number, text in enumerate(texts) if "answer: " in text]
    assert len(told) == 1
    assert any(", started" in text for text in texts[told[0] :])


@pytest.mark.cases
def test_findings_that_fail_leave_the_report(cli, conv_pte, tmp_path, monkeypatch):
    monkeypatch.setattr("workbench.analysis.findings.text.write_finding", lambda *_: 1 / 0)
    code, out, err = cli("profile", shutil.copy(conv_pte, tmp_path), *SHORT)
    assert code == 1 and "error: warning: findings not made: ZeroDivisionError" in err
    (report,) = re.findall("report: (.*)", out)
    assert Path(report).is_file()


@pytest.mark.whole
@pytest.mark.parametrize(
    ("function", "name", "command"),
    [
        ("make_report", "report.html", "report"),
        pytest.param(
            *("write_artifacts", "analysis_summary.json", "analyze"), marks=pytest.mark.cases
        ),
    ],
)
def test_files_that_were_not_written_are_said_last(
    cli, conv_pte, tmp_path, monkeypatch, function, name, command
):
    def fail(run, **_):
        raise wb.WorkbenchError("cannot be written: No space left on device", where=run.path / name)

    monkeypatch.setattr(f"workbench.workflow.{function}", fail)
    code, _, err = cli("profile", shutil.copy(conv_pte, tmp_path), *SHORT)
    *_, last = err.splitlines()
    assert code == 1 and "next: " not in err and "No space left on device" in err
    assert re.search(rf"^error: .*{name} was not written .* workbench {command} ", err, re.M)
    assert last.startswith("error: ")


@pytest.mark.whole
def test_plots_of_the_learning_path_analyse_once(run_dir):
    OPENED.clear()
    run = wb.open_run(run_dir)
    ab = run.compare()
    for _ in range(2):
        wb.plot_latencies(run)
        wb.plot_categories(run)
        wb.plot_shift(ab)
        wb.plot_speedups(ab)
    assert {count for name, count in OPENED.items() if name.endswith(".etdump")} == {1}


def test_measurements_are_found_by_name_threads_and_phase():
    run = recorded("unet_small")
    first = run.measurements[0]
    assert run[first.name] is first
    assert run[first.name, first.threads] is first
    with pytest.raises(Exception, match=f"did you mean '{first.name}'"):
        run[first.name + "x"]
    with pytest.raises(Exception, match="thread count"):
        run[first.name, 99]
    with pytest.raises(Exception, match="experiment"):
        run["decode", first.name]


def test_measurements_add_up_to_the_run():
    run = recorded("unet_small")
    restarts = len({session.process for session in run.record.sessions})
    assert sum(len(m.ledger) for m in run.traced) == len(run.ledger)
    for m in run.traced:
        assert m.operators["mean_ms"].sum() == pytest.approx(m.categories["mean_ms"].sum())
        assert m.statistics["latency"].item() == m.latency_ms
        assert f"95 % interval, n = {restarts} restarts" in str(wb.show(run))


def test_a_planned_comparison_is_the_same_object():
    run = recorded()
    ab = run.compare()
    assert run.compare("avx512_off", "avx512_on") is ab
    assert wb.compare(run["avx512_off"], run["avx512_on"]) is ab
    assert ab.toggled and not ab.apart
    back = run.compare("avx512_on", "avx512_off")
    assert back.verdict.outcome == "slower"
    assert back.verdict.speedup == pytest.approx(1 / ab.verdict.speedup)


def test_a_ledger_that_does_not_close_is_a_failed_check():
    run = recorded()
    checks = run.checks.set_index("check")["status"]
    assert checks["ledger closes"] == "ok"
    first = run.traced[0]
    process, *others = first.times.processes
    broken = process._replace(closed=process.closed & False)
    lost = changed(first, times=changed(first.times, processes=[broken, *others]))
    spoilt = changed(run, traced=(lost, *run.traced[1:]))
    vars(spoilt).pop("checks")
    row = spoilt.checks.set_index("check").loc["ledger closes"]
    assert row["status"] == "fail"
    assert re.search(r"rows of \d+ of \d+ runs do not add up", row["evidence"])


@pytest.mark.parametrize("masks", [True, False], ids=["features", "kernels"])
def test_what_ran_decides_where_names_do_not(tmp_path, masks):
    folder = shutil.copytree(wb.sample_run("toy_cnn"), tmp_path / "run")
    text = (folder / "manifest.json").read_text()
    content = json.loads(text.replace('"sme2_on"', '"one"').replace('"sme2_off"', '"two"'))
    by_order = "the first experiment; neither names nor kernels show which one lacks the extension"
    content["plan"].update(direction=by_order, experiments=content["plan"]["experiments"][::-1])
    for session in content["sessions"]:
        session["masked"] = session["masked"] if masks else []
    (folder / "manifest.json").write_text(json.dumps(content))
    run = wb.open_run(folder)
    assert [(ab.baseline.name, ab.candidate.name) for ab in run.comparisons] == [("two", "one")]
    how = "two: it hides sme" if masks else "the traces of one name SME kernels"
    assert how in run.checks.set_index("check").at["baseline", "evidence"]


def test_an_open_run_takes_another_baseline_or_refuses_it(tmp_path):
    run = open_made_run(tmp_path, {"off": None, "on": None}, traced=2, processes=2)
    turned = wb.open_run(run, baseline="on")
    assert [(ab.baseline.name, ab.candidate.name) for ab in turned.comparisons] == [("on", "off")]
    assert run.compare().baseline.name == "off", "the run itself stays as it was"
    with pytest.raises(Exception, match="unknown experiment 'x'"):
        wb.open_run(run, baseline="x")

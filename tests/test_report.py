"""From the recorded sample to reports: the numbers agree everywhere, and nothing is fetched."""

import html
import itertools
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from changed_runs import change_manifest, edit_json
from explored import read_data
from needed import needs
from processes import is_running, wait_for
from recorded import plain, recorded, report_text

import workbench as wb
from workbench import plugin
from workbench.jobs import is_reported

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def sample():
    return recorded()


@pytest.fixture
def run_dir(tmp_path):
    """A copy of the sample that a test may spoil."""
    return Path(shutil.copytree(wb.sample_run(), tmp_path / "runs" / "linux"))


def test_the_sample_names_the_layer_of_every_operator(sample):
    operators = sample.operators
    known = operators["kind"].isin(["delegated", "portable"])
    assert (operators["confidence"] == "exact")[known].all()
    assert operators["module"].notna()[known].all()
    for m in sample.measurements:
        own = m.layers["own_ms"].sum()
        assert own == pytest.approx(m.categories["mean_ms"].sum(), rel=1e-9)
        assert m.layers["total_ms"].iloc[[0, -1]].sum() == pytest.approx(own)
    row = operators[operators["module"] == "classifier.3"].iloc[0]
    assert row["module_class"] == "Linear"
    assert row["source"].startswith("workbench/models/zoo/mobilenet_v3_small.py:")
    assert (row["shapes"], row["flops"]) == ("1x1024 -> 1x1000", 2 * 1024 * 1000)


def test_layers_and_lines_are_in_the_artifacts(reported):
    summary = json.loads((reported.path / "analysis_summary.json").read_text())
    assert summary["layers"][0]["module_class"] == "MobileNetV3Small"
    by_layer = {row["layer"]: row for row in summary["operator_details"]}
    assert by_layer["features.0.0"]["confidence"] == "exact"
    assert "mobilenet_v3_small.py:" in by_layer["features.0.0"]["source"]
    report = (reported.path / "report.md").read_text()
    assert "| classifier.3 | Linear |" in report
    assert "mobilenet_v3_small.py:" in report and "models/zoo" not in report


def test_a_gain_that_was_not_tried_is_called_an_estimate(reported):
    text = (reported.path / "report.md").read_text()
    gains = re.findall(r"^\d\. .+ Gain: (.+)$", text, re.MULTILINE)[:3]  # the first screen
    tried = reported.subject.findings["basis"].isin(["checked", "measured"])
    assert len(gains) == 3 and not tried[:3].any()
    nothing = ("unknown", "none is known")
    assert all(gain.endswith(", estimated") or gain.startswith(nothing) for gain in gains)
    assert not all(gain.startswith(nothing) for gain in gains)


#: How each figure is found in a report, in a notebook's output and on the terminal.
FIGURES = {
    "latency of A": r"avx512_off \| 1 \|[^|]*\| (\S+) \||E2E \| ([\d.]+) ms \|",
    "latency of B": r"avx512_on \| 1 \|[^|]*\| (\S+) \||E2E \| [\d.]+ ms \| (\S+) ms",
    "speed-up": r"(\d\.\d\d)x faster",
    "its interval": r"95 % interval (\d\.\d\d-\d\.\d\d)\)",
    "verdict": r"\dx (faster|slower)",
    "share of the first category": r"bottleneck still GEMM, \d+ % -(?:>|&gt;) (\d+) %",
    "second operator": r"classifier\.3 (?:· \D+ #42 )?\| (?:\S+ ms \| )?(\d[\d.]+)(?![\d.])"
    r"(?! \| \S+ \| \S+x)",  # a row with both sides
    "first layer": r"features\.0\.0 \| (?:Conv2d \| \S+py:\d+ \| (\S+) \||\S+ ms \| (\S+) ms)",
    "gain of the first finding": r"[Gg]ain: (\S+) ms",
    "first output of B": r"first output \| ms \| \S+ \| (\S+) \|",
    "peak memory of B": r"peak memory \| MB \| \S+ \| (\S+) \|",
    "grade": r"quality ([A-D])\b",
}


def describe_start(experiment, ms):
    """A start as a manifest has it, of one stage that ends with the first output."""
    memory = dict.fromkeys(("anonymous", "pss", "peak"), round(1e5 * ms))
    times = dict.fromkeys(("ns", "cpu_ns"), round(1e6 * ms))
    stage = {"name": "first inference", **times, "bytes": 0, "heap": 0, **memory}
    names = {"experiment": experiment, "threads": 1, "number": 0, "mode": "time"}
    return {**names, "stages": [stage], "memory": memory, "cached": None}


@pytest.mark.whole
def test_figures_have_the_same_digits_on_every_surface(run_dir, cli):
    """In the report, a notebook and the explorer, on the terminal and in the JSON files."""
    starts = (describe_start("avx512_off", 10.0), describe_start("avx512_on", 9.0))
    change_manifest(run_dir, starts=starts)
    run = wb.open_run(run_dir)
    assert cli("analyze", run_dir)[0] == 0
    names = ("verdicts", "latencies", "layers", "findings")
    views = [*(wb.show(run, name) for name in names), wb.show(run.compare().resources)]
    views.append(wb.show(run.subject.operators, columns=["module", "mean_ms"]))
    commands = (["compare"], ["compare", "--by", "layer"], ["findings"])
    texts = {
        "report": report_text(run),
        "notebook": "\n\n".join(map(str, views)),
        "terminal": "".join(cli(*words, run_dir)[1] for words in commands),
    }
    shown = {name: {} for name in texts}
    for (name, text), (figure, pattern) in itertools.product(texts.items(), FIGURES.items()):
        if found := re.search(pattern, text):
            shown[name][figure] = found[found.lastindex]

    names = ("metrics.json", "analysis_summary.json")
    metrics, summary = (json.loads((run_dir / name).read_text()) for name in names)
    resources = {r["resource"]: r["values"][0] for r in metrics["latencies"][1]["resources"]}
    layer = next(row for row in summary["layers"] if row["module"] == "features.0.0")
    totals = summary["category_totals_ms"].values()
    gain = shown["report"]["gain of the first finding"]
    shown["JSON"] = write_figures(
        summary["comparisons"][0], metrics["latencies"][1]["latency"], summary["findings"], gain,
        max(totals) / sum(totals), summary["operator_details"][1]["avg_ms"],
        resources["first output"], summary["quality"]["grade"],
    )  # fmt: skip
    shown["JSON"] |= {
        "first layer": f"{layer['total_ms']:#.3g}",
        "peak memory of B": f"{resources['peak memory']:#.3g}",
    }
    explorer = read_data(run)
    pair = explorer["comparisons"][0]
    side = explorer["measurements"][pair["candidate"]]
    place = explorer["programs"][side["program"]]["keys"].index(
        run.subject.operators["key"].iloc[1]
    )
    shown["explorer"] = write_figures(
        pair, side["latency"]["latency"], side["findings"], gain,
        max(row["share"] for row in side["categories"]), side["mean_ms"][place],
        sum(row["mean_ms"] for row in side["start"]), explorer["head"]["grade"],
    )  # fmt: skip
    print(pd.DataFrame(shown).to_markdown())
    digits = {figure: {s[figure] for s in shown.values() if figure in s} for figure in FIGURES}
    assert {figure: found for figure, found in digits.items() if len(found) != 1} == {}
    lacking = {name: {*FIGURES} - {*found} for name, found in shown.items()}
    assert lacking == {
        "report": set(), "notebook": set(), "terminal": {"grade"}, "JSON": set(),
        "explorer": {"first layer", "peak memory of B"},
    }  # fmt: skip


def write_figures(judged, latency_ms, findings, gain, share, operator_ms, start_ms, grade):
    """Raw numbers of a document with the digits that pages have; ``gain`` is a page's."""
    latency, decimals = judged["latency"], len(gain.partition(".")[2])
    return {
        "latency of A": f"{latency['baseline_ms']:#.3g}",
        "latency of B": f"{latency_ms:#.3g}",
        "speed-up": f"{latency['speedup']:.2f}",
        "its interval": f"{latency['low']:.2f}-{latency['high']:.2f}",
        "verdict": re.search("faster|slower", judged["verdict"])[0],
        "share of the first category": f"{100 * share:.0f}",
        "second operator": f"{operator_ms:#.3g}",
        "gain of the first finding": f"{findings[0]['gain_ms']:.{decimals}f}",
        "first output of B": f"{start_ms:#.3g}",
        "grade": grade,
    }


@pytest.mark.whole
def test_without_a_sidecar_no_layer_is_named(run_dir, cli):
    (run_dir / "layers.json").unlink()
    run = wb.open_run(run_dir)
    assert run.layers is None
    assert "confidence" not in run.operators
    assert "nknown" in str(wb.show(run, "layers"))
    assert cli("analyze", run_dir)[0] == 0
    summary = json.loads((run_dir / "analysis_summary.json").read_text())
    assert {row["layer"] for row in summary["operator_details"]} == {None}
    assert summary["layers"] is None


def test_outputs_that_differ_are_in_the_verdict_and_fail_a_check(run_dir):
    run = wb.open_run(run_dir).record
    bad = [replace(a, max_abs=1.0, scale=1.0, agree=False) for a in run.agreements]
    change_manifest(run_dir, agreements=tuple(bad))
    damaged = wb.open_run(run_dir)
    assert "outputs differ" in damaged.compare().text
    checks = damaged.checks
    assert (checks["status"] == "fail").any()


def test_a_toggle_that_hid_nothing_and_a_wrong_export_fail_a_check(run_dir):
    run = wb.open_run(run_dir).record
    export = replace(run.export, problem="it is constant")
    change_manifest(
        run_dir, sessions=tuple(replace(s, masked=()) for s in run.sessions), export=export
    )
    checks = wb.open_run(run_dir).checks.set_index("evidence")["status"]
    assert checks["no CPU feature was hidden from the baseline"] == "fail"
    assert checks["it is constant"] == "fail"


def test_an_emulated_run_says_so_first(run_dir):
    change_manifest(run_dir, emulated=True)
    run = wb.open_run(run_dir)
    first, second, *_ = str(wb.show(run)).split("\n\n")
    assert "(emulated)" in first and "emulated: " in second
    assert "(emulated)" in run.description["value"].str.cat()
    assert "fail" in set(run.checks["status"])


@pytest.mark.whole
def test_whatever_shows_an_emulated_run_says_so_and_judges_no_speed(run_dir):
    change_manifest(run_dir, emulated=True)
    run = wb.open_run(run_dir)
    ab, on = run.compare(), run.subject
    for shown in (
        wb.plot_latencies(run),
        wb.plot_categories(run),
        wb.plot_shift(ab),
        wb.plot_speedups(ab),
    ):
        assert "emulated: " in shown.alt_text
    for table in (on.operators, run.statistics, ab.shift, ab.categories):
        assert "emulated: " in str(wb.show(table, caption="Some"))
    for frame in (ab.latency, ab.categories, ab.operators):
        assert set(frame["outcome"]) == {"emulated"}
    for word in ("faster", "slower", "unchanged", "bottleneck"):
        assert word not in ab.text
    with pytest.raises(wb.WorkbenchError, match="no speed to compare"):
        wb.compare(on, on)


def test_a_program_of_unknown_origin_has_no_table_of_undelegated_operators(run_dir):
    change_manifest(run_dir, export=None)
    assert "no export record" in str(wb.show(wb.open_run(run_dir), "undelegated"))


@pytest.mark.whole
def test_text_from_a_manifest_stays_text(run_dir):
    run = wb.open_run(run_dir).record
    evil = "<script>alert(1)</script>"
    change_manifest(run_dir, plan=replace(run.plan, model=evil), host={**run.host, "cpu": evil})
    assert "<script>" not in report_text(wb.open_run(run_dir))
    assert "<script>" not in wb.show(wb.open_run(run_dir))._repr_html_()


def test_analyze_checks_a_run_and_fails_if_asked(cli, run_dir):
    artifacts = run_dir.parents[1] / "artifacts"
    artifacts.mkdir()
    code, out, _ = cli("analyze", run_dir, "--check")
    assert code == 0 and "fail" not in out
    (artifacts / "mobilenet_v3_small_xnnpack_fp32.pte").write_bytes(b"another")
    edit_json(run_dir / "layers.json", lambda content: content.update(sha256="0" * 64))
    code, out, _ = cli("analyze", run_dir, "--check")
    assert code == 1 and "fail  layers.json: is of another program" in out
    assert "fail  mobilenet_v3_small_xnnpack_fp32.pte: is not the program that ran" in out


def test_a_trace_of_another_run_is_noticed(run_dir):
    run = wb.open_run(run_dir).record
    sessions = tuple(replace(s, batches=s.batches * 2) if s.etdump else s for s in run.sessions)
    change_manifest(run_dir, sessions=sessions)
    with pytest.raises(wb.WorkbenchError, match="the manifest"):
        wb.open_run(run_dir).ledger  # noqa: B018


def test_a_run_that_measured_nothing_says_how_to_go_on(run_dir):
    change_manifest(run_dir, sessions=())
    with pytest.raises(wb.WorkbenchError, match="resumes where it stopped"):
        wb.open_run(run_dir)


def test_a_side_of_which_only_traces_are_left_is_left_out(run_dir):
    run = wb.open_run(run_dir).record
    sessions = tuple(s for s in run.sessions if s.traced or s.experiment != "avx512_off")
    change_manifest(run_dir, sessions=sessions)
    opened = wb.open_run(run_dir)
    assert "avx512_off" not in {m.name for m in opened.measurements}
    assert "avx512_off" in {s.experiment for s in opened.record.sessions}
    assert not opened.comparisons
    assert "avx512_on" in str(wb.show(opened))


def test_summary_figures_are_those_of_the_frames(analysed):
    run_dir = analysed.path
    summary = json.loads((run_dir / "analysis_summary.json").read_text())
    assert sum(summary["category_totals_ms"].values()) == pytest.approx(
        summary["latency"]["latency"], rel=1e-6
    )
    traces = [path for path in run_dir.glob("*/*.etdump") if "_sampled" not in path.name]
    assert summary["etdump_count"] == len(summary["per_etdump"]) == len(traces)
    comparison = summary["comparisons"][0]
    assert comparison["latency"]["low"] <= comparison["latency"]["speedup"]
    latencies = json.loads((run_dir / "metrics.json").read_text())["latencies"]
    manifest = json.loads((run_dir / "manifest.json").read_text())
    for row in latencies:
        raw = [
            t
            for s in manifest["sessions"]
            if s["experiment"] == row["experiment"] and not s["traced"]
            for b in s["batches"]
            for t in b["cpu_ns"]
        ]
        assert row["n"] == len(raw)
        assert row["median"] == pytest.approx(np.median(raw) / 1e6)


class Page(HTMLParser):
    """What a page would fetch or run."""

    def __init__(self):
        super().__init__()
        self.found = []
        self.images = []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag in ("script", "iframe", "object", "embed", "link"):
            self.found.append(tag)
        if tag == "img":
            self.images.append(given)


@needs("explorer")
def test_the_report_is_one_page_that_fetches_nothing(reported):
    text = (reported.path / "report.html").read_text()
    parser = Page()
    parser.feed(text)
    assert parser.found == ["script"]
    assert len(parser.images) >= 4
    for image in parser.images:
        assert image["src"].startswith(("data:image/png;base64,", "data:image/svg+xml;base64,"))
        assert len(image["alt"]) > 40
    assert not re.search(r"url\(|@import", text)
    assert reported.compare().text in plain(html.unescape(text))
    markdown = (reported.path / "report.md").read_text()
    assert markdown.startswith(
        "# mobilenet_v3_small: where the time goes\n\nmobilenet_v3_small · fp32"
    )
    assert "\n\n*Figure. " in markdown and "[explore.html]" not in markdown
    assert "What was tried" not in markdown, "a section without results is left out"
    assert (reported.path / "explore.html").is_file()
    assert not list(reported.path.glob(".*"))


def test_the_executed_notebook_is_kept_with_its_parameters(reported):
    notebook = json.loads((reported.path / "report.ipynb").read_text())
    papermill = notebook["metadata"]["papermill"]
    assert papermill["parameters"] == {"run_dir": str(reported.path)}
    assert papermill["exception"] is None and papermill["input_path"] == "16_report.ipynb"
    assert all(c["execution_count"] for c in notebook["cells"] if c["cell_type"] == "code")
    assert notebook["cells"][-1]["cell_type"] == "markdown", "what the workbench adds is gone"
    template = json.loads((ROOT / "notebooks" / "16_report.ipynb").read_text())
    sections = [view for view in plugin.collect("views").values() if view.section]
    assert len(notebook["cells"]) == len(template["cells"]) + 2 * len(sections)


@needs("explorer")
@pytest.mark.whole
def test_options_of_an_opened_run_reach_its_report(run_dir, write_notebook):
    show = 'print(run_dir, baseline, categories, (run := wb.open_run(run_dir)) and "")'
    path = write_notebook(
        'run_dir, baseline, categories = "", "", ""', "import workbench as wb", show
    )
    run = wb.open_run(run_dir, baseline="avx512_on", categories="kit")
    page, markdown, notebook = wb.make_report(run, notebook=path)
    assert markdown.read_text().startswith("# mobilenet_v3_small: Mine\n")
    assert f"{run_dir} avx512_on kit" in markdown.read_text()
    assert f"<pre>{run_dir} avx512_on kit" in page.read_text()
    assert "explore.html" in page.read_text() and (run_dir / "explore.html").is_file()
    assert [path.name for path in (page, notebook)] == ["report.html", "report.ipynb"]


@pytest.fixture
def write_notebook(tmp_path):
    """Writes a notebook whose first code cell has the parameters."""

    def write(*codes, tags=("parameters",)):
        cells = [{"cell_type": "markdown", "metadata": {}, "source": ["# Mine\n", "\n", "text"]}]
        for code in codes:
            cell = {"cell_type": "code", "metadata": {}, "source": [code], "outputs": []}
            cells.append({**cell, "execution_count": None})
        cells[1]["metadata"] = {"tags": list(tags)}
        content = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 4}
        (tmp_path / "my.ipynb").write_text(json.dumps(content))
        return tmp_path / "my.ipynb"

    return write


def files_of(run_dir):
    return {path.name for path in run_dir.rglob("*") if path.is_file()}


@pytest.mark.whole
@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("1 / 0", "my.ipynb, cell 4: ZeroDivisionError: division by zero -> what ran is in "),
        pytest.param(
            "import os; os._exit(1)", "my.ipynb, cell 4: the kernel died", marks=pytest.mark.whole
        ),
    ],
)
def test_a_failing_cell_is_one_line_and_what_ran_is_kept(cli, run_dir, write_notebook, code, words):
    write_notebook("run_dir = ''; n = 1", "print('n is', n)", code, "2")
    before = files_of(run_dir)
    status, out, err = cli("report", run_dir, "--notebook", "my.ipynb", "-p", "n=7")
    assert (status, out) == (1, "")
    assert words in err.splitlines()[-1] and "Traceback" not in err
    assert files_of(run_dir) - before == {"report.failed.ipynb"}
    cells = json.loads((run_dir / "report.failed.ipynb").read_text())["cells"]
    assert "n is 7" in str(cells) and "n = 7" in str(cells)


@pytest.mark.cases
def test_papermill_is_silent_only_while_it_runs(run_dir, write_notebook, caplog):
    logger = logging.getLogger("papermill")
    with pytest.raises(wb.WorkbenchError, match="ZeroDivisionError"):
        wb.make_report(run_dir, notebook=write_notebook("run_dir = ''", "1 / 0"))
    assert not caplog.records
    logger.error("from the user's own notebook")
    assert [record.name for record in caplog.records] == ["papermill"]


@pytest.mark.whole
def test_a_failing_cell_that_may_fail_costs_its_part(cli, run_dir):
    status, out, err = cli("report", run_dir, "-p", "top=many")
    assert status == 0 and str(run_dir / "report.html") in out
    failed = re.findall("warning: .*: this part failed: .*", err)
    assert "warning: Which layers and lines?: " in err and "Traceback" not in err
    text = (run_dir / "report.md").read_text()
    assert text.count("this part failed: ") == len(failed)
    assert "## How long does one inference take?" in text and "| avx512_on |" in text
    assert not (run_dir / "report.failed.ipynb").exists()


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (["--notebook", "none.ipynb"], "none.ipynb: no such file"),
        (["--notebook", "page.html"], "page.html: is not a notebook"),
        (["--notebook", "untagged.ipynb"], "has no cell that is tagged `parameters`"),
        (["--notebook", "my.ipynb", "-p", "tpo=3"], "did you mean 'top'? valid: run_dir, top"),
        (["-p", "rundir=x"], "did you mean 'run_dir'?"),
        (["-p", "top"], "is not an assignment"),
        (["--baseline", "avx512_on", "--notebook", "my.ipynb"], "unknown parameter 'baseline'"),
        (["--notebook", "my.ipynb", "second"], "second: no such file"),
    ],
)
def test_a_wrong_notebook_or_parameter_is_refused(cli, run_dir, write_notebook, option, words):
    Path("page.html").write_text("<p>no notebook</p>")
    shutil.move(write_notebook("run_dir = ''", tags=()), "untagged.ipynb")
    write_notebook("run_dir = ''\ntop = 1", "1")
    status, out, err = cli("report", run_dir, *option)
    assert (status, out) == (2, "") and words in err and "Traceback" not in err


@pytest.mark.whole
def test_a_folder_that_is_no_run_is_refused_without_a_word_about_cells(cli, tmp_path):
    status, out, err = cli("report", tmp_path)
    assert (status, out) == (2, "") and "not a run folder" in err and "cell" not in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.whole
def test_a_cell_that_takes_too_long_is_stopped(run_dir, write_notebook, short_cells):
    path = write_notebook("run_dir = ''", "import time; time.sleep(60)")
    with pytest.raises(wb.WorkbenchError, match="cell 3: took longer than 1 s"):
        wb.make_report(run_dir, notebook=path)


@pytest.mark.cases
def test_a_kernel_that_dies_at_its_start_is_started_once_more(run_dir, write_notebook, monkeypatch):
    path, mark = write_notebook("run_dir = ''", "print('done')"), run_dir.parent / "died"
    die = f"import pathlib, sys; mark = pathlib.Path({str(mark)!r})\n"
    die += "if not mark.exists(): mark.touch(); sys.exit(1)\n"
    die += "from ipykernel.kernelapp import launch_new_instance as launch; launch()"
    command = [sys.executable, "-c", die, "-f", "{connection_file}"]
    monkeypatch.setattr("workbench.report.kernel.COMMAND", command)
    page, *_ = wb.make_report(run_dir, notebook=path)
    assert "done" in page.read_text() and mark.exists()
    monkeypatch.setattr("workbench.report.kernel.COMMAND", [sys.executable, "-c", "exit(1)"])
    with pytest.raises(wb.WorkbenchError, match="the kernel d"):
        wb.make_report(run_dir, notebook=path)


@needs("explorer")
@pytest.mark.cases
def test_a_notebook_that_displays_nothing_has_a_page(cli, run_dir, write_notebook):
    write_notebook("run_dir = ''", "n = 1")
    status, out, _ = cli("report", run_dir, "--notebook", "my.ipynb")
    assert status == 0 and "explore.html" in Path(out.split()[0]).read_text()


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\xff\xfe", b"[]", b"1", b'{"cells": [1]}', b'{"cells": {}, "nbformat": 4}',
        b'{"cells": [], "nbformat": 99, "nbformat_minor": 0, "metadata": {}}',
        b'{"cells": [{"cell_type": "code", "metadata": {"tags": 1}, "source": "x"}], "nbformat": 4,'
        b' "nbformat_minor": 5, "metadata": {}}',
        b"[" * 100_000,
    ],
)  # fmt: skip
def test_a_malformed_notebook_is_one_line(cli, run_dir, content):
    Path("my.ipynb").write_bytes(content)
    status, out, err = cli("report", run_dir, "--notebook", "my.ipynb")
    assert (status, out) == (2, "") and err.startswith("error: my.ipynb: ")
    assert err.count("\n") == 1


@pytest.mark.cases
def test_a_folder_named_in_another_encoding_has_a_report(cli, run_dir, write_notebook):
    write_notebook("run_dir = ''", "print(run_dir)")
    other = run_dir.rename(os.fsdecode(os.fsencode(run_dir.parent) + b"/m\xfcll"))
    status, _, err = cli("report", other, "--notebook", "my.ipynb")
    assert status == 0, err
    assert re.search("/m.ll", (other / "report.md").read_text())


@pytest.mark.whole
@pytest.mark.parametrize(
    "ending", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.cases)]
)
def test_a_report_that_is_ended_leaves_no_file_and_no_kernel(run_dir, write_notebook, ending):
    started = run_dir.parent / "started"
    note = f"import os, time; print(os.getpid(), file=open({str(started)!r}, 'w', 1)); "
    path, before = write_notebook("run_dir = ''", f"{note}time.sleep(600)"), files_of(run_dir)
    line = [sys.executable, "-m", "workbench", "report", run_dir, "--notebook", path]
    # Children of a shell's background job ignore it otherwise.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as process:
        wait_for(lambda: started.exists() and started.read_text().strip())
        process.send_signal(ending)
        _, err = process.communicate(timeout=60)
    if ending == signal.SIGINT:
        assert process.returncode == 130 and err.endswith("run the same command again to resume\n")
    kernel = int(started.read_text())
    wait_for(lambda: not is_running(kernel))
    assert files_of(run_dir) == before


@pytest.mark.parametrize(
    ("axis", "change"),
    [
        ("program", lambda run: {"plan": replace(run.plan, sha256="0" * 64)}),
        ("device", lambda run: {"host": {**run.host, "cpu": "another"}}),
        ("build", lambda run: {"versions": {**run.versions, "executorch": "9.9"}}),
    ],
)
def test_what_differs_must_be_declared(sample, run_dir, axis, change):
    change_manifest(run_dir, **change(wb.open_run(run_dir).record))
    sides = sample.subject, wb.open_run(run_dir).subject
    with pytest.raises(wb.WorkbenchError, match=f"differ in {axis}: .* against .*--across {axis}"):
        wb.compare(*sides)
    wb.compare(*sides, across=[axis])


@pytest.mark.whole
def test_a_report_is_made_again_once_something_that_it_shows_has_changed(tmp_path, write_notebook):
    """Its notebook, what was measured or tried, or the machine's peaks."""
    folder = Path(shutil.copytree(wb.sample_run("vit_tiny"), tmp_path / "run"))
    notebook = write_notebook("run_dir = ''", "1")
    wb.make_report(folder, notebook=notebook)
    assert is_reported(folder, notebook)
    for path in (notebook, folder / "checks.json", next(folder.glob("ceilings_*.json"))):
        content = path.read_text()
        path.write_text(content + "\n")
        assert not is_reported(folder, notebook), path.name
        path.write_text(content)

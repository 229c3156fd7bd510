"""A busy machine: one sentence on every surface, pale bars, and nothing that contradicts them."""

import html
import json
import re

import matplotlib.colors
import pytest
from changed_runs import edit_json
from explored import read_data
from needed import needs
from run_folder import write_run

import workbench as wb

#: The colour of convolutions, and the same where it is pale in a figure.
COLOR, PALE = "#1A478A", "#afbfd6"
SENTENCE = re.compile(
    r"This machine was busy \(75 % of the time went to other programs\): measure again when it is "
    r"idle; shares are (within \d+ points?|unknown)"
)
#: What was said before, in its place.
FORMER = re.compile(
    "may be off|traced inferences are|use its|not its latency|cold one|would show|equal experiments"
    "|was detectable|stop other programs|hold as they are"
)
#: How much the traced times scatter, so that shares are uncertain, or not known at all.
SCATTER = {"uncertain": 0.25, "unknown": 3.0}


def write_busy(folder, scatter="uncertain", *, taken=0.75, seed=0, **options):
    """A run of which other programs took so much, with traces that scatter over the restarts."""
    chosen = {"processes": 3, "traced": 4, "restart": 0.08, "control": True} | options
    write_run(folder, {"off": 6.7, "on": 6.7}, traced_restart=SCATTER[scatter], seed=seed, **chosen)

    def preempt(manifest):
        for session in manifest["sessions"]:
            for batch in session["batches"]:
                batch["wall_ns"] = [round(ns / (1 - taken)) for ns in batch["cpu_ns"]]

    edit_json(folder / "manifest.json", preempt)
    return folder


@pytest.fixture(scope="module", params=SCATTER)
def busy(request, tmp_path_factory):
    return wb.open_run(write_busy(tmp_path_factory.mktemp("busy") / "run", request.param))


@pytest.fixture(scope="module")
def unknown(tmp_path_factory):
    return wb.open_run(write_busy(tmp_path_factory.mktemp("busy") / "run", "unknown"))


def says_it_once(text, where):
    text = " ".join(text.split())
    assert len(SENTENCE.findall(text)) == 1, (where, text)
    assert text.count("This machine was busy") == 1, (where, text)
    assert not FORMER.search(text), (where, FORMER.search(text)[0])


def test_every_surface_says_once_that_the_machine_was_busy(busy, cli):
    ab, m = busy.compare(), busy.subject
    surfaces = {
        "run": str(wb.show(busy)),
        "first screen": wb.show(busy, "overview")._repr_html_(),
        "comparison": str(wb.show(ab)),
        "caveats of the run": "\n".join(busy.caveats),
        "caveats of the comparison": "\n".join(ab.caveats),
        "caveats of the measurement": "\n".join(m.caveats),
        "explorer": "\n".join(read_data(busy)["comparisons"][0]["caveats"]),
        "explorer of one": "\n".join(read_data(busy)["measurements"][0]["caveats"]),
        "terminal": cli("compare", busy.path)[1],
    }
    for where, text in surfaces.items():
        says_it_once(text, where)
    assert not FORMER.search(busy.grade + ab.text)


def test_the_page_of_several_runs_says_it_once(tmp_path, cli):
    for name, seed in (("a", 0), ("b", 1)):
        write_busy(tmp_path / name, seed=seed)
    assert cli("report", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "both")[0] == 0
    says_it_once((tmp_path / "both" / "combined_report.md").read_text(), "combined page")
    says_it_once("\n".join(wb.compare(tmp_path / "a", tmp_path / "b").caveats), "two runs")


def test_one_busy_run_of_two_is_named(tmp_path):
    write_busy(tmp_path / "loaded")
    write_run(tmp_path / "idle", {"off": 6.7, "on": 6.7}, traced=4)
    (line,) = [text for text in wb.compare(tmp_path / "idle", tmp_path / "loaded").caveats
               if "busy" in text]  # fmt: skip
    assert line.startswith("This machine was busy during loaded (75 % of the time")


def test_a_verdict_that_shows_nothing_names_the_machine(busy):
    text = busy.compare().text
    assert "net: inconclusive with avx512: this machine was busy (latency " in text
    known = not busy.subject.use.blank
    assert text.endswith(("points", "point") if known else "bottleneck unknown")


def test_a_verdict_that_shows_something_on_a_busy_machine_stays(tmp_path):
    folder = write_busy(tmp_path / "run")
    factors = {"on": dict.fromkeys(("Convolution", "GEMM", "Data Movement"), 0.2)}
    write_run(tmp_path / "fast", {"off": 6.7, "on": 1.7}, factors=factors, traced=4)
    ab = wb.compare(wb.open_run(folder)["off"], wb.open_run(tmp_path / "fast")["on"])
    assert "faster" in ab.text and "busy" not in ab.text


def test_an_uncertainty_above_the_share_leaves_nothing_to_rank(unknown):
    m = unknown.subject
    assert m.use.off > m.categories["share"].max() and m.use.blank and m.use.busy
    assert m.use.uses == {"latency"}
    gains = [each.gain for each in unknown.opportunities if each.operators]
    latency = {gain.basis for gain in gains if gain.of == "latency"}
    assert latency <= {"unmeasurable", "measured"}


def test_a_calm_run_says_nothing_of_it(tmp_path):
    run = wb.open_run(write_busy(tmp_path / "run", taken=0.0, restart=0.001))
    assert not run.busy and "busy" not in f"{wb.show(run)} {run.grade} {run.compare().text}"


def test_bars_of_a_busy_machine_are_pale(busy, tmp_path):
    first = wb.show(busy)._repr_html_()
    assert f"background-color:{COLOR}66" in first
    figure = wb.plot_categories(busy)
    drawn = {matplotlib.colors.to_hex(bar.get_facecolor()) for bar in figure.axes[0].patches}
    assert PALE in drawn and COLOR.lower() not in drawn
    assert "pale: the machine was busy" in figure.alt_text
    assert all(side["pale"] for side in read_data(busy)["measurements"])


@needs("batch")
def test_bars_of_a_batch_on_a_busy_machine_are_pale(busy):
    page = html.unescape(wb.collect_runs([busy]).html)
    assert f"{COLOR}66" in page and page.count("the machine was busy, measure again") == 1
    has_digits = bool(re.search(r'aria-label="[^"]*Convolution \d', page))
    assert has_digits == (not busy.subject.use.blank)


def test_bars_of_an_idle_machine_have_their_colours(tmp_path):
    write_run(tmp_path / "run", {"off": 6.7, "on": 6.7}, traced=4)
    page = wb.show(wb.open_run(tmp_path / "run"))._repr_html_()
    assert COLOR in page and f"{COLOR}66" not in page


def test_programs_get_the_facts(busy, cli):
    assert cli("analyze", busy.path)[0] == 0
    record = json.loads((busy.path / "analysis_summary.json").read_text())["measurements"][0]
    assert record["busy"] and record["taken_by_others"] == pytest.approx(0.75, abs=0.01)
    assert record["share_error"] == busy["off"].use.off

"""The timeline: what it packs is what was traced, and a real browser draws it."""

import base64
import gzip
import hashlib
import json
import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from repeated import repeat_spans

import workbench as wb
from workbench.analysis.operators import label_operator
from workbench.errors import StoreError
from workbench.explorer.timeline import (
    PAGE_CLASS,
    draw_timeline,
    grow_spans,
    pack_timeline,
    plot_timeline,
    timeline_script,
)
from workbench.plots.tables import Table
from workbench.report.html import Section, to_html


@pytest.fixture(scope="module")
def run():
    return wb.open_run(wb.sample_run())


@pytest.fixture(scope="module")
def traces(run):
    return {name: run[name].spans for name in run.experiments}


def unpack(packed):
    """Header and tracks, with starts laid as the browser lays them."""
    content = gzip.decompress(packed)
    size = int.from_bytes(content[:4], "little")
    header, rest = json.loads(content[4 : 4 + size]), content[4 + size :]
    tracks = {}
    for track in header["tracks"]:
        columns = {}
        for name, kind in {"duration": "<u4", "gap": "<i4", "key": "<u4", "depth": "u1"}.items():
            width = track["spans"] * np.dtype(kind).itemsize
            columns[name] = np.frombuffer(rest[:width], kind).astype(np.int64)
            rest = rest[width:]
        ends, starts, run = {}, [], -1
        for duration, gap, depth in zip(
            columns["duration"], columns["gap"], columns["depth"], strict=True
        ):
            if depth == 0:
                run += 1
                ends[0] = header["offsets_ns"][run] // header["tick_ns"]
            starts.append(ends[depth] + gap)
            ends[depth], ends[depth + 1] = starts[-1] + duration, starts[-1]
        tracks[track["label"]] = pd.DataFrame({**columns, "start": starts})
    assert not rest
    return header, tracks


def test_every_span_of_every_run_is_packed_once_with_its_time(traces):
    header, tracks = unpack(pack_timeline(traces))
    for label, spans in traces.items():
        spans = spans[spans["run"] >= 0]
        begins = spans[spans["kind"] == "method"].set_index("run")["start_ns"]
        offsets = np.array(header["offsets_ns"])[spans["run"]]
        keys = [header["keys"][key]["key"] for key in tracks[label]["key"]]
        drawn = sorted(zip(keys, tracks[label]["start"], tracks[label]["duration"], strict=True))
        laid = spans["start_ns"] - begins.loc[spans["run"]].to_numpy() + offsets
        traced = sorted(zip(spans["key"], laid, spans["duration_ns"], strict=True))
        assert drawn == traced


def test_runs_begin_together_and_do_not_overlap(traces):
    header, tracks = unpack(pack_timeline(traces))
    for drawn in tracks.values():
        roots = drawn[drawn["depth"] == 0]
        assert roots["start"].tolist() == header["offsets_ns"][: len(roots)]
        assert (roots["start"] + roots["duration"]).lt(header["offsets_ns"][1:]).all()


def test_pointing_tells_names_means_and_layers(run, traces):
    about = run["avx512_on"].operators
    header, _ = unpack(pack_timeline(traces, about, note="emulated"))
    known = {info["key"]: info for info in header["keys"]}
    hottest = about[about["kind"] == "delegated"].iloc[0]
    info = known[hottest["key"]]
    spans = traces["avx512_on"]
    mean = spans.loc[(spans["key"] == hottest["key"]) & (spans["run"] >= 0), "duration_ns"].mean()
    assert info["mean_ns"][1] == round(mean)
    assert info["names"][1] == hottest["name"]
    assert info["label"] == label_operator(hottest["name"], hottest["module"])
    assert (info["module"], info["source"]) == (hottest["module"], hottest["source"])
    assert info["synthetic"]
    assert header["note"] == "emulated"


def forest(draw):
    """Spans of random depth, length and order of siblings; children may outlast their parent."""
    rows = []
    for run in range(draw(st.integers(1, 4))):
        root = len(rows)
        rows.append((run, -1, draw(st.integers(0, 10**6)), draw(st.integers(0, 2**33)), "method"))
        for _ in range(draw(st.integers(0, 12))):
            parent = draw(st.integers(root, len(rows) - 1))
            start = rows[parent][2] + draw(st.integers(-50, 1000))
            rows.append((run, parent, start, draw(st.integers(0, 5000)), "other"))
    frame = pd.DataFrame(rows, columns=["run", "parent", "start_ns", "duration_ns", "kind"])
    texts = {"name": "n", "ledger_kind": "delegated", "category": "GEMM", "key": "k"}
    return frame.assign(event=range(len(frame)), **texts)


@given(st.data())
def test_any_forest_is_laid_out_again_from_its_gaps(data):
    spans = data.draw(st.composite(forest)())
    tree = grow_spans(spans)
    ends, laid = {}, []
    for depth, gap, duration in tree[["depth", "gap_ns", "duration_ns"]].itertuples(index=False):
        ends.setdefault(0, 0)
        if depth == 0:
            ends[0] = 0
        laid.append((ends[depth] + gap, duration))
        ends[depth], ends[depth + 1] = laid[-1][0] + duration, laid[-1][0]
    begins = spans[spans["parent"] < 0].set_index("run")["start_ns"]
    since = spans["start_ns"] - begins.loc[spans["run"]].to_numpy()
    assert sorted(laid) == sorted(zip(since, spans["duration_ns"], strict=True))


def test_nothing_to_draw_is_said(traces):
    with pytest.raises(StoreError, match="no complete run"):
        pack_timeline({name: spans[spans["run"] < 0] for name, spans in traces.items()})
    with pytest.raises(StoreError, match="no complete run"):
        plot_timeline({name: spans[:0] for name, spans in traces.items()})


def test_the_figure_shows_the_run_of_median_length(traces):
    figure = plot_timeline(traces)
    for spans, drawn in zip(traces.values(), figure.axes[0].collections, strict=True):
        lengths = spans.loc[(spans["kind"] == "method") & (spans["run"] >= 0), "duration_ns"]
        widths = [path.vertices[:, 0].max() for path in drawn.get_paths()]
        assert max(widths) * 1e6 == pytest.approx(sorted(lengths)[len(lengths) // 2])


def test_a_person_gets_a_widget_and_a_report_the_same_bytes(traces):
    widget, page = draw_timeline(traces), draw_timeline(traces)
    assert widget.packed == page.packed
    assert base64.b64encode(page.packed).decode() in page._repr_html_()


def test_long_traces_stay_small(traces):
    """Of the page of a report, base64 included, a million spans are to take less than 5 MB."""
    spans = repeat_spans(traces["avx512_on"], 300_000)
    assert len(pack_timeline({"a": spans})) / len(spans) < 3.5


# ---- in a real browser ---------------------------------------------------------------------------


@pytest.fixture
def page_of(browser, tmp_path):
    """Opens a report with these traces from a file, without a network; fails on any complaint."""
    pages, complaints = [], []

    def open_page(traces, about=None, more=""):
        shown = more + draw_timeline(traces, about)._repr_html_()
        path = tmp_path / "report.html"
        path.write_text(to_html("Timeline", [Section("", items=[Table(shown, "")])]))
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.context.set_offline(True)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("requestfailed", lambda request: complaints.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_selector("[data-ready]")
        page.wait_for_function("document.querySelector('[data-ready]').dataset.view")
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        page.close()
    assert complaints == []


def view_of(page):
    page.wait_for_timeout(100)
    return [float(x) for x in page.get_attribute("[data-view]", "data-view").split()]


@pytest.mark.browser
def test_it_zooms_pans_searches_and_tells(page_of, run, traces):
    about = run["avx512_on"].operators
    page = page_of(traces, about)
    box = page.locator("canvas").bounding_box()
    first = view_of(page)
    page.mouse.move(box["x"] + 300, box["y"] + 105)
    page.wait_for_timeout(100)
    card = page.inner_text(f".{PAGE_CLASS} >> nth=0")
    assert "mean of" in card and "features." in card and ".py:" in card
    page.mouse.wheel(0, -120)
    zoomed = view_of(page)
    assert zoomed[1] - zoomed[0] < first[1] - first[0]
    page.mouse.down()
    page.mouse.move(box["x"] + 200, box["y"] + 105)
    page.mouse.up()
    panned = view_of(page)
    assert panned[0] > zoomed[0]
    assert panned[1] - panned[0] == pytest.approx(zoomed[1] - zoomed[0], abs=2)
    page.focus("canvas")
    page.keyboard.press("9")
    whole = view_of(page)
    assert whole[1] - whole[0] > 5 * (first[1] - first[0])
    page.keyboard.press("0")
    assert view_of(page) == first
    page.keyboard.press("/")
    page.keyboard.type("hardswish")
    assert "found" in page.inner_text("[role=status]")
    before = page.locator("canvas").screenshot()
    page.keyboard.press("Enter")
    page.wait_for_timeout(100)
    assert page.locator("canvas").screenshot() != before
    page.keyboard.down("Shift")
    page.mouse.move(box["x"] + 100, box["y"] + 105)
    page.mouse.down()
    page.mouse.move(box["x"] + 700, box["y"] + 105)
    page.mouse.up()
    page.keyboard.up("Shift")
    assert "avx512_on:" in page.inner_text("[role=status]")


@pytest.mark.browser
def test_a_million_events_are_drawn_and_moved_fast_and_take_little_room(browser, tmp_path):
    sys.path.insert(0, str(Path(__file__).parent / "benchmarks"))
    import timeline

    figures = timeline.measure(browser, timeline.make_page(tmp_path, 1_000_000), loads=3)
    assert timeline.passes(figures), figures


@pytest.mark.browser
def test_what_a_trace_says_stays_text(page_of, traces):
    evil = "<img src=x onerror=console.log('evil')>"
    spans = traces["avx512_on"]
    spans = spans.assign(name=spans["name"].astype(object).where(spans["kind"] != "method", evil))
    page = page_of({evil: spans})
    box = page.locator("canvas").bounding_box()
    page.mouse.move(box["x"] + 300, box["y"] + 65)
    page.wait_for_timeout(100)
    assert evil in page.inner_text(f".{PAGE_CLASS}")


def test_the_page_allows_its_own_script_and_no_other(traces):
    timeline = draw_timeline(traces)
    for items in ([timeline], []):
        text = to_html("T", [Section("", items=items)])
        (script,) = re.findall(r'<script type="module">(.*?)</script>', text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"script-src 'sha256-{digest}'\"" in text
        assert (timeline_script() in script) == bool(items)


@pytest.mark.browser
def test_tables_of_a_page_sort(page_of, traces):
    frame = pd.DataFrame({"name": ["b", "a", "c"], "mean_ms": [2.0, 10.0, float("nan")]})
    frame["q"] = [0.01, 0.0, 0.5]
    page = page_of(traces, more=wb.show_table(frame)._repr_html_())
    cells = "table tbody td:first-child"
    page.click("th >> text=mean")
    assert page.locator(cells).all_inner_texts() == ["b", "a", "c"]
    page.click("th >> text=mean")
    assert page.locator(cells).all_inner_texts() == ["a", "b", "c"]
    page.click("th >> text=q")
    assert page.locator(cells).all_inner_texts() == ["a", "b", "c"]
    page.click("th >> text=q")
    assert page.locator(cells).all_inner_texts() == ["c", "b", "a"]
    page.click("th >> text=name")
    assert page.locator(cells).all_inner_texts() == ["a", "b", "c"]

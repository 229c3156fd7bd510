"""Figures show the data of the nouns that they are given, and stay readable."""

import html
import math
import re

import numpy as np
import pandas as pd
import pytest
from changed_runs import with_record
from drawn import assert_tidy, words_of
from matplotlib.colors import to_hex
from needed import needs
from recorded import plain, recorded

import workbench as wb

CATEGORIES = ["Convolution", "GEMM", "Data Movement", "Elementwise", "Other"]
LONG = "Fully Connected (NC, QD8, F32, QC8W) with a name that is too long for any axis GEMM #123"


@pytest.fixture(scope="module")
def run():
    return recorded()


@pytest.fixture(scope="module")
def ab(run):
    return run.compare()


@pytest.fixture(scope="module")
def published():
    case = pd.read_csv(wb.sample_file("squeezesam.csv"))
    return dict(list(case.groupby("experiment", sort=False)))


def rows_of(axis):
    return [label.get_text() for label in axis.get_yticklabels()]


def test_figures_say_what_their_nouns_have(run, ab):
    """What a figure says in words comes from what it draws."""
    sides = {name: run[name].categories for name in ("avx512_off", "avx512_on")}
    said = wb.plot_categories(run).alt_text
    assert "control" not in said and "95 % interval" in said
    for name, frame in sides.items():
        total = frame["mean_ms"].sum()
        parts = [f"{row.category} {100 * row.mean_ms / total:.0f} %" for row in frame.itertuples()]
        assert f"{name}: {total:.2f} ms, {parts[0]}, {parts[1]}" in said
    said = wb.plot_shift(ab).alt_text
    assert all(f"{side['mean_ms'].sum():.2f} ms" in said for side in sides.values())
    assert "95 % interval" in said
    said = wb.plot_latencies(run).alt_text
    assert all(
        f"{row.experiment}: {row.latency:.2f} ms" in said for row in run.statistics.itertuples()
    )
    parts = pd.concat([ab.speedups, ab.operators.head(20)])
    said = wb.plot_speedups(parts).alt_text
    for row in parts.dropna(subset="low").itertuples():
        assert f"{row.speedup:.2f}x ({row.low:.2f} to {row.high:.2f}), {row.outcome}" in said


def test_thread_counts_are_named_where_they_differ():
    assert rows_of(wb.plot_categories(recorded("unet_small")).axes[0]) == [
        f"avx512_{isa}, {count}" for count in ("1 thread", "2 threads") for isa in ("off", "on")
    ]


def test_the_case_study_shows_every_published_figure(published):
    figure = wb.plot_categories(published, title="As published")
    words = " ".join(words_of(figure))
    assert all(f"{total} ms" in words for total in (1163, 298, 556, 304))
    assert all(f"{share} %" in words for share in (76, 40, 56, 41))
    assert not figure.axes[0].lines and "interval" not in figure.alt_text
    assert_tidy(figure)


def test_a_change_too_small_to_divide_has_no_parts(published):
    same = published["FP16, SME2 off"]
    other = same.assign(mean_ms=same["mean_ms"] * [1.001, 0.999, 1, 1, 1])
    figure = wb.plot_shift({"before": same, "after": other})
    assert not any("ms ·" in word for word in words_of(figure))
    assert "interval" not in figure.alt_text


@pytest.mark.parametrize("ratios", [(1.0, 1.01), (0.3, 1.2), (0.01, 90.0), (math.nan, 1.0)])
def test_speedups_of_any_size_have_a_few_round_ticks(ratios):
    rows = [
        {"level": "operator", "name": "x", "speedup": r, "low": r * 0.99, "high": r * 1.01,
         "outcome": "faster"}
        for r in ratios
    ]  # fmt: skip
    figure = wb.plot_speedups(pd.DataFrame(rows))
    assert_tidy(figure)
    assert 3 <= len(figure.axes[0].get_xticks()) <= 16


FIGURES = {
    "latencies": wb.plot_latencies, "iterations": wb.plot_iterations,
    "categories": wb.plot_categories, "shift": wb.plot_shift, "speedups": wb.plot_speedups,
}  # fmt: skip


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("model", ["mobilenet_v3_small", "toy_cnn"])
def test_figures_of_recorded_runs_are_tidy_and_say_if_they_were_emulated(name, model):
    figure = FIGURES[name](recorded(model))
    assert ("emulated" in figure.alt_text) == (model == "toy_cnn")
    assert_tidy(figure)


def test_long_names_of_bars_are_cut_where_they_agree(run):
    sides = {f"{run.model}, linux (recorded): {m.name}, 1 thread": m.categories
             for m in run.measurements[:2]}  # fmt: skip
    (axis,) = wb.plot_categories(sides).axes
    assert rows_of(axis) == [m.name for m in run.measurements[:2]]


@needs("explorer")
@pytest.mark.whole
def test_a_figure_takes_what_leads_to_its_noun_and_refuses_all_else(run, ab):
    wanted = wb.plot_roofline(run.subject).alt_text
    assert wb.plot_roofline(run).alt_text == wb.plot_roofline(ab).alt_text == wanted
    assert wb.plot_speedups(run).alt_text == wb.plot_speedups(ab).alt_text
    assert wb.plot_iterations(ab).alt_text == wb.plot_iterations(run).alt_text
    assert wb.plot_roofline(str(run.path)).alt_text == wanted
    assert wb.explore(run.path).text == wb.explore(run.subject).text == wb.explore(run).text
    with pytest.raises(wb.WorkbenchError, match="plot_latencies takes a Run, a Measurement or a p"):
        wb.plot_latencies(3)
    lone = wb.open_run(next(run.path.rglob("*.etdump")))
    with pytest.raises(wb.WorkbenchError, match="compares no two experiments"):
        wb.plot_shift(lone)


def test_what_a_run_lacks_is_a_sentence(ab):
    lone = wb.open_run(next(ab.run.path.rglob("*.etdump")))
    assert "Layers unknown" in str(wb.show(lone, "layers"))
    unsampled = with_record(recorded("unet_small"), samplings=())
    assert "not sampled" in str(wb.show(unsampled.compare(), "code"))
    assert "wb.measure_roof" in str(wb.plot_roofline(recorded("toy_cnn")))


def test_nothing_measured_draws_nothing(published):
    assert wb.plot_categories({}).axes
    assert wb.plot_speedups(recorded().compare().operators[:0].assign(speedup=[])).axes


def test_a_figure_displays_itself_sharp_at_the_width_of_the_page(run, monkeypatch):
    shown = {}
    monkeypatch.setattr("IPython.core.interactiveshell.InteractiveShell.initialized", lambda: True)
    publish = "IPython.core.display_functions.publish_display_data"
    monkeypatch.setattr(publish, lambda **published: shown.update(published))
    wb.plot_categories(run)._ipython_display_()
    assert shown["data"]["image/png"].startswith(b"\x89PNG")
    assert shown["metadata"]["image/png"]["width"] == 990
    assert "data:image/svg+xml" in shown["data"]["text/html"]
    assert "width:990px" in shown["data"]["text/html"]


def test_a_dollar_in_a_name_starts_no_formula():
    name = r"a $\frac{ b $"
    part = pd.DataFrame({"category": ["Convolution"], "mean_ms": [1.0]})
    figure = wb.plot_categories({name: part, LONG: part}, title=name)
    assert figure.to_png()
    assert name in figure.alt_text
    assert_tidy(figure)


@pytest.mark.parametrize(
    ("ms", "text"),
    [(8.314, "8.31 ms"), (1163, "1163 ms"), (0.8, "0.800 ms"), (0, "0 ms")],
)
def test_times_have_three_figures(ms, text):
    part = pd.DataFrame({"category": ["Convolution"], "mean_ms": [ms]})
    assert text in words_of(wb.plot_categories({"net": part}))


def test_nouns_show_their_answer_in_a_notebook(ab):
    for noun, words in ((ab, ab.text), (ab.candidate, "ms (95 % interval")):
        assert words in plain(html.unescape(noun._repr_html_()))
    for noun in (ab, ab.run, ab.run.findings):
        assert noun._repr_html_() == wb.show(noun).html, "one look"


def test_findings_are_cards_and_a_frame_to_compute_with(ab):
    findings = ab.run.findings
    assert "<ol" in findings._repr_html_() and "<ol" in wb.show(findings).html
    assert "<ol" in findings[findings["share"] > 0]._repr_html_()
    assert findings["share"].sum() > 0
    for part in (findings[["rule", "cause"]], findings.drop(columns="remedy")):
        assert "<table" in part._repr_html_() and "<ol" not in part._repr_html_()
    assert "<table" in wb.show(findings, columns=["rule", "cause"]).html
    assert len(repr(ab)) < 300


#: What readers see, from linear RGB: Machado et al. (2009) at full severity, and luminance.
SEEN = {
    "all colours": np.eye(3),
    "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "tritanopia": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
    "grey print": [[0.2126, 0.7152, 0.0722]] * 3,
}


def read_lab(colors, seen):
    """Colours as CIE L*a*b* coordinates, as a reader sees them."""
    parts = np.array([[int(c[at : at + 2], 16) / 255 for at in (1, 3, 5)] for c in colors])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    xyz = np.clip(linear @ np.transpose(seen), 0, 1) @ to_xyz.T / to_xyz.sum(axis=1)
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116).T
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=1)


@pytest.fixture(scope="module")
def legend():
    """The legend of a figure of two categories."""
    frame = pd.DataFrame({"category": ["Other", "GEMM"], "mean_ms": [1.0, 2.0]})
    return wb.plot_categories({"a": frame}).legends[0]


@pytest.mark.parametrize("reader", SEEN)
def test_categories_differ_for_every_reader(reader, legend):
    colors = [to_hex(patch.get_facecolor()) for patch in legend.get_patches()]
    places = read_lab(colors, SEEN[reader])
    distances = np.linalg.norm(places[:, None] - places, axis=2)[np.triu_indices(len(colors), 1)]
    assert len(colors) == len(CATEGORIES) and distances.min() > 12.5


def test_every_legend_names_all_categories_in_one_order(run, legend):
    assert [text.get_text() for text in legend.get_texts()] == CATEGORIES
    page = plain(html.unescape(re.sub("<[^>]+>", "", wb.show(run).html))).rpartition(" ms")[2]
    assert re.findall("|".join(CATEGORIES), page)[: len(CATEGORIES)] == CATEGORIES

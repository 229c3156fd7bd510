import math

import ipywidgets as widgets
import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.text import Text
from synthetic import synthetic_latencies, synthetic_ledger

from workbench.analysis.compare import compare_latencies, compare_parts
from workbench.analysis.operators import summarize_categories, summarize_operators
from workbench.analysis.shift import bottleneck_shift
from workbench.analysis.statistics import describe_latencies
from workbench.datasets import load_case_study
from workbench.errors import UsageError
from workbench.explorer.widgets import explore
from workbench.frames import MISSING, format_ms, format_number, format_share
from workbench.plots.categories import plot_categories
from workbench.plots.latencies import plot_latencies
from workbench.plots.operators import plot_operators
from workbench.plots.shift import plot_shift
from workbench.plots.speedups import plot_speedups
from workbench.plots.style import COLORS, color_of, ink_on, mark_figure, shorten
from workbench.plots.tables import show_table

LONG = "Fully Connected (NC, QD8, F32, QC8W) with a name that nobody would ever give it GEMM #123"


@pytest.fixture(scope="module")
def ledgers():
    return synthetic_ledger(), synthetic_ledger({"Convolution": 4, "GEMM": 3}, seed=1)


@pytest.fixture(scope="module")
def categories(ledgers):
    return {"off": summarize_categories(ledgers[0]), "on": summarize_categories(ledgers[1])}


@pytest.fixture(scope="module")
def latencies():
    return synthetic_latencies({"off": 6.0, "on": 3.0, "again": 6.0})


def texts_of(figure):
    """What is written in a figure, and where, in pixels."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    written = [
        text for text in figure.findobj(Text) if text.get_text().strip() and text.get_visible()
    ]
    return {text: text.get_window_extent(canvas.get_renderer()) for text in written}


def words_of(figure):
    return [text.get_text() for text in texts_of(figure)]


def assert_tidy(figure):
    """Nothing sticks out of the figure, and no two texts overlap."""
    boxes = texts_of(figure)
    page = figure.bbox
    for text, box in boxes.items():
        assert box.x0 >= page.x0 and box.x1 <= page.x1, text.get_text()
        assert box.y0 >= page.y0 and box.y1 <= page.y1, text.get_text()
    placed = list(boxes.items())
    for number, (text, box) in enumerate(placed):
        for other, second in placed[number + 1 :]:
            touching = min(box.x1, second.x1) - max(box.x0, second.x0) > 1
            touching = touching and min(box.y1, second.y1) - max(box.y0, second.y0) > 1
            assert not touching, (text.get_text(), other.get_text())


# Figures show the data that they are given.


def test_segments_are_as_long_as_the_categories(categories):
    figure = plot_categories(categories)
    (axis,) = figure.axes
    widths = np.array([bar.get_width() for bar in axis.patches]).reshape(2, -1)
    for drawn, frame in zip(widths, categories.values(), strict=True):
        assert drawn == pytest.approx(frame["mean_ms"].to_numpy())
    colors = [to_hex(bar.get_facecolor()).upper() for bar in axis.patches[:5]]
    assert colors == list(COLORS.values())
    assert "ms" in axis.get_xlabel()
    total = categories["off"]["mean_ms"].sum()
    assert format_ms(total) in words_of(figure)


def test_each_segment_has_the_interval_of_its_own_time_below_its_end(categories):
    (axis,) = plot_categories(categories).axes
    drawn = [tuple(line.get_xdata()) for line in axis.lines]
    known = []
    for frame in categories.values():
        starts = frame["mean_ms"].cumsum() - frame["mean_ms"]
        ends = frame[["low_ms", "high_ms"]].add(starts, axis=0)
        known += list(ends.itertuples(index=False, name=None))
    assert drawn == [pytest.approx(ends) for ends in known]
    assert [line.get_color() for line in axis.lines] == [*COLORS.values()] * 2
    assert "95 % interval" in plot_categories(categories).alt_text


def test_intervals_that_would_lie_on_one_another_have_lanes_of_their_own(categories):
    wide = categories["off"].assign(low_ms=0.0, high_ms=9.0)
    (axis,) = plot_categories({"off": wide}).axes
    assert len({line.get_ydata()[0] for line in axis.lines}) == 3
    assert axis.get_xlim()[1] >= max(line.get_xdata()[1] for line in axis.lines)


@pytest.mark.parametrize("columns", [[], ["low_ms", "high_ms"]])
def test_where_no_interval_is_known_none_is_drawn(categories, columns):
    bare = categories["off"].drop(columns=["low_ms", "high_ms"])
    figure = plot_categories({"off": bare.assign(**dict.fromkeys(columns, math.nan))})
    assert not figure.axes[0].lines and "interval" not in figure.alt_text


def test_every_category_is_named_in_its_segment_or_in_the_key(categories):
    words = " ".join(words_of(plot_categories(categories)))
    assert all(words.count(name) >= 1 for name in COLORS)


def test_the_case_study_shows_what_was_not_published():
    study = load_case_study("squeezesam")
    words = " ".join(words_of(plot_categories(study.categories, title=study.title)))
    assert "not published" in words
    assert "1163 ms" in words and "298 ms" in words
    assert "40 %" in words


def test_the_waterfall_goes_from_one_total_to_the_other(categories):
    shift = bottleneck_shift(*categories.values())
    shares, waterfall = plot_shift(shift, ("off", "on")).axes
    first, last, *steps = waterfall.patches
    assert first.get_width() == pytest.approx(shift["baseline_ms"].sum())
    assert last.get_width() == pytest.approx(shift["candidate_ms"].sum())
    assert [step.get_width() for step in steps] == pytest.approx(list(shift["delta_ms"]))
    end = steps[-1].get_x() + steps[-1].get_width()
    assert end == pytest.approx(last.get_width())
    drawn = [line.get_xdata().tolist() for line in shares.lines[::3]]
    assert drawn == shift[["share_before", "share_after"]].to_numpy().tolist()


def test_every_step_of_the_waterfall_has_its_interval_at_its_end(categories):
    shift = bottleneck_shift(*categories.values())
    wide = shift.assign(low_ms=shift["delta_ms"] - 3.0, high_ms=shift["delta_ms"] + 3.0)
    figure = plot_shift(wide, ("off", "on"))
    waterfall = figure.axes[1]
    spans = [line for line in waterfall.lines if len(set(line.get_ydata())) == 1]
    ends = shift["baseline_ms"].sum() + shift["delta_ms"].cumsum()
    drawn = [tuple(span.get_xdata()) for span in spans]
    assert drawn == [pytest.approx((end - 3.0, end + 3.0)) for end in ends]
    assert waterfall.get_xlim()[1] > max(high for _, high in drawn)
    assert "95 % interval" in figure.alt_text
    assert_tidy(figure)
    assert "interval" not in plot_shift(shift).alt_text


def test_a_change_too_small_to_divide_has_no_parts(categories):
    same = categories["off"]
    other = same.assign(mean_ms=same["mean_ms"] + [0.001, -0.0011, 0, 0, 0])
    words = words_of(plot_shift(bottleneck_shift(same, other)))
    assert not any("ms ·" in word for word in words)


def test_every_latency_is_a_dot_and_the_median_has_its_interval(latencies):
    statistics = describe_latencies(latencies)
    (axis,) = plot_latencies(latencies, statistics).axes
    dots, interval = axis.collections[0], axis.collections[1]
    own = latencies[latencies["experiment"] == "off"]
    assert list(dots.get_offsets()[:, 0]) == pytest.approx(list(own["cpu_ns"] / 1e6))
    low, high = interval.get_datalim(axis.transData).intervalx
    assert (low, high) == pytest.approx(tuple(statistics.loc[0, ["low", "high"]]))
    assert axis.lines[0].get_xdata()[0] == statistics.loc[0, "median"]
    assert "untraced (ms, CPU time)" in axis.get_xlabel()
    (axis,) = plot_latencies(latencies.assign(traced=True), statistics).axes
    assert "inference, traced" in axis.get_xlabel()


def test_a_lone_outlier_does_not_squash_the_rest(latencies):
    slow = latencies.copy()
    slow.loc[0, "cpu_ns"] = 900_000_000
    figure = plot_latencies(slow, describe_latencies(slow))
    assert figure.axes[0].get_xlim()[1] < 20
    assert any("beyond" in word for word in words_of(figure))


def test_operators_are_bars_with_their_spread(ledgers):
    operators = summarize_operators(ledgers[0])
    (axis,) = plot_operators(operators, top=5).axes
    assert [bar.get_width() for bar in axis.patches] == list(operators["mean_ms"].head(5))
    (whiskers,) = axis.containers[0].lines[2]
    (start, _), (end, _) = whiskers.get_segments()[0]
    assert end - start == pytest.approx(2 * operators.loc[0, "std_ms"])
    assert to_hex(axis.patches[2].get_facecolor()).upper() == COLORS["GEMM"]


def test_operators_of_two_experiments_are_paired_by_key(ledgers):
    before, after = map(summarize_operators, ledgers)
    figure = plot_operators(before, after[after["key"] != "delegated/11"], top=8)
    (axis,) = figure.axes
    assert len(axis.patches) == 16
    assert [bar.get_width() for bar in axis.patches[:8]] == list(before["mean_ms"].head(8))
    wanted = after.set_index("key")["mean_ms"].reindex(before["key"].head(8)).copy()
    wanted["delegated/11"] = 0
    assert [bar.get_width() for bar in axis.patches[8:]] == list(wanted)
    assert f"{format_ms(before.loc[7, 'mean_ms'])} → {MISSING}" in words_of(figure)


def test_an_operator_of_the_candidate_alone_is_shown_too(ledgers):
    before, after = map(summarize_operators, ledgers)
    figure = plot_operators(before[before["key"] != "delegated/3"], after)
    assert any(word.startswith(f"{MISSING} → ") for word in words_of(figure))


def test_speedups_have_intervals_and_only_shown_ones_are_solid(ledgers, latencies):
    comparison = pd.concat(
        [
            compare_latencies(latencies, "off", "on", control="again"),
            compare_parts("category", *ledgers),
        ]
    )
    (axis,) = plot_speedups(comparison).axes
    dots = [line for line in axis.lines if line.get_marker() == "o"]
    assert [dot.get_xdata()[0] for dot in dots] == list(comparison["speedup"])
    hollow = [dot.get_markerfacecolor() == "white" for dot in dots]
    assert hollow == [o in ("equivalent", "inconclusive") for o in comparison["outcome"]]
    intervals = [tuple(line.get_xdata()) for line in axis.lines[1::2]]
    assert intervals == list(zip(comparison["low"], comparison["high"], strict=True))
    assert 1.0 in axis.get_xticks()


# Figures stay readable.


@pytest.mark.parametrize("count", [1, 2, 8])
def test_categories_of_many_experiments_stay_tidy(count):
    rungs = {
        f"rung {n}, {'with a long name ' * (n % 2)}": summarize_categories(
            synthetic_ledger({"Convolution": 1 + 3 * n}, runs=2, seed=n)
        )
        for n in range(count)
    }
    assert_tidy(plot_categories(rungs))


@pytest.mark.parametrize("factor", [0.2, 1.0, 3.0, 50.0])
def test_shifts_stay_tidy(factor):
    after = synthetic_ledger({"Convolution": factor, "GEMM": factor}, seed=1)
    shift = bottleneck_shift(summarize_categories(synthetic_ledger()), summarize_categories(after))
    assert_tidy(plot_shift(shift, ("avx512 off, as long as it gets", "avx512 on")))


def test_the_case_study_stays_tidy():
    study = load_case_study("squeezesam")
    assert_tidy(plot_categories(study.categories, title=study.title))
    shift = bottleneck_shift(*study.categories.values())
    assert_tidy(plot_shift(shift, tuple(study.categories), title=study.title))


def test_operators_with_long_names_stay_tidy(ledgers):
    operators = summarize_operators(ledgers[0])
    operators.loc[1, "name"] = LONG
    assert_tidy(plot_operators(operators))
    assert_tidy(plot_operators(operators, summarize_operators(ledgers[1])))


def test_labels_of_operators_keep_clear_of_the_whiskers(ledgers):
    operators = summarize_operators(ledgers[0]).assign(std_ms=0.8)
    for figure in (plot_operators(operators), plot_operators(operators, operators)):
        (axis,) = figure.axes
        boxes = texts_of(figure)
        labels = {text.xy[1]: boxes[text] for text in axis.texts}
        for row, ms in enumerate(operators["mean_ms"]):
            assert labels[row].x0 > axis.transData.transform((ms + 0.8, row))[0]


@pytest.mark.parametrize("count", [1, 8])
def test_latencies_and_speedups_stay_tidy(count):
    names = {f"experiment number {n}": 5.0 + n for n in range(count)}
    latencies = synthetic_latencies(names, processes=2, rounds=2)
    assert_tidy(plot_latencies(latencies, describe_latencies(latencies)))
    first = next(iter(names))
    comparison = pd.concat([compare_latencies(latencies, first, name) for name in names])
    assert_tidy(mark_figure(plot_speedups(comparison), "emulated: says nothing of speed"))


@pytest.mark.parametrize("ratios", [(1.0, 1.01), (0.3, 1.2), (0.01, 90.0), (math.nan, 1.0)])
def test_speedups_of_any_size_have_a_few_round_ticks(ratios):
    rows = [
        {"level": "operator", "name": "x", "speedup": r, "low": r * 0.99, "high": r * 1.01,
         "outcome": "faster"}
        for r in ratios
    ]  # fmt: skip
    figure = plot_speedups(pd.DataFrame(rows))
    assert_tidy(figure)
    assert 3 <= len(figure.axes[0].get_xticks()) <= 16


def test_nothing_measured_draws_nothing():
    assert plot_operators(summarize_operators(synthetic_ledger())[:0]).axes
    assert plot_categories({}).axes


def test_ink_is_readable_on_every_color():
    def luminance(color):
        channels = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in color]
        return np.dot(channels, (0.2126, 0.7152, 0.0722))

    for category in [*COLORS, "anything else"]:
        color = color_of(category)
        pair = sorted(luminance(to_rgb(c)) + 0.05 for c in (color, ink_on(color)))
        assert pair[1] / pair[0] > 3


def test_a_figure_displays_itself_sharp_at_the_width_of_the_page(categories, monkeypatch):
    shown = []
    monkeypatch.setattr(
        "workbench.plots.style.display", lambda *args, **more: shown.append((args, more))
    )
    plot_categories(categories)._ipython_display_()
    ((data,), more) = shown[0]
    assert data["image/png"].startswith(b"\x89PNG")
    assert more["metadata"]["image/png"]["width"] == 990


@pytest.mark.parametrize(
    ("ms", "text"),
    [(8.314, "8.31 ms"), (1163, "1163 ms"), (0.8, "0.800 ms"), (0.0345, "34.5 µs"), (0, "0.00 ms"),
     (math.nan, MISSING)],
)  # fmt: skip
def test_milliseconds(ms, text):
    assert format_ms(ms) == text


def test_numbers_have_a_true_minus_and_no_negative_zero():
    assert format_number(-1.26, 1) == "\N{MINUS SIGN}1.3"
    assert format_number(-0.001, 2) == "0.00"
    assert format_number(2, 1, "+") == "+2.0"
    assert format_share(0.123) == "12 %"


def test_both_ends_of_a_long_name_are_kept():
    short = shorten(LONG, 40)
    assert len(short) == 40
    assert short.startswith("Fully Connected (NC") and short.endswith("GEMM #123")
    assert shorten("short", 40) == "short"


# Tables.


def test_a_table_has_units_and_sensible_digits(ledgers):
    text = show_table(
        summarize_operators(ledgers[0]), ["name", "mean_ms", "share", "calls"]
    ).markdown
    assert text.splitlines()[0] == "| name | mean (ms/run) | share (%) | calls (1/run) |"
    assert text.splitlines()[2] == "| Convolution (NHWC, F32) IGEMM #3 | 2.142 | 31.9 | 1 |"


def test_the_interval_of_a_speedup_is_a_ratio_that_of_a_median_is_a_time(latencies):
    ratio = show_table(compare_latencies(latencies, "off", "on"), ["speedup", "low"]).markdown
    assert ratio.splitlines()[0] == "| speedup | low |"
    assert ratio.count("x |") == 2
    time = show_table(describe_latencies(latencies), ["median", "low"]).markdown
    assert time.splitlines()[0] == "| median (ms) | low (ms) |"


def test_shares_of_samples_have_their_interval_in_the_same_unit():
    frame = pd.DataFrame({"share": [0.97], "low": [0.9], "high": [0.99], "q": [0.0]})
    text = str(show_table(frame))
    assert "| share (%) | low (%) | high (%) | q |" in text
    assert "| 97.0 | 90.0 | 99.0 | &lt; 0.001 |" in text


def test_sizes_and_ratios_have_units_and_long_names_may_be_broken():
    frame = pd.DataFrame(
        {"size_mb": [1.5], "sqnr_db": [40.0], "file": ["models/of/a/transformer.py:20"]}
    )
    table = show_table(frame)
    assert "| size (MB) | sqnr (dB) | file |" in str(table)
    assert "models/<wbr>of/<wbr>a/<wbr>transformer.py:20" in table.html
    assert "wbr" not in str(table)


def test_what_a_frame_holds_is_never_markup():
    frame = pd.DataFrame({"<i>": ["<script>alert(1)</script> | x\ny"], "n": [math.nan]})
    table = show_table(frame, caption="a <b> & c")
    for text in (table.html, table.markdown, table._repr_html_(), str(table)):
        assert "<script>" not in text and "<i>" not in text and "<b>" not in text
    assert table.markdown.splitlines()[-1].count("\\|") == 1
    assert table.markdown.splitlines()[-1].endswith(f"| {MISSING} |")


def test_a_table_may_be_cut(ledgers):
    operators = summarize_operators(ledgers[0])
    assert len(show_table(operators, rows=3).markdown.splitlines()) == 5
    with pytest.raises(UsageError, match="did you mean 'mean_ms'"):
        show_table(operators, ["mean"])


def test_the_case_study_has_a_table_with_gaps():
    study = load_case_study("squeezesam")
    text = show_table(study.categories["FP16, SME2 off"]).markdown
    assert "| not published | 250.40 | 21.5 |" in text
    assert f"| {MISSING} |" in text


# Widgets.


def test_without_a_person_the_first_choices_are_shown():
    seen = explore(lambda **chosen: chosen, headless=True, top=range(5, 9), of=["a", "b"], log=True)
    assert seen == {"top": 5, "of": "a", "log": True}


def test_with_a_person_every_choice_has_a_control_that_redraws():
    drawn = []
    box = explore(lambda **chosen: drawn.append(chosen), top=range(5, 9), of=["a", "b"], log=True)
    slider, menu, check_box = box.children[0].children
    assert [type(c).__name__ for c in box.children[0].children] == [
        "SelectionSlider", "Dropdown", "Checkbox",
    ]  # fmt: skip
    assert drawn == [{"top": 5, "of": "a", "log": True}]
    slider.value, menu.value, check_box.value = 7, "b", False
    assert drawn[-1] == {"top": 7, "of": "b", "log": False}
    assert len(drawn) == 4


def test_what_a_mapping_holds_is_chosen_by_its_keys_and_a_widget_is_locked_as_it_is():
    frames = {"a": pd.DataFrame({"x": [1]}), "b": pd.DataFrame({"x": [2]})}
    knob = widgets.IntSlider(value=3)
    seen = []
    box = explore(lambda of, n: seen.append((of["x"].iloc[0], n)), of=frames, n=knob)
    box.children[0].children[0].value, knob.value = "b", 4
    assert seen == [(1, 3), (2, 3), (2, 4)]
    assert explore(lambda of: of["x"].iloc[0], headless=True, of=frames) == 1


def test_a_slider_ascends_and_starts_where_it_is_told():
    box = explore(lambda depth: None, depth=[3, 1, 2])
    (slider,) = box.children[0].children
    assert (list(slider.options), slider.value) == ([1, 2, 3], 3)


def test_what_cannot_be_shown_is_said_in_a_line(capsys):
    def refuse(of):
        raise UsageError(f"not {of}")

    explore(refuse, of=["a", "b"])
    assert "HTML" in capsys.readouterr().out
    with pytest.raises(UsageError, match="not a"):
        explore(refuse, headless=True, of=["a", "b"])


def test_nothing_to_choose_from():
    with pytest.raises(UsageError, match="nothing to choose from for 'top'"):
        explore(print, top=[])


def test_a_dollar_in_a_name_starts_no_formula():
    name = r"a $\frac{ b $"
    part = pd.DataFrame(
        {"category": ["Convolution"], "mean_ms": [1.0], "share": [1.0], "operators": [1]}
    )
    figure = plot_categories({name: part}, title=name)
    assert figure.to_png()
    assert name in figure.alt_text

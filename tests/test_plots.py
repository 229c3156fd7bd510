"""Figures show the data that they are given, and stay readable."""

import math

import numpy as np
import pandas as pd
import pytest
from changed_runs import changed
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.text import Text
from recorded import recorded
from scipy import stats
from synthetic import synthetic_latencies, synthetic_ledger

import workbench as wb
from workbench.analysis.compare import compare_latencies, compare_parts
from workbench.analysis.operators import summarize_categories, summarize_operators
from workbench.analysis.statistics import describe_latencies
from workbench.analysis.what_if import bottleneck_shift, predict_what_if, rank_bottlenecks
from workbench.datasets import load_case_study
from workbench.frames import MISSING, format_ms, format_number, format_share, mark_emulated
from workbench.plots.categories import plot_categories
from workbench.plots.latencies import plot_iterations, plot_latencies
from workbench.plots.layers import lay_out, plot_layers
from workbench.plots.machine_code import CODE_COLORS, plot_machine_code
from workbench.plots.operators import plot_operators
from workbench.plots.roofline import plot_roofline
from workbench.plots.shift import plot_shift
from workbench.plots.speedups import plot_speedups
from workbench.plots.style import (
    COLORS,
    FASTER,
    INK,
    MODULES,
    PLAIN,
    SERIES,
    SLOWER,
    color_of,
    color_of_module,
    ink_on,
    shorten,
    write_ms,
)
from workbench.plots.sweeps import plot_isa_levels, plot_threads
from workbench.plots.what_if import describe_what_if, plot_bottlenecks, plot_what_if

LONG = "Fully Connected (NC, QD8, F32, QC8W) with a name that is too long for any axis GEMM #123"


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
    scales = [scale for axis in figure.axes for scale in (axis.xaxis, axis.yaxis)]
    outside = {
        tick.label1
        for scale in scales
        for tick, at in zip(scale.get_major_ticks(), scale.get_majorticklocs(), strict=True)
        if not min(scale.get_view_interval()) <= at <= max(scale.get_view_interval())
    }
    written = [
        text
        for text in figure.findobj(Text)
        if text.get_text().strip() and text.get_visible() and text not in outside
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


def test_the_interval_of_every_category_has_its_own_lane(categories):
    wide = categories["off"].assign(low_ms=0.0, high_ms=9.0)
    (axis,) = plot_categories({"off": wide}).axes
    assert len({line.get_ydata()[0] for line in axis.lines}) == len(wide)
    assert axis.get_xlim()[1] >= max(line.get_xdata()[1] for line in axis.lines)


@pytest.mark.parametrize("columns", [[], ["low_ms", "high_ms"]])
def test_where_no_interval_is_known_none_is_drawn(categories, columns):
    bare = categories["off"].drop(columns=["low_ms", "high_ms"])
    figure = plot_categories({"off": bare.assign(**dict.fromkeys(columns, math.nan))})
    assert not figure.axes[0].lines and "interval" not in figure.alt_text


def test_every_category_is_named_in_its_segment_or_in_the_key(categories):
    words = " ".join(words_of(plot_categories(categories)))
    assert all(words.count(name) >= 1 for name in COLORS)


def test_the_case_study_shows_every_published_latency():
    study = load_case_study("squeezesam")
    words = " ".join(words_of(plot_categories(study.categories, title=study.title)))
    assert all(f"{total} ms" in words for total in (1163, 298, 556, 304))
    assert all(f"{share} %" in words for share in (76, 40, 56, 41))


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


def test_every_latency_is_a_dot_and_the_latency_has_its_interval(latencies):
    statistics = describe_latencies(latencies)
    (axis,) = plot_latencies(latencies).axes
    dots, interval = axis.collections[0], axis.collections[1]
    own = latencies[latencies["experiment"] == "off"]
    assert list(dots.get_offsets()[:, 0]) == pytest.approx(list(own["cpu_ns"] / 1e6))
    low, high = interval.get_datalim(axis.transData).intervalx
    assert (low, high) == pytest.approx(tuple(statistics.loc[0, ["low", "high"]]))
    assert axis.lines[0].get_xdata()[0] == statistics.loc[0, "latency"]
    assert "untraced (ms, CPU time)" in axis.get_xlabel()
    (axis,) = plot_latencies(latencies.assign(traced=True)).axes
    assert "inference, traced" in axis.get_xlabel()


def test_a_lone_outlier_does_not_squash_the_rest(latencies):
    slow = latencies.copy()
    slow.loc[0, "cpu_ns"] = 900_000_000
    figure = plot_latencies(slow)
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
    assert f"{write_ms(before.loc[7, 'mean_ms'])} → {MISSING}" in words_of(figure)


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
    colors = [dot.get_color() for dot in dots]
    assert colors == [FASTER if o == "faster" else INK for o in comparison["outcome"]]
    intervals = [tuple(line.get_xdata()) for line in axis.lines[1::2]]
    assert intervals == list(zip(comparison["low"], comparison["high"], strict=True))
    assert 1.0 in axis.get_xticks()


# Figures stay readable.


@pytest.mark.parametrize("count", [1, 2, 8])
def test_categories_of_many_experiments_stay_tidy(count):
    levels = {
        f"level {n}, {'with a long name ' * (n % 2)}": summarize_categories(
            synthetic_ledger({"Convolution": 1 + 3 * n}, runs=2, seed=n)
        )
        for n in range(count)
    }
    assert_tidy(plot_categories(levels))


@pytest.mark.parametrize("factor", [0.2, 1.0, 3.0, 50.0])
def test_shifts_stay_tidy(factor):
    after = synthetic_ledger({"Convolution": factor, "GEMM": factor}, seed=1)
    shift = bottleneck_shift(summarize_categories(synthetic_ledger()), summarize_categories(after))
    assert_tidy(plot_shift(shift, ("avx512 off, as long as it gets", "avx512 on")))


def test_the_case_study_stays_tidy():
    study = load_case_study("squeezesam")
    assert_tidy(plot_categories(study.categories, title=study.title))
    for dtype in ("FP16", "INT8"):
        names = (f"{dtype}, SME2 off", f"{dtype}, SME2 on")
        shift = bottleneck_shift(*(study.categories[name] for name in names))
        assert_tidy(plot_shift(shift, names, title=study.title))


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
    assert_tidy(plot_latencies(latencies))
    first = next(iter(names))
    comparison = pd.concat([compare_latencies(latencies, first, name) for name in names])
    assert_tidy(plot_speedups(mark_emulated(comparison)))


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


def test_a_dollar_in_a_name_starts_no_formula():
    name = r"a $\frac{ b $"
    part = pd.DataFrame(
        {"category": ["Convolution"], "mean_ms": [1.0], "share": [1.0], "operators": [1]}
    )
    figure = plot_categories({name: part}, title=name)
    assert figure.to_png()
    assert name in figure.alt_text


# The nouns.


@pytest.fixture(scope="module")
def small():
    return recorded()


def test_nouns_and_their_frames_make_the_same_figures(small):
    ab = small.compare()
    before, after = ab.baseline, ab.candidate
    sides = {m.label: m.categories for m in (before, after)}
    one_thread = small.latencies[small.latencies["threads"] == after.threads]
    bottlenecks = wb.rank_bottlenecks(after.ledger, by="layer")
    for noun, frame in (
        (plot_latencies(small), plot_latencies(small.latencies)),
        (plot_iterations(small), plot_iterations(one_thread)),
        (plot_categories(ab), plot_categories(sides)),
        (plot_shift(ab), plot_shift(ab.shift, (before.label, after.label))),
        (plot_speedups(ab), plot_speedups(ab.speedups)),
        (plot_operators(after), plot_operators(after.operators)),
        (plot_operators(ab), plot_operators(before.operators, after.operators)),
        (plot_bottlenecks(after, by="layer"), plot_bottlenecks(bottlenecks)),
        (
            plot_what_if(after, {"GEMM": 2}),
            plot_what_if(wb.predict_what_if(after.ledger, {"GEMM": 2})),
        ),
    ):
        assert noun.alt_text == frame.alt_text
        assert_tidy(noun)


def test_a_run_is_drawn_without_its_controls(small):
    labels = [label.get_text() for label in plot_categories(small).axes[0].get_yticklabels()]
    assert labels == ["avx512_off", "avx512_on"]
    unet = plot_categories(recorded("unet_small")).axes[0]
    assert [label.get_text() for label in unet.get_yticklabels()] == [
        f"avx512_{isa}, {count}" for count in ("1 thread", "2 threads") for isa in ("off", "on")
    ]


def test_what_a_run_lacks_is_a_sentence(small):
    bare = changed(small.subject, layers=None)
    assert "Layers unknown" in str(plot_layers(bare))
    assert "not sampled" in str(plot_machine_code(small.compare()))
    assert "--isa-ladder" in str(plot_isa_levels(small))
    assert "--threads" in str(plot_threads(small))
    toy = recorded("toy_cnn")
    assert "workbench roofline" in str(plot_roofline(toy.subject))


def test_operators_are_labelled_by_layer_and_ordinal(small):
    operators = small.subject.operators
    labels = [
        label.get_text() for label in plot_operators(operators, top=3).axes[0].get_yticklabels()
    ]
    assert labels[0].startswith("classifier.3 · Fully Connected") and labels[0].endswith("GEMM #42")
    assert labels[1] == "DELEGATE_CALL"


def test_the_colour_of_a_module_depends_on_its_path_only():
    assert color_of_module("") == color_of_module(None) == color_of_module("(no layer)")
    assert color_of_module("features.3") == color_of_module("features.3")
    assert color_of_module("features.3") != color_of_module("features.3.block.0")
    assert color_of_module("a.b1.c") == color_of_module("a.b1.d")


def test_category_colours_are_for_categories_alone():
    others = {*SERIES, *MODULES, FASTER, SLOWER, PLAIN, *CODE_COLORS.values()}
    assert not others & set(COLORS.values())


@pytest.mark.parametrize(
    ("ms", "text"), [(8.314, "8.31 ms"), (0.0345, "0.0345 ms"), (math.nan, MISSING)]
)
def test_times_along_an_axis_are_in_one_unit(ms, text):
    assert write_ms(ms) == text


# ISA levels.


@pytest.fixture(scope="module")
def swept():
    return recorded("squeezesam")


def test_every_level_is_a_row(swept):
    levels = swept.isa_levels
    times, steps = plot_isa_levels(swept).axes
    assert [label.get_text() for label in times.get_yticklabels()] == list(levels["level"])
    assert [bar.get_width() for bar in times.patches] == list(levels["latency_ms"])
    intervals = [tuple(line.get_xdata()) for line in times.lines]
    ends = levels[["latency_low_ms", "latency_high_ms"]]
    assert intervals == list(ends.itertuples(index=False, name=None))
    dots = [line.get_xdata()[0] for line in steps.lines if line.get_marker() == "o"]
    assert dots == list(levels["speedup"].dropna())


def test_where_no_interval_of_a_level_is_known_none_is_written(swept):
    ends = ["low", "high", "total_low", "total_high"]
    levels = swept.isa_levels.assign(**dict.fromkeys(ends, math.nan))
    figure = plot_isa_levels(levels)
    assert " to " not in figure.alt_text
    assert figure.to_png()


def test_every_thread_count_of_a_run_is_a_point():
    unet = recorded("unet_small")
    (axis,) = plot_threads(unet).axes
    solid = [line.get_ydata() for line in axis.lines if line.get_marker() == "o"]
    assert np.concatenate(solid).tolist() == unet.scaling["latency_ms"].tolist()


# Layers.


TREE = pd.DataFrame(
    [
        ("", 0, 1.0, 9.0),
        ("b", 1, 0.5, 6.0),
        ("b.1", 2, 3.5, 3.5),
        ("b.0", 2, 2.0, 2.0),
        ("a", 1, 2.0, 2.0),
        ("a.idle", 2, 0.0, 0.0),
        (None, 0, 1.0, 1.0),
    ],
    columns=["module", "depth", "own_ms", "total_ms"],
).assign(
    share=lambda tree: tree["total_ms"] / 10,
    low_ms=lambda tree: 0.98 * tree["total_ms"],
    high_ms=lambda tree: 1.02 * tree["total_ms"],
)


@pytest.fixture(scope="module", params=["mobilenet_v3_small", "vit_tiny"])
def run(request):
    return recorded(request.param)


def test_boxes_lie_below_the_module_that_they_are_in():
    boxes = lay_out(TREE).set_index("name")
    assert boxes["left"].to_dict() == {
        "(the model)": 0,
        "b": 0,
        "1": 0,
        "0": 3.5,
        "a": 6,
        "(no layer)": 9,
    }
    assert boxes["width"].to_dict()["b"] == 6


def test_widths_of_recorded_trees_are_their_times(run):
    layers = run.subject.layers
    boxes = lay_out(layers)
    assert boxes.loc[boxes["depth"] == 0, "width"].sum() == pytest.approx(layers["own_ms"].sum())
    ends = boxes.set_index("module")
    for box in boxes[boxes["depth"] > 0].itertuples():
        parent = ends.loc[box.module.rpartition(".")[0]]
        assert parent["left"] - 1e-9 <= box.left
        assert box.left + box.width <= parent["left"] + parent["width"] + 1e-9
    for _, level in boxes.groupby("depth"):
        edges = level.sort_values("left")
        assert (np.diff(edges["left"]) >= edges["width"].to_numpy()[:-1] - 1e-9).all()


def test_boxes_of_a_measurement_follow_the_execution(run):
    on, first = run.subject, run.subject.ledger["key"].unique().tolist()
    placed = on.operators.assign(place=on.operators["key"].map(first.index))
    boxes = lay_out(on.layers, placed)
    drawn = boxes[boxes["category"].notna()].sort_values("left")
    assert drawn["width"].sum() == pytest.approx(on.operators["mean_ms"].sum())
    modules = boxes[boxes["category"].isna()]
    top = modules[modules["depth"] == 1].sort_values("left")["module"].tolist()
    slowest = placed[placed["module"].notna()].assign(
        top=lambda t: t["module"].str.split(".").str[0]
    )
    order = slowest.drop_duplicates("top").sort_values("place")["top"].tolist()
    assert top == [name for name in order if name]
    shallow = lay_out(on.layers, placed, depth=1)
    assert shallow["depth"].max() == 2
    assert shallow["width"][shallow["category"].notna()].sum() == pytest.approx(
        drawn["width"].sum()
    )
    assert plot_layers(on).legends


def test_a_tree_is_one_collection_as_wide_as_e2e(run):
    layers = run.subject.layers
    figure = plot_layers(layers)
    (axis,) = figure.axes
    boxes, _ = axis.collections
    corners = np.concatenate([path.vertices for path in boxes.get_paths()])
    assert corners[:, 0].max() == pytest.approx(layers["own_ms"].sum())
    assert not axis.patches
    shallow = plot_layers(layers, depth=1)
    assert len(shallow.axes[0].collections[0].get_paths()) < len(boxes.get_paths())
    assert "(the model itself)" in figure.alt_text


def test_the_interval_of_e2e_is_that_of_its_runs(run):
    layers = run.subject.layers
    assert layers[["low_ms", "high_ms"]].notna().all(axis=None)
    ledger = run.subject.ledger
    inside = ledger[ledger["layer"] != "(no layer)"]
    restarts = (
        inside.groupby(["process", "run"])["duration_ns"].sum().groupby(level="process").mean()
    )
    count = len(restarts)
    half = stats.t.ppf(0.975, count - 1) * restarts.std() / np.sqrt(count) / 1e6
    top = layers.iloc[0]
    assert (top["high_ms"] - top["low_ms"]) / 2 == pytest.approx(half)
    assert top["total_ms"] == pytest.approx(restarts.mean() / 1e6, rel=0.01)


def test_boxes_bear_their_intervals():
    figure = plot_layers(TREE)
    _, bars = figure.axes[0].collections
    ends = [tuple(segment[:, 0]) for segment in bars.get_segments()]
    assert pytest.approx((8.82, 9.18)) in ends
    assert pytest.approx((5.88, 6.12)) in ends
    assert "9.00 ± 0.18 ms" in figure.alt_text
    bare = plot_layers(TREE.assign(low_ms=np.nan, high_ms=np.nan))
    assert not bare.axes[0].collections[1].get_segments()
    assert "±" not in bare.alt_text


def test_an_empty_tree_is_an_empty_figure():
    assert not plot_layers(TREE[:0]).axes[0].collections[0].get_paths()


# What-if.


@pytest.fixture(scope="module")
def ledger():
    return synthetic_ledger(processes=4)


def test_bars_are_as_long_as_the_times(ledger):
    what_if = predict_what_if(ledger, {"GEMM": 2, "Other": math.inf})
    figure = plot_what_if(what_if)
    axis = figure.axes[0]
    lengths = {0: 0.0, 1: 0.0}
    for bar in axis.patches:
        lengths[round(bar.get_y() + bar.get_height() / 2)] += bar.get_width()
    e2e = what_if.iloc[0]
    assert lengths[0] == pytest.approx(e2e["measured_ms"])
    assert lengths[1] == pytest.approx(e2e["predicted_ms"])
    (band,) = axis.lines
    assert list(band.get_xdata()) == pytest.approx([e2e["low_ms"], e2e["high_ms"]])
    assert f"{e2e['speedup']:.2f}x" in figure.alt_text
    assert "GEMM 2x, Other free" in figure.alt_text


def test_what_stays_is_one_bar_where_parts_are_many(ledger):
    key = ledger["key"].iloc[3]
    figure = plot_what_if(predict_what_if(ledger, {key: 3}, by="key"))
    assert len(figure.axes[0].patches) == 4
    assert "all else" in figure.alt_text


def test_the_whole_band_is_in_sight_where_nothing_becomes_faster(ledger):
    (axis,) = plot_what_if(predict_what_if(ledger, {})).axes
    (band,) = axis.lines
    assert axis.get_xlim()[1] >= band.get_xdata()[1] > predict_what_if(ledger, {})["measured_ms"][0]


def test_nothing_faster_is_said_to_be_so(ledger):
    assert describe_what_if(predict_what_if(ledger, {})).startswith("Nothing faster: 6.")


def test_what_is_assumed_is_named_as_far_as_it_fits(ledger):
    factors = {"Convolution": 2, "GEMM": 2}
    assert describe_what_if(predict_what_if(ledger, factors)).endswith("Convolution, GEMM 2x")
    many = dict(zip(COLORS, (1.5, 2, 3, 4, 6), strict=True))
    assert describe_what_if(predict_what_if(ledger, many)).endswith("if 5 parts are faster")


def test_without_repetitions_no_band_is_drawn():
    off = load_case_study("squeezesam").categories["FP16, SME2 off"]
    figure = plot_what_if(predict_what_if(off, {"Convolution": 9}))
    assert not figure.axes[0].lines
    assert "to" not in figure.alt_text.split(" if ")[0]


def test_ceilings_are_drawn_from_what_is_left_to_what_was_measured(ledger):
    table = rank_bottlenecks(ledger)
    figure = plot_bottlenecks(table, top=3)
    (axis,) = figure.axes
    runs = ledger.groupby(["process", "run"])["duration_ns"].sum()
    e2e = runs.mean() / 1e6
    for bar, row in zip(axis.patches, table.itertuples(), strict=False):
        assert bar.get_x() == pytest.approx(row.free_ms)
        assert bar.get_x() + bar.get_width() == pytest.approx(e2e)
    dots = [line.get_xdata()[0] for line in axis.lines if line.get_marker() == "o"]
    assert dots == pytest.approx(table["faster_ms"].head(3).tolist())
    assert [label.get_text() for label in axis.get_yticklabels()] == table["name"].head(3).tolist()

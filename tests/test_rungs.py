"""The slider over the ISA ladder: what each level bought, and where."""

import math

import ipywidgets as widgets
import pandas as pd
import pytest
from changed_runs import changed, with_record
from matplotlib.colors import to_hex

import workbench as wb
from workbench.analysis.compat import analyze_run
from workbench.datasets import sample_run
from workbench.explorer.widgets import show_rung
from workbench.frames import EMULATED
from workbench.plots.style import COLORS
from workbench.plots.sweeps import describe_rung
from workbench.plots.tables import Sheet


@pytest.fixture(scope="module")
def climbed():
    return analyze_run(sample_run("squeezesam"))


def drawn(axis):
    return [bar.get_width() for bar in axis.patches]


@pytest.mark.parametrize("level", ["sse41", "avx2", "native"])
def test_a_level_stands_among_all_and_its_categories_beside_those_of_the_lowest(climbed, level):
    figure, *_ = show_rung(climbed, level, 1).parts
    times, parts = figure.axes
    ladder = climbed.ladder
    assert [label.get_text() for label in times.get_yticklabels()] == list(ladder["level"])
    assert drawn(times) == list(ladder["latency_ms"])
    intervals = [tuple(line.get_xdata()) for line in times.lines]
    ends = ladder[["latency_low_ms", "latency_high_ms"]]
    assert intervals == list(ends.itertuples(index=False, name=None))
    colors = [to_hex(bar.get_facecolor()) for bar in times.patches]
    chosen = colors.pop(list(ladder["level"]).index(level))
    assert {chosen} & set(colors) == set() and len(set(colors)) == 1
    bars = [climbed.select(climbed.categories, name, 1) for name in ("sse2", level)]
    both = pd.concat(bars)
    assert drawn(parts) == list(both["mean_ms"])
    intervals = [tuple(line.get_xdata()) for line in parts.lines]
    assert intervals == list(both[["low_ms", "high_ms"]].itertuples(index=False, name=None))
    solid = [to_hex(bar.get_facecolor()).upper() for bar in parts.patches[5:]]
    assert solid == list(COLORS.values())


def test_what_a_level_bought_is_in_its_title_and_table(climbed):
    row = climbed.ladder.set_index("level").loc["native"]
    title = describe_rung(climbed.ladder, "native")
    assert (
        f"{row['total']:.2f}x ({row['total_low']:.2f} to {row['total_high']:.2f}) over sse2"
        in title
    )
    assert f"{row['speedup']:.2f}x" in title and title.endswith("over avx512-novnni, faster")
    sheet = show_rung(climbed, "native", 1)
    assert title in sheet.parts[0].alt_text
    assert "native has avx512vnni" in str(sheet)
    first = climbed.comparisons[0]
    assert (first.pair.baseline, first.pair.candidate) == ("sse2", "native")
    for change in first.categories.itertuples():
        cells = (
            f"| {change.speedup:.2f}x | {change.low:.2f}x | {change.high:.2f}x | {change.outcome} |"
        )
        assert cells in str(sheet)


def test_the_lowest_level_is_compared_with_nothing(climbed):
    sheet = show_rung(climbed, "sse2", 1)
    assert len(drawn(sheet.parts[0].axes[1])) == 5
    assert "speedup" not in str(sheet)


def test_the_first_step_is_said_once(climbed):
    assert describe_rung(climbed.ladder, "sse41").count("over") == 1


def test_headless_the_highest_level_is_shown(climbed):
    sheet = wb.explore_ladder(climbed, headless=True)
    assert isinstance(sheet, Sheet)
    assert sheet.parts[0].alt_text == show_rung(climbed, "native", 1).parts[0].alt_text


def test_the_slider_climbs_from_the_lowest_to_the_highest(climbed, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "workbench.explorer.widgets.show_rung", lambda _, *chosen: seen.append(chosen) or Sheet()
    )
    knobs, _ = wb.explore_ladder(climbed).children
    (slider,) = knobs.children
    assert isinstance(slider, widgets.SelectionSlider)
    assert list(slider.options) == list(climbed.ladder["level"])
    slider.value = "avx2"
    assert seen == [("native", 1), ("avx2", 1)]


def test_several_thread_counts_are_to_choose_from(climbed, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "workbench.explorer.widgets.show_rung", lambda _, *chosen: seen.append(chosen) or Sheet()
    )
    both = pd.concat([climbed.ladder, climbed.ladder.assign(threads=2)])
    knobs, _ = wb.explore_ladder(changed(climbed, isa_levels=both)).children
    knobs.children[1].value = 2
    assert seen == [("native", 1), ("native", 2)]


def test_of_an_emulated_ladder_no_level_is_said_to_be_faster(climbed):
    emulated = with_record(climbed, emulated=True)
    figure, _, table = show_rung(emulated, "native", 1).parts
    for text in (figure.alt_text, str(table)):
        assert EMULATED in text and "faster" not in text


def test_where_no_interval_is_known_none_is_written(climbed):
    ends = ["low", "high", "total_low", "total_high"]
    ladder = climbed.ladder.assign(**dict.fromkeys(ends, math.nan))
    categories = climbed.categories.assign(low_ms=math.nan, high_ms=math.nan)
    sheet = show_rung(changed(climbed, isa_levels=ladder, categories=categories), "native", 1)
    assert " to " not in sheet.parts[0].alt_text
    assert sheet.parts[0].to_png()


def test_without_a_ladder_it_says_how_to_measure_one():
    assert "--isa-ladder" in str(wb.explore_ladder(analyze_run(sample_run())))

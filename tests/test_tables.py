"""Tables and views, as a reader sees them."""

import math
import re

import numpy as np
import pandas as pd
import pytest
from changed_runs import changed
from recorded import recorded

import workbench as wb

MISSING = "\N{EN DASH}"


@pytest.fixture(scope="module", params=["mobilenet_v3_small", "vit_tiny"])
def run(request):
    return recorded(request.param)


def lines_of(frame, **choices):
    """The head and the rows of a table in Markdown."""
    head, _, *rows = str(wb.show(frame, **choices)).splitlines()
    return [head, *rows]


def test_a_table_has_units_and_sensible_digits():
    operators = recorded().subject.operators
    head, row = lines_of(operators, columns=["name", "mean_ms", "share", "calls"], top=1)
    assert head == "| name | mean (ms) | share (%) | calls |"
    name, ms, share, calls = row.strip("| ").split(" | ")
    first = operators.iloc[0]
    assert name == first["name"] and calls == "1"
    assert float(ms) == pytest.approx(first["mean_ms"], rel=0.01)
    assert float(share) == pytest.approx(100 * first["share"], rel=0.01)


def test_the_label_of_a_run_is_no_name_of_a_column():
    labels = {"linux, my_net, sme2_on": [1.0], "my_net": [2.0], "mean_ms": [1.0]}
    head, *_ = lines_of(pd.DataFrame(labels))
    assert head == "| linux, my_net, sme2_on | my_net | mean (ms) |"


def test_the_interval_of_a_speedup_is_a_ratio_that_of_a_latency_is_a_time(run):
    head, row, *_ = lines_of(run.compare().speedups, columns=["speedup", "low"])
    assert head == "| speedup | low |" and row.count("x |") == 2
    assert lines_of(run.statistics, columns=["median", "low"])[0] == "| median (ms) | low (ms) |"


def test_shares_of_samples_have_their_interval_in_the_same_unit():
    frame = recorded()["avx512_on"].machine_code.assign(q=0.0)
    head, row = lines_of(frame, columns=["share", "low", "high", "q"], top=1)
    assert head == "| share (%) | low (%) | high (%) | q |"
    assert re.fullmatch(r"\| \d+ \| \d+ \| \d+ \| <0.001 \|", row)


def test_a_number_has_three_figures_and_large_numbers_are_grouped():
    frame = {"ms": [2.483, 12.1], "small_ms": [0.0123456, 2.0], "flops": [10838016, 5]}
    text = str(wb.show(pd.DataFrame(frame)))
    assert "| 2.48 | 0.0123 | 10 838 016 |" in text and "| 12.1 | 2.00 | 5 |" in text


def test_sizes_are_in_megabytes_and_operations_in_millions(run):
    frame = pd.DataFrame({"size_bytes": [10_170_368, 116_000]})
    head, _, *rows = str(wb.show(frame)).splitlines()
    assert (head, rows) == ("| size (MB) |", ["| 10.2 |", "| 0.116 |"])
    assert "flops (MFLOP)" in str(wb.show(run, "layers"))


@pytest.mark.parametrize(
    ("times", "text"),
    [([18.5, 39.1], "18.5 ms, between 0 ms and 39.1 ms"), ([18.5, 19.0], "18.5 ± 0.5 ms")],
)
def test_an_interval_of_a_latency_ends_at_zero(times, text):
    latency, high = times
    row = {"latency": latency, "low": 2 * latency - high, "high": high, "restarts": 5}
    shown = changed(recorded().subject, statistics=pd.DataFrame([row]))._repr_html_()
    assert text in shown


def test_missing_values_and_infinities_leave_the_digits_of_the_others_alone():
    frame = pd.DataFrame({"size_mb": [math.nan, 1.5, math.inf], "sqnr_db": [40.0, None, 3.25]})
    head, *rows = lines_of(frame.assign(fine=[True, False, None]))
    assert head == "| size (MB) | sqnr (dB) | fine |"
    assert rows[0] == f"| {MISSING} | 40.0 | yes |" and rows[2].endswith(f"| {MISSING} |")
    assert rows[1].startswith(f"| 1.50 | {MISSING} |")


def test_what_a_frame_holds_is_never_markup():
    frame = pd.DataFrame({"<i>": ["<script>alert(1)</script> | x\ny"], "n": [math.nan]})
    table = wb.show(frame, caption="a <b> & c")
    for text in (table.html, table.markdown, table._repr_html_(), str(table)):
        assert "<script>" not in text and "<i>" not in text and "<b>" not in text
    assert table.markdown.splitlines()[-1].count("\\|") == 1
    assert table.markdown.splitlines()[-1].endswith(f"| {MISSING} |")
    assert "<script>" not in wb.show(pd.DataFrame({"name": ["</style><script>"]})).html


def test_a_table_may_be_cut_and_names_its_columns(run):
    assert len(lines_of(run.operators, top=3)) == 4
    with pytest.raises(wb.WorkbenchError, match="did you mean 'mean_ms'"):
        wb.show(run.operators, columns=["mean"])
    assert "not recorded" in str(wb.show(None, caption="Memory"))


def test_short_texts_are_not_broken_where_there_is_little_room():
    rows = pd.DataFrame({"limit": ["10.0 %"], "source": ["a reason of many words " * 3]})
    assert re.findall(r"td\.c(\d)\{white-space:nowrap", wb.show(rows).html) == ["0"]


def test_a_table_of_nothing_is_a_table():
    assert "| a |" in str(wb.show(pd.DataFrame({"a": []})))
    assert str(wb.show([])) == ""


def test_a_list_is_shown_one_below_the_other():
    table = wb.show(pd.DataFrame({"a": [1]}))
    figure = wb.plot_categories(recorded())
    stack = wb.show([figure, table, "a note"])
    assert str(stack) == f"{table}\n\n> a note"
    assert len(stack.parts) == 3
    assert str(wb.show([table, "a note"])) == str(stack)


def test_an_answer_is_folded():
    shown = wb.show(["one", "two <b>"], fold="Answer")
    assert shown.html.startswith("<details><summary>Answer</summary>") and "<b>" not in shown.html
    assert str(shown).startswith("Answer\n\n")


def test_an_unknown_view_and_a_wrong_noun_are_one_line(run):
    with pytest.raises(wb.WorkbenchError, match="did you mean 'latencies'"):
        wb.show(run, "latency")
    with pytest.raises(wb.WorkbenchError, match="out_net: no such file or folder"):
        wb.show("out_net", "roofline")
    with pytest.raises(wb.WorkbenchError, match="takes a Run, a Comparison or a path, not a int"):
        wb.show(3)


VIEWS = ["verdicts", "latencies", "findings", "operators", "layers", "dtypes", "roofline",
         "speedups", "code", "kernels", "undelegated", "quality", "checks", "rules",
         "description", "partition"]  # fmt: skip


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_of_a_run_says_something(run, view):
    assert str(wb.show(run, view, top=3))


def test_a_run_shows_its_verdicts_and_a_comparison_its_own(run):
    verdict = run.compare().text.split(",")[0]
    assert verdict in str(wb.show(run)) and verdict in str(wb.show(run.compare()))
    assert str(wb.show(run, "verdicts", "quality")) == "\n\n".join(
        str(wb.show(run, view)) for view in ("verdicts", "quality")
    )


def test_a_name_that_begins_a_finding_keeps_its_spelling():
    page = wb.show(recorded("unet_small"), "findings")._repr_html_()
    assert "<strong>Arithmetic limits" in page


def test_sides_of_two_runs_are_told_apart_by_their_programs():
    compared = wb.compare(recorded("AsTrained"), recorded("Ready"))
    text = str(wb.show(compared))
    for name in ("AsTrained", "Ready"):
        assert re.search(rf"{name}: \d+\.?\d* ± ", text)
    assert "avx512_on" not in text


def test_rules_are_those_of_the_runs_operators(run):
    text = str(wb.show(run, "rules", top=2))
    assert "| activation |" in text and "| deconvolution |" not in text
    assert all(f"| {name} |" in text for name in run.subject.ledger["rule"])


def test_latencies_and_operators_are_those_of_the_run(run):
    text = str(wb.show(run, "latencies"))
    assert all(name in text for name in run.statistics["experiment"])
    *_, single, _ = lines = str(wb.show(run.subject, "operators", top=2)).splitlines()
    first = run.subject.operators.iloc[0]
    assert "CALL" in set(run.operators["operator"].str[-4:]) and "of overhead" in "".join(lines)
    assert not any("_CALL" in line for line in lines if line.startswith("|"))
    assert single.startswith(f"| {first['module']} · ")
    assert lines.index("By layer") < lines.index("Single operators")


def test_operators_are_added_up_by_type(run):
    operators = run.subject.operators
    _, row, *_ = str(wb.show(run, "operators")).splitlines()[3:]
    name, _, count, calls, ms, _ = row.strip("| ").split(" | ")
    same = operators[operators["operator"] == name]
    assert (int(count), float(calls)) == (len(same), same["calls"].sum())
    assert float(ms) == pytest.approx(same["mean_ms"].sum(), rel=0.005)


def test_layers_come_with_the_line_of_their_slowest_operator(run):
    on = run.subject
    text = str(wb.show(on, "layers", top=5))
    slowest = on.layers.sort_values("own_ms", ascending=False)["module"].iloc[0]
    source = on.operators.loc[on.operators["module"] == slowest, "source"].iloc[0]
    assert slowest in text and f"| {source.rpartition('/')[2]} |" in text
    assert "/" in source and source not in text, "a path would be broken in a word"


def test_speedups_say_how_many_were_shown(run):
    ab = run.compare()
    text = str(wb.show(ab, "speedups", top=3))
    operators = ab.operators[~ab.operators["name"].str.contains("_CALL|::execute")]
    shown = int((operators["outcome"] == "faster").sum())
    assert len(operators) < len(ab.operators) and f"{len(operators)} operators: " in text
    assert f"{shown} faster" in text
    assert "Of those called faster or slower, at most 5 % are so by chance" in text
    open_ms = operators.loc[operators["outcome"] == "inconclusive", "baseline_ms"].sum()
    (share,) = re.findall(r"The inconclusive operators take ([\d.]+) % of the time", text)
    assert float(share) == pytest.approx(100 * open_ms / operators["baseline_ms"].sum(), abs=0.5)


def test_nothing_shown_needs_no_word_on_false_discoveries():
    assert "by chance" not in str(wb.show(recorded("toy_cnn"), "speedups"))


def test_a_microkernel_stands_beside_the_layer_of_its_operator():
    text = str(wb.show(recorded("toy_cnn"), "kernels", top=1))
    assert "| conv2 · Convolution (NHWC, " in text


def test_exports_are_shown_side_by_side_and_each_with_what_is_left():
    exports = wb.read_exports(wb.sample_file("exports"))
    assert len(lines_of(exports)) == 1 + len(exports)
    left = sorted(exports[0].partition, key=lambda part: (part.delegated, -part.count))[0]
    assert left.operator in str(wb.show(exports[0], "partition"))
    assert np.all([str(wb.show(export)) for export in exports])

"""The explorer in Chromium: every way from a category to a roofline, by mouse and by keyboard."""

import html
import itertools
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from explored import document_of, download, read_data
from recorded import recorded
from scipy.stats import t

import workbench as wb

ROOT = Path(__file__).resolve().parents[3]
SCREENSHOTS = ROOT / "build" / "screenshots"
GEMM = "classifier.3 · Fully Connected GEMM #42"
MINUS = "\N{MINUS SIGN}"

pytestmark = pytest.mark.browser


def crumbs(page):
    return page.locator(".crumbs li").all_inner_texts()


def count_operators(layer="", model="mobilenet_v3_small"):
    """How many operators a recorded run has, or a layer of it."""
    operators = recorded(model).subject.operators
    operators = operators[operators["kind"].isin(["delegated", "portable"])]
    modules = operators["module"].fillna("")
    return sum(f"{module}.".startswith(f"{layer}.") or not layer for module in modules)


def changes(page):
    texts = page.locator(".t-body .t-delta").all_inner_texts()
    return [float(text.replace(MINUS, "-")) for text in texts if text[0] != "<"]


def section(page, heading):
    return page.locator(".inspector section").filter(has=page.get_by_role("heading", name=heading))


def wait_until(page, condition):
    """As ``wait_for_function``, which the page's policy forbids."""
    for _ in range(50):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    raise AssertionError(condition)


def click_in_icicle(page, test):
    """Click the cell whose node passes a test, written in JavaScript."""
    x, y = page.evaluate(
        f"""() => {{
            const {{ icicle }} = document.getElementById("explorer").explorer;
            const {{ x, w, row }} = icicle.cells.find(({{ node }}) => {test});
            return [x + w / 2, 22 * row + 10];
        }}"""
    )
    page.locator("canvas").first.click(position={"x": x, "y": y})


def test_from_a_category_down_to_the_roof(open_page):
    page = open_page()
    shown = page.locator(".big").inner_text()
    value, low, high = re.search(r"([\d.]+x faster)\s+\[([\d.]+), ([\d.]+)\]", shown).groups()
    text = recorded().compare().text
    assert f"{value} with avx512 (95 % interval {low}-{high})" in text
    page.get_by_role("button", name="GEMM", exact=False).and_(page.locator(".chip")).click()
    assert crumbs(page) == ["mobilenet_v3_small", "GEMM"]
    assert (
        f"42 of {count_operators()} operators" in page.locator(".t-grid").locator("..").inner_text()
    )
    roofs = section(page, "Roofline")
    assert roofs.locator("svg circle").count() == roofs.locator("tbody tr").count() == 10
    roofs.get_by_role("button").nth(1).click()
    assert page.locator(".inspector h2").inner_text().endswith(crumbs(page)[-1])
    page.locator(".t-row", has_text=GEMM).click()
    assert crumbs(page) == [
        "mobilenet_v3_small",
        "GEMM",
        "classifier.3",
        "Fully Connected GEMM #42",
    ]
    shown = page.locator(".inspector").inner_text()
    assert GEMM in shown and "1x1024 -> 1x1000" in shown
    assert "2.05 MFLOP" in shown and "4.11 MB" in shown
    assert "Linear" in section(page, "Layer").inner_text()
    assert section(page, "Source").locator(".here").inner_text().endswith(".flatten(1))\n")
    assert "of the roof" in section(page, "Roofline").inner_text()
    assert section(page, "Roofline").locator("svg circle").count() == 2
    section(page, "Layer").get_by_role("button", name="classifier.3").click()
    assert crumbs(page)[-2:] == ["classifier", "3"]
    assert f"1 of {count_operators()}" in page.locator(".inspector").inner_text()


def test_an_operator_that_was_not_sampled_says_so(open_page):
    def drop_samples(document):
        for side in document["measurements"]:
            side["samples"], side["functions"] = None, None

    page = open_page(edit=drop_samples)
    page.locator(".t-row", has_text=GEMM).click()
    assert section(page, "Machine code").inner_text().endswith("Not sampled.")


def test_machine_code_of_both_sides(open_page):
    page = open_page("toy_cnn")
    assert page.locator(".big strong").inner_text() == "emulated"
    assert "which code runs, not how fast" in page.locator(".caveats").inner_text()
    page.locator(".t-row", has_text="conv2 · Convolution IGEMM #2").click()
    shown = section(page, "Machine code").inner_text()
    assert "A and B ran different code." in shown
    assert "neon" in shown and "sme2" in shown and "mopa" in shown and "samples" in shown
    assert "fmopa za0.s" in page.get_by_label("Disassembly, B: hot loop").inner_text()
    assert page.get_by_label("Disassembly, A").is_hidden()
    page.get_by_text("A: hot loop").click()
    listing = page.get_by_label("Disassembly, A").inner_text()
    assert "fmla v" in listing and "%" not in listing  # an emulator samples blocks
    # An emulator's times do not show speed: no speed-up, no prediction.
    assert "x [" not in page.locator("body").inner_text()
    assert section(page, "What if").is_hidden()


def test_the_model_and_the_timeline_select_too(open_page):
    page = open_page()
    click_in_icicle(page, "node.path === 'classifier'")
    assert crumbs(page) == ["mobilenet_v3_small", "classifier"]
    shown = f"{count_operators('classifier')} of {count_operators()} operators"
    assert shown in page.locator(".inspector").inner_text()
    click_in_icicle(page, "node.operator !== undefined && node.name.endsWith('GEMM #42')")
    assert crumbs(page)[-1] == "Fully Connected GEMM #42"
    assert page.locator('.t-row[aria-selected="true"]').inner_text().startswith("classifier.3")
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    lanes = page.evaluate(
        """() => document.getElementById("explorer").explorer.timeline.lanes
            .map(({ spans, top }) => [spans.count, top, spans.length])"""
    )
    assert [count for count, *_ in lanes] == [len(recorded().subject.operators) + 1] * 2
    # In both lanes something is drawn where the operators are.
    canvas = page.locator(".timeline .pair canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    for _, top, _ in lanes:
        page.mouse.move(box["x"] + 120, box["y"] + top + 42)
        assert page.locator(".tip").is_visible()
        assert "this inference" in page.locator(".tip").inner_text()
    top = lanes[0][1]
    page.mouse.move(box["x"] + 60, box["y"] + top + 42)
    page.mouse.down()
    page.mouse.move(box["x"] + 260, box["y"] + top + 42, steps=4)
    page.mouse.up()
    assert crumbs(page)[-1].endswith("of A")
    count = int(page.locator(".t-grid").get_attribute("aria-rowcount")) - 1
    assert 3 < count < 120


def test_all_inferences_are_on_one_axis_and_a_click_shows_one(open_page):
    page = open_page("Net")
    strip = page.locator(".timeline .plot:not(.pair) canvas")
    strip.scroll_into_view_if_needed()
    lanes = page.evaluate(
        """() => document.getElementById("explorer").explorer.strip.lanes
            .map(({ top, inferences }) =>
                [top, inferences.map(({ start, end, spans }) => [start, end, spans.length])])"""
    )
    counts = [len(inferences) for _, inferences in lanes]
    assert len(lanes) == 2 and counts[0] == counts[1] > 1
    for _, inferences in lanes:
        ends = [0, *(end for _, end, _ in inferences)]
        for before, (start, end, length) in zip(ends, inferences, strict=False):
            assert start == before and end - start == pytest.approx(length)
    top, inferences = lanes[1]
    start, end, _ = inferences[1]
    x = page.evaluate(
        f"document.getElementById('explorer').explorer.strip.scale({(start + end) / 2})"
    )
    box = strip.bounding_box()
    page.mouse.move(box["x"] + x, box["y"] + top + 8)
    assert page.locator(".tip-head").inner_text().startswith("B, inference 2:")
    strip.click(position={"x": x, "y": top + 8})
    assert f"pair 2 of {counts[0]}" in page.locator(".timeline .bar").inner_text()
    strip.press("ArrowLeft")
    assert f"pair 1 of {counts[0]}" in page.locator(".timeline .bar").inner_text()


def test_at_the_width_of_a_notebook_no_sheet_is_over_the_views_until_something_is_selected(
    open_page,
):
    page = open_page(size=(900, 700))
    sheet = page.locator(".inspector")
    assert sheet.evaluate("aside => getComputedStyle(aside).position") == "static"
    assert sheet.bounding_box()["y"] > 700
    page.locator(".t-body .t-row").first.click()
    assert sheet.evaluate("aside => getComputedStyle(aside).position") == "sticky"
    box = sheet.bounding_box()
    assert box["y"] + box["height"] <= 700
    page.keyboard.press("Escape")
    assert sheet.evaluate("aside => getComputedStyle(aside).position") == "static"


def test_labels_of_the_icicle_name_layers_and_kinds(open_page):
    page = open_page(size=(900, 700))
    labels = page.evaluate(
        """() => { const { icicle } = document.getElementById("explorer").explorer;
            return icicle.cells.map(({ node, w }) => icicle.label(node, w - 8))
                .filter(Boolean); }"""
    )
    assert len(labels) > 8 and "features.0" in labels
    assert not [text for text in labels if re.fullmatch(r"#?[\d.]+|block|layers|Sequential", text)]


def test_the_wheel_scrolls_the_page_and_zooms_with_control(open_page):
    page = open_page(size=(1400, 600))
    canvas = page.locator(".timeline .pair canvas")
    canvas.scroll_into_view_if_needed()
    box, before = canvas.bounding_box(), page.evaluate("scrollY")
    page.mouse.move(box["x"] + 200, box["y"] + 60)
    page.mouse.wheel(0, 200)
    wait_until(page, f"scrollY > {before}")
    zoomed = "(({ from, to }) => to - from)(document.getElementById('explorer').explorer.timeline)"
    before = page.evaluate(zoomed)
    page.mouse.move(box["x"] + 200, canvas.bounding_box()["y"] + 60)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -200)
    page.keyboard.up("Control")
    wait_until(page, f"{zoomed} < {before} * 0.9")


def test_search_takes_what_the_label_says_and_enter_goes_from_match_to_match(open_page):
    page = open_page()
    page.keyboard.press("/")
    page.keyboard.type("conv")
    labels = page.locator(".t-body .t-label").all_inner_texts()
    assert labels and all("conv" in label.lower() for label in labels)
    assert not [label for label in labels if "Transpose" in label]
    assert page.locator(".t-body .t-row").first.locator("mark").inner_text() == "Conv"
    before = page.locator(".timeline .bar .soft").inner_text()
    match, chosen = page.locator(".operators [role=status]"), page.locator('[aria-selected="true"]')
    page.keyboard.press("Enter")
    assert chosen.count() == 1 and match.inner_text().startswith("1 of ")
    assert page.locator(".timeline .bar .soft").inner_text() == before
    page.keyboard.press("Enter")
    assert chosen.get_attribute("id") == "wb-row-1"
    page.get_by_role("button", name="Previous match").click()
    page.get_by_role("searchbox").press("Shift+Enter")
    last = int(page.locator(".t-grid").get_attribute("aria-rowcount")) - 2
    assert chosen.get_attribute("id") == f"wb-row-{last}"
    page.get_by_role("searchbox").fill("<b>no such operator")
    assert page.get_by_text("Nothing found for “<b>no such operator”.").is_visible()
    assert match.is_hidden()
    page.locator(".none").get_by_role("button").click()
    assert page.locator(".t-row").count() > 10 and not page.locator(".none").is_visible()


def test_the_table_sorts_selects_several_and_scrolls(open_page):
    page = open_page()
    page.get_by_role("button", name=f"B {MINUS} A, ms").click()
    times = changes(page)
    assert times == sorted(times, reverse=True)
    page.get_by_role("button", name=f"B {MINUS} A, ms").click()
    times = changes(page)
    assert times == sorted(times)
    rows = page.locator(".t-body .t-row")
    rows.nth(0).click()
    rows.nth(3).click(modifiers=["Shift"])
    assert page.locator(".inspector h2").inner_text() == "4 selected operators"
    rows.nth(1).click(modifiers=["Control"])
    assert page.locator(".inspector h2").inner_text() == "3 selected operators"
    page.locator(".t-grid").evaluate("grid => { grid.scrollTop = grid.scrollHeight; }")
    page.wait_for_selector("#wb-row-145")
    assert rows.count() < 60


def predict(ledger, by, factors):
    """The speed-up if some parts were so much faster, with Student's interval over restarts."""
    inference = ["process", "run"]
    runs = ledger.groupby([*inference, by], observed=True)["duration_ns"].sum().unstack() / 1e6
    sides = pd.DataFrame({
        "before": runs.sum(axis=1),
        "after": (runs / [factors.get(name, 1.0) for name in runs]).sum(axis=1),
    })  # fmt: skip
    restarts, means = sides.groupby("process").mean(), sides.mean()
    logs = np.log(restarts["before"] / restarts["after"])
    half = t.ppf(0.975, len(logs) - 1) * logs.std() / np.sqrt(len(logs))
    speedup = means["before"] / means["after"]
    ends = {"low": speedup * np.exp(-half), "high": speedup * np.exp(half)}
    return {"speedup": speedup, "predicted_ms": means["after"]} | ends


def test_the_prediction_is_that_of_python(open_page):
    on = recorded()["avx512_on"]
    key = on.operators.loc[on.operators["name"] == "Fully Connected (NC, F32) GEMM #42", "key"]
    wanted = predict(on.ledger, "key", {key.item(): 2.0})
    page = open_page(edit=None)
    page.locator(".t-row", has_text=GEMM).click()
    slider = page.get_by_role("slider")
    slider.focus()
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    assert page.locator(".inspector output").inner_text() == "2x faster"
    found = page.evaluate("document.getElementById('explorer').explorer.prediction()")
    for name in ("speedup", "low", "high"):
        assert found[name] == pytest.approx(wanted[name], rel=1e-5)
    headline = page.locator(".guess").inner_text()
    assert f"{on.latency_ms / wanted['speedup']:.2f} ms" in headline


def test_several_categories_can_become_faster_at_once(open_page):
    run = recorded()
    wanted = predict(run.subject.ledger, "category", {"GEMM": 2.0, "Other": float("inf")})
    page = open_page(view="what-if")
    assert page.locator(".columns").is_hidden() and page.locator(".categories").is_visible()
    gemm, other = (
        page.get_by_role("slider", name=f"What if {name} were faster?")
        for name in ("GEMM", "Other")
    )
    gemm.focus()
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    other.focus()
    page.keyboard.press("End")
    found = page.evaluate("document.getElementById('explorer').explorer.prediction()")
    for name in ("speedup", "low", "high"):
        assert found[name] == pytest.approx(wanted[name], rel=1e-5)
    assert f"{wanted['speedup']:.2f}x" in page.locator(".guess").inner_text()
    bars = page.locator(".cat-row .num").all_inner_texts()
    assert float(bars[1].split()[0]) == pytest.approx(wanted["predicted_ms"], rel=0.005)
    restored = open_page(state=page.url.partition("#")[2], view="what-if")
    assert restored.locator(".guess").inner_text() == page.locator(".guess").inner_text()


def test_a_line_selects_its_operators_and_they_their_line(open_page):
    page = open_page()
    lines = page.locator(".source-lines button.s-row")
    line = lines.filter(has_text="self.classifier(")
    line.click()
    count = int(re.search(r"(\d+) selected operators", page.locator(".inspector").inner_text())[1])
    rows = recorded().subject.operators
    rows = rows[rows["source"] == "workbench/models/zoo/mobilenet_v3_small.py:77"]
    assert count == len(rows)
    assert line.get_attribute("aria-pressed") == "true"
    assert float(line.locator(".s-ms").inner_text()) == pytest.approx(rows["mean_ms"].sum(), 0.01)
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    assert lines.filter(has_text="self.block(x)").get_attribute("aria-pressed") == "true"
    page.keyboard.press("Escape")
    page.get_by_role("searchbox").fill("features.1.block.1")
    page.keyboard.press("Enter")
    pressed = page.locator(".s-row[aria-pressed=true]")
    assert "gate" in pressed.inner_text(), "of another file"
    page.locator(".source-lines").get_by_role("button", name="By time").click()
    times = [float(text) for text in page.locator(".s-row .s-ms").all_inner_texts()]
    latency = page.evaluate("document.getElementById('explorer').explorer.sides.b.total")
    assert sum(times) == pytest.approx(latency, rel=0.01)
    assert times[:-1] == sorted(times[:-1], reverse=True), "the last is of no line"
    note = page.locator(".s-note button").first
    note.click()
    assert "finding" in crumbs(page)[-1]


def test_5000_lines_are_drawn_fast(open_page):
    def edit(document):
        source = document["programs"][0]["sources"]["workbench/models/zoo/mobilenet_v3_small.py"]
        source["1"] += "\n".join(f"def helper_{n}(x): return x + {n}" for n in range(5000))

    page = open_page(edit=edit)
    assert page.locator(".source-lines summary", has_text="lines").count() >= 2
    page.locator(".source-lines button.s-row").first.click()
    page.wait_for_function("document.getElementById('explorer').dataset.drawnMs < 500")


@pytest.mark.parametrize(
    ("view", "shown"),
    [("categories", "categories"), ("levels", "categories"), ("model", "model"),
     ("source", "source-lines"), ("timeline", "timeline"), ("operators", "operators")],
)  # fmt: skip
def test_one_view_is_shown_alone(open_page, view, shown):
    page = open_page("squeezesam", view=view)
    panels = page.locator(".panel:visible").evaluate_all("all => all.map(e => e.className)")
    assert [p for p in panels if "inspector" not in p] == [f"panel {shown}"]
    assert page.locator(".big strong").is_visible()
    assert (page.locator(".cat-row:visible").count() == 6) == (view == "levels")


def test_latencies_below_a_tenth_of_a_millisecond_are_in_microseconds(open_page):
    def shrink(document):
        for m in document["measurements"]:
            for name in ("latency", "low", "high"):
                m["latency"][name] /= 100

    page = open_page(edit=shrink)
    latency = recorded().subject.latency_ms
    assert f"{10 * latency:.1f} µs" in page.locator(".sides").inner_text()
    assert " ms" not in page.locator(".sides").inner_text()


def test_tiny_times_have_no_more_digits_than_the_clock_and_their_intervals(open_page):
    def shrink(document):
        for m in document["measurements"]:
            for column in (m["mean_ms"], *m["restarts_ms"]):
                column[0] /= 1e3
        for column in ("baseline_ms", "candidate_ms"):
            document["comparisons"][0]["operators"][column][0] /= 1e3

    page = open_page(edit=shrink, state="sort=b")
    row = page.locator(".t-body .t-row").last
    assert row.locator(".t-b").inner_text() == "<0.001"
    row.click()
    assert " µs, 0.0 % of E2E" in page.locator(".inspector").inner_text()
    for panel in (".operators", ".source-lines", ".inspector"):
        assert "0.000" not in page.locator(panel).inner_text()


def test_swapping_turns_everything_round(open_page):
    page = open_page()
    page.locator(".t-row", has_text=GEMM).click()
    page.get_by_role("button", name="Swap").click()
    assert page.locator(".big strong").inner_text().endswith("x slower")
    assert page.locator(".sides").inner_text().startswith("A")
    assert "avx512_on" in page.locator(".sides span").first.inner_text()
    rows = recorded().compare().operators
    (row,) = rows[rows["key"].str.endswith("/Fully Connected/41")].to_dict("records")
    wanted = f"{1 / row['speedup']:.2f}x [{1 / row['high']:.2f}, {1 / row['low']:.2f}]"
    assert wanted in page.locator(".inspector").inner_text()


def test_findings_select_their_operators(open_page):
    document, page = document_of("mobilenet_v3_small"), open_page()
    findings = document["measurements"][document["comparisons"][0]["candidate"]]["findings"]
    for number, finding in enumerate(findings[:4]):
        page.locator(".card").nth(number).click()
        assert f"finding {number + 1}" in crumbs(page)
        shown = int(page.locator(".t-grid").get_attribute("aria-rowcount")) - 1
        assert shown == len(finding["operators"])
        commands = page.get_by_label("Command").all_inner_texts()
        assert commands == [finding["hint"]] * bool(finding["hint"])
        page.locator(".card").nth(number).click()
    assert crumbs(page) == ["mobilenet_v3_small"]


def test_pairs_and_thread_counts_can_be_chosen(open_page):
    page = open_page("unet_small")
    assert "1 thread" in page.locator(".sides").inner_text()
    page.get_by_label("Threads").select_option("2")
    assert "2 threads" in page.locator(".sides").inner_text()
    page = open_page("squeezesam")
    page.get_by_label("A → B").select_option("avx2 → avx512-novnni")
    assert "avx512-novnni" in page.locator(".sides").inner_text()
    assert page.locator(".cat-row").count() == 2


def test_categories_are_shown_over_all_isa_levels(open_page):
    run = recorded("squeezesam")
    page = open_page("squeezesam")
    page.get_by_role("button", name="All, in %").click()
    assert page.locator(".cat-name").all_inner_texts() == run.experiments
    for row, name in zip(page.locator(".cat-row").all(), run.experiments, strict=True):
        widths = row.locator(".seg").evaluate_all("all => all.map(e => parseFloat(e.style.width))")
        shares = run[name].categories.set_index("category")["share"]
        assert sum(widths) == pytest.approx(100, abs=0.1)
        assert widths[0] == pytest.approx(100 * shares["Convolution"], abs=0.1)
    page.get_by_role("button", name="avx512-novnni").click()
    assert "avx512-novnni" in page.locator(".sides").inner_text()
    assert "over=share" in page.url
    assert open_page("mobilenet_v3_small").get_by_role("button", name="All, in %").count() == 0


def test_the_graph_follows_the_selection(open_page):
    page = open_page(state="color=speedup")
    page.get_by_role("button", name="Graph").click()
    page.get_by_label("Detail").select_option("all operators")
    nodes = page.locator(".graph .node")
    assert nodes.count() > 140
    nodes.filter(has_text="classifier.3").dispatch_event("click")
    assert crumbs(page)[-1] == "Fully Connected GEMM #42"
    assert page.locator(".graph .chosen").count() == 1
    page.locator(".graph").focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    assert crumbs(page)[-1] == "HardSwish #19"


def test_the_graph_of_many_operators_shows_modules_that_open(open_page):
    page = open_page("vit_tiny", state="view=graph")
    nodes = page.locator(".graph .node")
    assert 30 < nodes.count() <= 120
    attention = nodes.filter(has_text="blocks.3.attn")
    count = count_operators("blocks.3.attn", "vit_tiny")
    assert f"{count} operators" in attention.text_content()
    # The strip of a module has its operators' colours, as wide as their time.
    widths = attention.locator("g rect").evaluate_all(
        "all => all.map(e => +e.getAttribute('width'))"
    )
    assert sum(widths) == pytest.approx(float(attention.locator("> rect").get_attribute("width")))
    page.get_by_label("Detail").select_option("1 level of modules")
    assert nodes.count() < 30
    assert "depth=1" in page.url
    boxes = nodes.evaluate_all("all => all.map(e => e.getBBox().width)")
    room = page.locator(".graph").evaluate("e => e.clientWidth")
    assert page.locator(".graph svg").evaluate("e => e.getBBox().width") <= room
    assert max(boxes) < room / 3
    page.get_by_label("Detail").select_option("repeated classes once")
    assert nodes.filter(has_text="12\N{MULTIPLICATION SIGN} Block").count() == 1
    page.get_by_label("Detail").select_option("automatic")
    place = page.locator(".minimap").bounding_box()
    page.mouse.click(place["x"] + place["width"] / 2, place["y"] + place["height"] - 4)
    assert page.locator(".graph").evaluate(
        "e => e.scrollTop + e.clientHeight + 1 >= e.scrollHeight"
    )
    attention.dispatch_event("click")
    assert crumbs(page)[1:] == ["blocks", "3", "attn"]
    assert nodes.count() == count
    # Layer normalisation runs outside of delegates.
    page.keyboard.press("Escape")
    assert "outside" in nodes.filter(has_text="blocks.3.norm1").get_attribute("class")
    assert "outside" not in nodes.filter(has_text="patch_embed.proj").first.get_attribute("class")


def test_an_address_restores_what_was_seen(open_page):
    page = open_page()
    page.get_by_role("button", name="GEMM", exact=False).and_(page.locator(".chip")).click()
    page.get_by_label("Colour by").select_option("speedup")
    page.locator(".t-row", has_text=GEMM).click()
    state = page.url.partition("#")[2]
    other = open_page(state=state)
    assert crumbs(other) == crumbs(page)
    assert other.get_by_label("Colour by").input_value() == "speedup"
    assert other.locator(".inspector h2").inner_text() == GEMM
    # An address of another run, or a damaged one, is no reason to fail.
    wrong = "pair=99&ops=99999.x&time=1~2&factor=-3&module=none&sort=%20&view=3d&what=constructor~2"
    damaged = open_page(state=f"{wrong}&category=Art&finding=7&inference=900&color=taste&over=all")
    assert crumbs(damaged) == ["mobilenet_v3_small"]
    assert damaged.get_by_text(f"{count_operators()} operators", exact=True).first.is_visible()
    damaged.locator(".t-row").nth(3).click()
    assert re.fullmatch("ops=\\d+", damaged.url.partition("#")[2])


def test_everything_by_keyboard(open_page):
    page = open_page()

    def tab_to(selector):
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate("s => document.activeElement.matches(s)", selector):
                return
        raise AssertionError(f"{selector} is not reached")

    tab_to(".chip")
    page.keyboard.press("Enter")
    assert crumbs(page)[-1] == "Convolution"
    tab_to("canvas")
    for key in ("ArrowDown", "s", "D", "Enter"):
        page.keyboard.press(key)
    assert len(crumbs(page)) == 3
    tab_to(".timeline .pair canvas")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert page.locator(".inspector h2").inner_text()
    assert "this inference" in page.locator("[aria-live]").inner_text()
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    assert crumbs(page) == ["mobilenet_v3_small"]
    page.keyboard.press("Shift+Tab")
    tab_to(".t-grid")
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    assert (
        page.locator('.t-row[aria-selected="true"]').get_attribute("id")
        == f"wb-row-{count_operators() - 1}"
    )
    page.keyboard.press("?")
    assert "notebook 09" in page.get_by_role("dialog").inner_text()
    page.keyboard.press("Escape")
    assert page.get_by_role("dialog").count() == 0


def test_files_have_what_is_shown(open_page):
    page = open_page(state="category=GEMM")
    path, name = download(page, "Operators as CSV")
    rows = path.read_text().splitlines()
    assert name == "mobilenet_v3_small.csv"
    assert rows[0].startswith('operator,"A, ms","B, ms"') and len(rows) == 43
    path, _ = download(page, "Operators as Markdown")
    assert path.read_text().startswith("| operator | A, ms | B, ms |")
    assert len(path.read_text().splitlines()) == 44
    for item in ("Chart as SVG", "Timeline as SVG"):
        path, _ = download(page, item)
        assert ElementTree.parse(path).getroot().tag.endswith("svg")
    path, _ = download(page, "Chart as PNG")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_names_from_a_file_stay_text(open_page):
    evil = "<img src=x onerror=console.log('evil')>"

    def edit(document):
        program = document["programs"][0]
        program["labels"][5] = evil
        program["texts"]["module_class"]["values"][0] = evil
        document["head"]["model"] = evil
        shown = next(m for m in document["measurements"] if m["findings"])
        shown["findings"][0]["title"] = evil

    page = open_page(edit=edit, state="ops=5")
    assert page.locator(".inspector h2").inner_text() == evil
    assert page.locator("img").count() == 0


@pytest.fixture
def two_programs(documents):
    """A comparison of two programs with layers in common."""
    before, after = (recorded(name)["avx512_on"] for name in ("AsTrained", "Ready"))
    ab = wb.compare(before, after, across=["program"])
    documents["both"] = read_data(ab)
    return ab


def test_operators_of_two_programs_are_paired(open_page, two_programs, documents):
    page = open_page("both")
    note = page.locator(".caveats").inner_text()
    assert "different programs" in note and "no counterpart in B" in note
    program = documents["both"]["programs"][1]
    key = program["keys"][program["labels"].index("qkv · Fully Connected GEMM #1")]
    row = two_programs.operators.set_index("candidate_key").loc[key]
    page.locator(".t-row", has_text="qkv · Fully Connected GEMM #1").first.click()
    shown = page.locator(".inspector").inner_text()
    assert f"{row['speedup']:.2f}x [{row['low']:.2f}, {row['high']:.2f}]" in shown
    assert "in A" in shown and " of E2E" in shown
    chosen = page.evaluate(
        """() => {
            const { timeline, state } = document.getElementById("explorer").explorer;
            return timeline.lanes.map(({ spans }) => spans.rows.indexOf(state.ops[0]));
        }"""
    )
    assert min(chosen) >= 0
    page.get_by_role("button", name="Swap").click()
    assert page.locator(".big strong").inner_text().endswith("x slower")
    page.keyboard.press("Escape")
    page.locator(".t-row", has_text="qkv · Fully Connected GEMM #1").first.click()
    text = f"{1 / row['speedup']:.2f}x [{1 / row['high']:.2f}, {1 / row['low']:.2f}]"
    assert text in page.locator(".inspector").inner_text()


def test_the_timeline_selects_in_both_programs(open_page, two_programs):
    page = open_page("both")
    page.locator(".timeline .pair canvas").focus()
    # The second operator of A has no counterpart; Enter on it selects nothing.
    for key in ("ArrowUp", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    assert crumbs(page) == [page.locator("h1").inner_text()]
    assert "no counterpart in B" in page.locator("[aria-live]").inner_text()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert len(crumbs(page)) > 1


@pytest.mark.parametrize(
    ("state", "views"),
    [
        ("", [(1400, "light"), (1400, "dark")]),
        ("ops=141&factor=2&color=speedup", [(1400, "light"), (390, "light")]),
        ("finding=0&view=graph&color=time", [(1400, "dark")]),
        ("category=GEMM", [(390, "dark")]),
        ("pair=1", [(1400, "light"), (390, "dark")]),
    ],
)
def test_axe_finds_nothing(open_page, check_axe, documents, state, views):
    check_axe(open_page(state=state), views)


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_shows_verdict_findings_and_list(open_page, dark):
    page = open_page(size=(390, 844), dark=dark)
    assert page.locator(".big strong").is_visible()
    assert page.locator(".card").first.is_visible() and page.locator(".t-row").nth(3).is_visible()
    assert page.locator("canvas:visible").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"explorer-390{'-dark' * dark}.png", full_page=True)


@pytest.mark.parametrize("width", [900, 390])
def test_where_there_is_little_room_details_are_a_drawer(open_page, width):
    page = open_page(size=(width, 800))
    # An output of JupyterLab scrolls by itself; the drawer sticks to the window nevertheless.
    page.evaluate(
        """() => {
            const box = document.createElement("div"), root = document.getElementById("explorer");
            box.className = "jp-OutputArea";
            root.replaceWith(box);
            box.append(root);
        }"""
    )
    page.add_style_tag(content=".jp-OutputArea { overflow: auto; }")
    drawer, sheet = page.locator(".inspector"), page.locator(".sheet")
    handle = drawer.get_by_role("button", expanded=False).first
    assert not sheet.is_visible() and handle.is_visible()
    page.locator(".t-row", has_text=GEMM).click()
    assert sheet.is_visible() and drawer.bounding_box()["height"] <= 400
    box = drawer.bounding_box()
    assert box["y"] + box["height"] == pytest.approx(800, abs=1)
    drawer.get_by_role("button", name=GEMM).click()
    operators = recorded().compare().operators
    (ms,) = operators.loc[operators["key"].str.endswith("/Fully Connected/41"), "candidate_ms"]
    assert not sheet.is_visible() and f"B {ms:.3f} ms" in drawer.inner_text()
    page.keyboard.press("Escape")
    page.locator(".card").first.click()
    assert sheet.is_visible() and "What to do" in sheet.inner_text()
    # Layers and numbers are whole, kinds of operators are cut; no head is over another.
    cut = "parts => parts.filter(e => e.scrollWidth > e.clientWidth).map(e => e.className)"
    assert set(page.locator(".t-body .t-label span").evaluate_all(cut)) <= {"t-kind"}
    heads = [h.bounding_box() for h in page.locator(".t-heads button:visible").all()]
    ends = [(h["x"], h["x"] + h["width"]) for h in heads]
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ends))
    assert page.get_by_role("link", name="Report").get_attribute("href") == "report.html"


@pytest.mark.parametrize("width", [1400, 1180, 1120, 900, 390])
def test_heads_and_layers_are_whole_and_buttons_stay_together(open_page, width):
    page = open_page(size=(width, 900))
    cut = "parts => parts.filter(e => e.scrollWidth > e.clientWidth).map(e => e.innerText)"
    assert page.locator(".t-heads button").evaluate_all(cut) == []
    assert page.locator(".t-body .t-name").evaluate_all(cut) == []
    if width != 1120:  # of the deepest layers, the beginning
        assert len(page.locator(".t-body .t-path").evaluate_all(cut)) <= 2
    places = [b.bounding_box() for b in page.locator(".facts button:visible").all()]
    assert len({place["y"] for place in places}) == 1


def test_every_operator_has_the_digits_of_the_tables(open_page, documents):
    page, shown = open_page(), {}
    for top in range(0, 4500, 300):
        page.locator(".t-grid").evaluate(f"grid => {{ grid.scrollTop = {top}; }}")
        page.wait_for_timeout(50)
        shown |= dict(page.locator(".t-body .t-row").evaluate_all(
            "rows => rows.map(row => [row.querySelector('.t-label').textContent,"
            " ['a', 'b'].map(side => row.querySelector(`.t-${side}`).textContent)])"
        ))  # fmt: skip
    program, operators = (
        documents["mobilenet_v3_small"]["programs"][0],
        recorded().compare().operators,
    )
    table = wb.show(operators, columns=["key", "baseline_ms", "candidate_ms"], top=len(operators))
    rows = [line.strip("| ").split(" | ") for line in html.unescape(str(table)).splitlines()[2:]]
    labels = dict(zip(program["keys"], program["labels"], strict=True))
    wanted = {labels[key]: texts for key, *texts in rows}
    assert {label: wanted[label] for label in shown} == shown and len(shown) == count_operators()


def test_selections_are_drawn_fast(browser, tmp_path):
    sys.path.insert(0, str(Path(__file__).parent / "benchmarks"))
    import explorer

    for count in (500, 5000):
        times = explorer.measure(browser, explorer.make_page(tmp_path, count), repeats=5)
        spent = {name: min(found)[0] for name, found in times.items() if "first" not in name}
        assert max(spent.values()) < explorer.limit_of(count), spent


_DRAWN = """() => {
    const { root, icicle, timeline } = document.getElementById("explorer").explorer;
    const { drawnMs, ...data } = root.dataset;
    const pictures = [icicle, timeline].map(({ canvas }) => canvas.hidden || canvas.toDataURL());
    const fields = [...root.querySelectorAll("select, input")].map(each => each.value);
    return [root.innerHTML, pictures, fields, data];
}"""


@pytest.mark.parametrize("view", ["icicle", "graph"])
def test_a_change_draws_all_that_it_changes(open_page, view):
    page = open_page(state=f"view={view}")
    changes = [
        {"ops": [141]}, {"ops": [141, 3], "factor": 2}, {"ops": []}, {"category": "GEMM"},
        {"factor": 1, "color": "speedup"}, {"module": "classifier"}, {"swap": True, "ops": [5]},
        {"category": "", "module": None, "query": "conv"}, {"sort": "label"}, {"finding": 1},
        {"query": "", "over": "what-if", "what": {"GEMM": 2}}, {"inference": 2, "time": [1, 0, 1]},
        {"ops": [7], "color": "time"}, {"view": "icicle"}, {"view": "graph", "depth": 2},
        {"swap": False, "ops": []},
    ]  # fmt: skip
    for change in changes:
        page.evaluate(
            "change => document.getElementById('explorer').explorer.store.set(change)", change
        )
        page.wait_for_timeout(30)
        drawn = page.evaluate(_DRAWN)
        page.evaluate("document.getElementById('explorer').explorer.redraw()")
        page.wait_for_timeout(30)
        assert page.evaluate(_DRAWN) == drawn, change


def add_needs(document):
    """Memory and start of both sides; B needs half of the weights."""
    for number, m in enumerate(document["measurements"]):
        sizes = {"libraries": 6_000_000, "delegate 1": 2_000_000, "delegate 2": 2_000_000 >> number}
        m["memory"] = [{"part": part, "meaning": "text", "size_bytes": size, "share": 0.5}
                       for part, size in sizes.items()]  # fmt: skip
        stage = {"cache": "warm", "meaning": "text", "low_ms": 1, "high_ms": 2, "share": 0.5}
        m["start"] = [{**stage, "stage": name, "mean_ms": 2 - number, "starts": 5}
                      for name in ("process", "first inference")]  # fmt: skip


def test_memory_and_start_of_both_sides(open_page):
    page = open_page(edit=add_needs, view="memory")
    panel = page.get_by_role("region", name="Memory and start")
    assert panel.locator(".need .num").all_inner_texts() == [
        "10.0 MB", "9.00 MB", "4.00 ms", "2.00 ms",
    ]  # fmt: skip
    cells = panel.get_by_role("row").filter(has_text="2 delegates").get_by_role("cell")
    assert cells.all_inner_texts() == ["4.00", "3.00"]
    chart = panel.get_by_role("application")
    program = page.evaluate("document.getElementById('explorer').explorer.sides.program")
    tensors = program["activations"]["tensors"]
    number = next(n for n, tensor in enumerate(tensors) if tensor["operator"] != "input")
    for key in (*["ArrowDown"] * (number + 1), "Enter"):
        chart.press(key)
    row = program["activations"]["steps"][tensors[number]["first"]]
    assert page.locator(".inspector h2").inner_text() == program["labels"][row]
    chart.click(position={"x": 1 + chart.bounding_box()["width"] * 0.5, "y": 60})
    assert page.locator(".inspector h2").inner_text() != program["labels"][row]


def test_without_measured_memory_only_activations_are_shown(open_page):
    def forget(document):
        for side in document["measurements"]:
            side.pop("memory", None)
            side.pop("start", None)

    page = open_page("unet_small", edit=forget)
    panel = page.get_by_role("region", name="Memory and start")
    assert panel.locator(".need").count() == 0
    assert "kB live" in panel.inner_text() or "MB live" in panel.inner_text()


def test_the_site_makes_an_embedded_explorer_as_high_as_it_is_but_no_higher_than_the_window(
    open_file, tmp_path
):
    script = (ROOT / "data" / "docs" / "site.js").read_text()
    page = tmp_path / "site.html"
    frame = wb.explore(recorded())._repr_html_()
    page.write_text(f"<body style='width:700px'>{frame}<script>{script}</script></body>")
    opened = open_file(page, size=(1000, 500))
    opened.wait_for_function("document.querySelector('iframe').style.height === '450px'")


def test_short_code_in_the_text_of_the_site_stays_on_one_line(open_file, tmp_path):
    script = (ROOT / "data" / "docs" / "site.js").read_text()
    page = tmp_path / "site.html"
    words = "".join(f"{'x' * n} <code>--isa-ladder</code> " for n in range(30))
    page.write_text(f"<body style='width:150px'>{words}<script>{script}</script></body>")
    codes = open_file(page).locator("code")
    assert set(codes.evaluate_all("all => all.map(e => e.getClientRects().length)")) == {1}


@pytest.mark.whole
def test_without_a_script_the_page_has_the_answer_and_the_operators(browser, tmp_path):
    path = tmp_path / "explore.html"
    path.write_text(wb.explore(recorded("vit_tiny")).text)
    context = browser.new_context(java_script_enabled=False, offline=True)
    text = context.new_page()
    text.goto(path.as_uri())
    shown = text.locator("body").inner_text()
    assert "faster" in shown and "Gain:" in shown and "Fully Connected" in shown
    context.close()

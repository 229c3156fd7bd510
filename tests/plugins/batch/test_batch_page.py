"""The page of a portfolio in a real browser: sorted, filtered, and in need of nothing."""

import re
from pathlib import Path

import pytest
from batch_evidence import Starter

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

SCREENSHOT = Path(__file__).resolve().parents[3] / "build" / "screenshots" / "portfolio.png"
MODELS = """
import torch

class Small(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU())

class Broken(torch.nn.Module):
    def forward(self, x):
        raise ValueError("<b>no such thing</b>")

def get_example_inputs():
    return (torch.ones(1, 3, 32, 32),)
"""
MATRIX = """
models: [my.py:Small, my.py:Broken]
dtypes: [fp32, fp16]
exclude: [{model: my.py:Broken, dtype: fp16}]
runs: 4
processes: 3
evidence: false
"""


@pytest.fixture(scope="module")
def portfolio(own_cache, tmp_path_factory):
    """What a batch of a model and a broken one leaves behind."""
    folder, start = tmp_path_factory.mktemp("portfolio"), Starter(own_cache)
    (folder / "my.py").write_text(MODELS)
    (folder / "small.yaml").write_text(MATRIX)
    process = start(folder / "small.yaml", folder / "out")
    try:
        _, err = process.communicate(timeout=800)
    finally:
        start.kill_all()
    assert process.returncode == 1, err
    return folder / "out"


@pytest.fixture
def page(open_file, portfolio):
    return open_file(portfolio / "index.html")


def column(page, name):
    """What the visible rows of the measurements say in a column."""
    heads = page.locator("#measurements th").all_inner_texts()
    place = heads.index(name) + 1
    cells = page.locator(f"#measurements tbody tr:visible td:nth-child({place})")
    return cells.all_inner_texts()


def test_a_cell_is_one_row_which_says_where_the_time_goes(page):
    count = page.locator("#count")
    assert count.inner_text() == "3 of 5 rows"
    assert "peak MB" not in page.locator("#measurements th:visible").all_inner_texts()
    rows = page.locator("#measurements tbody tr:visible", has_text="Small")
    assert rows.count() == 2
    for row in rows.all():
        speedup = row.locator("td[title^=against]").inner_text()
        assert re.match(r"\d+\.\d\dx \[\d+\.\d\d, \d+\.\d\d\]", speedup)
        time = row.locator("td.time")
        assert time.get_by_role("img", name="Convolution").count() == 1 or "no" in time.inner_text()
    opens = page.get_by_role("button", name="and 1 more").first
    opens.press("Enter")
    assert count.inner_text() == "4 of 5 rows" and opens.get_attribute("aria-expanded") == "true"
    page.get_by_label("all measurements").check()
    assert count.inner_text() == "5 of 5 rows"
    assert "peak MB" in page.locator("#measurements th:visible").all_inner_texts()


def test_the_table_sorts_by_a_column(page):
    page.get_by_label("all measurements").check()
    before = column(page, "latency ms")
    head = page.locator("#measurements th", has_text="latency ms")
    head.click()
    known = [float(text) for text in column(page, "latency ms") if text]
    assert len(known) == 4 and known == sorted(known)
    head.click()
    after = column(page, "latency ms")
    assert [float(text) for text in after if text] == known[::-1]
    # The cell without a measurement stays last.
    assert after[-1] == "" and sorted(after) == sorted(before) and after != before


def test_the_table_shows_the_rows_asked_for(page):
    count = page.locator("#count")
    page.get_by_label("all measurements").check()
    assert count.inner_text() == "5 of 5 rows"
    page.select_option("[data-axis=model]", "Small")
    assert set(column(page, "model")) == {"Small\nnotebook explorer"}
    assert count.inner_text() == "4 of 5 rows"
    page.fill("#words", "fp16 on")
    assert set(column(page, "dtype")) == {"fp16"}
    assert count.inner_text() == f"{len(column(page, 'dtype'))} of 5 rows"
    page.select_option("[data-axis=model]", "")
    assert "int8" in page.locator("#words").get_attribute("placeholder")
    page.fill("#words", "nothing like that")
    assert column(page, "model") == [] and count.inner_text() == "no row of 5 has all of this"
    page.fill("#words", "")
    assert count.inner_text() == "5 of 5 rows"


def test_a_failure_is_told_and_every_link_leads_somewhere(page, portfolio):
    failure = page.locator("table", has_text="try again").inner_text()
    assert "Broken/fp32/host/auto" in failure and "<b>no such thing</b>" in failure
    links = {link.get_attribute("href") for link in page.locator("a").all()}
    assert len(links) == 7  # two reports with their notebooks and explorers, and a log
    assert all((portfolio / link).is_file() for link in links)
    page.locator("#measurements a:visible").first.click()
    page.wait_for_selector("h1")
    assert page.url.endswith("report.html")


def test_the_page_fits_a_laptop(page):
    SCREENSHOT.parent.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOT, full_page=True)
    for table in page.locator(".output").all():
        assert table.evaluate("div => div.scrollWidth <= div.clientWidth")


def test_axe_finds_nothing(page, check_axe):
    check_axe(page)


def test_it_says_what_is_compared_and_a_phone_shows_it_without_scrolling_aside(page):
    assert page.locator("h1").inner_text() == "Small, Broken: fp32, fp16"
    assert page.locator("blockquote").inner_text().startswith("Speed-ups over the baselines: ")
    page.get_by_label("all measurements").check()
    latencies, baselines = (column(page, name)[:2] for name in ("latency ms", "baseline ms"))
    assert baselines == [latencies[1], ""]
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        boxes = "all => all.map(e => [e.scrollWidth, e.clientWidth])"
        for wide, room in page.locator("html, .output").evaluate_all(boxes):
            assert wide <= room
    assert page.locator("#measurements td").nth(1).get_attribute("data-head") == "dtype"

"""Pages of a hostile run in Chromium: what strangers wrote is text, and none of it runs."""

import re

import pandas as pd
import pytest
from hostile_run import EVIL, LINK, make_hostile

import workbench as wb
from workbench.batches.matrix import Cell
from workbench.batches.page import EMPTY, Portfolio, render_index, write_csv
from workbench.report.combined import write_combined

pytestmark = pytest.mark.browser

SAMPLE = wb.sample_run()


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    return make_hostile(tmp_path_factory.mktemp("hostile") / "run")


@pytest.fixture
def open_hostile(open_file):
    """Opens a page, unfolds and clicks what there is, and asserts that nothing ran."""

    def open_one(path):
        page = open_file(path)
        page.on("dialog", lambda dialog: pytest.fail(dialog.message))
        title = page.title()
        page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
        assert page.locator("[onerror], [onload], img[src=x]").count() == 0
        links = page.eval_on_selector_all("[href]", "all => all.map(each => each.href)")
        assert [link for link in links if not link.startswith("file:")] == []
        assert page.title() == title != "ran"
        assert "<script>" in page.locator("body").inner_text() + title
        return page

    return open_one


def test_report_and_explorer(hostile, open_hostile):
    report, *_ = wb.make_report(hostile)
    open_hostile(report)
    page = open_hostile(hostile / "explore.html")
    page.get_by_role("searchbox").fill("script")
    page.keyboard.press("Enter")
    assert page.title() != "ran"


def test_combined(hostile, open_hostile, tmp_path):
    names = [f"{hostile}:avx512_off", f"{hostile}:avx512_on", str(SAMPLE)]
    page, *_ = write_combined(names, tmp_path)
    open_hostile(page)


def test_portfolio(open_hostile, tmp_path):
    axes = (EVIL, EVIL, "fp32", EVIL, "none", "stem")
    texts = ("experiment", "against", "outcome", "bottleneck", "grade")
    row = {**EMPTY, **dict.fromkeys(texts, EVIL), "speedup": 1.5, "share": 0.5, "latency_ms": 2.0}
    failed = dict.fromkeys(("error", "retry", "problem"), f"{EVIL}\ud800")
    cells = (
        Cell(*axes, state="failed", **failed),
        Cell(*axes, state="done", rows=(row,), report=LINK, run=LINK, problem=EVIL),
    )
    (tmp_path / "index.html").write_text(render_index(Portfolio({}, cells, EVIL)))
    page = open_hostile(tmp_path / "index.html")
    page.get_by_role("searchbox").fill("script")
    assert page.locator("#measurements tbody tr:visible").count() == 2
    (tmp_path / "portfolio.csv").write_text(write_csv(cells))
    values = pd.read_csv(tmp_path / "portfolio.csv", dtype=str).to_numpy().ravel()
    assert not any(re.match("[=+@-]", str(value)) for value in values)

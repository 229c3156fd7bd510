"""Pages of a hostile run in Chromium: what strangers wrote is text, and none of it runs."""

import pytest
from hostile_run import make_hostile
from needed import needs

import workbench as wb

pytestmark = pytest.mark.browser

SAMPLE = wb.sample_run()


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    return make_hostile(tmp_path_factory.mktemp("hostile") / "run")


@needs("explorer")
def test_report_and_explorer(hostile, open_hostile):
    report, *_ = wb.make_report(hostile)
    open_hostile(report)
    page = open_hostile(hostile / "explore.html")
    page.get_by_role("searchbox").fill("script")
    page.keyboard.press("Enter")
    assert page.title() != "ran"


def test_combined(hostile, open_hostile, tmp_path, cli):
    names = [f"{hostile}:avx512_off", f"{hostile}:avx512_on", str(SAMPLE)]
    assert cli("report", *names, "--out", tmp_path)[0] == 0
    open_hostile(tmp_path / "combined_report.html")

"""The explorer's page of a projection, in a browser."""

import pytest
from explored import download, read_data
from recorded import recorded

import workbench as wb

pytestmark = pytest.mark.browser
PROJECTED = "projected, not measured: m4-like at sme2"


def leave_one_measurement(document):
    """What a run of one experiment has: no comparison but that with the projection."""
    measured, *_, projected = document["measurements"]
    ab = document["comparisons"][-1] | {"baseline": 0, "candidate": 1}
    document |= {"measurements": [measured, projected], "comparisons": [ab]}


@pytest.mark.parametrize("edit", [None, leave_one_measurement], ids=["ab", "one"])
def test_every_view_says_what_is_projected_and_none_judges_it(open_page, documents, edit):
    run = recorded()
    projection = wb.project(run["avx512_off"], "sme2", "m4-like")
    frame, documents["projected"] = projection.table, read_data(run, projections=[projection])
    page = open_page("projected", state="pair=1&factor=2&ops=0", edit=edit)
    assert page.locator(".big strong").inner_text() == "projected"
    verdict = page.locator(".head").inner_text()
    latency = frame.loc[0, "projected_ms"]
    assert f"m4-like at sme2, projected {latency:#.3g} ms" in verdict and PROJECTED in verdict
    assert "90 % interval" in verdict and "what if" not in verdict
    assert not page.locator(".v-faster, .v-slower").count()
    assert page.locator(".model").inner_text().count(PROJECTED) == 1
    assert "B, projected" in page.locator(".t-heads").inner_text()
    assert set(page.locator(".t-body .t-outcome").all_inner_texts()) <= {"projected", ""}
    hatched = page.locator(".t-bar-b, .cat-row:nth-child(2) .seg")
    images = hatched.evaluate_all("bars => bars.map(bar => getComputedStyle(bar).backgroundImage)")
    assert len(images) > 10 and all("gradient" in image for image in images)
    for view in ("icicle", "graph"):
        page.get_by_role("button", name=view, exact=False).first.click()
        assert PROJECTED in download(page, "Chart as SVG")[0].read_text()
    assert "B, projected, ms" in download(page, "Operators as CSV")[0].read_text()
    assert "has none" in page.locator(".timeline").inner_text()
    assert not page.get_by_role("slider", name="What if it were faster?").is_visible()
    page.keyboard.press("Escape")
    assert "B, projected" in page.locator(".inspector").inner_text()
    page.get_by_role("button", name="Swap").click()
    assert "A, projected" in page.locator(".t-heads").inner_text()
    assert page.locator(".big strong").inner_text() == "projected"
    page = open_page("projected", edit=edit)
    assert "projected" not in page.locator(".answer .verdict").inner_text()
    assert PROJECTED not in page.locator(".model").inner_text()

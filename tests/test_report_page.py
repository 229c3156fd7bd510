"""The pages of a run and of several runs in Chromium, opened from a file without a network."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from recorded import recorded

import workbench as wb

SCREENSHOTS = Path(__file__).resolve().parents[1] / "build" / "screenshots"

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Reports of a run, of an emulated one, and of several runs."""
    folder = tmp_path_factory.mktemp("pages")
    for model in ("mobilenet_v3_small", "toy_cnn"):
        wb.make_report(shutil.copytree(wb.sample_run(model), folder / model))
    sides = [f"{wb.sample_run()}:avx512_off", f"{wb.sample_run()}:avx512_on"]
    runs = [*sides, wb.sample_run("toy_cnn"), "--out", folder / "combined"]
    subprocess.run([sys.executable, "-m", "workbench", "report", *runs], check=True)
    return folder


@pytest.fixture
def open_page(open_file, folder):
    """Opens a report by its folder."""

    def open_one(name="mobilenet_v3_small", *, width=1280, dark=False):
        path = next((folder / name).glob("*report.html"))
        return open_file(path, size=(width, 900), dark=dark)

    return open_one


@pytest.mark.parametrize("name", ["mobilenet_v3_small", "toy_cnn", "combined"])
def test_axe_finds_nothing(open_page, check_axe, name):
    page = open_page(name)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")  # unfolds everything
    check_axe(page)


@pytest.mark.parametrize("name", ["mobilenet_v3_small", "combined"])
def test_every_link_leads_to_its_section(open_page, folder, name):
    page = open_page(name)
    links = [link.get_attribute("href") for link in page.locator("a").all()]
    assert len(links) > 3
    for link in links:
        if link.startswith("#"):
            assert page.locator(f"[id='{link[1:]}']").count() == 1
        else:
            assert (folder / name / link).is_file()
    contents = page.locator("#contents + ul a")
    headings = page.locator("h2").all_inner_texts()
    listed = contents.all_inner_texts()
    assert listed == headings[headings.index("Contents") + 1 :]
    contents.last.click()
    last = page.locator("h2").last
    assert page.evaluate("h => h.getBoundingClientRect().top < innerHeight", last.element_handle())


def test_it_leads_with_the_verdict_and_the_best_findings(open_page):
    page, run = open_page(), recorded()
    shown = page.locator("main").inner_text()
    for text in (*run.facts, run.compare().text, *run.caveats):
        assert shown.index(text) < shown.index("What to do next?")
    cards = page.locator("ol[style] > li")
    assert cards.count() == 3
    for card, finding in zip(cards.all(), run.findings.itertuples(), strict=False):
        assert finding.title[1:] in card.inner_text()
        assert card.locator("pre").inner_text() == finding.hint
    assert shown.index("Contents") < shown.index("How long does one inference take?")


def test_a_command_is_copied_whole(open_page):
    page = open_page()
    command = page.locator("pre").first.inner_text()
    assert command.startswith("workbench profile mobilenet_v3_small")
    button = page.get_by_role("button", name="Copy").first
    button.press("Enter")
    page.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == command


@pytest.mark.parametrize("name", ["mobilenet_v3_small", "combined"])
def test_a_phone_scrolls_tables_and_figures_but_not_the_page(open_page, name):
    page = open_page(name, width=390)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    for figure in page.locator("img").all():
        assert figure.bounding_box()["width"] > 600
        assert figure.locator("xpath=..").get_attribute("tabindex") == "0"
    page.screenshot(path=SCREENSHOTS / f"{name}-390.png", full_page=True)


def test_in_the_dark_the_page_is_dark_and_figures_have_a_light_ground(open_page):
    page = open_page(dark=True)
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert max(map(int, ground[4:-1].split(", "))) < 64
    page.screenshot(path=SCREENSHOTS / "report-dark.png")


def test_it_prints_everything_and_no_controls(open_page):
    page = open_page()
    folded = page.locator("details")
    assert folded.count() and not folded.first.evaluate("details => details.open")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert all(each.evaluate("details => details.open") for each in folded.all())
    assert page.locator("button:visible").count() == 0
    assert page.pdf()[:4] == b"%PDF"


def test_tables_sort_by_keyboard(open_page):
    head = open_page().locator("th", has_text="speedup").first
    head.press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"

"""The pages of a run and of several runs in Chromium, opened from a file without a network."""

import io
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from changed_runs import change_manifest
from explored import read_data
from needed import needs
from PIL import Image
from recorded import plain, recorded

import workbench as wb

SCREENSHOTS = Path(__file__).resolve().parents[1] / "build" / "screenshots"

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Reports of a run, of one with few restarts, of others, and of several runs."""
    folder = tmp_path_factory.mktemp("pages")
    for model in ("mobilenet_v3_small", "toy_cnn", "smollm2"):
        wb.make_report(shutil.copytree(wb.sample_run(model), folder / model))
    few = shutil.copytree(wb.sample_run(), folder / "few")
    sessions = recorded().record.sessions
    change_manifest(few, sessions=tuple(each for each in sessions if each.process < 4))
    wb.make_report(few)
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


@needs("explorer")
@pytest.mark.parametrize("name", ["mobilenet_v3_small", "combined"])
def test_every_link_leads_to_its_section(open_page, folder, name):
    page = open_page(name)
    links = [link.get_attribute("href") for link in page.locator("a").all()]
    assert len(links) > 3 and links.count("explore.html") == (1 if name != "combined" else 0)
    for link in links:
        if link.startswith("#"):
            assert page.locator(f"[id='{link[1:]}']").count() == 1
        else:
            assert (folder / name / link).is_file()
    contents = page.get_by_role("navigation").get_by_role("link")
    headings = page.locator("h2").all_inner_texts()
    assert ["Contents", *contents.all_inner_texts()] == sorted(headings, key="Contents".__ne__)
    contents.last.click()
    assert page.locator("h2").last.evaluate("h => h.getBoundingClientRect().top < innerHeight")
    # On a wide screen, the contents follow and mark what is read; else they are in the text.
    current = page.locator("nav [aria-current=true]")
    current.filter(has_text=headings[-1]).wait_for()
    assert contents.first.is_visible() and contents.first.bounding_box()["y"] > 0
    page.set_viewport_size({"width": 900, "height": 900})
    page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    assert contents.first.bounding_box()["y"] < 0


def test_it_leads_with_the_verdict_and_the_best_findings(open_page, folder):
    page, run = open_page("few"), wb.open_run(folder / "few")
    caveats = page.locator("summary", has_text="caveat").first
    assert caveats.inner_text().startswith("1 caveat: measurement quality C: ")
    caveats.click(position={"x": 8, "y": 8})  # not on a link
    shown = plain(page.locator("main").inner_text())
    for text in (*run.facts, run.compare().text, *run.caveats):
        assert shown.index(text) < shown.index("What to do about each finding?")
    cards = page.locator("ol[style]:not(.lead) > li")
    assert cards.count() == 3 and not cards.first.is_visible()
    page.locator("summary", has_text="What to do about each finding?").click()
    findings = next(m["findings"] for m in read_data(run)["measurements"] if m["findings"])
    for card, finding in zip(cards.all(), findings, strict=False):
        assert finding["title"][1:] in plain(card.inner_text())
        hint = finding["hint"]
        assert card.locator("pre").all_inner_texts() == [hint] * bool(hint)
    # What many rows explain is folded, heads say what they mean, and no heading is empty.
    folds = page.get_by_role("group").filter(has_text="Largest activations")
    assert folds.count() and folds.last.locator("table").last.is_hidden()
    rates = page.locator("th[title]", has_text="gbps").first
    assert "bytes" in rates.get_attribute("title")
    ends = "all => all.map(h => h.nextElementSibling?.tagName ?? 'NAV').filter(n => n === 'H2')"
    assert page.locator("h2").evaluate_all(ends) == []
    page.get_by_role("link", name="noise floor").click()
    terms = page.locator("summary:has(#terms) + p")
    terms.wait_for()  # the section opens after the click
    assert "notebooks explain each term" in terms.inner_text()


@pytest.mark.parametrize("size", [(1366, 768), (390, 844)])
def test_the_first_screen_is_the_answer_and_four_are_all(open_file, folder, size):
    page = open_file(folder / "few" / "report.html", size=size)
    answer = page.locator("blockquote").first
    bars = page.get_by_role("img", name="GEMM")
    findings, step = page.locator(".lead > li"), page.locator(".next")
    caveats = page.locator("summary", has_text="caveat").first
    for part, count in ((answer, 1), (bars, 2), (findings, 3), (step, 1), (caveats, 1)):
        assert part.count() >= count
        box = part.nth(count - 1).bounding_box()
        assert box["y"] > 0 and box["y"] + box["height"] <= size[1]
        assert box["x"] + box["width"] <= size[0]
    shares = (
        wb.open_run(folder / "few").compare().baseline.categories.set_index("category")["mean_ms"]
    )
    gemm = 100 * shares["GEMM"] / shares.sum()
    assert f"GEMM {gemm:.0f} %" in bars.first.get_attribute("aria-label")
    assert page.evaluate("document.documentElement.scrollHeight") <= 4 * size[1]


def test_a_language_model_begins_with_its_phases(open_page):
    page = open_page("smollm2")
    rates = page.locator("table").first.locator("th", has_text="rate (token/s)")
    page.set_viewport_size({"width": 390, "height": 844})
    box = rates.bounding_box()
    assert box["x"] + box["width"] < 390 and box["y"] < 400
    decode = page.locator("table").first.locator("tr", has_text="decode_avx512_on")
    rate = recorded("smollm2").phases.set_index("experiment").loc["decode_avx512_on", "rate"]
    assert f"{rate:.0f}" in decode.inner_text().replace("\N{THIN SPACE}", "")


def test_several_runs_are_answered_first_and_their_latencies_are_side_by_side(open_page):
    page = open_page("combined", width=390)
    sides = ["linux, mobilenet_v3_small, avx512_on", "toy_cnn", "avx512_off"]
    title = page.locator("h1").inner_text()
    assert sides[0] in title and title.index(sides[1]) < title.index("against")
    answer = plain(page.locator("blockquote p").first.inner_text())
    ab = recorded().compare()
    speedup = f"{ab.verdict.speedup:.2f}x"
    assert answer.startswith(f"{speedup} faster (95 % interval")
    table = page.locator("table", has_text="latency (ms)").first
    assert table.locator("th").all_inner_texts()[1] == "latency (ms)"
    times = [f"{side.latency_ms:.2f}" for side in (ab.baseline, ab.candidate)]
    assert table.locator("td:nth-child(2)").all_inner_texts() == [*times, "\N{EN DASH}"]
    assert speedup in table.locator("tr").nth(2).inner_text()


def test_a_command_is_copied_whole(open_page):
    page = open_page()
    page.locator("summary", has_text="What to do about each finding?").click()
    command = page.locator("pre").first.inner_text()
    assert command.startswith("workbench profile mobilenet_v3_small")
    button = page.get_by_role("button", name="Copy").first
    button.press("Enter")
    page.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == command


#: The arrows and options of a page that are on two lines.
BROKEN = r"""() => {
  const broken = [], range = document.createRange();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode;
    for (const found of text.data.matchAll(/->|(?<=^|\s)--[a-z][\w-]+/g)) {
      range.setStart(text, found.index);
      range.setEnd(text, found.index + found[0].length);
      const lines = [...range.getClientRects()].map(box => Math.round(box.top));
      if (new Set(lines).size > 1) broken.push(found[0]);
    }
  }
  return broken;
}"""


@pytest.mark.parametrize("name", ["mobilenet_v3_small", "combined"])
def test_a_phone_scrolls_tables_and_figures_but_not_the_page(open_page, name):
    page = open_page(name, width=390)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.evaluate("dispatchEvent(new Event('beforeprint'))")  # opens the sections
    page.wait_for_timeout(200)
    for figure in page.locator("img").all():
        assert figure.bounding_box()["width"] > 600
        assert figure.locator("xpath=..").get_attribute("tabindex") == "0"
    broken = page.evaluate(BROKEN)
    assert broken == []
    page.screenshot(path=SCREENSHOTS / f"{name}-390.png", full_page=True)


def test_in_the_dark_the_page_and_its_figures_are_dark(open_page):
    page = open_page(dark=True)
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert max(map(int, ground[4:-1].split(", "))) < 64
    figure = page.get_by_role("img", name="Latency of every inference").first
    figure.scroll_into_view_if_needed()
    colors = Image.open(io.BytesIO(figure.screenshot())).convert("L").getcolors(256)
    assert max(colors)[1] < 64
    page.screenshot(path=SCREENSHOTS / "report-dark.png")


def test_it_prints_every_section_with_its_figure_and_nothing_is_cut(open_page):
    page = open_page(width=718)  # A4 without its margins
    sections = page.locator("details.section")
    assert sections.count() >= 5 and not sections.first.evaluate("details => details.open")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert all(each.evaluate("details => details.open") for each in sections.all())
    assert page.locator("button:visible").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 718
    for part in page.locator("table:visible, img:visible").all():
        box = part.bounding_box()
        assert box["x"] + box["width"] <= 719
    # What stands between a head and its figure keeps them together.
    assert page.evaluate(LOOSE) == []
    assert page.pdf()[:4] == b"%PDF"


#: Heads, and paragraphs after them, that a page may end with.
LOOSE = """() => [...document.querySelectorAll("h2")].filter(head => {
  let part = head.closest("summary") ?? head;
  for (; part && !part.matches(".output"); part = part.nextElementSibling)
    if (getComputedStyle(part).breakAfter !== "avoid") return part.matches("p");
  return false;
}).map(head => head.textContent)"""


def test_tables_sort_by_keyboard(open_page):
    head = open_page().locator("th", has_text="speedup").first
    head.press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"


def test_the_source_has_its_times_without_a_script(browser, folder):
    context = browser.new_context(java_script_enabled=False, offline=True)
    page = context.new_page()
    page.goto((folder / "mobilenet_v3_small" / "report.html").as_uri())
    line = page.locator(".wb-src .r.t", has_text="return x * self.scale_activation(gate)")
    assert not line.is_visible()
    page.get_by_role("heading", name="Which layers and lines?").click()
    assert line.is_visible() and "%" in line.inner_text()
    layers = page.locator(".wb-src td", has_text="features.1.block.1").first
    assert not layers.is_visible()
    page.locator(".wb-src summary", has_text="layers ran this line").last.click()
    assert page.locator(".wb-src td:visible").count() > 9
    context.close()

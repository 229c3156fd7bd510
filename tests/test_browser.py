"""The notebooks in JupyterLab in a real browser: run, controls moved, figures seen to change."""

import base64
import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import nbformat
import pytest
from needed import needs
from PIL import Image

import workbench as wb

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SCREENSHOTS = ROOT / "build" / "screenshots"
#: What JupyterLab itself complains of where there is no git.
HARMLESS = re.compile(
    r"net::ERR_|favicon|/lsp/|Failed to load resource|service worker"
    r"|Kernel message validation error"  # a message that came before its protocol was agreed
    r"|widget model not found",  # of a saved notebook
    re.I,
)
#: Whatever a person can turn in a cell's output, beside buttons that measure.
CONTROLS = ".jupyter-widgets :is(select, input, button, .noUi-handle):not(.wb-findings *)"
#: Milliseconds: for a kernel to start or an export to be made, and for a figure to be drawn anew.
LONG, SHORT = 300_000, 90_000
#: What selects a part of the model by the keyboard.
MODEL_KEYS = ("ArrowDown", "ArrowDown", "Enter")
# What a cell shows: of figures the bytes, of tables and notes the text.
SEEN = (
    "cell => [...cell.querySelectorAll('.jp-OutputArea-output :is(img, table, blockquote, pre,"
    " [role=alert])')].map(shown => shown.src || shown.innerText).join('|')"
)
# Of every text the contrast with its ground, as WCAG has it.
CONTRASTS = """
selector => {
  const channels = color => color.match(/[\\d.]+/g).map(Number);
  const luminance = color => channels(color).slice(0, 3).map(c => c / 255)
    .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = node => {
    const color = getComputedStyle(node).backgroundColor;
    return (channels(color)[3] ?? 1) > 0.5 ? color : ground(node.parentElement);
  };
  return [...document.querySelectorAll(selector)].filter(node => node.innerText || node.value)
    .map(node => [getComputedStyle(node).color, ground(node)].map(luminance).sort((a, b) => a - b))
    .map(([low, high]) => (high + 0.05) / (low + 0.05));
}
"""
# The heads of tables that do not fit into the page.
WIDER = """
() => [...document.querySelectorAll('.jp-OutputArea-output table')]
  .filter(table => table.checkVisibility())
  .filter(table => table.offsetWidth > table.parentElement.clientWidth)
  .map(table => table.tHead.innerText)
"""
IDLE = (
    "() => window.jupyterapp?.shell.currentWidget?.context?.sessionContext"
    "?.session?.kernel?.status === 'idle'"
)

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]


@pytest.fixture(scope="session")
def lab_folder(tmp_path_factory):
    """The folder of the copy of the checkout that JupyterLab opens."""
    return tmp_path_factory.mktemp("lab")


@pytest.fixture(scope="session")
def lab(lab_folder):
    """What `workbench lab` opens, on a copy of the checkout; its address and token."""
    folder = lab_folder
    for name in ("notebooks", "workbench", "data"):
        ignored = shutil.ignore_patterns("out_*")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored, symlinks=True)
    shutil.copytree(ROOT / "data" / "samples", folder / "data" / "samples", dirs_exist_ok=True)
    settings = {
        # All cells are in the page, not only those in sight.
        "notebook-extension/tracker": {"windowingMode": "none"},
    }
    for name, values in settings.items():
        path = folder / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(values))
    arguments = ["lab", "--no-browser", "--allow-root", "--port=0", "--expose-app-in-browser"]
    address = re.compile(r"(http://127\.0\.0\.1:\d+)/lab\S*\?token=(\w+)")
    with serve(folder, arguments, address) as found:
        yield found.groups()


@pytest.fixture(scope="session")
def lab_files(lab_folder):
    """A run, a trace, a program and a broken trace in JupyterLab's folder."""
    files = lab_folder / "notebooks" / "files"
    shutil.copytree(wb.sample_run("toy_cnn"), files / "run")
    recorded = ROOT / "tests/data/etdump"
    shutil.copy(recorded / "mobilenet_v3_small.etdump", files / "trace.etdump")
    shutil.copy(recorded / "two_methods.pte", files / "net.pte")
    for name, model in (("before", "AsTrained"), ("after", "Ready")):
        shutil.copytree(wb.sample_run(model), files / name)
    (files / "other").mkdir()
    (files / "other" / "manifest.json").write_text('{"name": "a browser extension"}')
    (files / "bad.etdump").write_bytes(b"<img src=x onerror=alert(1)>")


@contextlib.contextmanager
def serve(folder, arguments, address):
    """Run a command of the workbench that serves pages, until its log has the address."""
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    settings = {
        "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"),
        "PYTHONPATH": path,
    }
    log = folder / "server.log"
    with log.open("wb") as file:
        server = subprocess.Popen(
            [sys.executable, "-m", "workbench", *arguments],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=os.environ | settings,
            cwd=folder,
        )
    try:
        deadline = time.monotonic() + 120
        while not (found := address.search(log.read_text())):
            alive = server.poll() is None and time.monotonic() < deadline
            assert alive, f"no server: {log.read_text()[-2000:]}"
            time.sleep(0.3)
        yield found
    finally:
        server.terminate()
        server.wait(30)


@pytest.fixture
def page(browser):
    """A page 1280 pixels wide; fails if it complains."""
    page = browser.new_page(viewport={"width": 1280, "height": 2200})
    complaints = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "console",
        lambda m: m.type == "error" and not HARMLESS.search(m.text) and complaints.append(m.text),
    )
    yield page
    page.close()
    assert complaints == []


def keep(shown, name):
    """A screenshot, as an artefact of the test."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    shown.screenshot(path=SCREENSHOTS / f"{name}.png")


@pytest.fixture
def open_notebook(lab, page):
    """Opens a notebook and runs all its cells; closing it ends its kernel."""
    address, token = lab

    def open_(name):
        page.goto(f"{address}/lab/tree/{name}?token={token}&reset")
        page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=SHORT)
        rest(page)
        page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-all-cells')")
        page.wait_for_function(
            "() => [...document.querySelectorAll('.jp-InputPrompt')]"
            ".every(prompt => !prompt.textContent.includes('*'))",
            timeout=LONG,
        )
        rest(page)
        return page

    yield open_
    page.evaluate(
        "() => window.jupyterapp?.shell.currentWidget?.context?.sessionContext?.shutdown()"
    )


def rest(page):
    """Wait until the kernel has nothing to do."""
    page.wait_for_function(IDLE, timeout=LONG)


def complaints_of(page):
    """What cells wrote in red, and what their controls refused."""
    red = ", ".join(
        f'[data-mime-type="application/vnd.jupyter.{kind}"]' for kind in ("error", "stderr")
    )
    return page.locator(f"{red}, .jp-OutputArea-output [role=alert]").all_inner_texts()


def sees_change(cell, page, act):
    """Do something; the figure, table or note of the cell has to come to rest as another one.

    It rests once the kernel has been idle and nothing has changed for a second: what a control
    sends is on its way for a while, and a view may consist of several outputs.
    """
    before = last = cell.evaluate(SEEN)
    act()
    deadline, since = time.monotonic() + SHORT / 1000, time.monotonic()
    while time.monotonic() < since + 1 or last in ("", before):
        assert time.monotonic() < deadline, f"nothing changed: {complaints_of(page)}"
        page.wait_for_timeout(200)
        seen = cell.evaluate(SEEN)
        if seen != last or not page.evaluate(IDLE):
            last, since = seen, time.monotonic()


def move_controls(cell, page):
    """Move every control of a cell and see its view change; returns how many there were."""
    moved = 0
    for menu in cell.locator(".jupyter-widgets select:not([multiple])").all():
        assert menu.locator("option").count() > 1
        # Cells may share a list, which an earlier one has moved already.
        following = menu.evaluate("menu => (menu.selectedIndex + 1) % menu.length")
        sees_change(cell, page, lambda menu=menu, n=following: menu.select_option(index=n))
        moved += 1
    for slider in cell.locator(".jupyter-widgets .noUi-handle").all():
        at_end = slider.get_attribute("aria-valuenow") == slider.get_attribute("aria-valuemax")
        slider.focus()
        key = "ArrowLeft" if at_end else "ArrowRight"
        sees_change(cell, page, lambda key=key: page.keyboard.press(key))
        moved += 1
    for box in cell.locator(".jupyter-widgets input[type=checkbox]").all():
        sees_change(cell, page, box.click)
        moved += 1
    for choice in cell.locator(".jupyter-widgets select[multiple]").all():
        last = choice.locator("option").count() - 1
        sees_change(cell, page, lambda c=choice, n=last: c.select_option(index=[0, n]))
        moved += 1
    start, stop = (cell.get_by_role("button", name=name) for name in ("Start", "Stop"))
    if start.count():
        start.click()
        cell.locator(".jupyter-widgets img:visible").wait_for(timeout=LONG)
        stop.click()
        words = re.compile("stopped; Start resumes|done: ")
        cell.get_by_text(words).filter(visible=True).wait_for(timeout=LONG)  # not in its still
        moved += 2
    return moved


def use_explorer(cell):
    """Select a category, or a part of the model; the explorer's own tests do the rest."""
    explorer = cell.locator(".wb-explorer")
    chosen = explorer.locator(":is(.chip, .t-body .t-row, canvas):visible").first
    if chosen.evaluate("e => e.matches('canvas')"):
        chosen.focus()
        for key in MODEL_KEYS:
            chosen.press(key)
    else:
        chosen.click()
    assert explorer.locator(".crumbs li").count() > 1
    assert explorer.evaluate("e => e.scrollWidth <= e.parentElement.clientWidth")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_without_a_red_cell_and_its_controls_change_the_view(path, open_notebook):
    page = open_notebook(path.name)
    assert complaints_of(page) == []
    for number, cell in enumerate(page.locator(".jp-CodeCell:has(.jp-OutputArea-output)").all()):
        cell.scroll_into_view_if_needed()
        keep(cell, f"{path.stem}-{number:02d}")
        if cell.locator(".wb-explorer").count():
            use_explorer(cell)
        elif cell.locator(CONTROLS).count():
            assert move_controls(cell, page) == cell.locator(CONTROLS).count()
            keep(cell, f"{path.stem}-{number:02d}-moved")
    assert complaints_of(page) == []
    assert page.evaluate(WIDER) == []


CELLS = [
    "import torch\nfrom torch import nn\nimport workbench as wb\nx, runs = torch.ones(1, 512), []",
    "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    "        self.hidden = nn.Linear(512, 4096)\n\n    def forward(self, x):\n"
    "        return self.hidden(x).relu()",
    "runs.append(wb.profile(Net(), x, effort='quick'))\n"
    "wb.compare(*runs).text if runs[1:] else sorted({*runs[0].operators['source'].dropna()})",
]


def write_notebook(lab, name, cells):
    address, token = lab
    notebook = nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, cells)])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    body = json.dumps({"type": "notebook", "content": notebook}).encode()
    place = f"{address}/api/contents/{name}?token={token}"
    urllib.request.urlopen(urllib.request.Request(place, body, method="PUT"))


def test_a_module_in_a_cell_is_profiled_edited_and_compared(lab, open_notebook):
    write_notebook(lab, "mine.ipynb", CELLS)
    page = open_notebook("mine.ipynb")
    assert complaints_of(page) == []
    output = page.locator(".jp-CodeCell").nth(2).locator(".jp-OutputArea-output").last
    assert output.inner_text() == "['In [2]:7']"
    page.evaluate(
        "() => { const cell = jupyterapp.shell.currentWidget.content.widgets[1].model.sharedModel;"
        " cell.setSource(cell.source.replaceAll('4096', '512')) }"
    )
    for number in (1, 2):
        page.evaluate(
            f"() => {{ jupyterapp.shell.currentWidget.content.activeCellIndex = {number} }}"
        )
        page.evaluate("() => jupyterapp.commands.execute('notebook:run-cell')")
        rest(page)
    keep(page, "edited-module")
    assert complaints_of(page) == []
    assert re.search(r"Net \(after\) against Net \(before\): .* faster", output.inner_text())


PADDED = [
    "import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n\n"
    "import workbench as wb",
    "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    "        self.last = nn.Conv2d(16, 8, 3)\n\n    def forward(self, x):\n"
    '        return self.last(F.pad(x, (2, 2, 2, 2), mode="reflect"))',
    "run = wb.profile(Net(), torch.randn(1, 16, 48, 48), effort='quick')\nrun.findings",
]


def test_a_click_applies_a_finding_and_the_saved_notebook_keeps_its_bar(
    lab, lab_folder, open_notebook
):
    write_notebook(lab, "apply.ipynb", PADDED)
    page = open_notebook("apply.ipynb")
    assert complaints_of(page) == []
    cell = page.locator(".jp-CodeCell").nth(2)
    bars = cell.get_by_role("img").filter(visible=True)
    before = bars.count()
    cell.get_by_role("button", name="Apply").first.click()
    cell.get_by_text(re.compile("^Applied: ")).filter(visible=True).wait_for(timeout=LONG)
    rest(page)
    assert bars.count() == before + 2 and complaints_of(page) == []
    assert cell.get_by_text("+++ In [2]").filter(visible=True).count() == 1
    assert cell.get_by_text("+import torch").count() == 0, "another cell has done so"
    keep(page, "applied")
    page.evaluate("() => jupyterapp.commands.execute('docmanager:save')")
    page.wait_for_timeout(2000)
    saved = nbformat.read(lab_folder / "notebooks" / "apply.ipynb", 4).cells[2]
    pages = "".join(output.data.get("text/html", "") for output in saved.outputs)
    assert pages.count('role="img"') == 2 and "+++ In [2]" in pages and "Applied: " in pages


def test_arrow_keys_choose_in_a_list_and_the_focus_is_seen(open_notebook):
    page = open_notebook("02_export_a_model.ipynb")
    cell = page.locator(".jp-CodeCell:has(.jupyter-widgets select)").first
    menu = cell.locator(".jupyter-widgets select")
    menu.focus()
    sees_change(cell, page, lambda: page.keyboard.press("ArrowDown"))
    assert menu.evaluate("menu => menu === document.activeElement && menu.selectedIndex") == 1
    assert menu.evaluate("menu => getComputedStyle(menu).outlineWidth") == "2px"


def test_the_other_levels_follow_once_the_first_comparison_is_drawn(open_notebook):
    page = open_notebook("06_bottleneck_shift.ipynb")
    explorer = page.locator(".wb-explorer").last
    explorer.get_by_text("Reading 5 more comparisons").wait_for(state="detached", timeout=SHORT)
    assert explorer.locator(".cat-row").count() == 6


def test_a_picked_run_is_explored(open_notebook, capsys):
    page = open_notebook("05_categories_and_the_ledger.ipynb")
    menu = page.get_by_label("run", exact=True)
    start = time.monotonic()
    menu.select_option(label="vit_tiny, linux (recorded)")
    page.get_by_text("reading vit_tiny, linux (recorded) ...").last.wait_for(timeout=SHORT)
    last = page.locator(".wb-explorer").last
    last.locator("h1", has_text="vit_tiny").wait_for(timeout=SHORT)
    rest(page)
    assert page.locator(".wb-reading").count() == 0
    with capsys.disabled():
        print(f" picked run drawn after {time.monotonic() - start:.1f} s", end=" ")
    explorer = page.locator(".wb-explorer").last
    explorer.locator(".chip").first.click()
    assert explorer.locator(".crumbs li").count() == 2
    assert float(explorer.get_attribute("data-drawn-ms")) < 100


@needs("batch")
def test_the_users_runs_are_first_in_the_lists(lab_folder, open_notebook):
    """Notebooks write them beside themselves, where their kernels stand."""
    mine = lab_folder / "notebooks" / "out_mine" / "runs" / "today"
    shutil.copytree(wb.sample_run("vit_tiny"), mine)
    try:
        page = open_notebook("05_categories_and_the_ledger.ipynb")
        names = page.get_by_label("run", exact=True).locator("option").all_inner_texts()
        page = open_notebook("14_many_models.ipynb")
        lists = page.locator("select[multiple]")
        measured = lists.first.locator("option").all_inner_texts()
    finally:
        shutil.rmtree(mine.parents[1])
    for shown in (names, measured):
        listed = [" ".join(name.split()) for name in shown]  # some spaces do not break
        mine = [name for name in listed if "(recorded)" not in name]
        assert any(name.startswith("vit_tiny, linux") for name in mine), listed
        assert listed[: len(mine)] == mine and len(listed) > len(mine)


@pytest.mark.parametrize("name", ["06_bottleneck_shift"])
def test_a_saved_notebook_shows_its_answers_without_a_kernel(name, lab_folder, open_notebook):
    page, path = open_notebook(f"{name}.ipynb"), lab_folder / "notebooks" / f"{name}.ipynb"
    stills = page.locator("[class^=wb-still-]")
    before = path.read_bytes()
    assert stills.count() > 2 and not any(still.is_visible() for still in stills.all())
    try:
        page.evaluate("() => jupyterapp.commands.execute('docmanager:save')")
        page.evaluate("() => jupyterapp.shell.currentWidget.context.sessionContext.shutdown()")
        page.reload()
        page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=SHORT)
        rest(page)  # of a new kernel
        page.wait_for_timeout(2000)
        keep(page, f"saved-{name}")
        assert stills.count() > 2 and all(still.is_visible() for still in stills.all())
        places = page.get_by_text(re.compile("Loading widget|Error displaying widget")).all()
        assert not any(place.is_visible() for place in places)
    finally:
        path.write_bytes(before)


@pytest.mark.parametrize("name", ["07_drill_down_to_layers", "11_onboard_your_model"])
def test_what_is_selected_in_the_explorer_drives_the_list_below(name, open_notebook):
    page = open_notebook(f"{name}.ipynb")
    explored = page.locator(".jp-CodeCell", has=page.locator(".wb-explorer")).last
    following = explored.locator(".jp-OutputArea-child").last
    chosen = explored.locator(":is(.chip, canvas):visible").first
    if chosen.evaluate("e => e.matches('canvas')"):
        chosen.focus()
        sees_change(following, page, lambda: [page.keyboard.press(k) for k in MODEL_KEYS])
    else:
        sees_change(following, page, chosen.click)


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("08_kernel_evidence", "sme2_on", "avx512_on"),
        ("10_on_a_device", "MaxPooling2d", "BatchMatrixMultiply"),
        ("13_language_models", "custom_sdpa", "logical_not"),
    ],
)
def test_all_cells_follow_the_run_that_is_picked(name, before, after, open_notebook):
    page = open_notebook(f"{name}.ipynb")
    later = page.locator(".jp-CodeCell:has(select) ~ .jp-CodeCell .jp-OutputArea-output:visible")
    assert later.get_by_text(before).count() and not later.get_by_text(after).count()
    page.get_by_label("run", exact=True).select_option(label="vit_tiny, linux (recorded)")
    later.get_by_text(after).filter(visible=True).first.wait_for(timeout=SHORT)
    rest(page)
    assert not later.get_by_text(before).filter(visible=True).count()
    assert complaints_of(page) == []


def test_the_next_inference_is_another_one(open_notebook):
    page = open_notebook("04_read_a_trace.ipynb")
    timeline = page.locator(".wb-explorer .timeline").first
    shown = int(re.search(r"pair (\d+) of", timeline.inner_text())[1])
    timeline.get_by_role("button", name="Next inference ( ] )").click()
    assert not re.search(rf"pair {shown} of", timeline.inner_text())


def test_sliders_predict_what_a_faster_part_brings(open_notebook):
    page = open_notebook("09_what_if_and_roofline.ipynb")
    categories = page.locator(".wb-explorer").first
    measured, predicted = categories.locator(".cat-row > .num").all()
    share = int(re.search(r"Convolution (\d+) %", categories.inner_text())[1]) / 100
    categories.get_by_role("slider", name="Convolution").press("End")  # removed
    part = 1 - float(predicted.inner_text().split()[0]) / float(measured.inner_text().split()[0])
    assert part == pytest.approx(share, abs=0.01)
    keep(page, "what-if")


def test_a_prediction_is_compared_with_another_measurement(open_notebook):
    """It is made of the recording before an edit, and meets the one after it, but not exactly."""
    page = open_notebook("09_what_if_and_roofline.ipynb")
    cell = page.locator("blockquote", has_text="Measured after it: ").last
    predicted, after = map(float, re.findall(r"([\d.]+)\sms", cell.inner_text()))
    edited = wb.open_run(wb.sample_run("Edited")).compare()
    assert after == pytest.approx(edited.candidate.latency_ms, rel=0.01)
    assert after != predicted and predicted == pytest.approx(after, rel=0.1)


def test_words_filter_the_page_of_a_batch(open_notebook):
    page = open_notebook("14_many_models.ipynb")
    batch = page.frame_locator("iframe[title=Batch]")
    rows = batch.locator("tbody tr:visible")
    several = rows.count()
    batch.get_by_label("words").fill("vit_tiny")
    rows.filter(has_text="mobilenet").first.wait_for(state="detached", timeout=SHORT)
    assert 0 < rows.count() < several


def test_a_folded_answer_names_the_layer_that_loses(open_notebook):
    page = open_notebook("15_other_runtimes.ipynb")
    answer = page.locator("details", has_text="Answer").last
    assert not answer.locator("blockquote").is_visible()
    answer.locator("summary").click()
    assert re.fullmatch(r".+: \+\d\.\d+\sms", answer.locator("blockquote").inner_text().strip())


def test_a_folded_table_of_the_report_opens(open_notebook):
    page = open_notebook("16_report.ipynb")
    fold = page.locator("details", has=page.locator("table")).first
    assert not fold.locator("table").first.is_visible()
    fold.locator("summary").first.click()
    assert fold.locator("table").first.is_visible()


def test_in_the_dark_texts_are_bright_and_figures_have_a_dark_ground(open_notebook):
    page = open_notebook("06_bottleneck_shift.ipynb")
    set_theme(page, "JupyterLab Dark")
    for number, cell in enumerate(page.locator(".jp-CodeCell:has(.jp-OutputArea-output)").all()):
        cell.scroll_into_view_if_needed()
        keep(cell, f"dark-{number:02d}")
    assert min(page.evaluate(CONTRASTS, ".jp-OutputArea-output :is(th, td, pre)")) > 4.5
    explorer = page.locator(".wb-explorer").first
    assert explorer.get_attribute("data-theme") == "dark"
    assert explorer.locator(".seg span", has_text="%").count() > 1
    assert min(page.evaluate(CONTRASTS, ".wb-explorer :is(p, dd, dt, h1, h2)")) > 4.5
    figures = page.locator("img.wb-figure").filter(visible=True)
    assert figures.count() > 1 and all(ground_of(figure) < 64 for figure in figures.all())
    set_theme(page, "JupyterLab Light")
    assert all(ground_of(figure) == 255 for figure in figures.all())


def ground_of(figure):
    """How bright most of a figure is."""
    picture = Image.open(io.BytesIO(figure.screenshot())).convert("L")
    return max(picture.getcolors(256))[1]


def set_theme(page, name):
    page.evaluate(
        "theme => window.jupyterapp.commands.execute('apputils:change-theme', { theme })", name
    )
    dark = "false" if name.endswith("Dark") else "true"
    page.wait_for_function(f"() => document.body.dataset.jpThemeLight === '{dark}'")
    page.wait_for_timeout(1000)


def test_lab_opens_on_the_list_of_notebooks(lab, page):
    address, token = lab
    page.goto(f"{address}/?token={token}")
    page.get_by_role("heading", name="The learning path").wait_for(timeout=SHORT)
    keep(page, "lab")
    page.get_by_role("link", name="01_first_profile").click()
    page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=SHORT)


def test_the_documentation_opens_from_a_file_and_is_searched_without_a_network(page):
    site = ROOT / "build" / "docs"
    if not (site / "index.html").is_file():
        pytest.skip("not built: python3 dev.py docs")
    requests = []
    page.on("request", lambda request: requests.append(request.url))
    page.context.set_offline(True)
    page.goto((site / "index.html").as_uri())
    page.get_by_role("textbox", name="Search").fill("roofline")
    page.keyboard.press("Enter")
    found = page.locator("ul.search a")
    found.nth(5).wait_for(timeout=SHORT)  # results appear one by one
    keep(page, "documentation-search")
    found.first.click()
    page.wait_for_selector("h1", timeout=SHORT)
    page.goto((site / "notebooks" / "01_first_profile.html").as_uri())
    assert page.locator("img").count() >= 1
    keep(page, "documentation-notebook")
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []


@pytest.mark.parametrize(
    "name", ["data/docs/index", "data/docs/how_do_i", "notebooks/01_first_profile"]
)
def test_axe_finds_nothing_in_the_documentation(page, check_axe, name):
    site = ROOT / "build" / "docs"
    if not (site / "index.html").is_file():
        pytest.skip("not built: python3 dev.py docs")
    page.goto((site / f"{name}.html").as_uri())
    check_axe(page)


def test_the_report_opens_from_a_file_without_a_network(page, tmp_path):
    run_dir = shutil.copytree(wb.sample_run(), tmp_path / "run")
    report, *_ = (path for path in wb.make_report(run_dir) if path.suffix == ".html")
    requests = []
    page.on("request", lambda request: requests.append(request.url))
    page.context.set_offline(True)
    page.goto(report.as_uri())
    head = page.locator("th", has_text="speedup").first
    head.click()
    assert head.get_attribute("aria-sort")
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
    for number, section in enumerate(page.locator("img").all()):
        assert section.get_attribute("alt")
        if section.is_visible():  # not in a folded section
            keep(section, f"report-{number:02d}")
    page.screenshot(path=SCREENSHOTS / "report.png", full_page=True)
    page.get_by_role("link", name="Explore this run").click()
    page.wait_for_selector("#explorer[data-drawn-ms]")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("files/run/manifest.json", "toy_cnn"),
        ("files/trace.etdump", "Where the time goes"),
        ("files/net.pte", "portable kernels"),
        ("files/bad.etdump", "bad.etdump: "),
    ],
)
def test_a_double_click_opens_a_file_of_ours(lab, lab_files, page, name, words):
    address, token = lab
    folder, _, file = name.rpartition("/")
    page.goto(f"{address}/lab/tree/{folder}?token={token}&reset")
    page.dblclick(f".jp-DirListing-item:has-text('{file}')", timeout=SHORT)
    frame = page.frame_locator("iframe[title=Explorer]")
    frame.get_by_text(words).first.wait_for(timeout=SHORT)
    assert (
        page.get_attribute("iframe[title=Explorer]", "sandbox") == "allow-scripts allow-downloads"
    )
    keep(page, f"lab-{file}")


def open_menu(page, address, token, folder):
    page.goto(f"{address}/lab/tree/files/{folder}?token={token}")
    page.click(".jp-DirListing-item:has-text('manifest.json')", button="right", timeout=SHORT)


def test_a_right_click_compares_a_run_with_another_one(lab, lab_files, page):
    open_menu(page, *lab, "before")
    page.click(".lm-Menu-item:has-text('Select as Baseline')")
    page.click(".jp-BreadCrumbs-item:has-text('files')")
    page.dblclick(".jp-DirListing-item:has-text('after')", timeout=SHORT)
    page.click(".jp-DirListing-item:has-text('manifest.json')", button="right", timeout=SHORT)
    page.click(".lm-Menu-item:has-text('Compare with before')")
    frame = page.frame_locator("iframe[title=Comparison]")
    frame.get_by_text("AsTrained").first.wait_for(timeout=SHORT)
    keep(page, "lab-comparison")


def test_a_manifest_of_another_program_opens_in_the_editor(lab, lab_files, page):
    address, token = lab
    page.goto(f"{address}/lab/tree/files/other?token={token}&reset")
    page.dblclick(".jp-DirListing-item:has-text('manifest.json')", timeout=SHORT)
    page.get_by_text("a browser extension").wait_for(timeout=SHORT)
    assert page.locator("iframe[title=Explorer]").count() == 0


def test_the_launcher_makes_a_notebook_that_profiles(lab, page):
    address, token = lab
    page.goto(f"{address}/lab?token={token}&reset")
    page.click(".jp-LauncherCard:has-text('New profile')", timeout=SHORT)
    page.get_by_text("wb.profile(").wait_for(timeout=SHORT)
    keep(page, "lab-new-profile")


# What a file manager drops: a file of that name with these bytes.
DROP = """
([name, text]) => {
  const bytes = Uint8Array.from(atob(text), c => c.charCodeAt(0));
  const dataTransfer = new DataTransfer();
  dataTransfer.items.add(new File([bytes], name));
  const launcher = document.querySelector(".jp-Launcher");
  const options = { bubbles: true, cancelable: true, dataTransfer };
  const accepted = !launcher.dispatchEvent(new DragEvent("dragover", options));
  launcher.dispatchEvent(new DragEvent("drop", options));
  return accepted;
}
"""


def drop(page, file, name):
    page.wait_for_selector(".jp-Launcher", timeout=SHORT)
    page.wait_for_selector(".jp-LauncherCard:has-text('New profile')", timeout=SHORT)
    assert page.evaluate(DROP, [name, base64.b64encode(file.read_bytes()).decode()])
    return page.frame_locator("iframe[title=Explorer]")


def test_a_program_that_is_dropped_shows_its_map_and_is_measured(lab, conv_pte, page):
    address, token = lab
    page.goto(f"{address}/lab?token={token}&reset")
    frame = drop(page, conv_pte, "dropped.pte")
    frame.get_by_text("XnnpackBackend").first.wait_for(timeout=SHORT)
    keep(page, "lab-dropped")
    page.get_by_role("button", name="Measure").click()
    page.get_by_text("quality").first.wait_for(timeout=LONG)
    keep(page, "lab-measured")


def test_a_python_file_that_is_dropped_shows_its_layers(lab, page, tmp_path):
    address, token = lab
    page.goto(f"{address}/lab?token={token}&reset")
    file = tmp_path / "owl.py"
    file.write_text(
        "class Owl:\n    def __init__(self):\n        self.eye = nn.Conv2d(3, 8, 3)\n\n"
        "    def forward(self, x):\n        return self.eye(x)\n"
    )
    frame = drop(page, file, "owl.py")
    frame.get_by_text("nn.Conv2d").wait_for(timeout=SHORT)
    assert page.get_by_role("button", name="Measure").is_visible()
    keep(page, "lab-dropped-class")


def test_a_right_click_makes_the_report_of_a_run(lab, lab_files, page):
    open_menu(page, *lab, "run")
    page.click(".lm-Menu-item:has-text('Report')")
    frame = page.frame_locator("iframe[title=Report]")
    frame.get_by_text("where the time goes").first.wait_for(timeout=LONG)
    keep(page, "lab-report")

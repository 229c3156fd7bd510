"""The notebooks in JupyterLab in a real browser: run, controls moved, figures seen to change."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SCREENSHOTS = ROOT / "build" / "screenshots"
#: What JupyterLab itself complains of where there is no network and no git.
HARMLESS = re.compile(r"net::ERR_|favicon|/lsp/|Failed to load resource|service worker", re.I)
#: Whatever a person can turn in a cell's output; the timeline's own are tested in test_timeline.py.
CONTROLS = ".jupyter-widgets :is(select, input, button, .noUi-handle)"
#: Milliseconds: for a kernel to start or an export to be made, and for a figure to be drawn anew.
LONG, SHORT = 300_000, 90_000
# What a cell shows: of figures the bytes, of tables and notes the text.
SEEN = (
    "cell => [...cell.querySelectorAll('.jp-OutputArea-output :is(img, table, blockquote, pre,"
    " .widget-label, [role=alert])')].map(shown => shown.src || shown.innerText).join('|')"
)

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    """JupyterLab on a copy of the notebooks; its address and token."""
    folder = tmp_path_factory.mktemp("lab")
    shutil.copytree(ROOT / "notebooks", folder / "notebooks")
    settings = {
        # All cells are in the page, not only those in sight.
        "notebook-extension/tracker": {"windowingMode": "none"},
        "apputils-extension/notification": {"fetchNews": "false"},
    }
    for name, values in settings.items():
        path = folder / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(values))
    environment = {
        **os.environ,
        "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"),
        "PYTHONPATH": str(ROOT),
    }
    log = folder / "lab.log"
    with log.open("wb") as file:
        server = subprocess.Popen(
            [
                *(sys.executable, "-m", "jupyterlab", str(folder / "notebooks"), "--no-browser"),
                *("--allow-root", "--port=0", "--expose-app-in-browser"),
            ],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
        )
    try:
        yield find_address(log, server)
    finally:
        server.terminate()
        server.wait(20)


def find_address(log, server):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and server.poll() is None:
        if found := re.search(r"(http://127\.0\.0\.1:\d+)/lab\S*\?token=(\w+)", log.read_text()):
            return found.groups()
        time.sleep(0.3)
    pytest.fail(f"JupyterLab did not start: {log.read_text()[-2000:]}")


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
    page.wait_for_function(
        "() => window.jupyterapp?.shell.currentWidget?.context?.sessionContext"
        "?.session?.kernel?.status === 'idle'",
        timeout=LONG,
    )


def sees_change(cell, page, act):
    """Do something, and wait for the figure, table or note of the cell to be another one."""
    before = cell.evaluate(SEEN)
    act()
    deadline = time.monotonic() + SHORT / 1000
    while (seen := cell.evaluate(SEEN)) == before or not seen:
        assert time.monotonic() < deadline, "nothing changed"
        page.wait_for_timeout(200)
    rest(page)


def move_controls(cell, page):
    """Move every control of a cell and see its view change; returns how many there were."""
    moved = 0
    for menu in cell.locator(".jupyter-widgets select:not([multiple])").all():
        assert menu.locator("option").count() > 1
        sees_change(cell, page, lambda menu=menu: menu.select_option(index=1))
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
        sees_change(cell, page, start.click)
        cell.locator(".jupyter-widgets img:visible").wait_for(timeout=LONG)
        stop.click()
        cell.get_by_text(re.compile("stopped; Start goes on|done: ")).wait_for(timeout=LONG)
        moved += 2
    return moved


def zoom_timelines(cell, page):
    for timeline in cell.locator("[data-ready]").all():
        before = timeline.get_attribute("data-view")
        timeline.locator("canvas").hover()
        page.mouse.wheel(0, -240)
        page.wait_for_timeout(500)
        assert timeline.get_attribute("data-view") != before


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_without_a_red_cell_and_its_controls_change_the_view(path, open_notebook):
    page = open_notebook(path.name)
    for kind in ("error", "stderr"):
        shown = page.locator(f'[data-mime-type="application/vnd.jupyter.{kind}"]')
        assert shown.all_inner_texts() == []
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    for number, cell in enumerate(page.locator(".jp-CodeCell:has(.jp-OutputArea-output)").all()):
        cell.scroll_into_view_if_needed()
        cell.screenshot(path=SCREENSHOTS / f"{path.stem}-{number:02d}.png")
        if cell.locator(CONTROLS).count():
            assert move_controls(cell, page) == cell.locator(CONTROLS).count()
            cell.screenshot(path=SCREENSHOTS / f"{path.stem}-{number:02d}-moved.png")
        zoom_timelines(cell, page)
    assert page.locator(".jp-OutputArea-output [role=alert]").count() == 0

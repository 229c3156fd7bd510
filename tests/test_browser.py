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
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
#: What JupyterLab itself complains of where there is no network and no git.
HARMLESS = re.compile(r"net::ERR_|favicon|/lsp/|Failed to load resource|service worker", re.I)

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    """JupyterLab on a copy of the notebooks; its address."""
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
        yield _address(log, server)
    finally:
        server.terminate()
        server.wait(20)


def _address(log, server):
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and server.poll() is None:
        if found := re.search(r"(http://127\.0\.0\.1:\d+)/lab\?token=(\w+)", log.read_text()):
            return found.groups()
        time.sleep(0.3)
    pytest.fail(f"JupyterLab did not start: {log.read_text()[-2000:]}")


@pytest.fixture(scope="session")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not (chromium := shutil.which("chromium")):
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_notebook(lab, browser):
    """Opens a notebook and runs all its cells; fails on a complaint of the page."""
    address, token = lab
    page = browser.new_page(viewport={"width": 1280, "height": 1000})
    complaints = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "console",
        lambda m: m.type == "error" and not HARMLESS.search(m.text) and complaints.append(m.text),
    )

    def open_(name):
        page.goto(f"{address}/lab/tree/{name}?token={token}&reset")
        page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
        page.wait_for_function(
            "() => window.jupyterapp?.shell.currentWidget?.context?.sessionContext"
            "?.session?.kernel?.status === 'idle'",
            timeout=120_000,
        )
        page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-all-cells')")
        page.wait_for_function(
            "() => [...document.querySelectorAll('.jp-InputPrompt')]"
            ".every(prompt => !prompt.textContent.includes('*'))",
            timeout=300_000,
        )
        return page

    yield open_
    page.close()
    assert complaints == []


def settled(locator, page):
    """A picture of an element once it has stopped changing."""
    before = None
    for _ in range(60):
        shot = locator.screenshot()
        if shot == before:
            return shot
        before = shot
        page.wait_for_timeout(400)
    pytest.fail("the page does not come to rest")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_without_a_red_cell_and_its_controls_change_the_view(path, open_notebook):
    page = open_notebook(path.name)
    assert page.locator('[data-mime-type="application/vnd.jupyter.error"]').count() == 0
    assert page.locator('[data-mime-type="application/vnd.jupyter.stderr"]').count() == 0
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    for number, cell in enumerate(page.locator(".jp-CodeCell:has(.jp-OutputArea-output)").all()):
        cell.scroll_into_view_if_needed()
        if cell.locator("img, canvas, table").count():
            cell.screenshot(path=SCREENSHOTS / f"{path.stem}-{number:02d}.png")
        output = cell.locator(".jp-OutputArea").first
        for control in cell.locator(".widget-dropdown select").all():
            options = control.locator("option").all_inner_texts()
            if len(options) > 1:
                before = settled(output, page)
                control.select_option(index=1)
                page.wait_for_timeout(1500)
                assert settled(output, page) != before, options
        for slider in cell.locator(".widget-slider .noUi-handle").all():
            before = settled(output, page)
            slider.focus()
            page.keyboard.press("ArrowRight")
            page.wait_for_timeout(1500)
            assert settled(output, page) != before
        for timeline in cell.locator("[data-ready] canvas").all():
            before = timeline.screenshot()
            timeline.hover()
            page.mouse.wheel(0, -240)
            page.wait_for_timeout(500)
            assert timeline.screenshot() != before

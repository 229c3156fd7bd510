"""Speed of the trace timeline in a browser, with up to a million events.

    python tests/benchmarks/timeline.py [--events 100000,1000000]

A page with one track per experiment is opened from its file in Chromium, without a network.
``first draw`` is the time from the start of the navigation to the end of the first paint; ``zoom``
and ``pan`` are the times from a wheel or pointer event to the end of the paint that it causes: the
slowest of about two dozen, showing one inference, a hundred, and the whole trace. Wall time, median
of several loads. Exits 1 if a claim does not hold: 2 s to the first draw, 100 ms for an
interaction, 5 MB for the file.
"""

import argparse
import platform
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

import workbench as wb
from workbench.explorer.timeline import draw_timeline
from workbench.report.html import Section, to_html

sys.path.insert(0, str(Path(__file__).parents[1]))
from repeated import repeat_spans

FIRST_DRAW_MS, INTERACTION_MS, FILE_MB = 2000, 100, 5
LOADS = 5
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]

# Sends events to the canvas; returns the milliseconds until each one is painted.
_TIMED = """async events => {
    const canvas = document.querySelector("canvas"), times = [];
    const place = canvas.getBoundingClientRect();
    const at = x => ({ bubbles: true, cancelable: true, clientX: place.x + x, clientY: place.y + 60,
                       pointerId: 1 });
    canvas.setPointerCapture = () => {};
    for (const [name, value] of events) {
        const began = performance.now();
        if (name === "wheel") {
            canvas.dispatchEvent(new WheelEvent("wheel", { ...at(400), deltaY: value }));
        } else {
            canvas.dispatchEvent(new PointerEvent(name, at(value)));
        }
        await new Promise(requestAnimationFrame);
        times.push(performance.now() - began);
    }
    return times;
}"""
_DRAWN = """() => {
    const drawn = document.querySelector("[data-first-ms]");
    return drawn && parseFloat(drawn.dataset.firstMs);
}"""


def make_page(folder: Path, events: int) -> Path:
    """A page with a timeline of this many events, in two tracks."""
    run = wb.open_run(wb.sample_run())
    traces = {
        name: repeat_spans(run[name].spans, events // len(run.experiments), seed)
        for seed, name in enumerate(run.experiments)
    }
    path = folder / f"{events}.html"
    items = [draw_timeline(traces)]
    path.write_text(to_html("Timeline", [Section("", items=items)]))
    return path


def measure(browser: Browser, path: Path, loads: int = LOADS) -> dict[str, float]:
    """Milliseconds of the first draw and of the slowest interactions, and the file size in MB."""
    first, zooms, pans = [], [], []
    for _ in range(loads):
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.context.set_offline(True)
        page.goto(path.as_uri())
        first.append(page.wait_for_function(_DRAWN, timeout=60_000).json_value())
        canvas = page.locator("canvas")
        slowest = {"zoom": 0.0, "pan": 0.0}
        for out in (0, 16, 80):
            canvas.focus()
            page.keyboard.press("0")
            page.evaluate(_TIMED, [["wheel", 120]] * out)
            zoom = page.evaluate(_TIMED, [["wheel", -60], ["wheel", 60]] * 4)
            pan = page.evaluate(
                _TIMED,
                [["pointerdown", 500], *(["pointermove", 480 - 8 * n] for n in range(8)),
                 ["pointerup", 400]],
            )  # fmt: skip
            slowest["zoom"] = max(slowest["zoom"], *zoom)
            slowest["pan"] = max(slowest["pan"], *pan)
        zooms.append(slowest["zoom"])
        pans.append(slowest["pan"])
        page.close()
    medians = {"first draw": first, "zoom": zooms, "pan": pans}
    figures = {name: statistics.median(times) for name, times in medians.items()}
    return {**figures, "file": path.stat().st_size / 1e6}


def passes(figures: dict[str, float]) -> bool:
    """Whether the claims hold."""
    return (
        figures["first draw"] < FIRST_DRAW_MS
        and max(figures["zoom"], figures["pan"]) < INTERACTION_MS
        and figures["file"] < FILE_MB
    )


def main() -> int:
    """Print one row per number of events."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", default="100000,1000000")
    parser.add_argument("--loads", type=int, default=LOADS)
    options = parser.parse_args()
    if not (chromium := shutil.which("chromium")):
        print("skipped: chromium is not installed")
        return 0
    passed = True
    print(f"{platform.machine()}, {options.loads} loads each, medians")
    print("   events  first draw    zoom     pan     file")
    with sync_playwright() as p, tempfile.TemporaryDirectory() as folder:
        browser = p.chromium.launch(executable_path=chromium, args=FLAGS)
        for events in map(int, options.events.split(",")):
            figures = measure(browser, make_page(Path(folder), events), options.loads)
            first, zoom, pan, size = figures.values()
            print(f"{events:9}  {first:7.0f} ms {zoom:5.0f} ms {pan:5.0f} ms {size:5.2f} MB")
            passed &= passes(figures)
        browser.close()
    print("all claims hold" if passed else "a claim does not hold")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())

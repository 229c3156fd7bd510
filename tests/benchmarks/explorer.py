"""Response of the explorer in Chromium: how long all views take to follow a selection.

    python tests/benchmarks/explorer.py [--operators 500,5000] [--repeats 15] [--run RUN_DIR]

The layout of the whole graph is made once, when the graph is first shown; ``first graph`` is its
time. The data are timed after `open_run` of RUN_DIR in a warm process, reading all traces: those of
the first comparison, which a notebook shows first, and those of all. RUN_DIR is by default a
recorded ladder of six ISA levels whose files are read as those of three thread counts.

The data of a recorded run are repeated until they have so many operators, and the page is opened
from its file, without a network. Each action (a category, a layer, an operator, a search, a
finding, a brush in the timeline, another comparison side) is timed from the change of state until
the browser has painted the next frame: JavaScript, style, layout and paint. Two times, each the
median and the slowest: CPU time of the page's main thread, which other work on the machine does not
change, and wall time, with the wait for the next frame. ``first view`` is wall time from the start
of the navigation to the first drawn frame.
Exits 1 if the median CPU time of an action is above 50 ms for up to 500 operators, or 100 ms for
5000, or if the data of the first comparison take more than 1 s of CPU time (median of 5).
"""

import argparse
import json
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

import workbench as wb
from workbench.plugins.explorer.document import explorer_data
from workbench.plugins.explorer.page import fill_page
from workbench.records.codec import to_plain
from workbench.store import load_run, save_run

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
#: Actions by name: what is set in the state; ``$`` stands for what changes each time.
ACTIONS = {
    "select an operator": {"ops": ["$operator"]},
    "filter by category": {"category": "$category", "ops": []},
    "filter by layer": {"category": "", "module": "$module"},
    "search": {"module": None, "query": "$query"},
    "filter by finding": {"query": "", "finding": "$finding"},
    "filter by time": {"finding": -1, "time": "$time"},
    "colour by speed-up": {"time": None, "color": "$color"},
    "exchange A and B": {"swap": "$swap"},
    "show the graph": {"view": "graph"},
    "select an operator in the graph": {"ops": ["$operator"]},
    "colour the graph": {"ops": [], "color": "$color"},
    "open a layer in the graph": {"module": "$module"},
}
# Sets the state, and waits until the frame with the change has been painted.
_TIMED = """change => new Promise(resolve => {
    const { store } = document.getElementById("explorer").explorer;
    requestAnimationFrame(() => {
        const start = performance.now();
        store.set(change);
        requestAnimationFrame(() => {
            const channel = new MessageChannel();
            channel.port1.onmessage = () => resolve(performance.now() - start);
            channel.port2.postMessage(0);
        });
    });
})"""


def repeat_operators(document: dict[str, Any], count: int) -> dict[str, Any]:
    """The document with its operators and layers repeated until there are ``count`` operators."""
    (program,) = document["programs"]
    size = len(program["keys"])
    copies = -(-count // size)

    def tile(column: list[Any] | None) -> list[Any] | None:
        return column and (column * copies)[:count]

    def prefixed(texts: list[str]) -> list[str]:
        return [f"part{copy}.{text}" for copy in range(copies) for text in texts]

    program["keys"] = prefixed(program["keys"])[:count]
    program["labels"] = prefixed(program["labels"])[:count]
    program["instructions"] = tile(program["instructions"])
    for name, coded in program["texts"].items():
        several = len(coded["values"]) if name == "module" else 0
        codes = [
            code + several * copy if code >= 0 else code
            for copy in range(copies)
            for code in coded["codes"]
        ]
        coded["codes"] = codes[:count]
        coded["values"] = prefixed(coded["values"]) if several else coded["values"]
    program["costs"] = {name: tile(column) for name, column in program["costs"].items()}
    program["modules"], program["classes"] = [], []
    program["edges"] = [
        [source + copy * size, row + copy * size]
        for copy in range(copies)
        for source, row in program["edges"]
        if max(source, row) + copy * size < count
    ]
    for m in document["measurements"]:
        m["mean_ms"], m["std_ms"] = tile(m["mean_ms"]), tile(m["std_ms"])
        m["restarts_ms"] = [tile(column) for column in m["restarts_ms"]]
        for name in m["roofline"] or ():
            m["roofline"][name] = tile(m["roofline"][name])
        if m["bound"]:
            m["bound"]["codes"] = tile(m["bound"]["codes"])
        for shape in m["trace"]["shapes"]:
            shape[0] = [
                number if number < 0 else (number + copy * size) % count
                for copy in range(copies)
                for number in shape[0]
            ]
            shape[1] *= copies
        for inference in m["trace"]["inferences"]:
            inference["gaps"] = [inference["durations"][0], *inference["gaps"][1:]] * copies
            inference["durations"] *= copies
    for ab in document["comparisons"]:
        ab["operators"] = {name: tile(column) for name, column in ab["operators"].items()}
        ab["outcomes"]["codes"] = tile(ab["outcomes"]["codes"])
    return document


def make_page(folder: Path, count: int) -> Path:
    """A page with so many operators."""
    document = to_plain(explorer_data(wb.open_run(wb.sample_run())))
    path = folder / f"explore_{count}.html"
    path.write_text(fill_page("benchmark", json.dumps(repeat_operators(document, count))))
    return path


Times = dict[str, list[tuple[float, float]]]


def measure(browser: Browser, path: Path, repeats: int) -> Times:
    """CPU and wall milliseconds of every action, ``repeats`` times, and of the first view."""
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    page.context.set_offline(True)
    page.goto(path.as_uri())
    page.wait_for_selector("#explorer[data-drawn-ms]")
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def busy() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return 1000 * next(m["value"] for m in metrics if m["name"] == "TaskDuration")

    def act(change: dict[str, Any]) -> tuple[float, float]:
        before = busy()
        wall = page.evaluate(_TIMED, change)
        return busy() - before, wall

    first = page.evaluate("performance.getEntriesByType('paint').at(-1)?.startTime ?? NaN")
    found: Times = {"first view": [(first, first)], "first graph": [act({"view": "graph"})]}
    act({"view": "icicle"})
    for number in range(repeats):
        values = {
            "$operator": 7 * number + 1,
            "$category": ("GEMM", "Convolution", "Other")[number % 3],
            "$module": f"part{number % 3}.features.{number % 9}",
            "$query": ("conv", "gemm", "classifier")[number % 3],
            "$finding": number % 3,
            "$time": [number % 2, 0.05, 0.3 + 0.02 * number],
            "$color": ("speedup", "time", "category")[number % 3],
            "$swap": number % 2 == 0,
        }
        act({"view": "icicle", "module": None})
        for name, change in ACTIONS.items():
            text = {
                key: [values[v[0]]] if isinstance(v, list) and v else values.get(v, v)
                if isinstance(v, str) else v
                for key, v in change.items()
            }  # fmt: skip
            found.setdefault(name, []).append(act(text))
    page.close()
    return found


def multiply_threads(run_dir: Path, folder: Path, counts: Sequence[int]) -> Path:
    """A copy of a run of one thread whose files count once for each number of threads."""
    target = folder / "runs" / "ladder"
    shutil.copytree(run_dir, target)
    record = load_run(target)

    def copy(file: str, threads: int) -> str:
        if not file:
            return ""
        name = Path(file).with_name(f"t{threads}_{Path(file).name}")
        shutil.copy(target / file, target / name)
        return str(name)

    sessions = tuple(
        replace(s, threads=n, etdump=copy(s.etdump, n)) for n in counts for s in record.sessions
    )
    samplings = tuple(
        replace(s, threads=n, etdump=copy(s.etdump, n), samples=copy(s.samples, n))
        for n in counts
        for s in record.samplings
    )
    plan = replace(record.plan, threads=tuple(counts))
    save_run(replace(record, plan=plan, sessions=sessions, samplings=samplings), target)
    return target


def time_data(run_dir: Path) -> tuple[str, float, float]:
    """What a run has, and the CPU seconds of its first comparison and of all after `open_run`."""
    explorer_data(wb.open_run(run_dir))  # imports

    def spend(make: Callable[[wb.Run], object]) -> float:
        run = wb.open_run(run_dir)
        start = time.process_time()
        make(run)
        return time.process_time() - start

    first = statistics.median(spend(lambda r: explorer_data(r.comparisons[0])) for _ in range(5))
    run = wb.open_run(run_dir)
    size = f"{len(run.traced)} measurements of {run.subject.operators.shape[0]} operators"
    traces = sum(len(m.sessions) for m in run.traced)
    return (
        f"{size}, {len(run.comparisons)} comparisons, {traces} traces",
        first,
        spend(explorer_data),
    )


def limit_of(count: int) -> float:
    """Milliseconds that an action may take."""
    return 50 if count <= 500 else 100


def main() -> int:
    """Print a table of all actions; exits 1 if one is too slow."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--operators", default="500,5000")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--run", type=Path)
    options = parser.parse_args()
    if not (chromium := shutil.which("chromium")):
        print("skipped: chromium is not installed")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        recorded = wb.sample_run("mobilenet_v3_small_int8")
        run_dir = options.run or multiply_threads(recorded, Path(folder), (1, 2, 4))
        shown, first, whole = time_data(run_dir)
    slow = first > 1
    print(f"data: {first:.2f} s of CPU time for the first comparison, {whole:.2f} s for all")
    print(f"{shown}\n")
    print(f"{platform.processor() or platform.machine()}, Chromium; ms, median (slowest)\n")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        rows: dict[str, list[str]] = {}
        counts = [int(count) for count in options.operators.split(",")]
        for count in counts:
            path = make_page(Path(folder), count)
            for name, times in measure(browser, path, options.repeats).items():
                medians = [statistics.median(each) for each in zip(*times, strict=True)]
                texts = [
                    f"{median:.0f} ({max(each):.0f})"
                    for median, each in zip(medians, zip(*times, strict=True), strict=True)
                ]
                once = name.startswith("first")
                rows.setdefault(name, []).extend(["", f"{medians[1]:.0f}"] if once else texts)
                slow |= not once and medians[0] > limit_of(count)
            size = f"{path.stat().st_size / 1e6:.2f}"
            rows.setdefault("size of the page, MB", []).extend(["", size])
        browser.close()
    heads = [f"{count} operators, {kind}" for count in counts for kind in ("CPU", "wall")]
    print("| action | " + " | ".join(heads) + " |")
    print("| --- |" + " --- |" * len(heads))
    for name, cells in rows.items():
        print(f"| {name} | " + " | ".join(cells) + " |")
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())

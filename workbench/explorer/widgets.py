"""Lists of runs and measurements to pick from, above the explorer of what was picked."""

import contextlib
import functools
import html
import itertools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import ipywidgets as widgets
from IPython.display import HTML, display

from workbench.analysis import compare_runs
from workbench.analysis.open import open_run
from workbench.datasets import SAMPLES, sample_run
from workbench.errors import WorkbenchError
from workbench.explorer.page import Explorer, Page, explore
from workbench.plots.changes import plot_heatmap
from workbench.plots.style import Chart
from workbench.plots.tables import Table, VStack, show_note
from workbench.progress import is_interactive
from workbench.records.runs import count_threads
from workbench.store import find_runs


def _offer(view: Callable[..., object], **controls: widgets.Widget) -> widgets.Widget:
    """Controls above the view of what they choose."""

    def draw(**chosen: object) -> None:
        try:
            display(view(**chosen))
        except WorkbenchError as error:
            text = re.sub(r"--across (\w+)", r'select "\1" under "may differ"', str(error))
            display(HTML(f'<p role="alert" style="max-width:48em">{html.escape(text)}</p>'))

    row = widgets.HBox(list(controls.values()), layout={"flex_flow": "row wrap"})
    return widgets.VBox([row, widgets.interactive_output(draw, controls)])


def pick_run(
    run_dir: str | Path = "", *, folder: str | Path = ".", view: str = ""
) -> widgets.Widget | Explorer | Page:
    """A list of the runs below a folder and the recorded ones, above the explorer of one.

    ``run_dir`` is chosen first, if given; ``view`` is as for `explore`. Without a live front end,
    the first run is explored.

    Examples
    --------
    >>> "mobilenet_v3_small" in wb.pick_run(wb.sample_run()).text
    True
    """
    paths = ({str(run_dir): Path(run_dir)} if run_dir else {}) | list_runs(folder)
    if not is_interactive():
        return explore(open_run(next(iter(paths.values()))), view)
    runs = widgets.Dropdown(options=paths, description="run", layout={"width": "max-content"})
    opened = functools.lru_cache(maxsize=4)(open_run)
    return _offer(lambda run: explore(opened(run), view), run=runs)


def list_runs(folder: str | Path = ".") -> dict[str, Path]:
    """The runs below a folder by name, newest first, and after them the recorded samples.

    Examples
    --------
    >>> "toy_cnn, qemu-aarch64 (recorded)" in wb.list_runs()
    True
    """
    here = [(_name(path), path) for path in reversed(find_runs(Path(folder).resolve()))]
    samples = sorted(find_runs(SAMPLES), key=lambda path: (path != sample_run(), path))
    return dict(here) | {f"{_name(path)} (recorded)": path for path in samples}


def list_measurements(folder: str | Path = ".") -> dict[str, str]:
    """Names for `align_measurements` by label, without emulated or unfinished runs and controls."""
    measurements = {}
    for label, path in list_runs(folder).items():
        with contextlib.suppress(WorkbenchError):  # unreadable
            run = open_run(path)
            for m in run.measurements:
                if not m.control and not m.emulated and run.record.state == "complete":
                    key = f"{label}: {m.name}, {count_threads(m.threads)}"
                    measurements[key] = f"{path}:{m.name}:{m.threads}"
    return measurements


def _name(run_dir: Path) -> str:
    root = run_dir.parents[1].name.removeprefix("out_")
    return run_dir.name if run_dir.name.startswith(f"{root}-") else f"{root}, {run_dir.name}"


def pick_measurements(folder: str | Path = ".") -> object:
    """Lists to pick measurements from, and what may differ, above how they compare.

    Runs below the folder and the recorded samples are listed. Two measurements are compared in the
    explorer, more in a heat map. Without a live front end, the first two are compared.

    Examples
    --------
    >>> "x faster" in str(wb.pick_measurements())
    True
    """
    found = list_measurements(folder)
    labels = {name: label for label, name in found.items()}
    # The first two of one run: others may not be comparable.
    pairs = (p for p in itertools.pairwise(labels) if len({n.rsplit(":", 2)[0] for n in p}) == 1)
    first = next(pairs, ())
    if not is_interactive():
        return compare_picked(first, labels)
    wide = {"width": "30em"}
    picked = widgets.SelectMultiple(options=found, value=first, rows=8, layout=wide)
    axes = compare_runs.AXES
    differ = widgets.SelectMultiple(options=axes, rows=len(axes), description="may differ")
    return _offer(
        lambda measurements, across: compare_picked(measurements, labels, across),
        measurements=picked,
        across=differ,
    )


def compare_picked(
    names: Sequence[str], labels: Mapping[str, str], across: Collection[str] = ()
) -> VStack | Chart | Table:
    """Two measurements in the explorer, under their verdict; more as a heat map over the first."""
    if len(names) < 2:
        return show_note("Pick two or more, with Ctrl or Shift; the first is the baseline.")
    if len(names) == 2:
        before, after = compare_runs.find_measurements(names).values()
        subject = f"{labels[names[1]]} against {labels[names[0]]}"
        compared = compare_runs.compare(before, after, across=across, subject=subject)
        return VStack(show_note(compared.text), explore(compared))
    aligned = compare_runs.align_measurements(names, across=across, by="category")
    parts = {name: re.split(", |: ", labels[name]) for name in names}
    common = set.intersection(*map(set, parts.values()))
    heads = {name: "\n".join(p for p in parts[name] if p not in common) for name in names}
    aligned = aligned.assign(run=aligned["run"].map(heads))
    return plot_heatmap(aligned, title="Every category, over the first")

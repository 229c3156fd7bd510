"""Controls for views; without a live front end, a view is shown with its first choices."""

import contextlib
import functools
import html
import itertools
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, TypeAlias

import ipywidgets as widgets
from IPython.core.getipython import get_ipython
from IPython.display import HTML, display

from workbench.analysis import compare_runs
from workbench.analysis.run import Run, open_run
from workbench.datasets import SAMPLES, sample_run
from workbench.errors import WorkbenchError
from workbench.plots.speedups import plot_heatmap
from workbench.plots.tables import Table, VStack, show_note
from workbench.records.runs import count_threads
from workbench.store import find_runs

WIDGETS = "WORKBENCH_WIDGETS"  #: Environment variable that forces (1) or forbids (0) widgets.

#: What a control can be made of.
Choice: TypeAlias = bool | Sequence[Any] | Mapping[str, Any] | widgets.Widget

_CONTROLS = {"flex_flow": "row wrap", "grid_gap": "0 24px"}


def is_interactive() -> bool:
    """Whether a front end takes input (papermill does not); ``WORKBENCH_WIDGETS`` overrides it."""
    if (forced := os.environ.get(WIDGETS)) in ("0", "1"):
        return forced == "1"
    kernel = getattr(get_ipython(), "kernel", None)
    request = (kernel.get_parent() if kernel else None) or {}
    moved = request.get("msg_type") == "comm_msg"  # a control was moved: only a front end does that
    return moved or bool(request.get("content", {}).get("allow_stdin"))


def interact(view: Callable[..., object], **choices: Choice) -> object:
    """Widgets for the arguments of a view, which is redrawn whenever one changes.

    Parameters
    ----------
    view
        A function of the ``choices`` that returns something to display: a figure, a table.
    choices
        By name of the argument, the first is shown first: a bool becomes a check box, a sequence of
        numbers a slider, any other sequence a list. Of a mapping the keys are chosen, and the view
        gets the values. A widget is used directly; of `pick_run` the view gets the run.

    Returns
    -------
    object
        The widgets above the view; without a live front end, the view of the first choices. A
        sentence if there is nothing to choose from.

    Examples
    --------
    >>> wb.interact(lambda top, share: f"{top} {share}", top=range(5, 20), share=False)
    '5 False'
    """
    for name, options in choices.items():
        if not isinstance(options, bool | widgets.Widget) and not len(options):
            return show_note(f"There is no {name} to choose in this run.")
    controls = {name: _control(name, options) for name, options in choices.items()}

    def draw(**chosen: str) -> object:
        meant = {}
        for name, value in chosen.items():
            options = choices[name]
            meant[name] = options[value] if isinstance(options, Mapping) else value
            if isinstance(options, RunPicker):
                meant[name] = options.run
        return view(**meant)

    if not is_interactive():
        return draw(**{name: control.value for name, control in controls.items()})
    drawn = widgets.interactive_output(lambda **chosen: _display(draw, chosen), controls)
    return widgets.VBox([widgets.HBox(list(controls.values()), layout=_CONTROLS), drawn])


def _display(draw: Callable[..., object], chosen: dict[str, object]) -> None:
    try:
        display(draw(**chosen))
    except WorkbenchError as error:
        text = re.sub(r"add --across (\w+)", r'select "\1" under "may differ"', str(error))
        display(HTML(f'<p role="alert" style="max-width:48em">{html.escape(text)}</p>'))


def _control(name: str, options: Choice) -> widgets.Widget:
    if isinstance(options, widgets.Widget):
        return options
    look = {"description": name.replace("_", " "), "style": {"description_width": "initial"}}
    if isinstance(options, bool):
        return widgets.Checkbox(value=options, indent=False, **look)
    if not isinstance(options, Mapping) and all(isinstance(option, Real) for option in options):
        return widgets.SelectionSlider(
            options=sorted(options), value=options[0], continuous_update=False, **look
        )
    return widgets.Dropdown(options=list(options), layout={"width": "max-content"}, **look)


class RunPicker(widgets.Dropdown):
    """A list of runs; every view that it is given to shows the chosen one."""

    def __init__(self, paths: Mapping[str, str | Path]):
        super().__init__(options=list(paths), description="run", layout={"width": "max-content"})
        self._open = functools.lru_cache(maxsize=4)(lambda label: open_run(paths[label]))

    @property
    def run(self) -> Run:
        """The chosen run."""
        return self._open(self.value)


def pick_run(run_dir: str | Path = "", *, folder: str | Path = ".") -> RunPicker:
    """A list of the runs below a folder and the recorded ones, for `interact`.

    ``run_dir`` is chosen first, if given.

    Examples
    --------
    >>> wb.pick_run(wb.sample_run()).run.model
    'mobilenet_v3_small'
    """
    first = {str(run_dir): run_dir} if run_dir else {}
    return RunPicker(first | list_runs(folder))


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

    Runs below the folder and the recorded samples are listed. Without a live front end, the first
    two measurements are compared.

    Examples
    --------
    >>> "x faster" in str(wb.pick_measurements())
    True
    """
    found = list_measurements(folder)
    labels = {name: label for label, name in found.items()}
    # The first two of one run: others may not be comparable.
    pairs = (p for p in itertools.pairwise(labels) if len({n.rsplit(":", 2)[0] for n in p}) == 1)
    picked = widgets.SelectMultiple(
        options=list(found.items()), value=next(pairs, ()), rows=8, layout={"width": "30em"}
    )
    axes = compare_runs.AXES
    differ = widgets.SelectMultiple(options=axes, rows=len(axes), description="may differ")
    return interact(
        lambda measurements, parts, across: compare_picked(
            measurements, labels, by=parts, across=across
        ),
        measurements=picked,
        parts=["category", *(part for part in compare_runs.PARTS if part != "category")],
        across=differ,
    )


def compare_picked(
    names: Sequence[str], labels: Mapping[str, str], *, by: str = "category",
    across: Collection[str] = (),
) -> VStack | Table:  # fmt: skip
    """Measurements against the first of them: a heat map, and of two the verdict."""
    if len(names) < 2:
        return show_note("Pick two or more, with Ctrl or Shift; the first is the baseline.")
    aligned = compare_runs.align_measurements(names, across=across, by=by)
    parts = {name: re.split(", |: ", labels[name]) for name in names}
    common = set.intersection(*map(set, parts.values()))
    heads = {name: "\n".join(p for p in parts[name] if p not in common) for name in names}
    figure = plot_heatmap(
        aligned.assign(run=aligned["run"].map(heads)), title=f"Every {by}, over the first"
    )
    if len(names) > 2:
        return VStack(figure)
    before, after = compare_runs.find_measurements(names).values()
    subject = f"{labels[names[1]]} against {labels[names[0]]}"
    compared = compare_runs.compare(before, after, across=across, subject=subject)
    return VStack(show_note(compared.text), figure)

"""A run to explore, and lists of runs and measurements to pick from, above what was picked."""

import contextlib
import functools
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import ipywidgets as widgets
from IPython.display import display

from workbench.analysis import compare_runs
from workbench.analysis.describe import name_record
from workbench.analysis.open import open_run
from workbench.analysis.run import Comparison, Measurement, Run
from workbench.datasets import SAMPLES, sample_run
from workbench.errors import WorkbenchError
from workbench.names import number_equal
from workbench.plots.style import convert_source, distinguish, shorten
from workbench.plots.tables import Table, show_aligned, show_note
from workbench.plots.widgets import Explored, Selector
from workbench.progress import is_interactive
from workbench.records.pairing import AXES
from workbench.store import find_nearby, find_runs, load_notes, load_run
from workbench.wording import plural

NOTHING = show_note("There is nothing to pick from.")


def explore(source: Run | Comparison | Measurement | str | Path, view: str = "") -> Explored:
    """Explore a run, by itself or its path, or one comparison, interactively.

    Categories, model, source, timeline, operators and findings are connected: what is selected in
    one is shown in all, with its layer, source line, machine code and place on the roofline. In a
    notebook this is a widget, whose ``selected`` is a frame of the selected operators and whose
    ``draw`` draws a view of them in another cell; without a live front end it is a page. ``view``
    shows one view alone: ``categories``, all ``levels`` of the run (of the ISA, or thread counts),
    ``what-if`` for categories, ``model``, ``source``, ``timeline``, ``operators`` or ``memory``.
    A plug-in draws all this; without it, this is the overview.

    Raises
    ------
    UsageError
        There is no such view.
    StoreError
        A side has no trace.

    Examples
    --------
    >>> wb.explore(wb.open_run(wb.sample_run()))
    mobilenet_v3_small: 1.29x faster ...
    """
    noun: Run | Comparison = convert_source(source, (Run, Comparison), "wb.explore")
    open_view = getattr(noun, "explore", None)
    return open_view(view, live=is_interactive()) if open_view else Explored(noun)


class Picker(Selector, widgets.VBox):
    """Lists above a view of what is ``selected`` in them, which other cells can `draw`, too."""

    def __init__(
        self, select: Callable[..., Any], view: Callable[..., Any], *controls: widgets.Widget
    ):
        self._select, self._view, self._controls = select, view, controls
        super().__init__(selected=select(*(control.value for control in controls)))
        for control in controls:
            control.observe(self._pick, "value")
        if is_interactive():
            row = widgets.HBox(controls, layout={"flex_flow": "row wrap"})
            self.children = [row, self.draw(view)]

    def _pick(self, _: object) -> None:
        label = self._controls[0].label or ""
        self.reading = label if isinstance(label, str) else ", ".join(label)
        try:
            self.selected = self._select(*(control.value for control in self._controls))
        except WorkbenchError as error:
            self.children[-1].refuse(error)
        finally:
            self.reading = ""

    def _ipython_display_(self) -> None:
        if is_interactive():
            self.children[-1].show_in(self)
        else:
            display(self.draw(self._view))


def pick_run(run_dir: str | Path = "", *, folder: str | Path = "", view: str = "") -> Picker:
    """A list of your runs, the newest first, and of the recorded ones, above the explorer of one.

    Your runs are those below ``folder``; without one, in the working folder, above it, and where
    notebooks of both write theirs. ``run_dir`` is chosen, or else the first; ``view`` is as for
    `explore`. ``selected`` is the run, ``draw(wb.show, "findings")`` a view of it that follows in
    another cell. Without a live front end, the chosen run is explored.

    Examples
    --------
    >>> picked = wb.pick_run(wb.sample_run())
    >>> picked.selected.model
    'mobilenet_v3_small'
    >>> picked.draw(wb.plot_categories)  # doctest: +SKIP
    """
    choices = list_runs(folder)
    path = Path(run_dir) if run_dir else next(iter(choices.values()))
    same = [each for each in choices.values() if each.resolve() == path.resolve()]
    choices = choices if same else {str(run_dir): path} | choices
    layout = {"width": "max-content"}
    runs = widgets.Dropdown(
        options=choices, value=[*same, path][0], description="run", layout=layout
    )
    open_cached = functools.lru_cache(maxsize=4)(open_run)
    return Picker(open_cached, lambda run: explore(run, view), runs)


def pick(things: Mapping[str, Any], view: Callable[[Any], Any]) -> Picker:
    """A list of things to pick one from by its name, above a view of it.

    ``selected`` is the thing, and `draw` draws another view of it in another cell. Without a live
    front end, it is the first one. Without things it is None, and there is no view.

    Examples
    --------
    >>> exports = wb.read_exports(wb.sample_file("exports"))
    >>> picked = wb.pick({export.dtype: export for export in exports}, wb.show)
    >>> picked.selected.dtype
    'fp16'
    """
    layout = {"width": "max-content"}
    menu = widgets.Dropdown(options=list(things), description="pick", layout=layout)
    return Picker(things.get, lambda thing: NOTHING if thing is None else view(thing), menu)


def list_runs(folder: str | Path = "") -> dict[str, Path]:
    """The runs below a folder, or nearby, by name, the newest first; then the recorded samples.

    A run has its label and its last note, or its models and its platform; of equal names, the later
    ones have numbers.
    """
    mine = find_runs(Path(folder).resolve()) if folder else find_nearby()
    names = dict(zip(number_equal([*map(_name_own, mine)]), mine, strict=True))
    samples = sorted(find_runs(SAMPLES), key=lambda path: (path != sample_run(), path))
    recorded = {f"{_name(path)} (recorded)": path for path in samples}
    return dict(reversed(names.items())) | recorded


def list_measurements(folder: str | Path = "") -> dict[str, str]:
    """Names of measurements by label, without emulated or unfinished runs and controls."""
    measurements = {}
    for label, path in list_runs(folder).items():
        with contextlib.suppress(WorkbenchError):  # unreadable
            run = open_run(path)
            for m in run.measurements:
                if not m.control and not m.emulated and run.record.state == "complete":
                    key = f"{label}: {m.name}, {plural(m.threads, 'thread')}"
                    measurements[key] = f"{path}:{m.name}:{m.threads}"
    return measurements


def _name_own(run_dir: Path) -> str:
    try:
        name, notes = name_record(load_run(run_dir)), load_notes(run_dir)
    except WorkbenchError:  # which is said where it is opened
        return run_dir.name
    return f"{name}: {shorten(' '.join(notes[-1].text.split()), 60)}" if notes else name


def _name(run_dir: Path) -> str:
    root = run_dir.parents[1].name.removeprefix("out_")
    return run_dir.name if run_dir.name.startswith(f"{root}-") else f"{root}, {run_dir.name}"


def pick_measurements(folder: str | Path = "", *, view: str = "") -> Picker:
    """Lists to pick measurements from, and what may differ, above how they compare.

    Runs are listed as by `pick_run`. Two measurements are compared in the explorer, or in the
    ``view`` of it that `explore` takes; more are compared in a table. ``selected`` has them by
    label. Without a live front end, the first two are compared.

    Examples
    --------
    >>> wb.pick_measurements().draw(len)
    2
    """
    choices = list_measurements(folder)
    labels = {name: label for label, name in choices.items()}
    # The first two of one run: others may not be comparable.
    pairs = (p for p in itertools.pairwise(labels) if len({n.rsplit(":", 2)[0] for n in p}) == 1)
    wide, axes = {"width": "max-content", "max_width": "100%"}, AXES
    menu = widgets.SelectMultiple(
        options=choices, value=next(pairs, ()), rows=8, description="compare", layout=wide
    )
    differ = widgets.SelectMultiple(options=axes, rows=len(axes), description="may differ")

    def select(names: Sequence[str], _: Collection[str]) -> dict[str, Measurement]:
        return {labels[name]: m for name, m in compare_runs.find_measurements(names).items()}

    return Picker(select, lambda picked: _compare(picked, differ.value, view), menu, differ)


def _compare(
    picked: Mapping[str, Measurement], across: Collection[str], view: str
) -> Explored | Table:
    """Two measurements in the explorer; more as a table over the first."""
    if len(picked) < 2:
        return show_note("Pick two or more, with Ctrl or Shift; the first is the baseline.")
    heads = dict(zip(picked, map(", ".join, distinguish(picked)), strict=True))
    if len(picked) == 2:
        (first, before), (second, after) = picked.items()
        subject = f"{heads[second]} against {heads[first]}"
        return explore(compare_runs.compare(before, after, across=across, subject=subject), view)
    aligned = compare_runs.combine_runs(picked, across=across).align("category")
    aligned = aligned.assign(run=aligned["run"].map(heads))
    return show_aligned(aligned)

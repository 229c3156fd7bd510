"""Let a person turn the knobs of a view; without a person, show it as it is set.

The runs that there are to look at, and what was measured in them.

Compare measurements that a person picks.

The ISA ladder, level by level.

A run that a person starts, watches and stops.
"""

from __future__ import annotations

import html
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any

import ipywidgets as widgets
import pandas as pd
from IPython.display import HTML, display

from workbench.analysis.compare import compare_parts
from workbench.analysis.compare_runs import AXES, PARTS, align_measurements
from workbench.analysis.compat import Analysis, compare_runs, find_noise, pick
from workbench.analysis.verdict import summarize_verdict
from workbench.datasets import SAMPLES, sample_run
from workbench.errors import UsageError, WorkbenchError
from workbench.frames import mark_emulated
from workbench.plots.align import plot_heatmap
from workbench.plots.sweeps import plot_rung
from workbench.plots.tables import Sheet, Table, show_table
from workbench.plots.text import codes_of, show_note
from workbench.records.runs import count_threads
from workbench.store import find_runs, load_run

#: What a control can be made of.
Choice = bool | Sequence[Any] | Mapping[str, Any] | widgets.Widget

_KNOBS = {"flex_flow": "row wrap", "grid_gap": "0 24px"}
_AS_WIDE_AS_NEEDED = {"width": "max-content"}


def explore(view: Callable[..., object], *, headless: bool = False, **choices: Choice) -> object:
    """Widgets for the arguments of a view, which is drawn anew whenever one changes.

    Parameters
    ----------
    view
        A function of the ``choices`` that returns something to display: a figure, a table.
    headless
        Nobody is there to turn knobs: return the view with the first of all choices.
    choices
        By name of the argument: a bool becomes a check box, a sequence of numbers a slider over
        them, any other sequence a list to choose from; of a mapping the keys are chosen, and the
        view gets what is behind them. A widget is taken as it is. The first choice is shown first.

    Returns
    -------
    object
        The widgets with the view below them, or why there is none; or, headless, what the view
        returns.

    Raises
    ------
    UsageError
        A choice leaves nothing to choose from.

    Examples
    --------
    >>> explore(lambda top, share: f"{top} {share}", headless=True, top=range(5, 20), share=False)
    '5 False'
    """
    for name, options in choices.items():
        if not isinstance(options, bool | widgets.Widget) and not len(options):
            raise UsageError(f"nothing to choose from for {name!r}")
    controls = {name: _control(name, options) for name, options in choices.items()}

    def show(**chosen: Any) -> object:
        return view(**{name: _meant(choices[name], value) for name, value in chosen.items()})

    if headless:
        return show(**{name: control.value for name, control in controls.items()})
    drawn = widgets.interactive_output(lambda **chosen: _display(show, chosen), controls)
    return widgets.VBox([widgets.HBox(list(controls.values()), layout=_KNOBS), drawn])


def _meant(options: Choice, value: Any) -> Any:
    return options[value] if isinstance(options, Mapping) else value


def _display(show: Callable[..., object], chosen: dict[str, Any]) -> None:
    """What a person chose, or in one line why it cannot be shown."""
    try:
        display(show(**chosen))
    except WorkbenchError as error:
        display(HTML(f'<p role="alert" style="max-width:48em">{html.escape(str(error))}</p>'))


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
    return widgets.Dropdown(options=list(options), layout=_AS_WIDE_AS_NEEDED, **look)


def list_runs(folder: str | Path = ".") -> dict[str, Path]:
    """The runs below a folder by name, the newest first, and after them the recorded samples."""
    here = [(_name(path), path) for path in reversed(find_runs(Path(folder).resolve()))]
    samples = sorted(find_runs(SAMPLES), key=lambda path: (path != sample_run(), path))
    return dict(here) | {f"{_name(path)} (recorded)": path for path in samples}


def list_measurements(folder: str | Path = ".") -> dict[str, str]:
    """What `compare_runs` can compare of these runs: its name for each, by one for people.

    Emulated runs are left out, unfinished ones, and controls.
    """
    measurements = {}
    for label, path in list_runs(folder).items():
        run = load_run(path)
        if run.state != "complete" or run.emulated:
            continue
        names = [experiment.name for experiment in run.plan.experiments if not experiment.control]
        for threads, name in itertools.product(run.plan.threads, names):
            measurements[f"{label}: {name}, {count_threads(threads)}"] = f"{path}:{name}:{threads}"
    return measurements


def _name(run_dir: Path) -> str:
    return f"{run_dir.parents[1].name.removeprefix('out_')}, {run_dir.name}"


#: Rows of a list to pick from that are in sight.
_ROWS = 8


def pick_measurements(folder: str | Path = ".", *, headless: bool = False) -> object:
    """Lists to pick measurements from and say what may differ, above how they compare.

    Parameters
    ----------
    folder
        Where runs are looked for; the recorded samples are always there.
    headless
        Nobody is there to pick: how the first two of the first run compare.
    """
    found = list_measurements(folder)
    names = {name: label for label, name in found.items()}
    wide = {"width": "30em"}
    picked = widgets.SelectMultiple(
        options=list(found.items()), value=list(names)[:2], rows=_ROWS, layout=wide
    )
    differ = widgets.SelectMultiple(options=AXES, rows=len(AXES), description="may differ")
    return explore(
        lambda measurements, parts, across: compare_picked(
            measurements, names, by=parts, across=across
        ),
        headless=headless,
        measurements=picked,
        parts=["category", *(part for part in PARTS if part != "category")],
        across=differ,
    )


def compare_picked(
    names: Sequence[str],
    labels: dict[str, str],
    *,
    by: str = "category",
    across: Collection[str] = (),
) -> Sheet | Table:
    """Measurements against the first of them: of two the verdict, and each part as a figure.

    Parameters
    ----------
    names
        As for `align_measurements`, which also tells ``by``, ``across`` and the errors.
    labels
        What to call each.
    """
    if len(names) < 2:
        return show_note("Pick two or more, with Ctrl or Shift; the first is the baseline.")
    aligned = align_measurements(names, across=across, by=by)
    runs = [labels[name].replace(": ", "\n") for name in aligned["run"]]
    figure = plot_heatmap(aligned.assign(run=runs), title=f"Every {by}, against the first")
    if len(names) > 2:
        return Sheet(figure)
    verdict = compare_runs(*names, across=across)
    subject = f"{labels[names[1]]}, against {labels[names[0]]}"
    return Sheet(show_note(summarize_verdict(replace(verdict, subject=subject))), figure)


def explore_ladder(analysis: Analysis, *, headless: bool = False) -> object:
    """A slider over the ISA levels of a run: what each of them bought, and where.

    Where a run measured several thread counts, these are to choose from, too.

    Parameters
    ----------
    headless
        Nobody is there to move it: the highest level.
    """
    if analysis.ladder is None:
        return show_note("One toggle was measured; `--isa-ladder` measures every ISA level.")
    levels = list(dict.fromkeys(analysis.ladder["level"]))
    # The figure's title is the read-out: a slider's own has room for short words only.
    slider = widgets.SelectionSlider(
        options=levels,
        value=levels[-1],
        description="ISA level",
        continuous_update=False,
        readout=False,
    )
    counts = list(dict.fromkeys(analysis.ladder["threads"]))
    several = {"threads": counts} if len(counts) > 1 else {}
    return explore(
        lambda level, threads=counts[0]: show_rung(analysis, level, threads),
        headless=headless,
        level=slider,
        **several,
    )


def show_rung(analysis: Analysis, level: str, threads: int) -> Sheet:
    """One level of the ladder against the lowest: figure, added features, and its categories."""
    ladder = analysis.ladder[analysis.ladder["threads"] == threads].reset_index(drop=True)
    lowest = ladder["level"].iloc[0]
    changes = _compare(analysis, lowest, level, threads)
    bars = {name: analysis.select(analysis.categories, name, threads) for name in (lowest, level)}
    figure = plot_rung(ladder, level, bars, changes)
    if level == lowest:
        return Sheet(figure, show_note(f"{level} is what all others are compared with."))
    place = list(ladder["level"]).index(level)
    found = f"{level} has {ladder.at[place, 'adds']}, which {ladder.at[place - 1, 'level']} hides."
    if analysis.evidence is not None:
        found += f" Samples of its machine code: {codes_of(analysis, ladder)[place]}."
    columns = ["name", "baseline_ms", "candidate_ms", "speedup", "low", "high", "outcome"]
    caption = f"{level} against {lowest}; typical times, and the speed-up's 95 % interval"
    return Sheet(figure, show_note(found), show_table(changes, columns, caption=caption))


def _compare(analysis: Analysis, lowest: str, level: str, threads: int) -> pd.DataFrame:
    """The categories of a level against those of the lowest, with the noise of the control."""
    sides = (pick(analysis.ledger, name, threads) for name in (lowest, level))
    noise = find_noise(analysis, lowest, threads)
    changes = compare_parts("category", *sides, **noise)
    return mark_emulated(changes.assign(outcome="emulated")) if analysis.run.emulated else changes

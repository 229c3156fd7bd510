"""Compare measurements that a person picks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import ipywidgets as widgets

from workbench.analyze import summarize_verdict
from workbench.report.comparison import AXES, compare_runs
from workbench.report.notes import show_note
from workbench.report.runs import list_measurements
from workbench.report.side_by_side import PARTS, align_measurements
from workbench.show import Sheet, Table, explore, plot_heatmap

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

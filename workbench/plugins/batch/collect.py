"""The page of a batch, for runs that were measured one by one."""

import html
from collections.abc import Sequence
from pathlib import Path

from workbench import Run, open_run
from workbench.api import Table
from workbench.jobs import to_plain
from workbench.pages import show_note
from workbench.plugins.batch.matrix import Cell, Matrix
from workbench.plugins.batch.portfolio import Portfolio, list_rows, render_index

_FRAME = (
    '<iframe class="wb-batch" title="Batch" sandbox="allow-scripts" width="100%" height="{}" '
    'srcdoc="{}"></iframe>'
)
#: A frame follows the system's theme and does not see the notebook's: where they differ, its
#: colours are turned over.
_THEME = (
    "<style>@media screen and (prefers-color-scheme:light){{[data-jp-theme-light=false] {0}}}"
    "@media screen and (prefers-color-scheme:dark){{[data-jp-theme-light=true] {0}}}</style>"
).format(".wb-batch{filter:invert(0.9) hue-rotate(180deg)}")


def collect_runs(runs: Sequence[Run | str | Path], *, height: int = 800) -> Table:
    """Put runs on the page that a batch makes: filters, speed-ups, bottlenecks, all measurements.

    It is ``height`` pixels high; `batch` writes the same page as a file, with links to reports.

    Examples
    --------
    >>> page = wb.collect_runs([wb.sample_run("vit_tiny"), wb.sample_run("unet_small")])
    >>> "unet_small" in page.html
    True
    """
    opened = [run if isinstance(run, Run) else open_run(run) for run in runs]
    cells = tuple(map(_make_cell, opened))
    updated = max((run.record.started for run in opened), default="")
    text = render_index(Portfolio(to_plain(Matrix()), cells, updated))
    names = ", ".join(dict.fromkeys(cell.label for cell in cells))
    page = _FRAME.format(height, html.escape(text)) + _THEME
    return Table(page, show_note(f"The page of {names}.").markdown)


def _make_cell(run: Run) -> Cell:
    plan, export = run.record.plan, run.subject.export
    dtype = export.dtype if export else ""
    return Cell(run.model, run.model, dtype, plan.target, plan.toggle or "none", run.model,
                state="done", rows=list_rows(run))  # fmt: skip

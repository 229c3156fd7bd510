"""The files of an analysed run: CSV and JSON, and the report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from workbench.analysis.run import Measurement, Run, open_run
from workbench.report.summary import write_documents
from workbench.store import REPORT_HTML, REPORT_MD, atomic_write
from workbench.trace.writers.csv_tables import write_csvs

#: The notebook that every report is.
REPORT_NOTEBOOK = "12_report"


def make_report(run: Run | str | Path) -> tuple[Path, Path]:
    """Write ``report.html`` and ``report.md`` of a run: the notebook ``12_report`` without code.

    Its brief sections become ``<stem>_pipeline_summary.md``.

    Parameters
    ----------
    run
        A run, or its folder.

    Returns
    -------
    tuple of Path
        The page and the Markdown.

    Examples
    --------
    >>> import shutil, tempfile
    >>> folder = shutil.copytree(wb.sample_run("toy_cnn"), tempfile.mkdtemp() + "/run")
    >>> [path.name for path in wb.make_report(folder)]
    ['report.html', 'report.md']
    """
    from workbench.report.html import to_html, to_markdown
    from workbench.report.notebooks import run_notebook

    run = open_run(run)
    # The title takes the place of the notebook's.
    first, *others = run_notebook(REPORT_NOTEBOOK, run_dir=run)
    sections = [replace(first, heading=""), *others]
    stem, title = run.record.plan.stem, f"{run.record.plan.stem}: where the time goes"
    brief = [section for section in sections if section.brief]
    atomic_write(run.path / f"{stem}_pipeline_summary.md", to_markdown(title, brief))
    return (
        atomic_write(run.path / REPORT_HTML, to_html(title, sections)),
        atomic_write(run.path / REPORT_MD, to_markdown(title, sections)),
    )


def write_artifacts(run: Run) -> list[Path]:
    """Write the CSV and JSON files of a run; returns their paths.

    The CSV files are those of the first process of each measurement.
    """
    tables = [path for m in run.measurements if m.sessions for path in _write_csvs(m)]
    return [*tables, *write_documents(run)]


def _write_csvs(measurement: Measurement) -> list[Path]:
    run, export = measurement.run, measurement.run.record.export
    return write_csvs(
        measurement.events,
        run.path / measurement.sessions[0].etdump,
        model_id=run.model,
        delegate_backend=", ".join(export.delegates) if export else "",
    )

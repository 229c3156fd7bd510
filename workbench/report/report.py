"""The report of a run: an executed notebook, as a page and as Markdown."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench import plugin, store
from workbench.errors import WorkbenchError
from workbench.key import make_key
from workbench.options import Progress, silent
from workbench.plots.tables import Table
from workbench.report.html import Section, read_sections, render_html, render_markdown
from workbench.report.notebooks import notebooks_dir

if TYPE_CHECKING:
    from nbformat import NotebookNode

    from workbench.analysis.run import Run
    from workbench.report.kernel import Kernel

#: What runs in the kernel after the notebook, which has the run open.
CLOSING = "from workbench.report.artifacts import finish_report\nfinish_report(globals())"
#: The notebook of reports, and under what papermill's metadata have the SHA-256 of one.
DEFAULT, TEMPLATE = "16_report.ipynb", "input_sha256"
PAGE_LINK = "Explore this run interactively"


@contextlib.contextmanager
def prepare_kernel() -> Iterator[Kernel | None]:
    """A kernel that starts while something else is done; None if the report will say why not."""
    with contextlib.ExitStack() as stack:
        kernel = None
        with contextlib.suppress(Exception):
            from workbench.report.kernel import open_kernel

            kernel = stack.enter_context(open_kernel())
        yield kernel


def identify_report(folder: Path, notebook: Path) -> str:
    """A hash of all that a report of a run depends on: notebook, code, and what is in the folder.

    That is what was measured, remedies that were tried or applied, notes, and the machine's peaks.
    """
    parts = [store.sha256_of(notebook), plugin.identify_sources()]
    names = (store.MANIFEST, store.CHECKS, store.APPLIED, store.NOTES, "ceilings_*.json")
    files = [file for name in names for file in sorted(folder.glob(name))]
    parts += [store.sha256_of(file) for file in files]
    return make_key(parts)


def is_reported(folder: Path, notebook: str | Path = "") -> bool:
    """Whether a run's folder has a report that would be made alike now."""
    template = identify_report(folder, Path(notebook or notebooks_dir() / DEFAULT))
    with contextlib.suppress(WorkbenchError):
        executed = store.read_json(folder / store.REPORT_IPYNB)
        metadata = executed.get("metadata") or {}
        made_by = (metadata.get("papermill") or {}).get(TEMPLATE)
        return (folder / store.REPORT_HTML).is_file() and made_by == template
    return False


def make_report(
    run: Run | str | Path,
    *,
    baseline: str = "",
    categories: str | Path = "",
    notebook: str | Path = "",
    parameters: Mapping[str, object] | None = None,
    kernel: Kernel | None = None,
    progress: Progress = silent,
) -> tuple[Path, Path, Path]:
    """Write the report of a run: papermill executes a notebook, whose results become pages.

    The notebook is kept with its results as ``report.ipynb``; ``report.html`` and ``report.md``
    show it without code, and its brief sections become ``<stem>_pipeline_summary.md``. The report
    links to the pages that plug-ins add, such as ``explore.html``. Returns the page, the Markdown
    and the executed notebook.

    Parameters
    ----------
    run
        A run or its folder.
    baseline, categories
        As for `open_run`.
    notebook, parameters
        A notebook with a cell tagged ``parameters`` that has ``run_dir``, by default ``16_report``,
        and values of its other parameters.
    kernel, progress
        A kernel that was started before; called with the cell that runs and the fraction done.

    Raises
    ------
    UsageError
        There is no such run, notebook or parameter.
    WorkbenchError
        A cell failed; the partly executed notebook is kept as ``report.failed.ipynb``.

    Examples
    --------
    >>> page, markdown, notebook = wb.make_report("out_net/runs/linux")  # doctest: +SKIP
    """
    options = {"baseline": baseline, "categories": str(categories)}
    options = {name: value for name, value in options.items() if value}
    if not isinstance(run, str | Path):
        options, run = run.opened_with | options, run.path
    template, run = Path(notebook or notebooks_dir() / DEFAULT), Path(run).absolute()
    values = {"run_dir": str(run), **options, **(parameters or {})}
    folder = store.output_folder(run)
    executed, names = _execute(template, values, folder, kernel, progress)
    executed.metadata.papermill[TEMPLATE] = identify_report(run, template)
    return _write_report(folder, executed, names, is_users=bool(notebook))


def _execute(
    template: Path, values: Mapping[str, object], folder: Path, kernel: Kernel | None,
    progress: Progress,
) -> tuple[NotebookNode, dict[str, Any]]:  # fmt: skip
    """A notebook with its results, and what `finish_report` displays."""
    try:
        from workbench.report.kernel import run_notebook
    except ModuleNotFoundError as error:
        raise WorkbenchError(f"{error.name} is not installed", install=error.name or "") from None
    failed = folder / f"{Path(store.REPORT_IPYNB).stem}.failed.ipynb"
    made = run_notebook(
        template, values, closing=CLOSING, failed=failed, kernel=kernel, progress=progress
    )
    failed.unlink(missing_ok=True)
    return made


def _write_report(
    folder: Path, executed: NotebookNode, names: Mapping[str, Any], *, is_users: bool
) -> tuple[Path, Path, Path]:
    """Write the page, the Markdown and its summary, and the executed notebook.

    ``names`` are what `finish_report` displays. The title takes the place of that of the
    package's notebook, unless the notebook is the user's own.
    """
    first, *later = read_sections(executed) or [Section("")]
    links = [
        Table(f'<a href="{file}">{PAGE_LINK}</a>', f"[{PAGE_LINK}]({file})")
        for file in names["pages"]
    ]
    title = f"{names['title']}: {(is_users and first.heading) or 'where the time goes'}"
    text = first.text if is_users else ""
    sections = [replace(first, heading="", text=text, items=[*first.items, *links]), *later]
    brief = render_markdown(title, [section for section in sections if section.brief])
    store.atomic_write(folder / f"{names['stem']}_pipeline_summary.md", brief)
    texts = {
        store.REPORT_HTML: render_html(title, sections, names["programs"]),
        store.REPORT_MD: render_markdown(title, sections),
        store.REPORT_IPYNB: json.dumps(executed, indent=1, ensure_ascii=False),
    }
    html, markdown, notebook = (
        store.atomic_write(folder / name, text) for name, text in texts.items()
    )
    return html, markdown, notebook

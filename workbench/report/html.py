"""Self-contained HTML pages from notebooks and templates."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from workbench.explorer.timeline import PAGE_CLASS, timeline_script
from workbench.store import atomic_write

#: The frame of every page; other templates extend it.
PAGE = "report/page.html.j2"
#: Cells with one of these tags stay in the notebook and out of the page.
HIDDEN_TAGS = {"parameters", "injected-parameters", "interactive", "hide"}


def export_html(notebook: Path, page: Path, title: str) -> Path:
    """Write a notebook as a self-contained HTML page, without its code; returns ``page``.

    Figures are embedded. The page fetches nothing, and its content security policy forbids that
    and every script but its own, which sorts tables and draws timelines.
    """
    import nbformat
    from nbconvert import HTMLExporter

    node = nbformat.read(notebook, as_version=4)
    node.cells = [c for c in node.cells if not HIDDEN_TAGS & set(c.metadata.get("tags", []))]
    exporter = HTMLExporter(
        template_name="basic",
        exclude_input=True,
        exclude_input_prompt=True,
        exclude_output_prompt=True,
    )
    body, _ = exporter.from_notebook_node(node)
    script = timeline_script() if PAGE_CLASS in body else ""
    return atomic_write(page, render_page(title, body=body, script=script))


def render_page(title: str, template: str = PAGE, *, script: str = "", **data: object) -> str:
    """A self-contained page with sortable tables; ``data`` are the variables of its template.

    The content security policy allows only the page's own script and forbids every request.
    """
    script = (resources.files("workbench.report") / "page.js").read_text() + script
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return render_template(template, title=title, script=script, digest=digest, **data)


def render_template(template: str, **data: object) -> str:
    """Render a template of the package; HTML templates escape what they insert."""
    return _templates().get_template(template).render(data)


@cache
def _templates() -> Environment:
    templates = Environment(
        loader=PackageLoader("workbench", "."),
        autoescape=select_autoescape(["html.j2"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters["base64"] = lambda data: base64.b64encode(data).decode()
    return templates

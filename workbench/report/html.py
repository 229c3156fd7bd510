"""A notebook with results as one page that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import html
import string
from importlib import resources
from pathlib import Path

from workbench.explorer.timeline import PAGE_CLASS, timeline_script
from workbench.store import atomic_write

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
    return atomic_write(page, render_page(title, body, script))


def render_page(title: str, body: str, script: str = "", style: str = "") -> str:
    """A self-contained page around ``body``, which is HTML; its tables can be sorted.

    No script but that one and ``script`` can run in it, and nothing is fetched; ``style`` is CSS
    that comes last.
    """
    files = resources.files("workbench.report")
    script = (files / "page.js").read_text() + script
    # What a content security policy knows a script by.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return string.Template((files / "page.html").read_text()).substitute(
        title=html.escape(title), body=body, script=script, style=style, digest=digest
    )

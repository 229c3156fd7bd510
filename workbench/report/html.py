"""Self-contained HTML pages, and sections as HTML and as Markdown."""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Protocol

import mistune
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from workbench.errors import printable
from workbench.plots.tables import Table


class Shown(Protocol):
    """A figure or a table."""

    def _repr_html_(self) -> str: ...


@dataclass(frozen=True)
class Section:
    """A heading, text in Markdown, and figures and tables; ``brief`` puts it in the summary."""

    heading: str
    text: str = ""
    items: list[Shown] = field(default_factory=list)
    brief: bool = False

    @property
    def paragraphs(self) -> list[str]:
        """The section as Markdown without figures; empty if it has nothing but figures."""
        tables = [str(item) for item in self.items if isinstance(item, Table)]
        if self.items and not tables:
            return []
        head = [f"## {self.heading}"] if self.heading else []
        return [*head, *([self.text] if self.text else []), *tables]


def to_html(title: str, sections: Sequence[Section]) -> str:
    """Sections as a self-contained page."""
    shown = [(s.heading, s.text, [item._repr_html_() for item in s.items]) for s in sections]
    return render_page(title, "report/sections.html.j2", sections=shown)


def to_markdown(title: str, sections: Sequence[Section]) -> str:
    """Sections as Markdown, without their figures."""
    return render_template("report/sections.md.j2", title=title, sections=sections)


def render_page(title: str, template: str, *, script: str = "", **data: object) -> str:
    """A self-contained page with sortable tables, from a template that extends ``page.html.j2``.

    The content security policy allows only the page's own script and forbids every request.
    """
    script = (resources.files("workbench.report") / "page.js").read_text() + script
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return render_template(template, title=title, script=script, digest=digest, **data)


def render_template(template: str, **data: object) -> str:
    """Render a template of the package, printable; HTML templates escape what they insert."""
    return printable(_templates().get_template(template).render(data))


@cache
def _templates() -> Environment:
    templates = Environment(
        loader=PackageLoader("workbench", "."), autoescape=select_autoescape(["html.j2"]),
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    templates.filters["base64"] = lambda data: base64.b64encode(data).decode()
    templates.filters["markdown"] = mistune.html
    return templates

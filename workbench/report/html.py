"""Self-contained HTML pages, and sections as HTML and as Markdown."""

import base64
import hashlib
import html
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import resources
from itertools import takewhile
from typing import Any

import mistune
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from workbench.errors import printable
from workbench.plots.bars import draw_chips, draw_shares
from workbench.plots.tables import COLORS, Table, to_markdown, typeset
from workbench.wording import format_figure, plural


@dataclass(frozen=True)
class Section:
    """A heading, text in Markdown, and figures and tables; ``brief`` puts it in the summary.

    Items have a method ``_repr_html_``, and are Markdown as text. A ``folded`` one opens on a click
    on its heading, and in print.
    """

    heading: str
    text: str = ""
    items: list[Any] = field(default_factory=list)
    brief: bool = False
    folded: bool = False

    @property
    def anchor(self) -> str:
        """What links to it, as on GitHub: the heading's words in lower case."""
        return re.sub(r"[^\w -]", "", self.heading.lower()).replace(" ", "-")

    @property
    def paragraphs(self) -> list[str]:
        """The section as Markdown; of a figure, what it says."""
        head = [f"## {self.heading}"] if self.heading else []
        return [*head, *([self.text] if self.text else []), *map(str, self.items)]


def read_sections(notebook: Mapping[str, Any]) -> list[Section]:
    """The sections of an executed notebook: its Markdown, and what its cells displayed.

    A section without text, or whose cells displayed nothing, is left out.
    """
    sections, optional = [Section("")], {0}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            head, _, text = cell["source"].partition("\n")
            if not head.startswith("#"):
                head, text = "", cell["source"]
            tags = cell["metadata"].get("tags", [])
            brief, folded = "brief" in tags, "folded" in tags
            section = Section(head.lstrip("# "), text.strip(), brief=brief, folded=folded)
            sections.append(section)
        elif cell["cell_type"] == "code":
            optional.add(len(sections) - 1)
            sections[-1].items.extend(filter(None, map(_read_output, cell["outputs"])))
    # A heading without text or output goes, except for the notebook's own.
    optional.update(n for n, s in enumerate(sections) if n > 1 and not s.text)
    return [s for n, s in enumerate(sections) if s.items or n not in optional]


def _read_output(output: Mapping[str, Any]) -> Table | None:
    """What a page shows of an output of a cell; None of what has no text or figure."""
    data = output.get("data", {})
    if output.get("name") == "stdout":
        data = {"text/plain": output["text"].rstrip()}
    text = data.get("text/plain", "")
    for kind in ("image/png", "image/jpeg", "image/svg+xml"):
        if kind in data:
            alt = output["metadata"].get(kind, {}).get("alt", text)
            content = data[kind].replace("\n", "")
            if kind == "image/svg+xml":
                content = base64.b64encode(data[kind].encode()).decode()
            return _embed(kind, content, alt)
    markdown = data.get("text/markdown", f"```\n{text}\n```" if text else "")
    if data.get("text/html"):
        return Table(data["text/html"], markdown)
    if data.get("text/markdown"):
        return Table(str(mistune.create_markdown(escape=True)(markdown)), markdown)
    return Table(f"<pre>{html.escape(text)}</pre>", markdown) if text else None


def _embed(kind: str, content: str, alt: str) -> Table:
    source = html.escape(f"data:{kind};base64,{content}")
    image = f'<img alt="{html.escape(alt)}" src="{source}">'
    return Table(image, f"*Figure. {to_markdown(alt)}*")


def render_html(title: str, sections: Sequence[Section], files: str = "") -> str:
    """Sections as a self-contained page, with the contents after the first, brief ones.

    ``files`` are the names of files that the title shortens.
    """
    listed = list(place_contents(sections))
    page = render_page(title, "report/sections.html.j2", sections=listed, files=files)
    anchors = {html.escape(section.heading): section.anchor for section in sections}

    def link(cited: re.Match[str]) -> str:
        anchor = anchors.get(cited[1])
        return f'<a href="#{anchor}">{cited[1]}</a>' if anchor else cited[1]

    return re.sub("<cite>(.*?)</cite>", link, page)


def render_markdown(title: str, sections: Sequence[Section]) -> str:
    """Sections as Markdown; of figures, what they say."""
    return render_template("report/sections.md.j2", title=title, sections=place_contents(sections))


def place_contents(sections: Sequence[Section]) -> Iterator[Section]:
    """The sections, with the contents after the first brief ones if there is much to list."""
    first = len(list(takewhile(lambda section: section.brief, sections)))
    listed = [section for section in sections if section.heading]
    lines = [f"- [{section.heading}](#{section.anchor})" for section in listed]
    yield from sections[:first]
    if len(lines) > 2:
        yield Section("Contents", "\n".join(lines))
    yield from sections[first:]


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
    templates.filters |= {"figures": format_figure, "plural": plural}
    templates.globals |= {"draw_shares": draw_shares, "draw_legend": partial(draw_chips, COLORS)}
    templates.filters["typeset"] = typeset
    templates.filters["markdown"] = mistune.create_markdown(escape=True)
    return templates

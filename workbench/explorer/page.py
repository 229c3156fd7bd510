"""The explorer as a widget and as a page: one script, which draws what `explorer_data` returns."""

import base64
import hashlib
import html
import json
import re
import uuid
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import anywidget
import ipywidgets as widgets
import pandas as pd
import traitlets
from IPython.core.formatters import MimeBundleFormatter
from IPython.display import HTML, display
from jinja2 import Environment, StrictUndefined

from workbench.analysis.describe import describe_latency
from workbench.analysis.run import Comparison, Measurement, Run
from workbench.errors import WorkbenchError, printable, unknown_name
from workbench.explorer.data import explorer_data
from workbench.plots.overview import show_overview, subject_of
from workbench.plots.style import Chart, convert_source
from workbench.plots.tables import Table, VStack, join_tables
from workbench.plots.views import show as show_view
from workbench.progress import is_interactive
from workbench.records.codec import to_plain

# Made from web/src by `python3 dev.py web`.
_SCRIPT = resources.files("workbench.explorer") / "explorer.js"
_PAGE = resources.files("workbench.explorer") / "explore.html.j2"
#: Below what a saved notebook keeps of a widget, the place of the widget is hidden without it.
_NO_PLACE = (
    ".jp-OutputArea-child:has(.{0}) + .jp-OutputArea-child:not(:has(.jp-OutputArea-output *))"
    " {{ display: none; }}"
)
#: Pixels of a page in a frame, by its view.
_HEIGHTS = {"": 900, "categories": 345, "levels": 460, "what-if": 460}
_ROWS = 20  #: Operators of a page without scripts.
_AGAIN = "Run the cell again to select."


def name_still() -> str:
    """A new name for what a saved notebook keeps of a widget."""
    return f"wb-still-{uuid.uuid4().hex[:12]}"


def hide_still(still: str) -> str:
    """HTML that is a part of a live widget, and hides what a saved notebook keeps of it."""
    return f"<style>.{still} {{ display: none; }}</style>"


def show_widget(widget: widgets.DOMWidget, still: str, kept: Any) -> Callable[[Any], None]:
    """Show a widget, and what a saved notebook keeps of it, hidden while there is a kernel.

    Returns a function that replaces what is kept.
    """

    def describe(kept: Any) -> dict[str, str]:
        style = f"<style>{_NO_PLACE.format(still)}</style>"
        page = f'{style}<div class="{still}">{_keep(kept)}</div>'
        return {"text/html": page, "text/plain": "" if kept is None else str(kept)}

    handle = display(describe(kept), raw=True, display_id=True)
    bundle = MimeBundleFormatter()(widget)
    data = bundle[0] if isinstance(bundle, tuple) else bundle
    display({**(data or {}), "text/plain": _AGAIN}, raw=True)
    return lambda kept: handle.update(describe(kept), raw=True)


def _settle(content: Any) -> Any:
    """What a cell shows, its figures drawn once for all that displays them."""
    if isinstance(content, VStack):
        return VStack(*map(_settle, content.parts))
    return Table(content._repr_html_(), str(content)) if isinstance(content, Chart) else content


def _keep(content: Any) -> str:
    """As HTML what a cell shows."""
    if isinstance(content, VStack):
        return "".join(map(_keep, content.parts))
    if isinstance(content, Explorer):
        return content.picture._repr_html_()
    if hasattr(content, "_repr_html_"):
        return str(content._repr_html_())
    return "" if content is None else f"<pre>{html.escape(str(content))}</pre>"


class Selector(traitlets.HasTraits):
    """Something in which a person selects; ``selected`` can be observed, and drawn in other cells.

    ``reading`` names what was picked and is not selected yet, because it is being read.
    """

    selected: Any = traitlets.Any()
    reading = traitlets.Unicode("")

    still = traitlets.Unicode()

    @traitlets.default("still")
    def _name_still(self) -> str:
        return name_still()

    def show(self, kept: Any) -> None:
        """Show it where a front end is live; a saved notebook, and others, have what is kept."""
        if is_interactive():
            show_widget(self, self.still, kept)
        else:
            display(kept)

    def draw(self, view: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Draw ``view(selected, ...)``, and again whenever something else is selected.

        Without a live front end, it is drawn once.

        Examples
        --------
        >>> picked = wb.pick_run(wb.sample_run())
        >>> "features" in str(picked.draw(wb.show, "layers", top=5))
        True
        """
        if not is_interactive():
            return view(self.selected, *arguments, **options)
        return FollowingView(self, lambda: view(self.selected, *arguments, **options))


class FollowingView(widgets.VBox):
    """A view of what is selected elsewhere; it dims from the selection until it is drawn."""

    def __init__(self, selector: Selector, view: Callable[[], Any]):
        self.view, self.status, self.output = view, widgets.HTML(), widgets.Output()
        self.still, self.drawn = name_still(), None
        self.keep: Callable[[Any], None] = lambda drawn: None
        super().__init__([self.status, self.output, widgets.HTML(hide_still(self.still))])
        selector.observe(lambda change: self.dim(change["new"]), "reading")
        selector.observe(lambda _: self.redraw(), "selected")
        self.redraw()

    def _ipython_display_(self) -> None:
        self.keep = show_widget(self, self.still, self.drawn)

    def dim(self, reading: str) -> None:
        """Dim what is drawn and say what is being read; with an empty text, undim."""
        style = "<style>.wb-reading { opacity: 0.35 }</style>"
        place = "position: absolute; background: var(--jp-layout-color1, white)"
        text = f'<p role="status" style="{place}">reading {html.escape(reading)} ...</p>'
        self.status.value = style + text if reading else ""
        (self.output.add_class if reading else self.output.remove_class)("wb-reading")

    def redraw(self) -> None:
        """Draw the view in place of the last one."""
        if not self.status.value:
            self.dim("the selection")
        with self.output:
            self.output.clear_output(wait=True)
            try:
                self.drawn = _settle(self.view())
                display(self.drawn)
            except WorkbenchError as error:
                self.refuse(error)
        self.keep(self.drawn)
        self.dim("")

    def refuse(self, error: WorkbenchError) -> None:
        """Say why there is no view."""
        text = re.sub(r"--across (\w+)", r'select "\1" under "may differ"', str(error))
        with self.output:
            self.output.clear_output(wait=True)
            display(HTML(f'<p role="alert" style="max-width:48em">{html.escape(text)}</p>'))


class Explorer(Selector, anywidget.AnyWidget):
    """The explorer as a widget; ``selected`` has the operators, all while none is selected."""

    _esm = _SCRIPT.read_text()
    data = traitlets.Unicode("").tag(sync=True)
    state = traitlets.Unicode("").tag(sync=True)
    view = traitlets.Unicode("").tag(sync=True)
    still = traitlets.Unicode("").tag(sync=True)
    # The front end knows operators by their keys.
    selected = traitlets.Any().tag(
        sync=True,
        from_json=lambda keys, explorer: explorer.find_operators(keys),
        to_json=lambda operators, explorer: explorer.find_keys(operators),
    )

    def __init__(self, source: Run | Comparison, view: str = ""):
        self._source = source
        options = {"data": _to_json(source), "view": view, "still": name_still()}
        super().__init__(**options, selected=_operators_of(source))

    def __str__(self) -> str:
        return _outline(self._source)

    @property
    def picture(self) -> Table:
        """What a saved notebook keeps."""
        return draw_picture(self._source)

    def _ipython_display_(self) -> None:
        show_widget(self, self.still, self.picture)

    def find_operators(self, keys: list[str]) -> pd.DataFrame:
        """The operators with these keys; all without any."""
        operators = _operators_of(self._source)
        return operators[operators["key"].isin(keys)] if keys else operators

    def find_keys(self, operators: pd.DataFrame) -> list[str]:
        """The keys of operators; none for all."""
        every = len(operators) == len(_operators_of(self._source))
        return [] if every else list(operators["key"])


def draw_picture(source: Run | Comparison) -> Table:
    """What an explorer shows first, without a script: verdict, bars and findings; as text, a line.

    A saved notebook keeps it.
    """
    parts = [part for part in show_overview(source) if isinstance(part, Table)]
    return Table(join_tables(*parts).html, _outline(source))


def _outline(source: Run | Comparison) -> str:
    """What a run or a comparison has shown, in one sentence."""
    comparisons = source.comparisons if isinstance(source, Run) else (source,)
    if comparisons:
        return comparisons[0].text
    subject = subject_of(source)
    return f"{subject.run.model}, {subject.label}: {describe_latency(subject.statistics)}"


class Page(Selector):
    """The explorer where no kernel runs: the whole page in a frame; all operators are selected."""

    def __init__(self, text: str, height: int, source: Run | Comparison):
        super().__init__(selected=_operators_of(source))
        self.text, self.height, self.source = text, height, source

    def __repr__(self) -> str:
        """One sentence, which is all that remains where frames are not shown."""
        return _outline(self.source)

    def _repr_html_(self) -> str:
        # Where there is little room, lines break, and the page becomes longer.
        height = f"calc({self.height}px + max(0px, 300px - 22vw))"
        return (
            '<iframe title="Explorer" sandbox="allow-scripts allow-downloads" width="100%" '
            f'style="height:{height}" srcdoc="{html.escape(self.text)}"></iframe>'
        )


def _operators_of(source: Run | Comparison) -> pd.DataFrame:
    return subject_of(source).operators


#: The views that can be shown alone.
VIEWS = (
    *("categories", "levels", "what-if", "model", "source", "timeline", "operators", "memory"),
)


def explore(source: Run | Comparison | Measurement | str | Path, view: str = "") -> Explorer | Page:
    """Explore a run, by itself or its path, or one comparison, interactively.

    Categories, model, source, timeline, operators and findings are connected: what is selected in
    one is shown in all, with its layer, source line, machine code and place on the roofline. In a
    notebook this is a widget, whose ``selected`` is a frame of the selected operators and whose
    ``draw`` draws a view of them in another cell; without a live front end it is a page. ``view``
    shows one view alone: ``categories``, all ``levels`` of the run (of the ISA, or thread counts),
    ``what-if`` for categories, ``model``, ``source``, ``timeline``, ``operators`` or ``memory``.

    Raises
    ------
    UsageError
        There is no such view.
    StoreError
        A side has no trace.

    Examples
    --------
    >>> page = wb.explore(wb.open_run(wb.sample_run()))
    >>> "classifier.3" in page.text
    True
    """
    if view and view not in VIEWS:
        raise unknown_name("view", view, VIEWS)
    noun: Run | Comparison = convert_source(source, (Run, Comparison), "wb.explore")
    if is_interactive():
        return Explorer(noun, view)
    return Page(explorer_page(noun, view), _HEIGHTS.get(view, 600), noun)


def explorer_page(source: Run | Comparison, view: str = "") -> str:
    """``explore.html``: a page without any request, whose only script is the explorer's."""
    run = source if isinstance(source, Run) else source.run
    operators = show_view(subject_of(source), "operators", top=_ROWS)
    plain = draw_picture(source).html + _keep(operators)
    return fill_page(f"{run.label or run.model}: explorer", _to_json(source), view, plain)


def fill_page(title: str, data: str, view: str = "", plain: str = "") -> str:
    """The page for the JSON text of `explorer_data`; ``plain`` is HTML that needs no script."""
    script = _SCRIPT.read_text()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = Environment(autoescape=True, undefined=StrictUndefined).from_string(_PAGE.read_text())
    # "<" could end the element that the data is in.
    data = data.replace("<", "\\u003c")
    return page.render(
        title=printable(title),
        data=data,
        script=script,
        digest=digest,
        view=view,
        plain=printable(plain),
    )


def _to_json(source: Run | Comparison) -> str:
    plain = to_plain(explorer_data(source))
    text = json.dumps(plain, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return printable(text)

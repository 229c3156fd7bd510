"""Widgets: what a saved notebook keeps of one, and what others draw of what is selected in it."""

import html
import re
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets as widgets
import traitlets
from IPython.core.formatters import MimeBundleFormatter
from IPython.display import HTML, display

from workbench.analysis.describe import describe_latency
from workbench.analysis.run import Comparison, Run
from workbench.errors import WorkbenchError
from workbench.plots.overview import show_overview, subject_of
from workbench.plots.style import Chart
from workbench.plots.tables import Table, VStack, join_tables, to_page
from workbench.progress import is_interactive

#: Below what a saved notebook keeps of a widget, the place of the widget is hidden without it.
_NO_PLACE = (
    ".jp-OutputArea-child:has(.{0}) + .jp-OutputArea-child:not(:has(.jp-OutputArea-output *))"
    " {{ display: none; }}"
)
#: Lists and buttons of Jupyter's widgets show the focus of the keyboard by a pale border only.
_FOCUS = (
    ".jupyter-widgets :is(select, button):focus-visible { outline: 2px solid #4c8dff !important; }"
)
_AGAIN = "Run the cell again to select."


def _name_still() -> str:
    """A new name for what a saved notebook keeps of a widget."""
    return f"wb-still-{uuid.uuid4().hex[:12]}"


def _show_widget(widget: widgets.DOMWidget, still: str, kept: Any) -> Callable[[Any], None]:
    """Show a widget, and what a saved notebook keeps of it, hidden while there is a kernel.

    Returns a function that replaces what is kept.
    """

    def describe(kept: Any) -> dict[str, str]:
        style = f"<style>{_NO_PLACE.format(still)}</style>"
        page = f'{style}<div class="{still}">{to_page(kept)}</div>'
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


class KeptBox(widgets.VBox):
    """Widgets, one below the other, of which a saved notebook has what is ``kept``."""

    def __init__(self, children: Sequence[widgets.Widget], kept: Any = None):
        self.still, self.kept = _name_still(), kept
        self._replace: Callable[[Any], None] = lambda kept: None
        hidden = widgets.HTML(f"<style>.{self.still} {{ display: none; }} {_FOCUS}</style>")
        super().__init__([*children, hidden])

    def keep(self, kept: Any) -> None:
        """Replace what is kept."""
        self.kept = kept
        self._replace(kept)

    def show_in(self, widget: widgets.DOMWidget) -> None:
        """Show a widget that it is a part of, and what is kept of it."""
        self._replace = _show_widget(widget, self.still, self.kept)

    def _ipython_display_(self) -> None:
        self.show_in(self)


class Selector(traitlets.HasTraits):
    """Something in which a person selects; ``selected`` can be observed, and drawn in other cells.

    ``reading`` names what was picked and is not selected yet, because it is being read.
    """

    selected: Any = traitlets.Any()
    reading = traitlets.Unicode("")

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


class FollowingView(KeptBox):
    """A view of what is selected elsewhere; it dims from the selection until it is drawn."""

    def __init__(self, selector: Selector, view: Callable[[], Any]):
        self.view, self.status, self.output = view, widgets.HTML(), widgets.Output()
        super().__init__([self.status, self.output])
        selector.observe(lambda change: self.dim(change["new"]), "reading")
        selector.observe(lambda _: self.redraw(), "selected")
        self.redraw()

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
        drawn = self.kept
        with self.output:
            self.output.clear_output(wait=True)
            try:
                drawn = _settle(self.view())
                display(drawn)
            except WorkbenchError as error:
                self.refuse(error)
        self.keep(drawn)
        self.dim("")

    def refuse(self, error: WorkbenchError) -> None:
        """Say why there is no view."""
        text = re.sub(r"--across (\w+)", r'select "\1" under "may differ"', str(error))
        with self.output:
            self.output.clear_output(wait=True)
            display(HTML(f'<p role="alert" style="max-width:48em">{html.escape(text)}</p>'))


class Explored(Selector):
    """A run or a comparison, whose operators can be selected: its overview, and all of them.

    A plug-in's subclass has more to see, and to select in.
    """

    still = traitlets.Unicode()

    def __init__(self, source: Run | Comparison, **traits: Any):
        self.source, self.subject = source, subject_of(source)
        super().__init__(selected=self.subject.operators, still=_name_still(), **traits)

    @property
    def picture(self) -> Table:
        """Verdict, bars and findings, without a script; as text, a line."""
        parts = [part for part in show_overview(self.source) if isinstance(part, Table)]
        return Table(join_tables(*parts).html, repr(self))

    def __repr__(self) -> str:
        """One sentence, which is all that remains where pages are not shown."""
        source, m = self.source, self.subject
        comparisons = source.comparisons if isinstance(source, Run) else (source,)
        if comparisons:
            return comparisons[0].text
        return f"{m.run.model}, {m.label}: {describe_latency(m.statistics)}"

    __str__ = __repr__

    def _repr_html_(self) -> str:
        return self.picture.html

    def show_live(self) -> None:
        """Show the widget that it is; a saved notebook keeps its picture."""
        _show_widget(self, self.still, self.picture)

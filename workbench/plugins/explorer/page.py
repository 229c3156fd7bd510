"""The explorer as a widget and as a page: one script, which draws what `explorer_data` returns."""

import base64
import hashlib
import html
import json
from collections.abc import Callable
from importlib import resources

import anywidget
import pandas as pd
import traitlets
from jinja2 import Environment, StrictUndefined

from workbench import Comparison, Run, show
from workbench.jobs import to_plain, unknown_name
from workbench.pages import Explored, printable
from workbench.plugins.explorer.document import explorer_data, list_measurements

# Made from web/src by `python3 dev.py web`.
_SCRIPT = resources.files(__package__) / "explorer.js"
_PAGE = resources.files(__package__) / "explore.html.j2"
#: Pixels of a page in a frame, by its view.
_HEIGHTS = {"": 900, "categories": 345, "levels": 460, "what-if": 460}
_ROWS = 20  #: Operators of a page without scripts.
#: The views that can be shown alone.
VIEWS = (
    *("categories", "levels", "what-if", "model", "source", "timeline", "operators", "memory"),
)


class Explorer(Explored, anywidget.AnyWidget):
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
        super().__init__(source, data=_to_json(source), view=view)

    def _ipython_display_(self) -> None:
        self.show_live()

    def find_operators(self, keys: list[str]) -> pd.DataFrame:
        """The operators with these keys; all without any."""
        operators = self.subject.operators
        return operators[operators["key"].isin(keys)] if keys else operators

    def find_keys(self, operators: pd.DataFrame) -> list[str]:
        """The keys of operators; none for all."""
        is_whole = len(operators) == len(self.subject.operators)
        return [] if is_whole else list(operators["key"])


class Page(Explored):
    """The explorer where no kernel runs: the whole page in a frame; all operators are selected."""

    def __init__(self, source: Run | Comparison, view: str = ""):
        super().__init__(source)
        self.text, self.height = _fill(self, view), _HEIGHTS.get(view, 600)

    def _repr_html_(self) -> str:
        # Where there is little room, lines break, and the page becomes longer.
        height = f"calc({self.height}px + max(0px, 300px - 22vw))"
        return (
            '<iframe title="Explorer" sandbox="allow-scripts allow-downloads" width="100%" '
            f'style="height:{height}" srcdoc="{html.escape(self.text)}"></iframe>'
        )


def explore_by_view(source: Run | Comparison) -> Callable[..., Explorer | Page]:
    """What `wb.explore` makes of a run or a comparison: a function of the view."""

    def explore(view: str = "", *, live: bool = False) -> Explorer | Page:
        """Explore it, or one view of it: a widget where a front end is ``live``, else a page."""
        if view and view not in VIEWS:
            raise unknown_name("view", view, VIEWS)
        return Explorer(source, view) if live else Page(source, view)

    return explore


def write_page(source: Run | Comparison) -> str:
    """``explore.html``: a page without any request, whose only script is the explorer's.

    Empty where a side has no trace.
    """
    sides = list_measurements(source)
    return Page(source).text if sides and all(m.sessions for m in sides) else ""


def _fill(page: Page, view: str) -> str:
    run = page.source if isinstance(page.source, Run) else page.source.run
    plain = page.picture.html + show(page.subject, "operators", top=_ROWS).html
    title = f"{run.label or run.model}: explorer"
    return fill_page(title, _to_json(page.source), view, plain)


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

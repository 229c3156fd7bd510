"""The explorer as a widget and as a page: one script, which draws what `explorer_data` returns."""

import base64
import hashlib
import html
import json
from importlib import resources
from pathlib import Path

import anywidget
import traitlets
from jinja2 import Environment, StrictUndefined

from workbench.analysis.run import Comparison, Measurement, Run
from workbench.errors import printable, unknown_name
from workbench.explorer.data import explorer_data
from workbench.plots.style import convert
from workbench.progress import is_interactive
from workbench.records.codec import to_plain

# Made from web/src by `python3 dev.py web`.
_SCRIPT = resources.files("workbench.explorer") / "explorer.js"
_PAGE = resources.files("workbench.explorer") / "explore.html.j2"


class Explorer(anywidget.AnyWidget):
    """The explorer as a widget; ``selected`` has the keys of the selected operators.

    Of a run with several comparisons, it shows the first one while the ``rest`` is read.
    """

    _esm = _SCRIPT.read_text()
    data = traitlets.Unicode("").tag(sync=True)
    rest = traitlets.Int(0).tag(sync=True)
    state = traitlets.Unicode("").tag(sync=True)
    view = traitlets.Unicode("").tag(sync=True)
    selected = traitlets.List(traitlets.Unicode()).tag(sync=True)

    def __init__(self, source: Run | Comparison, view: str = ""):
        comparisons = source.comparisons if isinstance(source, Run) else ()
        first = comparisons[0] if len(comparisons) > 1 else source
        super().__init__(data=_to_json(first), view=view, rest=max(0, len(comparisons) - 1))
        self._source = source
        self.on_msg(self._complete)  # sent once the first one is drawn

    def _complete(self, *_: object) -> None:
        if self.rest:
            with self.hold_sync():
                self.data, self.rest = _to_json(self._source), 0


class Page:
    """The explorer where no kernel runs: the whole page in a frame."""

    def __init__(self, text: str, height: int = 900):
        self.text, self.height = text, height

    def _repr_html_(self) -> str:
        return (
            '<iframe title="Explorer" sandbox="allow-scripts allow-downloads" width="100%" '
            f'height="{self.height}" srcdoc="{html.escape(self.text)}"></iframe>'
        )


#: The views that can be shown alone.
VIEWS = ("categories", "levels", "what-if", "model", "timeline", "operators", "memory")


def explore(source: Run | Comparison | Measurement | str | Path, view: str = "") -> Explorer | Page:
    """Explore a run, by itself or its path, or one comparison, interactively.

    Categories, model, timeline, operators and findings are connected: what is selected in one is
    shown in all, with its layer, source line, machine code and place on the roofline. In a notebook
    this is a widget, whose ``selected`` has the keys of the selected operators; without a live
    front end it is a page. ``view`` shows one view alone: ``categories``, all ``levels`` of the
    run (of the ISA, or thread counts), ``what-if`` for categories, ``model``, ``timeline``,
    ``operators`` or ``memory``.

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
    noun: Run | Comparison = convert(source, (Run, Comparison), "wb.explore")
    if is_interactive():
        return Explorer(noun, view)
    return Page(explorer_page(noun, view), 600 if view else 900)


def explorer_page(source: Run | Comparison, view: str = "") -> str:
    """``explore.html``: a page without any request, whose only script is the explorer's."""
    run = source if isinstance(source, Run) else source.run
    return fill_page(f"{run.model}: explorer", _to_json(source), view)


def fill_page(title: str, data: str, view: str = "") -> str:
    """The page for the JSON text of `explorer_data`."""
    script = _SCRIPT.read_text()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = Environment(autoescape=True, undefined=StrictUndefined).from_string(_PAGE.read_text())
    # "<" could end the element that the data is in.
    data = data.replace("<", "\\u003c")
    return page.render(title=printable(title), data=data, script=script, digest=digest, view=view)


def _to_json(source: Run | Comparison) -> str:
    plain = to_plain(explorer_data(source))
    text = json.dumps(plain, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return printable(text)

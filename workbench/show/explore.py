"""Let a person turn the knobs of a view; without a person, show it as it is set."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

import ipywidgets as widgets
from IPython.display import HTML, display

from workbench.errors import UsageError, WorkbenchError

#: What a control can be made of.
Choice = bool | Sequence[Any] | Mapping[str, Any] | widgets.Widget

_KNOBS = {"flex_flow": "row wrap", "grid_gap": "0 24px"}
_AS_WIDE_AS_NEEDED = {"width": "max-content"}


def explore(view: Callable[..., object], *, headless: bool = False, **choices: Choice) -> object:
    """Widgets for the arguments of a view, which is drawn anew whenever one changes.

    Parameters
    ----------
    view
        A function of the ``choices`` that returns something to display: a figure, a table.
    headless
        Nobody is there to turn knobs: return the view with the first of all choices.
    choices
        By name of the argument: a bool becomes a check box, a sequence of numbers a slider over
        them, any other sequence a list to choose from; of a mapping the keys are chosen, and the
        view gets what is behind them. A widget is taken as it is. The first choice is shown first.

    Returns
    -------
    object
        The widgets with the view below them, or why there is none; or, headless, what the view
        returns.

    Raises
    ------
    UsageError
        A choice leaves nothing to choose from.

    Examples
    --------
    >>> explore(lambda top, share: f"{top} {share}", headless=True, top=range(5, 20), share=False)
    '5 False'
    """
    for name, options in choices.items():
        if not isinstance(options, bool | widgets.Widget) and not len(options):
            raise UsageError(f"nothing to choose from for {name!r}")
    controls = {name: _control(name, options) for name, options in choices.items()}

    def show(**chosen: Any) -> object:
        return view(**{name: _meant(choices[name], value) for name, value in chosen.items()})

    if headless:
        return show(**{name: control.value for name, control in controls.items()})
    drawn = widgets.interactive_output(lambda **chosen: _display(show, chosen), controls)
    return widgets.VBox([widgets.HBox(list(controls.values()), layout=_KNOBS), drawn])


def _meant(options: Choice, value: Any) -> Any:
    return options[value] if isinstance(options, Mapping) else value


def _display(show: Callable[..., object], chosen: dict[str, Any]) -> None:
    """What a person chose, or in one line why it cannot be shown."""
    try:
        display(show(**chosen))
    except WorkbenchError as error:
        display(HTML(f'<p role="alert" style="max-width:48em">{html.escape(str(error))}</p>'))


def _control(name: str, options: Choice) -> widgets.Widget:
    if isinstance(options, widgets.Widget):
        return options
    look = {"description": name.replace("_", " "), "style": {"description_width": "initial"}}
    if isinstance(options, bool):
        return widgets.Checkbox(value=options, indent=False, **look)
    if not isinstance(options, Mapping) and all(isinstance(option, Real) for option in options):
        return widgets.SelectionSlider(
            options=sorted(options), value=options[0], continuous_update=False, **look
        )
    return widgets.Dropdown(options=list(options), layout=_AS_WIDE_AS_NEEDED, **look)

"""Let a person turn the knobs of a view; without a person, show it as it is set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

import ipywidgets as widgets
from IPython.display import display

from workbench.errors import UsageError


def explore(
    view: Callable[..., object], *, headless: bool = False, **choices: bool | Sequence[Any]
) -> object:
    """Widgets for the arguments of a view, which is drawn anew whenever one changes.

    Parameters
    ----------
    view
        A function of the ``choices`` that returns something to display: a figure, a table.
    headless
        Nobody is there to turn knobs: return the view with the first of all choices.
    choices
        By name of the argument: a bool becomes a check box, a sequence of numbers a slider over
        them, any other sequence a list to choose from. The first choice is shown first.

    Returns
    -------
    object
        The widgets with the view below them; or, headless, what the view returns.

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
        if not isinstance(options, bool) and not len(options):
            raise UsageError(f"nothing to choose from for {name!r}")
    if headless:
        return view(**{name: _first(options) for name, options in choices.items()})
    controls = {name: _control(name, options) for name, options in choices.items()}
    drawn = widgets.interactive_output(lambda **chosen: display(view(**chosen)), controls)
    knobs = widgets.HBox(list(controls.values()), layout={"flex_flow": "row wrap"})
    return widgets.VBox([knobs, drawn])


def _first(options: bool | Sequence[Any]) -> Any:
    return options if isinstance(options, bool) else options[0]


def _control(name: str, options: bool | Sequence[Any]) -> widgets.Widget:
    label, whole = name.replace("_", " "), {"description_width": "initial"}
    if isinstance(options, bool):
        return widgets.Checkbox(value=options, description=label, indent=False)
    if all(isinstance(option, Real) for option in options):
        return widgets.SelectionSlider(
            options=list(options), description=label, style=whole, continuous_update=False
        )
    return widgets.Dropdown(
        options=list(options),
        description=label,
        style=whole,
        layout={"width": "max-content"},
    )

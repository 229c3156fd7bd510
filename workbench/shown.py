"""What shows a noun in a notebook: the package sets it, as views are in a layer above the nouns."""

from collections.abc import Callable
from typing import Any

_views: list[Callable[[object], Any]] = []


def show_by(show: Callable[[object], Any]) -> None:
    """Show nouns by this function from now on."""
    _views[:] = [show]


def show_noun(noun: object) -> Any:
    """A noun as a table or figures."""
    return _views[0](noun)


def draw_page(noun: object) -> str:
    """The HTML of a noun that a notebook displays."""
    return str(show_noun(noun)._repr_html_())

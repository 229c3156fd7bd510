"""Plug-in: the explorer: one page per run, as a file and as a widget."""

from workbench.api import Attribute, Plugin

_PAGE = Attribute(f"{__name__}.page:write_page", page="explore.html")
_EXPLORE = f"{__name__}.page:explore_by_view"
PLUGIN = Plugin(
    attributes={
        "Run.explore": _EXPLORE,
        "Comparison.explore": _EXPLORE,
        "Run.explorer_page": _PAGE,
        "Comparison.explorer_page": _PAGE,
    }
)

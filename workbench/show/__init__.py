"""From frames to figures, tables and widgets; nothing here computes a statistic."""

from workbench.show.bottlenecks import plot_bottlenecks
from workbench.show.categories import plot_categories
from workbench.show.explore import explore
from workbench.show.heatmap import plot_heatmap
from workbench.show.history import plot_history
from workbench.show.ladder import plot_ladder
from workbench.show.latencies import plot_latencies
from workbench.show.machine_code import plot_code
from workbench.show.operators import plot_operators
from workbench.show.roofline import plot_roofline
from workbench.show.rung import plot_rung
from workbench.show.scaling import plot_scaling
from workbench.show.sheet import Sheet, show_together
from workbench.show.shift import plot_shift
from workbench.show.speedups import plot_speedups
from workbench.show.stack import plot_stack
from workbench.show.style import COLORS, format_ms, format_share, mark_figure
from workbench.show.tables import Table, show_table
from workbench.show.timeline import (
    PAGE_CLASS,
    Page,
    Timeline,
    draw_timeline,
    plot_timeline,
    timeline_script,
)
from workbench.show.tree import plot_tree
from workbench.show.turns import plot_turns
from workbench.show.what_if import FACTORS, plot_what_if

__all__ = [
    "COLORS",
    "FACTORS",
    "PAGE_CLASS",
    "Page",
    "Sheet",
    "Table",
    "Timeline",
    "draw_timeline",
    "explore",
    "format_ms",
    "format_share",
    "mark_figure",
    "plot_bottlenecks",
    "plot_categories",
    "plot_code",
    "plot_heatmap",
    "plot_history",
    "plot_ladder",
    "plot_latencies",
    "plot_operators",
    "plot_roofline",
    "plot_rung",
    "plot_scaling",
    "plot_shift",
    "plot_speedups",
    "plot_stack",
    "plot_timeline",
    "plot_tree",
    "plot_turns",
    "plot_what_if",
    "show_table",
    "show_together",
    "timeline_script",
]

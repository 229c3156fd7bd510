from .analysis.findings.text import abridge_gain
from .analysis.operators import label_operators, tabulate_spans
from .analysis.speedup import Speedup
from .analysis.statistics import half_width
from .errors import printable
from .plots.cards import outline_finding
from .plots.gain import outline_gain
from .plots.style import Chart, Ink, draws
from .plots.tables import show_note
from .plots.widgets import Explored, KeptBox
from .report.html import render_page
from .trace.etdump import TRACING
from .wording import format_ratio, format_size, plural

__all__ = [
    "TRACING", "Chart", "Explored", "Ink", "KeptBox", "Speedup", "abridge_gain", "draws",
    "format_ratio", "format_size", "half_width", "label_operators", "outline_finding",
    "outline_gain", "plural", "printable", "render_page", "show_note", "tabulate_spans",
]  # fmt: skip

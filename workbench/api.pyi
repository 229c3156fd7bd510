from .analysis.findings.finding import Finding, Gain
from .analysis.findings.rules import Rule
from .analysis.speedup import Speedup
from .analysis.statistics import half_width
from .cli.options import EXISTING, Output, command
from .convert import Format
from .emulation import EMULATED, WRONG
from .errors import StoreError, UsageError, unknown_name
from .export.rewriter import Rewriter
from .frames import interval, make_frame
from .options import Progress, silent
from .plots.style import Chart, draws
from .plots.tables import Table, fold_table, show_note, show_table
from .plots.views import Part, View
from .plugin import Attribute, Plugin, Section
from .progress import show_progress
from .records.documents import Document
from .records.exports import Rewrite
from .records.trials import Trial
from .remedies import Remedies, Remedy
from .run.sides import Settings, Side
from .store import atomic_write, read_json
from .trace.writers import to_csv
from .wording import format_ms, format_ratio, format_size, plural

__all__ = [
    "EMULATED", "EXISTING", "WRONG", "Attribute", "Chart", "Document", "Finding", "Format",
    "Gain", "Output", "Part", "Plugin", "Progress", "Remedies", "Remedy", "Rewrite", "Rewriter",
    "Rule", "Section", "Settings", "Side", "Speedup", "StoreError", "Table", "Trial",
    "UsageError", "View", "atomic_write", "command", "draws", "fold_table", "format_ms",
    "format_ratio", "format_size", "half_width", "interval", "make_frame", "plural",
    "read_json", "show_note", "show_progress", "show_table", "silent", "to_csv", "unknown_name",
]  # fmt: skip

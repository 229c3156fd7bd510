from .analysis.findings.finding import Finding, Gain
from .analysis.findings.rules import Rule
from .analysis.operators import label_operators, tabulate_spans
from .analysis.speedup import Speedup
from .analysis.statistics import half_width
from .cli.checks import check_request
from .cli.options import EXISTING, Output, command, options_of
from .emulation import WRONG
from .errors import RunnerError, UsageError, unknown_name
from .export.rewriter import Rewriter
from .frames import Frame
from .options import Options, Progress, option, silent
from .plots.style import Chart, Ink, draws
from .plots.tables import Table, show_note, show_table
from .plots.views import Part, View
from .plugin import Attribute, Plugin, Section
from .progress import show_progress
from .records.codec import SCHEMA_VERSION, structure, to_json, to_plain
from .records.documents import Document
from .records.exports import Rewrite
from .records.trials import Applied, Trial
from .remedies import Remedies, Remedy
from .run.sides import Graph, Settings, Side
from .store import atomic_write, load_record, safe_name
from .trace.etdump import TRACING
from .trace.writers import to_csv
from .wording import format_ratio, format_size, plural

__all__ = [
    "EXISTING", "SCHEMA_VERSION", "TRACING", "WRONG", "Applied", "Attribute", "Chart", "Document",
    "Finding", "Frame", "Gain", "Graph", "Ink", "Options", "Output", "Part", "Plugin", "Progress",
    "Remedies", "Remedy", "Rewrite", "Rewriter", "Rule", "RunnerError", "Section", "Settings",
    "Side", "Speedup", "Table", "Trial", "UsageError", "View", "atomic_write", "check_request",
    "command", "draws", "format_ratio", "format_size", "half_width", "label_operators",
    "load_record", "option", "options_of", "plural", "safe_name", "show_note", "show_progress",
    "show_table", "silent", "structure", "tabulate_spans", "to_csv", "to_json", "to_plain",
    "unknown_name",
]  # fmt: skip

from .analysis.findings.finding import Finding, Gain
from .analysis.findings.rules import Rule
from .cli.command import Output, command
from .errors import UsageError
from .export.rewriter import Rewriter
from .frames import Frame
from .plots.tables import Table, show_table
from .plots.views import View
from .plugin import Attribute, Plugin, Section
from .records.exports import Rewrite
from .remedies import Remedies, Remedy
from .run.sides import Settings, Side
from .run.targets.host import Host

__all__ = [
    "Attribute", "Finding", "Frame", "Gain", "Host", "Output", "Plugin", "Remedies", "Remedy",
    "Rewrite", "Rewriter", "Rule", "Section", "Settings", "Side", "Table", "UsageError", "View",
    "command", "show_table",
]  # fmt: skip

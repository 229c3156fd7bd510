"""What to do next: a ranked list of findings, each with evidence, gain and action."""

from workbench.analyze.findings.facts import Facts, Rival
from workbench.analyze.findings.rules import NOTEBOOK, RULES, find_bottlenecks

__all__ = ["NOTEBOOK", "RULES", "Facts", "Rival", "find_bottlenecks"]

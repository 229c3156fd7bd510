"""What applies the remedies of the plug-in, as the workbench finds it."""

from pkgutil import resolve_name

from workbench.plugin import collect

REWRITER = resolve_name(collect("remedies")["remedies"].reference)

"""What findings advise about a layer, as commands that measure it alone."""

import shlex
from collections.abc import Sequence
from dataclasses import replace

from workbench.analysis.findings.finding import Finding
from workbench.analysis.run import Measurement
from workbench.records.runs import GIVEN

#: The rule whose findings advise to measure a layer alone.
_RULE = "far from the roof"


def name_replays(m: Measurement, findings: Sequence[Finding]) -> list[Finding]:
    """The findings, with a command that replays the layer of each that advises so."""
    return [_name_layer(m, each) if each.rule == _RULE else each for each in findings]


def _name_layer(m: Measurement, finding: Finding) -> Finding:
    layer = m.costs.at[next(iter(finding.operators)), "module"]
    has_name = isinstance(layer, str) and layer
    return replace(finding, command=name_replay(m, layer)) if has_name else finding


def name_replay(m: Measurement, layer: str) -> str:
    """What measures one layer alone; of a module of a notebook, a call there."""
    if m.export is not None and m.export.input_source == GIVEN:
        return f"wb.replay_layer('RUN_DIR', {layer!r})"
    return f"workbench replay RUN_DIR --layer {shlex.quote(layer)} --model MODEL"

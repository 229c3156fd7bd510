"""What findings advise about a layer, as commands that measure it alone."""

import shlex

import pandas as pd

from workbench.analysis.run import Measurement
from workbench.records.runs import GIVEN

#: The rule whose findings advise to measure a layer alone.
_RULE = "far from the roof"


def name_replays(m: Measurement, findings: pd.DataFrame) -> pd.DataFrame:
    """The findings, with a command that replays the layer of each that advises so."""
    hints = findings["hint"].copy()
    for row in findings.index[findings["rule"] == _RULE]:
        layer = m.costs.at[findings.at[row, "keys"].splitlines()[0], "module"]
        if isinstance(layer, str) and layer:
            hints[row] = name_replay(m, layer)
    return findings.assign(hint=hints)


def name_replay(m: Measurement, layer: str) -> str:
    """What measures one layer alone; of a module of a notebook, a call there."""
    if m.export is not None and m.export.input_source == GIVEN:
        return f"wb.replay_layer('RUN_DIR', {layer!r})"
    return f"workbench replay RUN_DIR --layer {shlex.quote(layer)} --model MODEL"

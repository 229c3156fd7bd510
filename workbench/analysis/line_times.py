"""Time by line of the model's source."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from workbench.analysis.layers import name_layer
from workbench.analysis.operators import total_runs
from workbench.analysis.statistics import blocks_of, half_width
from workbench.frames import SOURCE_LINES

if TYPE_CHECKING:
    from workbench.analysis.comparison import Comparison
    from workbench.analysis.measurement import Measurement

_COMPARED = ["baseline_ms", "speedup", "low", "high", "outcome"]


def split_place(place: object) -> tuple[str, int]:
    """The file and the line of ``file:line``; of anything else, an empty file and 0."""
    file, _, line = place.rpartition(":") if isinstance(place, str) else ("", "", "")
    return (file, int(line)) if file and line.isdecimal() and len(line) < 9 else ("", 0)


def place_operators(m: Measurement) -> pd.Series:
    """The line of every operator by its key, ``file:line``; empty for one of no line.

    An operator belongs to one line: the innermost of the user's code, or of the code of the model's
    package, in the stack trace of its node. One that does the work of several nodes, such as a
    convolution with its activation, belongs to the line of the main one.
    """
    places = m.operators.set_index("key")["source"]
    return places.where([split_place(place)[1] > 0 for place in places], "").astype(object)


def list_joined(m: Measurement) -> dict[str, str]:
    """Lines whose work an operator of another line does, as of a fused activation, by that line."""
    joined: dict[str, str] = {}
    for method in m.sidecar.methods if m.sidecar else ():
        for node in (node for call in method.instructions for node in call.xnodes if node.origins):
            main, *further = (method.origins[n].source for n in (*node.origins, *node.absorbed))
            joined.update((place, main) for place in further if place and place != main)
    return joined


def find_toggled(m: Measurement) -> Comparison | None:
    """The comparison of a measurement with the baseline of its program, if there is one."""
    return next((ab for ab in m.run.comparisons if ab.candidate is m and ab.same_program), None)


def tabulate_lines(m: Measurement) -> pd.DataFrame:
    """Sum the operators of a measurement over the lines that they come from: ``SOURCE_LINES``.

    All operators of a line count, whichever instances of a module ran it; they are summed in each
    run before the scatter is estimated, because they are correlated. The line with the most time
    comes first; the last row, without a file, is the time of no line: rows add up to the latency.
    """
    places = place_operators(m)
    rows = m.operators.set_index("key").assign(place=places)
    rows["layer"] = rows["module"].dropna().map(name_layer)
    groups = rows.groupby("place", sort=False)
    table = pd.DataFrame({name: groups[name].sum() for name in ("mean_ms", "share")})
    table["operators"] = groups.size()
    table["layers"] = groups["layer"].agg(_join)
    table["findings"] = _list_findings(m, places).reindex(table.index).fillna("")
    names = [split_place(place) for place in table.index]
    table["file"], table["line"] = zip(*names, strict=True)
    half = _half_widths(m, places).reindex(table.index)
    table["low_ms"] = (table["mean_ms"] - half).clip(lower=0)
    table["high_ms"] = table["mean_ms"] + half
    work = rows[rows["kind"].isin(["delegated", "portable"])]
    dtypes = m.list_dtypes(work["operator"])
    parts = work.assign(dtype=dtypes, inside=work["mean_ms"].where(work["kind"] == "delegated", 0))
    parts = parts.groupby("place", sort=False)
    spent = parts["mean_ms"].sum()
    table["delegated"] = parts["inside"].sum() / spent.where(spent > 0)
    table["dtype"] = parts["dtype"].agg(_join).reindex(table.index).fillna("")
    table[_COMPARED] = _compare(m, places).reindex(table.index)
    table["outcome"] = table["outcome"].fillna("")
    table = table.sort_values("mean_ms", ascending=False, kind="stable")
    table = table.sort_values("file", key=lambda files: files == "", kind="stable")
    return SOURCE_LINES.check(table.reset_index()[SOURCE_LINES.names])


def _join(texts: pd.Series) -> str:
    """The distinct ones of some texts, in their order: that of time."""
    return ", ".join(dict.fromkeys(texts.dropna()))


def _half_widths(m: Measurement, places: pd.Series) -> pd.Series:
    ledger = m.ledger.assign(place=m.ledger["key"].astype(object).map(places))
    times = total_runs(ledger, "place")
    return pd.Series(half_width(blocks_of(times).to_numpy()), times.columns)


def _list_findings(m: Measurement, places: pd.Series) -> pd.Series:
    """The ids of the findings about operators of each line."""
    ids: dict[str, list[str]] = {}
    for finding in m.opportunities:
        for place in dict.fromkeys(places[key] for key in finding.operators if key in places):
            ids.setdefault(place, []).append(finding.id)
    return pd.Series({place: ", ".join(each) for place, each in ids.items()}, dtype=object)


def _compare(m: Measurement, places: pd.Series) -> pd.DataFrame:
    """The time of each line at the baseline, and the speed-up since."""
    ab = find_toggled(m)
    if ab is None:
        none = pd.DataFrame(np.nan, [], _COMPARED)
        return none.astype({"outcome": object})
    before = place_operators(ab.baseline).to_dict()
    compared = ab.compare_by("operator", before, places.to_dict()).set_index("key")
    return compared[_COMPARED]

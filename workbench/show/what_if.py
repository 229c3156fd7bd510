"""What E2E would be if parts of it were faster: measured above predicted."""

from __future__ import annotations

import math

import pandas as pd
from matplotlib.figure import Figure

from workbench.show.categories import plot_categories
from workbench.show.style import INK, format_ms, marked

#: Choices for the speed-up of a part, as measured first.
FACTORS = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0, math.inf)

_REST = "all else"
#: Letters of a title's assumptions, beyond which they are counted.
_LONGEST = 60


@marked
def plot_what_if(what_if: pd.DataFrame, title: str = "") -> Figure:
    """Two bars: E2E as measured and as predicted, with the prediction's 95 % interval.

    Parameters
    ----------
    what_if
        ``schema.WHAT_IF``; where the parts are no categories, those that stay as they are are
        drawn as one.
    title
        Of the figure; empty names the speed-up of E2E and what it assumes.
    """
    e2e, parts = what_if.iloc[0], what_if[1:]
    if not (parts["level"] == "category").all():
        parts = _fold(parts)
    bars = {
        label: pd.DataFrame(
            {
                "category": parts["name"],
                "mean_ms": parts[column],
                "share": parts[column] / e2e[column] if e2e[column] else math.nan,
            }
        )
        for label, column in (("measured", "measured_ms"), ("predicted", "predicted_ms"))
    }
    known = math.isfinite(e2e["low_ms"])
    figure = plot_categories(
        bars, title or describe_what_if(what_if), reach=e2e["high_ms"] if known else 0.0
    )
    if known:
        axis = figure.axes[0]
        axis.plot([e2e["low_ms"], e2e["high_ms"]], [1.44, 1.44], color=INK, linewidth=2.2)
        axis.set_xlabel(f"{axis.get_xlabel()}; line: 95 % interval of the prediction")
    return figure


def describe_what_if(what_if: pd.DataFrame) -> str:
    """The speed-up of E2E and what it assumes, in one line."""
    e2e, parts = what_if.iloc[0], what_if[1:]
    changed = parts[parts["speedup"] != 1]
    if changed.empty:
        return f"Nothing faster: {format_ms(e2e['measured_ms'])}"
    by_factor = changed.groupby("speedup", sort=False)["name"].agg(", ".join)
    assumed = ", ".join(
        f"{names} {'free' if math.isinf(factor) else f'{factor:g}x'}"
        for factor, names in by_factor.items()
    )
    if len(assumed) > _LONGEST:
        assumed = f"{len(changed)} parts are faster"
    band = f" ({e2e['low']:.2f} to {e2e['high']:.2f})" if math.isfinite(e2e["low"]) else ""
    return f"{e2e['speedup']:.2f}x{band} if {assumed}"


def _fold(parts: pd.DataFrame) -> pd.DataFrame:
    """The parts that become faster, and all others as one."""
    faster = parts["speedup"] != 1
    columns = ["measured_ms", "predicted_ms"]
    rest = pd.DataFrame([{"name": _REST, **parts.loc[~faster, columns].sum()}])
    return pd.concat([parts.loc[faster, ["name", *columns]], rest], ignore_index=True)

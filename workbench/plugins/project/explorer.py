"""A projection: a table, and a side of the explorer."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from workbench.analysis.operators import CATEGORIES
from workbench.analysis.run import Measurement
from workbench.explorer.data import Json, align_operators, encode, list_numbers
from workbench.plots.tables import show_table
from workbench.plots.views import Part, View
from workbench.plugins.project.published import ENDS


@dataclass(frozen=True)
class ProjectedTimes:
    """What the operators of a measurement would take elsewhere: ``table`` is a ``PROJECTION``.

    The name of its columns says that it is projected, and where to.
    """

    table: pd.DataFrame
    measurement: Measurement

    @property
    def mark(self) -> str:
        """What every table and figure of it says."""
        return str(self.table.columns.name)

    @property
    def place(self) -> str:
        """The device and the ISA level."""
        return self.mark.partition(": ")[2]

    def _repr_html_(self) -> str:
        return show_table(self.table)._repr_html_()

    def draw(self, operators: pd.DataFrame) -> tuple[Json, Json]:
        """A side of the explorer, and its comparison with what was measured, without a verdict."""
        rows, e2e, m = align_operators(self.table, operators), self.table.iloc[0], self.measurement
        # What is no operator stays as it is.
        rest = (
            align_operators(m.operators, operators)["mean_ms"].where(rows["kind"].isna()).fillna(0)
        )
        parts = {name: (operators["category"] == name).to_numpy() for name in CATEGORIES}
        sums = pd.DataFrame(
            {
                name: pd.Series(sum_projection(rows[own])) + rest[own].sum()
                for name, own in parts.items()
            }
        ).T.rename_axis("category")
        total, gains = sums["projected_ms"].sum(), _gains(rows)
        columns = dict(zip(ENDS, ("mean_ms", "low_ms", "high_ms"), strict=True))
        categories = sums.rename(columns=columns).assign(share=sums["projected_ms"] / total)
        label = f"{self.place}, projected"
        measurement = {
            "experiment": label,
            "label": label,
            "projected": self.mark,
            "threads": m.threads,
            "phase": m.phase.name,
            "latency": dict(zip(("latency", "low", "high"), e2e[list(ENDS)], strict=True)),
            "mean_ms": list_numbers(rows["projected_ms"].where(rows["kind"].notna(), rest)),
            "categories": tuple(categories.reset_index().to_dict("records")),
        }
        judged = _gains(sums).assign(name=sums.index, outcome="projected")
        return measurement, {
            "outcome": "projected",
            "latency": _gains(self.table[:1]).iloc[0].to_dict(),
            "caveats": (f"{self.mark}; no verdict. Intervals are of 90 %",),
            "categories": tuple(judged.to_dict("records")),
            "operators": {name: list_numbers(gains[name]) for name in gains},
            "outcomes": encode(gains["speedup"].isna().map({True: "", False: "projected"})),
            "reasons": encode(rows["basis"]),
        }


def _gains(times: pd.DataFrame) -> pd.DataFrame:
    """What a comparison has of projected times."""
    measured, middle, low, high = (times[name] for name in ("measured_ms", *ENDS))
    gains = {"baseline_ms": measured, "candidate_ms": middle, "speedup": measured / middle}
    return pd.DataFrame(gains | {"low": measured / high, "high": measured / low})


def sum_projection(table: pd.DataFrame) -> dict[str, float]:
    """The measured and projected time of some operators of a projection.

    Errors of operators of one kind are taken as equal, those of different kinds as independent;
    an operator without a basis takes its measured time, times or over three.
    """
    factors = dict(zip(ENDS, (1.0, 1 / 3, 3.0), strict=True))
    filled = {name: table[name].fillna(table["measured_ms"] * f) for name, f in factors.items()}
    sums = table.assign(**filled).groupby("kind")[list(ENDS)].sum()
    middle = sums["projected_ms"].sum()
    low, high = (np.sqrt(((sums[name] - sums["projected_ms"]) ** 2).sum()) for name in ENDS[1:])
    values = (middle, max(middle - low, 0.0), middle + high)
    return {"measured_ms": table["measured_ms"].sum()} | dict(zip(ENDS, values, strict=True))


def _view(projection: ProjectedTimes, top: int) -> Iterator[Part]:
    yield show_table(projection.table, top=top)


VIEW = View((ProjectedTimes,), _view)

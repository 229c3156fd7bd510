"""What an optimisation tried: the table, and latency against error and size."""

import math
from pathlib import Path

import pandas as pd

from workbench.analysis.variants import read_study, tabulate_variants
from workbench.plots import style
from workbench.plots.style import Chart, marked
from workbench.plots.tables import Table, VStack, show_note, show_table
from workbench.records.optimize import Study

_SHOWN = (
    *("name", "change", "parent", "latency_ms", "threads", "speedup", "speedup_low"),
    *("speedup_high", "sqnr_db", "score", "size_mb", "planned_mb", "load_ms", "extension_share"),
    "note",
)
_GRADED = (
    *("name", "change", "parent", "basis", "predicted_ms", "predicted_low_ms"),
    *("predicted_high_ms", "gain_ms", "gain_low_ms", "gain_high_ms"),
)


def show_variants(study: Study | str | Path) -> VStack:
    """Every variant of an optimisation, what was predicted and what was measured.

    ``study`` is a study, or a path for `read_study`.

    Examples
    --------
    >>> print(wb.show_variants("out_toy_cnn"))  # doctest: +SKIP
    """
    found = study if isinstance(study, Study) else read_study(study)
    table = tabulate_variants(found)
    shown = [name for name in _SHOWN if table[name].notna().any()]
    graded = table[table["predicted_high_ms"].notna() & table["gain_ms"].notna()]
    parts: list[Table] = [show_table(table, shown, caption="What was tried")]
    if len(graded):
        parts.append(show_table(graded, list(_GRADED), caption="Predicted and measured gains"))
    return VStack(*parts, show_note(found.conclusion or "not finished", *found.warnings))


@marked
def plot_variants(study: Study | str | Path) -> Chart:
    """Latency against SQNR, one dot per measured variant; larger dots are larger programs.

    The line joins the variants that no other one beats in latency and error; hollow dots may not be
    recommended.

    Examples
    --------
    >>> wb.plot_variants("out_toy_cnn")  # doctest: +SKIP
    """
    found = study if isinstance(study, Study) else read_study(study)
    table = tabulate_variants(found)
    rows = table[table["latency_ms"].notna()].assign(db=lambda t: t["sqnr_db"])
    exact = max(math.ceil(rows["db"].max() / 20) * 20 if rows["db"].notna().any() else 0, 60)
    rows = rows.assign(db=rows["db"].fillna(exact)).sort_values("latency_ms")
    figure, (axis,) = style.new_figure("What was tried", 3.6, rows=1, left=0.75, bottom=0.6)
    flawed = rows["note"].str.contains("below|above|constant|not the model")
    sizes = 20 + 180 * (rows["size_mb"] / rows["size_mb"].max()).to_numpy()
    colors = [style.HIGHLIGHT if note.startswith("recommended") else style.SERIES[0]
              for note in rows["note"]]  # fmt: skip
    faces = ["none" if bad else color for bad, color in zip(flawed, colors, strict=True)]
    axis.hlines(rows["db"], rows["low_ms"], rows["high_ms"], color=style.FAINT, linewidth=1)
    axis.scatter(rows["latency_ms"], rows["db"], s=sizes, facecolors=faces, edgecolors=colors)
    front = _find_front(rows[~flawed])
    axis.plot(front["latency_ms"], front["db"], color=style.LINE, linewidth=1, zorder=0)
    for row in rows.itertuples():
        axis.annotate(f" {row.name}", (row.latency_ms, row.db), fontsize=7, color=style.INK)
    if not found.options.metric:
        axis.axhline(found.options.min_sqnr_db, color=style.FAINT, linewidth=1, linestyle=":")
    style.label_x(axis, "latency in ms, with 95 % interval")
    style.label_y(axis, "SQNR in dB")
    return figure


def _find_front(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows in order of latency, without those of more latency and no less error than another."""
    return rows[rows["db"] > rows["db"].cummax().shift(fill_value=-math.inf)]

"""What an optimisation tried: the table, and latency against error and size."""

import math
from pathlib import Path

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
    recommended. Of dots close together, one has a name.

    Examples
    --------
    >>> wb.plot_variants("out_toy_cnn")  # doctest: +SKIP
    """
    found = study if isinstance(study, Study) else read_study(study)
    table = tabulate_variants(found)
    rows = table[table["latency_ms"].notna()].sort_values("latency_ms")
    exact = max(60.0, rows["sqnr_db"].max())  # where a program without error is drawn
    rows = rows.assign(db=rows["sqnr_db"].fillna(exact))
    figure, (axis,) = style.new_figure("What was tried", 3.6, rows=1, left=0.75, bottom=0.6)
    base = found.variants[0].name
    flaws = {variant.name for variant in found.variants if variant.flaw}
    sizes = 20 + 180 * (rows["size_mb"] / rows["size_mb"].max()).to_numpy()
    colors = [style.HIGHLIGHT if n == found.best else style.SERIES[0] for n in rows["name"]]
    faces = ["none" if n in flaws else c for n, c in zip(rows["name"], colors, strict=True)]
    axis.hlines(rows["db"], rows["low_ms"], rows["high_ms"], color=style.FAINT, linewidth=1)
    axis.scatter(rows["latency_ms"], rows["db"], s=sizes, facecolors=faces, edgecolors=colors)
    fit = rows[~rows["name"].isin(flaws)]
    front = fit[fit["db"] > fit["db"].cummax().shift(fill_value=-math.inf)]
    axis.plot(front["latency_ms"], front["db"], color=style.LINE, linewidth=1, zorder=0)
    named: list[tuple[float, float]] = []
    places = zip(rows["name"], rows["latency_ms"], rows["db"], strict=True)
    wide, high = (float(rows[name].max() - rows[name].min()) or 1 for name in ("latency_ms", "db"))
    for name, x, y in sorted(places, key=lambda place: place[0] not in (found.best, base)):
        if all(abs(x - a) > wide / 10 or abs(y - b) > high / 20 for a, b in named):
            axis.annotate(f" {name}", (x, y), fontsize=7, color=style.INK)
            named.append((x, y))
    if not found.options.metric:
        axis.axhline(found.options.min_sqnr_db, color=style.FAINT, linewidth=1, linestyle=":")
    style.label_x(axis, "latency in ms, with 95 % interval")
    style.label_y(axis, "SQNR in dB")
    return figure

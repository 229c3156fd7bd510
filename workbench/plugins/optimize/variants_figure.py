"""Views and the figure of an optimisation."""

import math
import textwrap
from collections.abc import Collection, Iterator
from itertools import islice

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke
from matplotlib.ticker import LogLocator
from matplotlib.transforms import Bbox

from workbench import Run
from workbench.api import Section, Table, View, show_table
from workbench.pages import Chart, Ink, draws, show_note
from workbench.plugins.optimize.records import NOT_TRIED, Study, Variant
from workbench.plugins.optimize.study import find_study, tabulate_variants

#: How the identifier of a dot begins; the name of its variant follows.
DOT = "variant-"
#: Latencies that differ by more than this factor are drawn on a logarithmic axis.
_LOG_ABOVE = 4
#: Letters of what a variant changes, beside its dot and in a table.
_LETTERS, _WORDS = 40, 52
#: The average width of a letter of 8 points, and the height of a line of them, in points.
_LETTER = 5.2
_HEIGHT = 9.0
_FLOATING = ("fp32", "fp16", "fp16w", "bf16")
_TRIED = (
    *("name", "change", "latency_ms", "threads", "speedup", "speedup_low", "speedup_high"),
    *("sqnr_db", "score", "size_mb", "note"),
)


def view_variants(study: Study, top: int) -> Iterator[Table]:
    """The variants of an optimisation that were tried."""
    table = tabulate_variants(study)
    table = table[table["note"] != NOT_TRIED]  # the conclusion lists these
    notes = table["note"].str.replace(r"SQNR \S+ dB, ", "", regex=True)  # which has a column
    brief = [textwrap.shorten(text, _WORDS, placeholder=" …") for text in table["change"]]
    table = table.assign(note=notes, change=brief)
    tried = [name for name in _TRIED if table[name].notna().any()]
    if table["threads"].nunique() == 1:
        tried.remove("threads")
    yield show_table(table, tried, caption="What was tried")
    yield show_note(study.conclusion or "not finished", *study.warnings)


def view_run(run: Run, top: int) -> Iterator[Table | Chart]:
    """The optimisation that a run was measured for; nothing if there is none."""
    if study := find_study(run):
        yield plot_variants(study)
        yield from view_variants(study, top)


VARIANTS = View((Study,), view_variants)
OF_RUN = View(
    (Run,),
    view_run,
    Section(
        "What was tried, and what did it bring?",
        "Variants of the program from `workbench optimize`. Hollow dots are too inaccurate to be "
        "recommended.",
    ),
)


def _label_dot(variant: Variant, best: str) -> str:
    """The name of a variant and what it changes, shortened; and whether it is recommended."""
    marks = " (recommended)" if variant.name == best else ""
    change = textwrap.shorten(variant.change, _LETTERS, placeholder=" …")
    return f"{variant.name}{marks}: {change}"


def _name_dots(
    axis: Axes, names: list[str], dots: np.ndarray, radii: np.ndarray, first: Collection[str]
) -> None:
    """Write the label of each dot beside, above or below it, where it covers no other one or dot.

    Those named ``first`` have the choice; ``radii`` are points.
    """
    axis.autoscale_view()
    points_per_pixel = 72 / axis.figure.dpi
    middles = axis.transData.transform(dots) * points_per_pixel
    left = axis.bbox.x0 * points_per_pixel
    right = axis.figure.bbox.width * points_per_pixel
    taken = [Bbox([m - radius, m + radius]) for m, radius in zip(middles, radii, strict=True)]
    halo = [withStroke(linewidth=2.5, foreground="white")]
    for at in sorted(range(len(names)), key=lambda at: names[at] not in first):
        boxes = taken[:at] + taken[at + 1 :]
        places = (
            (text, side, shift, box)
            for text in (names[at], names[at].partition(":")[0])  # a name alone needs less room
            for side, shift, box in _list_places(text, middles[at], radii[at], left, right)
            if not any(map(box.overlaps, boxes))
        )
        for text, side, shift, box in islice(places, 1):
            axis.annotate(text, dots[at], shift, textcoords="offset points", va="center",
                          ha=side, fontsize=8, color=Ink.TEXT, path_effects=halo)  # fmt: skip
            taken.append(box)


def _list_places(
    text: str, middle: np.ndarray, radius: float, left: float, right: float
) -> Iterator[tuple[str, tuple[float, float], Bbox]]:
    """Where a label may stand beside, above or below its dot, inside the axis; all in points.

    With the side of the text that is there, and the room that it takes.
    """
    half = np.array([_LETTER * len(text), _HEIGHT]) / 2
    beside, above = radius + 2, radius + 1 + half[1]
    inward = max(0.0, left + 1 + half[0] - middle[0])
    inward += min(0.0, right - 1 - half[0] - middle[0])
    places = [
        ("left", 1, (beside, 0.0)), ("right", -1, (-beside, 0.0)),
        ("center", 0, (inward, above)), ("center", 0, (inward, -above)),
    ]  # fmt: skip
    for side, way, shift in places:
        center = middle + shift + (way * half[0], 0.0)
        box = Bbox([center - half, center + half])
        if left < box.x0 and box.x1 < right:
            yield side, shift, box


@draws(Study)
def plot_variants(study: Study) -> Chart:
    """Latency against SQNR, one dot per measured variant; larger dots are larger programs.

    The line joins the variants that no other one beats in latency and error; hollow dots may not be
    recommended. Where there is no room, a dot has no name.

    Examples
    --------
    >>> study = wb.read_study(wb.sample_file("out_squeezesam"))
    >>> f"{study.best} (recommended)" in wb.plot_variants(study).alt_text
    True
    """
    table = tabulate_variants(study)
    rows = table[table["latency_ms"].notna()].sort_values("latency_ms")
    exact = max(60.0, rows["sqnr_db"].max())  # where a program without error is drawn
    rows = rows.assign(db=rows["sqnr_db"].fillna(exact))
    figure, (axis,) = Chart.new("What was tried", 3.6, rows=1, left=0.75, bottom=0.6)
    base = study.variants[0].name
    flaws = {variant.name for variant in study.variants if variant.flaw}
    sizes = 20 + 180 * (rows["size_mb"] / rows["size_mb"].max()).to_numpy()
    colors = [Ink.HIGHLIGHT if n == study.best else Ink.SERIES[0] for n in rows["name"]]
    faces = ["none" if n in flaws else c for n, c in zip(rows["name"], colors, strict=True)]
    axis.hlines(rows["db"], rows["low_ms"], rows["high_ms"], color=Ink.FAINT, linewidth=1)
    for row, size, face, color in zip(rows.itertuples(), sizes, faces, colors, strict=True):
        axis.scatter(row.latency_ms, row.db, s=size, facecolors=face, edgecolors=color,
                     gid=f"{DOT}{row.name}")  # fmt: skip
    fit = rows[~rows["name"].isin(flaws)]
    front = fit[fit["db"] > fit["db"].cummax().shift(fill_value=-math.inf)]
    axis.plot(front["latency_ms"], front["db"], color=Ink.LINE, linewidth=1, zorder=0)
    if not study.options.metric:
        least = study.options.min_sqnr_db
        axis.axhline(least, color=Ink.FAINT, linewidth=1, linestyle=":")
        axis.annotate(f"least SQNR: {least:g} dB", (1, least), (-2, 3), va="bottom", ha="right",
                      xycoords=axis.get_yaxis_transform(), textcoords="offset points", fontsize=8,
                      color=Ink.FAINT)  # fmt: skip
    if rows["latency_ms"].max() > _LOG_ABOVE * rows["latency_ms"].min():
        axis.set_xscale("log")
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter("")
    dots = rows[["latency_ms", "db"]].to_numpy()
    labels = {v.name: _label_dot(v, study.best) for v in study.variants}
    first = (labels.get(study.best, ""), labels[base])
    _name_dots(axis, [labels[name] for name in rows["name"]], dots, np.sqrt(sizes) / 2, first)
    axis.set_xlabel("latency in ms, with 95 % interval")
    axis.set_ylabel("SQNR in dB")
    return figure


@draws(Study)
def plot_noise(study: Study, variant: Variant | None = None, *, top: int = 12) -> Chart:
    """The layers that are the noisiest if they alone are quantised, in the dtype of a variant.

    Bars are the SQNR of the output, the lowest on top: these layers cost most accuracy. Filled
    layers are quantised in ``variant``; without one, in the recommended one.

    Examples
    --------
    >>> study = wb.read_study(wb.sample_file("out_squeezesam"))
    >>> "quantised alone" in wb.plot_noise(study).alt_text
    True
    """
    variant = variant or (study[study.best] if study.best else study.variants[0])
    given, rest = dict(variant.options.module_dtypes), variant.options.dtype
    static = {k: value for k, value in study.layers.items() if k.startswith("int8:")}
    noise = {name.partition(":")[2]: value for name, value in (static or study.layers).items()}
    worst = sorted(filter(None, noise), key=lambda layer: -noise[layer])[:top]
    dtypes = [given.get(layer, rest) for layer in worst]
    title = f"Noise of layers, and their dtypes in {variant.name}"
    ratios = [-10 * math.log10(max(noise[layer], 1e-12)) for layer in worst]
    figure, axis = Chart.new_rows(title, worst, 0.3)
    for row, (db, dtype) in enumerate(zip(ratios, dtypes, strict=True)):
        axis.barh(row, db, 0.7, color="#DDDDDD" if dtype in _FLOATING else Ink.SERIES[0])
        axis.annotate(f"{db:.0f} dB, {dtype}", (db, row), (6, 0), textcoords="offset points",
                      va="center", fontsize=9, color=Ink.TEXT)  # fmt: skip
    axis.set_xlim(0, 1.3 * max(ratios, default=60.0))
    axis.set_xlabel("SQNR in dB if the layer is quantised alone; grey: kept in floating point")
    return figure

"""The partition of a program: its delegates, and the kernels between them."""

from collections.abc import Sequence
from itertools import groupby

from matplotlib.patches import Rectangle

from workbench.analysis.run import Measurement
from workbench.export.program import Program
from workbench.plots import style
from workbench.plots.style import Chart, draws
from workbench.plots.tables import COLORS, Table, show_note
from workbench.records.layers import Instruction
from workbench.wording import plural

#: Boxes in a row, and letters of a name in one.
_COLUMNS, _LETTERS = 6, 18
_NAMES = {"XnnpackBackend": "XNNPACK"}
_UNKNOWN = "The steps of this program are unknown: its file of layers is missing."


@draws(Measurement, Program)
def plot_partition(source: Measurement | Program) -> Chart | Table:
    """The steps of one inference in order: delegates as filled boxes, kernels as hollow ones.

    Portable kernels that follow each other share a box.

    Examples
    --------
    >>> run = wb.open_run(wb.sample_run("squeezesam"))
    >>> "XNNPACK" in wb.plot_partition(run.subject).alt_text
    True
    """
    sidecar = source.sidecar if isinstance(source, Measurement) else source.layers
    if sidecar is None or not sidecar.methods:
        return show_note(_UNKNOWN)
    boxes = _list_boxes(sidecar.methods[0].instructions)
    rows = -(-len(boxes) // _COLUMNS)
    figure, (axis,) = style.new_figure("The steps of one inference", 0.75 + 0.75 * rows, bottom=0.1)
    axis.set(xlim=(0, _COLUMNS), ylim=(rows, 0), xticks=[], yticks=[])
    axis.spines["bottom"].set_visible(False)
    for place, (is_delegate, lines) in enumerate(boxes):
        row, column = divmod(place, _COLUMNS)
        color = COLORS["GEMM"] if is_delegate else "#FFFFFF"
        axis.add_patch(
            Rectangle((column + 0.06, row + 0.1), 0.8, 0.75, facecolor=color, edgecolor=style.FAINT)
        )
        style.write_inside(axis, column + 0.46, row + 0.47, "\n".join(lines), color)
        if place < len(boxes) - 1:
            axis.annotate("→", (column + 0.93, row + 0.47), ha="center", va="center", fontsize=9)
    figure.rows_text = [" ".join(lines) for _, lines in boxes]
    style.add_key(figure, {"delegate": COLORS["GEMM"], "portable kernels": "#FFFFFF"})
    return figure


def _list_boxes(instructions: Sequence[Instruction]) -> list[tuple[bool, list[str]]]:
    """Whether each box is a delegate, and its lines."""
    steps = [each for each in instructions if each.kind in ("delegate", "kernel")]
    boxes = list[tuple[bool, list[str]]]()
    for is_delegate, group in groupby(steps, lambda each: each.kind == "delegate"):
        if is_delegate:
            boxes += [
                (True, [_NAMES.get(step.name, step.name), plural(len(step.xnodes), "operator")])
                for step in group
            ]
        else:
            names = [step.name.rpartition("::")[2].partition(".")[0] for step in group]
            counts = {name: names.count(name) for name in names}
            lines = [f"{name} x{n}" if n > 1 else name for name, n in counts.items()]
            shown = lines if len(lines) < 4 else [*lines[:2], f"and {len(lines) - 2} more"]
            boxes.append((False, [style.shorten(line, _LETTERS) for line in shown]))
    return boxes

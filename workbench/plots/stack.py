"""The path of a model from PyTorch to machine code, as a figure."""

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from workbench.plots import style
from workbench.plots.style import Chart

#: Stages by where they run: name, and what happens there.
STAGES = {
    "export, on your computer": (
        ("PyTorch", "nn.Module\nin eager mode"),
        ("torch.export", "one graph of\nATen operators"),
        ("partitioner", "delegates to XNNPACK\nwhat it supports"),
        (".pte", "program, weights,\ndelegate blobs"),
    ),
    "run, on the device": (
        ("runtime", "Method::execute:\none instruction after another"),
        ("XNNPACK", "operators; picks a\nmicrokernel for this CPU"),
        ("KleidiAI", "Arm's microkernels\n(on x86: XNNPACK's own)"),
        ("SME2, AVX-512 ...", "the instructions\nthat a toggle hides"),
    ),
}
_COLORS = (style.SERIES[0], style.SERIES[3])


def plot_stack() -> Chart:
    """The stages between ``nn.Module`` and an instruction: four of export, four of a run.

    Examples
    --------
    >>> "KleidiAI" in wb.plot_stack().alt_text
    True
    """
    figure, (axis,) = style.new_figure(
        "From a module to machine code", 3.6, left=0.1, right=0.1, top=0.4, bottom=0.1
    )
    axis.set_axis_off()
    axis.set_xlim(0, 4)
    axis.set_ylim(2, 0)
    for row, (side, stages) in enumerate(STAGES.items()):
        axis.text(0.03, row + 0.08, side, fontsize=9, color=style.FAINT, va="center")
        for column, (name, about) in enumerate(stages):
            axis.add_patch(FancyBboxPatch(
                (column + 0.06, row + 0.2), 0.8, 0.66, boxstyle="round,pad=0,rounding_size=0.05",
                facecolor=_COLORS[row], edgecolor="none",
            ))  # fmt: skip
            ink = style.ink_on(_COLORS[row])
            axis.text(column + 0.46, row + 0.38, name, ha="center", va="center", fontsize=11,
                      fontweight="bold", color=ink)  # fmt: skip
            axis.text(column + 0.46, row + 0.64, about, ha="center", va="center", fontsize=8.5,
                      color=ink, linespacing=1.3)  # fmt: skip
            if column:
                _draw_arrow(axis, (column - 0.14, row + 0.53), (column + 0.06, row + 0.53))
    # Round the corners, clear of the words between the rows.
    axis.plot([3.46, 3.46, 0.77, 0.77], [0.86, 0.97, 0.97, 1.0], color=style.INK, linewidth=1)
    _draw_arrow(axis, (0.77, 0.95), (0.77, 1.2))
    return figure


def _draw_arrow(axis: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    axis.add_patch(FancyArrowPatch(start, end, shrinkA=2, shrinkB=2, arrowstyle="-|>",
                                   mutation_scale=12, color=style.INK, linewidth=1))  # fmt: skip

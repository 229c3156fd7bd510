"""An export in a few lines for a person."""

from __future__ import annotations

from workbench.records import Export, Fidelity


def describe_export(export: Export) -> list[str]:
    """What was made, how near it comes to the model, what was left behind, and what is wrong."""
    delegates = sum(export.delegates.values())
    left = sum(row.count for row in export.partition if not row.delegated)
    lines = [
        f"{export.pte}: {export.size_bytes / 1e6:.1f} MB in {export.seconds:.1f} s, "
        f"{delegates} delegates, {left} operators left to portable kernels"
    ]
    lines += [f"{name.replace('_', ' ')}: {text}" for name, text in export.options.items()]
    lines += [_describe_output(output) for output in export.fidelity]
    for row in export.partition:
        if not row.delegated:
            why = " ".join(filter(None, [row.source, row.reason]))
            lines.append(f"left: {row.count} x {row.operator}  {why}".rstrip())
    if not export.etrecord:
        lines.append("warning: no ETRecord, PyTorch cannot serialise its graph")
    if export.problem:
        lines.append(f"warning: this export is wrong: {export.problem}")
    return lines


def _describe_output(output: Fidelity) -> str:
    if output.max_abs is None:
        return f"output {output.output}: not comparable with the model's"
    sqnr = "" if output.sqnr_db is None else f"SQNR {output.sqnr_db:.1f} dB, "
    return (
        f"output {output.output} against eager: {sqnr}"
        f"off by {output.max_abs:.3g} at most, of values up to {output.scale:.3g}"
    )

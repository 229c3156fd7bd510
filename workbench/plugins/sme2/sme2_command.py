"""The command ``sme2``."""

import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import click

import workbench as wb
from workbench.api import Output, command
from workbench.jobs import check_request, options_of, show_progress


@command()
@click.argument("model")
@options_of(wb.ExportOptions, "export", "Export")
@click.option(
    "--target", default="", help="Also run it with SME2 off and on: qemu, android or ssh:HOST."
)
@click.option(
    "--out", type=click.Path(path_type=Path), help="Output folder [default: out_<model>]."
)
def sme2(model: str, out: Path | None, export: wb.ExportOptions, target: str) -> Output:
    """Say which kernels would run with Arm SME2, and what would bring others there.

    MODEL is a .pte, or what `workbench export` takes: it is then also exported in each dtype that
    would bring operators onto SME2, for their number and the signal to noise ratio.
    """
    check_request([model], export)
    from workbench.plugins.sme2.predict import describe_kernels, list_dtypes, predict_program

    is_model, lines = not model.endswith(wb.Program.SUFFIXES), list[object]()
    with show_progress() as progress:
        make = partial(wb.export_model, model, root=out, progress=progress)
        program = make(options=export) if is_model else wb.open_program(model)
        programs, subject = [program], cast(Any, program)
        if target:
            options = wb.MeasureOptions(
                "sme2", target=target, runs=2, processes=1, cold_start=False
            )
            subject = wb.measure(program, options=options, root=out, progress=progress)
        lines.append(wb.show(subject, "sme2"))
        for dtype in list_dtypes(program) if is_model else ():
            try:
                programs.append(make(options=replace(export, dtype=dtype)))
            except wb.WorkbenchError as error:
                lines.append(f"{dtype}: {error}")
    tables = {name: each for p in programs for name, each in predict_program(p).items()}
    if len(programs) > 1 or target:
        lines += [f"{name}: {describe_kernels(table)}" for name, table in tables.items()]
    step = "" if target else f"workbench sme2 {shlex.quote(model)} --target qemu"
    return Output(lines, {"programs": programs, "kernels": tables}, step=step)

"""The view of kernels with Arm SME2 and without, and its section of the report."""

from collections.abc import Iterator
from importlib import metadata
from typing import Any

from workbench import Comparison, Measurement, Program, Run
from workbench.api import Section, Table, View, show_table
from workbench.pages import show_note
from workbench.plugins.sme2.predict import (
    describe_kernels,
    describe_limits,
    group_kernels,
    predict_program,
)

UNKNOWN = "The program is unknown: put the .pte beside the traces."


def show_kernels(source: Any, top: int) -> Iterator[str | Table]:
    """The kernels of every operator, as predicted, and as executed."""
    if isinstance(source, Program):
        named, version = predict_program(source), metadata.version("executorch")
    else:
        if isinstance(source, Run):
            source = next(iter(source.comparisons), source.subject)
        version = source.run.record.versions.get("executorch", "")
        if source.sme2 is None:
            yield UNKNOWN
            return
        named = {"": source.sme2}
    for name, table in named.items():
        text = describe_kernels(table)
        yield f"{name}: {text}." if name else f"{text[:1].upper()}{text[1:]}."
        groups = group_kernels(table)
        helped = (" -> " + groups["remedy"]).where(groups["remedy"] != "", "")
        groups = groups.drop(columns="remedy").assign(reason=groups["reason"] + helped)
        groups = groups.rename(columns=lambda name: name.replace("executed_", "executed "))
        yield show_table(groups, top=top, caption="By type of operator")
        columns = ["module", "operator", "shapes", "m", "n", "k", "kernel_off", "kernel_on"]
        products = table[table["m"].notna()].sort_values("flops", ascending=False, kind="stable")
        yield show_table(products, [*columns, "reason"], top=3 * top).fold("Single products")
    yield show_note(describe_limits(version))


SECTION = Section(
    "What would Arm SME2 change?",
    "The kernel of each operator with SME2 and without, predicted from the program, and what keeps "
    "it from SME2.",
    after="Which machine code ran?",
)
VIEW = View((Comparison, Run, Measurement, Program), show_kernels)
OF_RUN = View(
    (Run,), lambda run, top: show_kernels(run, top) if run.subject.sidecar else (), SECTION
)

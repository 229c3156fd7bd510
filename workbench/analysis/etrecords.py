"""Layers from ETRecords for the programs of a run, or why they give none."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from workbench.errors import StoreError
from workbench.export.etrecord import add_etrecord, read_etrecord
from workbench.export.program import list_etrecords
from workbench.records.layer_sidecar import Layers
from workbench.records.runs import PlannedProgram
from workbench.store import ETRECORD


def explain_etrecords(
    folder: Path, programs: Sequence[tuple[PlannedProgram, Layers | None]]
) -> str:
    """What is wrong with the ETRecords beside programs without layers; empty if there are none.

    ``folder`` is that of the run or of the traces.
    """
    problems: list[str] = []
    for program, layers in programs:
        if layers and layers.has_modules:
            continue
        nearby = (
            list_etrecords(Path(program.pte)) if program.pte else sorted(folder.glob("*.etrecord"))
        )
        problems += _explain(list(dict.fromkeys([*nearby, folder / ETRECORD])), layers)
    return "; ".join(dict.fromkeys(problems))


def link_etrecord(
    run: Path, programs: Sequence[tuple[PlannedProgram, Layers | None]], etrecord: Path
) -> tuple[PlannedProgram, Layers]:
    """The program of a run that an ETRecord is of, and its layers; StoreError if it is of none."""
    what, hint = "no program of the run is without layers", "put the .pte beside the traces"
    problem = StoreError(what, where=run, hint=hint)
    for program, layers in programs:
        if layers and not layers.has_modules:
            try:
                return program, add_etrecord(layers, etrecord)
            except StoreError as error:
                problem = error
    raise problem


def _explain(paths: Sequence[Path], layers: Layers | None) -> Iterator[str]:
    for path in filter(Path.is_file, paths):
        try:
            if layers is None:
                read_etrecord(path)
                yield f"{path.name} gives no layers without its program: put the .pte beside it"
            else:
                add_etrecord(layers, path)
        except StoreError as error:
            yield f"{path.name}: {error.what}"

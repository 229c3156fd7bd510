"""What a command line names, checked before anything is imported that takes seconds.

What works is looked at again where it is used; here, nothing of pandas or PyTorch is.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from workbench.errors import StoreError, UsageError, unknown_name
from workbench.names import check_label
from workbench.options import (
    ALL,
    COMMON_REWRITES,
    LIST,
    REWRITES,
    ExportOptions,
    MeasureOptions,
    expand_rewrites,
)
from workbench.process import output
from workbench.store import is_ours, load_run
from workbench.trace.files import list_traces


class Existing(click.Path):
    """A path of a file or folder that is there; ``recorded``: of a run, or of traces."""

    def __init__(self, *, recorded: bool = False) -> None:
        super().__init__(path_type=Path)
        self.recorded = recorded

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path."""
        if _is_run(ctx):
            check_recorded(Path(value), traced=self.recorded)
        return super().convert(value, param, ctx)


class Measured(click.ParamType):
    """The text ``RUN_DIR[:EXPERIMENT[:THREADS]]`` of a run that is there."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The text as it is."""
        folder, _, rest = value.partition(":")
        if not _is_run(ctx):
            return value
        if Path(value).exists():
            check_recorded(Path(value), traced=True)
            return value
        check_recorded(Path(folder), traced=True)
        check_experiment(Path(folder), rest.partition(":")[0])
        return value


def check_recorded(path: Path, *, traced: bool) -> None:
    """Refuse what is not there, a program, and a folder without traces if it has to be a run."""
    if not path.exists():
        raise UsageError("no such file or folder", where=path)
    if path.suffix == ".pte":
        hint = f"workbench profile {shlex.quote(str(path))}"
        raise UsageError("is a program, which was not measured yet", where=path, hint=hint)
    if traced and path.is_dir() and not is_ours(path):
        list_traces(path)


def _is_run(ctx: click.Context | None) -> bool:
    """Whether a command line is run; one that a document proposes is only parsed, by itself."""
    return bool(ctx and ctx.parent)


def check_experiment(run_dir: Path, experiment: str, where: str = "") -> None:
    """Refuse an experiment that a run of the workbench does not have."""
    if experiment and is_ours(run_dir):
        names = [each.name for each in load_run(run_dir).plan.experiments]
        if experiment not in names:
            raise unknown_name("experiment", experiment, names, where=where or run_dir)


def check_threads(run_dir: Path, threads: int | None) -> None:
    """Refuse a thread count that a run of the workbench does not have."""
    if threads is not None and is_ours(run_dir):
        counts = list(map(str, load_run(run_dir).plan.threads))
        if str(threads) not in counts:
            raise unknown_name("thread count", str(threads), counts, where="--threads")


def check_request(
    models: Sequence[str] = (),
    export: ExportOptions | None = None,
    measure: MeasureOptions | None = None,
) -> None:
    """Refuse at once, before PyTorch is imported, what no export and no run accepts."""
    check_subjects(models)
    if export is not None:
        check_export(export)
    if measure is not None:
        check_measure(measure)


def check_subjects(names: Sequence[str]) -> None:
    """Refuse models that nothing has, and programs that are not there."""
    from workbench.export.program import Program, open_program
    from workbench.models.registry import check_name

    for name in names:
        if not name.endswith(Program.SUFFIXES):
            check_name(name)
        elif not Path(name).is_file():
            open_program(name)  # says what is missing


def check_export(options: ExportOptions) -> None:
    """Refuse what no export accepts, and files that are not there.

    With ``--rewrite list``, list the rewrites and exit.
    """
    if LIST in options.rewrite:
        for name, text in REWRITES.items():
            common = f" ({ALL})" if name in COMMON_REWRITES else ""
            click.echo(f"{name}{common}: {text}", file=output())
        raise click.exceptions.Exit(0)
    from workbench.export.artifact import apply_recipe, check_options
    from workbench.models.sources import sample_files

    options = apply_recipe(options)
    sample_files(options.inputs)
    if options.state_dict and not Path(options.state_dict).is_file():
        raise UsageError("no such file", where=options.state_dict)
    check_options(replace(options, rewrite=expand_rewrites(options.rewrite)))


def check_measure(options: MeasureOptions) -> None:
    """Refuse what no run accepts on any machine, and files that are not there."""
    from workbench.run.isa import check_toggle_name
    from workbench.run.sides import check_side
    from workbench.run.targets import find_target

    find_target(options.target, options.power)
    check_toggle_name(options.toggle)
    check_label(options.label)
    for text in options.against:
        check_side(text)
    for path in options.ops:
        if not Path(path).is_file():
            raise StoreError("no such library of operators", where=path)
    _check_inputs(options)


def _check_inputs(options: MeasureOptions) -> None:
    """Refuse phases and a sweep that cannot be read."""
    if options.phases or options.sweep:
        from workbench.run.phases import read_sweep, split_phase

        for text in options.phases:
            split_phase(text)
        if options.sweep:
            read_sweep(options.sweep)


def check_categories(_: click.Context, __: click.Parameter, categories: str) -> str:
    """Refuse a scheme of categories that is not there."""
    if categories:
        from workbench.analysis.schemes import locate_scheme

        path = locate_scheme(categories)
        if not path.is_file():
            raise UsageError("no such file", where=path)
    return categories


def one_of(kind: str, valid: Iterable[str], where: str) -> Any:
    """A callback that refuses other values of an option, which may be given several times."""

    def check(_: click.Context, __: click.Parameter, value: Any) -> Any:
        for each in value if isinstance(value, tuple) else filter(None, [value]):
            if each not in valid:
                raise unknown_name(kind, each, valid, where=where)
        return value

    return check

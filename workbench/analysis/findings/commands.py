"""Commands that findings propose: they keep all the options that a program was exported with."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import Field, fields, replace
from typing import Any

from workbench.analysis.findings.complete import complete_command, find_names, is_lowered_here
from workbench.analysis.findings.finding import Finding
from workbench.analysis.run import Measurement
from workbench.export.reload import read_options
from workbench.options import ExportOptions
from workbench.records.exports import Rewrite
from workbench.remedies import REMEDIES

#: Options of an export that make no other program.
_UNTOLD = ("etrecord", "recipe", "fresh")
#: What a script calls in place of a command.
_CALLS = {"export": "export_model", "profile": "profile"}


def write_command(
    m: Measurement, verb: str = "export", constant: tuple[str, ...] = (), **changes: Any
) -> str:
    """``workbench export MODEL --dtype int8 ...`` of a measured program with some changes.

    Inputs that are ``constant`` are told as an option of the measurement. Of a module of a script,
    the line of Python that does the same.
    """
    options = ExportOptions()
    if export := m.export:
        options = replace(read_options(export), dtype=export.dtype, backend=export.backend)
        options = replace(options, rewrite=export.rewrite)
    options = replace(options, **changes)
    told = dict[Field[Any], Any]()
    for each in fields(options):
        value = getattr(options, each.name)
        if each.name in changes or not (value == each.default or each.name in _UNTOLD):
            told[each] = value
    if m.in_script:
        return _call(m, verb, {each.name: value for each, value in told.items()}, constant)
    words = ["workbench", verb, "MODEL"]
    for each, value in told.items():
        words += _write_option(each, value)
    return " ".join([*words, *(("--constant", ",".join(constant)) if constant else ())])


def _write_option(option: Field[Any], value: Any) -> list[str]:
    """An option as the command line takes it."""
    name = option.metadata["cli"].get("name", option.name)
    if option.metadata["expert"]:
        return ["--measure", f"{name}={'yes' if value is True else value}"]
    if option.metadata["cli"].get("type") == "several":
        values = [",".join(value)]
    elif isinstance(value, str):
        values = [value]
    else:
        values = [each if isinstance(each, str) else "{}={}".format(*each) for each in value]
    flag = f"--{name.replace('_', '-')}"
    return [word for each in values if each for word in (flag, shlex.quote(each))]


def _call(m: Measurement, verb: str, told: Mapping[str, Any], constant: tuple[str, ...]) -> str:
    """``wb.export_model(net, x, wb.ExportOptions(dtype='int8'))``."""
    given = ", ".join(f"{name}={value!r}" for name, value in told.items())
    options = f", wb.ExportOptions({given})" if given else ""
    options += f", measure=wb.MeasureOptions(constant={constant!r})" if constant else ""
    return f"wb.{_CALLS[verb]}({find_names(m).arguments}{options})"


def use_dtype(m: Measurement, dtype: str) -> dict[str, Any]:
    """What a finding has whose remedy is another dtype, which a trial measures where it can."""
    is_known = m.export is not None and not m.phase.name
    rewrite = Rewrite(dtype, f"the model in {dtype}", (), 1.0, None) if is_known else None
    command = write_command(m, "profile", dtype=dtype)
    return {"command": command, "remedy": dtype, "rewrite": rewrite}


def use_remedy(m: Measurement, name: str) -> dict[str, Any]:
    """What a finding has whose remedy is one of the export; no code if no plug-in has it."""
    if name not in REMEDIES:
        return {"remedy": name}
    applied = m.export.rewrite if m.export else ()
    command = write_command(m, rewrite=(*applied, name))
    return {"code": REMEDIES[name].code, "command": command, "remedy": name}


def combine_remedies(m: Measurement, findings: Sequence[Finding]) -> str:
    """One command with the remedies of a program's findings; empty if these are not several.

    Remedies that were tried and not shown to help are left out.
    """
    able = (each for each in findings if each.remedy and not each.is_hopeless)
    helping = [each for each in able if each.trial is None or each.helps]
    remedies = dict.fromkeys(each.remedy for each in helping if not each.by_hand)
    names = [name for name in remedies if name in REMEDIES]
    if len(names) < 2 or m.export is None:
        return ""
    return complete_command(m, write_command(m, rewrite=(*m.export.rewrite, *names)))


def advise_next(m: Measurement, findings: Sequence[Finding], run: str = "") -> str:
    """What to do once findings are read: measure the first remedy on the whole, or an edit.

    ``run`` is the variable of a notebook that holds the run.
    """
    if is_lowered_here(m):
        return f"lower another one as `changed`, then: wb.profile({find_names(m).both})"
    if not m.program.pte:
        return complete_command(m, "workbench report RUN_DIR")
    if m.export is None:
        return complete_command(m, "change it, then: workbench run MODEL.pte --against NEW.pte")
    options = (f for f in findings if f.is_option and not (f.by_hand or f.is_hopeless))
    first = next(options, None)
    if (m.is_given or run) and first:
        run = run or find_names(m).run
        return f"{run}.apply({first.id!r}) measures the whole with the remedy"
    if m.is_given:
        return f"change a copy, then: wb.profile({find_names(m).both})"
    if first is None:
        return complete_command(m, "change the model, then: workbench profile MODEL")
    return complete_command(m, f"workbench findings RUN_DIR --apply {first.id} --model MODEL")

"""Commands that findings propose: they keep all the options that a program was exported with."""

import json
import shlex
from collections.abc import Sequence
from typing import Any

from workbench.analysis.findings.complete import complete_command, find_names, is_lowered_here
from workbench.analysis.findings.finding import Finding
from workbench.analysis.run import Measurement
from workbench.options import ExportOptions
from workbench.records.exports import Rewrite
from workbench.remedies import REMEDIES

#: Options of an export that a command takes as they are: those with a value, and flags.
_VALUES = ("dtype", "backend", "state_dict")
_PAIRS = {"sizes": "size", "module_dtypes": "module-dtype"}
#: Those of ``--measure``.
_SETTINGS = ("group_size",)
#: What a script calls in place of a command; and all that these commands say of an export.
_CALLS = {"export": "export_model", "profile": "profile"}
_ALL = (*_VALUES, *_PAIRS, *_SETTINGS, "rewrite", "channels_last")


def write_command(m: Measurement, verb: str = "export", **changes: Any) -> str:
    """``workbench export MODEL --dtype int8 ...`` of a measured program with some changes.

    Of a module of a script, the line of Python that does the same.
    """
    settings = {name: getattr(ExportOptions(), name) for name in vars(ExportOptions())}
    default = dict(settings)
    if m.export is not None:
        settings |= json.loads(m.export.made_from.get("settings", "{}"))
        settings |= {"dtype": m.export.dtype, "backend": m.export.backend}
        settings |= {"rewrite": m.export.rewrite}
    settings |= changes
    if m.in_script:
        return _call(m, verb, {name: settings[name] for name in _ALL}, default)
    words = ["workbench", verb, "MODEL"]
    for name in _VALUES:
        if settings[name] and (settings[name] != default[name] or name in changes):
            words += [f"--{name.replace('_', '-')}", shlex.quote(str(settings[name]))]
    for name, option in _PAIRS.items():
        pairs = settings[name].items() if isinstance(settings[name], dict) else settings[name]
        for key, value in pairs:
            words += [f"--{option}", shlex.quote(f"{key}={value}")]
    lists = [("inputs", str(value)) for value in settings["inputs"]]
    changed = [n for n in _SETTINGS if n in changes or settings[n] not in (default[n], [])]
    lists += [("measure", f"{name}={_join(settings[name])}") for name in changed]
    for option, value in lists:
        words += [f"--{option}", shlex.quote(value)]
    if settings["rewrite"]:
        words += ["--rewrite", ",".join(settings["rewrite"])]
    if settings["channels_last"]:
        words += ["--measure", "channels_last=yes"]
    return " ".join(words)


def _call(m: Measurement, verb: str, settings: dict[str, Any], default: dict[str, Any]) -> str:
    """``wb.export_model(net, x, wb.ExportOptions(dtype='int8'))``."""
    given = {name: tuple(v) if isinstance(v, list) else v for name, v in settings.items()}
    others = ", ".join(f"{name}={v!r}" for name, v in given.items() if v and v != default[name])
    options = f", wb.ExportOptions({others})" if others else ""
    return f"wb.{_CALLS[verb]}({find_names(m).arguments}{options})"


def _join(value: Any) -> str:
    """A setting as text."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


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

    Remedies that were tried and do not help are left out.
    """
    helping = [each for each in findings if each.remedy and not each.is_hopeless]
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
        names = find_names(m)
        return f"lower another one, then: wb.profile([{names.module}, other], {names.given})"
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
        names = find_names(m)
        return f"change a copy, then: wb.profile([{names.module}, changed], {names.given})"
    if first is None:
        return complete_command(m, "change the model, then: workbench profile MODEL")
    return complete_command(m, f"workbench findings RUN_DIR --apply {first.id} --model MODEL")

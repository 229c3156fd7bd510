"""Findings as text, with commands that keep all the options that a program was exported with."""

import json
import shlex
from typing import Any

import pandas as pd

from workbench.analysis.describe import describe_gain, describe_place
from workbench.analysis.run import Measurement
from workbench.options import ExportOptions
from workbench.remedies import REMEDIES

#: Options of an export that a command takes as they are: those with a value, and flags.
_VALUES = ("dtype", "backend", "state_dict", "group_size")
_PAIRS = {"sizes": "size", "module_dtypes": "module-dtype"}
#: Those with numbers, separated by commas.
_NUMBERS = ("mean", "std")


def command(m: Measurement, verb: str = "export", **changes: Any) -> str:
    """``workbench export MODEL --dtype int8 ...`` of a measured program with some changes."""
    settings = {name: getattr(ExportOptions(), name) for name in vars(ExportOptions())}
    default = dict(settings)
    if m.export is not None:
        settings |= json.loads(m.export.made_from.get("settings", "{}"))
        settings |= {"dtype": m.export.dtype, "backend": m.export.backend}
        settings |= {"rewrite": m.export.rewrite}
    settings |= changes
    words = ["workbench", verb, "MODEL"]
    for name in _VALUES:
        if settings[name] and (settings[name] != default[name] or name in changes):
            words += [f"--{name.replace('_', '-')}", shlex.quote(str(settings[name]))]
    for name, option in _PAIRS.items():
        pairs = settings[name].items() if isinstance(settings[name], dict) else settings[name]
        for key, value in pairs:
            words += [f"--{option}", shlex.quote(f"{key}={value}")]
    lists = [("inputs", str(value)) for value in settings["inputs"]]
    lists += [(name, ",".join(map(str, settings[name]))) for name in _NUMBERS if settings[name]]
    for option, value in lists:
        words += [f"--{option}", shlex.quote(value)]
    if settings["rewrite"]:
        words += ["--rewrite", ",".join(settings["rewrite"])]
    if settings["channels_last"]:
        words.append("--channels-last")
    return " ".join(words)


def apply_remedy(m: Measurement, remedy: str, code: str | None = None) -> str:
    """The command that exports a program with one more remedy, and the code that does the same.

    Without ``code``, that of the remedy.
    """
    applied = m.export.rewrite if m.export else ()
    if code is None:
        code = REMEDIES[remedy].code if remedy in REMEDIES else ""
    lines = [command(m, rewrite=(*applied, remedy)), *(f"# {line}" for line in code.splitlines())]
    return "\n".join(lines)


def combine_remedies(m: Measurement, findings: pd.DataFrame) -> str:
    """One command with the remedies of a program's findings; empty if these are not several."""
    names = [name for name in dict.fromkeys(findings["remedy"]) if name in REMEDIES]
    if len(names) < 2 or m.export is None:
        return ""
    return m.complete_command(command(m, rewrite=(*m.export.rewrite, *names)))


def describe_findings(findings: pd.DataFrame, m: Measurement, top: int) -> list[str]:
    """The first findings about a program: a title each, then where, gain, action and command.

    Last comes the command with the remedies of all.
    """
    lines = []
    for row in findings.head(top).to_dict("records"):
        facts = {"where": describe_place(row), "gain": describe_gain(row), "do": row["action"]}
        command = row["hint"].partition("\n")[0]
        facts["run"] = command if "workbench" in command.partition(" ")[0] else ""
        lines.append(f"{row['rank']}. {row['title']}")
        lines += [f"   {name}: {text}" for name, text in facts.items() if text]
    together = combine_remedies(m, findings)
    return [*lines, f"all rewrites: {together}"] if together else lines

"""Commands that make a change of a program, with all the options that it was exported with."""

import json
import shlex
from typing import Any

from workbench.analysis.run import Measurement
from workbench.options import ExportOptions
from workbench.remedies import REMEDIES

#: Options of an export that a command takes as they are: those with a value, and flags.
_VALUES = ("dtype", "backend", "state_dict", "group_size")
_PAIRS = {"sizes": "size", "module_dtypes": "module-dtype"}
_LISTS = {"inputs": "inputs", "mean": "mean", "std": "std"}


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
    for name, option in _LISTS.items():
        for value in settings[name]:
            words += [f"--{option}", shlex.quote(str(value))]
    if settings["rewrite"]:
        words += ["--rewrite", ",".join(settings["rewrite"])]
    if settings["channels_last"]:
        words.append("--channels-last")
    return " ".join(words)


def apply(m: Measurement, remedy: str) -> str:
    """The command that exports a program with one more remedy, and the code that does the same."""
    applied = m.export.rewrite if m.export else ()
    code = REMEDIES[remedy].code
    lines = [command(m, rewrite=(*applied, remedy)), *(f"# {line}" for line in code.splitlines())]
    return "\n".join(lines)

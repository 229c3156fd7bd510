"""Where a runner runs: this machine, or another one that a plug-in reaches."""

import re

from workbench import plugin
from workbench.errors import UsageError, unknown_name
from workbench.run.targets.host import HOST, Host


def find_target(name: str, power: str = "") -> type[Host]:
    """The kind of a target by its name; UsageError if there is none, or none of this power mode."""
    kind, forms = name.partition(":")[0], plugin.list_names("targets")
    form = next((form for form in forms if re.split(r"\W", form)[0] == kind), "")
    target = Host if name == HOST.name else plugin.find("targets", form)
    if target is None:
        raise unknown_name("target", name, [HOST.name, *forms], where="--target")
    if power and not target.modes:
        raise UsageError(f"{kind} has no power modes", where=f"power {power}")
    if power and power not in target.modes:
        raise unknown_name("power mode", power, target.modes, where="power")
    return target


def open_target(name: str, *, power: str = "") -> Host:
    """Open a target: where a runner runs."""
    kind = find_target(name, power)
    return HOST if kind is Host else kind(name.partition(":")[2], power)

"""The tables of ISA levels, and a second implementation of what ``native/isa.h`` does with them."""

import csv
import re
from dataclasses import dataclass

from compiled import NATIVE

from workbench.api import UsageError
from workbench.jobs import unknown_name


@dataclass(frozen=True)
class Feature:
    """One CPU feature in cpuinfo's table of flags.

    ``level`` is the first level that hides it, empty if none does. ``word``, ``bit``,
    ``condition`` and ``os_name`` say how the CPU or the system can be asked for it.
    """

    name: str
    byte: int
    level: str
    word: str
    bit: int
    condition: str
    os_name: str
    meaning: str = ""


@dataclass(frozen=True)
class Table:
    """Where cpuinfo keeps its flags: ``size`` bytes, of which ``numbers`` are no flags."""

    size: int
    numbers: range
    levels: dict[str, str]
    features: tuple[Feature, ...]

    def rank(self, level):
        """The index of a level, 0 for the one that hides nothing."""
        return [*self.levels].index(level)

    @property
    def hideable(self):
        """The features that some level hides, by name."""
        return {feature.name: feature for feature in self.features if feature.level}


def load_table(arch):
    """The table of an architecture."""
    arch = {"AMD64": "x86_64", "arm64": "aarch64"}.get(arch, arch)
    rows = {"NUMBERS": [["0", "0"]]}
    text = (NATIVE / f"isa_{arch}.def").read_text()
    for kind, cells in re.findall(r"^(\w+)\((.*)\)$", text, re.MULTILINE):
        rows.setdefault(kind, []).append(next(csv.reader([cells], skipinitialspace=True)))
    pins = [[name, byte, "", *rest] for name, byte, *rest in rows["PIN"]]
    features = [
        Feature(name, int(byte), level, word, int(bit), *rest)
        for name, byte, level, word, bit, *rest in (*rows["FEATURE"], *pins)
    ]
    size, numbers = int(rows["SIZE"][0][0]), range(*map(int, rows["NUMBERS"][-1]))
    return Table(size, numbers, dict(rows["LEVEL"]), tuple(features))


def self_check(table, flags, system):
    """``ok``, or the first thing in the bytes of ``cpuinfo_isa`` that is not as the table says.

    ``system`` is what the system says of the features, by name, as far as it says anything.
    """
    if len(flags) != table.size:
        return f"cpuinfo_isa has {len(flags)} bytes, not {table.size}"
    for number, value in enumerate(flags):
        if value > 1 and number not in table.numbers:
            return f"byte {number} of cpuinfo_isa is {value}, not a flag"
    for feature in table.features:
        found, expected = flags[feature.byte], system.get(feature.name)
        if expected is None or (feature.condition == "MORE" and found > expected):
            continue
        if found != expected:
            return f"{feature.name}: cpuinfo says {found}, the CPU says {int(expected)}"
    return "ok"


def hide(table, flags, level, extra=()):
    """Clear the flags of a level, and of ``extra`` features; returns the names of those cleared."""
    hidden = table.rank(level)
    names = {f.name for f in table.hideable.values() if table.rank(f.level) <= hidden}
    for name in extra:
        if name not in table.hideable:
            raise unknown_name("feature", name, table.hideable)
    names.update(extra)
    for name in extra:
        own = table.rank(table.hideable[name].level)
        for other in table.hideable.values():
            kept = flags[other.byte] and other.name not in names
            if kept and table.rank(other.level) < own:
                raise UsageError(f"cannot hide {name} and keep {other.name}")
    masked = tuple(f.name for f in table.features if f.name in names and flags[f.byte])
    for name in masked:
        flags[table.hideable[name].byte] = 0
    return masked

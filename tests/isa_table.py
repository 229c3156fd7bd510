"""The tables of ISA levels, and a second implementation of what ``native/isa.h`` does with them."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, MutableSequence, Sequence
from dataclasses import dataclass

from workbench.errors import UsageError, unknown_name
from workbench.run.build import NATIVE


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
    meaning: str


@dataclass(frozen=True)
class Table:
    """Where cpuinfo keeps its flags: ``size`` bytes, of which ``numbers`` are no flags."""

    arch: str
    size: int
    numbers: range
    levels: dict[str, str]
    features: tuple[Feature, ...]

    def rank(self, level: str) -> int:
        """The index of a level, 0 for the one that hides nothing."""
        if level not in self.levels:
            raise unknown_name("ISA level", level, self.levels)
        return list(self.levels).index(level)

    @property
    def hideable(self) -> dict[str, Feature]:
        """The features that some level hides, by name."""
        return {feature.name: feature for feature in self.features if feature.level}


def load_table(arch: str) -> Table:
    """The table of an architecture (``x86_64`` or ``aarch64``).

    Raises
    ------
    UsageError
        There is none for this architecture.
    """
    arch = {"AMD64": "x86_64", "arm64": "aarch64"}.get(arch, arch)
    path = NATIVE / f"isa_{arch}.def"
    if not path.is_file():
        valid = [file.stem.removeprefix("isa_") for file in NATIVE.glob("isa_*.def")]
        raise unknown_name("architecture", arch, valid)
    rows: dict[str, list[list[str]]] = {"NUMBERS": [["0", "0"]]}
    for kind, text in re.findall(r"^(\w+)\((.*)\)$", path.read_text(), re.MULTILINE):
        rows.setdefault(kind, []).append(next(csv.reader([text], skipinitialspace=True)))
    features = [
        Feature(name, int(byte), level, word, int(bit), condition, os_name, meaning)
        for name, byte, level, word, bit, condition, os_name, meaning in rows["FEATURE"]
    ]
    pins = [
        Feature(name, int(byte), "", word, int(bit), condition, os_name, "")
        for name, byte, word, bit, condition, os_name in rows["PIN"]
    ]
    first, last = rows["NUMBERS"][-1]
    return Table(
        arch=arch,
        size=int(rows["SIZE"][0][0]),
        numbers=range(int(first), int(last)),
        levels=dict(rows["LEVEL"]),
        features=(*features, *pins),
    )


def self_check(table: Table, flags: Sequence[int], system: Mapping[str, bool]) -> str:
    """Whether ``flags`` is laid out as the table says: ``ok``, or the first thing that is not so.

    Parameters
    ----------
    flags
        The bytes of ``cpuinfo_isa``.
    system
        What the system says of the features, by name, as far as it says anything.
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


def hide(
    table: Table, flags: MutableSequence[int], level: str, extra: Sequence[str] = ()
) -> tuple[str, ...]:
    """Clear the flags of a level, and of ``extra`` features; returns the names of those cleared.

    Raises
    ------
    UsageError
        An unknown level or feature, or an extra one that a stronger one, still on, builds upon.
    """
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

"""Instruction set extensions: the levels that a runner can hide, and the toggles made of them.

The runner hides CPU features from XNNPACK by levels: each level hides what the one above it hides,
and more. A toggle compares two of them. What the levels are is written once, in
``native/isa_<arch>.def``, for the native runner and for this module.
"""

from __future__ import annotations

import csv
import json
import re
import subprocess
from collections.abc import Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from pathlib import Path

from workbench.errors import RunnerError, SetupError, UsageError, unknown_name

NATIVE = Path(__file__).parent / "native"


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
        """The place of a level in the ladder, 0 for the one that hides nothing."""
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


@dataclass(frozen=True)
class Isa:
    """What a runner says of the CPU: the features it has, and what each level hides.

    ``self_check`` is ``ok``, or why the runner refuses to hide anything.
    """

    arch: str
    features: tuple[str, ...]
    levels: dict[str, tuple[str, ...]]
    meanings: dict[str, str]
    self_check: str

    def hidden_by(self, level: str) -> frozenset[str]:
        """The features of this CPU that a level hides."""
        return frozenset(self.levels[level]) & frozenset(self.features)


@dataclass(frozen=True)
class Toggle:
    """Two levels to compare: ``on`` leaves the extension visible, ``off`` hides it.

    ``hidden`` are the features of this CPU that make the difference, ``feature`` the one that
    gives the toggle its name.
    """

    name: str
    on: str
    off: str
    feature: str = ""
    hidden: tuple[str, ...] = ()


#: Per architecture, the strongest first; ``on`` is the level just above what is in question.
TOGGLES = {
    "x86_64": (
        Toggle("avx512", "native", "avx2", "avx512f"),
        Toggle("avx512vnni", "native", "avx512-novnni", "avx512vnni"),
        Toggle("avx2", "avx2", "avx", "avx2"),
        Toggle("avx", "avx", "sse41", "avx"),
        Toggle("sse41", "sse41", "sse2", "sse4_1"),
    ),
    "aarch64": (
        Toggle("sme2", "native", "nosme", "sme2"),
        Toggle("sme", "sme", "nosme", "sme"),
        Toggle("i8mm", "nosme", "dot", "i8mm"),
        Toggle("dot", "dot", "fp16", "dot"),
        Toggle("fp16", "fp16", "neon", "fp16arith"),
    ),
}


def read_isa(command: Sequence[str], *, timeout_s: float = 60.0) -> Isa:
    """Ask a runner which CPU features and levels there are.

    Raises
    ------
    SetupError
        The runner cannot be started.
    RunnerError
        It does not answer, or not in this protocol.
    """
    where = Path(command[0]).name
    try:
        done = subprocess.run(
            [*command, "--print_isa"], capture_output=True, timeout=timeout_s, check=False
        )
        answer = json.loads(done.stdout)
        features = {feature["name"]: feature for feature in answer["features"]}
        names = [level["name"] for level in answer["levels"]]
        return Isa(
            arch=answer["arch"],
            features=tuple(name for name, feature in features.items() if feature["on"]),
            levels={
                level: tuple(
                    name for name, f in features.items() if f["level"] in names[: place + 1]
                )
                for place, level in enumerate(names)
            },
            meanings={
                row["name"]: row["meaning"] for row in (*answer["levels"], *features.values())
            },
            self_check=answer["self_check"],
        )
    except OSError as error:
        raise SetupError(f"cannot start the runner: {error.strerror}", where=command[0]) from None
    except subprocess.TimeoutExpired:
        raise RunnerError("no answer to --print_isa", where=where, kind="timeout") from None
    except (ValueError, TypeError, KeyError):
        words = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise RunnerError(
            f"no answer to --print_isa{''.join(f' ({word})' for word in words)}",
            where=where,
            hint="is this a runner of the workbench?",
            kind="protocol",
        ) from None


def find_rungs(isa: Isa) -> tuple[str, ...]:
    """The levels that differ on this CPU, the lowest first: the rungs of its ladder.

    A level that hides no more here than the one above it is left out.

    Raises
    ------
    UsageError
        This CPU has nothing to hide.
    SetupError
        The runner's self-check failed, so that nothing may be hidden.
    """
    _check_layout(isa)
    seen: dict[frozenset[str], str] = {}
    for level in isa.levels:
        seen.setdefault(isa.hidden_by(level), level)
    if len(seen) < 2:
        raise UsageError(f"this {isa.arch} CPU has no extension to hide", where="--isa-ladder")
    return tuple(reversed(seen.values()))


def list_toggles() -> list[str]:
    """The names of all toggles, of every architecture."""
    return [*(toggle.name for known in TOGGLES.values() for toggle in known), "auto", "none"]


def resolve_toggle(name: str, isa: Isa) -> Toggle:
    """The toggle of that name on this CPU.

    Parameters
    ----------
    name
        A toggle of the architecture; ``auto`` for the strongest that this CPU has (``none`` if it
        has none); ``none`` for the same level twice.

    Raises
    ------
    UsageError
        An unknown toggle, or one that this CPU lacks.
    SetupError
        The runner's self-check failed, so that nothing may be hidden.
    """
    known = {toggle.name: toggle for toggle in TOGGLES.get(isa.arch, ())}
    present = [toggle for toggle in known.values() if toggle.feature in isa.features]
    elsewhere = {toggle.name: toggle for toggles in TOGGLES.values() for toggle in toggles}
    if name not in (*elsewhere, "auto", "none"):
        raise unknown_name("toggle", name, (*known, "auto", "none"))
    if name == "none":
        return Toggle("none", "native", "native")
    _check_layout(isa)
    if name == "auto":
        return _on_this_cpu(present[0], isa) if present else Toggle("none", "native", "native")
    if elsewhere[name] not in present:
        valid = ", ".join([toggle.name for toggle in present] + ["none"])
        raise UsageError(
            f"this {isa.arch} CPU has no {elsewhere[name].feature}",
            where=f"toggle {name}",
            hint=f"it has {', '.join(isa.features) or 'no extension'}; valid here: {valid}",
        )
    return _on_this_cpu(known[name], isa)


def _check_layout(isa: Isa) -> None:
    if isa.self_check != "ok":
        raise SetupError(
            f"CPU features cannot be hidden: {isa.self_check}",
            hint="toggle none compares the program with itself",
        )


def _on_this_cpu(toggle: Toggle, isa: Isa) -> Toggle:
    above, below = isa.hidden_by(toggle.on), isa.hidden_by(toggle.off)
    hidden = tuple(name for name in isa.features if name in below - above)
    return Toggle(toggle.name, toggle.on if above else "native", toggle.off, toggle.feature, hidden)

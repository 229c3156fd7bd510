"""Projections of a run: what it would take at another ISA level or on another device.

An atlas has the times of a few hundred operators on one device, at each of its ISA levels. The
ratio of two of its columns, at the sizes of an operator, projects that operator from a run at hand.
"""

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from workbench.analysis.dataflow import instruction_of
from workbench.analysis.roofline import dtype_of
from workbench.analysis.run import Measurement, Run
from workbench.emulation import PROJECTED
from workbench.errors import StoreError, UsageError, WorkbenchError, unknown_name
from workbench.frames import check
from workbench.plots.style import convert_source
from workbench.plugins.project import published
from workbench.plugins.project.explorer import ProjectedTimes, sum_projection
from workbench.plugins.project.frames import PROJECTION
from workbench.plugins.project.published import ENDS, PROFILES, Z90
from workbench.records.codec import SCHEMA_VERSION
from workbench.run.ceilings import device_of
from workbench.store import cache_folder, load_record
from workbench.wording import format_ms

#: Sizes are weighted by a normal distribution of their distance, in powers of two.
_NEAR = 1.0
#: Columns that fill the widest vectors in fp32, and the distance between even and uneven ones.
_VECTOR, _APART = 16, 2.0
#: The fastest operator of the atlas may be so far below the peak.
_BELOW_PEAK = 0.8
#: Operators further than this from all of their kind in the atlas have no basis, in powers of two.
_FAR = 4.0
#: Fewer operators of a kind than this are no basis.
_LEAST = 3
#: Smallest standard deviation of the logarithm of a ratio: of two runs on a busy machine.
_SCATTER = 0.08
#: A model is refused if more of its time than this has no basis.
_MOST_UNKNOWN = 0.1
#: XNNPACK packs these operands for SME2 kernels only.
_WITH_SME2 = r"\b(?:PF32|PF16|PQS8)\b"
#: Size of a file in bytes, and operators: weights of all pairs take memory.
_LARGEST, _MOST_OPERATORS = 2**20, 2000
_SIZES = ["m", "n", "k", "flops", "bytes"]


@dataclass(frozen=True)
class Atlas:
    """What the operators of the atlas took on one device, with one thread.

    ``kinds`` and ``sizes`` (m, n, k, operations and bytes; 0 for none) describe the operators;
    ``ms`` has their times by ISA level, the lowest first, 0 where unknown; ``programs`` is the hash
    of what was run.
    """

    device: str
    runner: str
    measured: str
    programs: str
    kinds: tuple[str, ...]
    sizes: tuple[tuple[float, ...], ...]
    ms: dict[str, tuple[float, ...]]
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        lengths = {len(self.sizes), *map(len, self.ms.values())}
        values = [v for times in (*self.ms.values(), *self.sizes) for v in times]
        good = all(v == 0 or 1e-7 < v < 1e15 for v in values) and self.ms
        if lengths != {len(self.kinds)} or {*map(len, self.sizes)} != {len(_SIZES)} or not good:
            raise StoreError("an atlas whose columns do not fit", hint="measure it again")
        if len(self.kinds) > _MOST_OPERATORS:
            raise StoreError("an atlas of too many operators", hint="workbench atlas makes one")

    @property
    def facts(self) -> str:
        """Where, how much and when it was measured."""
        levels, count = ", ".join(self.ms), len(self.kinds)
        return " ".join(f"{self.device}, {levels}, {count} operators, {self.measured}".split())

    def times(self, level: str) -> np.ndarray:
        """The times at an ISA level, in ms."""
        if level not in self.ms:
            raise unknown_name("ISA level", level, self.ms, where=self.device)
        return np.array(self.ms[level])


def build_atlas(runs: Sequence[Run], device: dict[str, str], programs: str) -> Atlas:
    """The atlas from runs of its programs, all on one device and at the same ISA levels."""
    parts = []
    for run in runs:
        sides = [m for m in run.measurements if not m.control]
        tables = [describe_operators(m).set_index("key") for m in sides]
        keys = [key for key in tables[0].index if all(key in table.index for table in tables)]
        part = tables[0].loc[keys, ["kind", *_SIZES]]
        parts.append(part.assign(**{
            m.experiment.isa: table.loc[keys, "ms"] for m, table in zip(sides, tables, strict=True)
        }))  # fmt: skip
    table = pd.concat(parts).fillna(0.0)
    sizes = table[_SIZES].astype(int).to_numpy()
    levels = table.columns.drop(["kind", *_SIZES])
    ms = {name: tuple(float(f"{value:.4g}") for value in table[name]) for name in levels}
    return Atlas(
        device["cpu"], device["runner"], runs[0].record.started[:10], programs,
        tuple(table["kind"]), tuple(tuple(map(float, row)) for row in sizes), ms,
    )  # fmt: skip


def describe_operators(measurement: Measurement) -> pd.DataFrame:
    """Kind, sizes and undisturbed time of the operators of a measurement, by ``key``."""
    rows = measurement.costs.reset_index()
    rows = rows[rows["kind"].isin(["delegated", "portable"])].reset_index(drop=True)
    kernels = measurement.sme2
    if kernels is None:
        hint = "export the model with the workbench"
        raise UsageError(
            "the sizes of its operators are unknown", where=measurement.run.path, hint=hint
        )
    columns = ["m", "n", "k", "kernel_on"]
    sizes = kernels.set_index(["instruction", "xnodes"])[columns]
    sizes = sizes[~sizes.index.duplicated()]
    places = list(zip(map(instruction_of, rows["key"]), rows["xnodes"].fillna(""), strict=True))
    rows[columns] = sizes.reindex(pd.MultiIndex.from_tuples(places)).to_numpy()
    dtype = measurement.export.dtype if measurement.export else "fp32"
    rows["kind"] = [name_kind(name, dtype) for name in rows["operator"]]
    rows["ms"] = rows["mean_ms"]
    rows[columns[:3]] = rows[columns[:3]].astype(float)
    rows["dtype"] = rows["kind"].map(_dtype_of_kind)
    return rows[["key", "kind", *columns, "dtype", "flops", "bytes", "ms"]]


def name_kind(operator: str, dtype: str) -> str:
    """``Convolution IGEMM fp32``: the kind of a logged operator, with the dtype it computes in."""
    base = re.sub(r" \([^)]*\)", "", operator)
    weights = re.search(r"Q([BC])4W", operator)
    int4 = {"B": " int4 in groups", "C": " int4 per channel"}[weights[1]] if weights else ""
    return f"{base} {dtype_of(operator, dtype)}{int4}"


def project_measurement(
    measurement: Measurement, level: str = "", device: str | Path = ""
) -> ProjectedTimes:
    """The operators of a measurement as they would be elsewhere.

    ``device`` is one of `published.PROFILES`, or the file of an atlas, of its own device by
    default; ``level`` is the highest there by default.

    Raises
    ------
    UsageError
        The measurement is emulated, or has several threads; its device has no atlas; the atlases do
        not fit; the figures do not carry a projection.
    """
    run = measurement.run
    if measurement.emulated or measurement.threads != 1:
        why = "its times are emulated" if measurement.emulated else "it has several threads"
        hint = "measure it on a CPU, with --threads 1"
        raise UsageError(f"cannot be projected: {why}", where=run.path, hint=hint)
    rows = describe_operators(measurement)
    if (place := str(device)) in PROFILES:
        level = level or PROFILES[place][-1]
        if place == "c1-like" and measurement.operators["operator"].str.contains(_WITH_SME2).any():
            hint = "project its side without: --experiment"
            raise UsageError(f"{measurement.label} ran with SME2", where=run.path, hint=hint)
        estimate = partial(published.estimate, profile=place, level=level, host=run.record.host)
    elif device and not Path(device).is_file():
        hint = f"{', '.join(PROFILES)}, or the file of an atlas"
        raise UsageError("unknown device", where=device, hint=hint)
    else:
        own = atlas_path(device_of(run.record.host, run.record.runner))
        if not own.is_file():
            hint = f"`workbench atlas` there, or --device {' or '.join(PROFILES)}"
            raise UsageError("its device has no atlas", where=run.path, hint=hint)
        here = load_atlas(own)
        there = load_atlas(Path(device)) if device else here
        level, place = level or [*there.ms][-1], there.device
        before = measurement.experiment.isa
        estimate = partial(_scale, here=here, there=there, before=before, after=level)
    costs = measurement.costs.reindex(rows["key"])
    names = rows[["key", "kind"]].assign(
        name=costs["name"].to_numpy(), module=costs["module"].to_numpy()
    )
    means = rows["key"].map(measurement.operators.set_index("key")["mean_ms"])
    ends, basis = estimate(rows.assign(ms=means))
    table = names.assign(measured_ms=means, **ends, basis=basis)
    _check_basis(table, run.path)
    sums = sum_projection(table)
    rest = max(measurement.latency_ms - sums["measured_ms"], 0.0)
    model = {name: value + rest for name, value in sums.items()}
    texts = {"key": "", "name": "E2E", "kind": "E2E", "module": "", "basis": "the sum of all"}
    table = table.sort_values("measured_ms", ascending=False)
    table = pd.concat([pd.DataFrame([texts | model]), table])[PROJECTION.names]
    table.columns.name = f"{PROJECTED}: {place} at {level}"
    return ProjectedTimes(check(table.reset_index(drop=True), PROJECTION), measurement)


def _scale(
    rows: pd.DataFrame, here: Atlas, there: Atlas, before: str, after: str
) -> tuple[dict[str, np.ndarray], list[str]]:
    """The times of operators at another ISA level, or on another device, and what they follow from.

    ``here`` is the atlas of their own device, ``there`` that of another one or the same.
    """
    if here.programs != there.programs:
        hint = "measure both with one version: workbench atlas"
        raise UsageError("the atlases have different operators", where=there.device, hint=hint)
    times = np.array([here.times(before), there.times(after)])
    timed: np.ndarray = np.all(times > 0, axis=0)
    ratios = np.subtract(*np.log(times, where=times > 0, out=np.zeros_like(times))[::-1])
    kinds, points = np.array(here.kinds), _place(pd.DataFrame(here.sizes, columns=_SIZES))
    estimates = [
        _estimate(kind, spot, kinds, points, ratios, timed, here is there)
        for kind, spot in zip(rows["kind"], _place(rows), strict=True)
    ]
    middle, scatter = np.array([each[:2] for each in estimates]).reshape(-1, 2).T
    half, least = Z90 * scatter, _least_ms(rows, there, after)
    values = dict(zip(ENDS, (middle, middle - half, middle + half), strict=True))
    ends = {name: np.maximum(rows["ms"] * np.exp(value), least) for name, value in values.items()}
    return ends, [basis for *_, basis in estimates]


def _place(rows: pd.DataFrame) -> np.ndarray:
    """Where operators lie: the logarithms of their sizes; of no product, that of its bytes.

    Kernels treat columns that do not fill a vector apart: such products lie further away.
    """
    sizes = rows[_SIZES].fillna(0.0).to_numpy(float)
    products = sizes[:, :1] > 0
    places = np.where(
        products, sizes[:, :3], np.column_stack([sizes[:, 4], *[0 * sizes[:, 4]] * 2])
    )
    # Depthwise convolutions have one column: their channels are in the bytes.
    single = products[:, 0] & (sizes[:, 1] == 1)
    places[single, 1] = sizes[single, 4] / np.maximum(sizes[single, 0], 1)
    uneven = products[:, 0] & (sizes[:, 1] % _VECTOR > 0) & ~single
    return np.column_stack([np.log2(np.maximum(places, 1.0)), _APART * uneven])


def _estimate(
    kind: str,
    spot: np.ndarray,
    kinds: np.ndarray,
    points: np.ndarray,
    ratios: np.ndarray,
    timed: np.ndarray,
    same: bool,
) -> tuple[float, float, str]:
    """The logarithm of a ratio, its standard deviation, and what it follows from."""
    rows = np.flatnonzero((kinds == kind) & timed)
    basis = f"{len(rows)} of its kind in the atlas"
    if kind.startswith("native_call_") and same:
        return 0.0, _SCATTER, "portable: same code"
    if len(rows) < _LEAST:  # what is no product is like others of its size
        is_product = re.match("Convolution|Deconv|Fully|Batch Matrix|Dynamic", kind)
        rows = np.flatnonzero(timed & (points[:, 1] == 0)) if not is_product else rows[:0]
        basis = f"{len(rows)} of other kinds in the atlas"
    if not len(rows):
        return math.nan, math.nan, ""
    values, places = ratios[rows], points[rows]
    near = _weigh(places, spot[None])[0]
    if np.sqrt(((places - spot) ** 2).sum(axis=1)).min() > _FAR:
        return math.nan, math.nan, ""
    others = _weigh(places, places, leave=True)
    left_out = values - others @ values
    scatter = max(_SCATTER, np.sqrt(max(near @ left_out**2, (left_out**2).mean())))
    return float(near @ values), float(scatter), basis


def _weigh(places: np.ndarray, spots: np.ndarray, leave: bool = False) -> np.ndarray:
    """The weight of each place for each spot; with ``leave``, of all places but itself."""
    squares = ((spots[:, None] - places[None]) ** 2).sum(axis=2)
    if leave:
        np.fill_diagonal(squares, np.inf)
    squares -= squares.min(axis=1, keepdims=True)
    weights = np.exp(-squares / (2 * _NEAR**2))
    return weights / weights.sum(axis=1, keepdims=True)


def _least_ms(rows: pd.DataFrame, there: Atlas, level: str) -> pd.Series:
    """The time at the highest rate of operations in the atlas in its dtype.

    Bytes are no bound: those of the atlas come from memory, those of a model often from a cache.
    """
    times, flops = there.times(level), np.array(there.sizes)[:, 3]
    rates = np.divide(flops, times, where=times > 0, out=np.zeros_like(times))
    dtypes = np.array([_dtype_of_kind(kind) for kind in there.kinds])
    peaks = {dtype: rates[dtypes == dtype].max() or np.nan for dtype in set(dtypes)}
    rate = rows["dtype"].map(peaks) / _BELOW_PEAK
    return (rows["flops"] / rate).fillna(0.0)


def _dtype_of_kind(kind: str) -> str:
    return kind.partition(" int4")[0].rpartition(" ")[2]


def project(
    source: Run | Measurement | str | Path, level: str = "", device: str | Path = ""
) -> ProjectedTimes:
    """Project a measurement to another ISA level or device: not measured.

    Parameters
    ----------
    source
        A measurement, or a run or its folder, of which the subject is taken.
    level
        The highest of that device by default, without SME2 ``nosme``.
    device
        The file of an atlas (`workbench atlas`), of its own device by default, or ``m4-like`` or
        ``c1-like``, of which there are published figures.

    Raises
    ------
    UsageError
        The measurement is emulated, or has several threads; its device has no atlas; the atlases do
        not fit; the figures do not carry a projection.
    """
    return project_measurement(convert_source(source, (Measurement,), "wb.project"), level, device)


def project_levels(
    measurement: Measurement, level: str = "", device: str | Path = ""
) -> list[ProjectedTimes]:
    """The projections to a level, or to every one of a published profile."""
    levels = [level] if level or str(device) not in PROFILES else PROFILES[str(device)]
    return [project_measurement(measurement, each, device) for each in levels]


def describe_projections(projections: Sequence[ProjectedTimes]) -> str:
    """The latency of a measurement, and those that were projected from it."""
    texts = []
    for projection in projections:
        middle, low, high = map(format_ms, projection.table.loc[0, list(ENDS)])
        texts.append(f"{middle} [{low}, {high}] on {projection.place}")
    first = projections[0]
    ms = format_ms(first.table.loc[0, "measured_ms"])
    return f"{PROJECTED}: {', '.join(texts)}; measured as {first.measurement.label}: {ms}"


def _check_basis(table: pd.DataFrame, where: Path) -> None:
    total, lost = table["measured_ms"].sum(), table[table["projected_ms"].isna()]
    if (share := lost["measured_ms"].sum() / max(total, 1e-9)) > _MOST_UNKNOWN:
        kinds = ", ".join(lost.groupby("kind")["measured_ms"].sum().nlargest(3).index)
        text = f"{100 * share:.0f} % of the time has no basis in the atlas: {kinds}"
        raise UsageError(text, where=where, hint="measure on the device")


def atlas_path(device: dict[str, str]) -> Path:
    """Where the atlas of a device is kept on this machine."""
    digest = hashlib.sha256(f"{device['cpu']} {device['runner']}".encode()).hexdigest()[:16]
    return cache_folder() / "atlases" / f"{digest}.json"


def list_atlases() -> dict[Path, str]:
    """The atlases that this machine knows: their facts, or what is wrong with one."""
    atlases = {}
    for path in sorted((cache_folder() / "atlases").glob("*.json")):
        try:
            atlases[path] = load_atlas(path).facts
        except WorkbenchError as error:
            atlases[path] = f"invalid: {error}"
    return atlases


def load_atlas(path: Path) -> Atlas:
    """An atlas from its file, which may come from anybody."""
    if path.is_file() and path.stat().st_size > _LARGEST:
        raise StoreError("is too large for an atlas", where=path, hint="workbench atlas makes one")
    return load_record(Atlas, path)

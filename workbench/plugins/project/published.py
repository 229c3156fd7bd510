"""Projections to devices with Arm SME2 of which only published figures are known."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from workbench.errors import UsageError, unknown_name

#: Every figure with its source; in a checkout, ``workbench/data`` is a link.
FIGURES = Path(__file__).parents[2] / "data" / "case_studies" / "sme2.csv"
#: ISA levels of each device. Of C1 cores, only what SME2 gains is published.
PROFILES = {"m4-like": ("nosme", "sme2"), "c1-like": ("sme2",)}
#: Rows and columns that ``sme2_mopa`` computes at once with vectors of 512 bits.
_TILE = 32
#: A projected time and its 90 % interval.
ENDS = ("projected_ms", "projected_low_ms", "projected_high_ms")
#: A normal distribution has 90 % within so many standard deviations.
Z90 = 1.645
#: Half the width of intervals that no figures determine, as factors: on another core, and on the
#: same one, whose caches hold other things.
_ELSEWHERE, _HERE = 2.0, 1.3
_SIZES = {"fp32": 4, "fp16": 2, "bf16": 2, "int8": 1}


def read_figures(profile: str) -> pd.DataFrame:
    """The published figures of a device; products have ``flops`` and ``bytes`` of their weights."""
    table = pd.read_csv(FIGURES)
    table = table[table["profile"] == profile].reset_index(drop=True)
    flops = 2 * table["m"] * table["n"] * table["k"]
    sizes = table["n"] * table["k"] * table["dtype"].map(_SIZES)
    return table.assign(flops=flops, bytes=sizes)


def time_products(rows: pd.DataFrame, figures: pd.DataFrame) -> np.ndarray:
    """The times of products with SME2, in ms, as the published ones: NaN for unknown dtypes.

    Of several rows: ``start + flops / (peak * fill) / efficiency + packing * elements``, where
    ``fill`` is how much of the tiles the result takes up, and elements are those of the operands
    that are packed at run time; the three constants are fitted to the published products by least
    squares of the relative error. Of one row: the bytes of the weights over the bandwidth of the
    published products of one row, or, without any, over that of reading memory.
    """
    products = figures[figures["figure"] == "product"]
    of_one, of_several = products[products["m"] == 1], products[products["m"] > 1]
    terms, ms = _terms(of_several, figures), of_several["on"].to_numpy()
    scale = terms.max(axis=0)
    relative = terms / scale / ms[:, None]
    constants = np.linalg.lstsq(relative, np.ones(len(ms)), rcond=None)[0] / scale
    gbps = figures.loc[figures["figure"] == "read", "on"].item()
    if len(of_one):
        gbps = float(np.median(of_one["bytes"] / of_one["on"])) / 1e6
    return np.where(rows["m"] > 1, _terms(rows, figures) @ constants, rows["bytes"] / gbps / 1e6)


def _terms(rows: pd.DataFrame, figures: pd.DataFrame) -> np.ndarray:
    """What the constants of `time_products` are multiplied by."""
    peaks = figures[figures["figure"] == "peak"].set_index("dtype")["on"]
    tiles = [np.ceil(rows[side] / _TILE) * _TILE / rows[side] for side in ("m", "n")]
    computing = rows["flops"] / rows["dtype"].map(peaks) / 1e6 * tiles[0] * tiles[1]
    left = rows["flops"] / (2 * rows["n"])
    packed = (rows["packed"] > 0) * left + (rows["packed"] > 1) * rows["n"] * rows["k"]
    return np.column_stack([np.ones(len(rows)), computing, packed])


def cross_validate(figures: pd.DataFrame) -> pd.DataFrame:
    """The published products with SME2, each with its time projected from other shapes."""
    products = figures[figures["figure"] == "product"]
    times = products["on"].astype(float) * np.nan
    for _, same in products.groupby(["m", "n", "k"]):
        times[same.index] = time_products(same, figures.drop(same.index))
    return products.assign(projected=times, error=times / products["on"] - 1)


@functools.cache
def _spread_of_products() -> float:
    """By which factor a projected product may be wrong, at either end of its interval."""
    error = np.log(1 + cross_validate(read_figures("m4-like"))["error"])
    return float(np.exp(Z90 * np.sqrt((error**2).mean())))


def estimate(
    rows: pd.DataFrame, profile: str, level: str, host: dict[str, Any]
) -> tuple[dict[str, np.ndarray], list[str]]:
    """The time of operators on a device with its interval, in ms, and what it follows from.

    ``rows`` are those of `analysis.atlas.describe_operators`.
    """
    if level not in PROFILES[profile]:
        raise unknown_name("ISA level", level, PROFILES[profile], where=profile)
    on = rows["kernel_on"].fillna("").astype(str)
    tiled, single = (on == "sme2_mopa").to_numpy(), on.str.match("sme2_(?!mopa)").to_numpy()
    if profile == "m4-like":
        return _estimate_times(rows, tiled & (level == "sme2"), single)
    if host.get("machine") not in ("aarch64", "arm64"):
        what = "only what SME2 gains is published of C1 cores"
        hint = "project a run of an Arm CPU without SME2, or to m4-like"
        raise UsageError(what, where=f"{profile}, {host.get('machine')}", hint=hint)
    return _estimate_gains(rows, tiled, single)


def _estimate_gains(
    rows: pd.DataFrame, tiled: np.ndarray, single: np.ndarray
) -> tuple[dict[str, np.ndarray], list[str]]:
    """The measured times over published gains; that of int8 is to that of fp32 as on an M4."""
    c1 = read_figures("c1-like").set_index("figure")["on"]
    gains = read_figures("m4-like").query("figure == 'gain'").set_index("dtype")["on"]
    gain = c1["gain"] * np.where(rows["dtype"] == "int8", gains["int8"] / gains["float"], 1.0)
    row = np.sqrt(c1["slowest row"] * c1["fastest row"])
    times = rows["ms"].to_numpy() / np.select([tiled, single], [gain, row], 1.0)
    half = np.select([tiled, single], [_ELSEWHERE, c1["fastest row"] / row], _HERE)
    basis = np.select([tiled, single], ["published gain", "published loss"], "as measured")
    ends = (times, times / half, times * half)
    return dict(zip(ENDS, ends, strict=True)), basis.tolist()


def _estimate_times(
    rows: pd.DataFrame, tiled: np.ndarray, single: np.ndarray
) -> tuple[dict[str, np.ndarray], list[str]]:
    """The times of products by published ones, or by NEON's peak; others take their own time."""
    figures, spread = read_figures("m4-like"), _spread_of_products()
    peaks = figures[figures["figure"] == "peak"].set_index("dtype")["off"]
    product = (rows["m"].notna() & (rows["n"] > 1)).to_numpy()
    used = [single, product & tiled, product]
    neon = rows["flops"] / rows["dtype"].map(peaks) / 1e6
    # XNNPACK's published gains leave no time for packing at the rate of these libraries.
    with_sme2, packing = (time_products(rows.assign(packed=n), figures) for n in (0, 1))
    times = np.select(used, [with_sme2, with_sme2, neon], rows["ms"])
    half = np.where(product | single, spread, _ELSEWHERE)
    high = np.maximum(times * half, np.where(used[1], packing, 0.0))
    basis = np.select(used, ["one row: memory", "published products", "NEON's peak"], "as measured")
    return dict(zip(ENDS, (times, times / half, high), strict=True)), basis.tolist()

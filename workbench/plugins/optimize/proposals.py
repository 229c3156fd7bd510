"""Proposals: whole dtypes, rewrites that findings suggest, and mixes of dtypes by layer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from workbench import ExportOptions, Measurement, WorkbenchError
from workbench.api import Finding
from workbench.jobs import REWRITES
from workbench.pages import plural
from workbench.plugins.optimize.records import Variant

if TYPE_CHECKING:
    from workbench.graphs import LoadedModel

#: Whole dtypes in the order in which they are tried, and what they change.
WHOLE = {
    "fp32": "single precision",
    "fp16": "half precision",
    "fp16w": "half precision, convolution weights too",
    "bf16": "bfloat16",
    "int8": "int8, static ranges",
    "int8dyn": "linear layers in int8, ranges found at run time",
    "8da4w": "linear layers with int4 weights",
}
#: Dtypes that layers of one program may have besides single precision.
MIXED = ("int8", "int8dyn")
_LEAST_NOISE = 1e-15
#: A choice of dtypes counts noise in such parts of what is allowed, rounded up.
_NOISE_PARTS = 4096
#: What a mix loses of its signal to noise ratio because rounding errors are not independent, in dB.
_RESERVE_DB = 0.3


def propose_dtypes(base: Variant, only: Sequence[str] = ()) -> list[Variant]:
    """The baseline in every other dtype, or ``only`` in some."""
    variants = []
    for dtype, text in WHOLE.items():
        if dtype != base.options.dtype and (not only or dtype in only):
            options = replace(base.options, dtype=dtype, module_dtypes=())
            variants.append(Variant(text, _keep_accuracy(options), base.name, whole=True))
    return variants


def _keep_accuracy(options: ExportOptions) -> ExportOptions:
    """The options of a program, with the rewrites of the quantiser if it is quantised."""
    from workbench.graphs import PRECISIONS

    rewrite = (*options.rewrite, *PRECISIONS[options.dtype].rewrites)
    return replace(options, rewrite=tuple(dict.fromkeys(rewrite)))


def propose_rewrites(parent: Variant, findings: Sequence[Finding]) -> list[Variant]:
    """What removes the cause of findings: each rewrite, the best first, and all together."""
    options, variants = parent.options, list[Variant]()
    for name in dict.fromkeys(finding.remedy for finding in findings):
        if name in REWRITES and name not in options.rewrite:
            changed = replace(options, rewrite=(*options.rewrite, name))
            variants.append(Variant(REWRITES[name], changed, parent.name))
        elif name == "channels_last" and not options.channels_last:
            changed = replace(options, channels_last=True)
            variants.append(Variant("channels-last inputs", changed, parent.name))
    return [*variants, combine_variants(parent, variants)] if len(variants) > 1 else variants


def combine_variants(parent: Variant, variants: Sequence[Variant]) -> Variant:
    """The rewrites of several variants in one."""
    also = dict.fromkeys(name for one in (parent, *variants) for name in one.options.rewrite)
    last = any(one.options.channels_last for one in (parent, *variants))
    options = replace(parent.options, rewrite=tuple(also), channels_last=last)
    text = "; ".join(dict.fromkeys(other.change for other in variants))
    return Variant(text, options, parent.name)


@dataclass(frozen=True)
class Choice:
    """A dtype of a layer: what it saves in ms, and its noise over the output's power."""

    dtype: str = "fp32"
    ms: float = 0.0
    noise: float = 0.0


def list_choices(
    noise: Mapping[str, float], base: Measurement, quantized: Mapping[str, Measurement]
) -> dict[str, list[Choice]]:
    """By layer, in execution order, the dtypes that it may have; ``noise`` is by ``dtype:layer``.

    A layer saves its time in the baseline less that in a program of the dtype.
    """
    before, choices = own_ms(base), dict[str, list[Choice]]()
    after = {dtype: own_ms(measurement) for dtype, measurement in quantized.items()}
    order = base.ledger.sort_values("row")["key"].drop_duplicates()
    layers = order.map(base.operators.set_index("key")["module"]).drop_duplicates()
    ranks = {layer: rank for rank, layer in enumerate(layers)}
    for key in sorted(noise, key=lambda key: ranks.get(key.partition(":")[2], len(ranks))):
        dtype, _, layer = key.partition(":")
        if dtype in after:
            saved = before.get(layer, 0.0) - after[dtype].get(layer, 0.0)
            choices.setdefault(layer, []).append(Choice(dtype, saved, noise[key]))
    return choices


def own_ms(measurement: Measurement) -> dict[str, float]:
    """The time of every layer without those in it; empty if layers are unknown."""
    if measurement.layers is None:
        return {}
    layers = measurement.layers.dropna(subset="module")
    return dict(zip(layers["module"], layers["own_ms"], strict=True))


def conversion_ms(measurements: Iterable[Measurement]) -> dict[str, float]:
    """By layer, the median time of a conversion to or from int8 in it; ``*``: of all."""
    tables = [on.operators for on in measurements if "role" in on.operators]
    rows = pd.concat([t[t["role"].isin(["quantize", "dequantize"])] for t in tables])
    typical = float(rows["mean_ms"].median()) if len(rows) else 0.0
    return {"*": typical} | rows.groupby("module")["mean_ms"].median().to_dict()


def choose_dtypes(
    choices: Mapping[str, Sequence[Choice]], most: float, conversions: Mapping[str, float]
) -> dict[str, Choice]:
    """The choices that save most, less conversions, and whose noise adds up to at most ``most``.

    This is a knapsack that takes the layers in order; noise is counted in parts of ``most``.
    """
    typical, steps = conversions.get("*", 0.0), []
    # By the dtype of the last layer (int8 or not) and the noise so far, the most that is saved.
    saved = np.full((2, _NOISE_PARTS + 1), -math.inf)
    saved[0] = 0.0
    for layer, some in [*choices.items(), ("*", ())]:
        allowed = [Choice(), *(choice for choice in some if choice.noise <= most)]
        parts = [math.ceil(_NOISE_PARTS * choice.noise / most) for choice in allowed]
        ways = np.stack([saved, saved[::-1] - conversions.get(layer, typical)])
        taken = np.full((len(allowed), *saved.shape), -math.inf)
        for table, choice, part in zip(taken, allowed, parts, strict=True):
            kind = int(choice.dtype == "int8")
            before = ways.max(axis=0)[kind, : _NOISE_PARTS + 1 - part]
            table[kind, part:] = before + choice.ms
        steps.append((allowed, parts, taken.argmax(axis=0), ways.argmax(axis=0)))
        saved = taken.max(axis=0)
    chosen, kind, room = list[Choice](), 0, _NOISE_PARTS
    for allowed, parts, best, converted in reversed(steps):
        pick = best[kind, room]
        chosen.append(allowed[pick])
        room -= parts[pick]
        kind ^= converted[kind, room]
    return dict(zip(choices, chosen[:0:-1], strict=True))


def aim_db(least_db: float, variants: Iterable[Variant]) -> float:
    """The ratio to predict for the next mix, from those of ``known`` mixes, as it turned out."""
    pairs = [(v.predicted_sqnr_db, v.sqnr_db) for v in variants]
    points = sorted((p, m) for p, m in pairs if p is not None and m is not None)
    wanted = least_db + _RESERVE_DB
    below = [point for point in points if point[1] < least_db]
    above = [point for point in points if point[1] >= least_db]
    if below and above and below[-1] < above[0]:
        (low, bad), (high, good) = below[-1], above[0]
        return low + (high - low) * min(1.0, (wanted - bad) / (good - bad))
    return wanted + max((p - m for p, m in (below or above)[-1:]), default=0.0)


def propose_mix(
    parent: Variant,
    choices: Mapping[str, Sequence[Choice]],
    least_db: float,
    conversions: Mapping[str, float],
    variants: Iterable[Variant] = (),
) -> Variant | None:
    """A program of several dtypes above a signal to noise ratio; None if one dtype is as good.

    What the ``known`` mixes turned out to have corrects the limit.
    """
    chosen = choose_dtypes(choices, 10 ** (-aim_db(least_db, variants) / 10), conversions)
    dtypes = [choice.dtype for choice in chosen.values()]
    default = "int8" if "int8" in dtypes else "int8dyn"
    plain = ExportOptions(dtype=default)
    modules: tuple[tuple[str, str], ...] = ()
    for layer in sorted(chosen, key=len):  # those around others come first
        if chosen[layer].dtype != replace(plain, module_dtypes=modules).dtype_of(layer):
            modules = (*modules, (layer, chosen[layer].dtype))
    if default not in dtypes or not modules:
        return None
    noise = max(sum(choice.noise for choice in chosen.values()), _LEAST_NOISE)
    text = ", ".join(
        f"{plural(dtypes.count(kind), 'layer')} in {kind}" for kind in sorted(set(dtypes))
    )
    options = _keep_accuracy(replace(parent.options, dtype=default, module_dtypes=modules))
    return Variant(text, options, parent.name, predicted_sqnr_db=-10 * math.log10(noise))


def measure_noise(
    model: str | LoadedModel, options: ExportOptions, order: Sequence[str], seconds: float
) -> dict[str, float]:
    """The noise in the output if one layer alone is quantised, by ``dtype:layer``.

    Layers in the given order, as many as the seconds allow; the others stay in floating point.
    """
    from workbench import load_model
    from workbench.plugins.optimize.noise import measure_layer_noise

    noise_of: dict[str, float] = {}
    loaded = load_model(model, state_dict=options.state_dict or None)
    for dtype in MIXED:
        try:
            each = replace(options, dtype=dtype)
            noise = measure_layer_noise(loaded, each, order, seconds / len(MIXED))
        except WorkbenchError:  # nothing to quantise
            continue
        noise_of |= {f"{dtype}:{layer}": power for layer, power in noise.items()}
    return noise_of

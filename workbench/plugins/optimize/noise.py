"""The noise in a program's output if one layer alone is quantised."""

import functools
import math
import time
from collections.abc import Sequence
from typing import Any

import torch

from workbench import ExportOptions
from workbench.graphs import LoadedModel, silence, tree_leaves, walk_quantised


def measure_layer_noise(
    model: LoadedModel, options: ExportOptions, order: Sequence[str], seconds: float
) -> dict[str, float]:
    """By layer, the noise of the worst output if it alone is quantised, over the signal's power.

    Layers in this ``order``, then the others, as many as ``seconds`` allow; 1, all of the signal,
    for the rest. The inputs of each are exact.
    """
    walks = walk_quantised(model, options)
    with silence():
        values, outputs = walks.run_exactly()
        errors: dict[str, dict[str, torch.Tensor]] = {}
        started = time.thread_time()

        def subtract(name: str, value: Any) -> Any:
            if name not in values:
                return value
            if name in walks.places and not torch.equal(value, values[name]):
                errors.setdefault(walks.places[name][0], {})[name] = value - values[name]
            return values[name].clone()

        def disturb(name: str, value: Any, added: dict[str, torch.Tensor]) -> Any:
            return value + added[name] if name in added else value

        walks.quantized(subtract)
        ranks = {layer: rank for rank, layer in enumerate(("", *order))}
        noise: dict[str, float] = {}
        for layer in sorted(errors, key=lambda layer: ranks.get(layer, len(ranks))):
            if noise and time.thread_time() - started > seconds:
                noise[layer] = 1.0
                continue
            disturbed = walks.exact(functools.partial(disturb, added=errors[layer]))
            pairs = zip(tree_leaves(disturbed), tree_leaves(outputs), strict=True)
            powers = [_compare(*pair) for pair in pairs if isinstance(pair[1], torch.Tensor)]
            noise[layer] = max(powers, default=0.0)
    return noise


def _compare(noisy: torch.Tensor, exact: torch.Tensor) -> float:
    """The power of the noise over that of the signal; 0 where either has none, or no numbers."""
    noisy, exact = noisy.double(), exact.double()
    finite = torch.isfinite(exact)
    noise, signal = (noisy - exact)[finite].square().sum(), exact[finite].square().sum()
    ratio = float(noise / signal) if signal else 0.0
    return ratio if math.isfinite(ratio) else 0.0

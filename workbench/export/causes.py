"""Why a program does not compute what the model does, where that can be told."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from workbench.export.fidelity import compare_outputs, run_eagerly

if TYPE_CHECKING:
    import torch

    from workbench.models import LoadedModel

#: A kernel of ExecuTorch 1.5.1 that adds up in the dtype of its tensors, unlike PyTorch's.
_COARSE = "aten::convolution.out"
#: How far below the power of an input the noise is that a model is tried with, in dB.
_NOISE_DB = 60
#: From what a model has to add to the noise of its inputs to be called its cause, in dB.
_LEAST_GAIN_DB = 10


def coarse_kernels(torch_name: str, operators: Mapping[str, int]) -> str:
    """Kernels, counted by name, that lose precision in a dtype; empty if none does."""
    count = operators.get(_COARSE, 0)
    if not count or torch_name not in ("float16", "bfloat16"):
        return ""
    return f"{count} convolutions run on ExecuTorch's own kernel, which adds up in {torch_name}"


def sensitivity(model: LoadedModel, expected: list[Any]) -> str:
    """That the eager model amplifies noise, whatever the dtype; empty if it hardly does."""
    gain = noise_gain_db(model, expected)
    if gain is None or gain < _LEAST_GAIN_DB:
        return ""
    return f"the eager model, too, amplifies noise in its inputs, by {gain:.0f} dB"


def noise_gain_db(model: LoadedModel, expected: list[Any]) -> float | None:
    """How much more noise an eager model has in its worst output than in its inputs, in dB.

    The noise is Gaussian, 60 dB below the power of each floating-point input; ``expected`` are the
    outputs without. None if no output changes, or one breaks.
    """
    import torch
    from torch.utils._pytree import tree_map_only

    generator = torch.Generator().manual_seed(0)

    def disturb(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        noise = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
        scale = tensor.square().mean().sqrt() * 10 ** (-_NOISE_DB / 20)
        return tensor + noise * scale

    args, kwargs = tree_map_only(torch.Tensor, disturb, (model.example_inputs, model.kwargs))
    outputs = run_eagerly(model.module, args, kwargs)
    ratios = [output.sqnr_db for output in compare_outputs(outputs, expected, -math.inf)]
    known = [ratio for ratio in ratios if ratio is not None]
    return _NOISE_DB - min(known) if known else None

"""The dtypes a program can be exported in: what each means, and how near it must come to eager."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Recipe:
    """How one dtype is made.

    Attributes
    ----------
    torch_name
        PyTorch's dtype of the inputs, and of everything that is not quantised.
    meaning
        For a reader, in a few words.
    least_sqnr_db
        The signal to quantisation noise ratio, in dB, below which an export is called wrong. The
        bounds lie far below what a sound export of a deep random network reaches (120, 50, 30, 25
        and 15 dB): they tell a broken graph from the price of a dtype.
    quantizes
        What becomes integers, and where: the ``weights`` of the eager module, or the whole
        ``graph`` that was exported from it.
    calibrated
        Whether the ranges of activations are measured on example inputs.
    half_weights
        Whether convolution weights are serialised in half precision.
    """

    torch_name: str
    meaning: str
    least_sqnr_db: float
    quantizes: Literal["", "weights", "graph"] = ""
    calibrated: bool = False
    half_weights: bool = False


RECIPES = {
    "fp32": Recipe("float32", "single precision", 60),
    "fp16": Recipe("float16", "half precision, convolution weights stored as fp32", 25),
    "fp16w": Recipe("float16", "half precision, all weights", 25, half_weights=True),
    "bf16": Recipe("bfloat16", "bfloat16", 10),
    "int8": Recipe("float32", "int8 weights and activations", 10, "graph", calibrated=True),
    "int8dyn": Recipe("float32", "linear layers in int8, ranges found at run time", 10, "graph"),
    "8da4w": Recipe("float32", "linear layers with int4 weights in groups of 32", 5, "weights"),
}

#: What ``--dtype`` takes, and PyTorch's name of the dtype of a program's inputs.
DTYPES = {name: recipe.torch_name for name, recipe in RECIPES.items()}

"""The dtypes and the backends of programs."""

from dataclasses import dataclass
from typing import Literal

from workbench.options import QUANTISER_REWRITES


@dataclass(frozen=True)
class Precision:
    """How a program of one dtype is made.

    ``torch_name`` is PyTorch's dtype of the inputs, and of everything that is not quantised: the
    ``weights`` of the module, or the exported ``graph``. Exports with a signal to quantisation
    noise ratio below ``least_sqnr_db`` are reported as wrong; correct exports of deep random
    networks reach far more (120, 50, 30, 25 and 15 dB). With ``half_weights``, convolution weights
    are serialised in half precision.
    """

    torch_name: str
    meaning: str
    least_sqnr_db: float
    quantizes: Literal["", "weights", "graph"] = ""
    calibrated: bool = False
    half_weights: bool = False

    @property
    def rewrites(self) -> tuple[str, ...]:
        """The remedies that a quantiser needs, of a dtype that has one."""
        return QUANTISER_REWRITES if self.quantizes == "graph" else ()


PRECISIONS = {
    "fp32": Precision("float32", "single precision", 60),
    "fp16": Precision("float16", "half precision, convolution weights stored as fp32", 25),
    "fp16w": Precision("float16", "half precision, all weights", 25, half_weights=True),
    "bf16": Precision("bfloat16", "bfloat16", 10),
    "int8": Precision("float32", "int8 weights and activations", 10, "graph", calibrated=True),
    "int8dyn": Precision("float32", "linear layers in int8, ranges found at run time", 10, "graph"),
    "8da4w": Precision("float32", "linear layers with int4 weights in groups of 32", 5, "weights"),
    "8da4c": Precision("float32", "linear layers with int4 weights per channel", 5, "graph"),
}

#: What ``--dtype`` takes, and PyTorch's name of the dtype of a program's inputs.
DTYPES = {name: precision.torch_name for name, precision in PRECISIONS.items()}
BACKENDS = ("xnnpack", "portable")

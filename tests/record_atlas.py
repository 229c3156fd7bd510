"""Export the programs of the atlas: ``python tests/record_atlas.py [ZIP]``.

One program for each dtype has a hundred operators that do not depend on each other: products,
convolutions and depthwise convolutions of the sizes in which networks have them, and what moves or
changes tensors. Their weights are constant, so that the programs are small when compressed.
"""

import itertools
import sys
import zipfile
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from workbench.export.lower import lower_model
from workbench.models.loader import LoadedModel
from workbench.models.process import silence
from workbench.options import ExportOptions

SHIPPED = Path(__file__).parents[1] / "data" / "atlas.zip"
DTYPES = ("fp32", "fp16w", "int8", "int8dyn", "8da4w", "8da4c")

#: Rows, columns and length of the sums of linear layers.
LINEAR = (
    (1, 64, 64), (1, 256, 256), (1, 1024, 576), (1, 1000, 1024), (1, 2048, 512), (4, 256, 256),
    (8, 512, 512), (16, 128, 512), (16, 1024, 256), (49, 96, 576), (49, 576, 96), (64, 64, 64),
    (128, 512, 128), (196, 192, 192), (196, 768, 192), (196, 192, 768), (196, 40, 240),
    (784, 24, 96), (784, 96, 24), (784, 128, 64), (3136, 64, 16), (3136, 16, 64), (12544, 32, 16),
    (256, 512, 512), (128, 768, 1536), (1024, 256, 256),
)  # fmt: skip
#: Channels in and out, side of the image, kernel, stride and groups.
CONVOLUTIONS = (
    (3, 16, 224, 3, 2, 1), (3, 32, 112, 3, 2, 1), (3, 64, 112, 7, 2, 1), (3, 192, 224, 16, 16, 1),
    (16, 32, 56, 3, 1, 1), (32, 32, 56, 3, 1, 1), (64, 64, 56, 3, 1, 1), (64, 128, 28, 3, 2, 1),
    (128, 128, 28, 3, 1, 1), (128, 256, 14, 3, 1, 1), (256, 256, 14, 3, 2, 1),
    (512, 512, 7, 3, 1, 1), (64, 64, 14, 5, 1, 1), (24, 24, 28, 3, 1, 1), (64, 64, 28, 3, 1, 4),
    (128, 128, 14, 3, 1, 16), (64, 128, 28, 1, 2, 1), (256, 512, 14, 1, 2, 1),
)  # fmt: skip
#: Channels, side, kernel and stride of depthwise convolutions.
DEPTHWISE = (
    (16, 112, 3, 2), (32, 112, 3, 1), (96, 56, 3, 2), (144, 56, 3, 1), (72, 28, 5, 1),
    (240, 14, 5, 1), (240, 14, 3, 1), (576, 7, 5, 1), (960, 7, 3, 1), (192, 14, 7, 1),
    (96, 28, 7, 1), (64, 28, 3, 1), (96, 56, 7, 1),
)  # fmt: skip
#: Batch, rows, columns and length of the sums of products of two activations.
PRODUCTS = (
    (3, 197, 197, 64), (3, 197, 64, 197), (12, 64, 64, 64), (1, 128, 128, 128), (8, 49, 49, 32),
    (8, 49, 32, 49), (12, 128, 128, 64), (12, 128, 64, 128), (8, 1, 128, 64), (4, 16, 256, 64),
)  # fmt: skip
#: Channels and side of images that one function changes.
IMAGES = ((64, 7), (96, 28), (64, 112))
FUNCTIONS = {
    "relu": functional.relu, "hardswish": functional.hardswish, "sigmoid": torch.sigmoid,
    "gelu": functional.gelu, "tanh": torch.tanh, "exp": torch.exp, "rsqrt": torch.rsqrt,
    "softmax": lambda x: torch.softmax(x, -1),
    "max_pool": lambda x: functional.max_pool2d(x, 2), "square": torch.square, "abs": torch.abs,
    "avg_pool": lambda x: functional.avg_pool2d(x, 3, 2, ceil_mode=False),
    "mean": lambda x: x.mean((2, 3), keepdim=True), "transpose": lambda x: x.transpose(1, 3) * 1,
    "leaky_relu": functional.leaky_relu,
}  # fmt: skip
PAIRS = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div,
    "maximum": torch.maximum, "cat": lambda a, b: torch.cat([a, b], 1),
    "scale": lambda a, b: a * b.mean((2, 3), keepdim=True),
}  # fmt: skip


class Operators(nn.Module):
    """Operators that each take inputs of their own."""

    def __init__(self, dtype):
        super().__init__()
        self.layers, self.inputs = nn.ModuleList(), []
        for rows, columns, length in LINEAR:
            self.layers.append(nn.Linear(length, columns))
            self.inputs.append((rows, length))
        is_linear_only = dtype in ("int8dyn", "8da4w", "8da4c")
        for cin, cout, side, kernel, stride, groups in () if is_linear_only else CONVOLUTIONS:
            padding = kernel // 2 if kernel < 16 else 0
            layer = nn.Conv2d(cin, cout, kernel, stride, padding, groups=groups)
            self.layers.append(layer)
            self.inputs.append((1, cin, side, side))
        for channels, side, kernel, stride in () if is_linear_only else DEPTHWISE:
            layer = nn.Conv2d(channels, channels, kernel, stride, kernel // 2, groups=channels)
            self.layers.append(layer)
            self.inputs.append((1, channels, side, side))
        self.functions = []
        if not is_linear_only:
            # XNNPACK's executor refuses some int8 images channels last.
            is_float = dtype != "int8"
            for function, (channels, side) in itertools.product(
                FUNCTIONS, IMAGES if is_float else ()
            ):
                self.functions.append((FUNCTIONS[function], 1))
                self.inputs.append((1, channels, side, side))
            for pair, (channels, side) in itertools.product(PAIRS, IMAGES if is_float else ()):
                self.functions.append((PAIRS[pair], 2))
                self.inputs += [(1, channels, side, side)] * 2
            for batch, rows, columns, length in PRODUCTS:
                self.functions.append((torch.matmul, 2))
                self.inputs += [(batch, rows, length), (batch, length, columns)]
        for number, weight in enumerate(self.parameters()):
            # Equal weights would be stored once.
            nn.init.constant_(weight, 2.0 ** -(number % 64) / weight.shape[-1])

    def forward(self, *tensors):
        rest = iter(tensors)
        outputs = [layer(next(rest)) for layer in self.layers]
        return (*outputs, *(f(*itertools.islice(rest, count)) for f, count in self.functions))


def export_atlas(dtype):
    """The program of a dtype."""
    module = Operators(dtype).eval()

    def fill(shape):
        tensor = torch.rand(shape, generator=torch.Generator().manual_seed(0)) + 0.5
        return tensor.to(memory_format=torch.channels_last) if len(shape) == 4 else tensor

    model = LoadedModel(f"atlas_{dtype}", module, tuple(map(fill, module.inputs)))
    with silence():
        return lower_model(model, ExportOptions(dtype=dtype)).pte


if __name__ == "__main__":
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else SHIPPED
    with zipfile.ZipFile(path, "w") as archive:
        for dtype in DTYPES:
            # A fixed time: the same programs give the same file.
            info = zipfile.ZipInfo(f"atlas_{dtype}.pte")
            program = export_atlas(dtype)
            archive.writestr(info, program, zipfile.ZIP_LZMA, 9)
            print(dtype, len(program), archive.getinfo(info.filename).compress_size, flush=True)

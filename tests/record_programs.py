"""Export the programs that measure a machine: ``python tests/record_programs.py [ZIP]``.

They are the same for everybody, so `data/programs.zip` has them; their weights are powers of two,
which makes the programs the same on every machine, and small when compressed. Random weights are
multiplied as fast (within 2 % on an AMD EPYC in fp32, fp16 and int8).

Probes measure peaks. A program of the atlas, one for each dtype, has a hundred operators that do
not depend on each other: products, convolutions and depthwise convolutions of the sizes in which
networks have them, and what moves or changes tensors.
"""

import itertools
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from workbench.export.lower import lower_model
from workbench.export.traced import trace_model
from workbench.models.loader import LoadedModel
from workbench.options import ExportOptions
from workbench.process import silence
from workbench.records.codec import to_json
from workbench.records.runs import Ceilings, Probe

SHIPPED = Path(__file__).parents[1] / "data" / "programs.zip"
#: Matrix products that are large enough to be compute-bound: 0.01 s in fp32 on one core.
SIDE, LAYERS = 512, 4
#: Footprints of one copying operator, in bytes: from the inner caches to memory.
FOOTPRINTS = (2**15, 2**18, 2**21, 2**24, 2**27)
#: Sides of matrices that are read once: 1 MB to 64 MB of weights.
READ_SIDES = (512, 2048, 4096)
#: Bytes that a chain of copying operators moves in all, and its maximum length.
CHAIN_BYTES, LONGEST = 2**26, 256
TINY = 64


class Negate(nn.Module):
    """Many operators that XNNPACK does not fuse."""

    def __init__(self, times):
        super().__init__()
        self.times = times

    def forward(self, x):
        for number in range(self.times):
            x = torch.abs(x) if number % 2 else torch.neg(x)
        return x


def design_probes():
    """Each probe, its module, and the shape of its input.

    ``gemm`` multiplies large matrices, once for each dtype; ``stream`` negates tensors repeatedly,
    at several footprints; ``read`` multiplies one row by a matrix, which is bound by reading the
    matrix; ``call`` negates tiny tensors: the cost of a call.
    """
    for dtype in ("fp32", "fp16", "int8"):
        layers = [nn.Linear(SIDE, SIDE, bias=False) for _ in range(LAYERS)]
        work = 2 * SIDE**3 * LAYERS
        yield Probe("gemm", dtype, work, 0, LAYERS), nn.Sequential(*layers), (SIDE, SIDE)
    for size in FOOTPRINTS:
        times = max(4, min(LONGEST, CHAIN_BYTES // size))
        yield Probe("stream", "fp32", 0, size, times), Negate(times), (size // 8,)
    for side in READ_SIDES:
        linear = nn.Linear(side, side, bias=False)
        yield Probe("read", "fp32", 0, 4 * side * (side + 2), 1), linear, (1, side)
    yield Probe("call", "fp32", 0, 0, LONGEST), Negate(LONGEST), (TINY,)
    # The cost of a program beyond its operators.
    yield Probe("program", "fp32", 0, 0, 1), Negate(1), (TINY,)


DTYPES = ("fp32", "fp16w", "int8", "int8dyn", "8da4w", "8da4c")

#: Rows, columns and length of the sums of linear layers.
LINEAR = (
    (1, 64, 64), (1, 256, 256), (1, 1024, 576), (1, 1000, 1024), (1, 2048, 512), (4, 256, 256),
    (8, 512, 512), (16, 128, 512), (16, 1024, 256), (49, 96, 576), (49, 576, 96), (64, 64, 64),
    (128, 512, 128), (196, 192, 192), (196, 768, 192), (196, 192, 768), (196, 40, 240),
    (784, 24, 96), (784, 96, 24), (784, 128, 64), (3136, 64, 16), (3136, 16, 64), (12544, 32, 16),
    (256, 512, 512), (128, 768, 1536), (1024, 256, 256),
    # Columns that fill no vector.
    (784, 52, 52), (784, 36, 84), (196, 84, 84), (196, 100, 212), (196, 140, 52), (49, 212, 212),
    (49, 140, 100), (3136, 20, 36), (3136, 12, 20),
)  # fmt: skip
#: Channels in and out, side of the image, kernel, stride and groups.
CONVOLUTIONS = (
    (3, 16, 224, 3, 2, 1), (3, 32, 112, 3, 2, 1), (3, 64, 112, 7, 2, 1), (3, 192, 224, 16, 16, 1),
    (16, 32, 56, 3, 1, 1), (32, 32, 56, 3, 1, 1), (64, 64, 56, 3, 1, 1), (64, 128, 28, 3, 2, 1),
    (128, 128, 28, 3, 1, 1), (128, 256, 14, 3, 1, 1), (256, 256, 14, 3, 2, 1),
    (512, 512, 7, 3, 1, 1), (64, 64, 14, 5, 1, 1), (24, 24, 28, 3, 1, 1), (64, 64, 28, 3, 1, 4),
    (128, 128, 14, 3, 1, 16), (64, 128, 28, 1, 2, 1), (256, 512, 14, 1, 2, 1),
    (40, 40, 56, 3, 1, 5), (72, 72, 28, 3, 1, 9), (120, 120, 14, 3, 1, 15), (256, 256, 7, 3, 1, 32),
    (96, 96, 28, 3, 1, 6), (144, 144, 14, 3, 1, 6), (52, 84, 28, 3, 1, 1), (84, 52, 14, 3, 1, 1),
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

    def forward(self, *tensors):
        rest = iter(tensors)
        outputs = [layer(next(rest)) for layer in self.layers]
        return (*outputs, *(f(*itertools.islice(rest, count)) for f, count in self.functions))


def export_program(name, module, inputs, dtype):
    """The program of a module with constant weights."""
    for number, weight in enumerate(module.parameters()):
        # Equal weights would be stored once.
        nn.init.constant_(weight, 2.0 ** -(number % 64) / weight.shape[-1])
    with silence():
        model = LoadedModel(name, module.eval(), inputs)
        return lower_model(model, ExportOptions(dtype=dtype), trace_model(model)).pte


def name_probe(probe):
    """The name of its file."""
    return f"{probe.kind}_{probe.dtype}_{probe.bytes}.pte"


def export_probe(probe, module, shape):
    """The program of a probe."""
    return export_program(probe.kind, module, (torch.ones(shape),), probe.dtype)


def export_atlas(dtype):
    """The program of a dtype."""
    module = Operators(dtype)

    def fill(shape):
        tensor = torch.rand(shape, generator=torch.Generator().manual_seed(0)) + 0.5
        return tensor.to(memory_format=torch.channels_last) if len(shape) == 4 else tensor

    return export_program(f"atlas_{dtype}", module, tuple(map(fill, module.inputs)), dtype)


def record_programs(path):
    """Write all programs and ``probes.json`` into a ZIP file."""
    with zipfile.ZipFile(path, "w") as archive:

        def write(name, content, method=zipfile.ZIP_DEFLATED):
            # A fixed time: the same programs give the same file.
            archive.writestr(zipfile.ZipInfo(name), content, method, 9)
            print(name, len(content), archive.getinfo(name).compress_size, flush=True)

        probes = []
        for probe, module, shape in design_probes():
            probes.append(replace(probe, file=name_probe(probe)))
            write(probes[-1].file, export_probe(probe, module, shape))
        write("probes.json", to_json(Ceilings("", "", "", 0, "", tuple(probes))))
        for dtype in DTYPES:
            # A third of the size; unpacked in four times the time, which a first report has not.
            write(f"atlas_{dtype}.pte", export_atlas(dtype), zipfile.ZIP_LZMA)


if __name__ == "__main__":
    record_programs(Path(sys.argv[1]) if len(sys.argv) > 1 else SHIPPED)

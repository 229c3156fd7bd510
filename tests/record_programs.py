"""Export the programs that measure a machine: ``python tests/record_programs.py [ZIP]``.

They are the same for everybody, so `data/programs.zip` has them; their weights are powers of two,
which makes the programs the same on every machine, and small when compressed. Random weights are
multiplied as fast (within 2 % on an AMD EPYC in fp32, fp16 and int8).
"""

import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

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


def record_programs(path):
    """Write all programs and ``probes.json`` into a ZIP file."""
    with zipfile.ZipFile(path, "w") as archive:

        def write(name, content):
            # A fixed time: the same programs give the same file.
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED, 9)
            print(name, len(content), archive.getinfo(name).compress_size, flush=True)

        probes = []
        for probe, module, shape in design_probes():
            probes.append(replace(probe, file=name_probe(probe)))
            write(probes[-1].file, export_probe(probe, module, shape))
        write("probes.json", to_json(Ceilings("", "", "", 0, "", tuple(probes))))


if __name__ == "__main__":
    record_programs(Path(sys.argv[1]) if len(sys.argv) > 1 else SHIPPED)

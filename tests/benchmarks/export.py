"""Cost of an export beyond the steps in ExecuTorch's documentation.

    python tests/benchmarks/export.py [--model mobilenet_v3_small] [--dtypes fp32,int8]
        [--repeats 5]

For each dtype, a plain export and ``export_model`` make the same program, interleaved in one
process, after one warm-up each; median CPU time of one thread. The plain export makes the
half-precision copy or quantises, calls ``torch.export``, ``to_edge_transform_and_lower`` and
``to_executorch``, and writes the ``.pte`` and the ETRecord. ``export_model`` also rewrites the
graph, runs the program, compares it with the eager model, and writes the inputs, the sidecar and
the record. ``workbench export`` then runs twice; the second time, nothing has changed. Exits 1 if
an export takes more than 10 % or one second longer than the plain one, or if an unchanged export
takes one second of CPU time or more.
"""

import argparse
import copy
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch

import workbench as wb
from workbench.models.loader import load_model
from workbench.process import silence

MAX_SHARE, MAX_SECONDS = 0.1, 1.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="mobilenet_v3_small")
    parser.add_argument("--dtypes", default="fp32,fp16,int8")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()

    torch.set_num_threads(1)
    model = load_model(options.model)
    missed = False
    for dtype in options.dtypes.split(","):
        base, full, more = compare(model, dtype, options.repeats)
        fits = more <= min(MAX_SHARE * base, MAX_SECONDS)
        missed |= not fits
        print(f"{options.model} {dtype}: plain {base:.2f} s, export_model {full:.2f} s, "
              f"{more:+.2f} s ({more / base:+.1%}){'' if fits else ': too much'}")  # fmt: skip
    first, again = export_twice(options.model)
    missed |= again >= MAX_SECONDS
    print(f"{options.model}: workbench export {first:.1f} s, unchanged {again:.2f} s")
    return int(missed)


def export_twice(model: str) -> list[float]:
    """CPU seconds of the first and the second command, including Python's start."""
    taken = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(2):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            command = [sys.executable, "-m", "workbench", "export", model, "--out", folder]
            subprocess.run(command, check=True, capture_output=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return taken


def compare(model, dtype: str, repeats: int) -> tuple[float, float, float]:
    """Median seconds of a plain export, of ours, and of the difference within a round."""
    rounds = []
    for number in range(repeats + 1):
        order = [plain, ours] if number % 2 else [ours, plain]
        rounds.append({export: seconds(export, model, dtype) for export in order})
    bases, fulls = ([times[export] for times in rounds[1:]] for export in (plain, ours))
    differences = [full - base for full, base in zip(fulls, bases, strict=True)]
    return tuple(map(statistics.median, (bases, fulls, differences)))


def seconds(export, model, dtype: str) -> float:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"):
        started = time.process_time()
        export(model, dtype, Path(folder))
        return time.process_time() - started


def plain(model, dtype: str, folder: Path) -> None:
    with silence():
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
        from executorch.exir import to_edge_transform_and_lower

        module, inputs = model.module, model.example_inputs
        if dtype == "fp16":
            module, inputs = copy.deepcopy(module).half(), tuple(x.half() for x in inputs)
        exported = torch.export.export(module, inputs)
        if dtype == "int8":
            exported = torch.export.export(quantize(exported, inputs), inputs)
        edge = to_edge_transform_and_lower(
            exported, partitioner=[XnnpackPartitioner()], generate_etrecord=True
        )
        program = edge.to_executorch()
        Path(folder, "model.pte").write_bytes(program.buffer)
        program.get_etrecord().save(Path(folder, "model.pte.etrecord"))


def quantize(exported, inputs):
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    quantizer = XNNPACKQuantizer()
    quantizer.set_global(get_symmetric_quantization_config(is_per_channel=True))
    prepared = prepare_pt2e(exported.module(), quantizer)
    prepared(*inputs)
    return convert_pt2e(prepared)


def ours(model, dtype: str, folder: Path) -> None:
    wb.export_model(model, options=wb.ExportOptions(dtype=dtype), root=folder)


if __name__ == "__main__":
    sys.exit(main())

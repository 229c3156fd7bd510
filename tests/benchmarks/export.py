"""What an export costs beyond ``to_edge_transform_and_lower`` and ``to_executorch``.

    python tests/benchmarks/export.py [--model mobilenet_v3_small] [--repeats 5]

Both make the same fp32 program in one process, in turns, after one of each that does not count;
CPU time, median. ``export_model`` also rewrites the graph, makes the ETRecord, runs the program,
compares it with the eager model, and writes everything with its record. Exit code 1 if it takes
more than 10 % or more than a second longer.
"""

import argparse
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path

import workbench as wb
from workbench.export.quiet import quiet
from workbench.models import load_model


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="mobilenet_v3_small")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()

    model = load_model(options.model)
    taken = {plain: [], ours: []}
    for _ in range(options.repeats + 1):
        for export, seconds in taken.items():
            started = time.process_time()
            export(model)
            seconds.append(time.process_time() - started)
    base, full = (statistics.median(seconds[1:]) for seconds in taken.values())
    print(f"{options.model}: plain {base:.2f} s, export_model {full:.2f} s, "
          f"{full - base:+.2f} s ({full / base - 1:+.1%})")  # fmt: skip
    return 0 if full - base <= min(1.0, 0.1 * base) else 1


def plain(model) -> None:
    """What ExecuTorch's documentation says, and no more."""
    with quiet(), tempfile.TemporaryDirectory() as folder:
        import torch
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
        from executorch.exir import to_edge_transform_and_lower

        exported = torch.export.export(model.module, model.example_inputs)
        edge = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])
        Path(folder, "model.pte").write_bytes(edge.to_executorch().buffer)


def ours(model) -> None:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"):
        wb.export_model(model, root=Path(folder))


if __name__ == "__main__":
    sys.exit(main())

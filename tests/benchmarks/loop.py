"""How long one waits for a verdict in a notebook, against a plain export of the same module.

    python tests/benchmarks/loop.py [--model mobilenet_v3_small] [--repeats 3] [--effort full,quick]

Every sample is a process of its own, in which PyTorch is imported and the module is built before
the clock starts, as in a running kernel. One exports as ExecuTorch's documentation does (imports,
``torch.export``, ``to_edge_transform_and_lower``, ``to_executorch``, the ``.pte``); the other calls
``wb.profile``, changes an activation, and calls it again. They alternate; medians of wall time.
The first verdict is shown after three restarts, the final one with the run. Waiting for other
measurements on this machine is not counted. Exits 1 if the first verdict takes more than 1.35, or
that after the edit more than 0.8 times the plain export.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

#: Of the plain export: the first verdict, and the one after an edit.
LIMITS = 1.35, 0.8


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="mobilenet_v3_small")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--effort", default="full,quick")
    parser.add_argument("--stages", action="store_true", help="also print the longest stages")
    options = parser.parse_args()

    efforts, samples = options.effort.split(","), defaultdict(list)
    for _ in range(options.repeats):
        for how in ("plain", *efforts):
            samples[how].append(sample(how, options.model))
    plain = statistics.median(seconds for (seconds,), _ in samples["plain"])
    load = os.getloadavg()[0]
    print(
        f"{options.model}, {options.repeats} processes each, load {load:.1f}: plain {plain:.1f} s"
    )
    missed = False
    for effort in efforts:
        times = zip(*(times for times, _ in samples[effort]), strict=True)
        for what, taken, most in zip(("first", "after an edit"), times, LIMITS, strict=True):
            seconds = [statistics.median(each) for each in zip(*taken, strict=True)]
            ratios = [each / plain for each in seconds]
            missed |= ratios[0] > most
            print(
                f"  {effort}, {what}: first verdict {seconds[0]:.1f} s, {ratios[0]:.2f} x "
                f"(at most {most}); final {seconds[1]:.1f} s, {ratios[1]:.2f} x"
            )
        for stages in samples[effort][-1][1] if options.stages else ():
            longest = sorted(stages.items(), key=lambda stage: -stage[1])[:9]
            print("   ", "; ".join(f"{text} {seconds:.1f} s" for text, seconds in longest))
    return int(missed)


def sample(how: str, model: str) -> tuple[list[list[float]], list[dict[str, float]]]:
    """Seconds of each step in a process of its own, and of its stages."""
    with tempfile.TemporaryDirectory() as folder:
        code = f"import loop; loop.{'plain' if how == 'plain' else 'ours'}({model!r}, {how!r})"
        command = [sys.executable, "-c", code]
        path = {"PYTHONPATH": str(Path(__file__).parent)}
        done = subprocess.run(
            command, cwd=folder, env=os.environ | path, capture_output=True, text=True
        )
    if done.returncode:
        sys.exit(done.stderr)
    return tuple(json.loads(done.stdout.splitlines()[-1]))


def plain(name: str, _: str) -> None:
    import workbench as wb

    model = wb.load_model(name)
    start = time.perf_counter()
    import torch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    exported = torch.export.export(model.module, model.example_inputs)
    edge = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])
    Path("model.pte").write_bytes(edge.to_executorch().buffer)
    print(json.dumps([[time.perf_counter() - start], []]))


def ours(name: str, effort: str) -> None:
    from torch import nn

    import workbench as wb

    model = wb.load_model(name)
    net, x = model.module, model.example_inputs
    times, stages = [], []
    for _ in range(2):
        notes = [(time.perf_counter(), "")]

        def note(text, _, notes=notes):
            notes.append((time.perf_counter(), text))

        wb.profile(net, x, effort=effort, progress=note).compare()
        spent, final, first = defaultdict(float), 0.0, 0.0
        for (began, text), (ended, _) in pairwise([*notes, (time.perf_counter(), "")]):
            spent[text.partition(": ")[2] or text] += ended - began
            first = first or final * ("so far: " in text)
            final += (ended - began) * ("waiting" not in text)
        times.append([first or final, final])
        stages.append(spent)
        last = [path for path, part in net.named_modules() if isinstance(part, nn.Hardswish)][-1]
        net.set_submodule(last, nn.ReLU())
    print(json.dumps([times, stages]))


if __name__ == "__main__":
    sys.exit(main())

"""Seconds, space and memory of large models and long runs, as ratios.

    python tests/benchmarks/scale.py [memory] [space] [events] [seconds] [--only NAME...]

``memory``: the largest resident set of `profile`, over that of a script that exports as ExecuTorch
documents it and runs the program 20 times, each in a process of its own; and the size of all
artifacts over that of the ``.pte``. The models are like ViT-B (86 M weights) and ResNet-50.
``space``: the folder of a run of 200 tiny layers, and of one long inference. ``events``: a trace of
a million events, read, analysed and written as tables. ``seconds``, if it is named: the same script
and a whole `profile` with its report, imports included and with warm caches, in turn
(``--rounds``); of each model of `SUBJECTS`, or of those named.

Exits 1 if a claim does not hold: memory at most 1.3 times the script's, artifacts twice the
``.pte`` or a megabyte, a run 50 MB and 20 times its traces, a million events in 500 MB; and of
models that take 30 to 500 ms, seconds at most 1.6 times the script's, and a verdict.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from parse import in_process, record

MOST_MEMORY, MOST_ARTIFACTS, MOST_MB, MOST_OF_TRACES, MOST_EVENTS_MB = 1.3, 2.0, 50, 20, 500
MOST_SECONDS, COUNTED_MS = 1.6, (30, 500)
#: Megabytes of artifacts that may be more than `MOST_ARTIFACTS` times a small ``.pte``.
SMALL_MB = 1
EVENTS = 1_000_000


@dataclass(frozen=True)
class Subject:
    """A model to profile: what `workbench profile` calls it, its dtype and its phases."""

    spec: str
    dtype: str = "fp32"
    phases: tuple[str, ...] = ()


SUBJECTS = {
    "ResNet-50": Subject("networks.py:Residual"),
    "ViT-B/16": Subject("networks.py:Vision"),
    "ConvNeXt-B": Subject("networks.py:Convnext"),
    "BERT, 24 layers": Subject("networks.py:Encoder"),
    "GPT-2, 12 layers": Subject("networks.py:Decoder"),
    "200 tiny layers": Subject("networks.py:Chain"),
    "EdgeTAM image encoder, fp16": Subject("edgetam_image_encoder", "fp16"),
    "SmolLM2-135M, 32 tokens": Subject("llm:smollm2_135m,sdpa=0", phases=("prefill=32",)),
}

PLAIN = """
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from executorch.runtime import Runtime

file, _, name = SPEC.partition(".py:")
shapes, strict = None, False
if name:
    net = getattr(__import__(file), name)().eval()
    inputs = net.get_example_inputs()
else:
    from workbench.models.loader import load_model

    model = load_model(SPEC)
    net, inputs = model.module.eval(), model.example_inputs
    shapes, strict = model.dynamic_shapes, bool(model.metadata)
if DTYPE == "fp16":
    net, inputs = net.half(), tuple(each.half() for each in inputs)
exported = torch.export.export(net, inputs, dynamic_shapes=shapes, strict=strict)
edge = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])
with open("plain.pte", "wb") as file:
    file.write(edge.to_executorch().buffer)
method = Runtime.get().load_program("plain.pte").load_method("forward")
for _ in range(20):
    method.execute(torch.utils._pytree.tree_leaves(inputs))
"""

PROFILE = """
import json
from datetime import datetime

import workbench as wb

export = wb.ExportOptions(dtype=DTYPE)
run = wb.profile(SPEC, export=export, measure=wb.MeasureOptions(**OPTIONS), root=ROOT, report=True)
pair, record = run.compare(), run.record
started, finished = map(datetime.fromisoformat, (record.started, record.finished))
facts = {
    "ms": pair.candidate.latency_ms,
    "outcome": pair.verdict.outcome,
    "text": pair.text,
    "measuring": (finished - started).total_seconds(),
    "restarts": len({session.process for session in record.sessions}),
}
print(json.dumps(facts))
"""


def run(folder: Path, code: str, **names: object) -> tuple[float, float, list[str]]:
    """Run code in a process of its own: its seconds, its largest resident set in MB, its output."""
    code = "".join(f"{name} = {value!r}\n" for name, value in names.items()) + code
    code += "\nimport resource\nprint(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, stdout=subprocess.PIPE, text=True, check=True
    )
    *lines, peak = done.stdout.splitlines()
    return (
        time.perf_counter() - begin,
        int(peak) / (1e6 if sys.platform == "darwin" else 1e3),
        lines,
    )


def size_mb(folder: Path, pattern: str = "*") -> float:
    return sum(path.stat().st_size for path in folder.rglob(pattern) if path.is_file()) / 1e6


def is_small(artifacts: Path) -> bool:
    """Whether artifacts are at most twice their ``.pte``, or a megabyte."""
    return size_mb(artifacts) <= max(SMALL_MB, MOST_ARTIFACTS * size_mb(artifacts, "*.pte"))


def check_memory(folder: Path) -> list[bool]:
    claims = []
    options = {"processes": 2, "runs": 4, "evidence": False}
    for name in ("Vision", "Residual"):
        names = {"SPEC": f"networks.py:{name}", "DTYPE": "fp32", "ROOT": name, "OPTIONS": options}
        (_, plain, _), (_, ours, _) = (run(folder, code, **names) for code in (PLAIN, PROFILE))
        artifacts = folder / name / "artifacts"
        space = size_mb(artifacts) / size_mb(artifacts, "*.pte")
        print(f"{name}: {plain:.0f} MB plain, {ours:.0f} MB profile: {ours / plain:.2f} x")
        print(f"{name}: artifacts {space:.2f} x the .pte")
        claims += [ours <= MOST_MEMORY * plain, is_small(artifacts)]
    return claims


def check_seconds(folder: Path, rounds: int, only: list[str]) -> list[bool]:
    """Profile each model and run the script, in turn; prints a row of Markdown for each."""
    print("| model | ms | load | plain s | profile | measuring | verdict | memory | artifacts |")
    print("|---|---:|---:|---:|---:|---:|---|---:|---:|")
    claims = []
    for title, subject in SUBJECTS.items():
        if only and title not in only:
            continue
        options = {"phases": subject.phases}
        names = {"SPEC": subject.spec, "DTYPE": subject.dtype, "OPTIONS": options}
        plain, ours = [], []
        for number in range(rounds):
            plain.append(run(folder, PLAIN, **names))
            ours.append(run(folder, PROFILE, ROOT=f"{number}", **names))
        facts = json.loads(ours[-1][2][-1])
        artifacts = folder / f"{rounds - 1}" / "artifacts"
        space = size_mb(artifacts) / size_mb(artifacts, "*.pte")
        seconds, memory = (
            [statistics.median(side[place] for side in sides) for sides in (plain, ours)]
            for place in (0, 1)
        )
        times, peaks = seconds[1] / seconds[0], memory[1] / memory[0]
        measuring = f"{facts['measuring'] / seconds[0]:.2f} x, {facts['restarts']} restarts"
        print(
            f"| {title} | {facts['ms']:.3g} | {os.getloadavg()[0]:.1f} | {seconds[0]:.0f} "
            f"| {times:.2f} x | {measuring} "
            f"| {facts['text']} | {peaks:.2f} x {memory[0]:.0f} MB | {space:.2f} x |",
            flush=True,
        )
        if COUNTED_MS[0] <= facts["ms"] <= COUNTED_MS[1]:
            claims += [times <= MOST_SECONDS, facts["outcome"] != "inconclusive"]
        claims += [peaks <= MOST_MEMORY, is_small(artifacts)]
        for place in range(rounds):
            shutil.rmtree(folder / f"{place}")
    return claims


def check_space(folder: Path) -> list[bool]:
    claims = []
    for name in ("Chain", "Vision"):
        names = {
            "SPEC": f"networks.py:{name}",
            "DTYPE": "fp32",
            "ROOT": f"space_{name}",
            "OPTIONS": {},
        }
        run(folder, PROFILE, **names)
        (run_dir,) = (folder / f"space_{name}" / "runs").iterdir()
        space, traces = size_mb(run_dir), size_mb(run_dir, "*.etdump")
        print(f"{name}: run {space:.1f} MB, traces {traces:.1f} MB")
        claims += [space <= MOST_MB, space <= MOST_OF_TRACES * traces]
    return claims


def analyse(path: Path) -> float:
    import workbench as wb
    from workbench.report.artifacts import write_artifacts

    run = wb.open_run(path)
    assert len(run.findings) >= 0 and len(run.operators)
    write_artifacts(run)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e6 if sys.platform == "darwin" else 1e3)


def check_events(folder: Path) -> list[bool]:
    path = folder / "events" / "long.etdump"
    path.parent.mkdir()
    in_process(record, path, EVENTS)
    peak = in_process(analyse, path)
    print(f"{EVENTS:,} events, {size_mb(path.parent, '*.etdump'):.0f} MB: {peak:.0f} MB")
    return [peak <= MOST_EVENTS_MB]


CHECKS = {"memory": check_memory, "space": check_space, "events": check_events}
SECONDS = "seconds"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checks", nargs="*", choices=[*CHECKS, SECONDS, []], default=[])
    parser.add_argument("--only", action="append", choices=[*SUBJECTS], default=[])
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}, {json.dumps(options.checks or [*CHECKS])}")
    claims = []
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(Path(__file__).with_name("_large.py"), Path(folder, "networks.py"))
        for name in options.checks or CHECKS:
            if name == SECONDS:
                claims += check_seconds(Path(folder), options.rounds, options.only)
            else:
                claims += CHECKS[name](Path(folder))
    return int(not all(claims))


if __name__ == "__main__":
    sys.exit(main())

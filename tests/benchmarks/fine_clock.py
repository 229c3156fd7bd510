"""Operator times in nanoseconds: are they right, and what does the tracer cost?

    python tests/benchmarks/fine_clock.py [MODEL[:DTYPE] | FILE.pte ...] [--before COMMIT]

Compares the runner with the one of ``--before``, which traced as upstream's does (needs git's
history). A preloaded library records every reading of the monotonic clock, so that the time of each
operator is known. The benchmark prints

- bias: how far operator times are from the differences of the readings, mean;
- share: how much of their delegates' calls the operators explain, median of the inferences;
- whether upstream's Inspector reads the same times from the ETDump;
- tracing: how much slower traced batches are, of single processes measured interleaved. The clocks
  of the runner leave out the time in which operators are reported. Before: batches of five;
- timers: how much untraced inferences gain if XNNPACK's clock is answered at once.

Exits 1 if the bias is 0.05 us or more, the share below 0.98, tracing above 2 % beyond its error, or
if the Inspector reads something else.
"""

import argparse
import contextlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

import workbench as wb
from workbench.analysis.compare import compare_latencies
from workbench.run.build import NATIVE, compile_flags, find_compiler, find_sdk
from workbench.run.execute import interleave
from workbench.run.session import RunnerSession

ROOT = Path(__file__).parents[2]
MODELS = ("mobilenet_v3_small", "mobilenet_v3_small:int8", "vit_tiny")
BEFORE = "79f2b46"
MAX_BIAS_US, LEAST_SHARE, MAX_TRACING = 0.05, 0.98, 0.02
BATCH_MS, BEFORE_BATCH, ROUNDS = 20.0, 5, 6

#: Records the monotonic clock in ns, doubled, plus one if XNNPACK itself asked.
PRELOAD = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
static long long readings[1 << 22];
static size_t count;
int clock_gettime(clockid_t clock, struct timespec* time) {
  static int (*real)(clockid_t, struct timespec*);
  if (!real) *(void**)&real = dlsym(RTLD_NEXT, "clock_gettime");
  const int code = real(clock, time);
  if (clock != CLOCK_MONOTONIC || count == sizeof readings / sizeof *readings) return code;
  static struct { void* caller; int xnnpack; } known[64];
  void* caller = __builtin_return_address(0);
  size_t i = 0;
  while (i < 63 && known[i].caller && known[i].caller != caller) i++;
  if (known[i].caller != caller) {
    Dl_info info;
    known[i].caller = caller;
    known[i].xnnpack = dladdr(caller, &info) && strstr(info.dli_fname, "backend_xnnpack") != NULL;
  }
  readings[count++] = 2 * (time->tv_sec * 1000000000LL + time->tv_nsec) + known[i].xnnpack;
  return code;
}
__attribute__((destructor)) static void save(void) {
  FILE* file = fopen(getenv("READINGS"), "wb");
  fwrite(readings, sizeof *readings, count, file);
  fclose(file);
}
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL[:DTYPE] | FILE.pte")
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--before", default=BEFORE, metavar="COMMIT")
    options = parser.parse_args()
    held = True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runners = {
            "before": build_before(options.before, folder),
            "now": wb.find_runner().command[0],
        }
        (folder / "preload.c").write_text(PRELOAD)
        preload = folder / "preload.so"
        flags = ["-shared", "-fPIC", "-O2", "-x", "c", folder / "preload.c", "-o", preload, "-ldl"]
        subprocess.run([*find_compiler(), *flags], check=True)
        for model in options.models:
            pte = Path(model) if model.endswith(".pte") else export(model, folder)
            print(f"{model}:")
            held &= check_times(runners, pte, preload, folder)
            held &= check_cost(runners, pte, folder, options.processes)
    return 0 if held else 1


def export(model: str, folder: Path) -> Path:
    network, _, dtype = model.partition(":")
    options = wb.ExportOptions(dtype=dtype or "fp32")
    return wb.export_model(network, options=options, root=folder).path


def build_before(commit: str, folder: Path) -> str:
    """The runner of an earlier commit."""
    where = NATIVE.relative_to(ROOT)
    archive = subprocess.run(
        ["git", "archive", commit, where], cwd=ROOT, check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as sources:
        sources.extractall(folder, filter="data")
    flags = [flag.replace(str(NATIVE), str(folder / where)) for flag in compile_flags(find_sdk())]
    subprocess.run([*find_compiler(), *flags, "-o", folder / "before"], check=True)
    return str(folder / "before")


def check_times(runners, pte, preload, folder) -> bool:
    """Print the bias and the share, before and now; whether the times of now are right."""
    for name, runner in runners.items():
        calls, _ = trace(runner, pte, folder, {"LD_PRELOAD": preload, "READINGS": folder / "ns"})
        readings = np.fromfile(folder / "ns", np.int64)
        find = find_logged if name == "now" else find_asked
        true, logged = find(readings, calls), np.concatenate(calls)
        bias = np.mean(logged - true) / 1e3
        calls, rows = trace(runner, pte, folder)
        by_run = rows.pivot_table("duration_ns", "run", "kind", "sum", observed=True)
        share = (by_run["delegate_operator"] / by_run["delegate_call"]).median()
        print(
            f"  {name}: bias {bias:+.3f} us per operator ({len(logged)} of "
            f"{np.mean(true) / 1e3:.2f} us), share {share:.3f}"
        )
    same = inspect(folder / "trace.etdump") == sum(map(sum, calls))
    print(f"  the Inspector reads {'the same times' if same else 'OTHER TIMES'}")
    return bool(abs(bias) < MAX_BIAS_US and share >= LEAST_SHARE and same)


def trace(runner, pte, folder, environment=None) -> tuple[list[np.ndarray], pd.DataFrame]:
    """The operators' times of every call of a delegate, and all events."""
    flags = ["--model_path", pte, "--cpu_threads", 1, "--warmup", 5, "--num_executions", 50]
    flags += ["--etdump_path", folder / "trace.etdump"]
    command = [runner, *map(str, flags)]
    environment = os.environ | {key: str(value) for key, value in (environment or {}).items()}
    subprocess.run(command, check=True, env=environment, capture_output=True)
    events = wb.read_etdump(folder / "trace.etdump")
    operators = events[events["kind"] == "delegate_operator"]
    grouped = operators.groupby("parent", sort=False)["duration_ns"]
    return [times.to_numpy() for _, times in grouped], events


def find_asked(readings, calls) -> np.ndarray:
    """True times from what XNNPACK itself asked for: before and after every operator."""
    asked = readings[readings % 2 == 1] // 2
    sizes = [len(call) + 1 for call in calls]
    parts = np.split(asked[-sum(sizes) :], np.cumsum(sizes)[:-1])
    return np.concatenate([np.diff(part) for part in parts])


def find_logged(readings, calls) -> np.ndarray:
    """True times from all readings: of those that follow each other, what is closest to a call."""
    steps, found = np.diff(readings // 2), []
    for call in calls:
        windows = np.lib.stride_tricks.sliding_window_view(steps, len(call))
        near = windows[np.abs(windows[:, 0] - call[0]) < 1000]
        errors = np.abs(near - call).max(axis=1, initial=0)
        found.append(near[errors.argmin()] if len(near) else np.full(len(call), np.nan))
    return np.concatenate(found)


def inspect(etdump: Path) -> float:
    """The sum of all operators of delegates, in ns, as upstream's Inspector reads it."""
    from executorch.devtools import Inspector
    from executorch.devtools.inspector import TimeScale

    with contextlib.redirect_stdout(sys.stderr):
        scale = TimeScale.NS
        inspector = Inspector(
            etdump_path=str(etdump), source_time_scale=scale, target_time_scale=scale
        )
    blocks = [block for block in inspector.event_blocks if block.name == "Execute"]
    events = (event for block in blocks for event in block.events if event.is_delegated_op)
    return round(sum(sum(event.perf_data.raw) for event in events))


def check_cost(runners, pte, folder, processes) -> bool:
    """Print what tracing and XNNPACK's timers cost; whether tracing costs little now."""
    rows = [row for number in range(processes) for row in measure(runners, pte, folder, number)]
    latencies = pd.DataFrame(rows).assign(threads=1, traced=False)
    costs = {}
    pairs = (("tracing, before", "before", "before traced"), ("tracing, now", "now", "now traced"))
    for what, *pair in (*pairs, ("timers", "now", "before")):
        found = compare_latencies(latencies, *pair).iloc[0]
        costs[what] = [100 * (1 / found[end] - 1) for end in ("speedup", "high", "low")]
        print("  {}: {:+.1f} % (95 % CI {:+.1f} to {:+.1f})".format(what, *costs[what]))
    return costs["tracing, now"][1] <= 100 * MAX_TRACING


def measure(runners, pte, folder, number) -> list[dict]:
    """The iterations of four live, interleaved processes."""
    base = ["--server_mode", "--model_path", str(pte), "--cpu_threads", "1"]
    base += ["--cpus", str(sorted(os.sched_getaffinity(0))[number % os.cpu_count()])]
    tracing = ["--etdump_path", str(folder / "live.etdump")]
    commands = {name: [path, *base] for name, path in runners.items()}
    commands |= {f"{name} traced": [*command, *tracing] for name, command in commands.items()}
    rows = []
    with contextlib.ExitStack() as stack:
        sessions = {
            name: stack.enter_context(RunnerSession(command, timeout_s=120))
            for name, command in commands.items()
        }
        sizes = {
            n: round(BATCH_MS * 1e6 / min(s.run(10).wall_ns)) or 1 for n, s in sessions.items()
        }
        sizes["before traced"] = min(BEFORE_BATCH, sizes["before traced"])
        for order in interleave(list(sessions), ROUNDS):
            for name in order:
                times = sessions[name].run(sizes[name])
                pairs = zip(times.wall_ns, times.cpu_ns, strict=True)
                same = {"experiment": name, "process": number}
                rows += [{**same, "wall_ns": wall, "cpu_ns": cpu} for wall, cpu in pairs]
    return rows


if __name__ == "__main__":
    sys.exit(main())

"""Operator times in nanoseconds: are they right, and what does the tracer cost?

    python tests/benchmarks/fine_clock.py [MODEL[:DTYPE] | FILE.pte[+TOKENS@POSITION] ...]
        [--before COMMIT] [--processes 5]

Compares the runner with the one of ``--before``, which traced as upstream's does (needs git's
history). A preloaded library records every reading of the monotonic clock, so that the time of each
operator is known, and how long XNNPACK prepares its operators: ExecuTorch's delegate has it reshape
and set up all of them in every inference, traced or not. ``+1@128`` is a step of a language model
at position 128. The benchmark prints

- bias: how far operator times are from the differences of the readings, mean. Those of now leave
  out what a reading costs, which is stated;
- explained: how much of their delegates' calls the operators take, and with this preparation;
- whether upstream's Inspector reads the same times from the ETDump;
- tracing: how much slower traced batches are than untraced ones of the same process. Both clocks
  leave out the time in which operators are reported. Before: batches of five, in a process of their
  own. ``row``: what the ledger's row ``tracing`` says;
- idle tracer: how much slower untraced batches are than those of a process without a tracer;
- timers: how much slower they are if XNNPACK times its operators for nobody, as in any application
  whose ExecuTorch has the event tracer (``XNN_FLAG_BASIC_PROFILING``); and what is left of that if
  XNNPACK's clock is answered at once. Both against a runtime that is created without this flag.

All are CPU times of interleaved processes with 95 % intervals over their restarts. Exits 1 if the
bias is 0.05 us or more, less than 0.98 is explained, the Inspector reads something else, or tracing
costs more than 2 % (5 % for a step of a language model) beyond its error.
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

sys.path.insert(0, str(Path(__file__).parents[1]))

from latencies import compare_latencies

import workbench as wb
from workbench.run.build import (
    NATIVE,
    compile_flags,
    find_compiler,
    find_operator_libraries,
    find_sdk,
)
from workbench.run.session import RunnerSession
from workbench.run.steps import interleave

ROOT = Path(__file__).parents[2]
MODELS = ("mobilenet_v3_small", "mobilenet_v3_small:int8", "vit_tiny")
BEFORE = "79f2b46"
MAX_BIAS_US, LEAST_SHARE, MAX_TRACING, MAX_TRACING_STEP = 0.05, 0.98, 0.02, 0.05
#: Of one operator, and how far its time may be from that of the trace: whole microseconds are
#: rounded down for each reading.
MOST_READINGS, FAR_NS = 4, {"before": 4000, "now": 500}
BATCH_MS, BEFORE_BATCH, ROUNDS, WARMUP, RUNS = 20.0, 5, 6, 5, 20

#: Records the monotonic clock in ns, doubled, plus one if XNNPACK itself asked; the last number is
#: the time in which XNNPACK prepared its operators after the first inference.
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
  if (clock != CLOCK_MONOTONIC || count + 1 == sizeof readings / sizeof *readings) return code;
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
static long long prepared;
static long long now(void) {
  struct timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec * 1000000000LL + time.tv_nsec;
}
#define PREPARES(name)                                       \
  int name(void* runtime, size_t size, const void* values) { \
    static void* known[64];                                  \
    int i = 0, (*real)(void*, size_t, const void*);          \
    *(void**)&real = dlsym(RTLD_NEXT, #name);                \
    const long long start = now();                           \
    const int code = real(runtime, size, values);            \
    while (i < 63 && known[i] && known[i] != runtime) i++;   \
    if (known[i] == runtime) prepared += now() - start;      \
    known[i] = runtime;                                      \
    return code;                                             \
  }
PREPARES(xnn_reshape_runtime)
PREPARES(xnn_setup_runtime_v2)
__attribute__((destructor)) static void save(void) {
  readings[count++] = prepared;
  FILE* file = fopen(getenv("READINGS"), "wb");
  fwrite(readings, sizeof *readings, count, file);
  fclose(file);
}
"""

#: XNNPACK as in an ExecuTorch without the event tracer.
PLAIN = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
int xnn_create_runtime_v4(
    void* graph, void* cache, void* space, void* pool, uint32_t flags, void** runtime) {
  int (*real)(void*, void*, void*, void*, uint32_t, void**);
  *(void**)&real = dlsym(RTLD_NEXT, "xnn_create_runtime_v4");
  return real(graph, cache, space, pool, flags & ~8u, runtime);  // XNN_FLAG_BASIC_PROFILING
}
#define PROFILER _ZN10executorch8backends7xnnpack8delegate9profiling11XNNProfiler
#define CALLED2(a, b) a##b
#define CALLED(a, b) CALLED2(a, b)
int CALLED(PROFILER, 10initializeEP11xnn_runtime)(void) { return 0; }
int CALLED(PROFILER, 5startEPNS_7runtime11EventTracerE)(void) { return 0; }
int CALLED(PROFILER, 3endEv)(void) { return 0; }
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
        preload, plain = (build_preload(source, folder) for source in (PRELOAD, PLAIN))
        for model in options.models:
            path, _, step = model.partition("+")
            pte = Path(path) if path.endswith(".pte") else export(path, folder)
            flags = ["--model_path", pte, "--cpu_threads", 1, *place_tokens(step, folder)]
            for library in find_operator_libraries() if step else ():
                flags += ["--ops", library]
            print(f"{model}:")
            words = list(map(str, flags))
            held &= check_times(runners, words, preload, folder)
            limit = MAX_TRACING_STEP if step else MAX_TRACING
            held &= check_cost(runners, words, plain, folder, options.processes) <= limit
    return 0 if held else 1


def build_preload(source: str, folder: Path) -> Path:
    """The library of a C source."""
    (code := folder / f"{abs(hash(source))}.c").write_text(source)
    flags = ["-shared", "-fPIC", "-O2", "-x", "c", code, "-o", code.with_suffix(".so"), "-ldl"]
    subprocess.run([*find_compiler(), *flags], check=True)
    return code.with_suffix(".so")


def place_tokens(step: str, folder: Path) -> list:
    """The runner's flags for ``TOKENS@POSITION``."""
    if not step:
        return []
    tokens, position = map(int, step.split("@"))
    flags = []
    for name, values, shape in (
        ("tokens", np.arange(tokens), f"1x{tokens}"), ("position", [position], "1")
    ):  # fmt: skip
        np.asarray(values, np.int64).tofile(folder / name)
        flags += ["--inputs", folder / name, "--input_shape", shape]
    return flags


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


def check_times(runners, flags, preload, folder) -> bool:
    """Print the bias and what is explained, before and now; whether the times of now are right."""
    for name, runner in runners.items():
        calls, _ = trace(runner, flags, folder, {"LD_PRELOAD": preload, "READINGS": folder / "ns"})
        *readings, prepared = np.fromfile(folder / "ns", np.int64)
        asked = np.array([ns // 2 for ns in readings if name == "now" or ns % 2])
        true, logged = find_true(asked, calls, FAR_NS[name]), np.concatenate(calls)
        cost = np.median(true - logged) if name == "now" else 0.0
        bias = np.mean(logged + cost - true) / 1e3
        calls, rows = trace(runner, flags, folder)
        by_run = rows.pivot_table("duration_ns", "run", "kind", "sum", observed=True)
        share = by_run["delegate_operator"] / by_run["delegate_call"]
        whole = share + prepared / (WARMUP + RUNS - 1) / by_run["delegate_call"]
        print(
            f"  {name}: bias {bias:+.3f} us per operator ({np.isfinite(true).sum()} of "
            f"{len(logged)}, {np.mean(true) / 1e3:.2f} us, a reading {cost / 1e3:.3f} us), "
            f"explained {share.median():.3f}, with their preparation {whole.median():.3f}"
        )
    same = inspect(folder / "trace.etdump") == sum(map(sum, calls))
    print(f"  the Inspector reads {'the same times' if same else 'OTHER TIMES'}")
    return bool(abs(bias) < MAX_BIAS_US and whole.median() >= LEAST_SHARE and same)


def trace(runner, flags, folder, environment=None) -> tuple[list[np.ndarray], pd.DataFrame]:
    """The operators' times of every call of a delegate, and all events."""
    count = ["--warmup", str(WARMUP), "--num_executions", str(RUNS)]
    command = [runner, *flags, *count, "--etdump_path", str(folder / "trace.etdump")]
    environment = os.environ | {key: str(value) for key, value in (environment or {}).items()}
    subprocess.run(command, check=True, env=environment, capture_output=True)
    events = wb.read_etdump(folder / "trace.etdump")
    operators = events[events["kind"] == "delegate_operator"]
    grouped = operators.groupby("parent", sort=False)["duration_ns"]
    return [times.to_numpy() for _, times in grouped], events


def find_true(readings: np.ndarray, calls: list[np.ndarray], far_ns: int) -> np.ndarray:
    """The operators' times between readings, where they are closest to a call's; NaN if nowhere.

    XNNPACK reads the clock after each of an operator's up to `MOST_READINGS` computations.
    """
    true = []
    for call in calls:
        near = [
            np.abs(readings[n:] - readings[:-n] - call[0]) < far_ns
            for n in range(1, MOST_READINGS + 1)
        ]
        starts = {int(start) for each in near for start in np.flatnonzero(each)}
        found = [follow(readings, start, call, far_ns) for start in starts]
        found = [times for times in found if len(times) == len(call)]
        errors = [np.abs(times - call).max() for times in found]
        true.append(found[np.argmin(errors)] if errors else np.full(len(call), np.nan))
    return np.concatenate(true)


def follow(readings, start, call, far_ns) -> np.ndarray:
    """The times between readings from ``start`` on, as long as they fit a call's operators."""
    ends = [start]
    for duration in call:
        times = readings[ends[-1] + 1 : ends[-1] + 1 + MOST_READINGS] - readings[ends[-1]]
        errors = np.abs(times - duration)
        if errors.min(initial=far_ns) >= far_ns:
            break
        ends.append(ends[-1] + 1 + int(errors.argmin()))
    return np.diff(readings[ends])


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


def check_cost(runners, flags, plain, folder, processes) -> float:
    """Print what tracing and XNNPACK's timers cost; the least that tracing costs now."""
    rows = [row for n in range(processes) for row in measure(runners, flags, plain, folder, n)]
    latencies = pd.DataFrame(rows).assign(threads=1, traced=False)
    costs = {}
    for what, *pair in (
        ("tracing, before", "before", "before traced"),
        ("tracing, now", "now untraced", "now traced"),
        ("idle tracer", "now", "now untraced"),
        ("timers", "plain", "before"),
        ("timers, answered at once", "plain", "now"),
    ):
        found = compare_latencies(latencies, *pair).iloc[0]
        costs[what] = [100 * (1 / found[end] - 1) for end in ("speedup", "high", "low")]
        row = ""
        if what == "tracing, now":
            ledger = wb.build_ledger(wb.read_etdump(folder / "live.etdump"))
            times = ledger.groupby("kind", observed=True)["duration_ns"].sum()
            row = f"; row {100 * times['tracing'] / times.drop('tracing').sum():.1f} %"
        print(
            "  {}: {:+.1f} % (95 % interval {:+.1f} to {:+.1f}){}".format(what, *costs[what], row)
        )
    return costs["tracing, now"][1] / 100


def measure(runners, flags, plain, folder, number) -> list[dict]:
    """The iterations of five live, interleaved processes."""
    cpu = sorted(os.sched_getaffinity(0))[number % os.cpu_count()]
    base = ["--server_mode", *flags, "--cpus", str(cpu)]
    tracing = ["--etdump_path", str(folder / "live.etdump")]
    commands = {name: [path, *base] for name, path in runners.items()}
    commands |= {f"{name} traced": [*command, *tracing] for name, command in commands.items()}
    commands["plain"] = ["env", f"LD_PRELOAD={plain}", *commands["now"]]
    rows = []
    with contextlib.ExitStack() as stack:
        sessions = {
            name: stack.enter_context(RunnerSession(command, timeout_s=120))
            for name, command in commands.items()
        }
        turns = {name: (session, {}) for name, session in sessions.items()}
        turns["now untraced"] = sessions["now traced"], {"traced": False}
        sizes = {
            n: round(BATCH_MS * 1e6 / min(s.run(10, **how).wall_ns)) or 1
            for n, (s, how) in turns.items()
        }
        sizes["before traced"] = min(BEFORE_BATCH, sizes["before traced"])
        for order in interleave(list(turns), ROUNDS):
            for name in order:
                session, how = turns[name]
                times = session.run(sizes[name], **how)
                pairs = zip(times.wall_ns, times.cpu_ns, strict=True)
                same = {"experiment": name, "process": number}
                rows += [{**same, "wall_ns": wall, "cpu_ns": cpu} for wall, cpu in pairs]
        sessions["now traced"].etdump(folder / "live.etdump")
    return rows


if __name__ == "__main__":
    sys.exit(main())

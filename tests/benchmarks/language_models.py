"""A Llama of four layers by phase: latency, tokens per second, and upstream's own runner.

    python tests/benchmarks/language_models.py [OUT] [--pte NAME=FILE ...] [--runs 6] [--agree]

Exports ``llm:smollm2_135m,layers=4`` (dim 576, vocabulary 49152, random weights) with and without
custom SDPA, in fp32 and 8da4w, or takes other programs with a context of 256 (``--pte``). Measures
each in the phases prefill of 128 tokens, and one token at positions 128 and 240, with 1 and 2
threads and AVX-512 off and on, interleaved. Prints a table for the README. A row whose interval is
wider than a fifth of its latency either way has no figure: two threads on two cores that others
use wait for each other. It takes 15 minutes after the exports; a finished run is used again.
``--agree`` leaves this out.

Then generates 64 tokens after a prompt of 128 by ``executorch.extension.llm.runner`` (the first
comes from the prompt, the others from 63 steps), and executes the same phases by the workbench's
runner (the steps at their mean position), alternating in blocks A B B A. CPU time of the one thread
counts. A library that is loaded before ExecuTorch's times each ``Method::execute`` of upstream's
runner, so that its tokenizer and its choice of tokens are told apart. Steps of two restarts of one
side differ by up to 15 %, so each restart of both sides is one sample: the median of its paired log
ratios.
Both sides use the matrix product that ExecuTorch's kernels bring: inside of Python, PyTorch's
``sgemm_`` (MKL) replaces it in ``llama::custom_sdpa``, which an application without PyTorch does
not have. A last column has the ratio of the prompt with PyTorch's, of one restart.

Restarts from 8 up to ``--restarts``, until the interval of the whole ratio is within 5 % of 1.
Exits 1 if it is not.
"""

import argparse
import itertools
import json
import os
import string
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from planned import make_plan, record_in

import workbench as wb
from workbench.analysis.statistics import half_width
from workbench.run.build import find_compiler, find_sdk
from workbench.run.plan import replace
from workbench.run.runner import find_runner
from workbench.run.start import start_runner

PHASES = ("prefill=128", "decode=1@128", "late=1@240")
PROMPT, NEW, LIMIT, WIDEST = 128, 64, 0.05, 0.2
STEPS = NEW - 1
RESTARTS, BLOCKS = 8, "ABBAABBAABBA"

#: Adds up the CPU time of every ``Method::execute`` of the process.
STOPWATCH = """
#include <cstdint>
#include <ctime>
#include <dlfcn.h>
static int64_t spent;
static int64_t now() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}
extern "C" int64_t execute_ns() { return spent; }
extern "C" uint32_t _ZN10executorch7runtime6Method7executeEv(void* method) {
  using Execute = uint32_t (*)(void*);
  static const auto execute = reinterpret_cast<Execute>(dlsym(RTLD_NEXT, __func__));
  const int64_t start = now();
  const uint32_t error = execute(method);
  spent += now() - start;
  return error;
}
"""

#: Generates tokens by upstream's runner; prints CPU ns of prompt and steps: in all, executing.
UPSTREAM = """
import ctypes, sys, time
from executorch.extension.llm.custom_ops import custom_ops
from executorch.extension.llm.runner import GenerationConfig, TextLLMRunner
from executorch.extension.pybindings import portable_lib
pte, tokenizer, prompt, new = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
portable_lib._unsafe_reset_threadpool(1)
runner = TextLLMRunner(pte, tokenizer)
execute_ns = ctypes.CDLL(None).execute_ns
execute_ns.restype = ctypes.c_int64
now = lambda: (time.thread_time_ns(), execute_ns())
config = GenerationConfig(echo=False, max_new_tokens=new, temperature=0.0)
for line in sys.stdin:
    found, at = [], [now()]
    runner.generate("a" * prompt, config, lambda text: at.append(now()), found.append)
    runner.reset()
    assert found[0].num_prompt_tokens == prompt, found
    assert len(at) == new + 1, f"{len(at) - 1} tokens"
    (all0, some0), (all1, some1), (all2, some2) = at[0], at[1], at[-1]
    print("ns", all1 - all0, all2 - all1, some1 - some0, some2 - some1, flush=True)
"""


def write_tokenizer(folder: Path, size: int) -> Path:
    """A tokenizer whose text is letters: one token for each in a prompt, and any token in words."""
    words = itertools.chain.from_iterable(
        itertools.product(string.ascii_letters, repeat=length) for length in itertools.count(1)
    )
    vocabulary = {"".join(w): n for n, w in enumerate(itertools.islice(words, size - 2))}
    extra = [
        {"id": size - 2 + n, "content": text, "special": True, "single_word": False,
         "lstrip": False, "rstrip": False, "normalized": False}
        for n, text in enumerate(("<s>", "</s>"))
    ]  # fmt: skip
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    tokenizer = {
        "version": "1.0", "added_tokens": extra, "normalizer": None, "post_processor": None,
        "pre_tokenizer": level | {"use_regex": True}, "decoder": level | {"use_regex": True},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }  # fmt: skip
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(tokenizer))
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokens))
    return path


def build_stopwatch(folder: Path) -> Path:
    """The compiled library."""
    source, library = folder / "stopwatch.cpp", folder / "stopwatch.so"
    source.write_text(STOPWATCH)
    command = [*find_compiler(), "-O2", "-shared", "-fPIC", source, "-o", library, "-ldl"]
    subprocess.run(command, check=True)
    return library


def restart(pte: Path, blocks: str, torch_products: bool = False) -> np.ndarray:
    """Log ratios upstream / ours of prompt, steps and both, executing; then upstream's other time.

    Both sides are started, and warmed up by one block; ``blocks`` is the order, A is upstream. A
    row for each block of both; the other time is in µs for each step.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        runner = find_runner()
        options = wb.MeasureOptions(
            phases=("prefill=128", "middle=1@159"), toggle="none", timeout_s=300
        )
        plan = replace(make_plan(pte, options, runner), warmup=1)
        recorder = record_in(folder, plan, runner)
        by_name = {e.name: e for e in plan.experiments}
        prefill, decode = (
            stack.enter_context(start_runner(recorder, by_name[name], 1, None))
            for name in ("prefill_baseline", "middle_baseline")
        )
        vocabulary = plan.phases[0].inputs[0].below
        tokenizer = write_tokenizer(folder, vocabulary)
        libraries = [build_stopwatch(folder), find_sdk() / "lib/libexecutorch.so"]
        if not torch_products:
            libraries.append(find_sdk() / "lib/libexecutorch_kernels_optimized.so")
        upstream = subprocess.Popen(
            [sys.executable, "-c", UPSTREAM, str(pte), str(tokenizer), str(PROMPT), str(NEW)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "LD_PRELOAD": " ".join(map(str, libraries))},
        )  # fmt: skip
        stack.enter_context(upstream)
        stack.callback(upstream.stdin.close)

        def theirs() -> tuple[float, ...]:
            upstream.stdin.write("go\n")
            upstream.stdin.flush()
            line = next(line for line in upstream.stdout if line.startswith("ns "))
            return tuple(map(float, line.split()[1:]))

        def ours() -> tuple[float, ...]:
            return prefill.run(1).cpu_ns[0], sum(decode.run(STEPS).cpu_ns)

        sides = {"A": theirs, "B": ours}
        times = {side: [] for side in sides}
        for number, side in enumerate("AB" + blocks):
            found = sides[side]()
            if number > 1:
                times[side].append(found)
    (_, steps, *executing), ours = np.array(times["A"]).T, np.array(times["B"]).T
    ratios = [*(np.array(executing) / ours), sum(executing) / sum(ours)]
    return np.column_stack([*np.log(ratios), (steps - executing[1]) / STEPS / 1000])


def compare_with_upstream(pte: Path, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Ratios upstream / ours of prompt, steps and both, the µs beside each step; 95 % intervals.

    Restarts both sides until the interval of both is within `LIMIT` of 1, ``most`` times at most.
    """
    samples: list[np.ndarray] = []
    while True:
        samples.append(np.median(restart(pte, BLOCKS), axis=0))
        mean, half = np.mean(samples, axis=0), half_width(np.array(samples))
        close = np.expm1(abs(mean[2]) + half[2]) < LIMIT
        if (close and len(samples) >= RESTARTS) or len(samples) >= most:
            rows = np.array([mean, mean - half, mean + half])
            rows[:, :3] = np.exp(rows[:, :3])
            return rows[0], rows[1:]


def main() -> int:
    """Measure, print the table, and compare; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="?", default="out_language_models", type=Path)
    parser.add_argument("--pte", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--runs", type=int, default=6)
    parser.add_argument("--processes", type=int, default=3, help="restarts for the table")
    parser.add_argument("--restarts", type=int, default=24, help="at most, to compare")
    parser.add_argument("--agree", action="store_true", help="only compare with upstream")
    given = parser.parse_args()
    programs = {name: Path(file) for name, _, file in (text.partition("=") for text in given.pte)}
    for sdpa in (1, 0) if not programs else ():
        for dtype in ("fp32", "8da4w"):
            name = f"{dtype}, {'custom SDPA' if sdpa else 'no custom SDPA'}"
            options = wb.ExportOptions(dtype=dtype)
            spec = f"llm:smollm2_135m,layers=4,sdpa={sdpa}"
            programs[name] = wb.export_model(
                spec, options=options, root=given.out, progress=lambda text, fraction: print(text)
            ).path
    measure = wb.MeasureOptions(
        toggle="avx512", phases=PHASES, threads=(1, 2), runs=given.runs, processes=given.processes,
        evidence=False, roof=False,
    )  # fmt: skip
    if not given.agree:
        print("| program | phase | threads | AVX-512 | latency | tokens/s | most time in |")
        print("|---|---|---|---|---|---|---|")
    for name, pte in programs.items() if not given.agree else ():
        run = wb.measure(pte, options=measure, root=given.out, again=False)
        for row in run.phases.to_dict("records"):
            half = (row["latency_high_ms"] - row["latency_low_ms"]) / 2
            state = row["experiment"].rpartition("_")[2]
            known = half <= WIDEST * row["latency_ms"]
            rate = f"{row['rate']:.0f}" if known else "-"
            latency = f"{row['latency_ms']:.2f} ± {half:.2f} ms" if known else f"± {half:.1f} ms"
            print(
                f"| {name} | {row['phase']} | {row['threads']} | {state} | {latency} | "
                f"{rate} | {row['category']} "
                f"{row['share']:.0%} |",
                flush=True,
            )
    print(
        "\n| upstream / ours | prompt | 63 steps | both | beside a step | prompt, PyTorch's sgemm |"
    )
    print("|---|---|---|---|---|---|")
    failed = False
    for name, pte in programs.items():
        found, intervals = compare_with_upstream(pte, given.restarts)
        failed |= bool(np.abs(intervals[:, 2] - 1).max() > LIMIT)
        cells = [
            f"{value:.3f} [{low:.3f}, {high:.3f}]"
            for value, low, high in zip(found[:3], *intervals[:, :3], strict=True)
        ]
        cells.append(f"{found[3]:.0f} µs [{intervals[0, 3]:.0f}, {intervals[1, 3]:.0f}]")
        replaced = np.exp(np.median(restart(pte, BLOCKS, torch_products=True), axis=0)[0])
        print(f"| {name} | {' | '.join(cells)} | {replaced:.3f} |", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

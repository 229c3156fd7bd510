"""A Llama of four layers by phase: latency, tokens per second, and upstream's own runner.

    python tests/benchmarks/language_models.py [OUT] [--pte NAME=FILE ...] [--runs 6]

Exports ``llm:smollm2_135m,layers=4`` (dim 576, vocabulary 49152, random weights) with and without
custom SDPA, in fp32 and 8da4w, or takes programs that upstream's exporter made (``--pte``).
Measures each in the phases prefill of 128 tokens, and one token at positions 128 and 240, with 1
and 2 threads and AVX-512 off and on, interleaved. Prints a table for the README. It takes 15
minutes after the exports; a finished run is used again.

Then generates 64 tokens after a prompt of 128 by ``executorch.extension.llm.runner`` in one thread,
and compares its CPU time, which includes choosing each token, with prefill + decode at position
160. Exits 1 if these differ by more than 5 %, which one measurement on a busy machine can; runs of
both are interleaved.
"""

import argparse
import json
import os
import string
import subprocess
import sys
import tempfile
from pathlib import Path

import workbench as wb
from workbench.run.runner import find_runner, open_runner

PHASES = ("prefill=128", "decode=1@128", "late=1@240")
PROMPT, NEW, LIMIT = 128, 64, 0.05

#: Generates tokens by upstream's runner; prints the CPU time of each generation in ms.
UPSTREAM = """
import sys, time
from executorch.extension.llm.custom_ops import custom_ops
from executorch.extension.llm.runner import GenerationConfig, TextLLMRunner
from executorch.extension.pybindings import portable_lib
pte, tokenizer, prompt, new = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
portable_lib._unsafe_reset_threadpool(1)
runner = TextLLMRunner(pte, tokenizer)
config = GenerationConfig(echo=False, max_new_tokens=new, temperature=0.0)
for line in sys.stdin:
    found = []
    started = time.process_time()
    runner.generate("a" * prompt, config, lambda text: None, found.append)
    spent = time.process_time() - started
    runner.reset()
    print("ms", 1e3 * spent, found[0].num_prompt_tokens, found[0].num_generated_tokens, flush=True)
"""


def write_tokenizer(folder: Path) -> Path:
    """A tokenizer with one token per letter."""
    vocabulary = {letter: number for number, letter in enumerate(string.ascii_letters)}
    extra = [
        {"id": len(vocabulary) + n, "content": text, "special": True, "single_word": False,
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


def compare_with_upstream(pte: Path, rounds: int = 10) -> tuple[float, float]:
    """CPU time in ms of a prompt and 64 tokens, by upstream's runner and ours: the median pair."""
    from workbench.run.measure import runner_flags
    from workbench.run.plan import make_plan, replace
    from workbench.run.tensor_files import locate_inputs

    with tempfile.TemporaryDirectory() as folder:
        tokenizer, pairs = write_tokenizer(Path(folder)), []
        runner = find_runner()
        options = wb.MeasureOptions(phases=("prefill=128", "middle=1@160"), toggle="none")
        plan = replace(make_plan(pte, options, runner), warmup=1)
        inputs = locate_inputs(plan, Path(folder))
        names = ("prefill_baseline", "middle_baseline")
        by_name = {e.name: e for e in plan.experiments}
        flags = [runner_flags(plan, by_name[name], inputs, 1, None) for name in names]
        prefill, decode = (open_runner(runner, each, timeout_s=300) for each in flags)
        arguments = [str(pte), str(tokenizer), str(PROMPT), str(NEW)]
        upstream = subprocess.Popen(
            [sys.executable, "-c", UPSTREAM, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        with prefill, decode, upstream:
            for number in range(rounds + 1):
                upstream.stdin.write("go\n")
                upstream.stdin.flush()
                line = next(line for line in upstream.stdout if line.startswith("ms "))
                spent, prompt, new = map(float, line.split()[1:])
                steps = int(new)  # the first of the new tokens comes from the prompt
                mine = prefill.run(1).cpu_ns[0] + sum(decode.run(steps).cpu_ns)
                assert prompt == PROMPT, f"the prompt has {prompt} tokens"
                if number:
                    pairs.append((spent, mine / 1e6))
            upstream.stdin.close()
    pairs.sort(key=lambda pair: pair[1] / pair[0])  # the number of new tokens may differ
    return pairs[len(pairs) // 2]


def main() -> int:
    """Measure, print the table, and compare; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="?", default="out_language_models", type=Path)
    parser.add_argument("--pte", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--runs", type=int, default=6)
    given = parser.parse_args()
    programs = {name: Path(file) for name, _, file in (text.partition("=") for text in given.pte)}
    for sdpa in (1, 0) if not programs else ():
        for dtype in ("fp32", "8da4w"):
            name = f"{dtype}, {'custom SDPA' if sdpa else 'no custom SDPA'}"
            options = wb.ExportOptions(dtype=dtype)
            spec = f"llm:smollm2_135m,layers=4,sdpa={sdpa}"
            programs[name] = wb.export_model(spec, options, root=given.out, tell=print)
    measure = wb.MeasureOptions(
        toggle="avx512", phases=PHASES, threads=(1, 2), runs=given.runs, processes=3,
        evidence=False, roof=False,
    )  # fmt: skip
    print("| program | phase | threads | AVX-512 | latency | tokens/s | most time in |")
    print("|---|---|---|---|---|---|---|")
    for name, pte in programs.items():
        run = wb.measure(pte, measure, root=given.out, again=False)
        for row in run.phases.to_dict("records"):
            half = (row["latency_high_ms"] - row["latency_low_ms"]) / 2
            state = row["experiment"].rpartition("_")[2]
            print(
                f"| {name} | {row['phase']} | {row['threads']} | {state} | "
                f"{row['latency_ms']:.2f} ± {half:.2f} ms | {row['rate']:.0f} | "
                f"{row['category']} {row['share']:.0%} |",
                flush=True,
            )
    failed = False
    for name, pte in programs.items():
        theirs, ours = compare_with_upstream(pte)
        apart = ours / theirs - 1
        failed |= abs(apart) > LIMIT
        print(f"{name}: upstream {theirs:.1f} ms, ours {ours:.1f} ms CPU: {apart:+.1%}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

"""Mutants of every file that comes from elsewhere; see `mutants`.

python3 dev.py fuzz [KIND...] [--count 100000 | --seconds 60] [--seed 0]
"""

import argparse
import functools
import io
import itertools
import json
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from types import SimpleNamespace

import numpy as np
import pandas as pd
import torch
import yaml
from etdump_builder import Block, Other, Profile, build_etdump, check_events
from mutants import (
    PROGRAM,
    SECONDS_RUN,
    TESTS,
    Kind,
    fuzz,
    make_record,
    mutate_bytes,
    mutate_safetensors,
    mutate_zip,
)
from recorded import report_text
from safetensors.torch import save as save_tensors

import workbench as wb
from workbench.analysis.attribution import attribute_layers
from workbench.analysis.operators import load_scheme
from workbench.analysis.roofline import build_roof
from workbench.export.etrecord import add_etrecord, read_etrecord
from workbench.export.sidecar import outline_pte
from workbench.models import loader
from workbench.models.inputs import choose_inputs
from workbench.models.loader import LoadedModel
from workbench.options import ExportOptions
from workbench.records.codec import to_json, to_plain
from workbench.records.layer_sidecar import Layers
from workbench.records.recipe import Recipe
from workbench.records.runs import Ceilings, Probe
from workbench.report.artifacts import check_run, write_artifacts
from workbench.store import load_recipe, load_record, load_run, read_layers
from workbench.trace.samples import read_functions, read_samples


def copy_run(folder: Path, *, rest: bool = True) -> Path:
    """A short recorded run in a folder."""
    ignore = None if rest else shutil.ignore_patterns("avx*")
    return Path(
        shutil.copytree(wb.sample_run("toy_cnn"), folder, ignore=ignore, dirs_exist_ok=True)
    )


def take(name: str) -> Callable[[Path], list[bytes]]:
    """The seeds that are a file of the recorded run."""
    return lambda folder: [(copy_run(folder) / name).read_bytes()]


@functools.cache
def program_layers() -> Layers:
    """The layers of the small program, without those of the model."""
    return outline_pte(PROGRAM.read_bytes())


def make_traces(folder: Path) -> list[bytes]:
    """Small real traces, and built ones of what these lack."""
    run = [
        Profile(None, 0, 0, delegate_int=3, metadata=b"ab", start=3, end=5),
        Profile("DELEGATE_CALL", 0, 0, start=2, end=6),
        Profile("native_call_add.out", 0, 1, start=7, end=8),
        Profile("OPERATOR_CALL", 0, 1, start=6, end=9),
        Profile("own", -1, 0, start=9, end=10),
        Profile("Method::execute", -1, 0, start=1, end=12),
    ]
    built = [
        [Block("Execute", run, bundled_input=1)] * 6,
        [Block("Default", [Other(1), Other(2)]), Block("Execute", [*run[:-1], Other(2)])],
        [Block("Execute", run[:3]), Block("Execute", [None, *run, run[0]]), Block(None, [])],
    ]
    real = [path.read_bytes() for path in sorted((TESTS / "data" / "etdump").glob("*.etdump"))]
    return [*(data for data in real if len(data) <= 5000), *map(build_etdump, built)]


def mutate_trace(random: Random, seeds: list[bytes]) -> bytes:
    """A seed with its bytes changed, mostly with its own size as the size that it states."""
    data = mutate_bytes(random, seeds)
    return (
        (len(data) - 4).to_bytes(4, "little", signed=True) + data[4:]
        if random.random() < 0.5
        else data
    )


def read_trace(path: Path) -> None:
    """Read a trace, whose ledger closes if it is read at all."""
    events = wb.read_etdump(path)
    assert 4 * len(events) <= path.stat().st_size, f"{len(events)} events"
    check_events(events)


def read_tensors(path: Path) -> None:
    """Read an array file for an input of two rows."""
    model = LoadedModel("net", torch.nn.Identity(), (torch.zeros(2, 3),))
    choose_inputs(model, ExportOptions(inputs=(str(path),)))


def save_pt(folder: Path) -> list[bytes]:
    """Tensors, alone and in a mapping, in both formats of ``torch.save``; read in this process."""
    loader.subprocess = SimpleNamespace(run=lambda *_, **__: SimpleNamespace(returncode=0))
    seeds = []
    for value, zipped in (({"x": torch.ones(2, 3)}, True), (torch.arange(4), False)):
        torch.save(value, made := io.BytesIO(), _use_new_zipfile_serialization=zipped)
        seeds.append(made.getvalue())
    return seeds


def mutate_pt(random: Random, seeds: list[bytes]) -> bytes:
    """Either format."""
    zipped, legacy = seeds
    return mutate_zip(random, [zipped]) if random.random() < 0.6 else mutate_bytes(random, [legacy])


def save_safetensors(folder: Path) -> list[bytes]:
    """Two tensors of the same file."""
    return [save_tensors({"x": torch.ones(2, 3)}), save_tensors({"a": torch.ones(4, 2, 3)})]


def save_npy(folder: Path) -> list[bytes]:
    """Two arrays."""
    seeds = []
    for array in (np.ones((2, 3), np.float32), np.arange(5)):
        np.save(made := io.BytesIO(), array)
        seeds.append(made.getvalue())
    return seeds


def make_recipe(folder: Path) -> list[bytes]:
    """A recipe with options that are lists and pairs."""
    options = ExportOptions("int8", sizes=(("batch", 2),), module_dtypes=(("head", "fp32"),))
    recipe = Recipe("toy_cnn", options, 2, ("mean kept",), "ab" * 32, {"torch": "1"})
    return [yaml.safe_dump(to_plain(recipe)).encode()]


def make_samples(folder: Path) -> list[bytes]:
    """PC samples of two threads."""
    arrays = {"time_ns": [5, 9, 7], "cpu_ns": [1, 4, 2], "thread": [1, 1, 2], "module": [0, -1, 1],
              "address": [64, 0, 4096]}  # fmt: skip
    modules = [{"path": "/lib/a.so", "build_id": "ab"}, {"path": "", "build_id": ""}]
    head = {"format": "workbench samples", "version": 1, "machine": "x86_64", "hz": 1000, "lost": 0}
    return [json.dumps({**head, "modules": modules, **arrays}).encode()]


def make_ceilings(folder: Path) -> list[bytes]:
    """Peaks of a machine."""
    kinds = {"gemm": (10**9, 0), "stream": (0, 4096), "program": (0, 64), "call": (0, 64)}
    probes = tuple(Probe(kind, "fp32", *work, 8, "", 1.5, 0.1) for kind, work in kinds.items())
    return [to_json(Ceilings("cpu", "wheel", "native", 1, "2026", probes)).encode()]


def make_kit(folder: Path) -> list[bytes]:
    """The manifest of a run of the profiling kit, with its traces."""
    results = []
    for name in ("aarch64_nosme", "aarch64_sme2"):
        shutil.copy(TESTS / "data" / "etdump" / f"{name}.etdump", folder)
        files = {"etdump": f"x/{name}.etdump", "threads": 1, "metrics": {"log": f"{name}.log"}}
        results.append({"experiment": name, **files})
    content = {"model": "x/net.pte", "executorch": {"sha": "ab"}, "results": results}
    return [json.dumps(content).encode()]


def make_scheme(folder: Path) -> list[bytes]:
    """The first rules of the built-in schemes."""
    rules = [{"name": "a", "operators": ["*conv*", "x"], "category": "Convolution"}]
    rules.append({"name": "b", "operators": "Add (ND)", "category": "Elementwise"})
    return [json.dumps({"rules": rules}).encode()]


def use_layers(path: Path) -> None:
    """Read a sidecar, and place the operators of its run."""
    attribute_layers(ledger_of_sample(), read_layers(path))


@functools.cache
def ledger_of_sample() -> pd.DataFrame:
    """The ledger of a trace of the recorded run."""
    run = wb.open_run(wb.sample_run("toy_cnn"))
    return wb.build_ledger(run.read_trace(run.record.sessions[-1]))


def use_run(path: Path) -> None:
    """Open a run, and make all that is made of one."""
    run = wb.open_run(path.parent)
    write_artifacts(run)
    report_text(run)
    wb.explore(run)
    check_run(run)


def read_ceilings(path: Path) -> None:
    """Read the peaks of a machine, and draw its roof."""
    build_roof(load_record(Ceilings, path))


def read_record(path: Path) -> None:
    """Add the layers in an ETRecord to those of the program, and read it alone."""
    add_etrecord(program_layers(), path)
    read_etrecord(path)


def read_program(path: Path) -> None:
    """Describe a program."""
    outline_pte(path.read_bytes(), path)


KINDS = {
    "etdump": Kind("x.etdump", make_traces, read_trace, mutate_trace),
    "manifest": Kind("manifest.json", take("manifest.json"), lambda p: load_run(p.parent)),
    "layers": Kind("layers.json", take("layers.json"), use_layers),
    "run": Kind("manifest.json", take("manifest.json"), use_run, seconds=SECONDS_RUN),
    "run_layers": Kind("layers.json", take("layers.json"), use_run, seconds=SECONDS_RUN),
    "kit": Kind("manifest.json", make_kit, lambda path: wb.open_run(path.parent)),
    "ceilings": Kind("c.json", make_ceilings, read_ceilings),
    "recipe": Kind("recipe.yaml", make_recipe, load_recipe),
    "categories": Kind("c.yaml", make_scheme, load_scheme),
    "samples": Kind("x.samples", make_samples, read_samples),
    "functions": Kind("functions.json", take("functions.json"), read_functions),
    "etrecord": Kind("x.etrecord", make_record, read_record, mutate_zip),
    "pte": Kind("x.pte", lambda _: [PROGRAM.read_bytes()], read_program, mutate_bytes),
    "npy": Kind("x.npy", save_npy, read_tensors, mutate_bytes),
    "pt": Kind("x.pt", save_pt, read_tensors, mutate_pt),
    "safetensors": Kind("x.safetensors", save_safetensors, read_tensors, mutate_safetensors),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first mutant")
    parser.add_argument("--count", type=int, help="how many mutants of each kind")
    parser.add_argument("--seconds", type=float, default=10, help="how long each, without --count")
    options = parser.parse_args()
    if unknown := {*options.kinds} - {*KINDS}:
        parser.error(f"unknown kind {', '.join(unknown)}; known: {', '.join(KINDS)}")
    # Stays if a mutant fails: it is in there. In memory, if there is such a folder.
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="fuzz-", dir=memory if memory.is_dir() else None))
    address_space = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (address_space + 2**33, resource.RLIM_INFINITY))
    print("| kind | mutants | read | refused | failed | seconds |\n|---|---:|---:|---:|---:|---:|")
    failed = 0
    for name in options.kinds or KINDS:
        begin = time.monotonic()
        last = options.first + options.count if options.count else sys.maxsize
        numbers: Iterable[int] = range(options.first, last)
        if not options.count:
            end = begin + options.seconds
            numbers = itertools.takewhile(lambda _, end=end: time.monotonic() < end, numbers)
        place = folder / name / "mutant"
        place.mkdir(parents=True)
        ends, failures = fuzz(KINDS[name], options.seed, numbers, place)
        counts = " | ".join(str(ends[end]) for end in ("read", "refused", "failed"))
        spent = time.monotonic() - begin
        print(f"| {name} | {ends.total()} | {counts} | {spent:.0f} |", flush=True)
        for text in failures.values():
            print(text, file=sys.stderr, flush=True)
        failed += ends["failed"]
    if not failed:
        shutil.rmtree(folder)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())

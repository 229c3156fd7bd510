"""Mutated files: each is read, or refused in one line, soon and in little memory.

    python3 dev.py fuzz [KIND...] [--count 100000 | --seconds 60] [--seed 0]

A kind is a file that comes from elsewhere, with valid and hostile examples and its reader. A mutant
fails if anything but the package's own error comes out, or an error of several or very long lines;
if it takes more than a second of CPU time, more memory than 300 MB and 10 times its size, or hangs.
Mutant n of a seed is always the same.
"""

import argparse
import copy
import faulthandler
import functools
import io
import itertools
import json
import math
import pickle
import resource
import shutil
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace

import numpy as np
import pandas as pd
import torch
import yaml
from etdump_builder import Block, Other, Profile, build_etdump, check_events
from PIL import Image
from recorded import report_text
from safetensors.torch import save as save_tensors

import workbench as wb
from workbench.analysis.attribution import attribute_layers
from workbench.analysis.operators import load_scheme
from workbench.analysis.roofline import build_roof
from workbench.batches.matrix import Cell, read_matrix
from workbench.batches.page import EMPTY, Portfolio, write_csv
from workbench.errors import WorkbenchError
from workbench.export.etrecord import add_etrecord, read_etrecord
from workbench.export.layers import describe_pte
from workbench.models import loader
from workbench.models.inputs import choose_inputs, read_images
from workbench.models.loader import LoadedModel
from workbench.options import ExportOptions
from workbench.records.codec import to_json
from workbench.records.documents import METRICS
from workbench.records.layers import Layers
from workbench.records.recipe import Recipe
from workbench.records.runs import Ceilings, Probe
from workbench.report.artifacts import write_artifacts
from workbench.report.gate import validate_run
from workbench.store import load_recipe, load_record, load_run, read_layers, save_recipe
from workbench.trace.samples import read_functions, read_samples

TESTS = Path(__file__).parent
PROGRAM = TESTS / "data" / "etdump" / "two_methods.pte"
MATRIX = TESTS.parent / "data" / "matrix.yaml"
SECONDS_EACH = 1.0
#: A run's tables, page and documents are all made.
SECONDS_RUN = 30.0
LONGEST_ERROR = 2600
HANGS_S = 900
HOSTILE = (
    *(None, True, 0, -1, 1, 2, 3, 2**31, 2**63 - 1, 2**63, -(2**63), 10**30, 10**400, 1.5, 1e308),
    *(math.nan, math.inf, -math.inf, "", " ", "x", "1", "-1", "nan", "native", "host", "ladder"),
    *("../../../escaped", "/etc/passwd", "/dev/zero", "x" * 5000, "\ud800", "\0", "a\nb", "%s{0}"),
    *("\x1b]0;t\x07", "<script>alert(1)</script>", "=1+1", "ssh:evil.invalid", "evil.py:Net"),
    *([], {}, [[]], {"": None}, [None], ["x"], [0] * 3000, "DEEP"),
)
WORDS = [value for value in HOSTILE if isinstance(value, str)]
DEEP = b"[" * 5000 + b"]" * 5000


def mutate_bytes(random: Random, seeds: list[bytes]) -> bytes:
    """A seed with bits, bytes, words or pieces changed, mostly near its beginning."""
    data = bytearray(random.choice(seeds))
    for _ in range(1 + int(random.expovariate(0.7))):
        if len(data) < 16:
            break
        skewed = random.random() ** random.choice([1, 4])
        at, width = int((len(data) - 8) * skewed), random.choice([1, 2, 4, 8])
        how = random.randrange(6)
        if how == 0:
            data[at] ^= 1 << random.randrange(8)
        elif how == 1:
            value = random.choice([0, 1, 2**31 - 1, 2**32 - 1, len(data), random.getrandbits(64)])
            data[at : at + width] = (value % 256**width).to_bytes(width, "little")
        elif how == 2:
            value = int.from_bytes(data[at : at + width], "little") + random.randint(-16, 16)
            data[at : at + width] = (value % 256**width).to_bytes(width, "little")
        elif how == 3:
            other, length = random.choice(seeds), random.randrange(1, 64)
            there = random.randrange(len(other))
            data[at : at + length] = other[there : there + length]
        elif how == 4:
            data[at:at] = data[at : at + random.randrange(1, 256)]
        else:
            del data[at : at + random.choice([1, 4, 64, len(data)])]
    return bytes(data)


def mutate_json(random: Random, seeds: list[bytes], *, least: int = 1) -> bytes:
    """A seed, JSON or YAML, with values or keys replaced, moved, copied or deleted."""
    if random.random() < 0.1:
        return mutate_bytes(random, seeds)
    content = [parse(random.choice(seeds))]
    for _ in range(least + int(random.expovariate(0.9))):
        container, key = choose_place(random, content)
        how = random.randrange(8)
        if how <= 4:
            container[key] = copy.deepcopy(random.choice(HOSTILE))
        elif how == 5:
            other, place = choose_place(random, content)
            container[key] = copy.deepcopy(other[place])
        elif how == 6 and container is not content:
            del container[key]
        elif isinstance(container, list):
            container.append(copy.deepcopy(container[key]) if container is not content else None)
        else:
            container[random.choice(WORDS)] = copy.deepcopy(container[key])
    text = json.dumps(content[0], default=str).encode()
    return text.replace(b'"DEEP"', DEEP)


def parse(data: bytes) -> object:
    """The content of a seed, to be changed."""
    return pickle.loads(_parse(data))


@functools.lru_cache(maxsize=8)
def _parse(data: bytes) -> bytes:
    return pickle.dumps(json.loads(data) if data[:1] in b"{[" else yaml.safe_load(data))


def choose_place(random: Random, content: list) -> tuple:
    """A container somewhere in nested values, and a key or position in it."""
    container, key = content, 0
    while isinstance(inner := container[key], dict | list) and inner and random.random() < 0.85:
        container = inner
        known = list(inner) if isinstance(inner, dict) else range(len(inner))
        key = random.choice(known)
    return container, key


def mutate_zip(random: Random, seeds: list[bytes]) -> bytes:
    """A seed with one of its entries changed, or compressed, or its own bytes."""
    if random.random() < 0.3:
        return mutate_bytes(random, seeds)
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(random.choice(seeds))) as source:
        names = source.namelist()
        changed = random.choice(names)
        method = random.choices([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED], [9, 1])[0]
        with zipfile.ZipFile(made, "w", method) as target:
            for name in names:
                data = source.read(name)
                if name == changed and data:
                    change = mutate_json if data[:1] == b"{" else mutate_bytes
                    data = change(random, [data])
                if name != changed or random.random() < 0.95:
                    target.writestr(name, data)
    return made.getvalue()


def mutate_safetensors(random: Random, seeds: list[bytes]) -> bytes:
    """A seed with its header changed, or its bytes."""
    data = random.choice(seeds)
    if random.random() < 0.3:
        return mutate_bytes(random, seeds)
    length = int.from_bytes(data[:8], "little")
    head = mutate_json(random, [data[8 : 8 + length]])
    return len(head).to_bytes(8, "little") + head + data[8 + length :]


def mutate_png(random: Random, seeds: list[bytes]) -> bytes:
    """A seed with its bytes changed, and its checksums correct."""
    data, at = bytearray(mutate_bytes(random, seeds)), 8
    while at + 12 <= len(data):
        end = at + 8 + int.from_bytes(data[at : at + 4], "big")
        if end + 4 > len(data):
            break
        data[end : end + 4] = zlib.crc32(data[at + 4 : end]).to_bytes(4, "big")
        at = end + 4
    return bytes(data)


@dataclass(frozen=True)
class Kind:
    """A file that comes from elsewhere.

    ``seeds`` makes valid examples, given a folder that it may add further files to; ``read`` reads
    a mutant in that folder, whose path is ``file``; ``mutate`` makes one of some seeds.
    """

    file: str
    seeds: Callable[[Path], list[bytes]]
    read: Callable[[Path], object]
    mutate: Callable[[Random, list[bytes]], bytes] = mutate_json
    seconds: float = SECONDS_EACH


def copy_run(folder: Path, *, rest: bool = True) -> Path:
    """A short recorded run in a folder."""
    ignore = None if rest else shutil.ignore_patterns("avx*")
    return Path(
        shutil.copytree(wb.sample_run("toy_cnn"), folder, ignore=ignore, dirs_exist_ok=True)
    )


def take(name: str) -> Callable[[Path], list[bytes]]:
    """The seeds that are a file of the recorded run."""
    return lambda folder: [(copy_run(folder) / name).read_bytes()]


def make_metrics(folder: Path) -> list[bytes]:
    """The metrics of a run."""
    run = wb.open_run(copy_run(folder / "source"))
    write_artifacts(run)
    return [(run.output / "metrics.json").read_bytes()]


@functools.cache
def program_layers() -> Layers:
    """The layers of the small program, without those of the model."""
    return describe_pte(PROGRAM.read_bytes())


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


def read_picture(path: Path) -> None:
    """Read an image for an input in colour."""
    read_images(str(path), (1, 3, 8, 8), (), ())


def make_record(folder: Path) -> list[bytes]:
    """An ETRecord of the small program."""
    kinds = {"decode": ["linear", "elu", "softmax"], "encode": ["convolution", "mean"]}
    nodes = {
        name: [
            {"name": f"n{n}", "target": f"torch.ops.aten.{kind}.default", "inputs": [
                {"arg": {"as_tensor": {"name": f"n{n - 1}"}}}], "metadata": {
                "debug_handle": str(n), "stack_trace": 'File "a.py", line 3, in forward\n  x()',
                "nn_module_stack": "L__self__,,a.Net;L__self___b,b,torch.nn.ReLU"}}
            for n, kind in enumerate(each, 1)
        ]
        for name, each in kinds.items()
    }  # fmt: skip
    methods = {method.name: method.instructions for method in program_layers().methods}
    handles = {
        name: {n: [n + 1] if call.kind == "delegate" else n + 1 for n, call in enumerate(calls)}
        for name, calls in methods.items()
    }
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name in methods:
            graph = json.dumps({"graph_module": {"graph": {"nodes": nodes[name]}}})
            archive.writestr(f"edge_dialect_exported_program/{name}", graph)
        archive.writestr("debug_handle_map", json.dumps(handles))
        archive.writestr("delegate_map", json.dumps({name: {} for name in methods}))
    return [made.getvalue()]


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


def save_image(form: str, folder: Path) -> list[bytes]:
    """A small image, in colour and in grey."""
    pixels = np.arange(12 * 16 * 3, dtype=np.uint8).reshape(12, 16, 3)
    seeds = []
    for mode in ("RGB", "L"):
        Image.fromarray(pixels).convert(mode).save(made := io.BytesIO(), form)
        seeds.append(made.getvalue())
    return seeds


def save_log(folder: Path) -> list[bytes]:
    """The logs of several versions of XNNPACK."""
    return [path.read_bytes()[:20_000] for path in (TESTS / "data" / "xnn_log").glob("*.log")]


def make_portfolio(folder: Path) -> list[bytes]:
    """The record of a batch with a finished cell."""
    row = {**EMPTY, "experiment": "on", "threads": 1, "latency_ms": 1.5, "outcome": "faster"}
    names = ("toy_cnn", "toy_cnn", "fp32", "host", "auto", "toy_cnn_xnnpack_fp32")
    cell = Cell(*names, state="done", run="out/runs/x", rows=(row,))
    return [to_json(Portfolio({"models": ["toy_cnn"]}, (cell,), "2026")).encode()]


def make_recipe(folder: Path) -> list[bytes]:
    """A recipe with options that are lists and pairs."""
    options = ExportOptions("int8", sizes=(("batch", 2),), module_dtypes=(("head", "fp32"),))
    recipe = Recipe("toy_cnn", options, 2, ("mean kept",), "ab" * 32, {"torch": "1"})
    return [save_recipe(recipe, folder / "seed.yaml").read_bytes()]


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
    validate_run(run)


def read_ceilings(path: Path) -> None:
    """Read the peaks of a machine, and draw its roof."""
    build_roof(load_record(Ceilings, path))


def read_record(path: Path) -> None:
    """Add the layers in an ETRecord to those of the program, and read it alone."""
    add_etrecord(program_layers(), path)
    read_etrecord(path)


def read_program(path: Path) -> None:
    """Describe a program."""
    describe_pte(path.read_bytes(), path)


def load_portfolio(path: Path) -> None:
    """Read the record of a batch, and list its cells."""
    write_csv(load_record(Portfolio, path).cells)


IMAGES = {"png": "PNG", "jpg": "JPEG", "bmp": "BMP", "ppm": "PPM", "webp": "WEBP"}
KINDS = {
    "etdump": Kind("x.etdump", make_traces, read_trace, mutate_trace),
    "manifest": Kind("manifest.json", take("manifest.json"), lambda p: load_run(p.parent)),
    "layers": Kind("layers.json", take("layers.json"), use_layers),
    "run": Kind("manifest.json", take("manifest.json"), use_run, seconds=SECONDS_RUN),
    "run_layers": Kind("layers.json", take("layers.json"), use_run, seconds=SECONDS_RUN),
    "kit": Kind("manifest.json", make_kit, lambda path: wb.open_run(path.parent)),
    "metrics": Kind("m.json", make_metrics, lambda p: load_record(METRICS, p, least=2)),
    "portfolio": Kind("p.json", make_portfolio, load_portfolio),
    "ceilings": Kind("c.json", make_ceilings, read_ceilings),
    "recipe": Kind("recipe.yaml", make_recipe, load_recipe),
    "matrix": Kind("m.yaml", lambda _: [MATRIX.read_bytes()], read_matrix),
    "categories": Kind("c.yaml", make_scheme, load_scheme),
    "samples": Kind("x.samples", make_samples, read_samples),
    "functions": Kind("functions.json", take("functions.json"), read_functions),
    "log": Kind("x.log", save_log, wb.read_xnn_log, mutate_bytes),
    "etrecord": Kind("x.etrecord", make_record, read_record, mutate_zip),
    "pte": Kind("x.pte", lambda _: [PROGRAM.read_bytes()], read_program, mutate_bytes),
    "npy": Kind("x.npy", save_npy, read_tensors, mutate_bytes),
    "pt": Kind("x.pt", save_pt, read_tensors, mutate_pt),
    "safetensors": Kind("x.safetensors", save_safetensors, read_tensors, mutate_safetensors),
    **{
        name: Kind(f"x.{name}", partial(save_image, form), read_picture, mutate_bytes)
        for name, form in IMAGES.items()
    },
}
KINDS["png"] = replace(KINDS["png"], mutate=mutate_png)


def fuzz(kind: Kind, seed: int, numbers: Iterable[int], folder: Path) -> tuple[Counter, dict]:
    """Read the mutants of these numbers: how often each end was met, and failures by place."""
    warnings.simplefilter("ignore")
    folder.mkdir(parents=True, exist_ok=True)
    seeds, path = kind.seeds(folder), folder / kind.file
    ends: Counter = Counter()
    for data in seeds:
        path.write_bytes(data)
        ends[read(kind, path)] += 1
    assert ends["read"], "no example can be read"
    before, limit = peak_mb(), 300 + max(map(len, seeds)) / 1e5
    ends.clear()
    failures: dict[str, str] = {}
    for n in numbers:
        path.write_bytes(kind.mutate(Random(f"{seed} {n}"), seeds))
        if n % 32 == 0:
            faulthandler.dump_traceback_later(HANGS_S, exit=True)
        begin = time.process_time()
        try:
            end = read(kind, path)
            spent = time.process_time() - begin
            assert spent < kind.seconds, f"took {spent:.1f} s"
            assert peak_mb() - before < limit, f"took {peak_mb() - before:.0f} MB"
        except Exception as error:
            end = "failed"
            frames = traceback.extract_tb(error.__traceback__)
            frame = [f for f in frames if "workbench/" in f.filename or f is frames[0]][-1]
            name = f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}"
            if name not in failures:
                kept = shutil.copy(path, folder.parent / f"{path.stem}_{seed}_{n}{path.suffix}")
                failures[name] = f"mutant {n} of seed {seed}, {kept}: {name}: {error!s:.300}"
            before = max(before, peak_mb() - limit)
        ends[end] += 1
    faulthandler.cancel_dump_traceback_later()
    return ends, failures


def peak_mb() -> float:
    """The most memory that this process has had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak / 1e3


def read(kind: Kind, path: Path) -> str:
    """Read one mutant: ``read`` or ``refused``; fails if the error is not one plain line."""
    try:
        kind.read(path)
        return "read"
    except WorkbenchError as error:
        text = str(error)
        assert text.isprintable() and len(text) < LONGEST_ERROR, f"the error is {text!r:.300}"
        return "refused"


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

"""Mutants of files: each is read, or refused in one line, soon and in little memory.

A kind is a file that comes from elsewhere, with valid and hostile examples and its reader. A mutant
fails if anything but the package's own error comes out, or an error of several or very long lines;
if it takes more than a second of CPU time, more memory than 300 MB and 10 times its size, or hangs.
Mutant n of a seed is always the same.
"""

import copy
import faulthandler
import functools
import io
import json
import math
import pickle
import resource
import shutil
import sys
import time
import traceback
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import yaml

import workbench as wb

TESTS = Path(__file__).parent
PROGRAM = TESTS / "data" / "etdump" / "two_methods.pte"
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
    methods = {
        method.name: method.instructions for method in wb.open_program(PROGRAM).layers.methods
    }
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
    except wb.WorkbenchError as error:
        text = str(error)
        assert text.isprintable() and len(text) < LONGEST_ERROR, f"the error is {text!r:.300}"
        return "refused"

"""Real run folders, a manifest and ETDumps, whose latencies and operators are chosen."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from etdump_builder import Block, Profile, build_etdump
from manifests import write_manifest
from synthetic import NETWORK, TRUE_SPEEDUPS, network_of, synthetic_latencies

import workbench as wb

#: Of the row that is the rest of ``Method::execute``, and of the one around delegated operators.
_FRAMEWORK, _DELEGATE = "framework", "delegate_overhead"


def open_made_run(folder, latencies_ms, **options):
    """Write a run with `write_run`, and open it."""
    return wb.open_run(write_run(folder, latencies_ms, **options))


def compare_known(folder, us, clock_ns, *, count=240, seed=0):
    """Operators, layers of four and categories of about ``us``, with their ``true`` speed-ups."""
    times = us * np.random.default_rng(seed).uniform(0.8, 1.2, count)
    known = {category: speedup for category, (speedup, _) in TRUE_SPEEDUPS.items()}
    ab = open_made_run(
        folder, {"off": None, "on": None}, network=network_of(times), clock_ns=clock_ns, seed=seed,
        factors={"on": {category: 1 / speedup for category, speedup in known.items()}},
        traced_restart=0.003,
    ).compare()  # fmt: skip
    kept = ab.operators[ab.operators["category"].isin(known)].sort_values(["category", "key"])
    layers = {key: f"{row // 4}" for row, key in enumerate(kept["candidate_key"])}
    in_layers = ab.compare_by("operator", layers, layers).set_index("key")
    pairs = (
        (ab.operators, "category"),
        (in_layers[in_layers.index.isin(set(layers.values()))], "category"),
        (ab.categories, "name"),
    )
    tables = (frame.assign(true=frame[column].map(known)) for frame, column in pairs)
    return [table.dropna(subset="true") for table in tables]


def write_run(
    folder: Path,
    latencies_ms: Mapping[str, float | Mapping[int, float] | None],
    *,
    factors: Mapping[str, Mapping[str, float]] | None = None,
    pairs: tuple[tuple[str, str], ...] | None = None,
    control: str | bool = False,
    sizes: Mapping[str, int] | None = None,
    power: int = 1,
    traced: int = 10,
    traced_noise: float = 0.01,
    traced_restart: float = 0.0,
    network: Sequence[tuple[str, str, str, float]] = NETWORK,
    clock_ns: int = 1000,
    toggle: str = "avx512",
    latencies: pd.DataFrame | None = None,
    export: Any = None,
    changes: Mapping[str, object] | None = None,
    **options,
) -> Path:
    """Write the folder of a run of a small network; returns it.

    Parameters
    ----------
    latencies_ms
        The true latency of every experiment, the baseline first; by thread count if it depends on
        that; None for the sum of its operators. One that is called ``on`` uses the toggle.
    factors
        By experiment, how many times as long the operators of a category (or of one ledger kind)
        take in its traces; 0 leaves them out. By default all take the same time, whatever the
        latency.
    pairs
        What is compared: by default all others with the first experiment.
    control
        Adds ``control``, which repeats the first experiment, or the one named.
    sizes, power
        By phase, whose name starts that of its experiments, the size of a sweep; the inputs have
        ``size ** power`` values.
    traced
        Traced inferences of every process; 0 for none.
    traced_noise, traced_restart
        Log-normal scatter of every operator, from inference to inference and between restarts.
    network, clock_ns
        As ``synthetic.NETWORK``; the unit in which its delegate's operators are logged, rounded
        down.
    toggle
        Of the plan; ``ladder`` for ISA levels, the lowest first.
    latencies
        Latencies to write in place of synthetic ones: ``frames.LATENCIES``.
    export
        How its program was exported; its SHA-256 is the program's.
    changes
        Other fields of the manifest.
    options
        Of `synthetic_latencies`: ``processes``, ``rounds``, ``noise``, ``restart``, ``seed``, ...
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = list(latencies_ms)
    factors = dict(factors or {})
    times = {
        name: ms if isinstance(ms, Mapping) else {1: ms or _sum_ms(network, factors.get(name, {}))}
        for name, ms in latencies_ms.items()
    }
    if control:
        original = control if isinstance(control, str) else names[0]
        times["control"] = times[original]
        factors.setdefault("control", factors.get(original, {}))
    threads = tuple(sorted({count for by_count in times.values() for count in by_count}))
    if latencies is None:
        latencies = pd.concat(
            [
                synthetic_latencies(
                    {
                        name: by_count[count]
                        for name, by_count in times.items()
                        if count in by_count
                    },
                    threads=count,
                    **options,
                )
                for count in threads
            ],
            ignore_index=True,
        )
    rng, levels = (np.random.default_rng([options.get("seed", 0), *more]) for more in ((), (1,)))
    isa = {name: "native" if name == "on" else f"no{toggle}" for name in names}
    masks = {name: () if name == "on" else ("avx512",) for name in names}
    if toggle == "ladder":
        isa = {name: name for name in names}
        masks = {name: tuple(names[place + 1 :]) for place, name in enumerate(names)}
    if control:
        isa["control"], masks["control"] = isa[original], masks[original]
    sessions = []
    keys = ["experiment", "threads", "process", "traced"]
    for (name, count, process, is_traced), part in latencies.groupby(keys, sort=False):
        sessions.append(_session(name, count, process, _batches(part), is_traced, masks[name]))
        if not traced or is_traced:
            continue
        operators = [
            (kind, operator, ms * math.exp(levels.normal(0, traced_restart)))
            for kind, operator, ms in _operators(network, factors.get(name, {}))
        ]
        blocks = [_block(operators, rng, traced_noise, clock_ns) for _ in range(traced)]
        wall = tuple(block.events[-1].end - block.events[-1].start for block in blocks)
        file = f"{name}_t{count}_p{process}.etdump"
        (folder / file).write_bytes(build_etdump(blocks))
        batch = _batch(0, 0, wall, wall, (0,) * traced)
        sessions.append(_session(name, count, process, (batch,), True, masks[name], file))
    compared = pairs or tuple((names[0], other) for other in names[1:])
    named = {"pte": "net.pte", "sha256": "0" * 64, "model": "net", "stem": "net"}
    if export:
        named = {"pte": export.pte, "sha256": export.sha256, "model": export.model}
        named["stem"] = Path(export.pte).stem
    plan = named | {
        "inputs": (), "input_source": "", "toggle": toggle, "threads": threads,
        "processes": int(latencies["process"].nunique()), "sweep": "batch" if sizes else "",
        "experiments": [
            {
                "name": name, "isa": isa[name], "control": name == "control",
                "phase": next((phase for phase in sizes or () if name.startswith(phase)), ""),
            }
            for name in times
        ],
        "pairs": [
            {"baseline": one, "candidate": other, "label": f"with {toggle}"}
            for one, other in compared
        ],
        "phases": [
            {"name": phase, "inputs": [{"dtype": "float32", "shape": (size**power,)}], "size": size}
            for phase, size in (sizes or {}).items()
        ],
    }  # fmt: skip
    record = {
        "plan": plan, "platform": "linux-x86_64", "emulated": False, "state": "complete",
        "started": "2026-01-01T00:00:00", "finished": "2026-01-01T00:01:00",
        "host": {"cpu": "a CPU"}, "runner": {"kind": "native"}, "versions": {},
        "sessions": sessions, "export": export, "schema_version": 3,
    }  # fmt: skip
    write_manifest(record | dict(changes or {}), folder)
    return folder


def _session(name, threads, process, batches, traced, masked, etdump=""):
    return {
        "experiment": name, "threads": int(threads), "process": int(process),
        "traced": bool(traced), "masked": masked, "load_ms": 1.0, "startup_ms": 1.0,
        "batches": batches, "etdump": etdump,
    }  # fmt: skip


def _batch(number, place, wall_ns, cpu_ns, preempted):
    times = {"wall_ns": wall_ns, "cpu_ns": cpu_ns, "preempted": preempted}
    return {"round": int(number), "batch": int(place), **times}


def _batches(part: pd.DataFrame) -> list[dict[str, Any]]:
    return [
        _batch(number, place, *(rows[clock].tolist() for clock in _CLOCKS))
        for (number, place), rows in part.groupby(["round", "batch"], sort=False)
    ]


_CLOCKS = ("wall_ns", "cpu_ns", "preempted")


def _operators(network, factors: Mapping[str, float]):
    for category, kind, name, ms in network:
        if factor := factors.get(category, 1.0) * factors.get(kind, 1.0):
            yield kind, name, ms * factor


def _sum_ms(network, factors: Mapping[str, float]) -> float:
    return sum(ms for _, _, ms in _operators(network, factors))


def _block(operators, rng: np.random.Generator, noise: float, clock_ns: int) -> Block:
    """One inference of the network: its delegate first, then its kernels."""
    times = {}
    for row, (kind, name, ms) in enumerate(operators):
        ns = round(1e6 * ms * np.exp(rng.normal(0, noise)))
        times[row, kind, name] = ns - ns % clock_ns if kind == "delegated" else ns
    events: list[Profile] = []
    now = start = 1000

    def of(kind):
        return [(row, name, ns) for (row, k, name), ns in times.items() if k == kind]

    ((_, _, rest),), ((_, _, around),) = of(_FRAMEWORK), of(_DELEGATE)
    now += around
    for row, name, ns in of("delegated"):
        events.append(Profile(f"{name} #{row}", 0, 0, start=now, end=now + ns))
        now += ns
    events.append(Profile("DELEGATE_CALL", 0, 0, start=start, end=now))
    for number, ((_, name, ns), (_, _, call)) in enumerate(
        zip(of("portable"), of("call_overhead"), strict=True), 1
    ):
        begin, now = now, now + call
        events.append(Profile(name, 0, number, start=now, end=now + ns))
        now += ns
        events.append(Profile("OPERATOR_CALL", 0, number, start=begin, end=now))
    events.append(Profile("Method::execute", -1, -1, start=start, end=now + rest))
    return Block("Execute", events)

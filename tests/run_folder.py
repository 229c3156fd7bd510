"""Real run folders, a manifest and ETDumps, whose latencies and operators are chosen."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from etdump_builder import Block, Profile, build_etdump
from synthetic import NETWORK, TRUE_SPEEDUPS, network_of, synthetic_latencies

import workbench as wb
from workbench.records.runs import (
    Batch,
    Experiment,
    Export,
    Pair,
    Phase,
    Plan,
    ProcessMemory,
    RunRecord,
    Session,
    Stage,
    Start,
    Tensor,
)
from workbench.store import save_run

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
    pairs = (
        (ab.operators, "category"),
        (ab.compare_groups(layers), "category"),
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
    export: Export | None = None,
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
        batch = Batch(0, 0, wall, wall, (0,) * traced)
        sessions.append(_session(name, count, process, (batch,), True, masks[name], file))
    compared = pairs or tuple((names[0], other) for other in names[1:])
    named = ("net.pte", "0" * 64, "net", "net")
    if export:
        named = (export.pte, export.sha256, export.model, Path(export.pte).stem)
    plan = Plan(
        *named, (), "", tuple(
            Experiment(
                name, isa[name], control=name == "control",
                phase=next((phase for phase in sizes or () if name.startswith(phase)), ""),
            )
            for name in times
        ),
        tuple(Pair(*pair, f"with {toggle}") for pair in compared),
        toggle=toggle, threads=threads, processes=int(latencies["process"].nunique()),
        sweep="batch" if sizes else "", phases=tuple(
            Phase(phase, (Tensor("float32", (size**power,)),), size=size)
            for phase, size in (sizes or {}).items()
        ),
    )  # fmt: skip
    record = {
        "plan": plan, "platform": "linux-x86_64", "emulated": False, "state": "complete",
        "started": "2026-01-01T00:00:00", "finished": "2026-01-01T00:01:00",
        "host": {"cpu": "a CPU"}, "runner": {"kind": "native"}, "versions": {},
        "sessions": tuple(sessions), "export": export,
    }  # fmt: skip
    save_run(RunRecord(**record | dict(changes or {})), folder)
    return folder


def _session(name, threads, process, batches, traced, masked, etdump=""):
    numbers = int(threads), int(process)
    return Session(name, *numbers, bool(traced), masked, 1.0, 1.0, batches, etdump=etdump)


def _batches(part: pd.DataFrame) -> tuple[Batch, ...]:
    return tuple(
        Batch(int(number), int(batch), *(tuple(rows[clock].tolist()) for clock in _CLOCKS))
        for (number, batch), rows in part.groupby(["round", "batch"], sort=False)
    )


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


#: The stages of a made start: name, milliseconds, kilobytes that stay, bytes that are counted.
_STAGES = (
    ("process", 1, 100, 0), ("libraries", 1, 50, 0), ("threads", 0.5, 10, 0), ("file", 0.1, 0, 0),
    ("program", 0.1, 0, 0), ("arenas", 0.1, 100, 100_000), ("method", 0.1, 0, 0),
    ("delegate", 6, 600, 0), ("method", 0.1, 2, 2000), ("inputs", 0.1, 8, 8000),
    ("first inference", 1, 130, 0),
)  # fmt: skip


def make_start(experiment="a", number=0, mode="time", scale=1.0, heap=True):
    """A start whose delegate takes 6 of 10 ms and 600 of 1000 kB; others by a ``scale``."""
    resident, stages = 0, []
    for name, ms, kb, counted in _STAGES:
        resident += kb * 1000
        given = resident if heap else -1
        ns = round(ms * 1e6 * scale)
        memory = {"anonymous": resident, "pss": resident, "peak": resident}
        counts = {"name": name, "ns": ns, "cpu_ns": ns, "bytes": counted, "heap": given}
        stages.append(Stage(**memory, **counts))
    memory = ProcessMemory(anonymous=resident, pss=resident, peak=round(resident * scale))
    return Start(experiment, 1, number, mode, tuple(stages), memory)


def open_paced_run(folder, every_ms, times_ms, late_ms):
    """A run in which each of three restarts of one experiment has these times at a rate."""
    made = open_made_run(folder / "made", {"off": 2.0, "on": 1.0}, processes=3)
    wall, late = (tuple(int(1e6 * ms) for ms in each) for each in (times_ms, late_ms))
    zero = (0,) * len(wall)
    batch = Batch(0, 0, wall, wall, zero, late_ns=late)
    paced = tuple(Session("on", 1, n, False, (), 1.0, 1.0, (batch,)) for n in range(3))
    plan = Plan(**vars(made.record.plan) | {"every_s": every_ms / 1e3})
    changes = {"paced": paced, "plan": plan}
    return open_made_run(folder / "run", {"off": 2.0, "on": 1.0}, processes=3, changes=changes)


#: Options of a short measurement at a rate.
EVERY_2_MS = ("--every", "2ms", "--budget", "0.2s", "--no-evidence", "--no-cold-start", "--json")


def check_rates(run):
    """Assert that a run with these options has its inferences at the rate and without pauses."""
    assert not {m.name for m in run.measurements if m.paced is not None} & {"control"}
    for name in run.experiments:
        paced, tight = run[name].paced.to_dict("records")
        sessions = [s for s in run.record.paced if s.experiment == name]
        assert len(sessions) == 3, "restarts of a short budget"
        late = [ns for s in sessions for batch in s.batches for ns in batch.late_ns]
        assert min(late) >= 0 and paced["inferences"] == len(late) >= len(sessions)
        assert 0 < paced["p50"] <= paced["p90"] <= paced["p99"]
        assert tight["inferences"] == (~run[name].latencies["traced"]).sum()

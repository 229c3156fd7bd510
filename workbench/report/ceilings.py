"""The roofline of a run: the ceilings of its machine, measured once and kept."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from workbench.analyze import Roof, build_roof, place_operators, tabulate_ceilings
from workbench.codec import from_json, to_json
from workbench.errors import StoreError, UsageError
from workbench.records import Ceilings, Experiment, Probe, Run, count_threads
from workbench.report.analysis import Analysis
from workbench.report.notes import EMULATED, show_note
from workbench.show import Table, mark_figure, plot_roofline, show_table
from workbench.store import load_run, write_whole

#: What matrix products are probed in.
_PROBED = ("fp32", "fp16", "int8")
#: The dtype in which a program's products are computed, where that is not its own.
_COMPUTED = {"fp16w": "fp16", "int8dyn": "int8", "8da4w": "int8"}
_PROBES = "probes.json"


def measure_roof(
    run_dir: str | Path,
    *,
    again: bool = False,
    progress: Callable[[str, float], None] = lambda text, part: None,
) -> list[Ceilings]:
    """Measure what the machine of a run can do, at each of its ISA levels and thread counts.

    Ceilings are kept for the machine, the runner, the level and the thread count, and a copy lies
    in the run's folder, which then stands alone.

    Parameters
    ----------
    run_dir
        The run's folder.
    again
        Measure anew what is kept: the machine was busy, or is another one now.
    progress
        Told what is being done.

    Raises
    ------
    UsageError
        The run was emulated, or made on another machine than this.
    SetupError, RunnerError
        The probes cannot be made or run.
    """
    run_dir = Path(run_dir)
    run = load_run(run_dir)
    if run.emulated:
        raise UsageError("an emulated run has no ceilings", where=run_dir, hint=EMULATED)
    wanted = [
        (experiment.isa, threads)
        for experiment in run.plan.experiments
        for threads in run.plan.threads
        if _is_plain(experiment)
    ]
    found = []
    for number, (isa, threads) in enumerate(dict.fromkeys(wanted)):
        progress(f"ceilings of {isa}, {count_threads(threads)}", number / len(wanted))
        ceilings = None if again else _kept(run, isa, threads)
        ceilings = ceilings or _measure(run, run_dir, isa, threads, progress)
        write_whole(run_dir / _name(isa, threads), to_json(ceilings))
        found.append(ceilings)
    return found


def find_roof(analysis: Analysis, experiment: str, threads: int) -> Roof | None:
    """The roof over one experiment, from the ceilings in the run's folder; None without any."""
    chosen = next(e for e in analysis.run.plan.experiments if e.name == experiment)
    path = analysis.run_dir / _name(chosen.isa, threads)
    if not _is_plain(chosen) or not path.is_file():
        return None
    return build_roof(from_json(Ceilings, path.read_bytes(), path))


def find_roofline(
    analysis: Analysis, experiment: str = "", threads: int | None = None
) -> pd.DataFrame | None:
    """``schema_advice.ROOFLINE`` of one experiment; None without ceilings, or without a sidecar.

    The experiment is that of the first comparison's candidate unless another one is named.
    """
    first = analysis.comparisons[0]
    experiment, threads = experiment or first.pair.candidate, threads or first.threads
    roof = find_roof(analysis, experiment, threads)
    operators = analysis.select(analysis.operators, experiment, threads)
    if roof is None or "flops" not in operators:
        return None
    return place_operators(operators, roof, computed_dtype(analysis.run))


def show_roofline(
    analysis: Analysis, experiment: str = "", threads: int | None = None
) -> Figure | Table:
    """The roofline as a figure; or how to get it."""
    first = analysis.comparisons[0]
    experiment, threads = experiment or first.pair.candidate, threads or first.threads
    table = find_roofline(analysis, experiment, threads)
    if table is None:
        return show_note(
            "No ceilings of this machine are known, or no costs: `workbench roofline RUN_DIR` "
            "measures the former, an export by the workbench has the latter."
        )
    roof = find_roof(analysis, experiment, threads)
    figure = plot_roofline(
        table, roof.peaks, roof.bandwidths, roof.spread, title=f"Roofline of {experiment}"
    )
    return mark_figure(figure, EMULATED) if analysis.run.emulated else figure


def list_ceilings(analysis: Analysis) -> pd.DataFrame:
    """The ceilings in a run's folder, as `tabulate_ceilings` has them."""
    return tabulate_ceilings(
        from_json(Ceilings, path.read_bytes(), path)
        for path in sorted(analysis.run_dir.glob(_name("*", 0).replace("t0", "t*")))
    )


def describe_roofline(analysis: Analysis, top: int = 12) -> Table:
    """The slowest operators of the first candidate, how fast they are, and what binds them."""
    table = find_roofline(analysis)
    if table is None:
        return show_note("The costs of this program's operators are not known.")
    columns = ["name", "module", "mean_ms", "gflops", "gbps", "roof_share", "bound"]
    return show_table(table, columns, rows=top, caption="roof share: time at the roof / mean time")


def computed_dtype(run: Run) -> str:
    """In which dtype a run's matrix products are computed, as far as its export says."""
    dtype = run.export.dtype if run.export else "fp32"
    return _COMPUTED.get(dtype, dtype)


def _measure(
    run: Run, run_dir: Path, isa: str, threads: int, progress: Callable[[str, float], None]
) -> Ceilings:
    from workbench.run import device_of, find_runner, measure_ceilings, open_target

    folder, probes = find_probes(progress)
    with open_target(run.plan.target) as there:
        runner = find_runner(run.runner.get("kind", "wheel"), there)
        here, then = device_of(there.describe(), runner.description), device_of_run(run)
        if here != then:
            raise UsageError(
                f"was made on {then['cpu']} with the {then['runner']}, this is "
                f"{here['cpu']} with the {here['runner']}",
                where=run_dir,
                hint="measure the ceilings where the run was made, or run it anew here",
            )
        ceilings = measure_ceilings(
            probes, folder, runner, isa, threads, tell=lambda text: progress(text, 0.5)
        )
    write_whole(_place(run, isa, threads), to_json(ceilings))
    return ceilings


def find_probes(progress: Callable[[str, float], None]) -> tuple[Path, tuple[Probe, ...]]:
    """The probes' folder in the cache, exported on first use, and what is in it."""
    from workbench.export import export_probes
    from workbench.run import cache_folder, keep

    def make(folder: Path) -> None:
        progress("exporting the probes, once", 0.0)
        folder.mkdir()
        probes = export_probes(_PROBED, folder)
        blank = Ceilings("", "", "", 0, "", tuple(probes))
        write_whole(folder / _PROBES, to_json(blank))

    folder = keep(f"probes/{_version()}", make)
    index = folder / _PROBES
    if not index.is_file():
        raise StoreError("is incomplete", where=cache_folder(), hint="delete its folder probes")
    return folder, from_json(Ceilings, index.read_bytes(), index).probes


def _version() -> str:
    from importlib import metadata

    from workbench.export import PROBES_VERSION

    return f"{PROBES_VERSION}-{metadata.version('executorch')}"


def _kept(run: Run, isa: str, threads: int) -> Ceilings | None:
    """Ceilings of a run's machine that were measured before."""
    path = _place(run, isa, threads)
    with contextlib.suppress(StoreError, UsageError):  # another version's: measured anew
        if path.is_file():
            return from_json(Ceilings, path.read_bytes(), path)
    return None


def _place(run: Run, isa: str, threads: int) -> Path:
    from workbench.run import cache_folder

    device = device_of_run(run)
    digest = hashlib.sha256(f"{device['cpu']} {device['runner']}".encode()).hexdigest()[:16]
    return cache_folder() / "ceilings" / digest / _name(isa, threads)


def device_of_run(run: Run) -> dict[str, str]:
    """What ceilings have to be of, to be those of a run."""
    from workbench.run import device_of

    return device_of(run.host, run.runner)


def _name(isa: str, threads: int) -> str:
    return f"ceilings_{isa}_t{threads}.json"


def _is_plain(experiment: Experiment) -> bool:
    """Whether a level of the ladder says all about what an experiment may use."""
    return not experiment.isa_off and not experiment.control

"""Find performance bottlenecks in ExecuTorch models.

Open and compare recorded runs
    open_run, Run, Measurement, Comparison, compare, combine_runs, sample_run

Export, measure, report
    profile, export_model, ExportOptions, Program, open_program, rewrite, measure, MeasureOptions,
    make_report, measure_roof, load_ipython_extension

Models and machine
    list_models, load_model, register_model, EagerModelBase, read_exports, sample_file,
    examine_machine, find_runner, read_isa, WorkbenchError

Traces
    read_etdump, build_ledger

Figures, tables and widgets
    show, explore, pick, pick_measurements, pick_run, plot_categories,
    plot_iterations, plot_latencies, plot_roofline, plot_shift,
    plot_speedups

Names are imported when they are first used; ``help(workbench.NAME)`` describes one.
"""

from importlib.util import find_spec
from typing import Any

import lazy_loader

from workbench.arguments import guard
from workbench.errors import unknown_attribute
from workbench.shown import show_by

_find, _list, __all__ = lazy_loader.attach_stub(__name__, __file__)
show_by(lambda noun: _find("show")(noun))


def __getattr__(name: str) -> Any:
    # `from workbench import frames` asks for the name of a module, too.
    if name in __all__:
        globals()[name] = guard(_find(name))  # in place of what the loader keeps there
        return globals()[name]
    if name.startswith("_") or find_spec(f"{__name__}.{name}"):
        return _find(name)
    from workbench.plugin import find

    part = find("attributes", f"workbench.{name}")
    if part is None:
        raise unknown_attribute("workbench", name, __dir__())
    return guard(part)


def __dir__() -> list[str]:
    from workbench.plugin import attributes_of

    return sorted({*_list(), *attributes_of("workbench")})

# ruff: noqa: D103
"""Temporary: first-version signatures for notebooks that have not moved to the nouns yet."""

from workbench.explorer import timeline, widgets
from workbench.plots import (
    latencies,
    layers,
    machine_code,
    roofline,
    sweeps,
    tables,
    text,
)


def plot_latencies(source, *_, **__):
    return latencies.plot_latencies(source)


def plot_turns(source, *_, **__):
    return latencies.plot_iterations(source)


def plot_tree(source, *, depth=None, title=""):
    return layers.plot_layers(source, depth=depth)


def plot_code(shares, *_, top=8, **__):
    return machine_code.plot_machine_code(shares, top=top)


def plot_ladder(source, *_, **__):
    return sweeps.plot_isa_levels(source)


def plot_scaling(source, *_, **__):
    return sweeps.plot_threads(source)


def show_table(frame, columns=None, *, rows=None, top=None, caption=""):
    return tables.show_table(frame, columns, top=top or rows, caption=caption)


def show_together(*parts):
    return tables.VStack(*parts)


def show_findings(source, *, rows=8, top=None):
    return text.show_findings(source, top=top or rows)


def show_layers(source, experiment=None, threads=None, rows=12, top=None):
    return text.show_layers(source[experiment, threads] if experiment else source, top=top or rows)


def show_tree(run, experiment, threads, rows=12):
    m = run[experiment, threads]
    return tables.VStack(layers.plot_layers(m), text.show_layers(m, top=rows))


def show_axes(run):
    return text.show_sweeps(run)


def show_proof(_, ab):
    return text.show_code(ab)


def show_code(*args):
    return machine_code.plot_machine_code(args[1]) if len(args) > 1 else text.show_code(*args)


def show_kernels(*args, rows=12, top=None):
    return text.show_kernels(args[-1], top=top or rows)


def show_speedups(ab, rows=None, top=12):
    return text.show_speedups(ab, top=rows or top)


def show_roofline(source, experiment="", threads=None, top=12):
    if hasattr(source, "roofline"):
        return text.show_roofline(source, top=top)
    return roofline.plot_roofline(source[experiment, threads] if experiment else source.subject)


def describe_roofline(run, top=12):
    return text.show_roofline(run.subject, top=top)


def show_timeline(source, *_, headless=True):
    return timeline.show_timeline(source.compare() if hasattr(source, "compare") else source)


def explore(view, *, headless=None, **choices):
    return widgets.explore(view, **choices)


def pick_measurements(folder=".", *, headless=None):
    return widgets.pick_measurements(folder)


def explore_ladder(run, *, headless=None):
    return widgets.explore_isa_levels(run)

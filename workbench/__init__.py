"""Finds performance bottlenecks in ExecuTorch models, with evidence.

The verbs of the workbench, in the order in which data walks: model -> export -> run -> trace ->
analyze -> show -> report. They are imported when they are first used.
"""

from importlib import import_module

_HOME = {
    "EagerModelBase": "models",
    "list_models": "models",
    "load_model": "models",
    "register_model": "models",
    "export_model": "export",
    "examine_machine": "run",
    "find_runner": "run",
    "make_plan": "run",
    "open_target": "run",
    "read_isa": "run",
    "run_plan": "run",
    "read_allocations": "trace",
    "read_etdump": "trace",
    "read_values": "trace",
    "read_xnn_log": "trace",
    "stream_etdump": "trace",
    "add_categories": "analyze",
    "add_up_spans": "analyze",
    "attribute_layers": "analyze",
    "build_ledger": "analyze",
    "build_model_tree": "analyze",
    "compare_kernels": "analyze",
    "find_methods": "analyze",
    "bottleneck_shift": "analyze",
    "load_case_study": "analyze",
    "predict_what_if": "analyze",
    "rank_bottlenecks": "analyze",
    "summarize_categories": "analyze",
    "tabulate_rules": "analyze",
    "FACTORS": "show",
    "explore": "show",
    "plot_bottlenecks": "show",
    "plot_categories": "show",
    "plot_code": "show",
    "plot_history": "show",
    "plot_ladder": "show",
    "plot_heatmap": "show",
    "plot_latencies": "show",
    "plot_operators": "show",
    "plot_scaling": "show",
    "plot_shift": "show",
    "plot_speedups": "show",
    "plot_tree": "show",
    "plot_what_if": "show",
    "plot_stack": "show",
    "plot_turns": "show",
    "show_table": "show",
    "LiveRun": "report",
    "show_together": "show",
    "align_measurements": "report",
    "analyze_run": "report",
    "check_run": "report",
    "combine_runs": "portfolio",
    "compare_exports": "report",
    "compare_runs": "report",
    "describe_run": "report",
    "explore_ladder": "report",
    "export_trace": "report",
    "find_next_steps": "report",
    "find_roofline": "report",
    "replay_layer": "report",
    "describe_roofline": "report",
    "list_ceilings": "report",
    "measure_roof": "report",
    "show_roofline": "report",
    "place_layers": "analyze",
    "plot_roofline": "show",
    "make_report": "report",
    "measure_config": "report",
    "measure_program": "report",
    "profile_model": "report",
    "show_findings": "report",
    "list_partition": "report",
    "list_runs": "report",
    "pick_measurements": "report",
    "read_exports": "report",
    "read_history": "portfolio",
    "show_axes": "report",
    "show_aligned": "report",
    "show_code": "report",
    "show_kernels": "report",
    "show_layers": "report",
    "show_timeline": "report",
    "show_quality": "report",
    "show_speedups": "report",
    "show_tree": "report",
    "validate_run": "report",
    "show_undelegated": "report",
    "show_verdicts": "report",
    "sample_exports": "testing",
    "sample_model": "testing",
    "sample_run": "testing",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
